"""The CUDA that each installed library is built for: one for all, which the driver serves."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from streamkit._refusals import DISTRIBUTION
from streamkit.protocols import Finding

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from streamkit._doctor_report import Driver

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
