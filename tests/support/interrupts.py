"""Interrupting an operation at each of its calls, and the locks that are held afterwards."""

from __future__ import annotations

import ctypes
import dis
import itertools
import sys
import threading
from pathlib import Path

import streamkit as sk

HERE = str(Path(sk.__file__).parent)
PATIENCE = 2.0  # seconds
LOOKS = {
    number
    for name, number in dis.opmap.items()
    if name.startswith(("CALL", "RESUME")) or name == "JUMP_BACKWARD"
}

_raise_soon = ctypes.pythonapi.PyThreadState_SetAsyncExc
_raise_soon.argtypes = ctypes.c_ulong, ctypes.py_object


class Interrupted:
    """Run something in a thread, interrupted at the n-th call in this package's code."""

    def __init__(self, operation, nth, inside=HERE):
        self.came = False  # whether there was an n-th call
        self._operation, self._nth, self._inside = operation, nth, inside
        thread = threading.Thread(target=self._run)
        thread.start()
        thread.join()

    def _run(self):
        sys._getframe().f_trace_opcodes = True  # 3.12 has to know it before settrace
        try:
            sys.settrace(self._enter)
            self._operation()
        except (KeyboardInterrupt, sk.ScopeError):  # the second: outer scopes miss inner ones
            pass
        finally:
            sys.settrace(None)

    def _enter(self, frame, event, value):
        if self.came or not frame.f_code.co_filename.startswith(self._inside):
            return None
        frame.f_trace_lines, frame.f_trace_opcodes = False, True
        return self._step

    def _step(self, frame, event, value):
        if event == "opcode" and frame.f_code.co_code[frame.f_lasti] in LOOKS:
            self._nth -= 1
            if self._nth == 0:
                self.came = True
                sys.settrace(None)  # else the interpreter would look in the next of these calls
                thread = threading.get_ident()
                # not by a call, after which it would look too
                [*map(_raise_soon, [thread], [KeyboardInterrupt])]
        return self._step


def interrupt_everywhere(operation, inside=HERE):
    """Run it over and over, interrupted at each call in turn; yield which after each."""
    for nth in itertools.count(1):
        Interrupted(operation, 0, inside)  # at none: 3.13 traces code from its second run on
        if not Interrupted(operation, nth, inside).came:
            return
        yield nth


def locks():
    """Every lock that a module of the package has, with its name."""
    found = {}
    for name, module in sys.modules.copy().items():
        if name.startswith("streamkit."):
            for attribute, value in vars(module).items():
                if isinstance(value, type(threading.RLock())):
                    found[f"{name}.{attribute}"] = value
    return found


def held(found):
    """Which locks a thread that has ended still holds; they are free then."""
    names = []
    for name, lock in found.items():
        if lock.acquire(timeout=PATIENCE):  # another thread of StreamKit's may just have it
            lock.release()
        else:
            names.append(name)
            lock._at_fork_reinit()  # else the tests that follow would hang
    return names
