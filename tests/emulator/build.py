"""Building the emulated driver from its C sources, plain or with a sanitizer."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zlib
from pathlib import Path

SOURCES = Path(__file__).parent / "source"
SONAME = "libcuda.so.1"
FLAGS = ("-std=gnu11", "-O1", "-g", "-fPIC", "-shared", "-fvisibility=hidden", "-Wall", "-Wextra",
         "-Werror", f"-Wl,-soname,{SONAME}")  # fmt: skip
SANITIZERS = {
    "": (),
    "asan": ("-fsanitize=address,undefined", "-fno-sanitize-recover=all"),
    "tsan": ("-fsanitize=thread",),
}


class CannotBuildError(Exception):
    """There is no compiler or no ``cuda.h``, or a driver that must not be replaced."""


def compiler():
    found = shutil.which(os.environ.get("CC", "cc")) or shutil.which("gcc")
    if found is None:
        raise CannotBuildError("no C compiler (cc or gcc)")
    return found


def header_folder():
    """The folder of a ``cuda.h``: the toolkit that CUDA_HOME names, a wheel's, or an installed one.

    The wheels are nvidia-cuda-runtime and nvidia-cuda-runtime-cu12.
    """
    named = [Path(os.environ[name]) / "include" for name in ("CUDA_HOME",) if name in os.environ]
    wheels = [
        Path(place) / "nvidia" / package / "include"
        for place in sys.path
        for package in ("cu13", "cuda_runtime")
    ]
    toolkits = sorted(Path("/usr/local").glob("cuda*/include"), reverse=True)
    for folder in (*named, *wheels, *toolkits):
        if (folder / "cuda.h").is_file():
            return folder
    raise CannotBuildError("no cuda.h (pip install nvidia-cuda-runtime, or set CUDA_HOME)")


def build(folder, sanitizer=""):
    """Compile the driver into a folder; return the library's path."""
    if Path("/proc/driver/nvidia/version").exists():
        raise CannotBuildError("this machine has a real CUDA driver")
    library = folder / SONAME
    command = [compiler(), *FLAGS, *SANITIZERS[sanitizer], f"-I{header_folder()}",
               *map(str, sorted(SOURCES.glob("*.c"))), "-o", str(library), "-lpthread"]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"the emulated driver does not compile:\n{done.stderr}")
    return library


def recorder(folder, source, sanitizer):
    """Compile the recorder of driver calls with a sanitizer; return the library's path."""
    library = folder / "librecorder.so"
    number = zlib.crc32(source.read_bytes())
    command = [compiler(), *FLAGS[:-1], *SANITIZERS[sanitizer], f"-DSOURCE={number}u",
               "-fno-strict-aliasing", str(source), "-o", str(library), "-lpthread"]  # fmt: skip
    subprocess.run(command, check=True)
    return library


def runtime(sanitizer):
    """The shared library that a sanitized driver needs in the process before anything else."""
    name = f"lib{sanitizer}.so"
    asked = [compiler(), f"-print-file-name={name}"]
    found = Path(subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip())
    if not found.is_absolute():
        raise CannotBuildError(f"the compiler has no {name}")
    return found.resolve()
