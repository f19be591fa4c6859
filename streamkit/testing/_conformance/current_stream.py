"""Checks of an adapter with a current stream: move it without a wait, and restore it exactly."""

from __future__ import annotations

import contextlib
import gc
from typing import TYPE_CHECKING

import streamkit as sk
from streamkit._cuda import driver
from streamkit._support import messages
from streamkit.protocols import CurrentStream
from streamkit.protocols.adapters import never_known, offered
from streamkit.testing import _gate
from streamkit.testing._conformance.subject import NotApplicableError, build_owned

if TYPE_CHECKING:
    from collections.abc import Generator

    from streamkit.protocols import Binding
    from streamkit.testing._conformance.subject import Subject


@contextlib.contextmanager
def _entered(binding: Binding) -> Generator[None]:
    """Enter a stream for the block by the binding that the adapter's ``bind`` prepared."""
    token = binding.save()
    binding.enter(token)
    try:
        yield
    finally:
        binding.leave(token)


def _binding(subject: Subject, stream: object) -> Binding:
    """Return the adapter's own binding of a stream; NotApplicableError if StreamKit made it."""
    binding: Binding = subject.adapter.bind(stream)
    if binding.is_current is never_known:
        raise NotApplicableError("it has enter and leave instead of bind")
    return binding


def _require_current(subject: Subject, stream: object, when: str) -> None:
    found = subject.current()
    subject.require(
        subject.same(found, stream),
        f"{when} the current stream is {messages.describe(found)} on {subject.handle(found):#x}, "
        f"and should be {messages.describe(stream)} on {subject.handle(stream):#x}",
    )


def current_is_its_own(subject: Subject) -> None:
    """Give by ``current`` a stream that ``extract`` reads and StreamKit shows."""
    found = subject.current()
    try:
        subject.adapter.extract(found)
    except TypeError as error:
        subject.fail(f"current gives {messages.describe(found)}, which extract refuses: {error}")
    current = sk.current_stream(subject.library, device=subject.device)
    subject.require(
        current == sk.wrap(found),
        f"current gives {messages.describe(found)}, current_stream() is {current!r}",
    )
    current_here = offered(subject.adapter, CurrentStream.current_here)
    if current_here is not None:
        here = current_here()
        subject.require(
            subject.same(here, found),
            f"current_here gives {messages.describe(here)}, current {messages.describe(found)}",
        )
    current_context = offered(subject.adapter, CurrentStream.current_context)
    if current_context is not None:
        answer, context = current_context(), driver.current_context()
        subject.require(
            answer == context,
            f"current_context gives {answer!r}, and {context:#x} is the current one",
        )
    own_device = offered(subject.adapter, CurrentStream.own_device)
    if own_device is not None:
        tell, restore = own_device()
        device, context = tell(), driver.current_context()
        restore(device)
        subject.require(
            (tell(), driver.current_context()) == (device, context),
            f"own_device() restored the current device, which was {device}, and moved from it",
        )


def enter_moves_and_leave_restores(subject: Subject) -> None:
    """Make a stream current, and then exactly the one before: nested and repeated."""
    own, other = subject.streams(2)
    before = subject.current()
    ours, theirs = map(subject.adapter.bind, (own, other))
    with _entered(ours):
        _require_current(subject, own, "inside enter")
        with _entered(theirs):
            _require_current(subject, other, "inside a nested enter")
            with _entered(ours):
                _require_current(subject, own, "inside a second enter of one stream")
            _require_current(subject, other, "after leaving the second enter of one stream")
        _require_current(subject, own, "after leaving a nested enter")
        with _entered(ours):
            pass
        _require_current(subject, own, "after leaving an enter of what was current")
    _require_current(subject, before, "after leave")


def enter_takes_borrowed_streams(subject: Subject) -> None:
    """Enter and leave what ``borrow`` built like the library's own streams."""
    before = subject.current()
    with _gate.raw_stream() as raw:
        view = sk.from_handle(raw).to(subject.library)
        with _entered(subject.adapter.bind(view)):
            _require_current(subject, view, "inside enter of a borrowed stream")
            found = sk.current_stream(subject.library, device=subject.device)
            subject.require(
                found.handle == raw, f"inside enter of {raw:#x} the current stream is {found!r}"
            )
        _require_current(subject, before, "after leaving a borrowed stream")
        del view, found


def scope_restores_after_an_error(subject: Subject) -> None:
    """Be moved by ``streamkit.use`` and restored, however the block ends."""
    own, other = subject.streams(2)
    with _entered(subject.adapter.bind(other)):
        with contextlib.suppress(ZeroDivisionError), sk.use(own, libraries=[subject.library]):
            _require_current(subject, own, "inside streamkit.use")
            raise ZeroDivisionError
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
        with _entered(subject.adapter.bind(other)):
            _require_current(subject, other, "inside another thread's enter")
        _require_current(subject, found, "after another thread's leave")

    with _entered(subject.adapter.bind(own)):
        subject.in_thread(elsewhere)
        _require_current(subject, own, "after another thread's enter and leave")
    _require_current(subject, before, "after leave")


