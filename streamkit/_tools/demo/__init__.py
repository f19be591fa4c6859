"""The main job: one image pipeline over several libraries, on one queue, checked against NumPy.

torch makes a grey image, CuPy stretches it, Warp sharpens it, CuPy takes the mean: each launches
its own kernels, on arrays that are handed over without a copy. Without a GPU the same stages run
on a host queue, with what is installed. Nothing here prints.
"""

from __future__ import annotations

import importlib.metadata
import importlib.resources
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import streamkit as sk
from streamkit._tools.demo import stages as stages_module
from streamkit._tools.demo.stages import GAMMA, LABELS, SHARPEN, STAGES, STRETCH, WEIGHTS

if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from pathlib import Path

    from numpy.typing import NDArray

TOLERANCE = 1e-4  # a fortieth of a grey level; float32 takes a hundredth of it


@dataclass(frozen=True)
class Stage:
    """One stage as it ran: ``queue`` is where its library really stood."""

    name: str
    library: str
    version: str
    queue: str
    milliseconds: float


@dataclass(frozen=True)
class Result:
    """What the demo did; ``ok`` if the result is right and every stage stood on the one queue."""

    device: str
    stream: str
    stages: list[Stage]
    mean: float
    max_error: float
    tolerance: float
    ok: bool
    notes: list[str]
    image: NDArray[Any] = field(repr=False, compare=False)


def run(
    *,
    device: str | None = None,
    libraries: Collection[str] = ("torch", "cupy", "warp"),
    progress: Callable[[str, int, int], object] = lambda *_: None,
) -> Result:
    """Run the pipeline and check its result.

    ``device``: None for the GPU if there is one, "cpu" for the host. ``libraries``: those of
    torch, cupy and warp that may take part. Imports them, and compiles their kernels the first
    time, which takes seconds; ``progress`` is called with what comes next, how much is done, and
    of how much. Raises ImportError without NumPy, DriverError if the GPU fails.
    """
    progress("import the libraries", 0, 3)
    s, found, missing, notes = _equip(device, libraries)
    plan = {
        stage: found[next(name for name in able if name in found)] for stage, able in STAGES.items()
    }
    notes += _gaps(plan, missing) if s.device != "cpu" else []
    photograph = read_image()
    # The first run compiles kernels and fills memory pools, so its times would say nothing.
    progress("compile the kernels", 1, 3)
    _run_once(s, plan, photograph, found)
    progress("run the stages", 2, 3)
    stages, image, mean = _run_once(s, plan, photograph, found)
    expected, expected_mean = reference(photograph)
    errors = float(abs(image - expected).max()), abs(mean - expected_mean)
    strays = [stage.name for stage in stages if stage.queue != _describe(s)]
    if strays:
        notes.append(f"Not on {_describe(s)}: {', '.join(strays)}.")
    ok = all(error <= TOLERANCE for error in errors) and not strays  # false for NaN, unlike max
    return Result(s.device, repr(s), stages, mean, max(errors), TOLERANCE, ok, notes, image)


# -- what this machine has --------------------------------------------------------------------


def _equip(
    device: str | None, libraries: Collection[str]
) -> tuple[Any, dict[str, Any], dict[str, str], list[str]]:
    """Return the stream, the libraries that compute on its device, why others do not, and notes."""
    notes = []
    no_gpu = "No GPU is used:" if device == "cpu" else "There is no GPU here:"
    try:
        s: Any = sk.new_stream(device)
    except sk.BackendNotInstalledError:
        no_gpu = (
            "There is a CUDA driver here, but not the package that calls it. Install it with: "
            "pip install 'streamkit-cuda[all13]' (all12 if the driver is of CUDA 12). For now"
        )
        s = sk.new_stream("cpu")
    found, missing = _load(libraries, s.device)
    if s.device != "cpu" and not found:
        no_gpu = (
            f"There is a GPU here, but no library that computes on it: {_list(missing)}. Install: "
            f"pip install 'streamkit-cuda[torch,{_extra('cupy')},warp]'. For now"
        )
        s = sk.new_stream("cpu")
        found, missing = _load(libraries, s.device)
    if s.device == "cpu":
        found["numpy"] = stages_module.load("numpy", "cpu")
        instead = f", with NumPy in the place of {_list(missing)}" if missing else ""
        notes.append(f"{no_gpu} the stages ran on a host queue{instead}.")
    elif "torch" in found:
        s = sk.wrap(found["torch"].xp.cuda.Stream(s.device_id))  # anybody's stream will do
    return s, found, missing, notes


def _list(missing: dict[str, str]) -> str:
    return ", ".join(f"{LABELS[name]} ({why})" for name, why in missing.items())


