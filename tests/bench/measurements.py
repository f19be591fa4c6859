"""What the bench measures beside its rows: calls, a scope's work, and the import."""

from __future__ import annotations

import contextlib
import re
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import streamkit as sk
from streamkit._cuda import loader
from streamkit._support import garbage

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

# -- driver calls -----------------------------------------------------------------------------

_KINDS = {"cuEventRecord": "record", "cuStreamWaitEvent": "wait"}


@dataclass(frozen=True)
class Count:
    """What one operation does, by kind."""

    name: str
    found: dict[str, float]
    expected: dict[str, float]

    @property
    def met(self) -> bool:
        """Whether they are exactly those promised."""
        return self.found == self.expected


@contextlib.contextmanager
def _counting(*streams: Any) -> Generator[Counter[str]]:
    """Count every call of CUDA's Python bindings, and what these streams record and wait."""
    calls: Counter[str] = Counter()

    def counted(kind: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            calls[kind] += 1
            return function(*arguments)

        return call

    def replace(owner: Any, name: str, value: object) -> None:
        restoring.callback(setattr, owner, name, getattr(owner, name))
        setattr(owner, name, value)

    with contextlib.ExitStack() as restoring:
        # a collection of garbage asks the driver about what any stream has kept
        restoring.enter_context(garbage.held_back())
        functions = [name for name in vars(loader.cu) if re.match(r"cu[A-Z]", name)]
        for name in functions:
            kind = _KINDS.get(name, "other")
            replace(loader.cu, name, counted(kind, getattr(loader.cu, name)))
        for stream in streams:
            queue = stream._queue
            if (core := queue.core) is not None:
                counting = {kind: counted(kind, getattr(core, kind)) for kind in ("record", "wait")}
                replace(queue, "core", SimpleNamespace(**counting))
        yield calls


def count_calls(a: Any, b: Any, waits: int = 100) -> Count:
    """Count the driver calls of ``b.wait(a)`` once it has run, and of a wait for the same queue.

    Calls of other threads would count too.
    """
    again = sk.from_handle(b.handle)
    b.wait(a)
    b.wait(again)
    with _counting(a, b) as calls:
        for _ in range(waits):
            b.wait(a)
    with _counting(a, b) as same:
        for _ in range(waits):
            b.wait(again)
    found = {kind: calls[kind] / waits for kind in ("record", "wait", "other")}
    return Count(
        name="driver calls of a steady-state wait(stream)",
        found={**found, "same queue": same.total() / waits},
        expected={"record": 1, "wait": 1, "other": 0, "same queue": 0},
    )


# -- a scope's work on the GPU ----------------------------------------------------------------

SCOPE = "what entering and leaving scopes adds on the GPU"


def count_extra(*streams: Any, scopes: int = 100) -> Count:
    """Count the GPU work, the waits and the host synchronisations of scopes alone, by CUPTI.

    BackendNotInstalledError without that. The work of other threads would count too.
    """
    for stream in streams:
        with stream:  # makes the libraries' views of it
            pass
    with sk.audit() as report:
        for stream in streams:
            for _ in range(scopes):
                with stream, stream:
                    pass
    found: dict[str, float] = {
        "GPU work": len(report.work),
        "waits": len(report.waits),
        "host synchronisations": len(report.synchronisations),
    }
    return Count(SCOPE, found, dict.fromkeys(found, 0.0))


# -- the import -------------------------------------------------------------------------------

_TIMED_IMPORT = """
import sys, time
sys.path.insert(0, sys.argv[1])
start = time.perf_counter()
import streamkit
print((time.perf_counter() - start) * 1e3)
"""


@dataclass(frozen=True)
class Import:
    """How long an import takes in a fresh process: median and extremes."""

    name: str
    ms: float
    ms_low: float
    ms_high: float
    aim_ms: float


def time_import(times: int = 7) -> Import:
    """Time ``import streamkit`` in fresh processes; the first one only warms the disk."""
    command = [sys.executable, "-I", "-c", _TIMED_IMPORT, str(Path(sk.__file__).parents[1])]
    found = [
        float(subprocess.run(command, capture_output=True, check=True, timeout=60).stdout)
        for _ in range(times + 1)
    ][1:]
    return Import("import streamkit", median(found), min(found), max(found), 25.0)
