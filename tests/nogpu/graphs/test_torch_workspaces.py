"""torch's maps of cuBLAS workspaces, and what a capture hides and takes, in a tree laid out alike.

What torch itself has there, and that the results are right, is in tests/gpu.
"""

from __future__ import annotations

import ctypes

import pytest

from support.libraries import need

need("torch")

# No public name needs them without a GPU.
from streamkit.backends._torch import workspaces  # it imports torch  # noqa: E402

HERE, OTHER = 0x50, 0x90  # handles
S, T = 0x1000, 0x2000  # streams


VALUE = (48, 56, 64)  # where a node has the words of a DataPtr
SIZED = (*VALUE, 80)  # and of a pair of it and its size, as from torch 2.13 on


class Tree:
    """A map as libstdc++ lays it out, in which nodes are inserted and never moved."""

    def __init__(self, value):
        self.value = value
        self._memory = []
        self.address = self._allocate(6)

    def _allocate(self, words):
        block = (ctypes.c_uint64 * words)()
        self._memory.append(block)
        return ctypes.addressof(block)

    def insert(self, handle, stream, memory):
        node, place = self._allocate(self.value[-1] // 8 + 2), self.address + 16
        words = {32: stream, 40: handle, 48: memory, 56: 7, 64: memory}
        if self.value == SIZED:
            words[80] = memory * 100
        for offset, value in words.items():
            workspaces._word(node + offset).value = value
        while at := workspaces._word(place).value:
            place = at + (24 if workspaces._key(at) < (handle, stream) else 16)
        workspaces._word(place).value = node

    def find(self, handle, stream):
        """The memory that torch would find; None if it would make some."""
        node = workspaces._first(self.address, handle, stream)
        is_there = node and workspaces._key(node) == (handle, stream)
        if not is_there:
            return None
        memory = workspaces._word(node + 48).value
        assert self.value == VALUE or workspaces._word(node + 80).value == memory * 100
        return memory


@pytest.fixture(params=[VALUE, SIZED], ids=["2.11", "2.13"])
def tree(monkeypatch, request):
    tree = Tree(request.param)
    for handle, stream, memory in (
        (OTHER, S, 4), (HERE, T, 2), (HERE, 0, 3), (OTHER, T, 5), (HERE, S, 1), (OTHER, 0, 6),
    ):  # fmt: skip
        tree.insert(handle, stream, memory)
    maps = workspaces._Maps((tree.address,), tree.value)
    monkeypatch.setattr(workspaces, "_maps", lambda: maps)
    workspaces._prepared.handle = HERE
    return tree


def everything(tree):
    return {(handle, s): tree.find(handle, s) for handle in (HERE, OTHER) for s in (0, S, T)}


def begun():
    capture = workspaces.CaptureWorkspaces(S)
    capture.begin()
    return capture


def test_a_capture_finds_none_of_its_thread_or_stream(tree):
    begun()
    assert everything(tree) == {
        (HERE, 0): None, (HERE, S): None, (HERE, T): None,
        (OTHER, 0): 6, (OTHER, S): None, (OTHER, T): 5,
    }  # fmt: skip


def test_without_products_all_is_as_before(tree):
    before = everything(tree)
    assert begun().end() == []
    assert everything(tree) == before


def test_what_a_capture_makes_is_its_own_each_time(tree):
    before = everything(tree)
    for number in range(10, 20):
        capture = begun()
        tree.insert(HERE, S, number)
        if number % 2:
            tree.insert(OTHER, S, number + 100)
        made = capture.end()
        assert made == [(7, number)] + [(7, number + 100)] * (number % 2)
        assert everything(tree) == before
        assert capture.end() == []


def test_on_a_stream_without_any_torch_makes_some_later(tree):
    new = 0x3000
    for number in (10, 11):
        capture = workspaces.CaptureWorkspaces(new)
        capture.begin()
        tree.insert(HERE, new, number)
        assert capture.end() == [(7, number)]
        assert tree.find(HERE, new) is None
    tree.insert(HERE, new, 12)
    capture = workspaces.CaptureWorkspaces(new)
    capture.begin()
    assert tree.find(HERE, new) is None
    assert capture.end() == []
    assert tree.find(HERE, new) == 12


def test_what_a_capture_makes_on_several_new_streams_is_all_its_own(tree):
    before = everything(tree)
    for number in (10, 20):
        capture = begun()
        tree.insert(HERE, 0x3000, number)
        tree.insert(HERE, 0x4000, number + 1)
        assert capture.end() == [(7, number), (7, number + 1)]
        assert tree.find(HERE, 0x3000) is tree.find(HERE, 0x4000) is None
        assert everything(tree) == before


def test_work_of_another_thread_keeps_what_it_makes(tree):
    capture = begun()
    tree.insert(OTHER, 0x3000, 10)
    assert capture.end() == []
    assert tree.find(OTHER, 0x3000) == 10


def test_where_the_layout_is_not_known_nothing_is_done(tree, monkeypatch):
    before = everything(tree)
    monkeypatch.setattr(workspaces, "_maps", lambda: workspaces._Maps((), ()))
    assert begun().end() == []
    assert everything(tree) == before


def test_memory_is_given_back_once():
    freed = []
    free = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(freed.append)
    address = ctypes.cast(free, ctypes.c_void_p).value
    made = [workspaces.Workspace(address, 0x10), workspaces.Workspace(address, 0x20)]
    workspaces.free(made)
    workspaces.free(made)
    assert sorted(freed) == [0x10, 0x20]


DECLARED = """struct WorkspaceMapWithMutex {
  std::map<std::tuple<void*, void*>, at::DataPtr> map;
  std::shared_mutex mutex;
};"""
LATER = DECLARED.replace("at::DataPtr", "std::pair<at::DataPtr, size_t>")
OWN = LATER + "TORCH_CUDA_CPP_API at::DataPtr allocateCUDABlasWorkspace(size_t size);"


@pytest.mark.parametrize(
    ("header", "value", "shared"),
    [
        (DECLARED, VALUE, False),
        (LATER, SIZED, False),
        (OWN, (), False),  # from 2.15 on: a capture's come from its graph's memory
        (DECLARED.replace("std::map", "std::unordered_map"), (), True),
        ("", (), True),
    ],
    ids=["2.11", "2.13", "2.15", "another", "no-headers"],
)
def test_the_header_tells_how_the_maps_are_laid_out(monkeypatch, header, value, shared):
    class Library:
        """It has a function for each map, as torch's own for CUDA has."""

        def __getitem__(self, name):
            return ctypes.CFUNCTYPE(ctypes.c_void_p)(lambda: 64)

    monkeypatch.setattr(workspaces, "_header", lambda: header)
    monkeypatch.setattr(workspaces.ctypes, "CDLL", lambda _: Library())
    workspaces._maps.cache_clear()
    try:
        assert workspaces._maps() == ((64, 64) if value else (), value)
        assert workspaces.are_shared() is shared
    finally:
        workspaces._maps.cache_clear()


def test_the_header_of_this_torch_is_one_that_is_known():
    assert "struct WorkspaceMapWithMutex" in workspaces._header()
    known = workspaces._DECLARED.search(workspaces._header())
    assert known or workspaces._SEPARATES in workspaces._header()
