"""``handoff``: an array goes on to another queue, in order, and lives until that has used it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar, cast

from streamkit._base import messages
from streamkit._base.adapter import Arrays
from streamkit._host.stream import HostStream
from streamkit._queues import keepalive, registry
from streamkit._streams.current import current_stream
from streamkit._streams.wrapping import wrap
from streamkit.protocols import CurrentStream

if TYPE_CHECKING:
    from streamkit._streams.stream import CudaStream
    from streamkit.protocols import Adapter, StreamLike

ArrayT = TypeVar("ArrayT")

_ON_HOST = 1, 3
"""DLPack's device types of host memory, the second of pinned memory."""

_types: dict[type, Adapter] = {}  # whose arrays they are


def handoff(array: ArrayT, stream: StreamLike, *, after: StreamLike | None = None) -> ArrayT:
    """Return the array, to be used on that stream from now on, in order and in safe memory.

    ``stream`` waits, on the device, for ``after``: the current stream of the array's library unless
    another is named. The memory stays the array's until the work that ``stream`` is given while
    anybody holds what is returned, or a view of it, has run: use that, and drop the array. It is
    the array itself, or another of its class on the same memory. If the two streams are one queue
    nothing is done.

    Raises TypeError for what is no array, and for one whose library has no current stream unless
    ``after`` is given; DeviceMismatchError unless the array is of the stream's device; CaptureError
    while either stream captures; and what ``wrap`` raises. Never blocks, except inside ``with s:``
    of a host stream. Safe from any thread.
    """
    target = wrap(stream)
    library, device = _place_of(array)
    if device != target.device_id:
        place = "the host" if device is None else f"cuda:{device}"
        instead = f"the array is on {place}. Copy it, or keep it for a copy with s.keep(array)."
        raise messages.device_mismatch(array, target, instead)
    if after is not None:
        source: Any = wrap(after)
    elif library is not None and device is not None and isinstance(library, CurrentStream):
        source = current_stream(library.name, device=device)
    else:
        raise messages.needs_after(array)
    if source == target:
        return array
    keepalive.drain()
    for side in (source, target):
        if side.is_capturing:
            raise messages.kept_in_capture(side)
    if isinstance(target, HostStream):
        target.wait(source)
        target.keep(array)
        return array
    lent: ArrayT = _lend(array, cast("Any", library), target)
    target.wait(source)
    return lent


def _place_of(array: object) -> tuple[Adapter | None, int | None]:
    """Return the adapter of the array's library, if any, and its CUDA device, None on the host."""
    kind = type(array)
    known = _types.get(kind)
    for adapter in registry.candidates(kind) if known is None else (known,):
        if isinstance(adapter, Arrays):
            try:
                device = adapter.array_device(array)
            except TypeError:  # not its array
                continue
            _types[kind] = adapter
            return adapter, device
    try:
        place, _ = array.__dlpack_device__()  # type: ignore[attr-defined]
    except Exception as error:  # it has none, it is a class, or it knows no such device
        raise messages.not_an_array(array) from error
    if place not in _ON_HOST:
        raise messages.not_an_array(array)
    return None, None


def _lend(array: Any, library: Arrays, target: CudaStream[Any]) -> Any:
    """Return the array, or another on its memory, so that the memory outlives the stream's work."""
    record_stream = getattr(library, "record_stream", None)
    if record_stream is not None and record_stream(array, target.to(library.name)):  # type: ignore[attr-defined]
        return array
    held = getattr(library, "lent_by", _nobody)(array)
    # not the array itself if that is lent, or arrays handed to and fro would hold one another
    lent = held.array if isinstance(held, keepalive.Loan) else array
    return library.lend(array, keepalive.Loan(lent, target._live()))  # noqa: SLF001 - next door


def _nobody(_: object) -> None:
    return
