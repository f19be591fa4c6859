"""What kernels, copies and fills use: from names, parameters and addresses to accesses."""

from __future__ import annotations

import bisect
import contextlib
import struct
from typing import TYPE_CHECKING, Any, NamedTuple

from streamkit._cuda import sharing
from streamkit._pictures.kernel_names import library_of_kernel, readable
from streamkit._queues import registry
from streamkit._race_engine.extents import Extent, strided
from streamkit._race_engine.search import Access
from streamkit._races.arrays import RacedArray
from streamkit._streams.array_libraries import ARRAYS
from streamkit.protocols import ExplainsKernels, MemoryUse, TellsMemory

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from streamkit.protocols import ArrayLayout

_LOWEST, _HIGHEST = 1 << 16, 1 << 57  # between them are all addresses of CUDA's


class Launch(NamedTuple):
    """What one launch, copy or fill uses."""

    name: str
    """Of the kernel, as its source has it; or "copy" or "fill"."""
    library: str | None
    """Whose kernel it is, where its name tells."""
    accesses: tuple[Access, ...]
    """Without allocations: those are put in by who knows how long memory was whose."""
    is_known: bool
    """Whether all that it reads and writes is known."""


class NamedMemory(NamedTuple):
    """Memory with a name. It keeps nothing alive."""

    extent: Extent
    array: RacedArray
    noted: int | None = None
    """After how many calls of the driver; None where it has its name at all times."""


class LaunchReader:
    """Reads launches, with the libraries' memory as it is when this object is made."""

    def __init__(
        self, named: Iterable[tuple[str, object]] = (), noted: Iterable[NamedMemory] = ()
    ) -> None:
        """Take objects with their names; those that are arrays give their names to the memory.

        ``noted`` is what ``named_memory`` found before.
        """
        self._named = [found for name, value in named if (found := named_memory(name, value))]
        self._named += noted
        self.now = 0
        """How many calls of the driver there were before what is read next."""
        self._pieces = sorted(_pieces())
        self._allocations: dict[int, bool] = {}  # whether there is one, by the addresses asked for

    def kernel(self, symbol: str, parameters: Sequence[bytes]) -> Launch:
        """Read the launch of a kernel of this symbol with the bytes of these parameters."""
        name = readable(symbol)
        library = library_of_kernel(name)
        explained = _explained(library, name, parameters)
        found = _addresses(parameters) if explained is None else explained
        uses = [use for use in found if self._is_memory(use.address)]
        is_known = explained is not None and all(use.mode != "unknown" for use in uses)
        return Launch(name, library, tuple(self._accesses(uses)), is_known)

    def transfer(self, name: str, uses: Iterable[MemoryUse]) -> Launch:
        """Read a copy or a fill."""
        return Launch(name, None, tuple(self._accesses(uses)), is_known=True)

    def _accesses(self, uses: Iterable[MemoryUse]) -> Iterator[Access]:
        placed = [(use, found) for use in uses if (found := self._extent(use)) is not None]
        widest: dict[int, tuple[MemoryUse, Extent]] = {}  # by address: what a report tells
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
        if self._piece(address) is not None or any(self._with(address)):
            return True
        if address not in self._allocations:
            self._allocations[address] = sharing.allocation(address) is not None
        return self._allocations[address]

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
        """Return how far from now a name was noted: other arrays use the memory again."""
        return -1 if one.noted is None else abs(one.noted - self.now)


def _explained(
    library: str | None, name: str, parameters: Sequence[bytes]
) -> list[MemoryUse] | None:
    load = registry.loaded().get(library or "")
    adapter = None if load is None else load()
    if not isinstance(adapter, ExplainsKernels):
        return None
    found = adapter.explain_kernel(name, parameters)
    return None if found is None else list(found)


def _addresses(parameters: Sequence[bytes]) -> Iterator[MemoryUse]:
    """Yield what may be addresses, each once: also inside structures, where they are aligned."""
    found: dict[int, None] = {}
    for parameter in parameters:
        found.update(dict.fromkeys(struct.unpack_from(f"<{len(parameter) // 8}Q", parameter)))
    return (MemoryUse(address, "unknown") for address in found)


def _pieces() -> Iterator[tuple[int, int]]:
    for load in registry.loaded().values():
        adapter = load()
        if isinstance(adapter, TellsMemory):
            yield from adapter.pieces_of_memory()


def named_memory(name: str, value: object) -> NamedMemory | None:
    """Return the memory of an array, None if the object is none; it calls no driver."""
    layout = _layout(value)
    if layout is None:
        return None
    address, shape, strides, _, itemsize = layout
    extent = strided(address, shape, strides, itemsize)
    if extent is None:
        return None
    dtype = getattr(value, "dtype", "")
    text = getattr(dtype, "__name__", None) or str(dtype).rpartition(".")[2]
    nbytes = itemsize
    for count in shape:
        nbytes *= count
    return NamedMemory(extent, RacedArray(name, text, tuple(shape), nbytes, address))


def _layout(value: Any) -> ArrayLayout | None:
    """Return the layout of an array of a library, None if the object is none."""
    with contextlib.suppress(Exception):  # of somebody's object, which may be anything
        library = registry.find(value, ARRAYS)
        if library is not None and library.memory_layout is not None:
            library.device_of(value)  # raises TypeError if this object of the type is no array
            return library.memory_layout(value)
    return None
