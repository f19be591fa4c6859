"""cuFFT's scratch memory in a capture: each plan that is used has some of the graph's.

CuPy keeps a thread's plans, and each has one work area for all streams. So two graphs with the same
transform, or a graph and eager work, would write the same memory.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
from typing import TYPE_CHECKING, Any

import cupy
from cupy.cuda import cufft

if TYPE_CHECKING:
    from collections.abc import Generator


class _OwnPlan:
    """A plan of CuPy's whose work area is the graph's from its first use on."""

    def __init__(self, plan: Any) -> None:
        self.plan = plan
        self._area: Any = None  # held until the end: the graph's pool would give it to others

    def __getattr__(self, name: str) -> Any:
        return getattr(self.plan, name)

    def fft(self, *arguments: Any) -> None:
        """Transform, as the plan does."""
        if self._area is None:
            self._area = cupy.cuda.alloc(self.plan.work_area.mem.size)
            _set_work_area(self.plan, self._area)
        self.plan.fft(*arguments)

    def end(self) -> Any:
        """Return the plan, with its own work area."""
        if self._area is not None:
            _set_work_area(self.plan, self.plan.work_area)
        return self.plan


def _set_work_area(plan: Any, area: Any) -> None:
    cufft.check_result(
        _library().cufftSetWorkArea(ctypes.c_int(plan.handle), ctypes.c_void_p(area.ptr))
    )


@functools.cache
def _library() -> ctypes.CDLL:
    """Return CuPy's module, in which the system finds the functions of its cuFFT too."""
    return ctypes.CDLL(cufft.__file__)


@contextlib.contextmanager
def of_the_graph() -> Generator[None]:
    """Let this thread's plans take their scratch memory from the current allocator."""
    cache = cupy.fft.config.get_plan_cache()
    _replace(cache, lambda plan: _OwnPlan(plan) if _has_work_area(plan) else plan)
    try:
        yield
    finally:
        _replace(cache, lambda plan: plan.end() if isinstance(plan, _OwnPlan) else plan)


def _has_work_area(plan: Any) -> bool:
    return plan.gpus is None and plan.work_area is not None and plan.work_area.mem.size > 0


def _replace(cache: Any, replaced: Any) -> None:
    """Replace the plans in the cache; all, so that the order of their last uses stays."""
    for key, node in reversed(list(cache)):
        cache[key] = replaced(node.plan)
