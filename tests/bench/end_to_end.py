"""A whole program, as its user sees it: steps of torch, CuPy and Warp on one array."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from statistics import median
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

import streamkit as sk

if TYPE_CHECKING:
    from collections.abc import Callable

    from bench.timing import Libraries

STEPS = 100
SIDE = 256  # 64K floats


@dataclass(frozen=True)
class Whole:
    """Milliseconds of all steps until the device has run them: median and extremes."""

    name: str
    ms: float
    ms_low: float
    ms_high: float


def measure(libraries: Libraries, repeats: int) -> list[Whole]:
    """Time each way of keeping the libraries in order, in turns; one more repeat goes first."""
    torch = libraries.torch
    runs = ways(libraries, torch.ones(SIDE, SIDE, device=f"cuda:{libraries.device}"))
    found: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(repeats + 1):
        for name, run in runs.items():
            torch.cuda.synchronize()
            begun = perf_counter_ns()
            run()
            torch.cuda.synchronize()
            found[name].append((perf_counter_ns() - begun) / 1e6)
    measured = {name: times[1:] for name, times in found.items()}
    return [Whole(name, median(ms), min(ms), max(ms)) for name, ms in measured.items()]


def ways(libraries: Libraries, x: Any) -> dict[str, Callable[[], object]]:
    """Return each way of doing all the steps to a torch array, by its name."""
    torch, warp = libraries.torch.cuda, libraries.warp
    parts = _parts(libraries, x)
    syncs = [torch.synchronize, libraries.cupy.cuda.Device().synchronize]
    syncs.append(partial(warp.synchronize_device, str(x.device)))
    stream = torch.Stream()
    s: Any = sk.wrap(stream)
    of_cupy, of_warp = s.to("cupy"), s.to("warp")

    def step() -> None:
        for part in parts:
            part()

    def step_with_syncs() -> None:
        for part, sync in zip(parts, syncs, strict=True):
            part()
            sync()

    def step_in_managers() -> None:
        with torch.stream(stream), of_cupy, warp.ScopedStream(of_warp, sync_enter=False):
            step()

    def step_in_scope() -> None:
        with sk.use(stream):
            step()

    def in_one_scope() -> None:
        with sk.use(stream):
            _all_of(step)

    in_one_scope()  # once: first uses are illegal in a capture
    torch.synchronize()
    with sk.capture(s) as graph:
        _all_of(step)
    function = sk.graphed(lambda _: _all_of(step), stream=s)
    for _ in range(2):  # the first call runs it, the second captures it
        function(x)
    return {
        "a device synchronisation between libraries": partial(_all_of, step_with_syncs),
        "nested managers a step": partial(_all_of, step_in_managers),
        "a scope a step": partial(_all_of, step_in_scope),
        "one scope": in_one_scope,
        "one graph": partial(graph.launch, s),
        "a graphed function": partial(function, x),
    }


def _all_of(step: Callable[[], None]) -> None:
    for _ in range(STEPS):
        step()


def _parts(libraries: Libraries, x: Any) -> list[Callable[[], object]]:
    """Return what a step does in each library."""
    from streamkit._cli.demo_kernels import stretch

    cupy, warp = libraries.cupy, libraries.warp
    in_cupy, in_warp = cupy.from_dlpack(x), warp.from_torch(x)
    stretched = partial(warp.launch, stretch, dim=tuple(x.shape), device=str(x.device))
    return [
        lambda: x.mul_(1.01),
        lambda: cupy.add(in_cupy, 1, out=in_cupy),
        lambda: stretched(inputs=[in_warp, 2.0, in_warp]),
    ]
