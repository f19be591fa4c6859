"""The contract of a library that takes part: an adapter, and groups of functions that it may add.

Authors of adapters import these from ``streamkit.protocols``.

An adapter belongs to a group if it has the functions that are abstract here. Each of the others is
optional, and StreamKit looks for it by ``offered``. ``TOGETHER`` lists those that need each other.
Unless a docstring says otherwise, the ``stream``, ``event`` or ``array`` that a function is given
is an object of its own library, and ``device`` is a CUDA ordinal.
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
    """A module or an object that reads and builds one library's streams, by these names.

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
            obj: Any object that may be such a stream.

        Raises:
            UnsupportedStreamError: It is none; any TypeError will do. StreamKit then asks the next
                adapter and at last the CUDA stream protocol.
        """

    @abstractmethod
    def borrow(self, queue: Queue) -> Any:
        """Return the library's genuine stream object on a queue.

        Called with the queue's context current, which StreamKit restores afterwards.

        Args:
            queue: The stream object has to keep it alive.
        """


class Traits(NamedTuple):
    """The traits of a library; an adapter without ``traits`` has the values given here."""

    streams_are_fixed: bool = False
    """One object means one queue for life, so ``wrap`` need not read it again."""
    streams_are_values: bool = False
    """Its stream objects destroy nothing, and any two on a queue can replace each other. Weak
    references to them do not tell when they die."""
    stream_class: type | None = None
    """The class that all its functions take, if it has several. ``to`` returns an object of another
    class only for the stream that was wrapped from that object."""
    hides_owners: bool = False
    """The garbage collector cannot see what the library's objects hold."""
    any_context: bool = False
    """The library takes streams of other contexts than the device's primary one."""
    remembers_handles: bool = True
    """Its allocator knows streams by handle, so a stream that it saw is parked, not destroyed."""
    has_streams: bool = True
    """The library has a stream class of its own."""
    starts_on_default: bool = True
    """Its current stream is a default one until a program changes it."""
    built_for: str | None = None
    """The version of CUDA that the library is built for, if its package's metadata do not tell."""
    handle_0: int | None = None
    """The default stream that handle 0 means, 1 or 2; None if the environment tells."""


USUAL = Traits()


def traits_of(adapter: object) -> Traits:
    """Return the adapter's ``traits``, or the usual ones."""
    traits: Traits = getattr(adapter, "traits", USUAL)
    return traits


class Group(ProtocolMeta):
    """A group of the contract: ``isinstance`` asks for its abstract functions only.

    If a group has no abstract function, any one of its functions is enough.
    """

    def __instancecheck__(cls, adapter: object) -> bool:  # noqa: N805 - the instance is a class
        if Protocol not in cls.__bases__:  # an adapter's own class that is derived from a group
            return type.__instancecheck__(cls, adapter)
        required = cls.__abstractmethods__
        has = (callable(getattr(adapter, name, None)) for name in required or functions(cls))
        return all(has) if required else any(has)


def functions(group: Group) -> list[str]:
    """Return the names of all functions of a group, including the optional ones."""
    return [name for name in vars(group) if name[0] != "_"]


def offered(
    adapter: object, method: Callable[Concatenate[Any, GivenT], ReturnedT]
) -> Callable[GivenT, ReturnedT] | None:
    """Return the adapter's function of that name, None if it leaves the optional function out."""
    found: Callable[GivenT, ReturnedT] | None = getattr(adapter, method.__name__, None)
    # an adapter whose class is derived from a group inherits the group's function, which is empty
    return None if getattr(found, "__func__", None) is method else found


def all_offered(
    adapters: Iterable[object], method: Callable[Concatenate[Any, GivenT], ReturnedT]
) -> list[Callable[GivenT, ReturnedT]]:
    """Return the optional function of each adapter that has it."""
    return [found for adapter in adapters if (found := offered(adapter, method)) is not None]


# -- current stream ---------------------------------------------------------------------------


class Binding(NamedTuple):
    """The functions that make one stream current in its library, prepared once for many scopes.

    A scope first calls ``save`` of every library, and then ``enter`` of every library. A Ctrl-C can
    come after any call that these functions make. ``leave`` puts the library back all the same.
    """

    save: Callable[[], Any]
    """Look at what is current, and change nothing; return the token for ``enter`` and ``leave``."""
    enter: Callable[[Any], object]
    """Make the stream current, without a wait. The token may be changed, to tell ``leave``."""
    leave: Callable[[Any], object]
    """Restore exactly what was current at ``save``.

    StreamKit calls it even if ``enter`` was interrupted or never called, and again if ``leave`` is
    interrupted.
    """
    is_current: Callable[[], bool]
    """Whether this very stream object is current now.

    Asked only inside a scope of the stream, unless ``told_outside``.
    """
    set_current: Callable[[], object]
    """Make the stream current again inside such a scope, remembering nothing."""
    keeps_device: bool = True
    """Whether these functions leave the current device alone, and change only the library."""
    told_outside: bool = False
    """Whether ``is_current`` is right anywhere, and no other thread can move the library.

    Then ``streamkit.follow`` need not enter a stream that is current already.
    """

    @staticmethod
    def of(
        stream: Any, current: Callable[[], Any], set_current: Callable[[Any], object]
    ) -> Binding:
        """Return the binding for a library that has one call to tell and one to set its stream.

        Args:
            stream: The stream to bind.
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
    """Returns the CUDA ordinal of the library's current device, in this thread."""
    restore: Callable[[int], object]
    """Makes the device of an ordinal current again; does nothing if it is current already."""


