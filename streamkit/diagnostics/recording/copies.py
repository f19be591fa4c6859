"""The two ends of a copy, its source and its target, as the driver's call gives them."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    from streamkit.diagnostics.recording.memory import Lives
    from streamkit.diagnostics.recording.steps import CudaStep

COPIES = ("copy", "copy and wait", "copy of rows")
"""The kinds of calls that copy."""
PAGEABLE = "the host waits because its memory is pageable: copy from or to pinned memory"
"""The reason why a copy holds the host, and the remedy, in the words of a report."""
_ROWS = struct.Struct("<QQI4xQQ8xQQQI4xQQ8xQQQ")  # CUDA_MEMCPY2D without the handles of arrays
_HOST, _DEVICE, _ARRAY = 1, 2, 3  # kinds of memory in a CUDA_MEMCPY2D
_Mode = Literal["read", "write"]
_MODES: tuple[_Mode, _Mode] = ("read", "write")
_IS_HOST = {"cuMemcpyHtoD": (True, False), "cuMemcpyDtoH": (False, True),
            "cuMemcpyDtoD": (False, False), "cuMemcpyPeer": (False, False)}  # fmt: skip


class CopyEnd(NamedTuple):
    """The memory that a copy reads or writes."""

    mode: _Mode
    address: int
    shape: tuple[int, ...]
    """The shape, in bytes."""
    strides: tuple[int, ...]
    is_host: bool | None
    """Whether this is memory of the host; None if its address alone tells."""

    def is_pageable(self, lives: Lives) -> bool:
        """Whether this is memory of the host that CUDA does not know, because it is not pinned."""
        may_be = self.is_host is not False and 0 not in self.shape
        return may_be and lives.at(self.address) is None


def ends_of(step: CudaStep) -> list[CopyEnd] | None:
    """Return the source and the target of a copy; None if either is texture memory."""
    if step.kind != "copy of rows":
        target, source, size = step.fields[:3]
        sides = _IS_HOST.get(step.call.name.removesuffix("Async"), (None, None))
        return [
            CopyEnd(mode, address, (size,), (1,), is_host)
            for mode, address, is_host in zip(_MODES, (source, target), sides, strict=True)
        ]
    found = _ROWS.unpack(step.fact.more)
    width, height = found[12:]
    ends = []
    for mode, (first, row, kind, host, device, pitch) in zip(
        _MODES, (found[:6], found[6:12]), strict=True
    ):
        if kind == _ARRAY:
            return None
        address = (host if kind == _HOST else device) + row * pitch + first
        is_host = {_HOST: True, _DEVICE: False}.get(kind)
        ends.append(CopyEnd(mode, address, (height, width), (pitch, 1), is_host))
    return ends


def holds_host(step: CudaStep, lives: Lives) -> bool:
    """Whether an asynchronous copy holds the host, because its host memory is pageable."""
    if step.kind not in COPIES or step.call.stream is None:
        return False
    return any(end.is_pageable(lives) for end in ends_of(step) or ())
