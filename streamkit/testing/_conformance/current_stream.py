"""What an adapter with a current stream must do: move it without a wait, and restore it exactly."""

from __future__ import annotations

import contextlib
import functools
from typing import TYPE_CHECKING, Any

import streamkit as sk
from streamkit._base import messages
from streamkit.protocols import BindsCurrent, CurrentHere, TellsContext
from streamkit.testing import _gate
from streamkit.testing._conformance.subject import NotApplicable

if TYPE_CHECKING:
    from collections.abc import Generator

    from streamkit.testing._conformance.subject import Subject


class _Ways:
    """One of the adapter's ways in and out: its functions, or what ``bind`` prepared, once."""

    def __init__(self, adapter: Any, *, bound: bool) -> None:
        self.name: str = "bind(...).enter" if bound else "enter"
        self._adapter = adapter
        self._bindings: dict[int, Any] | None = {} if bound else None

    @contextlib.contextmanager
    def entered(self, stream: object) -> Generator[None]:
        if self._bindings is None:
            enter, leave = functools.partial(self._adapter.enter, stream), self._adapter.leave
        else:
            if id(stream) not in self._bindings:
                self._bindings[id(stream)] = self._adapter.bind(stream)
            enter, leave = self._bindings[id(stream)][:2]
        token = enter()
        try:
            yield
        finally:
            leave(token)


def _all_ways(subject: Subject) -> list[_Ways]:
    there = [False, True] if isinstance(subject.adapter, BindsCurrent) else [False]
    return [_Ways(subject.adapter, bound=bound) for bound in there]


def _entered(subject: Subject, stream: object) -> contextlib.AbstractContextManager[None]:
    return _Ways(subject.adapter, bound=False).entered(stream)


def _require_current(subject: Subject, stream: object, when: str) -> None:
    found = subject.current()
    subject.require(
        subject.same(found, stream),
        f"{when} the current stream is {messages.describe(found)} on {subject.handle(found):#x}, "
        f"and should be {messages.describe(stream)} on {subject.handle(stream):#x}",
    )


class _StopError(Exception):
    """Leaves a block."""


def current_is_its_own(subject: Subject) -> None:
    """Give by ``current`` a stream that ``extract`` reads and StreamKit shows."""
    found = subject.current()
    try:
        subject.adapter.extract(found)
    except TypeError as error:
        subject.require(
            holds=False,
            message=f"current gives {messages.describe(found)}, which extract refuses: {error}",
        )
    shown = sk.current_stream(subject.library, device=subject.device)
    subject.require(
        shown == sk.wrap(found),
        f"current gives {messages.describe(found)}, current_stream() shows {shown!r}",
    )
    if isinstance(subject.adapter, CurrentHere):
        here = subject.adapter.current_here()
        subject.require(
            subject.same(here, found),
            f"current_here gives {messages.describe(here)}, current {messages.describe(found)}",
        )
    if isinstance(subject.adapter, TellsContext):
        told, context = subject.adapter.current_context(), _gate.current_context()
        subject.require(
            told == context, f"current_context gives {told!r}, and {context:#x} is the current one"
        )


def enter_moves_and_leave_restores(subject: Subject) -> None:
    """Make a stream current, and then exactly the one before: nested and repeated."""
    own, other = subject.streams(2)
    before = subject.current()
    for way in _all_ways(subject):
        entered, inside = way.entered, f"inside {way.name}"
        with entered(own):
            _require_current(subject, own, inside)
            with entered(other):
                _require_current(subject, other, f"inside a nested {way.name}")
                with entered(own):
                    _require_current(subject, own, f"inside a second {way.name} of one stream")
                _require_current(subject, other, "after leaving the second enter of one stream")
            _require_current(subject, own, "after leaving a nested enter")
            with entered(own):
                pass
            _require_current(subject, own, "after leaving an enter of what was current")
        _require_current(subject, before, "after leave")


def enter_takes_borrowed_streams(subject: Subject) -> None:
    """Enter and leave what ``borrow`` built like the library's own streams."""
    before = subject.current()
    with _gate.raw_stream() as raw:
        view = sk.from_handle(raw).to(subject.library)
        with _entered(subject, view):
            _require_current(subject, view, "inside enter of a borrowed stream")
            found = sk.current_stream(subject.library, device=subject.device)
            subject.require(
                found.handle == raw, f"inside enter of {raw:#x} the library stands on {found!r}"
            )
        _require_current(subject, before, "after leaving a borrowed stream")
        del view, found


def scope_restores_after_an_error(subject: Subject) -> None:
    """Be moved by ``streamkit.use`` and restored, however the block ends."""
    own, other = subject.streams(2)
    with _entered(subject, other):
        with contextlib.suppress(_StopError), sk.use(own, libraries=[subject.library]):
            _require_current(subject, own, "inside streamkit.use")
            raise _StopError
        _require_current(subject, other, "after an error inside streamkit.use")


