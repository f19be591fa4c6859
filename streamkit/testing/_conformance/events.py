"""Checks of an adapter with events: read the library's, and build its own."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING, Any

import streamkit as sk
from streamkit._cuda import driver
from streamkit._support import messages
from streamkit.protocols import Events
from streamkit.protocols.adapters import offered
from streamkit.testing import _gate
from streamkit.testing._conformance.subject import NotApplicableError, Owner, build_owned

if TYPE_CHECKING:
    from collections.abc import Callable

    from streamkit.testing._conformance.subject import Subject


def event_handle_is_live(subject: Subject) -> None:
    """Give the handle of the event that the library recorded, as the driver sees it."""
    (stream,) = subject.streams(1)
    with _gate.Gate() as gate:
        gate.hold(subject.handle(stream))
        event = subject.event(stream)
        what = f"event_handle({messages.describe(event)})"
        handle = subject.adapter.event_handle(event)
        subject.require(
            type(handle) is int and handle != 0,
            f"{what} is {handle!r} of a recorded event, and should be its cudaEvent_t as an int",
        )
        subject.require(
            _gate.is_pending(handle), f"{what} is done while the queue it was recorded on is held"
        )
        event_device = offered(subject.adapter, Events.event_device)
        device = event_device(event) if event_device else None
        subject.require(
            device in (None, subject.device),
            f"event_device gives {device!r} for an event of device {subject.device}",
        )
        gate.open()
        _gate.sync(subject.handle(stream))
        subject.require(not _gate.is_pending(handle), f"{what} is not done, and its queue is idle")


def event_handle_refuses_strangers(subject: Subject) -> None:
    """Raise TypeError in ``event_handle`` for what is not an event of this library."""
    strangers = (None, 0, 64, True, "x", object(), Owner, subject.make_stream(), sk.new_event())
    for obj in strangers:
        subject.refuses(subject.adapter.event_handle, "event_handle", obj)


def event_orders(subject: Subject) -> None:
    """Hold t's work in ``t.wait(event)`` until the library's own event was reached."""
    first, later = subject.streams(2)
    subject.event(first)
    subject.require_order(first, later, lambda: sk.wrap(later).wait(subject.event(first)))


def borrowed_event_keeps_owner(subject: Subject) -> None:
    """Build an event that alone keeps alive what its handle depends on."""
    with _gate.raw_event() as raw:
        event, alive, described = _owned_event(subject, raw)
        gc.collect()
        subject.require(
            alive() is not None,
            f"{described} lives, and the owner of its event does not. Let what borrow_event "
            "returns hold it, in an attribute if need be.",
        )
        del event


def borrowed_event_lets_go(subject: Subject) -> None:
    """Release the owner with the built event, and destroy no borrowed event."""
    (stream,) = subject.streams(1)
    with _gate.raw_event() as raw, _gate.Gate() as gate:
        gate.hold(subject.handle(stream))
        driver.ask("cuEventRecord", raw, subject.handle(stream))
        event, alive, described = _owned_event(subject, raw)
        try:
            handle = subject.adapter.event_handle(event)
        except TypeError:  # the library's functions may take less than its own class
            handle = raw
        subject.require(
            handle == raw, f"borrow_event built {described} on {handle:#x}, asked for {raw:#x}"
        )
        del event
        gc.collect()
        subject.require(
            alive() is None,
            f"the owner of an event lives on after {described}: keep no built event in a cache",
        )
        subject.require(
            _is_held(raw),
            f"{described} destroyed the borrowed event when it was dropped. Build it so that the "
            "library does not own the handle.",
        )


def _is_held(event: int) -> bool:
    try:
        return _gate.is_pending(event)
    except sk.errors.DriverError:  # the handle is no event any more
        return False


def _owned_event(subject: Subject, handle: int) -> tuple[Any, Callable[[], object], str]:
    borrow_event = offered(subject.adapter, Events.borrow_event)
    if borrow_event is None:
        raise NotApplicableError("the library cannot wrap an event")
    return build_owned(lambda own: borrow_event(handle, subject.device, own))
