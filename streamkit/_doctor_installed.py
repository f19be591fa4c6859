"""The doctor's look at what is installed: read from metadata, without importing anything."""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import re
import warnings
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from streamkit import _registry
from streamkit._doctor_builds import CPU, Package, check_builds, install_line, newest
from streamkit._doctor_report import Driver, Library, Standing
from streamkit._doctor_switches import LEGACY, SWITCHES, check_switches, default_streams
from streamkit._refusals import DISTRIBUTION
from streamkit.protocols import Finding

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from importlib.metadata import Distribution

    from streamkit._doctor import Progress


class _Known(NamedTuple):
    distribution: str
    module: str
    oldest: tuple[int, ...]


KNOWN = {
    "torch": _Known("torch", "torch", (2, 10)),
    "cupy": _Known("cupy", "cupy", (14, 0)),
    "warp": _Known("warp-lang", "warp", (1, 14)),
    "numba": _Known("numba-cuda", "numba.cuda", ()),
    "cuda.core": _Known("cuda-core", "cuda.core", (1, 0)),
    "cuda.bindings": _Known("cuda-bindings", "cuda.bindings", (12, 9)),
}
_OTHERS_NAME = "streamkit"  # another project, whose package has our name too
_READ = (*SWITCHES, "CUDA_VISIBLE_DEVICES", "CUDA_LAUNCH_BLOCKING")


@dataclass(frozen=True)
class Installed:
    """What is installed here, by library; several of one library's distributions exclude others."""

    packages: dict[str, Package]
    wheels: list[str]
    """CuPy's distributions."""
    names_clash: bool
    """Whether the other project called ``streamkit`` is installed."""
    environment: dict[str, str]
    loaded: frozenset[str]
    """The libraries that were loaded before anything was asked."""


def look() -> Installed:
    """Read what is installed, and the variables that are set."""
    found = _distributions()
    wheels = sorted(name for name in found if re.fullmatch(r"cupy(-(cuda|rocm).*)?", name))
    packages: dict[str, Package] = {}
    for library, known in KNOWN.items():
        names = wheels if library == "cupy" else [known.distribution]
        for name in names:
            if name in found and library not in packages:
                cuda = _cuda_of(library, name, found[name])
                packages[library] = Package(name, found[name].version, cuda, known.module)
    for entry in importlib.metadata.entry_points(group=_registry.ENTRY_POINTS):
        if entry.dist is not None:
            packages[entry.name] = Package(entry.dist.name, entry.dist.version, None, entry.name)
    return Installed(
        packages,
        wheels,
        _OTHERS_NAME in found,
        {name: os.environ[name] for name in _READ if name in os.environ},
        frozenset(_registry.loaded()),
    )


def asked(installed: Installed) -> Installed:
    """Return it with the CUDA that CuPy is built for, if it is loaded and its metadata do not say.

    From source or from conda it is called ``cupy``, whatever it is built for.
    """
    package = installed.packages.get("cupy")
    if package is not None and package.cuda is None and "cupy" in _registry.loaded():
        with suppress(Exception):  # told where it is asked for its stream
            adapter: Any = _registry.adapter("cupy")
            package = package._replace(cuda=adapter.built_for())
            return replace(installed, packages={**installed.packages, "cupy": package})
    return installed


def _distributions() -> dict[str, Distribution]:
    """Return what is installed, by normalised name; of two on the path the first, as imports."""
    found: dict[str, Distribution] = {}
    for distribution in importlib.metadata.distributions():
        try:
            name, version = distribution.name, distribution.version
        except Exception:  # noqa: BLE001, S112 - a folder that pip left half removed names nothing
            continue
        if isinstance(name, str) and isinstance(version, str):
            found.setdefault(re.sub(r"[-_.]+", "-", name).lower(), distribution)
    return found


def _cuda_of(library: str, name: str, distribution: Distribution) -> str | None:
    """Return the CUDA that a distribution is built for, where its name or files say so."""
    if library == "cuda.bindings":
        return ".".join(distribution.version.split(".")[:2])
    if library == "cupy":
        suffix = re.match(r"cupy-cuda(\d\d)", name)
        return suffix and suffix[1]
    if library == "torch":
        try:
            path = Path(str(distribution.locate_file("torch/version.py")))
            text = path.read_text(encoding="utf-8", errors="replace")
        except OSError:
            return CPU if distribution.version.endswith("+cpu") else None
        built = re.search(r"^cuda\b.*?=\s*(?:None|['\"]([\d.]+)['\"])", text, re.MULTILINE)
        return built and (built[1] or CPU)
    return None


