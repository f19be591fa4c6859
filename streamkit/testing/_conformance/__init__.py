"""The conformance kit: an adapter's promises as plain functions to call from any test runner.

    for check in streamkit.testing.checks("mylib", mylib.Stream):
        check()

It needs a CUDA device and ``cuda.bindings``: the checks compare with the driver's raw handles.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from streamkit import errors
from streamkit._queues import registry
from streamkit.protocols import Adapter, Capture, CurrentStream, Events
from streamkit.testing import _gate
from streamkit.testing._conformance import captures, current_stream, events, streams
from streamkit.testing._conformance.subject import NotApplicableError, Subject

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

# The modules whose public functions are the checks, in their order, by the group of functions that
# an adapter needs for these checks.
_PARTS: dict[Any, Any] = {
    Adapter: streams,
    CurrentStream: current_stream,
    Events: events,
    Capture: captures,
}


@dataclass(frozen=True)
class Check:
    """One promise of the adapter contract, in the imperative; call it to see whether it is kept."""

    name: str
    promise: str
    _function: Callable[[Subject], None] = field(repr=False)
    _subject: Subject = field(repr=False)
    _group: Any = field(repr=False)
    _waiver: str | None = field(repr=False)

    def __call__(self) -> str | None:
        """Return None if the promise is kept, or why it does not apply to this library.

        Errors of the adapter itself come through.

        Raises:
            AssertionError: What is wrong, with which object, and what to mend; or a waived promise
                is kept.
        """
        subject = self._subject
        if not isinstance(subject.adapter, self._group):
            return f"{subject.library} has no {self._group.__name__}"
        try:
            with _gate.on_device(subject.device):
                self._function(subject)
        except NotApplicableError as reason:
            return str(reason)
        except AssertionError:
            if self._waiver is None:
                raise
            return f"waived: {self._waiver}"
        subject.require(self._waiver is None, f"{self.name} is waived, and kept: drop the waiver")
        return None


@dataclass(frozen=True)
class Report:
    """The result of ``check_adapter``: the promises kept, and why others do not apply."""

    library: str
    kept: list[str]
    not_applicable: dict[str, str]


def checks(  # noqa: PLR0913 - four are optional
    library: str,
    make_stream: Callable[[], Any],
    *,
    make_event: Callable[[Any], Any] | None = None,
    handle_of: Callable[[Any], int] | None = None,
    device: int = 0,
    waive: Mapping[str, str] | None = None,
) -> list[Check]:
    """Return the checks of the adapter that ``streamkit.wrap`` and ``to(library)`` use.

    Args:
        library: Its name; it is imported.
        make_stream: Makes a new stream of the library on ``device``, each time on a queue of its
            own that nothing else uses.
        make_event: Records a new event of the library on the stream that it is given, one of the
            library's.
        handle_of: Returns what the library itself gives as a stream's ``cudaStream_t``; without it,
            that is what ``__cuda_stream__()`` returns.
        device: The CUDA ordinal.
        waive: By name, the checks that the library makes impossible, each with the reason: such a
            check has to fail.

    Raises:
        BackendNotInstalledError: The library cannot be imported.
        ValueError: ``waive`` names no check.
    """
    waived = dict(waive or {})
    adapter = registry.adapter(library)
    subject = Subject(library, adapter, make_stream, make_event, handle_of, device)
    found = [
        Check(
            name,
            (function.__doc__ or "").partition("\n")[0],
            function,
            subject,
            group,
            waived.pop(name, None),
        )
        for group, module in _PARTS.items()
        for name, function in vars(module).items()
        if name[0] != "_" and getattr(function, "__module__", None) == module.__name__
    ]
    if waived:
        raise ValueError(
            f"no check is called {', '.join(waived)}. There are: "
            f"{', '.join(check.name for check in found)}"
        )
    return found


def check_adapter(  # noqa: PLR0913 - four are optional
    library: str,
    make_stream: Callable[[], Any],
    *,
    make_event: Callable[[Any], Any] | None = None,
    handle_of: Callable[[Any], int] | None = None,
    device: int = 0,
    waive: Mapping[str, str] | None = None,
) -> Report:
    """Run all ``checks``; return the promises kept, and why others do not apply.

    The arguments are those of ``checks``, and what that raises passes.

    Raises:
        AssertionError: Checks have failed: every one is listed, with its message.
        NoDeviceError: There is no CUDA here.
    """
    found = checks(
        library, make_stream, make_event=make_event, handle_of=handle_of, device=device, waive=waive
    )
    report = Report(library, [], {})
    failures: list[str] = []
    for check in found:
        try:
            reason = check()
        except errors.NoDeviceError:
            raise
        except Exception as error:  # noqa: BLE001 - the message lists them all
            failures.append(f"{check.name}: {type(error).__name__}: {error}")
            continue
        if reason is None:
            report.kept.append(check.name)
        else:
            report.not_applicable[check.name] = reason
    _gate.require(not failures, "\n".join([f"{len(failures)} checks failed", *failures]))
    return report
