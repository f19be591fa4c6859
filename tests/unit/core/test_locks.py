"""The package's locks, and a fork."""

from __future__ import annotations

import gc
import os
import weakref

import pytest

import streamkit as sk
from streamkit._cuda import driver, loader  # as if one were loaded
from streamkit._support import locks  # which process has them
from streamkit._support.locks import new_lock  # every lock of the package is made by it
from support.forks import handlers_registered
from support.programs import needs_fork, python

HELD = """
import os, threading
from streamkit._support.locks import new_lock  # every lock of the package is made by it

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


def test_locks_that_are_dropped_leave_nothing(monkeypatch):
    with handlers_registered(monkeypatch) as registered:
        left = [weakref.ref(new_lock()) for _ in range(100)]
        gc.collect()
    assert not registered
    assert [one() for one in left] == [None] * 100


def test_control_a_handler_is_counted(monkeypatch):
    with handlers_registered(monkeypatch) as registered:
        os.register_at_fork(after_in_child=int)
    assert len(registered) == 1


def submit_and_sync():
    s = sk.new_stream("cpu")
    s.submit(int)
    s.wait(sk.new_stream("cpu").record())
    s.then(int).result()
    s.sync()
    s.close()


def audited():
    with sk.audit():
        submit_and_sync()


def raced():
    with sk.races():
        submit_and_sync()


def in_a_scope():
    with sk.use(sk.new_stream("cpu")):
        sk.current_stream().keep(object())


@pytest.mark.parametrize("operation", [submit_and_sync, audited, raced, in_a_scope])
def test_no_operation_registers_a_handler_each_time(monkeypatch, operation):
    """None can be taken back: it, and what it holds, would stay for ever."""
    operation()  # the first use may make what is the process's own
    with handlers_registered(monkeypatch) as registered:
        for _ in range(5):
            operation()
    assert not registered


# -- what only another thread held dies in the child before the handlers have freed the locks -----

INSIDE = """
import os, signal, threading, time
import streamkit as sk
from streamkit._streams import host_queue  # its lock is held at the fork

stream, entered, held = sk.new_stream("cpu"), threading.Event(), threading.Event()

def inside():
    with stream:
        entered.set()
        threading.Event().wait()

def hold():
    with host_queue._circles:
        held.set()
        threading.Event().wait()

threading.Thread(target=inside, daemon=True).start()
entered.wait()
threading.Thread(target=hold, daemon=True).start()
held.wait()
child = os.fork()
if child == 0:
    os._exit(7)
for _ in range(1_000):
    pid, status = os.waitpid(child, os.WNOHANG)
    if pid:
        break
    time.sleep(0.01)
else:
    os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
print(os.waitstatus_to_exitcode(status), flush=True)
os._exit(0)
"""


def test_a_fork_ends_while_another_thread_is_in_a_scope():
    """The child removes that thread before any handler runs, and with it the scope."""
    assert python(INSIDE) == "7\n"


def test_a_destructor_calls_no_driver_in_a_child_before_its_handlers(monkeypatch):
    monkeypatch.setattr(loader, "cu", object())  # which is loaded
    assert driver.is_usable()
    monkeypatch.setattr(locks, "_process", -1)
    assert not driver.is_usable()
