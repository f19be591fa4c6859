"""Interrupting an operation at each of its calls, and the locks that are held afterwards."""

from __future__ import annotations

import ctypes
import dis
import itertools
import sys
import threading
from pathlib import Path

import streamkit as sk
from support.garbage import no_collections

HERE = str(Path(sk.__file__).parent)
PATIENCE = 2.0  # seconds
LOOKS = {
    number
    for name, number in dis.opmap.items()
    if name.startswith(("CALL", "RESUME")) or name == "JUMP_BACKWARD"
}

_raise_soon = ctypes.pythonapi.PyThreadState_SetAsyncExc
_raise_soon.argtypes = ctypes.c_ulong, ctypes.py_object


class Calls:
    """Counts the calls that one thread makes in the code of a folder, and acts at the n-th."""

    counted: Calls | None = None

    def __init__(self, nth, act, inside):
        self.came = False  # whether there was an n-th call
        self._nth, self._act, self._inside = nth, act, inside
        self._thread = None

    def run(self, operation):
        Calls.counted, self._thread = self, threading.get_ident()
        try:
            with no_collections():  # in one an interrupt would be lost, and it would add calls
                count()
                operation()
        except (KeyboardInterrupt, sk.errors.ScopeError):  # outer scopes miss inner ones
            pass
        finally:
            do_not_count()
            Calls.counted = None

    def look(self):
        self._nth -= 1
        if self._nth == 0:
            self.came = True
            do_not_count()  # else the interpreter would raise the interrupt in the next call here
            # by ``map``, because after a call of this code the interpreter would raise it too
            [*map(self._act, [self._thread], [KeyboardInterrupt])]


if sys.version_info >= (3, 12):
    _events, _TOOL = sys.monitoring.events, 3

    def _step(code, offset):
        calls = Calls.counted
        # without a GIL another thread can be on its way here as the counting ends
        if calls is None or threading.get_ident() != calls._thread:
            return None
        if code.co_filename.startswith(calls._inside) and code.co_code[offset] in LOOKS:
            return calls.look()
        return sys.monitoring.DISABLE

    def count():
        """Go on with counting, unless it is over."""
        if Calls.counted and not Calls.counted.came:
            if sys.monitoring.get_tool(_TOOL) is None:
                sys.monitoring.use_tool_id(_TOOL, __name__)
            sys.monitoring.restart_events()
            sys.monitoring.register_callback(_TOOL, _events.INSTRUCTION, _step)
            sys.monitoring.set_events(_TOOL, _events.INSTRUCTION)

    def do_not_count():
        if Calls.counted:
            sys.monitoring.register_callback(_TOOL, _events.INSTRUCTION, None)
            sys.monitoring.set_events(_TOOL, 0)

else:

    def _enter(frame, event, value):
        if not frame.f_code.co_filename.startswith(Calls.counted._inside):
            return None
        frame.f_trace_lines, frame.f_trace_opcodes = False, True
        return _step

    def _step(frame, event, value):
        if event == "opcode" and frame.f_code.co_code[frame.f_lasti] in LOOKS:
            Calls.counted.look()
        return _step

    def count():
        """Go on with counting, unless it is over."""
        if Calls.counted and not Calls.counted.came:
            sys.settrace(_enter)

    def do_not_count():
        sys.settrace(None)


def at_call(nth, act, operation, inside=HERE):
    """Run an operation in a thread, and ``act`` at its n-th call ``inside``; return if it came."""
    calls = Calls(nth, act, inside)
    thread = threading.Thread(target=calls.run, args=(operation,))
    thread.start()
    thread.join()
    return calls.came


def interrupted(operation, nth, inside=HERE):
    """Run an operation in a thread, and interrupt its n-th call; return whether it came."""
    return at_call(nth, _raise_soon, operation, inside)


def interrupt_everywhere(operation, inside=HERE):
    """Run an operation again and again, interrupted at each of its calls in turn; yield which."""
    for nth in itertools.count(1):
        if not interrupted(operation, nth, inside):
            return
        yield nth


def locks():
    """Return every lock that a module of the package has, by its name."""
    found = {}
    for name, module in sys.modules.copy().items():
        if name.startswith("streamkit."):
            for attribute, value in vars(module).items():
                if isinstance(value, type(threading.RLock())):
                    found[f"{name}.{attribute}"] = value
    return found


def held(found):
    """Return which locks a thread that has ended still holds, and free them."""
    names = []
    for name, lock in found.items():
        if lock.acquire(timeout=PATIENCE):  # another thread of StreamKit's may just have it
            lock.release()
        else:
            names.append(name)
            lock._at_fork_reinit()  # else the tests that follow would hang
    return names
