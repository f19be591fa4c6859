"""What a library provides to take part: an adapter, and the groups of functions that it may add.

Authors of adapters import these from ``streamkit.protocols``.

An adapter belongs to a group if it has the functions that are abstract here. Each of the others is
optional, and StreamKit looks for it by ``offered``. ``TOGETHER`` lists those that need each other.
"""

# The optional functions of a group have no body, which pyright takes for one that returns None.
# pyright: reportReturnType=false

from __future__ import annotations

from abc import abstractmethod
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Literal,
    NamedTuple,
    ParamSpec,
    Protocol,
    TypeVar,
    runtime_checkable,
)

from streamkit._support.classes import ProtocolMeta

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Sequence
    from contextlib import AbstractContextManager

    from streamkit.protocols.queues import Queue

GivenT = ParamSpec("GivenT")
ReturnedT = TypeVar("ReturnedT")

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
    stream_class: type | None = None
    """The class that all its functions take, if it has others; ``to`` gives one of the others back
    to the stream that was wrapped from it alone."""
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
    built_for: str | None = None
    """The version of CUDA that it is built for, where the metadata of its package do not tell."""


_USUAL = Traits()


def traits_of(adapter: object) -> Traits:
    """Return the adapter's ``traits``, or the usual ones."""
    traits: Traits = getattr(adapter, "traits", _USUAL)
    return traits


class Group(ProtocolMeta):
    """A group of the contract: ``isinstance`` asks for its abstract functions only.

    Where none is abstract, one of the others is enough.
    """

    def __instancecheck__(cls, adapter: object) -> bool:  # noqa: N805 - the instance is a class
        if Protocol not in cls.__bases__:  # an adapter's own class that is derived from a group
            return type.__instancecheck__(cls, adapter)
        required = cls.__abstractmethods__
        has = (callable(getattr(adapter, name, None)) for name in required or functions(cls))
        return all(has) if required else any(has)


def functions(group: Group) -> list[str]:
    """Return the names of all functions of a group, also the optional ones."""
    return [name for name in vars(group) if name[0] != "_"]


def offered(
    adapter: object, method: Callable[Concatenate[Any, GivenT], ReturnedT]
) -> Callable[GivenT, ReturnedT] | None:
    """Return the adapter's own function for an optional one of a group, None if it has none."""
    found: Callable[GivenT, ReturnedT] | None = getattr(adapter, method.__name__, None)
    # an adapter whose class is derived from a group inherits the group's function, which is empty
    return None if getattr(found, "__func__", None) is method else found


def all_offered(
    adapters: Iterable[object], method: Callable[Concatenate[Any, GivenT], ReturnedT]
) -> list[Callable[GivenT, ReturnedT]]:
    """Return what those of the adapters that have an optional function have for it."""
    return [found for adapter in adapters if (found := offered(adapter, method)) is not None]


# -- current stream ---------------------------------------------------------------------------


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
    set_current: Callable[[], object]
    """Make the stream current again inside such a scope, remembering nothing."""
    keeps_device: bool = True
    """Whether the device that is current stays so: these four change the library's state alone."""
    told_outside: bool = False
    """Whether ``is_current`` is right anywhere, and no other thread can move the library.

    Then ``streamkit.follow`` need not enter what is current already.
    """

    @staticmethod
    def of(
        stream: Any, current: Callable[[], Any], set_current: Callable[[Any], object]
    ) -> Binding:
        """Return the binding for a library that has one call to tell and one to set its stream.

        Args:
            stream: The library's own.
            current: Returns the library's current stream, in this thread.
            set_current: Makes a stream current, without a wait.
        """

        def move(_: object = None) -> None:
            set_current(stream)

        def is_current() -> bool:
            return current() is stream

        return Binding(current, move, set_current, is_current, move, keeps_device=False)


class OwnDevice(NamedTuple):
    """The current device of a library that keeps one apart from the context."""

    current: Callable[[], int]
    """Returns its CUDA ordinal, in this thread."""
    restore: Callable[[int], object]
    """Makes a device, by its ordinal, the current one again; nothing if it is already."""