def _require_refusal(subject: Subject, stream: object) -> None:
    """Require that a thread cannot move a process-wide current stream out of another's scope."""
    try:
        with _entered(subject.adapter.bind(stream)):
            pass
    except sk.errors.ScopeError:
        return
    subject.fail(
        "its current stream is one for all threads, and a second thread moved it away "
        "from the first one's enter. Raise streamkit.errors.ScopeError there."
    )


def enter_adds_no_wait(subject: Subject) -> None:
    """Order nothing in ``bind``, ``enter`` and ``leave``: no stream waits, nor does the host."""
    remedy = "Make the stream current and nothing more: ordered=True is StreamKit's to do."
    own, other = subject.streams(2)
    first, second = subject.handle(own), subject.handle(other)
    with _entered(subject.adapter.bind(own)), _gate.Gate() as gate:
        gate.hold(first)
        with _entered(subject.adapter.bind(other)):  # for the first time: some wait only then
            subject.require(gate.closed, f"enter waited for what was current to finish. {remedy}")
            subject.require(
                gate.lets_through(second),
                f"enter made the stream wait for what was current before. {remedy}",
            )
    own, other = subject.streams(2)
    first, second = subject.handle(own), subject.handle(other)
    with _entered(subject.adapter.bind(own)), _gate.Gate() as gate:
        with _entered(subject.adapter.bind(other)):
            gate.hold(second)
        subject.require(gate.closed, f"leave waited for the stream to finish. {remedy}")
        subject.require(
            gate.lets_through(first),
            f"leave made what is current again wait for the stream that was left. {remedy}",
        )


def enter_lets_go(subject: Subject) -> None:
    """Keep nothing of a stream that was entered once it is left and dropped."""
    with _gate.raw_stream() as raw:
        view, alive, described = build_owned(
            lambda owner: sk.from_handle(raw, owner=owner).to(subject.library)
        )
        with _entered(subject.adapter.bind(view)):
            pass
        del view
        gc.collect()
        subject.require(
            alive() is None,
            f"{described} was entered, left and dropped, and its queue is kept for ever. Keep no "
            "stream beyond its scope.",
        )


def bound_is_current_agrees(subject: Subject) -> None:
    """Call a stream current inside its own ``enter``, and not inside another's within that."""
    ours, theirs = (_binding(subject, stream) for stream in subject.streams(2))
    with _entered(ours):
        subject.require(ours.is_current(), "is_current is false inside enter")
        with _entered(theirs):
            subject.require(theirs.is_current(), "is_current is false inside a nested enter")
            subject.require(not ours.is_current(), "is_current is true of the outer enter's stream")
        subject.require(ours.is_current(), "is_current is false after leaving a nested enter")


def bound_told_outside_is_the_threads(subject: Subject) -> None:
    """Tell a stream that is current in this thread, and no other, also outside its own scope."""
    (own,) = subject.streams(1)
    binding = _binding(subject, own)
    if not binding.told_outside:
        raise NotApplicableError("its binding says that only a scope can ask it")

    def elsewhere() -> None:
        subject.require(not binding.is_current(), "is_current is true of another thread's stream")

    subject.require(not binding.is_current(), "is_current is true where the stream is not current")
    with _entered(subject.adapter.bind(own)):
        subject.require(binding.is_current(), "is_current is false inside another enter of it")
        subject.in_thread(elsewhere)


def bound_set_current_remembers_nothing(subject: Subject) -> None:
    """Move back to a stream inside its ``enter``, so that ``leave`` still restores."""
    own, other = subject.streams(2)
    before = subject.current()
    ours, theirs = _binding(subject, own), _binding(subject, other)
    with _entered(ours):
        with _entered(theirs):
            ours.set_current()
            _require_current(subject, own, "after set_current")
            theirs.set_current()
            _require_current(subject, other, "after set_current of the inner stream")
        _require_current(subject, own, "after set_current and leave")
        subject.require(ours.is_current(), "is_current is false after set_current")
    _require_current(subject, before, "after set_current and two leaves")


def bound_leave_restores_at_any_moment(subject: Subject) -> None:
    """Move nothing in ``save``; restore in ``leave`` without an ``enter``, and a second time."""
    own, other = subject.streams(2)
    with _entered(subject.adapter.bind(other)):
        binding = subject.adapter.bind(own)
        token = binding.save()
        _require_current(subject, other, "after save")
        binding.leave(token)
        _require_current(subject, other, "after save and leave")
        token = binding.save()
        binding.enter(token)
        for number in (1, 2):
            binding.leave(token)
            _require_current(subject, other, f"after enter and {number} times leave")


def bound_keeps_device(subject: Subject) -> None:
    """Leave the current context alone in all that ``bind`` prepared, or say that it does not."""
    (own,) = subject.streams(1)
    binding = subject.adapter.bind(own)
    if not binding.keeps_device:
        raise NotApplicableError("its binding says that it does not keep the device")
    before = driver.current_context()
    with _entered(binding):
        binding.is_current()
        binding.set_current()
        inside = driver.current_context()
    subject.require(
        before == inside == driver.current_context(),
        f"bind({messages.describe(own)}) changed the current context. Put it back, or give the "
        "Binding keeps_device=False.",
    )
