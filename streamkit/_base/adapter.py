"""What a library provides to take part: an adapter, and the capabilities that it may add.

Authors of adapters import these from ``streamkit.protocols``.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Sequence
    from contextlib import AbstractContextManager

    from streamkit._base.queue import Queue

API = 1
"""The version of the adapter contract; an adapter states the one it was written for."""


@runtime_checkable
class Adapter(Protocol):
    """How one library's streams are read and built: a module or an object with these names.

    ``name`` is what users write in ``to(name)`` and the root package of the library's types;
    register it as an entry point of that name in the group ``streamkit.backends``.

    An optional attribute ``traits`` says what is special about the library.
    """

    name: str
    api: int

    @abstractmethod
    def extract(self, obj: Any) -> Queue:
        """Return the queue of one of this library's streams.

        Args:
            obj: Any object that may be one.

        Raises:
            UnsupportedStreamError: It is none; any TypeError will do. StreamKit then asks the next
                adapter and at last the CUDA stream protocol.
        """

    @abstractmethod
    def borrow(self, queue: Queue) -> Any:
        """Return the library's genuine stream object on a queue.

        Called with the queue's context current; what it makes current instead is undone.

        Args:
            queue: The object has to keep it alive.
        """


class Traits(NamedTuple):
    """What is special about a library; these are the values of an adapter without ``traits``."""

    streams_are_fixed: bool = False
    """One object means one queue for life, so ``wrap`` need not read it again."""
    streams_are_values: bool = False
    """Its objects destroy nothing, and any two on a queue can replace each other. Weak references
    to them do not tell when they die."""
    hides_owners: bool = False
    """The garbage collector cannot see what its objects hold."""
    any_context: bool = False
    """It takes streams of other contexts than the device's primary one."""
    remembers_handles: bool = True
    """Its allocator knows streams by handle, so one that it saw is parked, not destroyed."""
    has_streams: bool = True
    """It has a stream class of its own."""
    starts_on_default: bool = True
    """Its current stream is a default one until a program changes it."""


_USUAL = Traits()


def traits_of(adapter: object) -> Traits:
    """Return the adapter's ``traits``, or the usual ones."""
    traits: Traits = getattr(adapter, "traits", _USUAL)
    return traits


@runtime_checkable
class CurrentStream(Protocol):
    """Capability: the library has a current stream.

    Called with the stream's device current.
    """

    @abstractmethod
    def current(self, device: int) -> Any:
        """Return the library's current stream object in this thread.

        It may initialise the library's CUDA state.

        Args:
            device: The CUDA ordinal.

        Raises:
            NoDeviceError: This build of the library has no CUDA.
        """

    @abstractmethod
    def enter(self, stream: Any) -> Any:
        """Make a stream current, without a wait; return what undoes it.

        Args:
            stream: The library's own.
        """

    @abstractmethod
    def leave(self, token: Any) -> None:
        """Restore exactly what was current before an ``enter``.

        Args:
            token: What that ``enter`` returned.
        """


@runtime_checkable
class CurrentHere(Protocol):
    """Capability beside ``CurrentStream``: a cheap ``current`` of whatever device is current."""

    @abstractmethod
    def current_here(self) -> Any:
        """Return the library's current stream object of the current device, in this thread."""


@runtime_checkable
class TellsContext(Protocol):
    """Capability beside ``CurrentStream``: a quicker answer than that of the driver's bindings."""

    @abstractmethod
    def current_context(self) -> int:
        """Return the ``CUcontext`` that is current in this thread, 0 if there is none."""


@runtime_checkable
class TracksDevice(Protocol):
    """Capability beside ``CurrentStream``: a current device of its own, apart from the context.

    ``leave`` puts it back. If the context was another, a scope does so again when that is back.
    """

    @abstractmethod
    def current_device(self) -> int:
        """Return the CUDA ordinal of the library's current device, in this thread."""

    @abstractmethod
    def restore_device(self, device: int) -> None:
        """Make a device the library's current one again; nothing if it is already.

        Args:
            device: The CUDA ordinal.
        """


class Finding(NamedTuple):
    """Something wrong that ``streamkit.doctor()`` tells, with what to do about it."""

    code: str
    """What it is, in a word that scripts can rely on, as in "two-views"."""
    what: str
    """What is wrong, with which object, in one sentence."""
    remedy: str
    """What to do."""
    library: str | None = None
    """The name of the library that it concerns, if it is one."""


@runtime_checkable
class Diagnoses(Protocol):
    """Capability: the adapter finds what is wrong in its library, for ``streamkit.doctor()``."""

    @abstractmethod
    def diagnose(self) -> Iterable[Finding]:
        """Return what is wrong now in the process or this thread, nothing if all is well.

        Called if the library is loaded and there is a CUDA device, whose primary context is
        current. It only looks: it changes nothing, and breaks no capture.
        """


