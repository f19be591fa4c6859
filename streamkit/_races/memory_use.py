"""What kernels, copies and fills use: from names, parameters and addresses to accesses."""

from __future__ import annotations

import bisect
import contextlib
import functools
import math
import struct
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from streamkit._base.adapter import all_offered, offered
from streamkit._cuda import sharing
from streamkit._queues import registry
from streamkit._races.arrays import RacedArray
from streamkit._races.extents import Extent, strided
from streamkit._races.search import Access
from streamkit._recording.callbacks import Kernel
from streamkit._recording.driver_recorder import ELEMENTS, WORK
from streamkit._recording.kernel_names import library_of_kernel, readable
from streamkit._streams.array_libraries import ARRAYS
from streamkit.protocols import Diagnosis, Memory, MemoryUse

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from streamkit._recording.driver_recorder import CudaStep

_LOWEST, _HIGHEST = 1 << 16, 1 << 57  # between them are all addresses of CUDA's
_ROWS = struct.Struct("<QQI4xQQ8xQQQI4xQQ8xQQQ")  # CUDA_MEMCPY2D without the handles of arrays
_HOST, _ARRAY = 1, 3  # kinds of memory there
_NAMES = {
    "cuGraphLaunch": "a CUDA graph",
    "cuLaunchHostFunc": "a host function",
    "cuStreamAddCallback": "a host function",
}


class Launch(NamedTuple):
    """What one launch, copy or fill uses."""

    name: str
    """Of the kernel, as its source has it; or "copy" or "fill"."""
    library: str | None
    """The library whose kernel it is, if its name tells."""
    accesses: tuple[Access, ...]
    """Without allocations, which the caller adds if it knows them."""
    is_known: bool
    """Whether all that it reads and writes is known."""


class NamedMemory(NamedTuple):
    """Memory with a name. It keeps nothing alive."""

    extent: Extent
    array: RacedArray
    noted: int | None = None
    """After how many calls of the driver it had this name; None if it has the name throughout."""


class LaunchReader:
    """Reads launches, with the libraries' memory as it is when this object is made."""

    def __init__(
        self, named: Iterable[tuple[str, object]] = (), noted: Iterable[NamedMemory] = ()
    ) -> None:
        """Take objects with their names, and what ``named_memory`` found before.

        The objects that are arrays give their names to their memory.
        """
        self._named = [found for name, value in named if (found := named_memory(name, value))]
        self._named += noted
        self.now = 0
        """How many calls of the driver there were before what is read next."""
        adapters = (load() for load in registry.loaded().values())
        self._pieces = sorted(
            piece for pieces in all_offered(adapters, Memory.pieces_of_memory) for piece in pieces()
        )
        self.allocation = functools.cache(sharing.allocation)
        """Returns the start and size of the driver's allocation around an address, if any."""

    def kernel(self, symbol: str, parameters: Sequence[bytes] | None) -> Launch:
        """Read the launch of a kernel with its parameters' bytes, None if they are unknown."""
        name = readable(symbol)
        library = library_of_kernel(name)
        if parameters is None:
            return Launch(name, library, (), is_known=False)
        explained = _explained(library, name, parameters)
        found = _addresses(parameters) if explained is None else explained
        uses = [use for use in found if self._is_memory(use.address)]
        is_known = explained is not None and all(use.mode != "unknown" for use in uses)
        return Launch(name, library, tuple(self._accesses(uses)), is_known)

    def transfer(self, name: str, uses: Iterable[MemoryUse] | None) -> Launch:
        """Read a copy, a fill or other work; ``uses`` is None if it is not known what it uses."""
        return Launch(name, None, tuple(self._accesses(uses or ())), is_known=uses is not None)

    def _accesses(self, uses: Iterable[MemoryUse]) -> Iterator[Access]:
        placed = [(use, found) for use in uses if (found := self._extent(use)) is not None]
        widest: dict[int, tuple[MemoryUse, Extent]] = {}  # by address: what a report names
        for use, extent in placed:
            if use.address not in widest or widest[use.address][1].stop < extent.stop:
                widest[use.address] = use, extent
        for use, extent in placed:
            array = self._described(*widest[use.address])
            yield Access(None, extent, use.mode, use.is_sure, array)

    def _extent(self, use: MemoryUse) -> Extent | None:
        if use.shape is not None:
            return strided(use.address, use.shape, use.strides, use.itemsize)
        end = self._end(use.address)
        return Extent(use.address, end, end - use.address)

    # -- whose memory it is -----------------------------------------------------------------------

    def _is_memory(self, address: int) -> bool:
        if not _LOWEST <= address < _HIGHEST:
            return False
        is_known = self._piece(address) is not None or any(self._with(address))
        return is_known or self.allocation(address) is not None

    def _piece(self, address: int) -> int | None:
        """Return the end of the library's memory at an address."""
        place = bisect.bisect_right(self._pieces, (address, _HIGHEST)) - 1
        if place < 0:
            return None
        start, size = self._pieces[place]
        return start + size if address < start + size else None

    def _with(self, address: int) -> Iterator[NamedMemory]:
        return (one for one in self._named if one.extent.start <= address < one.extent.stop)

    def _end(self, address: int) -> int:
        """Return where what begins at an address ends; one byte of it where that is not known."""
        found = self._piece(address)
        if found is None:
            found = max((one.extent.stop for one in self._with(address)), default=address + 1)
        return found

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
        """Return how far from now a name was noted, because arrays may use the memory in turn."""
        return -1 if one.noted is None else abs(one.noted - self.now)


