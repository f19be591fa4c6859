"""Checks of every adapter: read the library's streams, and build them on others' queues."""

from __future__ import annotations

import difflib
import gc
import sys

import streamkit as sk
from streamkit._cuda import driver
from streamkit._queues import registry
from streamkit._support import messages
from streamkit.protocols import API, Adapter, CurrentStream, Queue, Traits
from streamkit.protocols.adapters import GROUPS, TOGETHER, functions
from streamkit.testing import _gate
from streamkit.testing._conformance.subject import (
    NotApplicableError,
    Owner,
    Subject,
    build_owned,
)

_PER_THREAD = 2
_CLOSE = 0.85  # the likeness of a misspelled name of the contract


class _ProtocolStream:
    """A stream of no library, with the protocol method: every adapter must refuse it."""

    def __init__(self, handle: int) -> None:
        self.handle = handle

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self.handle


def contract(subject: Subject) -> None:
    """Have the contract's names, and what belongs together whole or not at all."""
    adapter = subject.adapter
    subject.require(isinstance(adapter, Adapter), "it lacks one of name, api, extract, borrow")
    subject.require(
        adapter.name == subject.library,
        f"its name is {adapter.name!r}: name it as users write it in to(...)",
    )
    subject.require(adapter.api == API, f"its api is {adapter.api!r}, and should be {API}")
    known = {name for group in GROUPS for name in functions(group)}
    for names in *(sorted(group.__abstractmethods__) for group in GROUPS), *TOGETHER:
        there = [name for name in names if callable(getattr(adapter, name, None))]
        lacking = ", ".join(name for name in names if name not in there)
        subject.require(
            not there or not lacking,
            f"it has {', '.join(there)} and not {lacking}, and they need each other",
        )
    for name in (name for name in dir(adapter) if name[0] != "_" and name not in known):
        meant = difflib.get_close_matches(name, known, 1, _CLOSE)
        found = getattr(adapter, name)
        subject.require(
            not meant or not callable(found) or isinstance(found, type),  # as Settings, imported
            f"it has {name}, which StreamKit does not know: is {', '.join(meant)} meant?",
        )
    traits = getattr(adapter, "traits", None)
    subject.require(
        traits is None or isinstance(traits, Traits),
        f"its traits are {messages.describe(traits)}, no streamkit.protocols.Traits",
    )


def refuses_strangers(subject: Subject) -> None:
    """Raise TypeError in ``extract`` for what is not a stream of this library."""
    own = subject.make_stream()
    for obj in (None, 0, 64, True, "x", 1.5, (0, 64), object(), type(own), Owner):
        subject.refuses(subject.adapter.extract, "extract", obj)
    with _gate.raw_stream() as raw:
        stream = sk.from_handle(raw)
        others = [name for name in registry.known() if _is_other(name, subject.library)]
        strangers = [_ProtocolStream(raw), stream, *map(stream.to, others)]
        while strangers:
            subject.refuses(subject.adapter.extract, "extract", strangers.pop())
        del stream
        gc.collect()  # the libraries' streams end before the raw one


def _is_other(name: str, library: str) -> bool:
    """Whether this is another library with streams here, whose adapter works."""
    if name == library or not registry.is_loaded(name):
        return False
    try:
        sk.default_stream().to(name)
    except Exception:  # noqa: BLE001 - the other library is not under test
        return False
    return True


def extract_reads_handle(subject: Subject) -> None:
    """Read the handle that the library itself gives, and no wrong device."""
    for stream in subject.streams(2):
        if subject.handle_of is None and not registry.speaks_protocol(stream):
            raise NotApplicableError(
                "no handle_of was given, and its streams lack __cuda_stream__()"
            )
        handle = subject.handle(stream)
        what = f"extract({messages.describe(stream)})"
        queue = subject.adapter.extract(stream)
        subject.require(
            type(queue.handle) is int, f"{what}.handle is not an int: {queue.handle!r}. Convert it."
        )
        subject.require(
            queue.handle == handle,
            f"{what}.handle is {queue.handle:#x}, the library itself says {handle:#x}",
        )
        found = _gate.stream_device(handle)
        subject.require(
            queue.device in (None, found),
            f"{what}.device is {queue.device!r}, the driver says {found}. Leave it None if the "
            "object does not know.",
        )