class Binding(NamedTuple):
    """The ways of one stream in and out of its library, prepared once for many scopes.

    A scope first calls ``save`` of every library, and then ``enter`` of every library. A Ctrl-C can
    come after any call that these functions make. ``leave`` puts the library back all the same.
    """

    save: Callable[[], Any]
    """Look at what is current, and change nothing; return the token for ``enter`` and ``leave``."""
    enter: Callable[[Any], object]
    """Make the stream current, without a wait. The token may be changed, to tell ``leave``."""
    leave: Callable[[Any], object]
    """Restore exactly what was current at ``save``.

    It is called however far ``enter`` came, or not at all, and again if it is interrupted.
    """
    is_current: Callable[[], bool]
    """Whether the stream, this very object, is current now; asked inside such a scope only.

    Unless it is ``told_outside``.
    """
    set_current: Callable[[], None]
    """Make the stream current again inside such a scope, remembering nothing."""
    keeps_device: bool = True
    """Whether the device that is current stays so: these four change the library's state alone."""
    told_outside: bool = False
    """Whether ``is_current`` is right anywhere, and no other thread can move the library.

    Then ``streamkit.follow`` need not enter what is current already.
    """


@runtime_checkable
class BindsCurrent(Protocol):
    """Capability beside ``CurrentStream``: what a scope calls is prepared once for a stream.

    Then a scope costs what the library's own calls do, and a nested one of the same stream only a
    look. ``enter, leave = unbound(bind)`` gives the two functions of ``CurrentStream``.
    """

    @abstractmethod
    def bind(self, stream: Any) -> Binding:
        """Return the ways in and out for a stream.

        Args:
            stream: The library's own.
        """


def unbound(
    bind: Callable[[Any], Binding],
) -> tuple[Callable[[Any], Any], Callable[[Any], None]]:
    """Return ``enter(stream)`` and ``leave(token)`` as an adapter's ``bind`` makes them.

    Args:
        bind: The function of ``BindsCurrent``.
    """

    def enter(stream: Any) -> Any:
        binding = bind(stream)
        token = binding.save()
        try:
            binding.enter(token)
        except BaseException:
            binding.leave(token)
            raise
        return binding, token

    def leave(token: Any) -> None:
        binding, inner = token
        binding.leave(inner)

    return enter, leave


@runtime_checkable
class Events(Protocol):
    """Capability: the library's events can be read and built."""

    @abstractmethod
    def event_handle(self, event: Any) -> int:
        """Return the ``cudaEvent_t``, 0 if the library has not created it yet.

        Args:
            event: Any object that may be one of the library's events.

        Raises:
            UnsupportedStreamError: It is none; any TypeError will do.
        """

    @abstractmethod
    def borrow_event(self, handle: int, device: int, owner: object) -> Any:
        """Return the library's event object on a handle.

        Args:
            handle: The ``cudaEvent_t``.
            device: The CUDA ordinal.
            owner: The object has to keep it alive.

        Raises:
            UnsupportedStreamError: The library cannot wrap an event.
        """


@runtime_checkable
class LocatesEvents(Protocol):
    """Capability beside ``Events``: the library's events name their device."""

    @abstractmethod
    def event_device(self, event: Any) -> int | None:
        """Return the CUDA ordinal of an event's device, None if it has none yet.

        Args:
            event: The library's own.
        """


@runtime_checkable
class RecordsEvents(Protocol):
    """Capability beside ``Events``: the library must record its events itself."""

    @abstractmethod
    def record_event(self, event: Any, stream: Any) -> None:
        """Record an event on a stream.

        Args:
            event: The library's own.
            stream: The same.
        """


@runtime_checkable
class OrdersWork(Protocol):
    """Capability beside ``CurrentStream``: the library has work that is on no stream of the user's.

    For example a collective operation of several processes. Streams wait for the object that stands
    for it.
    """

    @abstractmethod
    def is_work(self, obj: Any) -> bool:
        """Whether an object stands for such work of the library.

        Args:
            obj: Any object.
        """

    @abstractmethod
    def wait_for_work(self, work: Any) -> None:
        """Let the library's current stream wait for work; never blocks the host.

        It raises the error of work that has failed.

        Args:
            work: The library's own. StreamKit keeps it until the stream has passed the wait.

        Raises:
            UnsupportedStreamError: The library cannot let a stream wait for it.
        """

    @abstractmethod
    def finish_work(self, work: Any) -> None:
        """Block this thread, any one, until work is done; raise its error.

        Args:
            work: The library's own.
        """


