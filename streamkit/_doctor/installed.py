"""What is installed here, and what is wrong with it; nothing is imported to know it."""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import re
import warnings
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol, runtime_checkable

from streamkit._base.messages import DISTRIBUTION
from streamkit._doctor.report import Library
from streamkit._queues import registry
from streamkit.protocols import Finding

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from importlib.metadata import Distribution

    from streamkit._base.library import Library as Row
    from streamkit._doctor.report import Driver, Standing

    Progress = Callable[[str, int, int], object]

CPU = "cpu"
NEWEST = 13
"""The newest major version of CUDA for which there are builds."""

_OLDEST = 12
_OTHERS_NAME = "streamkit"  # another project, whose package has our name too
_ROWS = {row.name: row for row in registry.LIBRARIES}
VARIABLES = (
    *dict.fromkeys(row.switch for row in registry.LIBRARIES if row.switch),
    *(row.ignored_switch for row in registry.LIBRARIES if row.ignored_switch),
    "CUDA_VISIBLE_DEVICES",
    "CUDA_LAUNCH_BLOCKING",
)
"""The variables that CUDA or a library reads."""


@runtime_checkable
class TellsCuda(Protocol):
    """Capability: the adapter of a loaded library tells its CUDA where its metadata do not."""

    def built_for(self) -> str | None:
        """Return the CUDA that it is built for."""


class Package(NamedTuple):
    """One installed distribution."""

    name: str
    version: str
    cuda: str | None
    """The CUDA it is built for; "cpu" if for none, None if it does not say."""
    module: str


def replacement(package: Package | None, library: str, major: int) -> str:
    """Return how to have a build for that CUDA, and not the one that is here, if one is."""
    row = _ROWS.get(library)
    if row is None:  # a plugin's
        return f"install a build of {library} for CUDA {major}"
    first = f"pip uninstall {package.name}, then " if package is not None else ""
    last = f" from an index of CUDA {major} builds" if row.index_sets_cuda else ""
    return f"{first}{row.install_line(major)}{last}"


def newest(driver: Driver | None) -> int:
    """Return the newest major of CUDA for which there are builds, and which the driver serves."""
    return NEWEST if driver is None else min(_major(driver.cuda), NEWEST)


