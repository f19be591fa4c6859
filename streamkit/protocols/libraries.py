"""The facts that StreamKit knows of a library without importing it."""

# No ``from __future__ import annotations``: NamedTuple would compile each text, at every import.
import sys
from types import ModuleType
from typing import NamedTuple

OLDEST, NEWEST = 12, 13
"""The major versions of CUDA for which there are builds."""


class Library(NamedTuple):
    """One library: the ``LIBRARY`` of its folder in ``backends``."""

    name: str
    """The name that users write in ``to(name)``."""
    label: str
    """The library's name in texts for people."""
    adapter: str
    """The module, below ``streamkit.backends``, that is its adapter, or has it as ``adapter``."""
    module: str
    """The module that is loaded if an object of the library exists."""
    mark: str
    """A name in ``module`` that tells the library from another module of that name."""
    requirements: dict[int, str]
    """The argument of pip that installs the library, by the major version of CUDA."""
    distribution: str
    """The library's name in the package index."""
    variants: str | None = None
    """A pattern of the distributions' names, if there are several; only one may be installed."""
    oldest: tuple[int, ...] = ()
    """The oldest version that StreamKit can serve."""
    newest: tuple[int, ...] = ()
    """The newest version that StreamKit's tests have run with, on a GPU or without one."""
    cuda: str | None = None
    """A pattern that finds the CUDA of a build in "name==version", or in ``cuda_file``.

    If the pattern matches without its group, the build is for no CUDA.
    """
    cuda_file: str | None = None
    """The installed file in which ``cuda`` looks."""
    on_macos: str | None = None
    """The argument of pip on macOS, which has no CUDA; None if the library does not exist there."""
    carries_cuda: bool = False
    """Whether the library brings CUDA's libraries, and so goes with builds for any CUDA."""
    compiles_with: str | None = None
    """The library of the CUDA toolkit that compiles its kernels, if it brings none itself."""
    switch: str | None = None
    """The environment variable that makes handle 0 the per-thread default stream here."""
    numeric_switch: dict[int, tuple[int, ...]] = {}  # noqa: RUF012 - a field that no code changes
    """By major version, the first release that reads ``switch`` as a number, not any text."""
    aliases: tuple[str, ...] = ()
    """Other names that users may write."""
    has_current: bool = False
    """Whether the library has a current stream."""
    frees_on_legacy: bool = False
    """Whether the library frees memory on the legacy default stream, whatever stream used it."""
    kernels: str | None = None
    """A pattern that finds the library's kernels, and no others, by their demangled names."""
    operation: str | None = None
    """A pattern for a kernel's name, in whose last match the group is the operation."""
    colour: str | None = None
    """The colour of the library's work in pictures."""
    uncompiled: dict[str, object] = {}  # noqa: RUF012 - a field that no code changes
    """The attributes, with their values, of a function that its compiler calls and never reads."""

    @property
    def root(self) -> str:
        """The root package of the library's types."""
        return self.module.partition(".")[0]

    def is_module(self, found: object) -> bool:
        """Whether an object is the library's module, not a program's of that name or a stand-in.

        A module whose loading is put off does not count yet, and stays unloaded.
        """
        return self.mark in _names_of(found)

    @property
    def stand_in(self) -> str | None:
        """A sentence about a module that only has the library's name; None if none is imported."""
        name, found, mark = self.module, sys.modules.get(self.module), self.mark
        if found is None:  # perhaps a plain module was imported in the place of the package
            name, found, mark = self.root, sys.modules.get(self.root), "__path__"
        if found is None or is_half_imported(found) or mark in _names_of(found):
            return None
        kind = type(found)
        what = _names_of(found).get("__file__") or f"a {kind.__module__}.{kind.__qualname__}"
        return f"the module {name!r} of this process is {what}, which is not {self.label}"

    @property
    def stand_in_remedy(self) -> str:
        """The remedy for a stand-in."""
        return (
            f"Rename it, or take it off sys.path and out of sys.modules, so that 'import "
            f"{self.module}' finds {self.label}, if that is installed."
        )

    def install_line(self, major: int) -> str:
        """Return the line that installs the library for a major version of CUDA; "" if none can."""
        if sys.platform == "darwin":
            return f"pip install {self.on_macos}" if self.on_macos else ""
        return f"pip install {self.requirements[min(max(major, OLDEST), NEWEST)]}"


LIBRARIES: list[Library] = []
"""Every library with an adapter of ours, in the order in which they are asked and shown.

The registry fills the list, which is here because modules below the registry need it too.
"""


def is_module(found: object) -> bool:
    """Whether an object's class is that of modules: a mock answers ``isinstance`` as it is told."""
    return issubclass(type(found), ModuleType)


def _names_of(found: object) -> dict[str, object]:
    """Return the module's own names, without those that it would make up or load if asked."""
    names: dict[str, object] = (
        object.__getattribute__(found, "__dict__") if is_module(found) else {}
    )
    return names


def is_half_imported(found: object) -> bool:
    """Whether a module is still being imported."""
    return getattr(getattr(found, "__spec__", None), "_initializing", False) is True