def _load(names: Collection[str], device: str) -> tuple[dict[str, Any], dict[str, str]]:
    found: dict[str, Any] = {}
    missing: dict[str, str] = {}
    for name in names:
        try:
            found[name] = stages_module.load(name, device)
        except stages_module.UnusableError as error:
            missing[name] = str(error)
        except ModuleNotFoundError as error:
            missing[name] = "not installed" if error.name == name else str(error)
        except Exception as error:  # noqa: BLE001 - a broken library must not stop the others
            missing[name] = f"{type(error).__name__}: {error}"
    return found, missing


def _gaps(plan: dict[str, Any], missing: dict[str, str]) -> list[str]:
    """Say on a GPU machine who did a missing library's stages, and how to have it."""
    notes = []
    for name, why in missing.items():
        done = [
            f"{LABELS[plan[stage].name]} did {stage}"
            for stage, able in STAGES.items()
            if able[0] == name
        ]
        note = f"No {LABELS[name]} ({why}): {', '.join(done)}."
        if why == "not installed":
            note += f" Install it with: pip install 'streamkit-cuda[{_extra(name)}]'"
        notes.append(note)
    return notes


def _extra(name: str) -> str:
    if name != "cupy":
        return name
    return "cupy" + importlib.metadata.version("cuda-bindings").partition(".")[0]


# -- the run ----------------------------------------------------------------------------------


def _run_once(
    s: Any, plan: dict[str, Any], photograph: NDArray[Any], libraries: Collection[str]
) -> tuple[list[Stage], NDArray[Any], float]:
    """Queue all stages, wait once, read the result."""
    on_gpu = s.device != "cpu"
    # All arrays stay referenced until the queue is idle: Warp frees memory without waiting for
    # work on a non-blocking stream, and torch's streams are such.
    arrays: dict[str, Any] = {"photograph": photograph}
    marks = []
    # A host queue takes its items from outside a scope: the scope's body would be one item.
    # The libraries are named because one that is imported and cannot use this GPU would refuse.
    with sk.use(s, libraries=libraries, ordered=True) if on_gpu else nullcontext():
        for name, library in plan.items():
            start = s.record(timing=True)
            if on_gpu:
                _step(name, library, arrays)  # returns before the GPU has begun
            else:
                s.submit(_step, name, library, arrays)
            end = s.record(timing=True)
            stood = sk.current_stream(library.name) if on_gpu else s
            marks.append((name, library, stood, start, end))
    s.sync()
    stages = [
        Stage(name, library.name, library.version, _describe(stood), end - start)
        for name, library, stood, start, end in marks
    ]
    image = plan["sharpen"].fetch(arrays["sharpen"])
    return stages, image, float(plan["mean"].fetch(arrays["mean"]).reshape(-1)[0])


def _step(name: str, library: Any, arrays: dict[str, Any]) -> None:
    last, array = next(reversed(arrays.items()))
    taken = library.upload(array) if last == "photograph" else library.take(array)
    arrays[f"{name} takes"] = taken
    arrays[name] = getattr(library, name)(taken)


def _describe(stream: Any) -> str:
    return f"{'host' if stream.device == 'cpu' else stream.device} id={stream.id}"


# -- the image and the truth ------------------------------------------------------------------


def read_image() -> NDArray[Any]:
    """Return the photograph shipped with StreamKit, (height, width, 3) bytes."""
    import numpy as np

    data = (importlib.resources.files("streamkit._tools.demo") / "hubble.ppm").read_bytes()
    _, size, _, pixels = data.split(b"\n", 3)
    width, height = map(int, size.split())
    return np.frombuffer(pixels, np.uint8).reshape(height, width, 3).copy()  # torch wants to write


def reference(image: NDArray[Any]) -> tuple[NDArray[Any], float]:
    """Return the pipeline's result and its mean, computed by NumPy alone and in float64."""
    import numpy as np

    grey = (image / 255.0) ** GAMMA @ np.array(WEIGHTS)
    x = np.arcsinh(STRETCH * grey) / np.arcsinh(STRETCH)
    height, width = x.shape
    padded = np.pad(x, 1, mode="edge")
    kernel = np.outer((1, 2, 1), (1, 2, 1)) / 16
    blurred = np.zeros_like(x)
    for i, j in np.ndindex(3, 3):
        blurred += kernel[i, j] * padded[i : i + height, j : j + width]
    result = np.clip(x + SHARPEN * (x - blurred), 0, 1)
    return result, float(result.mean())


def write_image(image: NDArray[Any], path: Path) -> None:
    """Write a grey image of floats from 0 to 1 as binary PGM, which image viewers open."""
    height, width = image.shape
    pixels = (image * 255 + 0.5).astype("uint8")
    path.write_bytes(b"P5\n%d %d\n255\n" % (width, height) + pixels.tobytes())
