"""The calls of ``driver_calls.c`` with the recorder behind them, as CUPTI would put it there.

Run as a program, it plays the scene of that name, which may end the process or hang.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from emulator import build
from streamkit.diagnostics.recording import recorder  # it is called here
from support.cupti import NUMBER

SOURCE = Path(__file__).with_suffix(".c")
RECORD, DESTROY = NUMBER["cuEventRecord"], 326


class Calls:
    """CUPTI, and a driver: ``free`` releases the GIL in a call, ``held`` keeps it."""

    def __init__(self, folder):
        file = str(Path(folder, "driver_calls.so"))
        command = [build.compiler(), "-O1", "-g", "-shared", "-fPIC", str(SOURCE), "-o", file]
        subprocess.run([*command, "-lpthread"], check=True)
        self.free, self.held = ctypes.CDLL(file), ctypes.PyDLL(file)
        self.fields = (ctypes.c_uint64 * 4)(5, 16)
        self.enabled = set()
        self.code = 0
        numbers = ctypes.c_uint64 * len(recorder._FUNCTIONS)
        self.asked, self.says = (numbers.in_dll(self.free, one) for one in ("asked", "says"))
        self._usual = [*self.says]

    def connect(self, patch=setattr):
        """Be the CUPTI and the driver of the recorder, which forgets what it was told to say."""
        answers = (ctypes.c_void_p * 8).in_dll(self.free, "answers")
        patch(recorder, "driver_functions", lambda: [ctypes.c_void_p(one) for one in answers])
        patch(recorder, "_find", lambda: self)
        self.code, self.says[:], self.asked[:] = 0, self._usual, [0] * 8

    def cuptiSubscribe(self, _handle, callback, _user):  # noqa: N802 - CUPTI's name
        to = None if self.code else ctypes.cast(callback, ctypes.c_void_p)
        ctypes.c_void_p.in_dll(self.free, "called").value = to and to.value
        return self.code

    def cuptiEnableCallback(self, is_on, _handle, _domain, number):  # noqa: N802 - CUPTI's name
        (self.enabled.add if is_on else self.enabled.discard)(number)

    def cuptiUnsubscribe(self, _handle):  # noqa: N802 - CUPTI's name
        assert not self.enabled

    def half(self, site, name, *fields, code=0):
        """Make the beginning of a call, or its end; a name, or CUPTI's number."""
        given = (ctypes.c_uint64 * 16)(*fields)
        self.free.half_of_call(site, NUMBER.get(name, name), given, code)

    def call(self, name, *fields, code=0):
        for site in (0, 1):
            self.half(site, name, *fields, code=code)


class Noted:
    """A listener, and what was noted for it."""

    def __init__(self, subscription, notice=None):
        self._subscription, self._listener = subscription, subscription.open(notice)

    def __call__(self, *, streams=False):
        """End, and return the facts; those of streams that were met only if that is wanted."""
        facts, lost = self._subscription.close(self._listener)
        assert lost == 0
        return [fact for fact in facts if fact.call or streams]


def made(folder):
    """Return calls; skip the test where there is no compiler or no recorder."""
    try:
        recorder.load()
        return Calls(folder)
    except (build.CannotBuildError, recorder.NoCallbacksError):
        return pytest.skip("the recorder in C needs a compiler here")


def two_threads(calls):
    """One waits for the GIL while it has CUDA's lock, the other one has the GIL and wants it."""
    listener = recorder.subscription.open()
    with ThreadPoolExecutor(2) as pool:
        pool.submit(calls.free.call_often, RECORD, calls.fields, 2000)
        pool.submit(calls.held.call_often, RECORD, calls.fields, 2000)
    facts, lost = recorder.subscription.close(listener)
    print(sum(one.call == RECORD for one in facts), lost)


def late_threads(calls):
    """Threads are in calls while the interpreter ends and frees their states."""
    recorder.subscription.open()

    def work(depth):
        work(depth - 1) if depth else calls.free.call_often(RECORD, calls.fields, 10**6)

    for depth in range(8):
        threading.Thread(target=work, args=(depth,), daemon=True).start()
    time.sleep(0.1)

    class Late:
        """Makes the end of the interpreter last."""

        def __init__(self):
            self.sleep = ctypes.CDLL(None).usleep

        def __del__(self):
            self.sleep(300_000)

    sys.late = [Late(), Late()]
    print("the end")


if __name__ == "__main__":
    recorder._FILE = os.environ.get("RECORDER", recorder._FILE)
    with tempfile.TemporaryDirectory() as folder:
        calls = Calls(folder)
        calls.connect()
        globals()[sys.argv[1]](calls)
