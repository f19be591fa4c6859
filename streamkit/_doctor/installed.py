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

from streamkit._base.messages import DISTRIBUTION
from streamkit._doctor.report import Driver, Library, Standing
from streamkit._queues import registry
from streamkit.protocols import Finding

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping
    from importlib.metadata import Distribution

    from streamkit._doctor.doctor import Progress
    from streamkit._doctor.report import Driver

_CUPY = "CUPY_CUDA_PER_THREAD_DEFAULT_STREAM"
_CUDA_PYTHON = "CUDA_PYTHON_CUDA_PER_THREAD_DEFAULT_STREAM"
_NUMBA = "NUMBA_CUDA_PER_THREAD_DEFAULT_STREAM"  # ignored: numba-cuda goes through CUDA Python

LEGACY, PER_THREAD = "legacy", "per-thread"
SWITCHES = (_CUPY, _CUDA_PYTHON, _NUMBA)
_READERS = {
    "torch": None,
    "cupy": _CUPY,
    "warp": None,
    "numba": _CUDA_PYTHON,
    "cuda.core": _CUDA_PYTHON,
    "cuda.bindings": _CUDA_PYTHON,
}


def default_streams(environment: Mapping[str, str]) -> dict[str, str]:
    """Return, by library, which default stream its handle 0 is."""
    return {
        library: PER_THREAD if switch and _is_on(environment.get(switch, "0")) else LEGACY
        for library, switch in _READERS.items()
    }


def _is_on(value: str) -> bool:
    return bool(_number(value))


def _number(value: str) -> int | None:
    try:
        return int(value)
    except ValueError:
        return None


def check_switches(here: Collection[str], environment: Mapping[str, str]) -> Iterator[Finding]:
    """Yield what is wrong with the switches, for the libraries that are here."""
    for switch in (_CUPY, _CUDA_PYTHON):
        readers = [name for name in here if _READERS.get(name) == switch]
        value = environment.get(switch, "0")
        if readers and _number(value) is None:
            yield Finding(
                "per-thread-switches",
                f"{switch}={value!r} is no number, and {', '.join(readers)} fail(s) on it",
                f"Unset {switch} before Python starts.",
            )
    ignored = _is_on(environment.get(_NUMBA, "0")) and not _is_on(
        environment.get(_CUDA_PYTHON, "0")
    )
    if "numba" in here and ignored:
        yield Finding(
            "per-thread-switches",
            f"{_NUMBA} is set and has no effect: numba-cuda follows {_CUDA_PYTHON}",
            f"Unset {_NUMBA}.",
            "numba",
        )
    kinds = {name: kind for name, kind in default_streams(environment).items() if name in here}
    if len(set(kinds.values())) > 1:
        moved = [name for name, kind in kinds.items() if kind == PER_THREAD]
        others = [name for name, kind in kinds.items() if kind == LEGACY]
        switches = sorted({str(_READERS[name]) for name in moved})
        yield Finding(
            "per-thread-switches",
            f"handle 0 is the per-thread default stream for {', '.join(moved)} "
            f"({' and '.join(switches)}), and the legacy one for {', '.join(others)}",
            f"Unset {' and '.join(switches)} before Python starts, and give each thread a "
            "streamkit.new_stream() instead.",
        )


CPU = "cpu"
_OLDEST, _NEWEST = 12, 13
_EXTRAS = {
    "torch": "torch",
    "cupy": "cupy{}",
    "warp": "warp",
    "numba": "numba",
    "cuda.core": "cuda{}",
    "cuda.bindings": "cuda{}",
}


class Package(NamedTuple):
    """One installed distribution."""

    name: str
    version: str
    cuda: str | None
    """The CUDA it is built for; "cpu" if for none, None if it does not say."""
    module: str


def install_line(library: str, major: int) -> str:
    """Return the line that installs a library for that CUDA major."""
    return f"pip install '{DISTRIBUTION}[{_EXTRAS[library].format(major)}]'"


def replacement(package: Package | None, library: str, major: int) -> str:
    """Return how to have a build for that CUDA, and not the one that is here, if one is."""
    if library not in _EXTRAS:  # a plugin's
        return f"install a build of {library} for CUDA {major}"
    first = f"pip uninstall {package.name}, then " if package is not None else ""
    last = f" from an index of CUDA {major} builds" if library == "torch" else ""
    return f"{first}{install_line(library, major)}{last}"


def newest(driver: Driver | None) -> int:
    """Return the newest major of CUDA for which there are builds, and which the driver serves."""
    return _NEWEST if driver is None else min(_major(driver.cuda), _NEWEST)


def _major(cuda: str) -> int:
    return int(cuda.partition(".")[0])


def check_builds(packages: Mapping[str, Package], driver: Driver | None) -> Iterator[Finding]:
    """Yield what is built for no CUDA, for one that the driver does not serve, or for several."""
    torch = packages.get("torch")
    if torch is not None and torch.cuda == CPU:
        yield Finding(
            "torch-cpu",
            f"torch {torch.version} is built without CUDA, and has no streams to share",
            f"{replacement(torch, 'torch', newest(driver))}.",
            "torch",
        )
    majors = {
        name: _major(package.cuda)
        for name, package in packages.items()
        if package.cuda is not None and package.cuda != CPU
    }
    if driver is not None:
        served = _major(driver.cuda)
        instead = f", or install a build for CUDA {served}" if served >= _OLDEST else ""
        for name, major in majors.items():
            if major > served:
                yield Finding(
                    "driver-older-than-runtime",
                    f"{name} {packages[name].version} is built for CUDA {packages[name].cuda}, and "
                    f"the driver serves CUDA {driver.cuda}",
                    f"Update the NVIDIA driver{instead}.",
                    name,
                )
    if len(set(majors.values())) > 1:
        yield _several(packages, majors, newest(driver))


def _several(packages: Mapping[str, Package], majors: Mapping[str, int], most: int) -> Finding:
    # what the driver serves goes first, then what is the largest to install again
    choice = {name: major for name, major in majors.items() if major <= most} or majors
    wanted = choice.get("torch", choice.get("cuda.bindings", max(choice.values())))
    others = [name for name, major in majors.items() if major != wanted]
    built = ", ".join(f"{name} for {packages[name].cuda}" for name in majors)
    lines = "; ".join(replacement(packages[name], name, wanted) for name in others)
    return Finding(
        "cuda-majors",
        f"the libraries are built for different majors of CUDA ({built}), and each needs its own "
        "copies of CUDA's libraries",
        f"Install builds of one major: {lines}.",
    )


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
    for entry in importlib.metadata.entry_points(group=registry.ENTRY_POINTS):
        if entry.dist is not None:
            packages[entry.name] = Package(entry.dist.name, entry.dist.version, None, entry.name)
    return Installed(
        packages,
        wheels,
        _OTHERS_NAME in found,
        {name: os.environ[name] for name in _READ if name in os.environ},
        frozenset(registry.loaded()),
    )


def asked(installed: Installed) -> Installed:
    """Return it with the CUDA that CuPy is built for, if it is loaded and its metadata do not say.

    From source or from conda it is called ``cupy``, whatever it is built for.
    """
    package = installed.packages.get("cupy")
    if package is not None and package.cuda is None and "cupy" in registry.loaded():
        with suppress(Exception):  # told where it is asked for its stream
            adapter: Any = registry.adapter("cupy")
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
    loaded = set(registry.loaded()) if all_loaded else installed.loaded
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