class LibraryWork(NamedTuple):
    """Two ways to wait for work of a library that is on no stream of the user's.

    StreamKit keeps the work until whoever waits has passed it. Both raise the error of work that
    has failed.
    """

    wait: Callable[[], Iterable[Storage]]
    """Lets the library's current stream wait; never blocks the host.

    Returns the memory of the result that a library gives back by itself, as far as it is known.
    UnsupportedStreamError if the library cannot let a stream wait for it.
    """
    finish: Callable[[], object]
    """Blocks the calling thread, whichever it is, until the work is done."""


@runtime_checkable
class CurrentStream(Protocol, metaclass=Group):
    """The library has a current stream: ``current`` and ``bind``, the others are optional.

    Instead of ``bind``, a plugin can have ``enter(stream)``, which makes a stream current and
    returns a token, and ``leave(token)``, which restores what was current before.
    """

    @abstractmethod
    def current(self, device: int) -> Any:
        """Return the library's current stream object in this thread.

        Called with the device current. The call may initialise the library's CUDA state.

        Raises:
            NoDeviceError: This build of the library has no CUDA.
        """

    @abstractmethod
    def bind(self, stream: Any) -> Binding:
        """Return the binding of a stream, whose functions are called with its device current.

        ``Binding.of`` makes one of two functions of the library.
        """

    def current_here(self) -> Any:
        """Return the library's current stream object of the current device, in this thread.

        Only worth having if this is cheaper than ``current``.
        """

    def current_context(self) -> int:
        """Return the ``CUcontext`` that is current in this thread, 0 if there is none.

        Only worth having if this is quicker than the driver's bindings.
        """

    def own_device(self) -> OwnDevice:
        """Return the functions that tell and restore the library's current device.

        For a library whose current device is its own, apart from the context. A scope restores it
        after it has restored another context.
        """

    def work_of(self, obj: Any) -> LibraryWork:
        """Return how to wait for work of the library that is on no stream of the user's.

        An example is a collective operation of several processes, for which streams can wait.

        Args:
            obj: Any object that may stand for such work.

        Raises:
            TypeError: It stands for none.
        """


def never_known() -> bool:
    """Answer ``is_current`` for a library that cannot say, so each scope enters the stream anew."""
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
    """The library's events can be read: the first function, the others are optional."""

    @abstractmethod
    def event_handle(self, event: Any) -> int:
        """Return the ``cudaEvent_t``, 0 if the library has not created it yet.

        Args:
            event: Any object that may be one of the library's events.

        Raises:
            UnsupportedStreamError: It is none; any TypeError will do.
        """

    def borrow_event(self, handle: int, device: int, owner: object) -> Any:
        """Return the library's event object on a ``handle``, a ``cudaEvent_t``.

        The event object has to keep ``owner`` alive.
        """

    def event_device(self, event: Any) -> int | None:
        """Return the CUDA ordinal of an event's device, None if it has none yet."""

    def record_event(self, event: Any, stream: Any) -> None:
        """Record an event on a stream, where only the library itself can."""


# -- memory -----------------------------------------------------------------------------------


class ArrayLayout(NamedTuple):
    """The place of an array's memory, and how its elements lie in it."""

    address: int
    """The address of the first element."""
    shape: tuple[int, ...]
    """The number of elements along each axis."""
    strides: tuple[int, ...]
    """The distance in bytes between neighbours along each axis."""
    dtype: Hashable
    """The type of an element, and whatever else says how its bytes are read."""
    itemsize: int
    """The bytes of an element."""
    needs_gradient: bool = False
    """Whether the library records operations on the array, which a graph would not do."""


