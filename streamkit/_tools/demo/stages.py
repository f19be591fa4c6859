"""The demo's stages, once in each library: light from bytes, stretched, sharpened, its mean."""

from __future__ import annotations

import importlib
import math
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from numpy.typing import NDArray

GAMMA = 2.2  # from bytes to light
WEIGHTS = (0.2126, 0.7152, 0.0722)  # how bright red, green and blue look (Rec. 709)
STRETCH = 50.0  # faint galaxies become visible
SHARPEN = 1.5

STAGES = {  # and who may do each: the first library that this machine has
    "luminance": ("torch", "cupy", "warp", "numpy"),
    "stretch": ("cupy", "numpy", "torch", "warp"),
    "sharpen": ("warp", "numpy", "torch", "cupy"),
    "mean": ("cupy", "numpy", "torch", "warp"),
}
LABELS = {"torch": "torch", "cupy": "CuPy", "warp": "Warp", "numpy": "NumPy"}


class UnusableError(Exception):
    """The library is here and cannot compute on this device."""


class _NumPy:
    """The stages in the words that NumPy, CuPy and torch share."""

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
        """Return the former stage's array as this library's own, without a copy."""
        return self.wp.from_dlpack(array)

    def luminance(self, rgb: Any) -> Any:
        out = self.wp.empty(rgb.shape[:2], dtype=float, device=self.device)
        return self._launch(self._kernels.luminance, out.shape, [rgb, WEIGHTS, GAMMA], out)

    def stretch(self, x: Any) -> Any:
        out = self.wp.empty(x.shape, dtype=float, device=self.device)
        return self._launch(self._kernels.stretch, x.shape, [x, STRETCH], out)

    def sharpen(self, x: Any) -> Any:
        out = self.wp.empty(x.shape, dtype=float, device=self.device)
        return self._launch(self._kernels.sharpen, x.shape, [x, SHARPEN], out)

    def mean(self, x: Any) -> Any:
        out = self.wp.zeros(1, dtype=float, device=self.device)
        return self._launch(self._kernels.mean, x.shape[0], [x], out)

    def _launch(self, kernel: Any, dim: Any, inputs: list[Any], out: Any) -> Any:
        self.wp.launch(kernel, dim=dim, inputs=inputs, outputs=[out], device=self.device)
        return out

    def fetch(self, array: Any) -> NDArray[Any]:
        return array.numpy()  # type: ignore[no-any-return]  # Warp is optional, so Any


def load(name: str, device: str) -> _NumPy | _Warp:
    """Import a library that computes on this device; any exception says why there is none."""
    library: Any = importlib.import_module(name)
    on_gpu = device != "cpu"
    if name == "torch":
        if on_gpu and not library.cuda.is_available():
            raise UnusableError(f"{library.__version__} finds no GPU")
        return _Torch(library, device)
    if name == "cupy":
        if not on_gpu:
            raise UnusableError("needs a GPU")
        if not library.cuda.is_available():
            raise UnusableError(f"{library.__version__} finds no GPU")
        return _CuPy(library, device)
    if name == "warp":
        library.init()
        if on_gpu and not library.is_cuda_available():
            raise UnusableError(f"{library.__version__} finds no GPU")
        return _Warp(library, device, importlib.import_module("streamkit._tools.demo.warp_kernels"))
    return _NumPy(library, device)
