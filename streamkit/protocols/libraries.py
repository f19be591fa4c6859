"""What StreamKit knows of a library without importing it."""

# Without annotations from __future__: NamedTuple would compile each of them, at every import.
import sys
from types import ModuleType
from typing import NamedTuple

OLDEST, NEWEST = 12, 13
"""The major versions of CUDA for which there are builds."""


class Library(NamedTuple):
    """One library: the ``LIBRARY`` of its folder in ``backends``."""

    name: str
    """What users write in ``to(name)``."""
    label: str
    """Its name where people read it."""
    adapter: str
    """The module of its adapter, below ``streamkit.backends``."""
    module: str
    """The module that is loaded if an object of the library exists."""
    mark: str
    """A name in ``module`` by which the library is told from another module of that name."""
    requirements: dict[int, str]
    """What pip is given to install it, by the major version of CUDA."""
    distribution: str
    """What it is called in the package index."""
    variants: str | None = None
    """A pattern of its distributions' names, if it has several; only one may be installed."""
    oldest: tuple[int, ...] = ()
    """The oldest version that StreamKit can serve."""
    newest: tuple[int, ...] = ()
    """The newest version that StreamKit's tests have run with, on a GPU or without one."""
    cuda: str | None = None
    """A pattern that finds the CUDA of a build in "name==version", or in ``cuda_file``.

    If it matches without its group, the build is for no CUDA.
    """
    cuda_file: str | None = None
    """The installed file in which ``cuda`` looks."""
    on_macos: str | None = None
    """What pip is given on macOS, which has no CUDA; None if the library is nothing without."""
    carries_cuda: bool = False
    """Whether CUDA's libraries are a part of it, so that it goes with builds for any CUDA."""
    compiles_with: str | None = None
    """The library of the CUDA toolkit that it loads to compile kernels, if it brings none."""
    switch: str | None = None
    """The environment variable that makes handle 0 the per-thread default stream for it."""
    numeric_switch: dict[int, tuple[int, ...]] = {}  # noqa: RUF012 - a field that no code changes
    """By major version, the first one that reads the switch as a number, not any text for yes."""
    ignored_switch: str | None = None
    """A variable that looks like such a switch and has no effect."""
    aliases: tuple[str, ...] = ()
    """Other names that users may write."""
    has_current: bool = False
    """Whether it has a current stream."""
    frees_on_legacy: bool = False
    """Whether it frees its memory on the legacy default stream, wherever it is used."""
    kernels: str | None = None
    """A pattern that finds its kernels, and no others, by their demangled names."""
    operation: str | None = None
    """A pattern whose last match in a kernel's name has what the kernel does as its group."""
    colour: str | None = None
    """The colour of its work in pictures."""
    uncompiled: dict[str, object] = {}  # noqa: RUF012 - a field that no code changes
    """The attributes, with their values, of a function that its compiler calls and never reads."""

    @property
    def root(self) -> str:
        """The root package of its types."""
        return self.name.partition(".")[0]

    def is_module(self, found: object) -> bool:
        """Whether it is the library's module, and not a program's own of that name or a stand-in.

        A module whose loading is put off is not it yet, and is not loaded by this.
        """
        return self.mark in _names_of(found)

    @property
    def stand_in(self) -> str | None:
        """What is imported under the library's name and is not the library; None if nothing is."""
        name, found = self.module, sys.modules.get(self.module)
        is_own = self.is_module
        if found is None:  # perhaps what should be its package is none
            name, found, is_own = self.root, sys.modules.get(self.root), _is_package
        if found is None or is_half_imported(found) or is_own(found):
            return None
        what = (
            _names_of(found).get("__file__")
            or f"a {type(found).__module__}.{type(found).__qualname__}"
        )
        return f"the module {name!r} of this process is {what}, which is not {self.label}"

    @property
    def stand_in_remedy(self) -> str:
        """What to do about it."""
        return (
            f"Rename it, or take it off sys.path and out of sys.modules, so that 'import "
            f"{self.module}' finds {self.label}, if that is installed."
        )

    def install_line(self, major: int) -> str:
        """Return the line that installs it for this major version of CUDA; "" if none can here."""
        if sys.platform == "darwin":
            return f"pip install {self.on_macos}" if self.on_macos else ""
        return f"pip install {self.requirements[min(max(major, OLDEST), NEWEST)]}"


LIBRARIES: list[Library] = []
"""Every library with an adapter of ours, in the order in which they are asked and shown.

The registry fills it. It is here for the modules below the registry too.
"""


def is_module(found: object) -> bool:
    """Whether it is a module, by its class: a mock says of itself what it is asked for."""
    return issubclass(type(found), ModuleType)


def _names_of(found: object) -> dict[str, object]:
    """Return what a module has itself, without what it would make up or load if it were asked."""
    names: dict[str, object] = (
        object.__getattribute__(found, "__dict__") if is_module(found) else {}
    )
    return names


def _is_package(found: object) -> bool:
    return "__path__" in _names_of(found)


def is_half_imported(found: object) -> bool:
    """Whether a module is still being imported."""
    return getattr(getattr(found, "__spec__", None), "_initializing", False) is True