@runtime_checkable
class Arrays(Protocol):
    """Capability: the library's arrays can be handed to another queue."""

    @abstractmethod
    def array_device(self, array: Any) -> int | None:
        """Return the CUDA ordinal of an array's device, None for the host.

        Args:
            array: Any object that may be one of the library's arrays.

        Raises:
            TypeError: It is none.
        """

    @abstractmethod
    def lend(self, array: Any, owner: object) -> Any:
        """Return an array of the same class on the same memory that holds an owner.

        So do its views, and what other libraries make of it; ``array`` itself does not.

        Args:
            array: The library's own.
            owner: What is kept alive.
        """


@runtime_checkable
class RecordsStreams(Protocol):
    """Capability beside ``Arrays``: the library's allocator can wait for the work of a stream."""

    @abstractmethod
    def record_stream(self, array: Any, stream: Any) -> bool:
        """Reuse an array's memory only after the work of a stream.

        Args:
            array: The library's own.
            stream: The same.

        Returns:
            False, and nothing is done, if the memory is not the allocator's.
        """


@runtime_checkable
class CountsHolders(Protocol):
    """Capability beside ``Arrays``: it can be asked whether an array's memory is still in use.

    Then StreamKit holds the memory for a stream that may end before it, and the library's allocator
    need not remember that stream.
    """

    @abstractmethod
    def memory_of(self, array: Any) -> Any:
        """Return an object that holds an array's memory: one object for one memory.

        None if the memory is not the allocator's.

        Args:
            array: The library's own.
        """

    @abstractmethod
    def is_held(self, memory: Any) -> bool:
        """Whether anything else holds the memory, as an array or a view does.

        Args:
            memory: What ``memory_of`` returned.
        """


@runtime_checkable
class KnowsLoans(Protocol):
    """Capability beside ``Arrays``: an array that was lent is known again."""

    @abstractmethod
    def lent_by(self, array: Any) -> Any:
        """Return the owner that an array, or the one it is a view of, was lent with, or None.

        Args:
            array: The library's own.
        """


@runtime_checkable
class AdoptsMemory(Protocol):
    """Capability beside ``Arrays``: memory that somebody else holds can be one of its arrays."""

    @abstractmethod
    def adopt(self, memory: Any) -> Any:
        """Return an array on memory, which the array and its views hold; waits for nothing.

        Args:
            memory: An object with ``__dlpack__`` and ``__cuda_array_interface__``.
        """


class ArrayLayout(NamedTuple):
    """Where an array's memory is, and how it lies there."""

    address: int
    """Of the first element."""
    shape: tuple[int, ...]
    """The number of elements along each axis."""
    strides: tuple[int, ...]
    """In bytes."""
    dtype: Hashable
    """The type of an element, and whatever else says how its bytes are read."""
    itemsize: int
    """The bytes of an element."""


@runtime_checkable
class CopiesArrays(Protocol):
    """Capability beside ``Arrays``: a graph can know an array again, and have a copy of it."""

    @abstractmethod
    def array_layout(self, array: Any) -> ArrayLayout:
        """Return the layout of an array.

        Args:
            array: The library's own.

        Raises:
            ValueError: It needs a gradient, which a graph would not record.
            TypeError: It is not one piece of memory.
        """

    @abstractmethod
    def array_like(self, array: Any, device: int) -> Any:
        """Return a new array of the same shape and type on a device, not filled.

        Args:
            array: The library's own.
            device: The CUDA ordinal.
        """

    @abstractmethod
    def copy_array(self, to: Any, source: Any, stream: Any) -> None:
        """Copy an array into another one. One of them can be on the host.

        Args:
            to: The library's own.
            source: The same.
            stream: The library's own, its current one if any.
        """


# -- what work does with memory -----------------------------------------------------------------


class MemoryUse(NamedTuple):
    """Memory that a kernel uses, as its parameters tell."""

    address: int
    """Of the first element. An address without memory behind it is left out."""
    mode: Literal["read", "write", "unknown"]
    """"write" also if it reads it too."""
    shape: tuple[int, ...] | None = None
    """The number of elements along each axis; None if it may use all that follows the address."""
    strides: tuple[int, ...] = ()
    """In bytes."""
    itemsize: int = 1
    """The bytes of an element."""
    is_sure: bool = False
    """Whether it surely uses all of these elements."""


@runtime_checkable
class ExplainsKernels(Protocol):
    """Capability: what the library's kernels do with memory can be told, for ``races``."""

    @abstractmethod
    def explain_kernel(self, name: str, parameters: Sequence[bytes]) -> Iterable[MemoryUse] | None:
        """Return all memory that a kernel uses, None if its parameters are not known.

        StreamKit then looks for addresses in them itself.

        Args:
            name: The kernel's name, as the library's source has it.
            parameters: The bytes of each.
        """