def _explained(
    library: str | None, name: str, parameters: Sequence[bytes]
) -> list[MemoryUse] | None:
    load = registry.loaded().get(library or "")
    explain = offered(load(), Diagnosis.explain_kernel) if load else None
    if explain is None:
        return None
    found = explain(name, parameters)
    return None if found is None else list(found)


def _addresses(parameters: Sequence[bytes]) -> Iterator[MemoryUse]:
    """Yield what may be addresses, each once, also those inside structures: they are aligned."""
    found: dict[int, None] = {}
    for parameter in parameters:
        found.update(dict.fromkeys(struct.unpack_from(f"<{len(parameter) // 8}Q", parameter)))
    return (MemoryUse(address, "unknown") for address in found)


def named_memory(name: str, value: Any) -> NamedMemory | None:
    """Return the memory of an array, None if the object is none; it calls no driver."""
    layout = None
    with contextlib.suppress(Exception):  # of somebody's object, which may be anything
        library = registry.find(value, ARRAYS)
        if library is not None and library.memory_layout is not None:
            library.device_of(value)  # raises TypeError if this object of the type is no array
            layout = library.memory_layout(value)
    if layout is None:
        return None
    address, shape, strides, _, itemsize = layout
    extent = strided(address, shape, strides, itemsize)
    if extent is None:
        return None
    dtype = getattr(value, "dtype", "")
    text = getattr(dtype, "__name__", None) or str(dtype).rpartition(".")[2]
    size = itemsize * math.prod(shape)
    return NamedMemory(extent, RacedArray(name, text, tuple(shape), size, address))


# -- the calls of the driver ----------------------------------------------------------------------


class WorkReader:
    """Reads what the steps of a program do with memory, in their order."""

    def __init__(self, launches: LaunchReader) -> None:
        self._launches = launches
        self._sizes: dict[int, int] = {}  # of allocations

    def read(self, step: CudaStep) -> Launch | None:
        """Return what a step does, None if that is no work."""
        if step.kind == "allocation":
            self._sizes[step.fact.more] = step.fields[1]
        if step.kind not in WORK:
            return None
        self._launches.now = int(step.number)
        launch = self._launch(step)
        accesses = []
        for one in launch.accesses:  # those of different allocations cannot share a byte
            allocation = self._launches.allocation(one.extent.start)
            accesses.append(one._replace(allocation=allocation[0] if allocation else 0))
        return launch._replace(accesses=tuple(accesses))

    def _launch(self, step: CudaStep) -> Launch:
        kind, fields = step.kind, step.fields
        if kind.startswith("launch"):
            kernel = Kernel(*step.fact.more)
            return self._launches.kernel(kernel.symbol, kernel.parameters)
        if kind in ("copy", "copy and wait"):
            target, source, size = fields[:3]
            return self._transfer("copy", [_use(source, "read", size), _use(target, "write", size)])
        if kind == "copy of rows":
            return self._copy_of_rows(step)
        if kind == "free":
            freed = _use(fields[0], "write", self._sizes.pop(fields[0], 1))
            return self._launches.transfer("free", [freed])
        if kind in ELEMENTS:
            return self._transfer("fill", [_use(fields[0], "write", fields[1] * ELEMENTS[kind])])
        is_wait = kind == "wait for a value"
        name = "a wait for a value" if is_wait else _NAMES.get(step.call.name, step.call.name)
        return self._launches.transfer(name, None)

    def _copy_of_rows(self, step: CudaStep) -> Launch:
        found = _ROWS.unpack(step.fact.more)
        width, height = found[12:]
        uses = []
        modes: Iterable[Literal["read", "write"]] = ("read", "write")
        for mode, side in zip(modes, (found[:6], found[6:12]), strict=True):
            first, row, kind, host, device, pitch = side
            if kind == _ARRAY:  # of texture memory, which has no addresses
                return self._launches.transfer("copy", None)
            address = (host if kind == _HOST else device) + row * pitch + first
            use = _use(address, mode, 0)
            uses.append(use._replace(shape=(height, width), strides=(pitch, 1)))
        return self._transfer("copy", uses)

    def _transfer(self, name: str, uses: Iterable[MemoryUse]) -> Launch:
        # the driver does not know memory of the host that is not pinned: nothing runs beside it
        known = [use for use in uses if self._launches.allocation(use.address) is not None]
        return self._launches.transfer(name, known)


def _use(address: int, mode: Literal["read", "write"], size: int) -> MemoryUse:
    return MemoryUse(address, mode, (size,), (1,), 1, is_sure=True)
