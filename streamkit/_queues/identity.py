"""The identity of a queue, and the objects that the libraries have on a queue.

One record is kept for each queue, by the driver's id, as long as the queue is in use.

An id is never reused, a handle is; so the records are kept by id. A capturing stream must not be
asked for its id (that invalidates the capture), so one first seen while it captures is known by
device and handle until the capture ends.

What was learned of a library's queue, and made for it, stays a while longer: in a record without an
owner, which serves again once the driver has confirmed that the handle still has this id.

The places that remember a queue, and which of them wins, are listed in
``docs/maintain/architecture.md``.
"""

from __future__ import annotations

import contextlib
import functools
import weakref
from typing import TYPE_CHECKING, Any

from streamkit import errors
from streamkit._cuda import driver, loader
from streamkit._queues import registry
from streamkit._queues.lifetime import OwnedQueue
from streamkit._support import messages
from streamkit._support.locks import new_lock
from streamkit._support.weak_table import WeakTable
from streamkit.protocols.adapters import USUAL, traits_of
from streamkit.protocols.queues import (
    LEGACY,
    PER_THREAD,
    NullStream,
    Queue,
    QueueRecord,
    this_thread,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from streamkit.protocols import Adapter, Traits

_known: WeakTable[QueueRecord] = WeakTable()  # id -> record
_learned: dict[int, QueueRecord] = {}  # id -> record without an owner, the last ones
_MOST_LEARNED = 256
_legacy: dict[int, QueueRecord] = {}  # primary context -> its legacy stream
watchers: list[Callable[[QueueRecord], object]] = []
"""Functions that are called with every queue that is met, while it surely is alive."""
watch, unwatch = watchers.append, watchers.remove
lock = new_lock()
"""Held while records and views of queues change."""


def identify(  # noqa: C901 - each first use of a stream comes here
    found: Queue, adapter: Adapter | None = None, native: object = None
) -> QueueRecord:
    """Return the complete record of the queue that an adapter extracted from ``native``.

    DeviceMismatchError if the driver disagrees with the device ``found`` names.
    """
    if isinstance(found, QueueRecord):
        return found
    if found.record is not None:
        return found.record
    owner = found.owner
    if found.handle <= PER_THREAD:
        queue = _default_record(found)
    else:
        stream = loader.cu.CUstream(found.handle)  # made once, for the next four questions
        number = driver.id_outside_capture(stream)
        if number is None:
            queue = _capturing_record(found)
        else:
            known = _known.get(number)
            queue = (known and known()) or _new_record(found, stream, number)
        if found.device not in (None, queue.device):
            raise _another_device(found, queue)
        queue.permanent |= found.permanent  # the handle alone can have been known before
    # streams that are values hold nothing: any other object on this queue does as well
    if owner is not None or not (
        adapter is None
        or (getattr(adapter, "traits", USUAL).streams_are_values and not queue.permanent)
    ):
        queue = _with_owner(queue, owner, adapter, native)
    if found.permanent and queue.permanent:
        found.record = queue
    elif found.dies_with_owner and owner is not None:
        queue.dies_with_owner = queue.owner is owner
        learned = queue.first_record()
        if learned.id is not None and learned.owner is None:  # else the two would hold each other
            with contextlib.suppress(Exception):  # owners may refuse attributes
                owner._streamkit_learned = learned  # noqa: SLF001 - for ``queue_of``
    for watcher in (*watchers,):
        watcher(queue)
    return queue


def _another_device(found: Queue, queue: QueueRecord) -> Exception:
    return messages.device_mismatch(
        f"the named device cuda:{found.device}",
        f"cuda:{queue.device}",
        "the driver says to which device this stream belongs. Leave the device out.",
    )


def _default_record(found: Queue, current: int = 0) -> QueueRecord:
    context = (current or driver.current_context()) if found.device is None else 0
    if found.handle != PER_THREAD:
        wanted = context or driver.primary_context(found.device or 0)
        if isinstance(found, NullStream):
            found.handle = driver.null_stream(wanted)
        legacy = _legacy.get(wanted)
        if legacy is not None and found.handle != PER_THREAD:
            return legacy
    if context:
        device = driver.current_device()
        primary = driver.primary_context(device) == context
    else:
        device = found.device or 0
        context, primary = driver.primary_context(device), True
    handle = PER_THREAD if found.handle == PER_THREAD else LEGACY
    number: int | None = None
    with driver.in_context(context):
        if handle == LEGACY:
            number = driver.legacy_id()
        elif driver.capture_id(handle) is None:
            number = driver.stream_id(handle)
    queue = QueueRecord(handle, device)
    queue.permanent = handle == LEGACY and primary
    queue.thread = this_thread() if handle == PER_THREAD else None
    queue.nonblocking = False
    queue.context, queue.primary, queue.id = context, primary, number
    if number is not None:
        queue = _known.first(number, queue)  # another thread's, if that was first
    if queue.permanent:
        _legacy[context] = queue
    return queue


def legacy(device: int) -> QueueRecord:
    """Return the legacy stream of a device's primary context."""
    return _default_record(Queue(LEGACY, device))


def queue_of(native: Any, current: int = 0) -> QueueRecord:  # noqa: C901 - the hot path
    """Return a record of a library's stream, which must outlive the call, as it may have no owner.

    ``current`` is the current context, if the caller knows it. UnsupportedStreamError for an object
    that is no library's stream.
    """
    attributes = getattr(native, "__dict__", None)
    if attributes:
        known: QueueRecord | None = attributes.get("_streamkit_learned")
        if known is None:
            known = attributes.get("_streamkit_queue")  # a view that was made here
        if known is not None:
            return known
    found, adapter = registry.extract(native)
    if found.record is not None:
        if attributes is not None:
            attributes["_streamkit_learned"] = found.record
        return found.record
    if found.handle <= PER_THREAD and not isinstance(found, QueueRecord):
        return _default_record(found, current)
    if type(found) is Queue and not found.dies_with_owner:
        number = driver.id_outside_capture(found.handle)
        known = None if number is None else _learned.get(number)
        if known is not None:
            if found.device not in (None, known.device):
                raise _another_device(found, known)
            if known.core is None:
                _go_with(found.owner, known)
            return known
    return identify(found, adapter, native)


def _new_record(found: Queue, stream: Any, number: int) -> QueueRecord:
    learned = _learned.get(number)
    if learned is None:
        context, device, primary = driver.stream_context(stream)
        queue = QueueRecord(found.handle, device)
        queue.permanent, queue.id, queue.context = found.permanent, number, context
        queue.nonblocking = driver.stream_is_nonblocking(stream)
        if found.permanent or not primary:  # objects of another context may go with it
            queue.owner, queue.primary = found.owner, primary
            return _known.first(number, queue)
        dropped = []  # until the lock is free: the end of its events calls the driver
        with lock:
            if len(_learned) >= _MOST_LEARNED:
                dropped.append(_learned.pop(next(iter(_learned))))
            learned = _learned.setdefault(number, queue)
    if learned.core is None and (found.owner is not None or learned.seen_with is not None):
        _go_with(found.owner, learned)
    return _known.first(number, younger_record(learned, found.owner))


def _go_with(owner: object, learned: QueueRecord) -> None:
    """Let cuda.core's object for a learned queue go with an owner that is not kept.

    That object shares the stream with cuda.core's own objects, and would keep the stream alive.
    """
    learned.seen_with = None
    if owner is None:
        return
    number = learned.id or 0

    def ended(_: object) -> None:
        found = _learned.get(number)
        if found is not None:
            found.core = None

    # with an owner that takes no weak references it stays as long as the record is learned
    with contextlib.suppress(TypeError):
        learned.seen_with = weakref.ref(owner, ended)


def _capturing_record(found: Queue) -> QueueRecord:
    with lock:
        for queue in _known.living():
            if queue.handle == found.handle and is_alive(queue):
                return queue
    context, device, primary = driver.stream_context(found.handle)
    queue = QueueRecord(found.handle, device, found.owner)
    queue.context, queue.primary, queue.permanent = context, primary, found.permanent
    queue.capture = driver.capture_id(found.handle)
    return queue


def _with_owner(
    queue: QueueRecord, owner: object, adapter: Adapter | None, native: object
) -> QueueRecord:
    with lock:
        if adapter is not None and _noted(queue, adapter.name) is native:
            return queue
        if not (owner is None or queue.is_default or queue.owner is owner):
            if queue.owner is None and not (queue.is_owned or queue.permanent):
                queue.owner = owner
            else:
                queue = younger_record(queue, owner)
        if adapter is not None and _noted(queue, adapter.name) is None:
            traits: Traits = getattr(adapter, "traits", USUAL)
            if traits.has_streams and isinstance(native, traits.stream_class or object):
                _remember(queue, adapter.name, traits, native)
    return queue


def younger_record(queue: QueueRecord, owner: object) -> QueueRecord:
    """Return a second record of this queue, which holds another owner and the first record.

    Either owner may be the one that destroys the handle, so what is made through the second holds
    both. The first record does not hold the second owner: it may live for ever, and hold them all.
    """
    return QueueRecord(queue.handle, queue.device, owner, queue)


# -- the libraries' objects on a queue ------------------------------------------------------------


def _noted(queue: QueueRecord, library: str) -> Any:
    """Return a library's object on this queue if one is alive, else None."""
    found = queue.views.get(library)
    return None if found is None else found()


def view(queue: QueueRecord, native: object, served: Adapter, is_here: bool) -> tuple[Any, bool]:  # noqa: FBT001 - by position, which costs less
    """Return that library's object on this queue: the wrapped one, a living one, or a new one.

    The second value is whether the stream may hold it: an object that hides what it holds from the
    garbage collector would never be collected with an owner that holds the stream. ``is_here`` says
    that the caller has made the queue's context current, and restores the one from before.
    """
    traits: Traits = getattr(served, "traits", USUAL)
    may_keep = not traits.hides_owners
    if native is not None and registry.stream_types.get(type(native)) is served:
        return native, may_keep
    with lock:
        found = _noted(queue, served.name) if queue.views else None
        if found is not None:
            return found, may_keep
        if not queue.primary and not traits.any_context:
            raise messages.library_cannot_take(
                served.name,
                "a stream of another context than the device's primary one",
                "it runs in the primary one. Order its own stream after this one: t.wait(s)",
            )
        # building it may initialise the library's device
        borrow = served.borrow
        made = borrow(queue) if is_here else driver.call_in(queue.context, borrow, queue)
        expose_handle(queue, traits.remembers_handles)
        _remember(queue, served.name, traits, made, queue.permanent)
    return made, may_keep


def _remember(
    queue: QueueRecord, name: str, traits: Traits, native: object, is_kept: object = None
) -> None:
    """Note that library's object on this queue, wrapped or made here, while it lives.

    The record keeps an object that was made here for a permanent queue. It keeps streams that are
    values too, for these destroy nothing: torch's (2.11) do not tell weak references when they die.
    """
    if traits.streams_are_values and hasattr(native, "_streamkit_queue"):
        return  # else the two would hold each other
    try:
        view = (lambda: native) if traits.streams_are_values or is_kept else weakref.ref(native)
    except TypeError:  # handles of cuda.bindings take no such references, and are cheap to make
        return
    queue.views = {**queue.views, name: view}


def expose_handle(queue: QueueRecord, remembers: bool) -> None:  # noqa: FBT001 - as above
    """Note that other libraries may have the handle now, and an allocator that ``remembers`` it."""
    record = queue
    while record.older_record is not None:
        record = record.older_record
    if isinstance(record, OwnedQueue):  # the first record, if any, and other handles are exposed
        record.handle_exposed = True
        record.remembered |= remembers


# -- which queues others know -------------------------------------------------------------------


def register(queue: QueueRecord) -> None:
    """Complete the record of a stream that was just created here."""
    queue.context, queue.id = driver.primary_context(queue.device), driver.stream_id(queue.handle)
    _known.first(queue.id, queue)
    for watcher in (*watchers,):
        watcher(queue)


def living() -> list[QueueRecord]:
    """Return the records of all queues that are in use anywhere."""
    return list(_known.living())


def is_alive(queue: QueueRecord) -> bool:
    """Whether the handle surely is this queue, here: to ask about a destroyed handle may crash.

    A handle cannot have been reused while its owner is alive and has not been closed. The handle
    of a per-thread stream is another stream in another thread.
    """
    if queue.thread is not None:
        return queue.thread is this_thread()
    owners = owners_of(queue)
    return owners is None or bool(owners and not any(has_closed(one, queue) for one in owners))


QueueRecord.is_alive = is_alive  # for the adapters too


def owners_of(queue: QueueRecord) -> list[object] | None:
    """Return the known owners of the handle; None if the handle is valid without an owner."""
    owners = []
    for record in queue.all_records():
        if record.is_owned or record.permanent or record.is_default:
            return None
        if record.owner is not None:
            owners.append(record.owner)
    return owners


def owns(owner: object, queue: Queue) -> bool:
    """Whether the owner is a library's stream that still has the queue's handle."""
    try:
        return registry.extract(owner)[0].handle == queue.handle
    except Exception:  # noqa: BLE001 - it is not a stream, it is closed, or its own code fails
        return False


class Closable:
    """A queue whose owner can close it and say so, with the views and plans of a stream on it.

    Each use of the stream asks first whether the owner is open. The stream protocol's question is
    quick; only after another answer, which need not mean a closed owner, the adapter is asked.
    """

    __slots__ = "_adapter", "_answer", "_ask", "plans", "queue", "views"

    def __init__(self, queue: QueueRecord, adapter: Adapter) -> None:
        self.queue, self._adapter, owner = queue, adapter, queue.owner
        by_adapter = functools.partial(adapter.extract, owner)
        self._ask: Callable[[], object] = getattr(owner, "__cuda_stream__", by_adapter)
        try:
            self._answer: object = self._ask()
        except Exception:  # noqa: BLE001 - another thread has closed it meanwhile
            self._answer = None
        self.views: dict[str, Any] = {}
        self.plans: dict[Any, Any] = {}

    def is_open(self) -> bool:
        try:
            return self._ask() == self._answer or not self._is_closed()
        except Exception:  # noqa: BLE001 - the adapter knows which error means closed
            return not self._is_closed()

    def _is_closed(self) -> bool:
        try:
            self._adapter.extract(self.queue.owner)
        except errors.StreamClosedError:
            return True
        except Exception:  # noqa: BLE001 - a fault of the owner's, which does not end the queue
            return False
        return False


def closable(queue: QueueRecord) -> Closable | None:
    """Return the queue as one that the owner can close; None where no owner can tell.

    A library whose streams are fixed, as the adapter says, has no ``close``, and an object that
    only speaks the protocol has no way to say that it is closed.
    """
    owner = queue.owner
    adapter = None if owner is None else registry.stream_types.get(type(owner))
    if adapter is None or queue.dies_with_owner or queue.permanent:
        return None
    traits: Traits = getattr(adapter, "traits", USUAL)
    if traits.streams_are_fixed or not traits.has_streams:
        return None
    return Closable(queue, adapter)


def has_closed(owner: object, queue: Queue) -> bool:
    """Whether the owner is a stream that has given up the handle; other owners cannot tell."""
    adapter = registry.stream_types.get(type(owner))
    if adapter is None:
        return registry.speaks_protocol(owner) and not owns(owner, queue)
    # a library whose streams are fixed has no ``close``
    return not (traits_of(adapter).streams_are_fixed or owns(owner, queue))


def resolve_id(queue: QueueRecord) -> bool:
    """Learn the id of a queue first seen while it captured; False while the capture goes on."""
    if queue.id is None:
        if queue.thread is not None and queue.thread is not this_thread():
            return False  # here its handle is another stream
        with driver.in_context(queue.context):  # the per-thread stream is a context's
            if driver.capture_id(queue.handle) is not None:
                return False
            queue.nonblocking = driver.stream_is_nonblocking(queue.handle)
            queue.id = driver.stream_id(queue.handle)
        _known.first(queue.id, queue)
    return True


def same(one: QueueRecord, other: QueueRecord) -> bool:
    """Whether two records are of one queue."""
    if one is other:
        return True
    if one.device != other.device or one.handle != other.handle:
        return False
    if resolve_id(one) and resolve_id(other):
        return one.id == other.id
    return one.thread is other.thread


def public_id(queue: QueueRecord) -> int | tuple[int, int, int]:
    """Return the driver's id, or (device, handle, capture id) while that cannot be asked."""
    if queue.id is None and not resolve_id(queue):
        return queue.device, queue.handle, queue.capture or 0
    return queue.id or 0
