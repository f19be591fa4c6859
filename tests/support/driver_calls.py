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
from pathlib import Path

from emulator import build
from streamkit.diagnostics.recording import recorder  # it is called here
from support.cupti import NUMBER

SOURCE = Path(__file__).with_suffix(".c")
RECORD = NUMBER["cuEventRecord"]
DESTROY = 326


class Calls:
    """CUPTI, and a driver: ``free`` releases the GIL in a call, ``held`` keeps it."""

    def __init__(self, folder, *flags):
        file = Path(folder, "driver_calls.so")
        command = [
            build.compiler(),
            "-O1",
            "-g",
            "-shared",
            "-fPIC",
            *flags,
            str(SOURCE),
            "-o",
            str(file),
        ]
        subprocess.run([*command, "-lpthread"], check=True)
        self.free, self.held = ctypes.CDLL(str(file)), ctypes.PyDLL(str(file))
        self.fields = (ctypes.c_uint64 * 4)(5, 16)

    def connect(self, patch=setattr):
        """Be the CUPTI and the driver of the recorder."""
        answers = (ctypes.c_void_p * 8).in_dll(self.free, "answers")
        patch(recorder, "driver_functions", lambda: [ctypes.c_void_p(one) for one in answers])
        patch(recorder, "_find", lambda: self)

    def cuptiSubscribe(self, _handle, callback, _user):  # noqa: N802 - CUPTI's name
        self.free.calls_go_to(callback)

    def cuptiEnableCallback(self, *_):  # noqa: N802 - CUPTI's name
        pass

    def cuptiUnsubscribe(self, _):  # noqa: N802 - CUPTI's name
        pass

    def call(self, number=RECORD, code=0):
        self.free.call(number, self.fields, code)


def two_threads(calls):
    """One waits for the GIL while it has CUDA's lock, the other one has the GIL and wants it."""
    listener = recorder.subscription.open()
    free, held = (
        threading.Thread(target=one.call_often, args=(RECORD, calls.fields, 2000))
        for one in (calls.free, calls.held)
    )
    for thread in (free, held):
        thread.start()
    for thread in (free, held):
        thread.join()
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
        made = Calls(folder)
        made.connect()
        globals()[sys.argv[1]](made)
