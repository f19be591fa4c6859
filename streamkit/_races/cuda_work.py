"""CUDA streams: what each call that gives work does with memory."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Literal

from streamkit._audit.driver_steps import WORK
from streamkit._cuda import sharing
from streamkit._cuda.driver_callbacks import Kernel
from streamkit._pictures.kernel_names import library_of_kernel, readable
from streamkit._races.memory_use import Launch
from streamkit.protocols import MemoryUse

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from streamkit._audit.driver_steps import CudaStep
    from streamkit._races.memory_use import LaunchReader

_ROWS = struct.Struct("<QQI4xQQ8xQQQI4xQQ8xQQQ")  # CUDA_MEMCPY2D without the handles of arrays
_HOST, _ARRAY = 1, 3  # kinds of memory there
_ELEMENTS = {"fill": 1, "fill of 2": 2, "fill of 4": 4}
_NAMES = {
    "cuGraphLaunch": "a CUDA graph",
    "cuLaunchHostFunc": "a host function",
    "cuStreamAddCallback": "a host function",
}


class WorkReader:
    """Reads the steps of a program, in their order."""

    def __init__(self, launches: LaunchReader) -> None:
        self._launches = launches
        self._sizes: dict[int, int] = {}  # of allocations
        self._allocations: dict[int, int] = {}  # of the driver, by addresses
        self._readers: dict[str, Callable[[CudaStep], Launch]] = {
            "launch": self._read_kernel,
            "launch with more": self._read_kernel,
            "copy": self._read_copy,
            "copy and wait": self._read_copy,
            "copy of rows": self._read_copy_of_rows,
            **dict.fromkeys(_ELEMENTS, self._read_fill),
            "free": self._read_free,
        }

    def read(self, step: CudaStep) -> Launch | None:
        """Return what a step does, None if that is no work."""
        if step.kind == "allocation":
            self._sizes[step.fact.more] = step.fields[1]
        if step.kind not in WORK:
            return None
        self._launches.now = int(step.number)
        launch = self._readers.get(step.kind, self._read_other)(step)
        accesses = [
            one._replace(allocation=self._allocation(one.extent.start)) for one in launch.accesses
        ]
        return launch._replace(accesses=tuple(accesses))

    def _read_kernel(self, step: CudaStep) -> Launch:
        kernel = Kernel(*step.fact.more)
        if kernel.parameters is not None:
            return self._launches.kernel(kernel.symbol, kernel.parameters)
        name = readable(kernel.symbol)
        return Launch(name, library_of_kernel(name), (), is_known=False)

    def _read_copy(self, step: CudaStep) -> Launch:
        target, source, size = step.fields[:3]
        return self._transfer("copy", [_use(source, "read", size), _use(target, "write", size)])

    def _read_copy_of_rows(self, step: CudaStep) -> Launch:
        found = _ROWS.unpack(step.fact.more)
        width, height = found[12:]
        uses = []
        modes: Iterable[Literal["read", "write"]] = ("read", "write")
        for mode, side in zip(modes, (found[:6], found[6:12]), strict=True):
            first, row, kind, host, device, pitch = side
            if kind == _ARRAY:  # of texture memory, which has no addresses
                return Launch("copy", None, (), is_known=False)
            address = (host if kind == _HOST else device) + row * pitch + first
            use = _use(address, mode, 0)
            uses.append(use._replace(shape=(height, width), strides=(pitch, 1)))
        return self._transfer("copy", uses)

    def _read_fill(self, step: CudaStep) -> Launch:
        address, count = step.fields[:2]
        return self._transfer("fill", [_use(address, "write", count * _ELEMENTS[step.kind])])

    def _read_free(self, step: CudaStep) -> Launch:
        address = step.fields[0]
        size = self._sizes.pop(address, 1)
        return self._launches.transfer("free", [_use(address, "write", size)])

    def _read_other(self, step: CudaStep) -> Launch:
        is_wait = step.kind == "wait for a value"
        name = "a wait for a value" if is_wait else _NAMES.get(step.call.name, step.call.name)
        return Launch(name, None, (), is_known=False)

    def _transfer(self, name: str, uses: Iterable[MemoryUse]) -> Launch:
        # the driver does not know memory of the host that is not pinned: nothing runs beside it
        known = [use for use in uses if sharing.allocation(use.address) is not None]
        return self._launches.transfer(name, known)

    def _allocation(self, address: int) -> int:
        """Return what keeps accesses apart that cannot share a byte."""
        found = self._allocations.get(address)
        if found is None:
            allocation = sharing.allocation(address)
            found = self._allocations[address] = 0 if allocation is None else allocation[0]
        return found


def _use(address: int, mode: Literal["read", "write"], size: int) -> MemoryUse:
    return MemoryUse(address, mode, (size,), (1,), 1, is_sure=True)
