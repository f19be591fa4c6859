"""``graphed``: a function captured once for each signature of its arguments, then launched."""

from __future__ import annotations

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
from streamkit._graphs.signatures import Signature
from streamkit._queues import active_captures, loaded_libraries, open_scopes
from streamkit._streams.current import use
from streamkit._streams.factories import new_stream
from streamkit._streams.host_stream import HostStream
from streamkit._streams.stream import wrap
from streamkit._support import messages, refusals
from streamkit.errors import CaptureError

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence
    from typing import Self

    from streamkit._graphs.graph import CudaGraph
    from streamkit._graphs.signatures import Arguments, FoundArray
    from streamkit._streams.stream import CudaStream
    from streamkit.protocols import StreamLike

P = ParamSpec("P")
T = TypeVar("T")

_turn = threading.Lock()  # as the locks below not made anew: no forked child has a GPU
"""Held while a graphed function captures: torch and Warp can be in one capture at a time."""


class _Seen(NamedTuple):
    """A signature without a graph."""

    is_due: bool
    """Whether to capture the next call."""
    objects: tuple[weakref.ref[Any], ...]
    """The objects that its key holds weakly."""


class _Captured:
    """A graph of one signature."""

    last: Any = None
    """An event after the last use of the copies."""

    def __init__(
        self,
        graph: CudaGraph,
        result: Any,
        own: list[Any],
        objects: tuple[weakref.ref[Any], ...],
    ) -> None:
        self.graph = graph
        self.result = result  # a template: see ``results``
        self.own = own  # the graph's copies of the arguments' arrays, with ``copy_inputs``
        self.made = list(results.arrays(result)) if own else []  # no copy back goes into these
        self.objects = objects  # as those of ``_Seen``
        self.lock = threading.Lock()


