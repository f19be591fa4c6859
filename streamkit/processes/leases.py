"""``share``: an array that this process keeps for others until its lease ends."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

from streamkit._cuda import devices, driver, events
from streamkit._queues import keepalive, ordering
from streamkit._queues.arrays import place_of
from streamkit._queues.lifetime import InterprocessEvent
from streamkit._streams.handoff import current_of_array
from streamkit._streams.stream import CudaStream, wrap
from streamkit._support import living_processes, messages
from streamkit._support.tokens import EventToken
from streamkit.backends import _managed_tensor
from streamkit.processes import driver as sharing
from streamkit.processes import mappings
from streamkit.processes.array_token import ArrayToken, SharedMemory
from streamkit.processes.kept import Copy, KeptArray

if TYPE_CHECKING:
    from streamkit.backends._managed_tensor import Layout
    from streamkit.protocols import ArrayLike, StreamLike


class Lease:
    """An array that is kept for other processes: what ``share`` returns.

    The lease lasts, with or without this object, until ``close``, or until a receiver has opened
    the array and no receiver has it any more. If this process opened it, the lease lasts until
    nothing else refers to the array. StreamKit notices the end in ``closed``, at the next
    ``share``, and in a few other calls. Safe from any thread.
    """

    def __init__(self, array: KeptArray, token: ArrayToken) -> None:
        self._array = array
        self.token: ArrayToken = token
        """What to send to the other processes; each opens it as often as it likes."""

    @property
    def closed(self) -> bool:
        """Whether the lease has ended, and the array is no longer kept."""
        return self._array.has_ended()

    def close(self) -> None:
        """End the lease: the token opens nothing any more, and the array is no longer kept.

        Whoever has opened it must not use it any more: the memory can be used for something else.
        """
        self._array.end()

    def __reduce__(self) -> NoReturn:
        raise TypeError(f"{self!r} belongs to this process: send lease.token instead.")

    def __repr__(self) -> str:
        return f"<streamkit.Lease {'closed' if self.closed else 'open'} {self.token!r}>"


def share(array: ArrayLike, *, after: StreamLike | None = None, copy: bool = False) -> Lease:
    """Keep an array for other processes, and return the lease with the token that opens it there.

    One lease, one message: a receiver has the array as it is when ``after`` has run what it was
    given so far. Do not write it until the receivers have dropped it. Never blocks, except with
    ``copy``, where new memory can wait for the device. Safe from any thread.

    Args:
        array: Of any library with arrays on CUDA devices. A dtype of several numbers, as Warp's
            vectors, arrives as one more axis.
        after: The stream that has written it. None: the current one of the array's library.
        copy: Keep a copy, made on that stream, and not the array. CUDA shares what cudaMalloc has
            allocated: torch's memory, CuPy's default pool, numba's, and Warp's without its mempool.

    Raises:
        TypeError: ``array`` is not an array of a CUDA device; CUDA cannot share its memory, which
            the message explains; or ``after`` is None, and its library has no current stream.
        ValueError: It has no elements.
        DeviceMismatchError: The stream is of another device.
        CaptureError: The stream captures.
        UnsupportedStreamError: This system does not share memory between processes.
    """
    keepalive.drain()
    try:
        library, device = place_of(array)
    except TypeError as error:
        raise TypeError(
            f"{messages.describe(array)} is not an array, and share lends arrays of a GPU: send it "
            "as it is, by pickle."
        ) from error
    if library is None or device is None:
        raise TypeError(
            f"{messages.describe(array)} is on the host: send it as it is, by pickle or by "
            "multiprocessing.shared_memory."
        )
    source: Any = current_of_array(array, library, device) if after is None else wrap(after)
    if not isinstance(source, CudaStream) or source.device_id != device:
        raise messages.device_mismatch(array, source, "name the stream that has written the array.")
    queue = source._live()
    if ordering.capture_of(queue) is not None:
        raise messages.kept_in_capture(source)
    layout = _layout(array)
    held: Any = array
    with driver.in_context(driver.primary_context(device)):
        if copy:
            first, end = layout.reach()
            held = Copy(driver.primary_context(device), end - first)
            # before the copy, so that the loan ends however the copy does
            loan = keepalive.ArrayLoan((array, held), queue)
            copies = "cuMemcpyDtoDAsync", held.address, first, end - first, queue.handle
            ordering.on(queue, driver.ask, *copies)
            layout = layout.moved(held.address - first)
            del loan
        elif (reason := mappings.why_not(layout.address)) is not None:
            raise TypeError(
                f"{messages.describe(array)} cannot be opened by another process: {reason}. Share "
                "a copy, streamkit.share(array, copy=True), or allocate it by cudaMalloc."
            )
        base, size = sharing.range_of(layout.address)
        memory = SharedMemory(sharing.number_of(base), sharing.memory_handle(base), size)
    event = InterprocessEvent(events.create(queue.context, timing=False, interprocess=True))
    ordering.record(event.handle, queue)
    sent = events.exported(queue.context, event.handle)
    opens = EventToken(living_processes.own_name(), devices.uuid_of(device), sent)
    one = KeptArray(held, library, event)
    try:
        token = ArrayToken(one.name, opens, memory, layout.moved(-base), library.name)
        return Lease(one, token.sealed())
    except BaseException:
        one.end()
        raise


def _layout(array: Any) -> Layout:
    """Return how the array lies in memory; TypeError if it cannot say, ValueError if empty."""
    try:
        layout = _managed_tensor.layout_of(array)
    except Exception as error:
        raise TypeError(f"{messages.describe(array)} cannot be shared: {error}") from error
    if 0 in layout.shape:
        raise ValueError(f"{messages.describe(array)} has no elements to share: send its shape.")
    return layout