class LibraryWork(NamedTuple):
    """How to wait for work of a library that is on no stream of the user's.

    StreamKit keeps the work until whoever waits has passed it. Both raise the error of work that
    has failed.
    """

    wait: Callable[[], object]
    """Lets the library's current stream wait; never blocks the host.

    UnsupportedStreamError if the library cannot let a stream wait for it.
    """
    finish: Callable[[], object]
    """Blocks this thread, any one, until the work is done."""


@runtime_checkable
class CurrentStream(Protocol, metaclass=Group):
    """The library has a current stream: ``current`` and ``bind``, the others are optional.

    Instead of ``bind``, a plugin can have ``enter(stream)``, which makes a stream current and
    returns a token, and ``leave(token)``, which restores what was current before.
    """

    @abstractmethod
    def current(self, device: int) -> Any:
        """Return the library's current stream object in this thread.

        Called with the device current. It may initialise the library's CUDA state.

        Args:
            device: The CUDA ordinal.

        Raises:
            NoDeviceError: This build of the library has no CUDA.
        """

    @abstractmethod
    def bind(self, stream: Any) -> Binding:
        """Return the ways in and out for a stream, which are called with its device current.

        ``Binding.of`` makes them of two functions of the library.

        Args:
            stream: The library's own.
        """

    def current_here(self) -> Any:
        """Return the library's current stream object of the current device, in this thread.

        Only worth having if it is cheaper than ``current``.
        """

    def current_context(self) -> int:
        """Return the ``CUcontext`` that is current in this thread, 0 if there is none.

        Only worth having if it is quicker than the driver's bindings.
        """

    def own_device(self) -> OwnDevice:
        """Return what tells and restores the library's current device.

        For a library whose current device is its own, apart from the context. What ``leave`` gets
        puts it back. If the context was another, a scope does so again when that is back.
        """

    def work_of(self, obj: Any) -> LibraryWork:
        """Return how to wait for work of the library that is on no stream of the user's.

        For example for a collective operation of several processes. Streams can wait for it.

        Args:
            obj: Any object that may stand for such work.

        Raises:
            TypeError: It stands for none.
        """


def never_known() -> bool:
    """Answer ``is_current`` where the library cannot say: each scope enters the stream anew."""
    return False


def bind_by_steps(
    enter: Callable[[Any], Any], leave: Callable[[Any], object]
) -> Callable[[Any], Binding]:
    """Return the ``bind`` of an adapter that has ``enter`` and ``leave`` instead."""

    def bind(stream: Any) -> Binding:
        def go_in(token: list[Any]) -> None:
            token += map(enter, (stream,))  # no call here, so no interrupt before the note

        def go_out(token: list[Any]) -> None:
            if token:
                leave(token[0])
                del token[0]

        def set_current() -> None:
            enter(stream)

        return Binding(list, go_in, go_out, never_known, set_current, keeps_device=False)

    return bind


# -- events -----------------------------------------------------------------------------------


@runtime_checkable
class Events(Protocol, metaclass=Group):
    """The library's events can be read and built: the first two, the others are optional."""

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

    def event_device(self, event: Any) -> int | None:
        """Return the CUDA ordinal of an event's device, None if it has none yet.

        Args:
            event: The library's own.
        """

    def record_event(self, event: Any, stream: Any) -> None:
        """Record an event on a stream, where only the library itself can.

        Args:
            event: The library's own.
            stream: The same.
        """


# -- memory -----------------------------------------------------------------------------------


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
    needs_gradient: bool = False
    """Whether the library records what is done with it, which a graph would not."""


class Storage(NamedTuple):
    """The memory that an array and its views share."""

    whole: Any
    """One object for one memory, which holds it."""
    is_own: bool
    """Whether the library has allocated the memory, and frees it when ``whole`` is gone."""
    is_held: Callable[[Any], bool] | None = None
    """Tells whether anything else holds ``whole``, as an array or a view does.

    StreamKit then holds it for a stream that may end before the memory, so that the allocator need
    not remember that stream.
    """


