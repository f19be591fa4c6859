"""Builds the recorder in C, which ``audit`` and ``races`` need for CUDA streams.

What is installed from a clone has it if there is a C compiler. Elsewhere a wheel is pure, unless
STREAMKIT_NATIVE=1 asks for one of this platform: then the build fails without a compiler.
"""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
import tempfile
import zlib
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

FOLDER = "streamkit/diagnostics/recording"
FLAGS = (
    "-std=gnu11", "-O2", "-fPIC", "-shared", "-fvisibility=hidden", "-fno-strict-aliasing",
    "-Wl,-Bsymbolic", "-pthread",
)  # fmt: skip
MANYLINUX = 17  # the minor version of the oldest glibc that the platform's name promises


class Recorder(BuildHookInterface):
    """Compiles ``recorder.c`` for a wheel or in place."""

    _folder: tempfile.TemporaryDirectory[str] | None = None  # until the wheel is packed

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Build it where it is wanted; hatchling calls this before it packs a wheel."""
        is_editable, wish = version == "editable", os.environ.get("STREAMKIT_NATIVE")
        is_clone = is_editable or Path(self.root, ".git").exists()
        if sys.platform != "linux" or wish == "0" or not (wish or is_clone):
            return
        self._folder = tempfile.TemporaryDirectory()
        place = Path(self.root, FOLDER) if is_editable else Path(self._folder.name)
        library = place / "librecorder.so"
        try:
            self._compile(library)
        except (OSError, subprocess.CalledProcessError) as error:
            if wish:
                raise
            self.app.display_warning(f"audit and races will see no CUDA stream: {error}")
            return
        if not is_editable:
            build_data["force_include"][str(library)] = f"{FOLDER}/librecorder.so"
            build_data["pure_python"] = False
            build_data["tag"] = f"py3-none-{tag(library)}"

    def finalize(self, _version: str, _build_data: dict[str, Any], _artifact: str) -> None:
        """Remove what the wheel has now."""
        if self._folder is not None:
            self._folder.cleanup()

    def _compile(self, library: Path) -> None:
        source = Path(self.root, FOLDER, "recorder.c")
        number = zlib.crc32(source.read_bytes())
        made = library.with_suffix(f".{os.getpid()}")  # another process may use the older one
        compiler = os.environ.get("CC", "cc")
        subprocess.run(  # noqa: S603 - the user's own compiler
            [compiler, *FLAGS, f"-DSOURCE={number}u", str(source), "-o", str(made)], check=True
        )
        made.replace(library)


def tag(library: Path) -> str:
    """Return the platform of a library: any Linux with a glibc of 2014, if it needs none newer."""
    needed = re.findall(rb"GLIBC_2\.(\d+)", library.read_bytes())
    machine = platform.machine()
    if max(map(int, needed), default=0) <= MANYLINUX:
        return f"manylinux_2_{MANYLINUX}_{machine}"
    return f"linux_{machine}"
