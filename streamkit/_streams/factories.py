"""Streams that no library made: from a handle, new ones, and the default streams."""

from __future__ import annotations

from streamkit._cuda import devices, driver
from streamkit._queues import identity, keepalive, lifetime
from streamkit._streams import host_stream
from streamkit._streams.host_stream import HostStream
from streamkit._streams.stream import CudaStream
from streamkit._support.messages import describe
from streamkit.errors import StreamKitError, UnsupportedStreamError
from streamkit.protocols import Stream
from streamkit.protocols.queues import LEGACY, PER_THREAD, Queue


def from_handle(handle: int, *, device: object = None, owner: object = None) -> CudaStream[None]:
    """Return a stream on a raw ``cudaStream_t``. Safe from any thread.

    Args:
        handle: It must be valid: CUDA cannot tell. 0 and 1 are the legacy default stream, 2 the
            per-thread one.
        device: Where a default stream is; None for the current device. For others the driver knows.
        owner: What the handle dies with; kept alive.

    Raises:
        UnsupportedStreamError: ``handle`` is not an int. It is a TypeError too.
        ValueError: ``handle`` is out of range.
        DeviceMismatchError: The driver disagrees with ``device``.
        NoDeviceError: There is no CUDA here.
    """
    if isinstance(handle, bool) or not isinstance(handle, int):
        raise UnsupportedStreamError(
            f"a stream handle is an int (a cudaStream_t), not {describe(handle)}: write int(x) for "
            "another library's integer. Stream objects go to streamkit.wrap(obj)."
        )
    if not 0 <= handle < 2**64:
        raise ValueError(f"a stream handle lies between 0 and 2**64 - 1, not {handle}.")
    found = Queue(int(handle), devices.ordinal_of(device), owner)
    if owner is not None and identity.has_closed(owner, found):  # a stream of another handle,
        found.owner = owner = (owner,)  # which cannot tell when this one ends
    queue = identity.identify(found)
    if owner is not None and queue.owner is not owner:  # a default stream, or an owned one
        queue = identity.younger_record(queue, owner)
    stream = CudaStream(None, None)
    stream._set_queue(queue, int(handle))  # noqa: SLF001 - no method for users
    return stream


Stream.from_handle = staticmethod(from_handle)  # type: ignore[method-assign]  # the same function


def new_stream(
    device: object = None,
    *,
    nonblocking: bool = False,
    priority: int | str | None = None,
    name: str | None = None,
) -> CudaStream[None] | HostStream:
    """Return a new stream, owned by StreamKit; on the host where there is no GPU.

    Safe from any thread.

    Args:
        device: An ordinal, "cuda:N" or "cpu". None: the current CUDA device; the host, if there is
            no driver library or it reports no device.
        nonblocking: Make it without the implicit order with the legacy default stream, on which
            Warp's memory and libraries that launch on stream 0 rely.
        priority: "high", "low", or an int in the device's range. Host streams take any int, and all
            have one priority.
        name: What ``repr``, errors and audits call it.

    Raises:
        ValueError: ``device`` is not a device, or ``priority`` is out of the range that the message
            gives.
        NoDeviceError: A CUDA device is named and absent.
        DriverError: The driver is there and fails.

    >>> sk.new_stream("cpu", name="mine")
    <streamkit.HostStream 'mine' cpu id=...>
    """
    keepalive.drain()
    if devices.on_host(device):
        _check_priority(priority)
        return HostStream(name=name, nonblocking=bool(nonblocking))
    ordinal = devices.ordinal_or_current(device)
    context = driver.primary_context(ordinal)
    # the highest is smaller
    lowest, highest = driver.call_in(context, driver.ask, "cuCtxGetStreamPriorityRange")
    chosen = _priority(priority, int(lowest), int(highest))
    queue = lifetime.create(ordinal, nonblocking=bool(nonblocking), priority=chosen)
    queue.name = name
    identity.register(queue)
    return CudaStream(queue, None, name=name)


def _check_priority(priority: object) -> None:
    is_int = isinstance(priority, int) and not isinstance(priority, bool)
    if not is_int and priority not in (None, "high", "low"):
        raise ValueError(f"priority {priority!r} is neither an int nor 'high' nor 'low'")


def _priority(priority: int | str | None, least: int, greatest: int) -> int:
    _check_priority(priority)
    if priority is None:
        return min(0, least)
    if isinstance(priority, str):
        return greatest if priority == "high" else least
    if not greatest <= priority <= least:
        raise ValueError(
            f"priority {priority} is outside this device's range: {least} (low) to {greatest} "
            "(high). CUDA would clamp it in silence."
        )
    return priority


def default_stream(
    device: object = None, *, per_thread: bool = False
) -> CudaStream[None] | HostStream:
    """Return the legacy default stream of a device, or this thread's own default stream.

    Args:
        device: As in ``new_stream``.
        per_thread: Return this thread's own; other threads get ScopeError from its use.
    """
    if devices.on_host(device):
        return host_stream.per_thread.stream if per_thread else host_stream.default_stream
    handle = PER_THREAD if per_thread else LEGACY
    return CudaStream(identity.identify(Queue(handle, devices.ordinal_of(device))), None)


def is_available() -> bool:
    """Whether ``new_stream()`` would be a CUDA stream; makes no stream and no context.

    False too where ``new_stream()`` would raise: ``doctor`` says why. The first call starts the
    driver, after which no forked process can use CUDA. Safe from any thread.
    """
    try:
        return driver.is_available()
    except StreamKitError:
        return False