@overload
def graphed(
    fn: Callable[P, T],
    *,
    max_graphs: int = ...,
    copy_inputs: bool = ...,
    stream: StreamLike | None = ...,
    fallback: bool = ...,
) -> GraphedFunction[P, T]: ...
@overload
def graphed(
    fn: None = ...,
    *,
    max_graphs: int = ...,
    copy_inputs: bool = ...,
    stream: StreamLike | None = ...,
    fallback: bool = ...,
) -> Callable[[Callable[P, T]], GraphedFunction[P, T]]: ...
def graphed(
    fn: Callable[P, T] | None = None,
    *,
    max_graphs: int = 16,
    copy_inputs: bool = False,
    stream: StreamLike | None = None,
    fallback: bool = False,
) -> GraphedFunction[P, T] | Callable[[Callable[P, T]], GraphedFunction[P, T]]:
    """Return a function that launches ``fn`` as a CUDA graph from its third equal call on.

    A decorator, ``@streamkit.graphed``, or a call. The first call with new arguments runs ``fn``.
    The second one captures it and launches the graph; later ones launch it, without Python. Calls
    share a graph if their arrays, also in tuples, lists, dicts, dataclasses and keywords, have the
    same address, shape, strides, type and device, and if all else is equal and of the same type.
    The current device counts too, and what is set in the libraries that changes what they compute,
    such as torch's grad mode. What else ``fn`` reads is as it was at the capture: closures,
    attributes, global variables, the state of a module. ``f.explain(*args)`` says what sets a call
    apart.

    An object that is equal only to itself, such as the instance of a method, is not kept alive; its
    graphs go with it. A value that cannot be hashed is compared at each call, and copied for the
    first call and the graph.

    The next launch of the same graph overwrites the arrays that a call returned. They stay valid
    memory as long as the program holds them. They have no gradients, so ``fn`` itself has to call
    ``backward`` of a loss, as a whole training step does. While another thread captures, a call
    that would capture runs ``fn``. So does a call on a host stream, and inside another capture,
    which then has the work.

    The function raises, beside the errors of ``fn``: TypeError for an array of the host without
    ``copy_inputs``, because a graph would keep the values of the capture, and for a value that can
    be neither hashed nor copied; ValueError for an array that requires a gradient; CaptureError,
    with the line, if ``fn`` does what cannot be captured.

    Args:
        fn: What to call and capture; None where the decorator has options.
        max_graphs: How many graphs are held; a new one takes the place of the least recently used.
        copy_inputs: Let the arrays' addresses not count: each graph has arrays of its own. A call
            copies its arrays into them and, as ``fn`` may write into them, copies them back;
            ValueError if two of them overlap. The first call has copies too, so a view that ``fn``
            returns is never the caller's memory, unless another capture or the host has the call.
            Arrays of the host are copied to the GPU; ``fn`` then gets arrays of the GPU, and the
            call waits for it.
        stream: Where all its graphs are launched. None: on the stream of the scope around the call,
            else in order with all libraries.
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
        _check_function(fn)
        return GraphedFunction(fn, max_graphs, target, copies=copy_inputs, fallback=fallback)

    return decorate if fn is None else decorate(fn)


def _check_function(fn: object) -> None:
    if not callable(fn):
        raise TypeError(
            f"graphed needs a function, and was given {messages.describe(fn)}: write "
            "'@streamkit.graphed' above a function."
        )
    kind = refusals.kind_of(fn)
    if kind is not None:
        raise TypeError(
            f"graphed cannot capture {refusals.name_of(fn)}, which is {kind.name}, because its "
            "work comes after the call that a graph would hold. Write the GPU work as a plain "
            f"function under '@streamkit.graphed', and call that from {refusals.name_of(fn)}."
        )


class GraphedFunction(Generic[P, T]):
    """A function that ``graphed`` has made. Safe to call from any thread."""

    captures: int
    """How many graphs were captured."""
    hits: int
    """How many calls launched a graph that was there already."""

    def __init__(
        self,
        fn: Callable[P, T],
        max_graphs: int,
        stream: CudaStream[Any] | HostStream | None,
        *,
        copies: bool,
        fallback: bool,
    ) -> None:
        self.__qualname__ = _name(fn)
        functools.update_wrapper(self, fn)
        self._fn = fn
        self._max_graphs = max_graphs
        self._stream = stream
        self._copies = copies
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
        return f"<streamkit.GraphedFunction {_name(self._fn)}, {self.graphs} graphs>"

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

        If no graph is held for it, the text says how it differs from the most similar one, as in
        "argument 0: shape (3,) instead of (4,)" or "grad mode of torch: off instead of on".

        Args:
            *args: Those of the call; for a method the instance first, as in
                ``Model.step.explain(model, x)``.
            **kwargs: The same.
        """
        target = self._target()
        if _is_of_the_host(target):
            return "it calls the function: on the host there are no graphs"
        call = self._read(args, kwargs, target)
        with self._lock:
            if call.key in self._captured:
                return "it launches the graph that is held"
            seen, is_full = self._seen.get(call.key), self.graphs == self._max_graphs
            others = list(self._captured or self._seen)
        if seen is not None:
            if not seen.is_due:
                return "it calls the function, which could not be captured at a call of its kind"
            what = "it captures the function, because it is the second call of its kind"
        else:
            what = "it calls the function, because it is the first call"
            what += " of its kind" if others else ""
        why = differences.from_nearest(call.key, [one for one in others if one != call.key])
        full = f"all {self._max_graphs} graphs are held, so the least recently used one goes"
        return "; ".join(filter(None, (what, why, full if is_full else "")))

    # -- a call -----------------------------------------------------------------------------------

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> T:
        """Call the function, or launch its graph."""
        target = self._target()
        if _is_of_the_host(target):
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
        if captured is None and self._is_due(call) and _turn.acquire(blocking=False):
            try:
                # another thread may have captured it since
                captured = self._find(call) or self._capture(call, target)
            finally:
                _turn.release()
        if captured is None:
            adapters = [library.adapter for library in loaded_libraries.libraries()]
            with around(adapters):
                return self._run_on_gpu(call)
        return self._launch(captured, call)  # type: ignore[no-any-return]  # the function's result

    def _target(self) -> Any:
        return open_scopes.innermost() if self._stream is None else self._stream

    def _read(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], target: CudaStream[Any] | None
    ) -> Signature:
        """Return the call's signature; TypeError for an array that no graph can have."""
        call = Signature(
            (args, kwargs), by_address=not self._copies, settings=settings.read(target)
        )
        for found in call.arrays:
            if found.device is None and not self._copies:
                raise TypeError(
                    f"{messages.describe(found.array)} is on the host: a graph would keep the "
                    "values of the capture. Copy it to the GPU, or use "
                    "streamkit.graphed(copy_inputs=True)."
                )
            if found.library is None and self._copies:
                raise TypeError(
                    f"StreamKit cannot copy {messages.describe(found.array)} into a graph: no "
                    "adapter copies its arrays. Pass an array on the GPU of a library that has one."
                )
        return call

    def _find(self, call: Signature) -> _Captured | None:
        with self._lock:
            captured = self._captured.get(call.key)
            if captured is not None:
                self._captured.move_to_end(call.key)
                self.hits += 1
            return captured

    def _is_due(self, call: Signature) -> bool:
        """Note the call; return whether to capture it, as a later one that may succeed."""
        if active_captures.any_goes_on():
            return False
        with self._lock:
            seen = self._seen.get(call.key)
        if seen is None:
            call.freeze()
            self._note(call, is_due=True)
            return False
        return seen.is_due

    def _note(self, call: Signature, *, is_due: bool) -> None:
        seen = _Seen(is_due, self._watched(call))
        with self._lock:
            self._seen[call.key] = seen
            is_full = len(self._seen) > self._max_graphs
            dropped = self._seen.popitem(last=False) if is_full else None
        del dropped  # as in ``clear``

    # -- objects that keys hold weakly ------------------------------------------------------------

    def _watched(self, call: Signature) -> tuple[weakref.ref[Any], ...]:
        """Return references to the call's objects; when one of these dies, the entry goes."""
        forget = functools.partial(_forget_dead_of, weakref.ref(self))
        return tuple([weakref.ref(value, forget) for value in call.objects])

    def _forget_dead(self) -> None:
        """Give up the entries that no call can find any more, because an object of the key is dead.

        A garbage collection calls this too, at any moment. If the lock is taken then, the next call
        of the function does it.
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
        if self._stream is None:
            return self._call(arguments)
        with use(self._stream):
            return self._call(arguments)

    def _call(self, arguments: Arguments) -> T:
        """Call the function, as each way of calling and capturing it does.

        A launch cannot give autograd's graph of the result, so no call gives it. After a run of the
        function, that graph would also keep nodes of the parameters, which draw the stream of the
        run into a later capture.
        """
        args, kwargs = arguments
        return results.detached(self._fn(*args, **kwargs))

    # -- before there is a graph -------------------------------------------------------------------

    def _scope(self, private: Any) -> use:
        """Return the scope for copies: on the call's stream, else in order with all libraries."""
        target = self._target()
        return use(private, ordered=True) if target is None else use(target)

    def _run_on_gpu(self, call: Signature) -> T:
        """Run the function, with copies of its arrays where the graph has copies."""
        if not self._copies or not call.arrays:
            return self._run(call.arguments)
        device = _device_of(call, self._target())
        with self._scope(new_stream(device, nonblocking=True)) as stream:
            own = _new_arrays(call, device)
            try:
                _copy_in(call, own, stream)
                result = self._call(call.replaced(own))
                _copy_back(call, own, stream, ())
            finally:
                stream.keep(*own)
        return results.filled(results.template(result, _places(own), ()), call)  # type: ignore[no-any-return]

    # -- capture ----------------------------------------------------------------------------------

    def _capture(self, call: Signature, target: CudaStream[Any] | None) -> _Captured | None:
        """Capture the call; None if the capture fails and the function is called instead."""
        device = _device_of(call, target)
        private = new_stream(device, nonblocking=True)
        own: list[Any] = []
        if self._copies:
            with self._scope(private):
                own = _new_arrays(call, device)
        arguments = call.replaced(own) if own else call.arguments
        call.freeze()
        objects = self._watched(call)
        try:
            with capture_on(private, is_private=True) as graph:
                result = self._call(arguments)
        except active_captures.OngoingError:  # another thread has just begun a capture
            return None
        except CaptureError as error:
            if not self._fallback:
                raise CaptureError(
                    f"{_where(self._fn, error)} cannot be captured: {error}"
                ) from error
            self._fall_back(call, error)
            return None
        result = results.template(result, _places(own) if own else call.places, call.objects)
        graph.keep(result, own)  # the arrays of a run live until it has ended
        captured = _Captured(graph, result, own, objects)
        with self._lock:
            self.captures += 1
            self._seen.pop(call.key, None)
            self._captured[call.key] = captured
            is_full = len(self._captured) > self._max_graphs
            dropped = self._captured.popitem(last=False) if is_full else None
        del dropped  # as in ``clear``
        return captured

    def _fall_back(self, call: Signature, error: CaptureError) -> None:
        self._note(call, is_due=False)
        with self._lock:
            has_warned, self._has_warned = self._has_warned, True
        if not has_warned:
            warnings.warn(
                f"{_where(self._fn, error)} cannot be captured, so streamkit.graphed calls the "
                f"function: {error}",
                RuntimeWarning,
                stacklevel=4,
            )

    def _launch(self, captured: _Captured, call: Signature) -> Any:
        if captured.own:
            self._launch_between_copies(captured, call)
        else:
            captured.graph.launch(self._stream)
        return results.filled(captured.result, call)

    def _launch_between_copies(self, captured: _Captured, call: Signature) -> None:
        with captured.lock, self._scope(captured.graph.stream) as stream:
            if captured.last is not None:
                stream.wait(captured.last)
            try:
                _copy_in(call, captured.own, stream)
                captured.graph.launch(stream)
                _copy_back(call, captured.own, stream, captured.made)
            finally:
                captured.last = stream.record(captured.last)
                stream.keep(*captured.own)  # the runs of the graph end before they are copied back


