"""The scope: one stream current in every loaded library, exactly restored.

A scope adds no wait unless it is ordered. Programs enter scopes in inner loops, so the calls are
prepared once for a stream. The calls for three libraries are written out besides the loop over
any number: the loop alone would cost as much as another call.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Any, TypeAlias

from streamkit import errors
from streamkit._cuda import driver, loader
from streamkit._queues import identity, loaded_libraries, ordering, registry
from streamkit._queues.open_scopes import leave, stack
from streamkit._support import messages
from streamkit.protocols import Binding

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from typing import Self

    from streamkit._queues.identity import Closable
    from streamkit._queues.loaded_libraries import LoadedLibrary
    from streamkit.protocols import Adapter
    from streamkit.protocols.queues import QueueRecord

Libraries: TypeAlias = "frozenset[str] | None"  # the libraries to move; None for all

_WRITTEN_OUT = 3
_NO_DEVICES: dict[str, int] = {}


def _yes() -> bool:
    return True


# stands for each library that a scope of fewer than three lacks; the calls do nothing
_NO_LIBRARY = Binding(tuple, len, len, _yes, lambda: None, told_outside=True)


class Choice:
    """The part of a scope that depends on the chosen libraries, and not on the stream."""

    def __init__(self, loaded: tuple[LoadedLibrary, ...], libraries: Libraries) -> None:
        self.loaded = loaded
        self.moved = [one for one in loaded if libraries is None or one.name in libraries]
        self.names = frozenset(one.name for one in self.moved)
        self.trackers = {one.name: one.device for one in loaded if one.device is not None}
        self.moves_trackers = self.trackers.keys() <= self.names
        # The last library answers for the current context at the least cost, because Warp's call
        # keeps the GIL. Comparing the driver's answer costs two thirds of ``current_context``.
        told = [library.context for library in loaded if library.context is not None]
        self.is_told = bool(told)
        self.ask_context: Callable[[], object] = told[-1] if told else loader.cu.cuCtxGetCurrent


_choices: dict[Libraries, Choice] = {}


def choose(libraries: Libraries) -> Choice:
    """Return the choice of these libraries, the same object until another library is loaded."""
    loaded = loaded_libraries.libraries()
    found = _choices.get(libraries)
    if found is None or found.loaded is not loaded:
        found = _choices[libraries] = Choice(loaded, libraries)
    return found


class Plan:
    """The calls that a scope of one stream makes in the chosen libraries.

    Fewer than three libraries are filled up, because a loop over any number would cost as much as
    a call.
    """

    def __init__(self, view: Callable[[Adapter], Any], context: int, libraries: Libraries) -> None:
        """``view`` gives a library's own object on the stream, whose context is ``context``."""
        choice = choose(libraries)
        self.context, self.names = context, choice.names
        self.loaded, self.moved, self.trackers = choice.loaded, choice.moved, choice.trackers
        self.moves_trackers, self.ask_context = choice.moves_trackers, choice.ask_context
        bindings = [library.bind(view(library.adapter)) for library in self.moved]
        bindings += [_NO_LIBRARY] * (_WRITTEN_OUT - len(bindings))
        self.count = len(bindings)
        columns = zip(*bindings, strict=True)
        self.saves, self.enters, self.leaves, questions, self.setters, *traits = columns
        self.keeps_device, told_outside = map(all, traits)
        cu = loader.cu
        # the answer of ``ask_context`` while this context is current
        self.answer: object = (
            context if choice.is_told else (cu.CUresult.CUDA_SUCCESS, cu.CUcontext(context))
        )
        self.is_current = _all(questions, self.ask_context, self.answer)
        """Tells, inside a scope, whether the context and every library are where it put them."""
        alone = choice.moves_trackers and told_outside
        self.is_current_anyway = self.is_current if alone else lambda: False
        """Tells the same outside a scope too; False if only a scope would keep them there."""

    def set_current(self) -> list[str]:
        """Make the context and every library current again; name what could not be."""
        lost: list[str] = []
        try:
            driver.set_context(self.context)
        except Exception as error:  # noqa: BLE001 - the libraries must be restored all the same
            lost.append(f"the device ({error})")
        for library, set_current in zip(self.moved, self.setters, strict=False):
            try:
                set_current()
            except Exception as error:  # noqa: BLE001 - the others must be restored all the same
                lost.append(f"{library.name} ({type(error).__name__}: {error})")
        return lost


