"""The main job: one image pipeline over several libraries, on one queue, checked against NumPy.

torch makes a grey image, CuPy stretches it, Warp sharpens it, CuPy takes the mean: each launches
its own kernels, on arrays that are handed over without a copy. Without a GPU the same stages run
on a host stream, with what is installed. Only ``show`` prints.
"""

from __future__ import annotations

import importlib
import importlib.resources
import math
import struct
import zlib
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import streamkit as sk
from streamkit._cli import machine
from streamkit._cli.machine import UnusableError
from streamkit._queues import registry

if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from pathlib import Path

    from numpy.typing import NDArray

GAMMA = 2.2  # from bytes to light
WEIGHTS = (0.2126, 0.7152, 0.0722)  # how bright red, green and blue look (Rec. 709)
STRETCH = 50.0  # faint galaxies become visible
SHARPEN = 1.5

STAGES = {  # each with the libraries that can do it; the first one found here does
    "luminance": ("torch", "cupy", "warp", "numpy"),
    "stretch": ("cupy", "numpy", "torch", "warp"),
    "sharpen": ("warp", "numpy", "torch", "cupy"),
    "mean": ("cupy", "numpy", "torch", "warp"),
}
LIBRARIES = "torch", "cupy", "warp"
LABELS = {row.name: row.label for row in registry.LIBRARIES} | {"numpy": "NumPy"}

TOLERANCE = 1e-4  # a fortieth of a grey level; float32 takes a hundredth of it


@dataclass(frozen=True)
class Stage:
    """One stage as it ran: ``queue`` is that of its library's current stream."""

    name: str
    library: str
    version: str
    queue: str
    milliseconds: float


@dataclass(frozen=True)
class DemoResult:
    """What the demo did; ``ok`` if the result is right and every stage ran on the one queue."""

    device: str
    stream: str
    stages: list[Stage]
    mean: float
    max_error: float
    tolerance: float
    ok: bool
    notes: list[str]
    image: NDArray[Any] = field(repr=False, compare=False)


def as_data(result: DemoResult) -> dict[str, Any]:
    """Return the result in JSON's types, without the image."""
    data = asdict(result)
    del data["image"]
    for name in ("mean", "max_error"):
        if not math.isfinite(data[name]):
            data[name] = None  # JSON has no NaN
    return data


def run(
    *,
    device: str | None = None,
    libraries: Collection[str] = LIBRARIES,
    progress: Callable[[str, int, int], object] = lambda *_: None,
) -> DemoResult:
    """Run the pipeline and check its result.

    ``device``: None for the GPU if there is one, "cpu" for the host. ``libraries``: those of
    torch, cupy and warp that may take part. Imports them, and compiles their kernels the first
    time, which takes seconds; ``progress`` is called with what comes next, how much is done, and
    of how much. Raises ImportError without NumPy, DriverError if the GPU fails.
    """
    progress("import the libraries", 0, 3)
    no_gpu = "No GPU is used:" if device == "cpu" else "There is no GPU here:"
    s, found, missing, notes = _equip(device, libraries, no_gpu)
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
    return DemoResult(s.device, repr(s), stages, mean, max(errors), TOLERANCE, ok, notes, image)


