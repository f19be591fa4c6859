"""Reports of work on GPUs that tests make up."""

from __future__ import annotations

from streamkit.diagnostics.audit.audit import AuditReport  # reports are made up here
from streamkit.diagnostics.recording.operations import (  # reports are made up here
    AuditedQueue,
    Operation,
)

LEGACY = AuditedQueue("cuda:0", "legacy default stream", 23, is_legacy=True)
TORCH = AuditedQueue("cuda:0", "torch stream id=44", 44)
WARP = AuditedQueue("cuda:0", "Warp stream id=43", 43)

_FILL = "at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>, char>"
_SIN = "at::native::vectorized_elementwise_kernel<4, at::native::sin_kernel_cuda(float)>"


def small(*operations):
    """Return a report of these operations."""
    made = AuditReport()
    made.complete(operations)
    return made


def before():
    """Return what three libraries give to three queues."""
    work = [
        *[("torch", _SIN, TORCH)] * 3,
        ("torch", _FILL, TORCH),
        ("cupy", "cupy_multiply__float32_float_float32", LEGACY),
        ("warp", "add_one_b5b6dbb2_cuda_kernel_forward", WARP),
    ]
    return small(
        *(
            Operation("kernel", name, queue, library, place=place)
            for place, (library, name, queue) in enumerate(work)
        )
    )
