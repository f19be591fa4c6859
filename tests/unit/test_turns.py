"""A line of threads, of which the first may act."""

from __future__ import annotations

import os
import sys
import threading
import time

import pytest

from streamkit._base.turn_lock import new_line, wait


def take(line, me, act):
    """What the module says to write where turns are taken."""
    try:
        line.insert(0, me) if line and line[0] is me else line.append(me)
        if line[0] is not me:
            wait(line, me)
        act()
    finally:
        line.remove(me)


@pytest.fixture
def switching():
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def count_up(take):
    """Let threads count together in small steps; return what they come to, and should."""
    line, seen = new_line(), [0]

    def step():
        value = seen[0]
        time.sleep(0)
        seen[0] = value + 1

    def work():
        me = object()
        for _ in range(300):
            take(line, me, step)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not line
    return seen[0], 4 * 300


def test_one_thread_at_a_time(switching):
    counted, expected = count_up(take)
    assert counted == expected


def test_control_without_turns_counts_are_lost(switching):
    counted, expected = count_up(lambda line, me, act: act())
    assert counted < expected


def test_a_turn_inside_ones_own_comes_at_once_and_ends_alone():
    line, me, order = new_line(), object(), []
    waiting = threading.Thread(target=take, args=(line, object(), lambda: order.append("other")))

    def outer():
        waiting.start()
        while len(line) < 2:
            time.sleep(0)
        take(line, me, lambda: order.append("inner"))  # as a destructor would
        waiting.join(0.1)
        order.append("outer")

    take(line, me, outer)
    waiting.join(10)
    assert order == ["inner", "outer", "other"]
    assert not line


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_child_finds_the_line_empty():
    line = new_line()
    line.append(object())
    child = os.fork()
    if child == 0:
        os._exit(len(line))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert line