class Storage(NamedTuple):
    """The memory that an array and its views share."""

    whole: Any
    """The one object that holds this memory."""
    is_own: bool
    """Whether the library has allocated the memory, and frees it when ``whole`` is gone."""
    is_held: Callable[[Any], bool] | None = None
    """Tells whether anything else holds ``whole``, as an array or a view does.

    StreamKit then holds ``whole`` for a stream that may end before the memory, so that the
    allocator need not remember that stream.
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
        """Return a second array, of the same class and memory, that keeps ``owner`` alive.

        Its views, and what other libraries make of it, keep it alive too; ``array`` does not.
        """

    def lent_by(self, array: Any) -> Any:
        """Return the owner that an array, or the one it is a view of, was lent with, or None."""

    def record_stream(self, array: Any, stream: Any) -> bool:
        """Let the library's allocator reuse an array's memory only after the work of a stream.

        Returns:
            False, and nothing is done, if the memory is not the allocator's.
        """

    def storage_of(self, array: Any) -> Storage:
        """Return the memory of an array, on a device or on the host.

        Raises:
            TypeError: It is not one piece of memory, such as a sparse array.
        """

    def adopt(self, memory: Any) -> Any:
        """Return an array on memory that the array and its views then hold; waits for nothing.

        Args:
            memory: An object with ``__dlpack__`` and ``__cuda_array_interface__``.
        """

    def array_layout(self, array: Any) -> ArrayLayout:
        """Return the layout of an array, by which a graph or ``races`` recognises it.

        Raises:
            TypeError: It is not one piece of memory.
        """

    def array_like(self, array: Any, device: int) -> Any:
        """Return a new array of the same shape and type on a device, not filled."""

    def copy_array(self, to: Any, source: Any, stream: Any) -> None:
        """Copy the array ``source`` into ``to``. Either can be on the host.

        If the library has a current stream, ``stream`` is that one.
        """

    def pieces_of_memory(self) -> Iterable[tuple[int, int]]:
        """Return the address and the bytes of each piece of CUDA memory in use, for ``races``."""


# -- capture ----------------------------------------------------------------------------------


class Settings(NamedTuple):
    """The settings of a library, in this thread, that change the results of its calls."""

    names: tuple[str, ...]
    """The name of each setting, as in "grad mode"."""
    read: Callable[[], tuple[Hashable, ...]]
    """Returns the present values, in the order of the names; equal if nothing was set meanwhile.

    Each call of a graphed function calls ``read``, also while the thread captures. So ``read`` has
    to be quick, and must ask the driver nothing that breaks a capture. The graph holds the values.
    A value that is equal to no other keeps a call from being a graph, where the library has to see
    all that the function does.
    """
    weights_of: Callable[[Any], tuple[int, ...] | None] | None = None
    """Returns the present addresses of the arrays of a model; None for any other object."""


class NeedsFunction:
    """The value of a setting under which a library has to see all that the function does.

    Such a value is equal to no other, so that no call is a graph's.
    """

    def __str__(self) -> str:
        return "on, which needs the function itself"


class CapturePart(Protocol):
    """One library's part in a capture, during which its stream is the library's current one."""

    @abstractmethod
    def begin(self) -> None:
        """Begin the part."""

    @abstractmethod
    def end(self) -> Any:
        """End a part that went well; return an object for the graph to hold."""

    @abstractmethod
    def abandon(self) -> None:
        """End the part if it was begun, in whatever state; leave the library as it was before."""


class JoinedPart(CapturePart, Protocol):
    """The part of a library in a capture that another one, or the driver, has begun."""

    @abstractmethod
    def free_deferred(self) -> None:
        """Free what captures and graphs held; leave the rest, if any, for the next call.

        Called at the end of a whole capture, before its graph can run, while nothing captures in
        this thread. The function must not wait.
        """


class CapturedGraph(Protocol):
    """An executable graph, as ``end`` of the part that began the capture returns it."""

    graph: int
    """The ``CUgraph``, from which nodes and pictures are read."""
    executable: int
    """The ``CUgraphExec``."""
    shared: str | None
    """The resource that graphs captured on one stream share and cannot use at once, if any."""

    @abstractmethod
    def launch(self, stream: Any) -> bool | None:
        """Queue a run; return whether the driver may launch the executable from now on."""

    @abstractmethod
    def close(self) -> None:
        """Destroy graph and executable; no launch still runs, and this thread captures nothing."""


@runtime_checkable
class Capture(Protocol, metaclass=Group):
    """The library, which has a current stream, takes part in captures. All is optional."""

    def prepare(self, *, empties_cache: bool) -> None:
        """Set the library up for the current device before a capture, which would forbid that.

        Args:
            empties_cache: Many graphs have ended. A library that gives each graph a memory pool
                then returns its cached memory to the device, which may wait for the device.
        """

    def settings(self) -> Settings:
        """Return the library's settings, which a graph has as they were at its capture.

        ``graphed`` asks for them once, and reads their values at each call: other values need
        another graph. The current device is no setting here, because ``graphed`` knows it.
        """

    def begins_capture(self, stream: Any, mode: str, origin: Any) -> CapturePart:
        """Return the part that begins the capture; its ``end`` gives a CapturedGraph.

        For a library that takes part only in captures that it has begun, one at a time.

        Args:
            stream: The stream that the user captures.
            mode: "global", "thread_local" or "relaxed".
            origin: A stream of the library that no other graph has; ``stream`` itself if that is
                the graph's alone. A library whose graphs must not end while others live that began
                on the same stream begins on ``origin``, and lets ``stream`` join.
        """

    def joins_capture(self, stream: Any, mode: str) -> JoinedPart:
        """Return the part that joins a capture, with ``stream`` and ``mode`` of ``begins_capture``.

        For a library that has to know of captures that others begin, one at a time.
        """

    def around_capture(self, *, captures: bool) -> AbstractContextManager[object]:
        """Return the context in which this thread submits the work that is captured.

        The context can let the library allocate from a new pool, and give that pool to the graph,
        which holds it. The pool is dropped once the graph is destroyed and all work has run that
        StreamKit's streams and the libraries' current ones had by then. Its end must not wait.

        The context can also have the calling thread submit all work of the block, if the library
        has threads of its own for some of it. Those threads have other current streams, and do not
        see the capture.

        Args:
            captures: False for a call of a function that is captured later, which no graph holds.
        """

    def detached(self, array: Any) -> Any:
        """Return a result's array without its memory of how it was made, or the array itself.

        For a library whose arrays keep alive the work that made them, with the streams on which
        that work ran.
        """

    def explain_capture(self, error: Exception) -> str | None:
        """Return the remedy for an ``error`` of the library in a capture, None if unknown."""


# -- diagnosis --------------------------------------------------------------------------------


class Finding(NamedTuple):
    """Something wrong that ``streamkit.doctor()`` tells, with what to do about it."""

    code: str
    """The kind of finding, in a word that scripts can rely on, as in "two-views"."""
    what: str
    """What is wrong, with which object, in one sentence."""
    remedy: str
    """What to do."""
    library: str | None = None
    """The name of the library that the finding concerns, if it concerns one."""


class MemoryUse(NamedTuple):
    """Memory that a kernel uses, as its parameters tell."""

    address: int
    """The address of the first element. One without memory behind it is left out."""
    mode: Literal["read", "write", "unknown"]
    """"write" also if the kernel reads the memory too."""
    shape: tuple[int, ...] | None = None
    """The number of elements along each axis; None if any memory after the address may be used."""
    strides: tuple[int, ...] = ()
    """The distance in bytes between neighbours along each axis."""
    itemsize: int = 1
    """The bytes of an element."""
    is_sure: bool = False
    """Whether the kernel surely uses all of these elements."""


@runtime_checkable
class Diagnosis(Protocol, metaclass=Group):
    """Functions by which ``doctor`` and ``races`` ask the library. All are optional."""

    def diagnose(self) -> Iterable[Finding]:
        """Return the faults found now in the process or this thread, none if all is well.

        Called if the library is loaded and there is a CUDA device, whose primary context is
        current. The function changes nothing, and breaks no capture.
        """

    def explain_kernel(self, name: str, parameters: Sequence[bytes]) -> Iterable[MemoryUse] | None:
        """Return all memory that a kernel of the library uses, None if that is not known.

        Given None, StreamKit looks for addresses in the parameters itself.

        Args:
            name: The kernel's name, as the library's source has it.
            parameters: The bytes of each parameter.
        """

    def watch_operators(
        self, tell: Callable[[str, Sequence[tuple[Any, ...]], bool], None]
    ) -> AbstractContextManager[None]:
        """Return a context in which the library tells what each of its operators does.

        The context counts for the thread that entered it until any thread leaves it, and for arrays
        in host memory, of which ``storage_of`` and ``array_layout`` tell more. Nothing stays.

        Args:
            tell: Is called after each operator that uses such an array, with the operator's name,
                its use of each array, as an ``ArrayUse`` or a tuple with the same fields, and
                whether that is all. An operator writes its results.
        """


class ArrayUse(NamedTuple):
    """How an operator, or a call, uses an array."""

    array: Any
    """An array of the library."""
    mode: Literal["read", "write", "unknown"]
    """``"write"`` if the array is only written. An operator that reads it too has two uses."""
    is_sure: bool
    """Whether all of the array is surely used."""
    memory: tuple[Any, ...] | None = None
    """``storage_of`` and ``array_layout`` in one, where they are at hand.

    These are ``whole`` and ``is_own``, the layout, and whether this is all that is to know. The
    layout has the address, the shape, the strides, their unit, and an element's size and type.
    """


GROUPS = CurrentStream, Events, Memory, Capture, Diagnosis

TOGETHER = (("array_layout", "array_like", "copy_array"),)
"""Optional functions that go together: an adapter that has the first has to have the others."""
