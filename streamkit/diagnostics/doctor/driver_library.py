"""Why the driver's library cannot be used, on a machine where it should be."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from streamkit._cuda import loader
from streamkit.protocols import Finding

if TYPE_CHECKING:
    from collections.abc import Iterator

MAPS = Path("/proc/self/maps")
KERNEL_MODULE = Path("/proc/driver/nvidia/version")
WSL = Path("/usr/lib/wsl/lib")


def loaded_from() -> str:
    """Return the file that is loaded as the driver's library, or its name if none tells."""
    try:
        lines = MAPS.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    paths = [line[line.index("/") :] for line in lines if "/" in line]
    return next((path for path in paths if "/libcuda.so" in path), loader.LIBRARY)


def look() -> Iterator[Finding]:
    """Yield what keeps the library from being used; nothing where there is no sign of a GPU."""
    why = loader.why_not_loaded()
    if not why:
        yield Finding(
            "driver-fails",
            f"{loaded_from()} is loaded as the CUDA driver, and does not answer like one",
            "Take its folder off LD_LIBRARY_PATH, or remove the file, so that the library of "
            "NVIDIA's driver is found. A container that is started with --gpus all has it.",
        )
    elif sys.platform != "linux":
        return  # it has no other places for the library
    elif "/" in why.partition(":")[0]:  # it found the file, which it otherwise only names
        yield Finding(
            "driver-fails",
            f"the driver's library is there and cannot be loaded: {why}",
            "Remove that file unless NVIDIA's driver installed it: some images have an empty one. "
            "Start a container with --gpus all, which brings the driver's library.",
        )
    elif WSL.is_dir():
        yield Finding(
            "wsl-library",
            f"this is Linux inside Windows (WSL), and {loader.LIBRARY} cannot be found although "
            f"{WSL} is there, where Windows puts it",
            f"Let programs look there: export LD_LIBRARY_PATH={WSL}:$LD_LIBRARY_PATH. Install no "
            "NVIDIA driver inside WSL, because that of Windows serves both.",
        )
    elif KERNEL_MODULE.exists():
        yield Finding(
            "no-driver",
            f"NVIDIA's kernel module is loaded, and its library {loader.LIBRARY} cannot be found",
            "Start a container with --gpus all. Outside of one, install the same version of the "
            "driver's libraries, or name their folder in LD_LIBRARY_PATH.",
        )