@dataclass(frozen=True)
class Installed:
    """What is installed here, by library."""

    packages: dict[str, Package]
    variants: dict[str, list[str]]
    """By library, its distributions, of which only one may be installed."""
    names_clash: bool
    """Whether the other project called ``streamkit`` is installed."""
    environment: dict[str, str]
    """The variables that CUDA or a library reads, as far as they are set."""
    loaded: frozenset[str]
    """The libraries that were loaded before anything was asked."""

    @classmethod
    def read(cls) -> Installed:
        """Return what is installed, and the variables that are set."""
        found = _distributions()
        packages: dict[str, Package] = {}
        variants: dict[str, list[str]] = {}
        for row in registry.LIBRARIES:
            pattern = row.variants or row.distribution
            variants[row.name] = sorted(name for name in found if re.fullmatch(pattern, name))
            for name in variants[row.name][:1]:
                version, cuda = found[name].version, _cuda_of(row, name, found[name])
                packages[row.name] = Package(name, version, cuda, row.module)
        for entry in importlib.metadata.entry_points(group=registry.ENTRY_POINTS):
            if entry.dist is not None:
                packages[entry.name] = Package(
                    entry.dist.name, entry.dist.version, None, entry.name
                )
        return cls(
            packages,
            variants,
            _OTHERS_NAME in found,
            {name: os.environ[name] for name in VARIABLES if name in os.environ},
            frozenset(registry.loaded()),
        )

    def load(self, progress: Progress) -> Iterator[Finding]:
        """Import every installed library; one that cannot be is a finding."""
        for done, (name, package) in enumerate(self.packages.items()):
            progress(f"import {name}", done, len(self.packages))
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

    def ask_loaded(self) -> None:
        """Note the CUDA that loaded libraries tell where their metadata do not."""
        for name, load in registry.loaded().items():
            package = self.packages.get(name)
            if package is not None and package.cuda is None and name in _ROWS and _ROWS[name].cuda:
                with suppress(Exception):  # the look at this process tells that it cannot be asked
                    adapter = load()
                    if isinstance(adapter, TellsCuda):
                        self.packages[name] = package._replace(cuda=adapter.built_for())

    @property
    def missing(self) -> list[str]:
        """The libraries that StreamKit knows and that are neither installed nor loaded."""
        return [name for name in _ROWS if name not in self.packages and name not in self.loaded]

    def libraries(self, standing: Mapping[str, Standing], *, all_loaded: bool) -> list[Library]:
        """Return each library that is installed or loaded, with its current stream."""
        loaded = set(registry.loaded()) if all_loaded else self.loaded
        rows: list[Library] = []
        for name in dict.fromkeys([*_ROWS, *self.packages, *loaded]):
            package = self.packages.get(name)
            per_thread = name in _ROWS and self._is_on(_ROWS[name].switch)
            if package is not None or name in loaded:
                rows.append(
                    Library(
                        name,
                        version=package and package.version,
                        cuda=package and package.cuda,
                        loaded=name in loaded,
                        handle_0="per-thread" if per_thread else "legacy",
                        current=standing.get(name),
                    )
                )
        return rows

    def _is_on(self, switch: str | None) -> bool:
        return switch is not None and bool(_number(self.environment.get(switch, "0")))

    # -- what is wrong with it ----------------------------------------------------------------

    def check(self, driver: Driver | None) -> Iterator[Finding]:
        """Yield what is wrong with what is installed, on this driver."""
        if self.names_clash:
            yield Finding(
                "other-streamkit",
                f"the distribution {_OTHERS_NAME!r} of another project is installed: both have a "
                "package of this name, and one overwrites the other",
                f"pip uninstall {_OTHERS_NAME}, then install {DISTRIBUTION} again.",
            )
        for library, names in self.variants.items():
            if len(names) > 1:
                row = _ROWS[library]
                yield Finding(
                    f"two-{library}s",
                    f"{' and '.join(names)} are installed together, in one folder",
                    f"pip uninstall {' '.join(names)}, then install the one for your CUDA: "
                    f"{row.install_line(NEWEST)} ({row.extra_for(_OLDEST)} for CUDA {_OLDEST})",
                    library,
                )
        if driver is not None and driver.devices and "cuda.core" in self.missing:
            yield Finding(
                "no-cuda-python",
                "cuda.core, through which streams wait for each other, is not installed",
                f"Install it: {_ROWS['cuda.core'].install_line(newest(driver))}",
                "cuda.core",
            )
        yield from self._too_old()
        yield from self._builds(driver)
        yield from self._switches()
        if self.environment.get("CUDA_LAUNCH_BLOCKING", "0") not in ("", "0"):
            yield Finding(
                "launch-blocking",
                "CUDA_LAUNCH_BLOCKING is set: each launch waits for its kernel, which hides every "
                "missing wait between streams",
                "Unset it, unless you look for the kernel that fails.",
            )

    def _too_old(self) -> Iterator[Finding]:
        for name, package in self.packages.items():
            oldest = _ROWS[name].oldest if name in _ROWS else ()
            number = re.match(r"\d+(\.\d+)*", package.version)
            if number and tuple(map(int, number[0].split("."))) < oldest:
                wanted = ".".join(map(str, oldest))
                yield Finding(
                    "old-library",
                    f"{name} {package.version} is older than StreamKit can serve ({wanted})",
                    f"pip install --upgrade '{package.name}>={wanted}'",
                    name,
                )

    def _builds(self, driver: Driver | None) -> Iterator[Finding]:
        """Yield builds for no CUDA, for one that the driver does not serve, or for several."""
        majors: dict[str, int] = {}
        served = 0 if driver is None else _major(driver.cuda)
        instead = f", or install a build for CUDA {served}" if served >= _OLDEST else ""
        for name, package in self.packages.items():
            if package.cuda == CPU:
                yield Finding(
                    f"{name}-cpu",
                    f"{name} {package.version} is built without CUDA, and has no streams to share",
                    f"{replacement(package, name, newest(driver))}.",
                    name,
                )
            elif package.cuda is not None:
                major = majors[name] = _major(package.cuda)
                if driver is not None and major > served:
                    yield Finding(
                        "driver-older-than-runtime",
                        f"{name} {package.version} is built for CUDA {package.cuda}, and "
                        f"the driver serves CUDA {driver.cuda}",
                        f"Update the NVIDIA driver{instead}.",
                        name,
                    )
        if len(set(majors.values())) > 1:
            yield self._several(majors, newest(driver))

    def _several(self, majors: Mapping[str, int], most: int) -> Finding:
        choice = {name: major for name, major in majors.items() if major <= most} or majors
        # What has its own distribution for each CUDA is the smallest to install again.
        kept = [major for name, major in choice.items() if not _ROWS[name].variants]
        wanted = kept[0] if kept else max(choice.values())
        others = [name for name, major in majors.items() if major != wanted]
        built = ", ".join(f"{name} for {self.packages[name].cuda}" for name in majors)
        lines = "; ".join(replacement(self.packages[name], name, wanted) for name in others)
        return Finding(
            "cuda-majors",
            f"the libraries are built for different majors of CUDA ({built}), and each needs its "
            "own copies of CUDA's libraries",
            f"Install builds of one major: {lines}.",
        )

    def _switches(self) -> Iterator[Finding]:
        """Yield what is wrong with the switches, for the libraries that are installed."""
        rows = [row for row in registry.LIBRARIES if row.name in self.packages]
        for switch in dict.fromkeys(row.switch for row in rows if row.switch):
            value = self.environment.get(switch, "0")
            if _number(value) is None:
                readers = ", ".join(row.name for row in rows if row.switch == switch)
                yield Finding(
                    "per-thread-switches",
                    f"{switch}={value!r} is no number, and {readers} fail(s) on it",
                    f"Unset {switch} before Python starts.",
                )
        for row in rows:
            if self._is_on(row.ignored_switch) and not self._is_on(row.switch):
                yield Finding(
                    "per-thread-switches",
                    f"{row.ignored_switch} is set and has no effect: {row.label} follows "
                    f"{row.switch}",
                    f"Unset {row.ignored_switch}.",
                    row.name,
                )
        moved = [row for row in rows if self._is_on(row.switch)]
        others = [row.name for row in rows if row not in moved]
        if moved and others:
            switches = " and ".join(sorted({str(row.switch) for row in moved}))
            yield Finding(
                "per-thread-switches",
                "handle 0 is the per-thread default stream for "
                f"{', '.join(row.name for row in moved)} ({switches}), and the legacy one for "
                f"{', '.join(others)}",
                f"Unset {switches} before Python starts, and give each thread a "
                "streamkit.new_stream() instead.",
            )


def _major(cuda: str) -> int:
    return int(cuda.partition(".")[0])


def _number(value: str) -> int | None:
    try:
        return int(value)
    except ValueError:
        return None


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


def _cuda_of(row: Row, name: str, distribution: Distribution) -> str | None:
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
