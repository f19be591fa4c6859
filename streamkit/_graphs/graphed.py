"""``graphed``: a function captured once for each signature of its arguments, then launched."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
import threading
import traceback
import types
import warnings
import weakref
from collections import OrderedDict
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, ParamSpec, TypeVar, overload

from streamkit._cuda import devices, driver
from streamkit._graphs import checks, differences, results, settings
from streamkit._graphs.capture import around, capture_on
from streamkit._graphs.graph import in_order_with_libraries
from streamkit._graphs.signatures import Signature, replaced
from streamkit._queues import active_captures, loaded_libraries, open_scopes, ordering
from streamkit._queues.lifetime import OwnedEvent
from streamkit._streams import host_stream
from streamkit._streams.current import use
from streamkit._streams.factories import new_stream
from streamkit._streams.host_stream import HostStream
from streamkit._streams.stream import wrap
from streamkit._support import messages, refusals
from streamkit.errors import CaptureError

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Hashable
    from typing import Self

    from streamkit._graphs.graph import CudaGraph
    from streamkit._graphs.signatures import Arguments, FoundArray
    from streamkit._streams.stream import CudaStream
    from streamkit.protocols import StreamLike

P = ParamSpec("P")
T = TypeVar("T")

_turn = threading.RLock()  # as the locks below not made anew: no forked child has a GPU
"""Held while a graphed function captures, because torch and Warp can be in one capture at a time.