def extract_accepts_subclasses(subject: Subject) -> None:
    """Read a stream of a class that is derived from the library's own."""
    own = subject.make_stream()
    queue = subject.adapter.extract(own)
    try:
        own.__class__ = type("Derived", (type(own),), {"__slots__": ()})
    except TypeError as error:
        raise NotApplicableError(f"its class cannot be derived from: {error}") from None
    reason = ""
    try:
        handle = subject.adapter.extract(own).handle
    except TypeError as error:
        handle, reason = None, f": {error}"
    subject.require(
        handle is not None,
        f"extract refused {messages.describe(own)}, of a class derived from the library's{reason} "
        "Test with isinstance.",
    )
    subject.require(
        handle == queue.handle,
        f"extract reads another handle from {messages.describe(own)}, whose class is derived",
    )


def extract_touches_no_queue(subject: Subject) -> None:
    """Ask the driver nothing in ``extract`` that breaks a capture, and give it no work."""
    own = subject.make_stream()
    if subject.handle_of is None and not registry.speaks_protocol(own):
        raise NotApplicableError("no handle_of was given, and its streams lack __cuda_stream__()")
    handle = subject.handle(own)
    with subject.untouched(handle, f"extract({messages.describe(own)})"):
        subject.adapter.extract(own)


def borrow_touches_no_queue(subject: Subject) -> None:
    """Ask the driver nothing in ``borrow`` that breaks a capture, and give it no work."""
    subject.make_stream()  # the library may begin with more
    with _gate.raw_stream() as raw:
        stream = sk.from_handle(raw)
        with subject.untouched(raw, f"borrow of {stream!r}"):
            view = stream.to(subject.library)
        del view, stream
        gc.collect()


def borrow_does_not_block(subject: Subject) -> None:
    """Return from ``borrow`` while the queue, or another of the device, is busy."""
    subject.make_stream()  # the library may wait when it begins
    with _gate.raw_stream() as raw, _gate.raw_stream() as busy, _gate.Gate() as gate:
        stream = sk.from_handle(raw)
        gate.hold(raw)
        gate.hold(busy)
        view = stream.to(subject.library)
        subject.require(
            gate.closed,
            f"borrow of {stream!r} waited for work of the GPU. Build the stream and nothing more.",
        )
        gate.open()
        _gate.sync(raw)
        del view, stream
        gc.collect()


def other_device(subject: Subject) -> None:
    """Build and read a stream of another device, and give that device's current stream."""
    there = _another(subject)
    with _gate.on_device(there):
        with _gate.raw_stream() as raw:
            stream = sk.from_handle(raw)
            view = stream.to(subject.library)
            found = subject.adapter.extract(view).device
            subject.require(
                found in (None, there),
                f"extract({messages.describe(view)}).device is {found!r}, and the stream was built "
                f"for device {there}. Leave it None if the object does not know.",
            )
            subject.require(
                sk.wrap(view) == stream, f"wrap({messages.describe(view)}) is no longer {stream!r}"
            )
            del view, stream
            gc.collect()
        adapter = subject.adapter
        if isinstance(adapter, CurrentStream):
            current = adapter.current(there)
            queue: Queue = subject.adapter.extract(current)
            found = queue.device
            if found is None and queue.handle > _PER_THREAD:
                found = _gate.stream_device(queue.handle)
            subject.require(
                found in (None, there),
                f"current({there}) gives {messages.describe(current)}, which is of device {found}",
            )


def _another(subject: Subject) -> int:
    count = driver.device_count()
    if count == 1:
        raise NotApplicableError("this machine has one device")
    return (subject.device + 1) % count


def extract_keeps_alive(subject: Subject) -> None:
    """Return from ``extract`` what keeps the handle valid when the stream is dropped."""
    stream = subject.make_stream()
    handle = subject.handle(stream)
    number = _gate.stream_id(handle)
    queue = subject.adapter.extract(stream)
    del stream
    gc.collect()
    subject.require(
        _gate.is_alive(handle, number),
        f"the stream {handle:#x} was destroyed while its Queue was in use. Give extract's Queue "
        "the owner: the object with which the handle dies.",
    )
    del queue


def extract_lets_go(subject: Subject) -> None:
    """Keep nothing of a stream once what ``extract`` returned is dropped."""
    other, stream = subject.make_stream(), subject.make_stream()
    subject.adapter.extract(other)  # an object made once for a class or a library is no leak
    before = sys.getrefcount(stream)
    for _ in range(3):
        subject.adapter.extract(stream)
    gc.collect()
    subject.require(
        sys.getrefcount(stream) <= before,
        f"extract keeps {messages.describe(stream)} alive for ever. Cache nothing by stream.",
    )


