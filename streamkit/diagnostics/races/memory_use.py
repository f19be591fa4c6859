"""The accesses of kernels, copies and fills, from their names, parameters and addresses."""

from __future__ import annotations

import bisect
import functools
import math
import struct
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from streamkit._cuda import memory_pools
from streamkit._queues import registry
from streamkit._queues.arrays import ARRAYS
from streamkit._support.extents import Extent, strided
from streamkit.diagnostics.races.arrays import RacedArray
from streamkit.diagnostics.races.report import FREE
from streamkit.diagnostics.races.search import Access
from streamkit.diagnostics.recording.copies import COPIES, ends_of
from streamkit.diagnostics.recording.kernel_names import library_of_kernel, readable
from streamkit.diagnostics.recording.places import skipping
from streamkit.diagnostics.recording.steps import ELEMENTS, LAUNCHES, WORK
from streamkit.protocols import Diagnosis, Memory, MemoryUse
from streamkit.protocols.adapters import all_offered, offered

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence

    from streamkit.diagnostics.recording.memory import Lives
    from streamkit.diagnostics.recording.steps import CudaStep

_LOWEST, _HIGHEST = 1 << 16, 1 << 57  # between them are all addresses of CUDA's
_NAMES = {
    "graph launch": "a CUDA graph",
    "host function": "a host function",
    "wait for a value": "a wait for a value",
}


class Launch(NamedTuple):
    """A launch, copy or fill, with the memory that it uses."""

    name: str
    """The kernel's name, as its source has it; or "copy" or "fill"."""
    library: str | None
    """The library of the kernel, if its name tells."""
    accesses: tuple[Access, ...]
    """The accesses, without allocations, which the caller adds if it knows them."""
    is_known: bool
    """Whether all accesses are known."""
    pinned: Literal["read", "write"] | None = None
    """The use of pinned memory of the host by a copy whose call returns before its end."""
    may_hold_host: bool = False
    """Whether the call may return only when the work is done."""
    is_unclear: bool = False
    """Whether it may write memory of the host that is not among the accesses, or tell the host."""


class NamedMemory(NamedTuple):
    """The name of some memory, which keeps nothing alive."""

    extent: Extent
    array: RacedArray
    noted: int | None = None
    """After how many calls of the driver the name was seen; None if it holds throughout."""


class LaunchReader:
    """Reads launches, with the libraries' memory as it is when this object is made."""

    def __init__(
        self,
        named: Iterable[tuple[str, object]] = (),
        noted: Iterable[NamedMemory] = (),
        memory_at: Callable[[int], object] | None = None,
    ) -> None:
        """Take objects with their names, and what ``named_memory`` found before.

        The objects that are arrays give their names to their memory. ``memory_at`` returns the
        driver's allocation around an address, None if there is none; without it the driver is asked
        for what there is now.
        """
        self._named = [found for name, value in named if (found := named_memory(name, value))]
        self._named += noted
        self.now = 0
        """The number of driver calls before the launch that is read next."""
        adapters = (load() for load in registry.loaded().values())
        self._pieces = sorted(
            piece for pieces in all_offered(adapters, Memory.pieces_of_memory) for piece in pieces()
        )
        self._memory_at = memory_at or functools.cache(memory_pools.allocation)

    def kernel(self, symbol: str, parameters: Sequence[bytes] | None) -> Launch:
        """Read the launch of a kernel with its parameters' bytes, None if they are unknown."""
        name = readable(symbol)
        library = library_of_kernel(name)
        if parameters is None:
            return Launch(name, library, (), is_known=False, is_unclear=True)
        load = registry.loaded().get(library or "")
        explain = offered(load(), Diagnosis.explain_kernel) if load else None
        explained = explain(name, parameters) if explain else None
        found = _addresses(parameters) if explained is None else explained
        may_be = [use for use in found if _LOWEST <= use.address < _HIGHEST]
        uses = [use for use in may_be if self._is_memory(use.address)]
        is_known = explained is not None and all(use.mode != "unknown" for use in uses)
        is_known = is_known and len(uses) == len(may_be)
        is_unclear = any(getattr(self._memory_at(use.address), "is_host", False) for use in uses)
        return Launch(name, library, (*self._accesses(uses),), is_known, is_unclear=is_unclear)

    def transfer(self, name: str, uses: Iterable[MemoryUse] | None) -> Launch:
        """Read a copy, a fill or other work; ``uses`` is None if its memory is not known."""
        is_known, accesses = uses is not None, tuple(self._accesses(uses or ()))
        return Launch(name, None, accesses, is_known, is_unclear=not is_known)

    def _accesses(self, uses: Iterable[MemoryUse]) -> Iterator[Access]:
        for use in uses:
            extent = self._extent(use)
            if extent is not None:
                yield Access(None, extent, use.mode, use.is_sure, self._described(use, extent))

    def _extent(self, use: MemoryUse) -> Extent | None:
        if use.shape is not None:
            return strided(use.address, use.shape, use.strides, use.itemsize)
        end = self._piece(use.address)
        if end is None:  # one byte, if nothing has a name there
            named = self._with(use.address)
            end = max((one.extent.stop for one in named), default=use.address + 1)
        return Extent(use.address, end, end - use.address)

    # -- the owners of memory ---------------------------------------------------------------------

    def _is_memory(self, address: int) -> bool:
        is_known = self._piece(address) is not None or any(self._with(address))
        return is_known or self._memory_at(address) is not None

    def _piece(self, address: int) -> int | None:
        """Return the end of a library's piece of memory at an address."""
        place = bisect.bisect_right(self._pieces, (address, _HIGHEST)) - 1
        if place < 0:
            return None
        start, size = self._pieces[place]
        return start + size if address < start + size else None

    def _with(self, address: int) -> Iterator[NamedMemory]:
        return (one for one in self._named if one.extent.start <= address < one.extent.stop)

    def _described(self, use: MemoryUse, extent: Extent) -> RacedArray:
        is_known = use.shape is not None
        size = extent.stop - extent.start if is_known else 0
        around = [
            one
            for one in self._with(extent.start)
            if extent.stop <= one.extent.stop or not is_known
        ]
        if not around:
            return RacedArray(None, "", (), size, extent.start)
        nearest = min(around, key=lambda one: (one.extent.stop - one.extent.start, self._age(one)))
        if extent == nearest.extent or (not is_known and extent.start == nearest.extent.start):
            return nearest.array
        return RacedArray(f"part of {nearest.array.name}", "", (), size, extent.start)

    def _age(self, one: NamedMemory) -> int:
        """Return how far from now a name was seen, because arrays may use memory in turn."""
        return -1 if one.noted is None else abs(one.noted - self.now)


