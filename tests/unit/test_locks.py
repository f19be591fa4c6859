"""The package's locks, and a fork."""

from __future__ import annotations

import pytest

from support.programs import needs_fork, python

HELD = """
import os, threading
from streamkit._base.locks import new_lock  # every lock of the package is made by it

lock, held = {lock}, threading.Event()

def hold():
    with lock:
        held.set()
        threading.Event().wait()

threading.Thread(target=hold, daemon=True).start()
held.wait()
child = os.fork()
if child == 0:
    os._exit(int(lock.acquire(timeout={seconds})))
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""

pytestmark = [needs_fork, pytest.mark.portable]


def found_free(lock, seconds):
    """Whether a child that is forked while another thread holds the lock can take it."""
    program = HELD.format(lock=lock, seconds=seconds)
    return python(program, options=["-W", "ignore"]) == "1\n"


def test_a_forked_child_finds_a_held_lock_free():
    assert found_free("new_lock()", 10)


def test_control_a_plain_lock_is_never_released_there():
    assert not found_free("threading.RLock()", 0.1)
