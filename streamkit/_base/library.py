"""What StreamKit knows of a library without importing it."""

# Without annotations from __future__: NamedTuple would compile each of them, at every import.
from typing import NamedTuple

from streamkit._base.messages import DISTRIBUTION


class Library(NamedTuple):
    """One library: the ``LIBRARY`` of its folder in ``backends``."""

    name: str
    """What users write in ``to(name)``."""
    label: str
    """Its name where people read it."""
    root: str
    """The root package of its types."""
    module: str
    """The module that is loaded if an object of the library exists."""
    extras: tuple[str, ...]
    """StreamKit's extras, of which one installs it. One for each CUDA ends with its major."""
    distribution: str
    """What it is called in the package index."""
    variants: str | None = None
    """A pattern of its distributions' names, if it has several; only one may be installed."""
    oldest: tuple[int, ...] = ()
    """The oldest version that StreamKit can serve."""
    cuda: str | None = None
    """A pattern that finds the CUDA of a build in "name==version", or in ``cuda_file``.

    If it matches without its group, the build is for no CUDA.
    """
    cuda_file: str | None = None
    """The installed file in which ``cuda`` looks."""
    index_sets_cuda: bool = False
    """Whether builds for every CUDA have one name, and the package index decides which comes."""
    switch: str | None = None
    """The environment variable that makes handle 0 the per-thread default stream for it."""
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
    colour: str | None = None
    """The colour of its work in pictures."""
    letter: str | None = None
    """The letter of its work in the terminal."""
    profiling: str | None = None
    """The attribute of ``module`` that is true while its profiler has CUPTI."""

    @property
    def adapter(self) -> str:
        """The module of its adapter."""
        return f"streamkit.backends._{self.name.replace('.', '_')}.adapter"

    def extra_for(self, major: int) -> str:
        """Return the extra that installs it for this major version of CUDA."""
        for extra in self.extras:
            if extra.endswith(str(major)):
                return extra
        return self.extras[0]

    def install_line(self, major: int) -> str:
        """Return the line that installs it for this major version of CUDA."""
        return f"pip install '{DISTRIBUTION}[{self.extra_for(major)}]'"