def threads_keep_their_stream(subject: Subject) -> None:
    """Move no other thread's current stream; refuse to, where there is one for all threads."""
    own, other = subject.streams(2)
    before = subject.current()

    def elsewhere() -> None:
        found = subject.current()
        if subject.same(found, own):
            _require_refusal(subject, other)
            return
        with _entered(subject, other):
            _require_current(subject, other, "inside another thread's enter")
        _require_current(subject, found, "after another thread's leave")

    with _entered(subject, own):
        subject.in_thread(elsewhere)
        _require_current(subject, own, "after another thread's enter and leave")
    _require_current(subject, before, "after leave")


def _require_refusal(subject: Subject, stream: object) -> None:
    """Require that a thread cannot take a process-wide current stream from another's scope."""
    try:
        token = subject.adapter.enter(stream)
    except sk.ScopeError:
        return
    subject.adapter.leave(token)
    subject.require(
        holds=False,
        message="its current stream is one for all threads, and a second thread moved it away "
        "from the first one's enter. Raise streamkit.ScopeError there.",
    )


def enter_adds_no_wait(subject: Subject) -> None:
    """Order nothing in ``enter`` and ``leave``: no stream waits for another, nor the host."""
    own, other = subject.streams(2)
    handles = subject.handle(own), subject.handle(other)
    for way in _all_ways(subject):
        _require_no_wait(subject, way, (own, other), handles)


def _require_no_wait(
    subject: Subject, way: _Ways, streams: tuple[Any, Any], handles: tuple[int, int]
) -> None:
    remedy = "Make the stream current and nothing more: ordered=True is StreamKit's to do."
    with way.entered(streams[0]), _gate.Gate() as gate:
        gate.hold(handles[0])
        with way.entered(streams[1]):
            subject.require(
                gate.closed, f"{way.name} waited for what was current to finish. {remedy}"
            )
            subject.require(
                gate.lets_through(handles[1]),
                f"{way.name} made the stream wait for what was current before. {remedy}",
            )
    with way.entered(streams[0]), _gate.Gate() as gate:
        with way.entered(streams[1]):
            gate.hold(handles[1])
        subject.require(gate.closed, f"leave waited for the stream to finish. {remedy}")
        subject.require(
            gate.lets_through(handles[0]),
            f"leave made what is current again wait for the stream that was left. {remedy}",
        )


CURRENT = (
    current_is_its_own,
    enter_moves_and_leave_restores,
    enter_takes_borrowed_streams,
    scope_restores_after_an_error,
    threads_keep_their_stream,
    enter_adds_no_wait,
)


# -- what is prepared -------------------------------------------------------------------------


def bound_is_current_agrees(subject: Subject) -> None:
    """Call a stream current inside its own ``enter``, and not inside another's within that."""
    own, other = subject.streams(2)
    ours, theirs = subject.adapter.bind(own), subject.adapter.bind(other)
    entered = _Ways(subject.adapter, bound=True).entered
    with entered(own):
        subject.require(ours.is_current(), "is_current is false inside enter")
        with entered(other):
            subject.require(theirs.is_current(), "is_current is false inside a nested enter")
            subject.require(not ours.is_current(), "is_current is true of the outer enter's stream")
        subject.require(ours.is_current(), "is_current is false after leaving a nested enter")


def bound_set_current_remembers_nothing(subject: Subject) -> None:
    """Move back to a stream inside its ``enter``, so that ``leave`` still restores."""
    own, other = subject.streams(2)
    before = subject.current()
    ours, theirs = subject.adapter.bind(own), subject.adapter.bind(other)
    entered = _Ways(subject.adapter, bound=True).entered
    with entered(own):
        with entered(other):
            ours.set_current()
            _require_current(subject, own, "after set_current")
            theirs.set_current()
            _require_current(subject, other, "after set_current of the inner stream")
        _require_current(subject, own, "after set_current and leave")
        subject.require(ours.is_current(), "is_current is false after set_current")
    _require_current(subject, before, "after set_current and two leaves")


def bound_keeps_device(subject: Subject) -> None:
    """Leave the current context alone in all that ``bind`` prepared, or say that it does not."""
    (own,) = subject.streams(1)
    binding = subject.adapter.bind(own)
    if not binding.keeps_device:
        raise NotApplicable("its binding says that it does not keep the device")
    before = _gate.current_context()
    token = binding.enter()
    try:
        binding.is_current()
        binding.set_current()
        inside = _gate.current_context()
    finally:
        binding.leave(token)
    subject.require(
        before == inside == _gate.current_context(),
        f"bind({messages.describe(own)}) changed the current context. Put it back, or give the "
        "Binding keeps_device=False.",
    )


BOUND = (bound_is_current_agrees, bound_set_current_remembers_nothing, bound_keeps_device)
