"""Gates that hold host queues, and waits that end."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from concurrent.futures import Future

import pytest

LONG = 10.0
"""Seconds after which something has to be hanging."""


class Gate:
    """A submitted function that holds the queue until ``open``."""

    def __init__(self, stream):
        self._open = threading.Event()
        self.reached = threading.Event()
        stream.submit(self._hold)

    def _hold(self):
        self.reached.set()
        assert self._open.wait(6 * LONG), "the gate was not opened"

    def open(self):
        self._open.set()


def within(fn, *, seconds=LONG):
    """Call ``fn`` in a thread; return what it returns, raise what it raises, fail if it hangs."""
    outcome = []

    def run():
        try:
            outcome.append((fn(), None))
        except BaseException as error:  # noqa: BLE001 - raised below, in the test's thread
            outcome.append((None, error))

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    if not outcome:
        pytest.fail(f"still hanging after {seconds} s")
    value, error = outcome[0]
    if error is not None:
        raise error
    return value


def pending(stream):
    """Return how many items of a host stream have not ended.

    ``done`` only tells whether there are any, and it also raises errors, lets kept objects go and
    runs what the scheduler holds back.
    """
    return len(stream._work._pending)


def eventually(condition, *, seconds=LONG):
    """Whether the condition comes true within the time."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.001)
    return True


_ALL_SLEEP = """
import sys, time
from collections import deque
from pathlib import Path

tasks, slept = Path("/proc", sys.argv[1], "task"), deque(maxlen=20)
for _ in range(int(sys.argv[2])):
    try:
        states = {stat.read_text().rpartition(") ")[2][0] for stat in tasks.glob("*/stat")}
    except OSError:  # a thread has just ended
        states = {"R"}
    slept.append("R" not in states)
    if sum(slept) > 10:
        sys.exit(0)
    time.sleep(0.005)
sys.exit(1)
"""


def opened_once_all_sleep(gate, *, looks=2000):
    """Open the gate when all threads of this process mostly sleep, or after so many looks.

    Return a future that tells whether they slept. Another process looks, so that no thread of this
    one has to be awake for it.
    """

    def look():
        command = [sys.executable, "-I", "-c", _ALL_SLEEP, str(os.getpid()), str(looks)]
        done = subprocess.run(command, check=False)
        gate.open()
        return done.returncode == 0

    slept = Future()
    threading.Thread(target=lambda: slept.set_result(look()), daemon=True).start()
    return slept


def together(count, work):
    """Run work(number) in this many threads at once; raise the first error."""
    start, failures = threading.Barrier(count), []

    def run(number):
        start.wait()
        try:
            work(number)
        except BaseException as error:  # noqa: BLE001 - raised below
            failures.append(error)

    threads = [threading.Thread(target=run, args=(n,), daemon=True) for n in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(6 * LONG)
        assert not thread.is_alive(), "hanging"
    if failures:
        raise failures[0]