@runtime_checkable
class Memory(Protocol, metaclass=Group):
    """The library's arrays can be handed to another queue: the first two, the others are optional.

    ``pieces_of_memory`` needs no arrays.
    """

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

    def lent_by(self, array: Any) -> Any:
        """Return the owner that an array, or the one it is a view of, was lent with, or None.

        Args:
            array: The library's own.
        """

    def record_stream(self, array: Any, stream: Any) -> bool:
        """Let the library's allocator reuse an array's memory only after the work of a stream.

        Args:
            array: The library's own.
            stream: The same.

        Returns:
            False, and nothing is done, if the memory is not the allocator's.
        """

    def storage_of(self, array: Any) -> Storage:
        """Return the memory of an array, on a device or on the host.

        Args:
            array: The library's own.

        Raises:
            TypeError: It is not one piece of memory, such as a sparse array.
        """

    def adopt(self, memory: Any) -> Any:
        """Return an array on memory, which the array and its views hold; waits for nothing.

        Args:
            memory: An object with ``__dlpack__`` and ``__cuda_array_interface__``.
        """

    def array_layout(self, array: Any) -> ArrayLayout:
        """Return the layout of an array, so that a graph or ``races`` can know it again.

        Args:
            array: The library's own.

        Raises:
            TypeError: It is not one piece of memory.
        """

    def array_like(self, array: Any, device: int) -> Any:
        """Return a new array of the same shape and type on a device, not filled.

        Args:
            array: The library's own.
            device: The CUDA ordinal.
        """

    def copy_array(self, to: Any, source: Any, stream: Any) -> None:
        """Copy an array into another one. One of them can be on the host.

        Args:
            to: The library's own.
            source: The same.
            stream: The library's own, its current one if any.
        """

    def pieces_of_memory(self) -> Iterable[tuple[int, int]]:
        """Return the address and the bytes of each piece of CUDA memory in use, for ``races``."""


# -- capture ----------------------------------------------------------------------------------


class Settings(NamedTuple):
    """What a program can set in a library, in this thread, that changes what its calls compute."""

    names: tuple[str, ...]
    """What each is called, as in "grad mode"."""
    read: Callable[[], tuple[Hashable, ...]]
    """Returns what each is now, in the order of the names, and equal if nothing was set meanwhile.

    Each call of a graphed function calls it, also while the thread captures. So it is quick, and
    asks the driver nothing that breaks a capture. What it returns is held as long as the graph. A
    value that is equal to no other keeps a call from being a graph, where the library has to see
    all that the function does.
    """


class NeedsFunction:
    """The value of a setting under which a library has to see all that the function does.

    It is equal to no other, so that no call is a graph's.
    """

    def __str__(self) -> str:
        return "on, which needs the function itself"


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


class JoinedPart(CapturePart, Protocol):
    """The part of a library in a capture that another one, or the driver, has begun."""

    @abstractmethod
    def free_deferred(self) -> None:
        """Free what captures and graphs held; what cannot be freed now waits for the next call.

        Called at the end of a whole capture, before its graph can run. Nothing captures in this
        thread. It must not wait.
        """


