"""What an interrupt, such as a Ctrl-C, leaves of a latch and of host streams' scopes."""

from __future__ import annotations

import signal
import sys

import pytest

from support.programs import python

pytestmark = pytest.mark.skipif(
    not hasattr(signal, "setitimer"), reason="this system has no timers that send signals"
)

SETS = """
import signal, threading
from streamkit._support.locks import Latch  # no public name sets one alone

class Stop(BaseException):
    pass

def stop(*_):
    raise Stop

def work():
    global made
    for _ in range(2000):
        made = {made}
        made.set()

made = {made}
signal.signal(signal.SIGALRM, stop)
left = stops = 0
while stops < 10_000:
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
SCOPES = """
import faulthandler, signal
import streamkit as sk

class Stop(BaseException):
    pass

def stop(*_):
    raise Stop

def work():
    for _ in range(200):
        with s:
            with t, s:
                pass

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


def left_by(made, is_left):
    """Return after how many interrupts, as it is set, a thread would wait for it in vain."""
    return int(python(SETS.format(made=made, is_left=is_left)))


def test_a_latch_that_is_set_lets_its_thread_go_on():
    assert left_by("Latch()", "made.is_set() and made._lock.locked()") == 0


def test_control_the_lock_of_an_event_is_left_held():
    assert left_by("threading.Event()", "made._cond._lock.locked()") > 0


@pytest.mark.skipif(
    sys.version_info[:2] == (3, 14), reason="it can leave any lock held: CPython's issue 148874"
)
def test_host_streams_can_be_entered_after_interrupts():
    python(SCOPES, options=["-W", "ignore"])