def _all(
    questions: Iterable[Callable[[], bool]], ask_context: Callable[[], object], answer: object
) -> Callable[[], bool]:
    """Return a function that tells whether the context and every library are as ``answer`` says."""
    one, two, three, *others = questions
    if others:
        three = _all([three, *others, _yes], _yes, answer=True)

    def all_are_current() -> bool:
        try:
            return not loader.is_forked and one() and two() and three() and ask_context() == answer
        except Exception:  # noqa: BLE001 - an error of a library, which cannot tell
            return False

    return all_are_current


@registry.uncompiled
class Scoped:
    """A CUDA stream as something to enter."""

    __slots__ = "_closable", "_plans", "_queue", "_views"

    _queue: QueueRecord | None
    _closable: Closable | None  # instead of the other three, if the owner can close the stream
    _views: dict[str, Any]  # the libraries' objects that the stream holds
    _plans: dict[Libraries, Plan]  # replaced, never changed

    @abstractmethod
    def _live(self) -> QueueRecord:
        """Return the stream's queue; raises for a closed stream, and one of another thread."""

    @abstractmethod
    def _view(self, served: Adapter) -> Any:
        """Return the library's own object on this stream."""

    def _new_plan(self, libraries: Libraries) -> Plan:
        queue, closable = self._live(), self._closable
        if closable is not None:
            kept: Plan | None = closable.plans.get(libraries)
            if kept is not None and kept.loaded is loaded_libraries.libraries():
                return kept
        before = driver.current_context()
        try:
            plan = Plan(self._view, queue.context, libraries)
        except BaseException:  # an interrupt can leave the context where a view was being built
            driver.set_context(before)
            raise
        # A plan is not kept if a view is made anew for each scope, nor for a per-thread stream,
        # whose thread ``_live`` has to check each time.
        views = self._views if closable is None else closable.views
        if queue.thread is None and plan.names <= views.keys():
            if closable is None:
                self._plans = {**self._plans, libraries: plan}
            else:
                closable.plans[libraries] = plan
        return plan

    def __enter__(  # noqa: C901, PLR0912 - the calls of an inner loop, written out
        self,
        key: object = None,
        libraries: Libraries = None,
        ordered: bool = False,  # noqa: FBT001, FBT002 - by position, which costs less
    ) -> Self:
        """Make this the current stream of every loaded library, as ``streamkit.use``.

        If a library refuses the stream, everything is put back and its error raised. ``use``
        passes its own options, and itself as the key under which the scope is left.
        """
        scopes = stack.scopes
        if scopes and key is None:
            outer = scopes[-1]
            if (
                outer.key is self
                and self._queue is not None
                and outer.plan.loaded is (loaded_libraries.final or loaded_libraries.libraries())
                and outer.plan.is_current()
            ):
                outer.again += 1
                return self
        if loader.is_forked:
            raise messages.forked()
        plan = self._plans.get(libraries)  # a closed stream has no plan
        if plan is None or plan.loaded is not (
            loaded_libraries.final or loaded_libraries.libraries()
        ):
            plan = self._new_plan(libraries)
        if scopes and scopes[-1].plan is plan and plan.is_current():
            # ``+=`` is no call, after which an interrupt could come while the scope is open
            scopes += (NestedScope(self, key or self, plan),)
            return self
        scope: Any = OrderedScope(self._live()) if ordered else CudaScope()
        scope.stream = self
        scope.key = key or self
        scope.plan = plan
        scope.again = scope.open = 0
        try:
            is_here = plan.moves_trackers and plan.ask_context() == plan.answer
        except Exception:  # noqa: BLE001 - an error of a library: the driver answers then
            is_here = False
        if is_here:
            scope.previous, scope.devices = plan.context, _NO_DEVICES
        else:
            scope.look()
        try:
            if not is_here:
                driver.set_context(plan.context)
            if ordered:
                scope.order()
            # all are saved before any is moved, so that an interrupt finds what undoes each move
            if plan.count == _WRITTEN_OUT:
                save_one, save_two, save_three = plan.saves
                scope.tokens = one, two, three = save_one(), save_two(), save_three()
                scope.open = _WRITTEN_OUT
                enter_one, enter_two, enter_three = plan.enters
                enter_one(one)
                enter_two(two)
                enter_three(three)
            else:
                scope.tokens = [save() for save in plan.saves]
                scope.open = plan.count
                for index, enter in enumerate(plan.enters):
                    enter(scope.tokens[index])
            scopes.append(scope)
        except BaseException as error:
            _undo(scope, error)
            raise
        return self

    __exit__ = leave  # the scope that was entered under this key