def round_trip(subject: Subject) -> None:
    """Wrap as the driver's queue, come back as the same object, and equal itself."""
    own = subject.make_stream()
    handle = subject.handle(own)
    stream = sk.wrap(own)
    subject.require(
        stream.id == _gate.stream_id(handle),
        f"wrap({messages.describe(own)}) is another queue than the driver's {handle:#x}",
    )
    subject.require(
        stream.device_id == _gate.stream_device(handle),
        f"wrap({messages.describe(own)}) is on {stream.device}, and the driver disagrees",
    )
    back = stream.to(subject.library)
    subject.require(back is own, f"to({subject.library!r}) of its own stream is another object")
    again = sk.wrap(subject.make_stream())
    subject.require(stream == sk.wrap(own), "the same stream wrapped twice is not equal")
    subject.require(again != stream, "two streams of different queues are equal")


def borrow_is_genuine(subject: Subject) -> None:
    """Build the library's own stream class on the very queue that was given."""
    own = subject.make_stream()
    with _gate.raw_stream() as raw:
        number = _gate.stream_id(raw)
        stream = sk.from_handle(raw)
        view = stream.to(subject.library)
        described = messages.describe(view)
        subject.require(
            isinstance(view, type(own)),
            f"borrow built {described}, no {type(own).__module__}.{type(own).__qualname__}, which "
            "the library's own functions take",
        )
        handle = subject.handle(view)
        subject.require(
            handle == raw,
            f"borrow built {described} on {handle:#x}, asked for {raw:#x} (id {number})",
        )
        subject.require(
            subject.adapter.extract(view).handle == raw,
            f"extract reads another handle from {described} than borrow was given",
        )
        back = sk.wrap(view)
        subject.require(
            back == stream and hash(back) == hash(stream),
            f"wrap(to({subject.library!r})) is {back!r}, not {stream!r}",
        )
        subject.require(
            stream.to(subject.library) is view, "to() gave a second object while the first lives"
        )
        del view, back, stream
        gc.collect()


def borrow_keeps_owner(subject: Subject) -> None:
    """Build a stream that alone keeps alive what its handle depends on."""
    with _gate.raw_stream() as raw:
        view, alive, described = build_owned(
            lambda owner: sk.from_handle(raw, owner=owner).to(subject.library)
        )
        gc.collect()
        kept = alive() is not None
        del view
        gc.collect()
    subject.require(
        kept,
        f"{described} lives, and the owner of its queue does not. Let what borrow returns hold "
        "the Queue, in an attribute if need be.",
    )


def borrow_lets_go(subject: Subject) -> None:
    """Release the owner with the built stream, and destroy no borrowed stream."""
    with _gate.raw_stream() as raw:
        number = _gate.stream_id(raw)
        view, alive, described = build_owned(
            lambda owner: sk.from_handle(raw, owner=owner).to(subject.library)
        )
        del view
        gc.collect()
        subject.require(
            _gate.is_alive(raw, number),
            f"{described} destroyed the borrowed stream {raw:#x} when it was dropped. Build it so "
            "that the library does not own the handle.",
        )
        subject.require(
            alive() is None,
            f"the owner of a queue lives on after {described}: keep no built stream in a cache",
        )


def borrow_default_streams(subject: Subject) -> None:
    """Build the legacy default stream as the library's own; the per-thread one if it can."""
    for stream in (sk.default_stream(), sk.default_stream(per_thread=True)):
        handle = stream.handle
        try:
            view = stream.to(subject.library)
        except sk.errors.UnsupportedStreamError as error:
            subject.require(
                handle == _PER_THREAD, f"borrow refused the legacy default stream: {error}"
            )
            continue
        found = subject.handle(view)
        subject.require(
            _gate.stream_id(found) == _gate.stream_id(handle),
            f"borrow of the default stream {handle} built {messages.describe(view)} on {found:#x}",
        )
        subject.require(
            sk.wrap(view) == stream, f"wrap({messages.describe(view)}) is no longer {stream!r}"
        )


def wait_orders(subject: Subject) -> None:
    """Hold t's work in ``t.wait(s)`` of two of its streams until s's has run."""
    first, later = subject.streams(2)
    subject.require_order(first, later, lambda: sk.wrap(later).wait(first))
