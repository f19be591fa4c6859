"""The receiver's part: the token that opens an array, and ``open_event``."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from streamkit import errors
from streamkit._cuda import driver, events
from streamkit._queues import keepalive, ordering, registry, waits
from streamkit._queues.lifetime import InterprocessEvent, OpenedEvent
from streamkit._streams.event import CudaEvent, exported
from streamkit._streams.handoff import lend
from streamkit._streams.stream import CudaStream, wrap
from streamkit._support import living_processes, messages, tokens
from streamkit._support.tokens import EventToken, Token
from streamkit.backends import _managed_tensor
from streamkit.backends._managed_tensor import DescribedMemory, Layout
from streamkit.processes import driver as sharing
from streamkit.processes import kept
from streamkit.processes.kept import Copy
from streamkit.processes.mappings import Mapping, SharedAllocation
from streamkit.protocols import Memory
from streamkit.protocols.adapters import offered

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Self

    from streamkit._support.living_processes import LockedFile
    from streamkit.protocols import StreamLike
    from streamkit.protocols.queues import QueueRecord

_ENDS_WITHIN = 1.0  # seconds, for a process that was killed
_LEASE = re.compile(r"\.\d+")  # the end of a lease's file name, after the name of its process
_LIBRARY = re.compile(r"[\w.-]{1,100}")
_MOST_AXES = 64
_NEWEST_CODE = 17  # of DLPack's types
_MOST_BITS, _MOST_LANES = 255, (1 << 16) - 1  # the most that DLPack can say


class SharedMemory(NamedTuple):
    """The allocation that an array of a token lies in."""

    number: int
    """Its number in the process of the sender, because CUDA uses its handles again."""
    handle: bytes
    size: int
    """Its bytes."""


class ArrayToken(Token):
    """A token that opens an array of another process: ``token.open(stream)``. It can be pickled.

    For programs that unpickle nothing, ``bytes(token)`` gives bytes that
    ``streamkit.processes.token_from_bytes`` reads.
    """

    __slots__ = ("_event", "_layout", "_lease", "_library", "_memory", "uuid")

    _kind = "array"

    def __init__(
        self, lease: str, event: EventToken, memory: SharedMemory, layout: Layout, library: str
    ) -> None:
        super().__init__(event.process)
        self.uuid: str = event.uuid
        """The UUID of the array's device, as CUDA_VISIBLE_DEVICES takes it."""
        self._lease, self._event, self._library = lease, event, library
        self._memory = memory
        self._layout = layout  # whose address counts from the beginning of the allocation

    def open(self, stream: StreamLike, library: str | None = None) -> Any:
        """Return the array on a stream, after what the sender's stream was given before.

        The memory is the sender's. It is kept until the array and its views are dropped, and the
        stream has run what it had by then. While the sender's stream has not yet written the array,
        this thread waits, without the GIL, so that it notices if the sender dies: a stream would
        then wait for ever. In the process of the sender only the stream waits. Safe from any
        thread.

        Args:
            stream: Any library's, of the array's device; errors as those of ``wrap``.
            library: Whose array it is to be. None: the sender's, which has to be imported here.

        Returns:
            An array on the sender's memory. In the process of the sender the array itself, or
            another of its class on the same memory.

        Raises:
            StreamClosedError: The lease has ended, or the process of the sender.
            ValueError: The process that the token names has not made it.
            NoDeviceError: This process does not see the array's device.
            DeviceMismatchError: The stream is of another device, or of the host.
            UnsupportedStreamError: The library is not imported, or has no arrays that could be
                this one.
            CaptureError: The stream captures.
        """
        target: Any = wrap(stream)
        device = sharing.device_of(self.uuid)
        if not isinstance(target, CudaStream) or target.device_id != device:
            raise messages.device_mismatch(
                self, target, f"open it on a stream of cuda:{device}, and copy it from there."
            )
        queue = target._live()
        if ordering.capture_of(queue) is not None:
            raise messages.kept_in_capture(target)
        keepalive.drain()
        if living_processes.is_own(self._process):
            self.check()
            return self._open_here(target, queue, library)
        adopt = self._adopt(library)
        self.check()
        context = driver.primary_context(device)
        entered = kept.enter(self._lease)
        if entered is None:
            raise messages.gone(self, self._process)
        try:
            with driver.beside_captures():
                memory = self._memory_after_sender(context, entered)
            return adapt(adopt, self._layout.moved(memory.base), device, memory, queue)
        except BaseException as error:
            kept.leave(entered)
            # a sender ends in steps, and calls fail before the last one
            if isinstance(error, errors.DriverError) and waits.ask(
                lambda: not living_processes.is_alive(self._process), _ENDS_WITHIN, waits.LOOK
            ):
                raise messages.gone(self, self._process) from error
            raise

    def _memory_after_sender(self, context: int, entered: LockedFile) -> Mapping:
        """Return the sender's memory, which holds the lease, once it is written."""
        opened = sharing.open_event(context, self._event.handle)
        if opened is None:
            raise messages.gone(self, self._process)
        event = InterprocessEvent(opened)

        def is_written() -> bool:
            if events.is_done(event.handle):
                return True
            if not living_processes.is_alive(self._process):
                raise messages.gone(self, self._process)
            return False

        waits.ask(is_written, None, waits.LOOK)
        number, handle, size = self._memory
        memory = Mapping(SharedAllocation(self._process, number, handle, context), entered)
        if memory.is_gone or not entered.is_linked():  # the owner has closed the lease meanwhile
            raise messages.gone(self, self._process)
        with driver.in_context(context):
            start, found = sharing.range_of(memory.base)
        if start + found < memory.base + size:
            raise ValueError(
                f"{messages.describe(self)} is of an allocation of {size} bytes, and CUDA has "
                f"opened one of {found}: no array was made. Share the array again."
            )
        return memory

    def _open_here(self, target: CudaStream[Any], queue: QueueRecord, library: str | None) -> Any:
        found = kept.find(self._lease)
        array = None if found is None else found.array
        if found is None or array is None:  # another thread is ending the lease
            raise messages.gone(self, self._process)
        ordering.wait_event(queue, found.event.handle)
        if not isinstance(array, Copy) and library in (None, self._library):
            opened = lend(array, found.library, target, queue)
        else:
            is_copy = isinstance(array, Copy)
            own = self._layout.moved(array.address) if is_copy else _managed_tensor.layout_of(array)
            opened = adapt(self._adopt(library), own, queue.device, array, queue)
        found.was_opened_here = True  # not before: an error here leaves the lease to others
        return opened

    def _adopt(self, library: str | None) -> Callable[[Any], Any]:
        """Return what makes an array of the library whose array ``open`` is to return."""
        name = self._library if library is None else library
        if library is None and name not in registry.loaded():
            raise errors.UnsupportedStreamError(
                f"the array is one of {name}, which this process has not imported. Import it, or "
                f"name another library: token.open(stream, library=...)."
            )
        adapter = registry.adapter(name)
        adopt = offered(adapter, Memory.adopt)
        if adopt is None:
            raise messages.library_cannot_take(
                adapter.name, "an array of another process", "name a library with arrays"
            )
        return adopt

    def _content(self) -> dict[str, Any]:
        number, handle, size = self._memory
        return {
            "event": self._event._content(),  # noqa: SLF001 - another class of tokens
            "lease": self._lease.removeprefix(self._process),
            "library": self._library,
            "memory": [number, handle.hex(), size],
            "layout": self._layout,
        }

    @classmethod
    def _of(cls, content: dict[str, Any]) -> Self:
        event = EventToken._of(content["event"])  # noqa: SLF001 - another class of tokens
        lease = event.process + tokens.text(content["lease"], _LEASE)
        number, handle, size = content["memory"]
        memory = SharedMemory(tokens.number(number), tokens.handle(handle), tokens.number(size))
        offset, *rest = content["layout"]
        shape, strides, element = (tuple(map(tokens.number, part)) for part in rest)
        code, bits, lanes = element
        layout = Layout(tokens.number(offset), shape, strides, (code, bits, lanes))
        _check(layout, memory.size)
        return cls(lease, event, memory, layout, tokens.text(content["library"], _LIBRARY))

    def __repr__(self) -> str:
        shape = "x".join(map(str, self._layout.shape)) or "scalar"
        return f"<streamkit.ArrayToken {shape} of {self._library} on {self.uuid}>"