With ``copy`` held while it runs too, because torch refuses random numbers beside a capture.
"""


class _Seen(NamedTuple):
    """A signature without a graph."""

    is_due: bool
    """Whether to capture the next call."""
    objects: tuple[weakref.ref[Any], ...]
    """The objects that its key holds weakly."""


@dataclasses.dataclass(eq=False)
class _Captured:
    """A graph of one signature."""

    graph: CudaGraph
    result: Any  # a template: see ``results``
    objects: tuple[weakref.ref[Any], ...]  # as those of ``_Seen``
    own: list[Any]  # the graph's copies of the arguments' arrays, with ``copy``
    made: list[FoundArray]  # the arrays of its result, with ``copy``
    moved: frozenset[str]  # the libraries whose arrays are copied
    last: OwnedEvent  # after the last use of either
    last_queue: Callable[[], object] = lambda: None  # of that use: a weak reference
    lock: threading.Lock = dataclasses.field(default_factory=threading.Lock)
    """Held from the first copy of a call to its last one."""


@overload
def graphed(
    fn: Callable[P, T],
    *,
    max_graphs: int = ...,
    copy: bool = ...,
    stream: StreamLike | None = ...,
    weights: bool = ...,
    fallback: bool = ...,
) -> GraphedFunction[P, T]: ...
@overload
def graphed(
    fn: None = ...,
    *,
    max_graphs: int = ...,
    copy: bool = ...,
    stream: StreamLike | None = ...,
    weights: bool = ...,
    fallback: bool = ...,
) -> Callable[[Callable[P, T]], GraphedFunction[P, T]]: ...
def graphed(  # noqa: PLR0913 - options, each by its name
    fn: Callable[P, T] | None = None,
    *,
    max_graphs: int = 16,
    copy: bool = False,
    stream: StreamLike | None = None,
    weights: bool = False,
    fallback: bool = False,
) -> GraphedFunction[P, T] | Callable[[Callable[P, T]], GraphedFunction[P, T]]:
    """Return a function that launches ``fn`` as a CUDA graph from its third equal call on.

    A decorator, ``@streamkit.graphed``, or a call. Calls with new arguments run ``fn`` until one
    has succeeded. The next one captures it, and later ones launch it, without Python. Calls share a
    graph if their arrays, also in tuples, lists, dicts, dataclasses and keywords, have the same
    address, shape, strides, type and device, and if all else is equal and of the same type. The
    current device counts too, and what is set in the libraries that changes what they compute, such
    as torch's grad mode. What else ``fn`` reads is as it was at the capture: closures, attributes,
    the state of a module. ``f.explain(*args)`` says what sets a call apart.

    An object that is equal only to itself, such as the instance of a method, is not kept alive; its
    graphs go with it. A value that cannot be hashed is compared at each call, and copied for the
    first call and the graph.

    Safe to call from any thread. Without ``copy`` results are the graph's memory until its next
    launch, by whatever thread. That waits for the present end of the stream of the launch before:
    what was read there by then is right. Results have no gradients, so ``fn`` itself has to call
    ``backward``. On a host stream and inside another capture ``fn`` is run.

    The function raises, beside the errors of ``fn``: TypeError for an array of the host, because a
    graph would keep the values of the capture, and for a value that can be neither hashed nor
    copied; ValueError for an array that requires a gradient; CaptureError, with the line, if ``fn``
    does what cannot be captured.

    Args:
        fn: What to call and capture; None where the decorator has options.
        max_graphs: How many graphs are held; a new one takes the place of the least recently used.
        copy: Copy arguments in and results out, in order, so that several threads and streams can
            call the function at once, and results are the caller's. Addresses do not count. What
            ``fn`` writes into arguments is copied back; ValueError if two of them overlap,
            TypeError for an array that no adapter copies.
        stream: Where all its graphs are launched. None: on the stream of the scope around the call,
            else in order with all libraries.
        weights: Let the addresses of parameters and buffers count, of each module that ``fn`` is,
            is a method of, names as a variable, or is given.
        fallback: Warn once instead of the CaptureError, and call ``fn`` for these arguments.

    Returns:
        A ``GraphedFunction``; without ``fn``, a decorator that makes one.

    Raises:
        TypeError: ``fn`` is not a function, or is a generator or coroutine, whose work comes after
            the call.
        ValueError: ``max_graphs`` is less than 1.
    """
    if not isinstance(max_graphs, int) or max_graphs < 1:
        raise ValueError(f"max_graphs is {messages.describe(max_graphs)}: use 1 or more.")
    target = None if stream is None else wrap(stream)

    def decorate(fn: Callable[P, T]) -> GraphedFunction[P, T]:
        refusals.check_captured(fn)
        return GraphedFunction(
            fn, max_graphs, target, copies=copy, weights=weights, fallback=fallback
        )

    return decorate if fn is None else decorate(fn)


class GraphedFunction(Generic[P, T]):
    """A function that ``graphed`` has made. Safe to call from any thread."""

    captures: int
    """How many graphs were captured."""
    hits: int
    """How many calls launched a graph that was there already."""

    def __init__(  # noqa: PLR0913 - the options of ``graphed``
        self,
        fn: Callable[P, T],
        max_graphs: int,
        stream: CudaStream[Any] | HostStream | None,
        *,
        copies: bool,
        weights: bool,
        fallback: bool,
    ) -> None:
        self.__qualname__ = repr(fn)  # if it has no name, as a partial has none
        functools.update_wrapper(self, fn)
        self._fn = fn
        self._max_graphs = max_graphs
        self._stream = stream
        self._copies = copies
        self._weights = weights
        self._fallback = fallback
        self._has_warned = False
        self._lock = threading.Lock()  # of the tables below, never held while the function runs
        self._captured: OrderedDict[Hashable, _Captured] = OrderedDict()
        self._seen: OrderedDict[Hashable, _Seen] = OrderedDict()
        self._has_dead = False  # whether an object has died that a key holds weakly
        self.captures = self.hits = 0

    @overload
    def __get__(self, instance: None, owner: type | None = None) -> Self: ...
    @overload
    def __get__(self, instance: object, owner: type | None = None) -> Callable[..., T]: ...
    def __get__(self, instance: object, owner: type | None = None) -> Self | Callable[..., T]:
        """Bind it as a method: the instance is an argument like others."""
        return self if instance is None else types.MethodType(self, instance)

    def __repr__(self) -> str:
        return f"<streamkit.GraphedFunction {self.__qualname__}, {self.graphs} graphs>"

    def __reduce__(self) -> str:
        """Go to another process by name, as a function does; graphs stay where they are."""
        return str(self.__qualname__)

    @property
    def graphs(self) -> int:
        """How many graphs are held, one for each signature."""
        return len(self._captured)

    def clear(self) -> None:
        """Give up all graphs, once their last runs have ended; the next calls begin anew."""
        with self._lock:
            dropped = self._captured, self._seen
            self._captured, self._seen = OrderedDict(), OrderedDict()
        del dropped  # outside of the lock: objects of a graph or a key can have finalizers

    def explain(self, *args: P.args, **kwargs: P.kwargs) -> str:
        """Say what a call with these arguments would do outside of captures, and why; call nothing.

        The text says how the call differs from the most similar one that has a graph, as in
        "argument 0: shape (3,) instead of (4,)".

        Args:
            *args: Those of the call; for a method the instance first.
            **kwargs: The same.
        """
        target = self._target()
        if isinstance(target, HostStream):
            return "it calls the function: on the host there are no graphs"
        call = self._read(args, kwargs, target)
        with self._lock:
            if call.key in self._captured:
                return "it launches the graph that is held"
            seen, is_full = self._seen.get(call.key), self.graphs == self._max_graphs
            others = list(self._captured or self._seen)
        if seen is None:
            what = "it calls the function, because it is the first call"
            what += " of its kind" if others else ""
        elif seen.is_due:
            what = "it captures the function, because it is the second call of its kind"
        else:
            return "it calls the function, which could not be captured at a call of its kind"
        why = differences.from_nearest(call.key, [one for one in others if one != call.key])
        full = f"all {self._max_graphs} graphs are held, so the least recently used one goes"
        return "; ".join(filter(None, (what, why, full if is_full else "")))

    # -- a call -----------------------------------------------------------------------------------

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> T:
        """Call the function, or launch its graph."""
        target = self._target()
        if isinstance(target, HostStream):
            return self._run((args, kwargs))
        if self._has_dead:
            self._forget_dead()
        call = self._read(args, kwargs, target)
        if target is not None and target.is_capturing:
            return self._run(call.arguments)
        here = driver.primary_context(driver.current_device()) if target is None else target.context
        if driver.ensure_in(here, checks.a_library_captures_here):  # maybe by another thread
            return self._call(call.arguments)
        captured = self._find(call)
        if captured is None:
            seen = self._seen.get(call.key)
            waits = self._copies and (seen is None or seen.is_due)
            has_turn = (waits or self._is_due(call)) and _turn.acquire(blocking=waits)
            try:
                if has_turn:
                    captured = self._find(call)  # another thread may have captured it since
                    if captured is None and self._is_due(call):
                        captured = self._capture(call, target)
                if captured is None:
                    return self._run_eagerly(call, target)
            finally:
                if has_turn:
                    _turn.release()
        return self._launch(captured, call, target)  # type: ignore[no-any-return]  # the function's result

    def _target(self) -> Any:
        target = open_scopes.innermost() if self._stream is None else self._stream
        return host_stream.default_stream if target is None and devices.on_host(None) else target

    def _read(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], target: CudaStream[Any] | None
    ) -> Signature:
        """Return the call's signature; TypeError for an array that no graph can have."""
        models = [*settings.models_of(self._fn), *args, *kwargs.values()] if self._weights else []
        around = settings.read(target, models)
        call = Signature((args, kwargs), by_address=not self._copies, settings=around)
        for found in call.arrays:
            if found.device is None:
                raise TypeError(
                    f"{messages.describe(found.array)} is on the host: a graph would keep the "
                    "values of the capture. Copy it to the GPU."
                )
        if self._copies:
            results.check_copied(call.arrays)
        return call

    def _find(self, call: Signature) -> _Captured | None:
        with self._lock:
            captured = self._captured.get(call.key)
            if captured is not None:
                self._captured.move_to_end(call.key)
                self.hits += 1
            return captured

    def _is_due(self, call: Signature) -> bool:
        """Whether to capture the call, because one of its kind has succeeded."""
        seen = self._seen.get(call.key)
        return seen is not None and seen.is_due and not active_captures.any_goes_on()

    def _put(self, table: OrderedDict[Hashable, Any], call: Signature, entry: Any) -> None:
        with self._lock:
            self._seen.pop(call.key, None)
            table[call.key] = entry
            dropped = table.popitem(last=False) if len(table) > self._max_graphs else None
        del dropped  # as in ``clear``

    # -- objects that keys hold weakly ------------------------------------------------------------

    def _watched(self, call: Signature) -> tuple[weakref.ref[Any], ...]:
        """Return references to the call's objects; when one of these dies, the entry goes."""
        method = weakref.WeakMethod(self._forget_dead)

        def forget(_: object) -> None:
            if (forget_dead := method()) is not None:
                forget_dead()

        return tuple([weakref.ref(value, forget) for value in call.objects])

    def _forget_dead(self) -> None:
        """Give up the entries that no call can find any more, because an object of the key is dead.

        A garbage collection calls this at any moment. If the lock is taken, the next call does it.
        """
        self._has_dead = True
        if not self._lock.acquire(blocking=False):
            return
        dropped = []
        try:
            self._has_dead = False
            tables: tuple[OrderedDict[Hashable, Any], ...] = self._captured, self._seen
            for table in tables:
                for key, entry in list(table.items()):
                    if any(reference() is None for reference in entry.objects):
                        dropped.append((key, table.pop(key)))
        finally:
            self._lock.release()
        del dropped  # as in ``clear``

    def _run(self, arguments: Arguments) -> T:
        with contextlib.nullcontext() if self._stream is None else use(self._stream):
            return self._call(arguments)

    def _call(self, arguments: Arguments) -> T:
        """Call the function. As a launch cannot, no call gives autograd's graph of the result.

        That graph would also keep nodes of the parameters, which draw the stream of this run into a
        later capture.
        """
        args, kwargs = arguments
        return results.detached(self._fn(*args, **kwargs))

    def _run_eagerly(self, call: Signature, target: CudaStream[Any] | None) -> T:
        """Run the function; the next call can be captured once this one has succeeded."""
        is_new = call.key not in self._seen
        if is_new:
            call.freeze()
        with around([library.adapter for library in loaded_libraries.libraries()]):
            result = self._run(call.arguments)
        if is_new:
            self._put(self._seen, call, _Seen(is_due=True, objects=self._watched(call)))
        if not self._copies:
            return result
        marked = results.template(result, call.places, call.objects)
        made = results.arrays(marked)
        private = target or new_stream(_device_of(call))
        with _copying(target, private, _moved(made), made) as new:
            for found, copy in zip(made, new, strict=True):
                _copy(found, copy, found.array, private)
        return results.filled(marked, call, made, new)  # type: ignore[no-any-return]  # as below

    # -- capture ----------------------------------------------------------------------------------

    def _capture(self, call: Signature, target: CudaStream[Any] | None) -> _Captured | None:
        """Capture the call; None if the capture fails and the function is called instead."""
        device = _device_of(call) if target is None else target.device_id
        private: Any = new_stream(device, nonblocking=True)
        own: list[Any] = []
        if self._copies:
            with use(private, libraries=_moved(call.arrays)):
                own = _new(call.arrays)
        last = OwnedEvent(private.context)
        ordering.mark(last, private._live())
        arguments: Any = call.arguments
        if own:
            given = call.places
            arguments = replaced(
                arguments, lambda leaf: own[given[id(leaf)]] if id(leaf) in given else leaf
            )
        call.freeze()
        objects = self._watched(call)
        try:
            with capture_on(private, is_private=True) as graph:
                result = self._call(arguments)
        except active_captures.OngoingError:  # another thread has just begun a capture
            return None
        except CaptureError as error:
            what = f"{self._where(error)} cannot be captured"
            if not self._fallback:
                raise CaptureError(f"{what}: {error}") from error
            self._put(self._seen, call, _Seen(is_due=False, objects=objects))
            if not self._has_warned:
                self._has_warned = True
                what = f"{what}, so streamkit.graphed calls the function: {error}"
                warnings.warn(what, RuntimeWarning, stacklevel=3)
            return None
        places = {id(array): index for index, array in enumerate(own)} if own else call.places
        result = results.template(result, places, call.objects)
        graph.keep(result, own)  # the arrays of a run live until it has ended
        if self._copies:
            graph._ready().copied = last  # noqa: SLF001 - no attribute for users
        else:
            graph._readers = []  # noqa: SLF001 - as above
        made = results.arrays(result) if self._copies else []
        moved = _moved([*call.arrays, *made])
        captured = _Captured(graph, result, objects, own, made, moved, last)
        self.captures += 1  # by one thread at a time, which has the turn
        self._put(self._captured, call, captured)
        return captured

    def _where(self, error: BaseException | None) -> str:
        """Name the function, and the line of it that an error came from, if it has one."""
        code = getattr(inspect.unwrap(self._fn), "__code__", None)
        if code is None:
            return self.__qualname__
        at = f"the function at line {code.co_firstlineno}"
        while error is not None:
            for frame, number in traceback.walk_tb(error.__traceback__):
                if frame.f_code is code:
                    at = f"line {number}"
            error = error.__cause__ or error.__context__
        return messages.in_one_line(f"{self.__qualname__} ({at} of {code.co_filename})")

    def _launch(self, captured: _Captured, call: Signature, target: Any) -> Any:
        if not self._copies:
            captured.graph.launch(self._stream)
            return results.filled(captured.result, call)
        own, made, stream = captured.own, captured.made, target or captured.graph.stream
        with _copying(target, stream, captured.moved, made) as new, captured.lock:
            queue = stream._live()
            if captured.last_queue() is not queue:
                ordering.wait_event(queue, captured.last.handle)
            try:
                for found, mine in zip(call.arrays, own, strict=True):
                    _copy(found, mine, found.array, stream)
                captured.graph.launch(stream)
                for found, mine in zip(call.arrays, own, strict=True):
                    if not found.repeats:  # no library writes where elements share memory
                        _copy(found, found.array, mine, stream)
                for found, copy in zip(made, new, strict=True):
                    _copy(found, copy, found.array, stream)
            finally:
                ordering.mark(captured.last, queue)
                captured.last_queue = weakref.ref(queue)
        return results.filled(captured.result, call, made, new)


def _device_of(call: Signature) -> int:
    return call.arrays[0].device or 0 if call.arrays else driver.current_device()


@contextlib.contextmanager
def _copying(
    target: Any, stream: Any, moved: frozenset[str], made: list[FoundArray]
) -> Generator[list[Any]]:
    """Make the stream current to copy, and give arrays like those ``made``, of the caller's memory.

    Without a ``target`` the copies are in order with all libraries.
    """
    if target is not None:
        with use(stream, libraries=moved):
            yield _new(made)
    else:
        new = _new(made)
        with in_order_with_libraries(stream), use(stream, libraries=moved):
            yield new


def _moved(arrays: list[FoundArray]) -> frozenset[str]:
    """Return the arrays' libraries that have a current stream: a scope to copy moves no others.

    A thread may have left others out of its own scope, as Warp has one current stream for all.
    """
    loaded = {library.name for library in loaded_libraries.libraries()}
    return frozenset(loaded & {found.library.name for found in arrays if found.library})


def _new(arrays: list[FoundArray]) -> list[Any]:
    return [found.library.array_like(found.array, found.device) for found in arrays]


def _copy(found: FoundArray, to: Any, source: Any, stream: Any) -> None:
    found.library.copy_array(to, source, stream.to(found.library.name))