def _addresses(parameters: Sequence[bytes]) -> Iterator[MemoryUse]:
    """Yield the values that may be addresses, each once, also aligned ones in structures."""
    found: dict[int, None] = {}
    for parameter in parameters:
        found.update(dict.fromkeys(struct.unpack_from(f"<{len(parameter) // 8}Q", parameter)))
    return (MemoryUse(address, "unknown") for address in found)


def named_memory(name: str, value: Any) -> NamedMemory | None:
    """Return the memory of an array, None for another object. This calls no driver."""
    with skipping:
        library: Any = registry.find(value, ARRAYS)
        library.device_of(value)  # raises TypeError if this object of the type is not an array
        address, shape, strides, _, itemsize, _ = library.copies.array_layout(value)
        extent = strided(address, shape, strides, itemsize)
        dtype = getattr(value, "dtype", "")
        text = getattr(dtype, "__name__", None) or str(dtype).rpartition(".")[2]
        array = RacedArray(name, text, tuple(shape), itemsize * math.prod(shape), address)
        return None if extent is None else NamedMemory(extent, array)
    return None


# -- the calls of the driver ----------------------------------------------------------------------


class WorkReader:
    """Reads the steps of a program in order, and finds the memory that they use."""

    def __init__(
        self,
        lives: Lives,
        named: Iterable[tuple[str, object]] = (),
        noted: Iterable[NamedMemory] = (),
    ) -> None:
        """Take the allocations, and names as for a ``LaunchReader``."""
        self._lives = lives
        self._launches = LaunchReader(named, noted, lives.at)
        self._alike: dict[Hashable, Launch] = {}
        self._changes = 0

    def read(self, step: CudaStep) -> Launch | None:
        """Return the work of a step, None for a step without work."""
        launch = self._read(step) if step.kind in WORK else None
        self._lives.read(step)
        return launch

    def _read(self, step: CudaStep) -> Launch:
        """Read a piece of work once for all equal calls of a line, as in a loop."""
        if self._changes != self._lives.changes:
            self._changes = self._lives.changes
            self._alike.clear()
        fact = step.fact
        where = None if fact.place is None else (id(fact.place[0]), fact.place[1])
        alike = where, fact.call, fact.fields, fact.more
        found = self._alike.get(alike)
        if found is None:
            self._launches.now = int(step.number)
            found = self._alike[alike] = self._placed(self._launch(step))
        return found

    def _placed(self, launch: Launch) -> Launch:
        """Add the allocations, because memory of different ones cannot share a byte."""
        accesses: list[Access] = []
        is_known = launch.is_known
        for one in launch.accesses:
            around = [*self._lives.across(one.extent.start, one.extent.stop)]
            is_known = is_known and bool(around)
            accesses += (one._replace(allocation=life.number) for life in around)
            if not around:
                accesses.append(one)
        return launch._replace(accesses=tuple(accesses), is_known=is_known)

    def _launch(self, step: CudaStep) -> Launch:
        kind, fields, launches = step.kind, step.fields, self._launches
        if kind in LAUNCHES:
            return launches.kernel(*step.fact.more)
        if kind in COPIES:
            return self._copy(step)
        if kind == "free":
            size = 1 if step.fact.more is None else step.fact.more.size
            return launches.transfer(FREE, [_use(fields[0], "write", size)])
        if kind in ELEMENTS:
            return launches.transfer("fill", [_use(fields[0], "write", fields[1] * ELEMENTS[kind])])
        other = launches.transfer(_NAMES.get(kind, step.call.name), None)
        return other._replace(may_hold_host=kind == "other work" and step.call.stream is None)

    def _copy(self, step: CudaStep) -> Launch:
        ends = ends_of(step)
        has_stream = step.call.stream is not None
        if ends is None:
            copy = self._launches.transfer("copy", None)
            return copy._replace(may_hold_host=not has_stream)
        # no other work of the device uses pageable memory of the host during the copy
        pageable = [end for end in ends if end.is_pageable(self._lives)]
        uses = [
            MemoryUse(end.address, end.mode, end.shape, end.strides, 1, is_sure=True)
            for end in ends
            if end not in pageable
        ]
        source, target = (self._lives.at(end.address) for end in ends)
        of_host = [end is not None and end.is_host for end in (source, target)]
        pinned = None
        if has_stream and not pageable and sum(of_host) == 1:
            pinned = ends[of_host.index(True)].mode
        copy = self._launches.transfer("copy", uses)
        return copy._replace(pinned=pinned, may_hold_host=bool(pageable) or not has_stream)


def _use(address: int, mode: Literal["read", "write"], size: int) -> MemoryUse:
    return MemoryUse(address, mode, (size,), (1,), 1, is_sure=True)