@runtime_checkable
class TellsMemory(Protocol):
    """Capability: it is known where the library's memory is, for ``races``."""

    @abstractmethod
    def pieces_of_memory(self) -> Iterable[tuple[int, int]]:
        """Return the address and the bytes of each piece of CUDA memory that is in use."""

    @abstractmethod
    def memory_layout(self, array: Any) -> ArrayLayout:
        """Return the layout of an array, also of one that needs a gradient.

        Args:
            array: The library's own.

        Raises:
            TypeError: It is not one piece of memory.
        """


# -- capture ----------------------------------------------------------------------------------


class CapturePart(Protocol):
    """One library's part in a capture; its stream is the library's current one all the while."""

    @abstractmethod
    def begin(self) -> None:
        """Begin it."""

    @abstractmethod
    def end(self) -> Any:
        """End it well; return what the graph then holds."""

    @abstractmethod
    def abandon(self) -> None:
        """End it if it was begun, in whatever state; the library is afterwards as before."""


class CapturedGraph(Protocol):
    """An executable graph, as ``end`` of the part that began the capture returns it."""

    graph: int
    """The ``CUgraph``, kept to be looked at."""
    executable: int
    """The ``CUgraphExec``."""

    @abstractmethod
    def launch(self, stream: Any) -> bool | None:
        """Queue a run; return whether the driver may launch the executable from now on.

        Args:
            stream: The library's own.
        """

    @abstractmethod
    def close(self) -> None:
        """Destroy both; no launch runs any more, and no capture goes on here."""


@runtime_checkable
class BeginsCapture(Protocol):
    """Capability: captures that the library takes part in are begun by it, one at a time."""

    @abstractmethod
    def begins_capture(self, stream: Any, mode: str) -> CapturePart:
        """Return the part that begins the capture; its ``end`` gives a CapturedGraph.

        Args:
            stream: The library's own.
            mode: "global", "thread_local" or "relaxed".
        """


@runtime_checkable
class JoinsCapture(Protocol):
    """Capability: the library has to know of captures that others begin, one at a time."""

    @abstractmethod
    def joins_capture(self, stream: Any, mode: str) -> CapturePart:
        """Return the part that joins a capture.

        Args:
            stream: The library's own.
            mode: As in ``begins_capture``.
        """


@runtime_checkable
class PreparesCapture(Protocol):
    """Capability: the library makes things at their first use, which a capture forbids."""

    @abstractmethod
    def prepare(self) -> None:
        """Make them for the current device; called before anything captures."""


@runtime_checkable
class PoolsMemory(Protocol):
    """Capability: this thread can allocate from a pool of its own, which a graph then holds."""

    @abstractmethod
    def pool(self) -> AbstractContextManager[object]:
        """Allocate from a new pool in the block, also while this thread captures; give the pool.

        It is dropped when the graph is destroyed, and what StreamKit's streams and the libraries'
        current ones had been given by then has run. What it frees then must not wait.
        """


@runtime_checkable
class GivesMemory(Protocol):
    """Capability: other libraries can allocate from the library's pool, by ``share_pool``."""

    @abstractmethod
    def allocate(self, size: int, device: int, stream: int) -> int:
        """Return the address of new memory, which work on a stream may use from now on.

        Any thread may call it, and the stream may capture.

        Args:
            size: In bytes; the address of none may be 0.
            device: Its ordinal.
            stream: The handle; 0 is the legacy stream.

        Raises:
            CaptureError: The pool has no memory for a graph. The library takes its own, if it can.
        """

    @abstractmethod
    def free(self, pointer: int) -> None:
        """Give memory back to the stream for which it was taken; destructors call this.

        Args:
            pointer: What ``allocate`` returned.

        Raises:
            CaptureError: Not while the stream captures: the library tries again later.
        """


@runtime_checkable
class TakesMemory(Protocol):
    """Capability: the library can allocate from another one's pool, by ``share_pool``."""

    @abstractmethod
    def take_memory(self, giver: GivesMemory) -> Callable[[], bool]:
        """Allocate from there from now on, in the whole process; free what is held unused.

        An array goes back there also after the end. If the library is on another stream when it
        drops the array, the stream for which it was taken waits for that one first.

        Args:
            giver: The adapter of the other library.

        Returns:
            What restores the allocator. It answers False, and does nothing, if that was changed.
        """


@runtime_checkable
class DefersFrees(Protocol):
    """Capability: the library frees what captures and graphs held only when it is asked to.

    Only a library that joins captures is asked.
    """

    @abstractmethod
    def free_deferred(self) -> None:
        """Free it, without a wait; what cannot be freed now waits for the next call.

        Called at the end of each whole capture, before its graph can run. Nothing captures in this
        thread.
        """


@runtime_checkable
class ExplainsCapture(Protocol):
    """Capability: the library's errors inside a capture can be explained."""

    @abstractmethod
    def explain_capture(self, error: Exception) -> str | None:
        """Return what to do about an error inside a capture, None if unknown.

        Args:
            error: The library's own.
        """
