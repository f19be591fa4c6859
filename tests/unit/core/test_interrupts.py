"""What an interrupt, such as a Ctrl-C, leaves of locks, latches and threads, whenever it comes."""

from __future__ import annotations

import re
import signal
import sys
from pathlib import Path
from textwrap import indent

import pytest

import streamkit
from support.programs import python

HARNESS = """
import signal, threading
from streamkit._support import garbage, locks  # no public name takes a lock alone
from streamkit._support.locks import Latch  # the same

class Stop(BaseException):
    pass

def stop(*_):
    raise Stop

def work():
    global made
    for _ in range(2000):
{act}

made = {made}
signal.signal(signal.SIGALRM, stop)
left = stops = 0
while stops < {stops}:
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.00002)
        work()
    except Stop:
        stops += 1
    signal.setitimer(signal.ITIMER_REAL, 0)
    if {is_left}:
        left += 1
        made = {made}
print(left)
"""
WITH = "with made: pass"
ATTEMPT = """
taken = []
try:
    locks.take_if_free(made, taken)
finally:
    if taken == [True]:
        made.release()
"""
CARELESS_ATTEMPT = """
if made.acquire(blocking=False):
    try:
        pass
    finally:
        made.release()
"""
STREAMS = """
import faulthandler, signal
import streamkit as sk

class Stop(BaseException):
    pass

def stop(*_):
    raise Stop

def work():
    for _ in range(200):
        with s:
            pass
        t.wait(s)
        s.record()
        t.submit(int)
        t.sync()

signal.signal(signal.SIGALRM, stop)
s, t = sk.new_stream("cpu"), sk.new_stream("cpu")
faulthandler.dump_traceback_later(60, exit=True)
stops = 0
while stops < 3000:
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.0003)
        work()
    except Stop:
        stops += 1
    signal.setitimer(signal.ITIMER_REAL, 0)
s.sync()
t.sync()
"""

pytestmark = pytest.mark.skipif(
    not hasattr(signal, "setitimer"), reason="this system has no timers that send signals"
)


def left_by(stops, made, act, is_left):
    """Return after how many interrupts of an act something is left as it should not be."""
    act = indent(act, 8 * " ")
    return int(python(HARNESS.format(made=made, act=act, is_left=is_left, stops=stops)))


@pytest.mark.parametrize(
    ("made", "act", "is_left"),
    [
        ("locks.RLock()", WITH, "made._is_owned()"),
        ("locks.new_lock()", WITH, "made._is_owned()"),
        ("locks.Lock()", WITH, "made.locked()"),
        ("locks.Lock()", ATTEMPT, "made.locked()"),
        ("garbage.held_back", "with made(): pass", "garbage._lock._is_owned()"),
        ("Latch()", "made = Latch(); made.set()", "made.is_set() and made._lock.locked()"),
    ],
)
def test_nothing_is_left_held(made, act, is_left):
    assert left_by(10_000, made, act, is_left) == 0


@pytest.mark.parametrize(
    ("made", "act", "is_left"),
    [
        ("threading.Lock()", CARELESS_ATTEMPT, "made.locked()"),
        ("threading.Event()", "made = threading.Event(); made.set()", "made._cond._lock.locked()"),
    ],
)
def test_control_what_takes_two_calls_is_left_held(made, act, is_left):
    assert left_by(10_000, made, act, is_left) > 0


@pytest.mark.skipif(sys.version_info[:2] != (3, 14), reason="only Python 3.14 leaves these held")
@pytest.mark.parametrize(
    ("made", "is_left"),
    [("threading.Lock()", "made.locked()"), ("threading.RLock()", "made._is_owned()")],
)
def test_control_a_lock_of_threading_is_left_held(made, is_left):
    assert left_by(1_000, made, WITH, is_left) > 0


def test_host_streams_go_on():
    python(STREAMS, options=["-W", "ignore"])


def test_no_module_makes_a_lock_or_a_thread_of_its_own():
    """Of ``threading``, whose locks and starts an interrupt can break."""
    root = Path(streamkit.__file__).parent
    made = {
        path.relative_to(root).as_posix()
        for path in root.rglob("*.py")
        if re.search(r"threading\.(R?Lock|Condition|Event|Thread)\(", path.read_text("utf-8"))
    }
    assert made == {
        "_support/locks.py",
        "testing/_conformance/subject.py",  # a test's own thread
        "testing/_scheduler.py",  # a condition with a lock of ``locks``
    }
