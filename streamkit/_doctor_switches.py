"""The variables that give handle 0 another meaning, which each library reads for itself.

With a switch on, handle 0 is the per-thread default stream for that library, and the legacy one
for the others: the same handle is two queues.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from streamkit.protocols import Finding

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

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
