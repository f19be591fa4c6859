"""cuFFT's scratch memory in a capture: each plan that is used has some of the graph's.

CuPy keeps a thread's plans, and each has one work area for all streams. So two graphs with the same
transform, or a graph and eager work, would write the same memory.
"""

from __future__ import annotations

import contextlib
import ctypes
from typing import TYPE_CHECKING, Any

import cupy

if TYPE_CHECKING:
    from collections.abc import Generator


class _OwnPlan:
    """A plan of CuPy's whose work area, if it has one, is the graph's from its first use on."""

    def __init__(self, plan: Any) -> None:
        self.plan = plan
        self._area: Any = None  # held until the end: the graph's pool would give it to others

    def __getattr__(self, name: str) -> Any:
        return getattr(self.plan, name)

    @property
    def is_used(self) -> bool:
        return self._area is not None

    def fft(self, *arguments: Any) -> None:
        if self._area is None and _has_work_area(self.plan):
            self._area = cupy.cuda.alloc(self.plan.work_area.mem.size)
            _set_work_area(self.plan, self._area)
        self.plan.fft(*arguments)

    def end(self) -> None:
        """Give the plan its own work area back."""
        if self._area is not None:
            _set_work_area(self.plan, self.plan.work_area)


def _set_work_area(plan: Any, area: Any) -> None:
    from cupy.cuda import cufft  # noqa: PLC0415 - where there is a plan: CuPy works without cuFFT

    library = ctypes.CDLL(cufft.__file__)  # in which the system finds cuFFT's functions too
    code = library.cufftSetWorkArea(ctypes.c_int(plan.handle), ctypes.c_void_p(area.ptr))
    cufft.check_result(code)


@contextlib.contextmanager
def of_the_graph() -> Generator[list[Any]]:
    """Let this thread's plans take their scratch memory from the current allocator.

    At the end the list has the plans that the graph needs, and has to live as long. A plan that
    was made inside leaves CuPy's cache, because its own work area is the graph's.
    """
    cache = cupy.fft.config.get_plan_cache()
    limits = cache.get_size(), cache.get_memsize()
    own: list[_OwnPlan] = []
    used: list[Any] = []
    try:
        cache.set_size(-1)  # no plan is dropped inside, where its end would break the capture
        cache.set_memsize(-1)
        for key, node in reversed(list(cache)):  # all: the order of their last uses stays
            cache[key] = plan = _OwnPlan(node.plan)
            own.append(plan)
        yield used
    finally:
        for plan in own:
            plan.end()
        used.extend(plan.plan for plan in own if plan.is_used)
        for key, node in reversed(list(cache)):
            if node.plan in own:
                cache[key] = node.plan.plan
            else:
                used.append(node.plan)
                del cache[key]
        cache.set_size(limits[0])
        cache.set_memsize(limits[1])


def _has_work_area(plan: Any) -> bool:
    return plan.gpus is None and plan.work_area is not None and plan.work_area.mem.size > 0
