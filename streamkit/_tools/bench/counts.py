"""What the bench counts: StreamKit's calls of the driver, and what a scope adds on the GPU."""

from __future__ import annotations

import contextlib
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import streamkit as sk
from streamkit._cuda import loader

if TYPE_CHECKING:
    from collections.abc import Generator

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


class _Counted:
    """Stands before the driver and counts what is called through it, by kind."""

    def __init__(self, library: Any, calls: Counter[str]) -> None:
        self._library, self._calls = library, calls

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._library, name)
        if name not in _KINDS and not name.startswith("cu"):
            return found  # a type or a constant of the bindings

        def call(*arguments: Any) -> Any:
            self._calls[_KINDS.get(name, "other")] += 1
            return found(*arguments)

        return call


class _CountedCore:
    """Stands before the cuda.core object through which a queue records and waits."""

    def __init__(self, core: Any, calls: Counter[str]) -> None:
        self._core, self._calls = core, calls

    def record(self, event: Any) -> None:
        self._calls["record"] += 1
        self._core.record(event)

    def wait(self, event: Any) -> None:
        self._calls["wait"] += 1
        self._core.wait(event)


@contextlib.contextmanager
def _counting(*streams: Any) -> Generator[Counter[str]]:
    """Count every call of StreamKit to the driver, and what these streams record and wait."""
    calls: Counter[str] = Counter()
    library = loader.cu
    queues = [stream._queue for stream in streams]  # noqa: SLF001 - what the calls go through
    cores = [(queue, queue.core) for queue in queues]
    loader.cu = _Counted(library, calls)
    try:
        for queue, core in cores:
            queue.core = core and _CountedCore(core, calls)
        yield calls
    finally:
        loader.cu = library
        for queue, core in cores:
            queue.core = core


def count_calls(a: Any, b: Any, waits: int = 100) -> Count:
    """Count the driver calls of ``b.wait(a)`` once it has run, and of waiting for one's own queue.

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
    found = {
        "GPU work": len(report.work),
        "waits": len(report.waits),
        "host synchronisations": len(report.synchronisations),
    }
    return Count(SCOPE, {**found}, dict.fromkeys(found, 0.0))
