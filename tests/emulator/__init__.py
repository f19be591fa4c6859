"""What a test asks of the emulated driver itself: faults, counted calls, what is still alive."""

from __future__ import annotations

import ctypes
import os

from emulator.build import SONAME


def load(path):
    """Bring the driver into this process, where everybody who looks for libcuda then finds it.

    Why it ends the process is said where standard error goes now, which pytest captures later.
    """
    ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL).emulated_complain_to(os.dup(2))


def _library():
    library = ctypes.CDLL(SONAME)
    for name in ("emulated_calls", "emulated_all_calls", "emulated_list_calls"):
        getattr(library, name).restype = ctypes.c_uint64
    return library


def fail(function, code, *, nth=1):
    """Let the n-th call of a function from now fail with a code, and do nothing."""
    _library().emulated_fail(function.encode(), nth, int(code))


def break_down(code):
    """Let everything fail with a code from now on, as after a kernel's fault, until it is 0."""
    _library().emulated_break(int(code))


def clear_faults():
    """Take every fault back; return how many had not come."""
    return _library().emulated_clear_faults()


def calls(function):
    """How often a function was called since ``reset_calls``."""
    return _library().emulated_calls(function.encode())


def all_calls():
    """Every function called since ``reset_calls``, with how often."""
    library, size, needed = _library(), 0, 1
    while needed > size:  # another thread can have called one more meanwhile
        size, text = needed, ctypes.create_string_buffer(needed)
        needed = library.emulated_list_calls(text, ctypes.c_size_t(size)) + 1
    pairs = (line.split() for line in text.value.decode().splitlines())
    return {name: int(count) for name, count in pairs}


def reset_calls():
    _library().emulated_reset_calls()


def live(kind):
    """How many are alive: "streams", "events", "contexts", "graphs", "executables", "pools"."""
    count = _library().emulated_live(kind.encode())
    if count < 0:
        raise ValueError(f"the emulated driver has no {kind!r}")
    return count


def recycle(on):
    """Whether handles are given again at once, as by default; ids never are."""
    _library().emulated_recycle(int(on))


def end_captures():
    """End every capture that goes on; return how many there were."""
    return _library().emulated_end_captures()


def function(name, *sizes):
    """Return a kernel of this symbol with parameters of these bytes; it does nothing."""
    make = _library().emulated_function
    make.restype = ctypes.c_void_p
    return make(name.encode(), ctypes.c_size_t(len(sizes)), (ctypes.c_size_t * len(sizes))(*sizes))
