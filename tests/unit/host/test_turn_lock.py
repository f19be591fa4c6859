"""The lock for inner loops."""

from __future__ import annotations

import os
import threading
import time

import pytest

from streamkit._support.locks import new_turn_lock, wait_for_turn  # no public name waits for a turn
from support.programs import needs_fork
from support.queues import together

pytestmark = pytest.mark.portable


def take(lock, me, act):
    """What ``new_turn_lock`` says to write."""
    try:
        lock.insert(0, me) if lock and lock[:1] == [me] else lock.append(me)
        if lock[0] is not me:
            wait_for_turn(lock, me)
        act()
    finally:
        lock.remove(me)


def count_up(take):
    """Let threads count together in small steps; return what they come to, and should."""
    lock, seen = new_turn_lock(), [0]

    def step():
        value = seen[0]
        time.sleep(0)
        seen[0] = value + 1

    def work(_):
        me = object()
        for _ in range(300):
            take(lock, me, step)

    together(4, work)
    assert not lock
    return seen[0], 4 * 300


def test_one_thread_at_a_time(eager_switching):
    counted, expected = count_up(take)
    assert counted == expected


def test_control_without_turns_counts_are_lost(eager_switching):
    counted, expected = count_up(lambda lock, me, act: act())
    assert counted < expected


def test_a_turn_inside_ones_own_comes_at_once_and_ends_alone():
    lock, me, order = new_turn_lock(), object(), []
    waiting = threading.Thread(target=take, args=(lock, object(), lambda: order.append("other")))

    def outer():
        waiting.start()
        while len(lock) < 2:
            time.sleep(0)
        take(lock, me, lambda: order.append("inner"))  # as a destructor would
        waiting.join(0.1)
        order.append("outer")

    take(lock, me, outer)
    waiting.join(10)
    assert order == ["inner", "outer", "other"]
    assert not lock


@needs_fork
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_child_finds_it_free():
    lock = new_turn_lock()
    lock.append(object())
    child = os.fork()
    if child == 0:
        os._exit(len(lock))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert lock