def missing(installed: Installed) -> list[str]:
    """Return the libraries that StreamKit knows and that are neither installed nor loaded."""
    here = {*installed.packages, *installed.loaded}
    return [name for name in KNOWN if name not in here]


def libraries(
    installed: Installed, standing: Mapping[str, Standing], *, all_loaded: bool
) -> list[Library]:
    """Return each library that is installed or loaded, with where it stands."""
    loaded = set(_registry.loaded()) if all_loaded else installed.loaded
    defaults = default_streams(installed.environment)
    rows: list[Library] = []
    for name in dict.fromkeys([*KNOWN, *installed.packages, *loaded]):
        package = installed.packages.get(name)
        if package is not None or name in loaded:
            rows.append(
                Library(
                    name,
                    version=package and package.version,
                    cuda=package and package.cuda,
                    loaded=name in loaded,
                    handle_0=defaults.get(name, LEGACY),
                    current=standing.get(name),
                )
            )
    return rows


def load(installed: Installed, progress: Progress) -> Iterator[Finding]:
    """Import every installed library; one that cannot be is a finding."""
    for done, (name, package) in enumerate(installed.packages.items()):
        progress(f"import {name}", done, len(installed.packages))
        try:
            with warnings.catch_warnings():  # of the library's own modules: not ours to mend
                warnings.simplefilter("ignore")
                importlib.import_module(package.module)
        except Exception as error:  # noqa: BLE001 - a broken library must not stop the others
            yield Finding(
                "cannot-be-imported",
                f"{name} {package.version} is installed and cannot be imported: "
                f"{type(error).__name__}: {error}",
                f"Install it again: pip install --force-reinstall "
                f"'{package.name}=={package.version}'",
                name,
            )


# -- what is wrong with it --------------------------------------------------------------------


def check(installed: Installed, driver: Driver | None) -> Iterator[Finding]:
    """Yield what is wrong with what is installed, on this driver."""
    if installed.names_clash:
        yield Finding(
            "other-streamkit",
            f"the distribution {_OTHERS_NAME!r} of another project is installed: both have a "
            "package of this name, and one overwrites the other",
            f"pip uninstall {_OTHERS_NAME}, then install {DISTRIBUTION} again.",
        )
    if len(installed.wheels) > 1:
        yield Finding(
            "two-cupys",
            f"{' and '.join(installed.wheels)} are installed together, in one folder",
            f"pip uninstall {' '.join(installed.wheels)}, then install the one for your CUDA: "
            f"{install_line('cupy', 13)} (cupy12 for CUDA 12)",
            "cupy",
        )
    here = {*installed.packages, *installed.loaded}
    if driver is not None and driver.devices and "cuda.core" not in here:
        yield Finding(
            "no-cuda-python",
            "cuda.core, through which streams wait for each other, is not installed",
            f"Install it: {install_line('cuda.core', newest(driver))}",
            "cuda.core",
        )
    yield from _too_old(installed)
    yield from check_builds(installed.packages, driver)
    yield from check_switches(installed.packages, installed.environment)
    if installed.environment.get("CUDA_LAUNCH_BLOCKING", "0") not in ("", "0"):
        yield Finding(
            "launch-blocking",
            "CUDA_LAUNCH_BLOCKING is set: each launch waits for its kernel, which hides every "
            "missing wait between streams",
            "Unset it, unless you look for the kernel that fails.",
        )


def _too_old(installed: Installed) -> Iterator[Finding]:
    for name, package in installed.packages.items():
        oldest = KNOWN[name].oldest if name in KNOWN else ()
        number = re.match(r"\d+(\.\d+)*", package.version)
        if number and tuple(map(int, number[0].split("."))) < oldest:
            wanted = ".".join(map(str, oldest))
            yield Finding(
                "old-library",
                f"{name} {package.version} is older than StreamKit can serve ({wanted})",
                f"pip install --upgrade '{package.name}>={wanted}'",
                name,
            )
