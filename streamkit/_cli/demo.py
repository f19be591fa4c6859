"""The main job: torch, CuPy and Warp work on one array, on one queue, and NumPy checks the result.

torch makes the array, CuPy stretches its values and Warp blurs it. Each launches its own kernels
on memory that the library before has only been told to write: nothing is copied, and the order of
the queue alone makes the result right. Without a GPU the stages run in a scope of a host stream.
"""

from __future__ import annotations

import importlib
import itertools
import math
import sys
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import streamkit as sk
from streamkit._cli import machine
from streamkit._queues import registry

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

SIZE = 1024, 1024
TOLERANCE = 1e-5  # errors of float32 are a hundredth of this
STAGES: dict[str, tuple[Any, ...]] = {"make": (97,), "stretch": (50.0,), "blur": ()}
"""The stages with their constants: the libraries that are here take turns."""
LIBRARIES = "torch", "cupy", "warp"
LABELS = {row.name: row.label for row in registry.LIBRARIES} | {"numpy": "NumPy"}


class Library(NamedTuple):
    """One library that computes on the device."""

    module: Any
    compute: Callable[..., Any]  # a stage, with its input and constants
    to_numpy: Callable[[Any], Any]


def run(
    *,
    libraries: Collection[str] = LIBRARIES,
    progress: Callable[[str, int, int], object] = lambda *_: None,
) -> dict[str, Any]:
    """Run the stages and check their result; ``ok`` if it is right and all ran on the one queue.

    ``libraries``: those of torch, cupy and warp that may take part. ``progress`` is called with
    what comes next, how much is done, and of how much.
    """
    progress("import the libraries", 0, 2)
    s, found, notes = _equip(libraries)
    on_gpu = s.device != "cpu"
    progress("run the stages", 1, 2)
    stages: list[dict[str, Any]] = []
    arrays: list[Any] = []  # all are kept until the queue is idle
    # The libraries are named, because a loaded one that cannot use this GPU would raise.
    with sk.use(s, libraries=found if on_gpu else None, ordered=True):
        for stage, name in zip(STAGES, itertools.cycle(found), strict=False):
            library = found[name]
            taken = [library.module.from_dlpack(array) for array in arrays[-1:]]
            arrays += [*taken, library.compute(stage, *taken, *STAGES[stage])]  # only launched
            queue = sk.current_stream(name if on_gpu else None).id
            version = str(library.module.__version__)
            stages.append({"name": stage, "library": name, "version": version, "queue": queue})
    s.sync()
    result = found[stages[-1]["library"]].to_numpy(arrays[-1])
    error = float(f"{abs(result - reference()).max():.1e}")
    return {
        "stream": repr(s),
        "stages": stages,
        "max_error": error if math.isfinite(error) else None,  # JSON has no NaN
        "ok": error <= TOLERANCE and {one["queue"] for one in stages} == {s.id},
        "notes": notes,
    }


def _equip(libraries: Collection[str]) -> tuple[Any, dict[str, Library], list[str]]:
    """Return the stream, the libraries that compute on its device, and notes on what is missing."""
    notes = []
    try:
        s: Any = sk.new_stream()
    except sk.errors.BackendNotInstalledError as error:
        s, notes = sk.new_stream("cpu"), [f"There is a CUDA driver here, but {error}."]
    found, missing = machine.load_each(libraries, partial(load, device=s.device))
    if s.device != "cpu":
        notes = [f"No {LABELS[name]}: {machine.remedy(name, missing[name])}" for name in missing]
        if "torch" in found:  # a stream of any library will do
            s = sk.wrap(found["torch"].module.cuda.Stream(s.device_id))
        if found:
            return s, found, notes
        s = sk.new_stream("cpu")
    notes.append(f"{'For now' if notes else 'There is no GPU:'} the stages ran on a host stream.")
    return s, found | {"numpy": load("numpy", "cpu")}, notes


def show(result: dict[str, Any]) -> None:
    """Print each stage with its library and queue, what is missing, and the verdict."""
    lines = [f"One array through {result['stream']}"]
    for one in result["stages"]:
        label = f"{LABELS[one['library']]} {one['version']}"
        lines.append(f"  {one['name']:10}{label} on queue {one['queue']}")
    verdict = "OK" if result["ok"] else "WRONG"
    lines += [*result["notes"], f"{verdict}: off by {result['max_error']} at most from NumPy"]
    sys.stdout.write("\n".join(lines) + f" ({TOLERANCE} allowed)\n")


# -- the stages, in each library --------------------------------------------------------------


def load(name: str, device: str) -> Library:
    """Import a library that computes on this device; any exception says why there is none."""
    library = machine.load(name, on_gpu=name == "cupy" or device != "cpu")
    match name:
        case "torch":
            compute = partial(_by_arrays, library, {"device": device})
            return Library(library, compute, lambda x: x.cpu().numpy())
        case "warp":
            return Library(library, partial(_by_warp, library, device), lambda x: x.numpy())
        case _:
            to_numpy = getattr(library, "asnumpy", library.asarray)
            return Library(library, partial(_by_arrays, library, {}), to_numpy)


def _by_arrays(xp: Any, where: dict[str, str], stage: str, x: Any, strength: float = 0) -> Any:
    """Compute a stage by functions that NumPy, CuPy and torch share."""
    if stage == "make":  # of a period
        count = xp.arange(math.prod(SIZE), dtype=xp.float32, **where)
        return (count % x / x).reshape(SIZE)
    if stage == "stretch":
        return xp.arcsinh(x * strength) / math.asinh(strength)
    above, below = xp.concatenate([x[:1], x[:-1]]), xp.concatenate([x[1:], x[-1:]])
    return (above + 2 * x + below) / 4


def _by_warp(wp: Any, device: str, stage: str, *inputs: Any) -> Any:
    kernels = importlib.import_module("streamkit._cli.demo_kernels")
    out = wp.empty(SIZE, dtype=float, device=device)
    wp.launch(getattr(kernels, stage), dim=SIZE, inputs=inputs, outputs=[out], device=device)
    return out


def reference() -> Any:
    """Return the expected result of the stages, computed by NumPy alone and in float64."""
    import numpy as np

    ((period,), (strength,), _) = STAGES.values()
    made = (np.arange(math.prod(SIZE)) % period / period).reshape(SIZE)
    x = np.pad(np.arcsinh(strength * made) / np.arcsinh(strength), [(1, 1), (0, 0)], mode="edge")
    return x[:-2] / 4 + x[1:-1] / 2 + x[2:] / 4
