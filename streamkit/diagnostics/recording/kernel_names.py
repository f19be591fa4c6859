"""The library of a kernel and the operation that it does, as far as its name tells.

CUPTI does not know which library launched a kernel. The name shows it if the library builds its
own name into those of its kernels; but kernels of cuBLAS, of CUB or of a user can be anyone's.
"""

from __future__ import annotations

import ctypes
import functools
import re
from typing import Any

from streamkit._queues import registry
from streamkit._support.messages import in_one_line

_KERNELS = {row.name: re.compile(row.kernels) for row in registry.LIBRARIES if row.kernels}
_OPERATIONS = {row.name: re.compile(row.operation) for row in registry.LIBRARIES if row.operation}
# NCCL is not in the registry, because it works on the streams of the library that uses it.
_KERNELS["nccl"] = re.compile(r"^nccl\w*Kernel")
_OPERATIONS["nccl"] = re.compile(r"^nccl(?:Sym)?(?:Dev)?Kernel_([A-Za-z]+)")
_LONG = 60  # characters of a name, beyond which its template arguments hide what is around it


def library_of_kernel(name: str) -> str | None:
    """Return the library whose kernels have such (demangled) names; None if no library does."""
    return next((library for library, own in _KERNELS.items() if own.search(name)), None)


def operation(name: str, library: str | None) -> str:
    """Return the operation that a kernel's name tells, such as "fill", else its short name."""
    pattern = _OPERATIONS.get(library or "")
    found = pattern.findall(name) if pattern else []
    # of a pattern with several groups, the one that matched
    return "".join(found[-1]).lower() if found else short(name)


def short(name: str) -> str:
    """Return a kernel's name without the namespaces and tags of C++, and no long arguments."""
    found = re.sub(r"\(anonymous namespace\)::|\b\w+::|\[abi:\w+\]", "", in_one_line(name))
    found = re.sub(r"^enable_if<.*?>::type ", "", found)  # the type of the result
    return re.sub(r"(?<=\w)<.*>", "<...>", found) if len(found) > _LONG else found


@functools.lru_cache(maxsize=4096)
def readable(symbol: str) -> str:
    """Return a C++ symbol as it was written, without its return type and its parameters."""
    name = _demangled(symbol).removeprefix("void ")
    return name[: _parameters(name)] if name.endswith(")") else name


def _parameters(name: str) -> int:
    depth = 0
    for place in range(len(name) - 1, -1, -1):
        depth += (name[place] == ")") - (name[place] == "(")
        if not depth:
            return place
    return len(name)


def _demangled(symbol: str) -> str:
    runtime = _runtime() if symbol.startswith("_Z") else None
    if runtime is None:
        return symbol
    demangle, free = runtime
    found = demangle(symbol.encode(errors="replace"), None, None, None)
    if not found:
        return symbol
    try:
        return ctypes.string_at(found).decode()
    finally:
        free(found)


@functools.cache
def _runtime() -> tuple[Any, Any] | None:
    """Return ``__cxa_demangle`` and ``free`` of the C++ runtime, or None if there is none."""
    try:
        library = ctypes.CDLL("libstdc++.so.6")
    except OSError:
        return None
    # the process's own ``free``, which a preloaded allocator replaces together with its ``malloc``
    demangle, free = library["__cxa_demangle"], ctypes.CDLL(None)["free"]
    demangle.restype = ctypes.c_void_p
    demangle.argtypes = (ctypes.c_char_p, *[ctypes.c_void_p] * 3)
    free.argtypes = (ctypes.c_void_p,)
    return demangle, free