def show(result: DemoResult) -> None:
    """Print the stages with their libraries and times, the notes, and the verdict; needs rich."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    console = machine.console()
    height, width = result.image.shape
    console.print(f"A {width} x {height} photograph through {result.stream}")
    table = Table("stage", "library", "queue", box=box.SIMPLE_HEAD)
    table.add_column("ms", justify="right")
    for stage in result.stages:
        library = f"{LABELS[stage.library]} {stage.version}"
        table.add_row(stage.name, library, stage.queue, f"{stage.milliseconds:.3f}")
    console.print(table)
    for note in result.notes:
        console.print(note)
    verdict = ("OK", machine.GOOD) if result.ok else ("WRONG", machine.BAD)
    error = (
        f": off by {result.max_error:.1e} at most from NumPy in float64 "
        f"({result.tolerance:.0e} allowed)"
    )
    console.print(Text.assemble(verdict, error))


# -- what this machine has --------------------------------------------------------------------


def _equip(
    device: str | None, libraries: Collection[str], no_gpu: str
) -> tuple[Any, dict[str, Any], dict[str, str], list[str]]:
    """Return the stream, the libraries that compute on its device, why others do not, and notes."""
    try:
        s: Any = sk.new_stream(device)
    except sk.BackendNotInstalledError as error:
        return _equip("cpu", libraries, f"There is a CUDA driver here, but {error}. For now")
    found, missing = machine.load_each(libraries, partial(load, device=s.device))
    if s.device == "cpu":
        found["numpy"] = load("numpy", "cpu")
        instead = f", with NumPy in place of {_list(missing)}" if missing else ""
        return s, found, missing, [f"{no_gpu} the stages ran on a host stream{instead}."]
    if not found:
        no_gpu = (
            f"There is a GPU here, but no library that computes on it: {_list(missing)}. Install "
            f"one or all: {machine.install_lines(LIBRARIES)}. For now"
        )
        return _equip("cpu", libraries, no_gpu)
    if "torch" in found:
        s = sk.wrap(found["torch"].xp.cuda.Stream(s.device_id))  # any library's stream will do
    return s, found, missing, []


def _list(missing: dict[str, str]) -> str:
    return ", ".join(f"{LABELS[name]} ({why})" for name, why in missing.items())


def _gaps(plan: dict[str, Any], missing: dict[str, str]) -> list[str]:
    """Say which libraries did the stages of those missing here, and what installs these."""
    notes = []
    for name, why in missing.items():
        stages = [stage for stage, able in STAGES.items() if able[0] == name]
        done = ", ".join(f"{LABELS[plan[stage].name]} did {stage}" for stage in stages)
        note = f"No {LABELS[name]} ({why}): {done}."
        if why == "not installed":
            note += f" Install it with: {machine.install_line(name)}"
        notes.append(note)
    return notes


# -- the run ----------------------------------------------------------------------------------


def _run_once(
    s: Any, plan: dict[str, Any], photograph: NDArray[Any], libraries: Collection[str]
) -> tuple[list[Stage], NDArray[Any], float]:
    on_gpu = s.device != "cpu"
    # All arrays stay referenced until the queue is idle: Warp frees memory without waiting for
    # non-blocking streams, and torch's streams are non-blocking.
    arrays: dict[str, Any] = {"photograph": photograph}
    marks = []
    # On the host no scope: its body would be one item of the queue.
    # The libraries are named, because a loaded one that cannot use this GPU would raise.
    with sk.use(s, libraries=libraries, ordered=True) if on_gpu else nullcontext():
        for name, library in plan.items():
            start = s.record(timing=True)
            if on_gpu:
                _step(name, library, arrays)  # returns before the GPU has begun
            else:
                s.submit(_step, name, library, arrays)
            end = s.record(timing=True)
            current = sk.current_stream(library.name) if on_gpu else s
            marks.append((name, library, current, start, end))
    s.sync()
    stages = [
        Stage(name, library.name, library.version, _describe(current), end - start)
        for name, library, current, start, end in marks
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


# -- the stages, in each library --------------------------------------------------------------


class _NumPy:
    """The stages by functions that NumPy, CuPy and torch share."""

    def __init__(self, xp: Any, device: str) -> None:
        self.name = xp.__name__
        self.version = str(xp.__version__)
        self.xp, self.device = xp, device

    def upload(self, image: NDArray[Any]) -> Any:
        return self.xp.asarray(image)

    def take(self, array: Any) -> Any:
        """Return the former stage's array as this library's own, without a copy."""
        return self.xp.from_dlpack(array)

    def luminance(self, rgb: Any) -> Any:
        linear = (self.xp.asarray(rgb, dtype=self.xp.float32) / 255) ** GAMMA
        red, green, blue = WEIGHTS
        return red * linear[..., 0] + green * linear[..., 1] + blue * linear[..., 2]

    def stretch(self, x: Any) -> Any:
        return self.xp.arcsinh(x * STRETCH) / math.asinh(STRETCH)

    def sharpen(self, x: Any) -> Any:
        blurred = self._blur_rows(self._blur_rows(x).T).T
        return self.xp.clip(x + SHARPEN * (x - blurred), 0, 1)

    def _blur_rows(self, x: Any) -> Any:
        above = self.xp.concatenate([x[:1], x[:-1]])
        below = self.xp.concatenate([x[1:], x[-1:]])
        return (above + 2 * x + below) / 4

    def mean(self, x: Any) -> Any:
        return self.xp.mean(x)

    def fetch(self, array: Any) -> NDArray[Any]:
        return self.xp.asarray(array)  # type: ignore[no-any-return]  # xp is NumPy here


class _Torch(_NumPy):
    def upload(self, image: NDArray[Any]) -> Any:
        host = self.xp.from_numpy(image)
        if self.device == "cpu":
            return host
        # Only from pinned memory does the copy run behind the host's back, on the stream.
        return host.pin_memory().to(self.device, non_blocking=True)

    def fetch(self, array: Any) -> NDArray[Any]:
        return array.cpu().numpy()  # type: ignore[no-any-return]  # torch is optional, so Any


class _CuPy(_NumPy):
    def __init__(self, xp: Any, device: str) -> None:
        super().__init__(xp, device)
        self._stretch = xp.ElementwiseKernel(
            "float32 x, float32 strength",
            "float32 y",
            "y = asinhf(strength * x) / asinhf(strength)",
            "streamkit_demo_stretch",
        )

    def stretch(self, x: Any) -> Any:
        return self._stretch(x, STRETCH)

    def fetch(self, array: Any) -> NDArray[Any]:
        return array.get()  # type: ignore[no-any-return]  # CuPy is optional, so Any


class _Warp:
    name = "warp"

    def __init__(self, wp: Any, device: str, kernels: Any) -> None:
        self.version = str(wp.__version__)
        self.wp, self.device, self._kernels = wp, device, kernels

    def upload(self, image: NDArray[Any]) -> Any:
        return self.wp.array(image, dtype=self.wp.uint8, device=self.device)

    def take(self, array: Any) -> Any:
        return self.wp.from_dlpack(array)

    def luminance(self, rgb: Any) -> Any:
        return self._map(self._kernels.luminance, rgb, WEIGHTS, GAMMA)

    def stretch(self, x: Any) -> Any:
        return self._map(self._kernels.stretch, x, STRETCH)

    def sharpen(self, x: Any) -> Any:
        return self._map(self._kernels.sharpen, x, SHARPEN)

    def _map(self, kernel: Any, x: Any, *constants: Any) -> Any:
        out = self.wp.empty(x.shape[:2], dtype=float, device=self.device)
        return self._launch(kernel, out.shape, [x, *constants], out)

    def mean(self, x: Any) -> Any:
        out = self.wp.zeros(1, dtype=float, device=self.device)
        return self._launch(self._kernels.mean, x.shape[0], [x], out)

    def _launch(self, kernel: Any, dim: Any, inputs: list[Any], out: Any) -> Any:
        self.wp.launch(kernel, dim=dim, inputs=inputs, outputs=[out], device=self.device)
        return out

    def fetch(self, array: Any) -> NDArray[Any]:
        return array.numpy()  # type: ignore[no-any-return]  # Warp is optional, so Any


def load(name: str, device: str) -> Any:
    """Import a library that computes on this device; any exception says why there is none."""
    if name == "numpy":
        return _NumPy(importlib.import_module(name), device)
    library = machine.load(name, on_gpu=device != "cpu")
    if name == "cupy" and device == "cpu":
        raise UnusableError("needs a GPU")
    if name == "warp":
        return _Warp(library, device, importlib.import_module("streamkit._cli.demo_kernels"))
    return (_Torch if name == "torch" else _CuPy)(library, device)


# -- the image and the truth ------------------------------------------------------------------


def read_image() -> NDArray[Any]:
    """Return the photograph shipped with StreamKit, (height, width, 3) bytes."""
    import numpy as np

    data = (importlib.resources.files("streamkit._cli") / "hubble.ppm").read_bytes()
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


def _as_pgm(pixels: NDArray[Any]) -> bytes:
    height, width = pixels.shape
    return b"P5\n%d %d\n255\n" % (width, height) + pixels.tobytes()


def _as_png(pixels: NDArray[Any]) -> bytes:
    height, width = pixels.shape

    def chunk(kind: bytes, data: bytes) -> bytes:
        checksum = zlib.crc32(kind + data)
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", checksum)

    head = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)  # 8 bits of grey, not interlaced
    rows = b"".join(b"\0" + row.tobytes() for row in pixels)  # 0: each row as it is
    parts = chunk(b"IHDR", head), chunk(b"IDAT", zlib.compress(rows)), chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


FORMATS: dict[str, Callable[[NDArray[Any]], bytes]] = {".png": _as_png, ".pgm": _as_pgm}
"""By the end of a file's name, what makes its bytes."""


def write_image(image: NDArray[Any], path: Path) -> None:
    """Write a grey image of floats from 0 to 1; the end of the name is one of ``FORMATS``."""
    path.write_bytes(FORMATS[path.suffix.lower()]((image * 255 + 0.5).astype("uint8")))