def _undo(scope: CudaScope, error: BaseException) -> None:
    """Put back the libraries that a scope has moved before it failed."""
    if scope in stack.scopes:
        stack.scopes.remove(scope)
    for lost in scope.leave():
        error.add_note(f"and what could not be restored after that: {lost}")


class CudaScope:
    """One stream made current in the loaded libraries of this thread."""

    __slots__ = ("again", "devices", "key", "open", "plan", "previous", "stream", "tokens")

    stream: Scoped
    key: object
    plan: Plan
    again: int
    previous: int  # the context
    devices: dict[str, int]  # the devices that libraries keep beside the context
    tokens: Sequence[Any]  # for each library, the argument of the call that undoes the move
    open: int  # how many of the libraries, from the first on, are still to be left

    def look(self) -> None:
        """Remember the context, and the devices that libraries keep beside it."""
        self.previous = driver.current_context()
        trackers = self.plan.trackers
        self.devices = {name: trackers[name].current() for name in trackers}

    def leave(self) -> list[str]:
        """Put back the libraries in reverse order, then the context; name what could not be.

        Called a second time, it does what is left.
        """
        plan = self.plan
        lost: list[str] = []
        interrupt: BaseException | None = None
        try:
            is_here = not loader.is_forked and plan.ask_context() == plan.answer
        except Exception:  # noqa: BLE001 - an error of a library, which cannot tell
            is_here = False
        if not is_here:  # the body may have changed the device
            self._set_context(plan.context, "of", lost)
        if self.open == _WRITTEN_OUT == plan.count:
            leave_one, leave_two, leave_three = plan.leaves
            one, two, three = self.tokens
            try:
                leave_three(three)
                self.open = 2
                leave_two(two)
                self.open = 1
                leave_one(one)
                self.open = 0
            except BaseException as error:  # noqa: BLE001 - the others are restored all the same
                interrupt = self._note(error, lost, None)
        while self.open:  # another number of libraries, or one has failed
            try:
                plan.leaves[self.open - 1](self.tokens[self.open - 1])
                self.open -= 1
            except BaseException as error:  # noqa: BLE001 - the others are restored all the same
                interrupt = self._note(error, lost, interrupt)
        if self.previous is not plan.context or not plan.keeps_device:
            self._set_context(self.previous, "before", lost)
            self._restore_devices(lost)
        if interrupt is not None:
            raise interrupt
        return lost

    def _set_context(self, context: int, place: str, lost: list[str]) -> None:
        try:
            driver.set_context(context or driver.default_context())
        except errors.StreamKitError as error:
            lost.append(f"the device {place} {self.stream!r} ({error})")

    def _restore_devices(self, lost: list[str]) -> None:
        """Put the devices back that libraries keep beside the context, which is back already."""
        for name, device in self.devices.items():
            try:
                self.plan.trackers[name].restore(device)
            except Exception as error:  # noqa: BLE001 - a library's own: the others follow
                lost.append(f"the device of {name} ({type(error).__name__}: {error})")

    def _note(
        self, error: BaseException, lost: list[str], interrupt: BaseException | None
    ) -> BaseException | None:
        """Note which library was not left; return the interrupt, if there was one.

        After the first interrupt the same library is left again, because an interrupt can come
        before a library has been left.
        """
        if interrupt is None and not isinstance(error, Exception):
            return error
        self.open -= 1
        if self.open < len(self.plan.moved):
            lost.append(f"{self.plan.moved[self.open].name} ({type(error).__name__}: {error})")
        return interrupt


