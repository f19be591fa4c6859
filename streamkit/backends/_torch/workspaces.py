"""cuBLAS's scratch memory in torch's graphs: each graph has its own.

torch keeps a workspace for each handle of cuBLAS, which is a thread's, and each stream. Graphs of
one stream would share it with each other and with the stream's eager work. torch makes one anew,
from the graph's memory, if it finds none. So for the capture those that are there are hidden, and
after it those that were made are the graph's.

torch has no call for that: ``clearCublasWorkspaces`` also frees what the program's own graphs use.
So its maps are changed in place, where torch's header declares them as that of 2.11 does, or as
that of 2.13, whose entries have their size too. Nothing is inserted or removed, for that would need
their lock: a hidden entry has the address of its stream and one, which no stream has and which
keeps the order. From 2.15 on torch itself takes such memory in a capture from the graph's.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import re
import threading
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import torch

if TYPE_CHECKING:
    from collections.abc import Iterator

_DECLARED = re.compile(
    r"struct WorkspaceMapWithMutex \{\s*std::map<std::tuple<void\s?\*, void\s?\*>, "
    r"(?:at::DataPtr|(?P<sized>std::pair<at::DataPtr, size_t>))> map;\s*"
    r"std::shared_mutex mutex;\s*\};"
)
_SEPARATES = "allocateCUDABlasWorkspace("  # declared by a torch whose captures leave the maps alone
_MAPS = (
    "_ZN2at4cuda33cublas_handle_stream_to_workspaceEv",
    "_ZN2at4cuda35cublaslt_handle_stream_to_workspaceEv",
)
# where libstdc++ has a map's root, and a node's branches, key (the last part first) and value
_ROOT, _LEFT, _RIGHT, _STREAM, _HANDLE, _DATA, _DELETER, _CONTEXT = 16, 16, 24, 32, 40, 48, 56, 64
_SIZE = 80  # where a node has its value's size, if it has one
_HIDDEN = 1
_LIBRARY = "libtorch_cuda.so"

_prepared = threading.local()


class Workspace(NamedTuple):
    """Memory that torch has made for one handle and stream."""

    deleter: int
    memory: int


def free(made: list[Workspace]) -> None:
    """Give them back to torch's allocator, and empty the list."""
    while made:
        deleter, memory = made.pop()
        ctypes.CFUNCTYPE(None, ctypes.c_void_p)(deleter)(memory)


def prepare() -> None:
    """Make this thread's handle, and a workspace of it, before a capture."""
    _prepared.handle = torch.cuda.current_blas_handle()


class CaptureWorkspaces:
    """What the maps had before one capture."""

    def __init__(self, stream: int) -> None:
        self._stream = stream
        self._handle: int = _prepared.handle
        self._hidden: list[tuple[int, int, int, int]] = []

    def begin(self) -> None:
        """Hide those of this thread, and those of the stream: backward passes have a thread too."""
        for tree in _maps().addresses:
            for node in self._entries(tree):
                handle, stream = _key(node)
                self._hidden.append((tree, handle, stream, _word(node + _CONTEXT).value))
                _word(node + _STREAM).value = stream + _HIDDEN

    def end(self) -> list[Workspace]:
        """Bring back what was hidden; return what the capture has made, for its graph."""
        hidden, self._hidden = self._hidden, []
        if not hidden:  # the layout is not known, or this is the second time
            return []
        trees, value = _maps()
        made = [_take(tree, node, value) for tree in trees for node in self._entries(tree)]
        for tree, handle, stream, memory in hidden:
            node = _first(tree, handle, stream + _HIDDEN)
            if _is(node, handle, stream + _HIDDEN) and _word(node + _CONTEXT).value == memory:
                _word(node + _STREAM).value = stream
        return made

    def _entries(self, tree: int) -> Iterator[int]:
        """Yield the nodes of this thread, and of the stream, that are not hidden."""
        handle = stream = 0
        while node := _first(tree, handle, stream):
            handle, stream = _key(node)
            if handle != self._handle and stream < self._stream:
                stream = self._stream
            elif stream & _HIDDEN or (handle != self._handle and stream > self._stream):
                handle, stream = (handle, stream + 1) if handle == self._handle else (handle + 1, 0)
            else:
                yield node
                stream += 2


def _take(tree: int, node: int, value: tuple[int, ...]) -> Workspace:
    """Take an entry's memory; it gets the hidden entry's, or becomes a hidden one without any."""
    handle, stream = _key(node)
    made = Workspace(_word(node + _DELETER).value, _word(node + _CONTEXT).value)
    # the one that was hidden last comes first, and those without memory are older
    other = _first(tree, handle, stream + _HIDDEN)
    has_other = _is(other, handle, stream + _HIDDEN) and _word(other + _CONTEXT).value
    if has_other:
        for place in value:
            _word(node + place).value = _word(other + place).value
    else:
        _word(node + _STREAM).value = stream + _HIDDEN
    for place in (_DATA, _CONTEXT):  # without these an entry frees nothing
        _word((other if has_other else node) + place).value = 0
    return made


class _Maps(NamedTuple):
    """torch's maps, by their addresses, and where their nodes have the words of a value."""

    addresses: tuple[int, ...]
    value: tuple[int, ...]


@functools.cache
def _header() -> str:
    """Return how torch declares its maps; nothing if this installation has no headers."""
    path = Path(str(torch.__file__)).with_name("include") / "ATen/cuda/CUDAContextLight.h"
    try:
        return path.read_text()
    except OSError:
        return ""


@functools.cache
def _maps() -> _Maps:
    """Return torch's maps; none if they are not known to be laid out so, or are left alone."""
    declared = _DECLARED.search(_header())
    if declared and _SEPARATES not in _header() and torch.compiled_with_cxx11_abi():  # libstdc++'s
        with contextlib.suppress(OSError, AttributeError):
            library = ctypes.CDLL(str(Path(str(torch.__file__)).with_name("lib") / _LIBRARY))
            value = (_DATA, _DELETER, _CONTEXT, *([_SIZE] if declared["sized"] else []))
            return _Maps(tuple(_address(library, name) for name in _MAPS), value)
    return _Maps((), ())


def are_shared() -> bool:
    """Whether graphs of one stream share this memory, because torch has it in an unknown way."""
    return not _maps().addresses and _SEPARATES not in _header()


def _address(library: ctypes.CDLL, name: str) -> int:
    get = library[name]
    get.restype = ctypes.c_void_p
    return int(get())


def _word(address: int) -> ctypes.c_uint64:
    return ctypes.c_uint64.from_address(address)


def _key(node: int) -> tuple[int, int]:
    return _word(node + _HANDLE).value, _word(node + _STREAM).value


def _is(node: int, handle: int, stream: int) -> bool:
    return bool(node) and _key(node) == (handle, stream)


def _first(tree: int, handle: int, stream: int) -> int:
    """Return the first node whose key is not less, 0 if there is none."""
    node, found = _word(tree + _ROOT).value, 0
    while node:
        if _key(node) < (handle, stream):
            node = _word(node + _RIGHT).value
        else:
            node, found = _word(node + _LEFT).value, node
    return found
