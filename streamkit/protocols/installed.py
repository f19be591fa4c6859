"""The installed libraries, the CUDA they are built for, and the line that installs another.

All is read from the packages' metadata, without importing a library.
"""

from __future__ import annotations

import importlib.metadata
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from streamkit.protocols.libraries import LIBRARIES, NEWEST, OLDEST

if TYPE_CHECKING:
    from collections.abc import Mapping
    from importlib.metadata import Distribution

    from streamkit.protocols.libraries import Library

CPU = "cpu"


class Package(NamedTuple):
    """One installed distribution."""

    name: str
    version: str
    cuda: str | None
    """The CUDA that it is built for; "cpu" if for none, None if it does not say."""
    module: str

    @property
    def numbers(self) -> tuple[int, ...]:
        """The version's numbers; a version that begins with none counts as newer than all."""
        number = re.match(r"\d+(\.\d+)*", self.version)
        return tuple(map(int, number[0].split("."))) if number else (sys.maxsize,)


def distributions() -> dict[str, Distribution]:
    """Return the installed distributions by normalised name; of two on the path, the first."""
    found: dict[str, Distribution] = {}
    for distribution in importlib.metadata.distributions():
        try:
            name, version = distribution.name, distribution.version
        except Exception:  # noqa: BLE001, S112 - a folder that pip left half removed has no name
            continue
        if isinstance(name, str) and isinstance(version, str):
            found.setdefault(re.sub(r"[-_.]+", "-", name).lower(), distribution)
    return found


def variants(row: Library, found: Mapping[str, Distribution]) -> list[str]:
    """Return the names of a library's installed distributions."""
    pattern = row.variants or row.distribution
    return sorted(name for name in found if re.fullmatch(pattern, name))


def packages(found: Mapping[str, Distribution]) -> dict[str, Package]:
    """Return the installed distribution of each library with an adapter of ours."""
    return {
        row.name: Package(name, found[name].version, _cuda_of(row, name, found[name]), row.module)
        for row in LIBRARIES
        for name in variants(row, found)[:1]
    }


def _cuda_of(row: Library, name: str, distribution: Distribution) -> str | None:
    """Return the CUDA that a distribution is built for, where its name or files say so."""
    if row.cuda is None:
        return None
    text = f"{name}=={distribution.version}"
    if row.cuda_file is not None:
        try:
            path = Path(str(distribution.locate_file(row.cuda_file)))
            text = path.read_text(encoding="utf-8", errors="replace")
        except OSError:
            return CPU if distribution.version.endswith("+cpu") else None
    built = re.search(row.cuda, text)
    return built and (built[1] or CPU)


# -- the CUDA to install for ------------------------------------------------------------------


def major_of(cuda: str) -> int:
    """Return the major version of a CUDA, as 13 for 13.0."""
    return int(cuda.partition(".")[0])


def cuda_in_use(found: Mapping[str, Package], served: int) -> int | None:
    """Return the major version of CUDA for which to install; None if nothing tells.

    This is the version that installed libraries are built for, as far as a driver of CUDA
    ``served`` serves it; else the newest that the driver serves. ``served`` is 0 without a driver.
    """
    built = [
        (row, major_of(cuda))
        for row in LIBRARIES
        if row.name in found and (cuda := found[row.name].cuda) not in (None, CPU)
    ]
    built = [(row, major) for row, major in built if not served or major <= served]
    if not built:
        return max(min(served, NEWEST), OLDEST) if served else None
    # A library with a distribution for each CUDA is the smallest to install again, and one that
    # brings CUDA's libraries goes with any CUDA: the others decide first.
    return min(built, key=lambda one: (one[0].carries_cuda, one[0].variants is not None))[1]


def replacement(row: Library, package: Package | None, major: int) -> str:
    """Return how to install a build for that CUDA in place of the present one, if there is one."""
    first = f"pip uninstall {package.name}, then " if package is not None else ""
    return first + row.install_line(major)


def install_line(library: str, served: int) -> str:
    """Return how to install a library that fits the installed ones and a driver's CUDA."""
    found = packages(distributions())
    (row,) = [row for row in LIBRARIES if row.name == library]
    package, major = found.get(library), cuda_in_use(found, served)
    if not row.install_line(NEWEST):
        return ""
    newest = replacement(row, package, NEWEST if major is None else major)
    if major is not None or row.install_line(OLDEST) == row.install_line(NEWEST):
        return newest
    return f"{newest} (for CUDA {OLDEST}: {row.install_line(OLDEST)})"