class OrderedScope(CudaScope):
    """A scope that waits for the libraries' earlier work, and for which their later work waits."""

    __slots__ = ("_before", "_queue")

    def __init__(self, queue: QueueRecord) -> None:
        self._queue = queue
        # the queues for which the scope waits, and which wait for the scope's end, each with the
        # stream that keeps the queue alive
        self._before: list[tuple[QueueRecord, Any]] = []

    def order(self) -> None:
        """Let the queue wait for each library's previous stream, as far as a capture allows.

        A wait over the border of a capture would break it. So inside one, the queue's own or that
        of the first library that captures, it waits only for those that take part: a queue outside
        forks from it. CaptureError if it is illegal to ask.
        """
        queue = self._queue
        others = loaded_libraries.other_queues(queue, self.plan.moved)
        own = ordering.capture_of(queue)
        captures = [ordering.capture_of(other) for other, _ in others]
        inside = own or next(filter(None, captures), None)
        if own == 0:
            raise _illegal(queue)
        if 0 in captures and not inside:
            raise _illegal(others[captures.index(0)][0])
        for index, before in enumerate(others):
            if captures[index] == inside:
                ordering.wait_queue(queue, before[0])
                self._before.append(before)

    def leave(self) -> list[str]:
        """Let the previous streams wait for the queue, and put everything back."""
        lost: list[str] = []
        own: int | None = None
        for number, (other, native) in enumerate(self._before):
            try:
                _refuse_closed(self._queue, None, self.stream)
                _refuse_closed(other, native, native)
                own = own if number else ordering.capture_of(self._queue)
                capture = ordering.capture_of(other)
                if capture == own:  # else it would take one into the capture of the other
                    ordering.wait_queue(other, self._queue)
                elif own is None and capture == 0:
                    lost.append(f"the order after {self.stream!r} ({_illegal(other)})")
            except Exception as error:  # noqa: BLE001 - the others must wait all the same
                lost.append(f"the order after {self.stream!r} ({error})")
        return lost + super().leave()


def _refuse_closed(queue: QueueRecord, native: object, what: object) -> None:
    """Raise StreamClosedError, of ``what``, if the queue's owner or the library's stream is closed.

    A stream of cuda.core lives as long as any of its objects, such as the queue's own.
    """
    for owner in () if queue.permanent else (queue.owner, native):
        if owner is None or (queue.core is not None and isinstance(owner, type(queue.core))):
            continue
        if identity.has_closed(owner, queue):
            raise messages.closed(what)


def _illegal(queue: QueueRecord) -> Exception:
    return messages.illegal_in_capture("an ordered scope", queue, "end the capture first.")


class NestedScope:
    """A scope inside one of the same stream, where everything is current already."""

    __slots__ = ("again", "key", "plan", "stream")

    def __init__(self, stream: Scoped, key: object, plan: Plan) -> None:
        self.stream, self.key, self.plan, self.again = stream, key, plan, 0

    def leave(self) -> list[str]:
        """Make this stream current again where the body moved a library away from it."""
        return [] if self.plan.is_current() else self.plan.set_current()