def _check(layout: Layout, size: int) -> None:
    """Refuse a layout that no array in so many bytes has; ValueError names the fault."""
    _, shape, strides, (code, bits, lanes) = layout
    if len(shape) != len(strides) or len(shape) > _MOST_AXES:
        raise ValueError(f"it has {len(shape)} lengths and {len(strides)} strides")
    if min(shape, default=1) < 1:
        raise ValueError(f"a length of {min(shape)}")
    is_known = 0 <= code <= _NEWEST_CODE
    if not (is_known and 0 < bits <= _MOST_BITS and 0 < lanes <= _MOST_LANES):
        raise ValueError(f"DLPack has no type of code {code} with {bits} bits and {lanes} lanes")
    first, end = layout.reach()
    if first < 0 or end > size:
        raise ValueError(f"the array is at {first} to {end} of an allocation of {size} bytes")


def adapt(
    adopt: Callable[[Any], Any],
    layout: Layout,
    device: int,
    memory: object,
    queue: QueueRecord,
) -> Any:
    """Return an array of the library on memory that is kept until the queue has passed its end."""
    loan = keepalive.ArrayLoan(memory, queue)
    described = DescribedMemory(layout, device, loan)
    return driver.call_in(driver.primary_context(device), described.adopted, adopt)


def token_from_bytes(data: bytes) -> ArrayToken | EventToken:
    """Return the token from the bytes that ``bytes(token)`` gave. Nothing is unpickled.

    Args:
        data: As they came from the other process.

    Raises:
        TypeError: They are not of type bytes.
        ValueError: They are not a token, a part of one, or one of another version.
    """
    return cast("ArrayToken | EventToken", tokens.read(data))


def open_event(token: EventToken) -> CudaEvent:
    """Return the event of another process, or of this one, from what ``event.export()`` gave.

    A stream of any library and device waits for it by ``s.wait(event)``: for the record of which
    the other process has told before, as ``export`` says. It can be recorded here too. If that
    process is killed meanwhile, the stream waits for ever, because CUDA does not notice.

    Args:
        token: As it came, by pickle or as bytes through ``streamkit.processes.token_from_bytes``.

    Raises:
        TypeError: It is not a token of an event.
        NoDeviceError: This process does not see the event's device.
        StreamClosedError: The event is gone, or its process has ended.
        ValueError: The process that the token names has not made it.
    """
    if not isinstance(token, EventToken):
        raise TypeError(
            f"{messages.describe(token)} is not the token of an event, which event.export() "
            "returns."
        )
    if living_processes.is_own(token.process):
        event = exported.get(token.handle)
        if event is None or event.closed:
            raise messages.gone(token, token.process)
        return event
    ordinal = sharing.device_of(token.uuid)
    token.check()
    if not living_processes.is_alive(token.process):
        raise messages.gone(token, token.process)

    def open_on(device: int) -> InterprocessEvent:
        handle = sharing.open_event(driver.primary_context(device), token.handle)
        if handle is None:
            raise messages.gone(token, token.process)
        return InterprocessEvent(handle)

    return CudaEvent(ordinal, OpenedEvent(ordinal, open_on))
