"""One CUDA queue as an adapter reads it, and the record that StreamKit keeps of the queue."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

LEGACY, PER_THREAD = 1, 2


class _Here(threading.local):
    """What each thread has of its own."""

    def __init__(self) -> None:
        self.token: ThreadToken = ThreadToken()
        self.scopes: OpenScopes = OpenScopes()


class ThreadToken:
    """One thread, distinct from all others even after its end: a new one can get its ident."""

    def __init__(self) -> None:
        self._thread = threading.current_thread()
        self._text = f"{self._thread.name} ({threading.get_ident()})"

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def __str__(self) -> str:
        return self._text


class OpenScopes:
    """The open scopes of one thread, each of which has the one around it as its ``outer``."""

    __slots__ = ("innermost",)

    def __init__(self) -> None:
        self.innermost: Any = None


here: _Here = _Here()
"""``here.token`` is ``this_thread()`` without the call."""


def this_thread() -> ThreadToken:
    """Return the token of the calling thread."""
    return here.token


class Queue:
    """One CUDA queue: its handle, its device, and the owner that keeps the handle valid.

    An adapter makes one in ``extract`` from the handle, the device if the object names it (else
    None), and the owner: the object with which the handle dies, or None where nothing destroys
    the handle. StreamKit asks the driver for the rest. ``borrow`` gets a ``QueueRecord``, which
    the object that it returns must keep alive.
    """

    __slots__ = (
        "__weakref__", "device", "dies_with_owner", "handle", "owner", "permanent", "record"
    )  # fmt: skip

    handle: int
    """The handle for the driver: 1 for the legacy stream, 2 for the per-thread one."""
    device: int | None
    """The CUDA ordinal; None until the driver was asked."""
    owner: Any
    """The object with which the handle dies, kept alive."""
    permanent: bool
    """Whether the queue lives as long as the process. An adapter may set it, and keep the Queue."""
    dies_with_owner: bool
    """Whether only the owner's end destroys the handle, so the driver need not be asked again."""
    record: QueueRecord | None
    """The complete record of a permanent queue, once it is known."""
    is_owned: bool = False
    """Whether StreamKit created the stream and destroys it."""

    def __init__(
        self,
        handle: int,
        device: int | None = None,
        owner: object = None,
        *,
        dies_with_owner: bool = False,
    ) -> None:
        self.handle, self.device, self.owner = handle, device, owner
        self.dies_with_owner = dies_with_owner
        self.permanent, self.record = False, None

    @property
    def is_default(self) -> bool:
        """Whether this is the legacy or the per-thread default stream."""
        return self.handle <= PER_THREAD

    def __repr__(self) -> str:
        return f"<{type(self).__name__} handle={self.handle:#x} device={self.device}>"


class NullStream(Queue):
    """Handle 0 of CUDA Python's bindings; the driver tells which default stream this is."""

    __slots__ = ()


def queue_of_bindings(handle: int, owner: object = None, *, dies_with_owner: bool = False) -> Queue:
    """Return the queue of a handle that a library gives to CUDA Python's bindings."""
    if handle <= PER_THREAD:
        return Queue(handle) if handle else NullStream(handle)
    return Queue(handle, None, owner, dies_with_owner=dies_with_owner)


_NO_VIEWS: dict[str, Callable[[], Any]] = {}


class QueueRecord(Queue):
    """All that StreamKit knows of a queue, from the driver and from the objects made for it."""

    # What few records have is in ``__dict__``, and until then has the value that is given here.
    __slots__ = (
        "__dict__", "capture", "capture_question", "context", "core", "handle_exposed", "id",
        "latest", "nonblocking", "older_record", "primary", "thread", "views", "wait_events"
    )  # fmt: skip

    handle: int
    device: int
    owner: object
    record: QueueRecord | None
    context: int
    """The CUcontext; 0 until the record is complete."""
    id: int | None
    """The id from cuStreamGetId; None while unknown because the stream captures."""
    nonblocking: bool | None
    """Whether the legacy stream has no implicit order with the queue; None while unknown."""
    primary: bool
    """Whether the context is the device's primary one."""
    thread: ThreadToken | None
    """The thread that a per-thread default stream belongs to."""
    name: str | None = None
    """The name that its creator gave."""
    capture: int | None
    """The id of the capture in which the queue was first seen, while ``id`` is unknown."""
    handle_exposed: bool
    """Whether code outside StreamKit may have the handle."""
    older_record: QueueRecord | None
    """An earlier record of this queue, of another owner or none, which this one keeps alive."""
    views: Mapping[str, Callable[[], Any]]
    """By library, a reference whose call returns the library's object on this queue."""
    capture_question: Any
    """What ``driver.capture_question`` gives, made at the first use."""
    core: Any
    """The object of cuda.core that records and waits for the queue, made at the first use."""
    seen_with: Any = None
    """Of a record without an owner: a weak reference to an owner at whose end ``core`` goes."""
    wait_events: Any
    """The spare events that can be recorded on the queue, see ``lifetime.spare_events``."""
    seen_by_events: Callable[[], QueueRecord | None] | None = None
    """The reference that an event notes at its record: returns this queue while it can be asked."""
    keepalive: Any = None
    """The list of objects that must outlive the queue's work, made at the first use."""
    calls: Any = None
    """The functions that ``then`` was given for this queue, in order."""
    marking: Any = None
    """The lock under which the queue's points are made, one at a time. Made at the first use."""
    is_alive: ClassVar[Callable[[QueueRecord], bool]]
    """Whether the handle surely is this queue: the function of ``identity``."""
    latest: Any
    """The last StreamKit stream of a permanent queue, kept for the next ``wrap``."""

    def __init__(self, handle: int, device: int, owner: object = None, older: Any = None) -> None:
        self.handle, self.owner, self.older_record = handle, owner, older
        self.device = device  # pyright: ignore[reportIncompatibleVariableOverride]  # not None here
        self.views = _NO_VIEWS
        self.permanent = self.dies_with_owner = False
        self.handle_exposed = True
        self.latest = self.record = self.capture_question = None
        if older is None:
            self.context, self.primary = 0, True
            self.id = self.thread = self.nonblocking = self.capture = self.core = None
            self.wait_events = None
        else:  # what the driver told, and what was made for the queue
            self.context, self.primary = older.context, older.primary
            self.id, self.thread = older.id, older.thread
            self.nonblocking, self.capture = older.nonblocking, older.capture
            self.core, self.wait_events = older.core, older.wait_events

    def all_records(self) -> Iterator[QueueRecord]:
        record: QueueRecord | None = self
        while record is not None:
            yield record
            record = record.older_record

    def first_record(self) -> QueueRecord:
        """Return the oldest record of this queue, to which all others lead."""
        record = self
        while record.older_record is not None:
            record = record.older_record
        return record