class CapturedGraph(Protocol):
    """An executable graph, as ``end`` of the part that began the capture returns it."""

    graph: int
    """The ``CUgraph``, kept to be looked at."""
    executable: int
    """The ``CUgraphExec``."""
    shared: str | None
    """What graphs that were captured on one stream share and cannot use at once, if anything."""

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
class Capture(Protocol, metaclass=Group):
    """The library takes part in captures, which needs a current stream. All is optional."""

    def prepare(self, *, empties_cache: bool) -> None:
        """Make what the library makes at its first use, because a capture forbids it.

        Called before anything captures, for the current device.

        Args:
            empties_cache: Many graphs have ended. A library that gives each the memory of a pool of
                its own then gives the device back what it has in its cache, which may wait for it.
        """

    def settings(self) -> Settings:
        """Return the library's settings, which a graph has as they were at its capture.

        ``graphed`` asks for them once, and reads them at each call: under others it has another
        graph. The current device is not one of them, because ``graphed`` knows it.
        """

    def begins_capture(self, stream: Any, mode: str, origin: Any) -> CapturePart:
        """Return the part that begins the capture; its ``end`` gives a CapturedGraph.

        For a library that takes part only in captures that it has begun, one at a time.

        Args:
            stream: The library's own.
            mode: "global", "thread_local" or "relaxed".
            origin: The library's own too, which no other graph has. A library whose graphs must not
                end while others live that began on their stream begins here; ``stream`` then joins.
                The same as ``stream`` if that is the graph's alone.
        """

    def joins_capture(self, stream: Any, mode: str) -> JoinedPart:
        """Return the part that joins a capture.

        For a library that has to know of captures that others begin, one at a time.

        Args:
            stream: The library's own.
            mode: As in ``begins_capture``.
        """

    def around_capture(self, *, captures: bool) -> AbstractContextManager[object]:
        """Return the block in which this thread does what is captured.

        It can let the library allocate from a new pool, and give the pool, which the graph then
        holds. That is dropped when the graph is destroyed, and what StreamKit's streams and the
        libraries' current ones had been given by then has run. What it frees then must not wait.

        It can also have the calling thread give the GPU all work of the block, where the library
        has threads of its own for some of it. There the current streams of other libraries are
        others, and a capture is not seen.

        Args:
            captures: False for a call of a function that is captured later, which no graph holds.
        """

    def detached(self, array: Any) -> Any:
        """Return an array of a result without what it remembers of how it was made, or itself.

        For a library whose arrays keep alive the work that made them, with the streams on which
        that ran.

        Args:
            array: The library's own.
        """

    def explain_capture(self, error: Exception) -> str | None:
        """Return what to do about an error inside a capture, None if unknown.

        Args:
            error: The library's own.
        """


# -- diagnosis --------------------------------------------------------------------------------


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
class Diagnosis(Protocol, metaclass=Group):
    """What ``doctor`` and ``races`` learn from the library. All is optional."""

    def diagnose(self) -> Iterable[Finding]:
        """Return what is wrong now in the process or this thread, nothing if all is well.

        Called if the library is loaded and there is a CUDA device, whose primary context is
        current. It only looks: it changes nothing, and breaks no capture.
        """

    def explain_kernel(self, name: str, parameters: Sequence[bytes]) -> Iterable[MemoryUse] | None:
        """Return all memory that a kernel of the library uses, None if that is not known.

        StreamKit then looks for addresses in the parameters itself.

        Args:
            name: The kernel's name, as the library's source has it.
            parameters: The bytes of each.
        """

    def watch_operators(
        self, tell: Callable[[str, Sequence[ArrayUse], bool], None]
    ) -> AbstractContextManager[None]:
        """Return a context in which the library tells what each of its operators does.

        It counts for the thread that entered it, and for arrays in the memory of the host, of which
        ``storage_of`` and ``array_layout`` tell more. Outside of it the library is as it was.

        Args:
            tell: Is called after each operator that uses such an array: with the operator's name,
                how it uses each of the arrays, and whether that is all. It writes what it returns.
        """


class ArrayUse(NamedTuple):
    """How an operator, or a call, uses an array."""

    array: Any
    """The library's own."""
    mode: Literal["read", "write", "unknown"]
    """``"write"`` if it only writes it. An operator that reads it too uses it twice."""
    is_sure: bool
    """Whether it surely uses all of it."""


GROUPS = CurrentStream, Events, Memory, Capture, Diagnosis

TOGETHER = (("array_layout", "array_like", "copy_array"),)
"""The optional functions that StreamKit looks for by the first of them, and then calls too."""