def _is_of_the_host(target: Any) -> bool:
    return isinstance(target, HostStream) or (target is None and devices.on_host(None))


def _forget_dead_of(function: weakref.ref[GraphedFunction[..., Any]], _: object) -> None:
    found = function()
    if found is not None:
        found._forget_dead()  # noqa: SLF001 - of the same file


def _device_of(call: Signature, target: CudaStream[Any] | None) -> int:
    if target is not None:
        return target.device_id
    on_gpu = [found.device for found in call.arrays if found.device is not None]
    return on_gpu[0] if on_gpu else driver.current_device()


def _new_arrays(call: Signature, device: int) -> list[Any]:
    return [found.library.array_like(found.array, device) for found in call.arrays]


def _copy_in(call: Signature, own: list[Any], stream: Any) -> None:
    """Copy the call's arrays into a graph's own."""
    for found, mine in zip(call.arrays, own, strict=True):
        found.library.copy_array(mine, found.array, stream.to(found.library.name))


def _copy_back(call: Signature, own: list[Any], stream: Any, made: Sequence[FoundArray]) -> None:
    """Copy a graph's own arrays back into the call's, as the function may have written into them.

    Not into an array that the graph has ``made``, as a former result may be passed, which is the
    new result by now. Nor into an array whose elements share memory: no library writes there.
    """
    for found, mine in zip(call.arrays, own, strict=True):
        if not (found.repeats or any(map(found.overlaps, made))):
            found.library.copy_array(found.array, mine, stream.to(found.library.name))


def _places(arrays: list[Any]) -> dict[int, int]:
    return {id(array): index for index, array in enumerate(arrays)}


def _name(fn: object) -> str:
    return str(getattr(fn, "__qualname__", None) or repr(fn))


def _where(fn: Any, error: BaseException) -> str:
    """Name the function, and the line of it that an error came from, if it has one."""
    code = getattr(inspect.unwrap(fn), "__code__", None)
    found: BaseException | None = error
    line = None
    while found is not None and code is not None:
        for frame, number in traceback.walk_tb(found.__traceback__):
            if frame.f_code is code:
                line = number
        found = found.__cause__ or found.__context__
    if code is None:
        return _name(fn)
    at = f"line {line}" if line else f"the function at line {code.co_firstlineno}"
    return messages.in_one_line(f"{_name(fn)} ({at} of {code.co_filename})")
