"""The installed libraries, and the faults of the installation; nothing is imported."""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import os
import sys
import warnings
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from streamkit._queues import registry
from streamkit._support.living_processes import SETTING
from streamkit._support.messages import DISTRIBUTION
from streamkit.diagnostics.doctor import toolkit
from streamkit.diagnostics.doctor.report import LibraryReport
from streamkit.diagnostics.recording import recorder
from streamkit.protocols import Finding, installed
from streamkit.protocols.adapters import traits_of
from streamkit.protocols.installed import CPU, Package, major_of
from streamkit.protocols.libraries import NEWEST, OLDEST
from streamkit.protocols.queues import PER_THREAD

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from streamkit.diagnostics.doctor.report import Driver, Standing
    from streamkit.protocols.libraries import Library

    Progress = Callable[[str, int, int], object]

_OTHERS_NAME = "streamkit"  # another project, whose package has our name too
_ROWS = {row.name: row for row in registry.LIBRARIES}
VARIABLES = (
    *dict.fromkeys(row.switch for row in registry.LIBRARIES if row.switch),
    "CUDA_VISIBLE_DEVICES",
    "CUDA_LAUNCH_BLOCKING",
    SETTING,
)
"""The variables that CUDA, a library or StreamKit reads."""


@dataclass(frozen=True)
class Installed:
    """The installed libraries, by their names, and the variables that are set."""

    packages: dict[str, Package]
    variants: dict[str, list[str]]
    """The distributions of each library, of which only one may be installed."""
    names_clash: bool
    """Whether the other project called ``streamkit`` is installed."""
    environment: dict[str, str]
    """The variables that CUDA or a library reads, as far as they are set."""
    loaded: frozenset[str]
    """The libraries that were loaded before anything was asked."""
    handles_0: dict[str, int] = field(default_factory=dict)
    """The default stream that handle 0 means to a loaded library that tells."""

    @classmethod
    def read(cls) -> Installed:
        """Read the metadata of all distributions, and the environment."""
        found = installed.distributions()
        packages = installed.packages(found)
        variants = {row.name: installed.variants(row, found) for row in registry.LIBRARIES}
        for entry in importlib.metadata.entry_points(group=registry.ENTRY_POINTS):
            if (dist := entry.dist) is not None:
                packages[entry.name] = Package(dist.name, dist.version, None, entry.name)
        return cls(
            packages,
            variants,
            _OTHERS_NAME in found,
            {name: os.environ[name] for name in VARIABLES if name in os.environ},
            frozenset(registry.loaded()),
        )

    def load(self, driver: Driver | None, progress: Progress) -> Iterator[Finding]:
        """Import every installed library; each that cannot be imported is a finding."""
        for done, (name, package) in enumerate(self.packages.items()):
            progress(f"import {name}", done, len(self.packages))
            try:
                with warnings.catch_warnings():  # libraries' own, not ours to mend
                    warnings.simplefilter("ignore")
                    importlib.import_module(package.module)
            except (Exception, SystemExit) as error:  # noqa: BLE001 - others can be right
                yield Finding(
                    "cannot-be-imported",
                    f"{name} {package.version} is installed and cannot be imported: "
                    f"{type(error).__name__}: {error}",
                    f"Install it again: {self.replacement(name, driver)}",
                    name,
                )

    def ask_loaded(self) -> None:
        """Note what loaded libraries tell: their CUDA, if the metadata do not, and handle 0."""
        for name in registry.loaded():
            with suppress(Exception):  # the check of this process tells of it
                package, traits = self.packages.get(name), traits_of(registry.adapter(name))
                if traits.handle_0 is not None:
                    self.handles_0[name] = traits.handle_0
                if package is not None and package.cuda is None:
                    self.packages[name] = package._replace(cuda=traits.built_for)

    @property
    def missing(self) -> list[str]:
        """The libraries that StreamKit knows and that are neither installed nor loaded."""
        return [name for name in _ROWS if name not in self.packages and name not in self.loaded]

    def libraries(
        self, standing: Mapping[str, Standing], *, all_loaded: bool
    ) -> list[LibraryReport]:
        """Return each library that is installed or loaded, with its current stream."""
        loaded = set(registry.loaded()) if all_loaded else self.loaded
        rows: list[LibraryReport] = []
        for name in dict.fromkeys([*_ROWS, *self.packages, *loaded]):
            package = self.packages.get(name)
            per_thread = name in _ROWS and self._is_per_thread(_ROWS[name])
            if package is not None or name in loaded:
                rows.append(
                    LibraryReport(
                        name,
                        version=package and package.version,
                        cuda=package and package.cuda,
                        loaded=name in loaded,
                        handle_0="per-thread" if per_thread else "legacy",
                        current=standing.get(name),
                    )
                )
        return rows

    def _is_per_thread(self, library: Library) -> bool:
        """Whether handle 0 is the per-thread default stream for the library."""
        switch = library.switch
        if library.name in self.handles_0:  # the variable can have changed since the import
            return self.handles_0[library.name] == PER_THREAD
        value = self.environment.get(switch or "", "")
        for row in registry.LIBRARIES:
            if row.switch == switch and row.numeric_switch and row.name in self.packages:
                version = self.packages[row.name].numbers
                if version < row.numeric_switch.get(version[0], ()):
                    return bool(value)  # such a version takes any text for yes, "0" too
        with suppress(ValueError):
            return bool(int(value))
        return False

    def replacement(self, library: str, driver: Driver | None) -> str:
        """Return how to get a build that fits the other libraries and the driver."""
        package = self.packages.get(library)
        others = {name: found for name, found in self.packages.items() if name != library}
        major = installed.cuda_in_use(others, 0 if driver is None else major_of(driver.cuda))
        if library in _ROWS:
            return installed.replacement(_ROWS[library], package, major or NEWEST)
        return f"a build of {library} for CUDA {major or NEWEST}"

    # -- what is wrong with it ----------------------------------------------------------------

    def check(self, driver: Driver | None) -> Iterator[Finding]:
        if self.names_clash:
            yield Finding(
                "other-streamkit",
                f"the distribution {_OTHERS_NAME!r} of another project is installed: both have a "
                "package of this name, and one overwrites the other",
                f"pip uninstall {_OTHERS_NAME}, then install {DISTRIBUTION} again.",
            )
        yield from self._stand_ins()
        for library, names in self.variants.items():
            if len(names) > 1:
                one = self.replacement(library, driver).partition(", then ")[2]
                yield Finding(
                    f"two-{library}s",
                    f"{' and '.join(names)} are installed together, in one folder",
                    f"pip uninstall {' '.join(names)}, then {one}",
                    library,
                )
        if driver is not None and driver.devices and "cuda.core" in self.missing:
            yield Finding(
                "no-cuda-python",
                "cuda.core, through which streams wait for each other, is not installed",
                f"Install it: {self.replacement('cuda.core', driver)}",
                "cuda.core",
            )
        yield from self._versions(driver)
        yield from self._builds(driver)
        yield from self._switches()
        yield from self._toolkit(driver)
        if self.environment.get("CUDA_LAUNCH_BLOCKING", "0") not in ("", "0"):
            yield Finding(
                "launch-blocking",
                "CUDA_LAUNCH_BLOCKING is set: each launch waits for its kernel, which hides every "
                "missing wait between streams",
                "Unset it, unless you look for the kernel that fails.",
            )

    def _stand_ins(self) -> Iterator[Finding]:
        """Yield modules that have a library's name without being it, imported or to be found."""
        for row in registry.LIBRARIES:
            what = row.stand_in
            if what is None and row.root not in sys.modules:
                spec = None
                with suppress(ImportError):  # a program's own finder may forbid the import
                    spec = importlib.util.find_spec(row.root)
                if spec is not None and spec.submodule_search_locations is None:  # no package
                    what = f"'import {row.root}' finds {spec.origin}, which is not {row.label}"
            if what is not None:
                yield Finding("stand-in", what, row.stand_in_remedy, row.name)

    def _versions(self, driver: Driver | None) -> Iterator[Finding]:
        """Yield libraries older than StreamKit can serve, or newer than it was tested with."""
        for name, package in self.packages.items():
            row = _ROWS.get(name)
            if row is not None and package.numbers < row.oldest:
                wanted = ".".join(map(str, row.oldest))
                yield Finding(
                    "old-library",
                    f"{name} {package.version} is older than StreamKit can serve ({wanted})",
                    self.replacement(name, driver),
                    name,
                )
            if row is not None and package.numbers[: len(row.newest)] > row.newest:
                tested = ".".join(map(str, row.newest))
                yield Finding(
                    "untested-library",
                    f"{name} {package.version} is beyond what this StreamKit was tested with (up "
                    f"to {tested}); it is used all the same",
                    f"Update {DISTRIBUTION}. If something goes wrong: pip install "
                    f'"{package.name}=={tested}.*"',
                    name,
                )

    def _builds(self, driver: Driver | None) -> Iterator[Finding]:
        """Yield builds for no CUDA, for one that the driver does not serve, or for several."""
        majors: dict[str, int] = {}
        served = 0 if driver is None else major_of(driver.cuda)
        for name, package in self.packages.items():
            if len(self.variants.get(name, ())) > 1:
                continue  # one of the two has to go, which is a finding already
            if package.cuda == CPU:
                if driver is None or not driver.devices:
                    continue  # there is no device for a build with CUDA
                yield Finding(
                    f"{name}-cpu",
                    f"{name} {package.version} is built without CUDA, and has no streams to share",
                    self.replacement(name, driver),
                    name,
                )
            elif package.cuda is not None:
                row, major = _ROWS[name], major_of(package.cuda)
                if not row.carries_cuda:
                    majors[name] = major
                if driver is not None and major > served:
                    instead = f", or {installed.replacement(row, package, served)}"
                    yield Finding(
                        "driver-older-than-runtime",
                        f"{name} {package.version} is built for CUDA {package.cuda}, and "
                        f"the driver serves CUDA {driver.cuda}",
                        "Update the NVIDIA driver" + (instead if served >= OLDEST else ""),
                        name,
                    )
        if len(set(majors.values())) > 1:
            wanted = installed.cuda_in_use(self.packages, served) or NEWEST
            lines = "; ".join(
                installed.replacement(_ROWS[name], self.packages[name], wanted)
                for name, major in majors.items()
                if major != wanted
            )
            built = ", ".join(f"{name} for {self.packages[name].cuda}" for name in majors)
            yield Finding(
                "cuda-majors",
                f"the libraries are built for different majors of CUDA ({built}), and each needs "
                "its own copies of CUDA's libraries",
                f"Install builds of one major: {lines}",
            )

    def _toolkit(self, driver: Driver | None) -> Iterator[Finding]:
        """Yield the parts of the CUDA toolkit that are missing, where there is a GPU to use."""
        if driver is None or not driver.devices:
            return
        if not toolkit.has("cupti", NEWEST, OLDEST):
            yield Finding(
                "no-cupti",
                "libcupti, through which audit(), races() and assert_follows() see what runs, "
                "cannot be found; all else works without it",
                f"Install it: {toolkit.install_line('cupti', major_of(driver.cuda))}",
            )
        try:
            recorder.load()
        except recorder.NoCallbacksError as error:
            if sys.platform == "linux":  # elsewhere there is none
                yield Finding(
                    "no-recorder",
                    "the recorder in C, through which audit(), races() and assert_follows() see "
                    "what runs, cannot be loaded; all else works without it",
                    f"Install {DISTRIBUTION} again: {error}.",
                )
        for name, package in self.packages.items():
            needs = _ROWS[name].compiles_with if name in _ROWS else None
            if needs is None or package.cuda in (None, CPU):
                continue
            major = major_of(str(package.cuda))
            if not toolkit.has(needs, major):
                yield Finding(
                    f"no-{needs}",
                    f"lib{needs}.so.{major}, with which {name} compiles its kernels, cannot be "
                    "found",
                    f"Install it: {toolkit.install_line(needs, major)}",
                    name,
                )
            elif not toolkit.has_headers():
                yield Finding(
                    "no-cuda-headers",
                    f"CUDA's headers, which {name} includes in its kernels, cannot be found",
                    f"Install them: {toolkit.install_line('runtime', major)}",
                    name,
                )

    def _switches(self) -> Iterator[Finding]:
        """Yield switches that only some of the installed libraries read."""
        rows = [row for row in registry.LIBRARIES if row.name in self.packages]
        moved = [row for row in rows if self._is_per_thread(row)]
        others = [row.name for row in rows if row not in moved]
        if moved and others:
            switches = " and ".join(sorted({str(row.switch) for row in moved}))
            yield Finding(
                "per-thread-switches",
                "handle 0 is the per-thread default stream for "
                f"{', '.join(row.name for row in moved)} ({switches}), and the legacy one for "
                f"{', '.join(others)}",
                f"Leave {switches} unset, also in the program, and give each thread a "
                "streamkit.new_stream() instead.",
            )
