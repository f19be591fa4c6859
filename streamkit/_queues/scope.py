"""The scope: one stream current in every loaded library, exactly restored.

A scope adds no wait unless it is ordered. Programs enter scopes in inner loops, so the calls are
prepared once for a stream, and entering is one function, as leaving is (``open_scopes.leave``).
Both have the calls for three libraries written out: a loop over any number would cost as much as
another call.
"""

from __future__ import annotations

import sys
from abc import abstractmethod
from typing import TYPE_CHECKING, Any, TypeAlias

from streamkit import errors
from streamkit._cuda import driver, loader
from streamkit._queues import identity, lifetime, loaded_libraries, ordering, registry
from streamkit._queues.open_scopes import NESTED, WRITTEN_OUT, leave
from streamkit._support import messages
from streamkit.protocols import Binding
from streamkit.protocols.queues import here

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Self

    from streamkit._queues.identity import Closable
    from streamkit.protocols import Adapter
    from streamkit.protocols.queues import QueueRecord

Libraries: TypeAlias = "frozenset[str] | None"  # the libraries to move; None for all
Place: TypeAlias = "tuple[int, dict[str, int]]"  # a context, and libraries' devices beside it

_keys = sys.modules.keys()  # of all that is imported

# stands for each library that a scope of fewer than three lacks; the calls do nothing
_NO_LIBRARY = Binding(tuple, len, len, lambda: True, lambda: None, told_outside=True)


class Choice:
    """The part of a scope that depends on the chosen libraries, and not on the stream."""

    def __init__(self, libraries: Libraries) -> None:
        # First, so that no library is in neither. Most often one library is missing, and to go
        # through several costs as much as a call.
        *self.rest, self.missing = loaded_libraries.not_loaded() or ("",)
        self.loaded = loaded = loaded_libraries.libraries()
        self.moved = [one for one in loaded if libraries is None or one.name in libraries]
        self.names = frozenset(one.name for one in self.moved)
        self.binders = [(one.bind, one.adapter) for one in self.moved]  # quicker than by name
        self.trackers = {one.name: one.device for one in loaded if one.device is not None}
        self.moves_trackers = self.trackers.keys() <= self.names
        # the last library tells the context at the least cost, because Warp's call keeps the GIL
        told = [library.context for library in loaded if library.context is not None]
        self.ask_context = told[-1] if told else driver.current_context


_choices: dict[Libraries, Choice] = {}


def choose(libraries: Libraries) -> Choice:
    """Return the choice of these libraries, the same object until another library is loaded."""
    found = _choices.get(libraries)
    if found is None or found.loaded is not loaded_libraries.libraries():
        found = _choices[libraries] = Choice(libraries)
    return found


class Plan:
    """The calls that a scope of one stream makes in the chosen libraries.

    Fewer than three libraries are filled up, because a loop over any number would cost as much as
    a call.
    """

    def __init__(self, stream: Scoped, queue: QueueRecord, choice: Choice) -> None:
        """Prepare the calls for the queue of the stream, whose context has to be current."""
        self.choice, self.context = choice, queue.context
        self.missing, self.rest = choice.missing, choice.rest
        self.moves_trackers, self.ask_context = choice.moves_trackers, choice.ask_context
        view = stream._view  # noqa: SLF001 - of this module
        bindings = [bind(view(adapter, queue)) for bind, adapter in choice.binders]
        bindings += [_NO_LIBRARY] * (WRITTEN_OUT - len(bindings))
        self.bindings, (a, b, c) = bindings, bindings[:WRITTEN_OUT]
        # by position, as the names of a named tuple cost three times as much
        self.moves: Any = a[0], b[0], c[0], a[1], b[1], c[1]
        self.leaves: Any = a[2], b[2], c[2]
        self.questions: Any = a[3], b[3], c[3]
        keeps, told = a[5] and b[5] and c[5], a[6] and b[6] and c[6]
        if len(bindings) > WRITTEN_OUT:
            self.moves, self.leaves = None, [each.leave for each in bindings]
            self.questions = a[3], b[3], lambda: all(each.is_current() for each in bindings[2:])
            keeps = all(each.keeps_device for each in bindings)
            told = all(each.told_outside for each in bindings)
        self.previous: Place | None = None if keeps else (self.context, {})
        """What is to be put back if the context of the stream was current before."""
        self.told_outside = choice.moves_trackers and told
        """Whether ``is_current`` is right outside a scope too."""

    def is_current(self) -> bool:
        """Tell, inside a scope, whether the context and every library are where it put them."""
        one, two, three = self.questions
        try:
            if loader.is_forked or not (one() and two() and three()):
                return False
            return self.ask_context() == self.context
        except Exception:  # noqa: BLE001 - an error of a library, which cannot tell
            return False

    def look(self) -> Place:
        """Return where the thread is."""
        trackers = self.choice.trackers
        return driver.current_context(), {name: trackers[name].current() for name in trackers}

    def set_current(self) -> list[str]:
        """Make the context and every library current again; name what could not be."""
        lost: list[str] = []
        try:
            driver.set_context(self.context)
        except Exception as error:  # noqa: BLE001 - the libraries must be restored all the same
            lost.append(f"the device ({error})")
        for library, binding in zip(self.choice.moved, self.bindings, strict=False):
            try:
                binding.set_current()
            except Exception as error:  # noqa: BLE001 - the others must be restored all the same
                lost.append(f"{library.name} ({type(error).__name__}: {error})")
        return lost


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
    def _view(self, served: Adapter, queue: QueueRecord | None = None) -> Any:
        """Return the library's own object on this stream; ``queue`` if its context is current."""

    def _plan_now(self, libraries: Libraries) -> Plan:
        """Return the plan for the libraries that are loaded by now."""
        queue, closable = self._live(), self._closable
        plans = self._plans if closable is None else closable.plans
        choice = choose(libraries)  # initialises libraries, on a device in use
        kept: Plan | None = plans.get(libraries)
        if kept is not None and kept.choice is choice:
            return kept
        before = driver.current_context()
        try:
            if before != queue.context:
                driver.set_context(queue.context)
            plan = Plan(self, queue, choice)
            if driver.current_context() != before:
                driver.set_context(before)
        except BaseException:  # an interrupt, which can come in the line above too
            driver.set_context(before)
            raise
        # A plan is not kept if a view is made anew for each scope, nor for a per-thread stream,
        # whose thread ``_live`` has to check each time.
        views = self._views if closable is None else closable.views
        if queue.thread is None and choice.names <= views.keys():
            if closable is None:
                self._plans = {**self._plans, libraries: plan}
            else:
                closable.plans[libraries] = plan
        return plan

    def __enter__(  # noqa: C901 - the calls of an inner loop, written out
        self,
        key: object = None,
        libraries: Libraries = None,
        ordered: bool = False,  # noqa: FBT001, FBT002 - by position, which costs less
    ) -> Self:
        """Make this the current stream of every loaded library, as ``streamkit.use``.

        If a library refuses the stream, everything is put back and its error raised. ``use``
        passes its own options, and itself as the key under which the scope is left.
        """
        plan = self._plans.get(libraries)  # a closed stream has no plan
        if plan is None or plan.missing in _keys or (plan.rest and not _keys.isdisjoint(plan.rest)):
            plan = self._plan_now(libraries)
        scope, scopes = CudaScope(), here.scopes
        scope.stream, scope.key, scope.plan = self, key or self, plan
        scope.outer = outer = scopes.innermost
        if outer is not None and outer.plan is plan and plan.is_current():
            scope.open = NESTED
            scopes.innermost = scope  # last: an interrupt comes after calls alone
            return self
        if loader.is_forked:
            raise messages.forked()
        scope.open, scope.before, moves = 0, None, plan.moves
        try:
            is_here = plan.moves_trackers and plan.ask_context() == plan.context
        except Exception:  # noqa: BLE001 - an error of a library: the driver answers then
            is_here = False
        scope.previous = plan.previous if is_here else plan.look()
        try:
            if not is_here:
                driver.set_context(plan.context)
            if ordered:
                scope.wait_for_others()
            # all are saved before any is moved, so that an interrupt finds what undoes each move
            if moves is not None:
                save_one, save_two, save_three, enter_one, enter_two, enter_three = moves
                scope.tokens = one, two, three = save_one(), save_two(), save_three()
                scope.open = WRITTEN_OUT
                enter_one(one)
                enter_two(two)
                enter_three(three)
            else:
                scope.tokens = [binding.save() for binding in plan.bindings]
                scope.open = len(plan.bindings)
                for binding, token in zip(plan.bindings, scope.tokens, strict=True):
                    binding.enter(token)
            scopes.innermost = scope
        except BaseException as error:
            for lost in scope.leave():
                error.add_note(f"and what could not be restored after that: {lost}")
            raise
        return self

    __exit__ = leave  # the scope that was entered under this key


class CudaScope:
    """One stream made current in the loaded libraries of this thread."""

    __slots__ = "before", "key", "open", "outer", "plan", "previous", "stream", "tokens"

    stream: Scoped
    key: object
    outer: Any  # the scope around it
    plan: Plan
    previous: Place | None  # None if there is nothing to put back
    tokens: Sequence[Any]  # for each library, the argument of the call that undoes the move
    open: int  # how many libraries, from the first on, are still to be left; NESTED for none
    # of an ordered scope: its queue; and the queues for which it waits, and which wait for its end,
    # each with the stream that keeps the queue alive
    before: tuple[QueueRecord, list[tuple[QueueRecord, Any]]] | None

    def leave(self, failed: BaseException | None = None) -> list[str]:
        """Put back the libraries in reverse order, then the context; name what could not be.

        Called a second time, it does what is left. ``failed`` is the error with which the last
        library could not be left.
        """
        plan = self.plan
        if self.open == NESTED:  # the body may have moved a library away
            return [] if plan.is_current() else plan.set_current()
        lost: list[str] = []
        interrupt = None if failed is None else self._note(failed, lost, None)
        try:
            is_here = not loader.is_forked and plan.ask_context() == plan.context
        except Exception:  # noqa: BLE001 - an error of a library, which cannot tell
            is_here = False
        if not is_here:  # the body may have changed the device
            lost += self.set_context()
        if self.before is not None:
            lost = self.let_others_wait(lost)
        while self.open:
            try:
                plan.leaves[self.open - 1](self.tokens[self.open - 1])
                self.open -= 1
            except BaseException as error:  # noqa: BLE001 - the others are restored all the same
                interrupt = self._note(error, lost, interrupt)
        if self.previous is not None:
            lost += self.put_device_back()
        if interrupt is not None:
            raise interrupt
        return lost

    def set_context(self, context: int | None = None) -> list[str]:
        """Make the stream's context current, or another, 0 for none before; name what is lost."""
        wanted = self.plan.context if context is None else context
        try:
            driver.set_context(wanted or driver.default_context())
        except errors.StreamKitError as error:
            place = "of" if context is None else "before"
            return [f"the device {place} {self.stream!r} ({error})"]
        return []

    def put_device_back(self) -> list[str]:
        """Put back the context from before, and then the devices that libraries keep beside it."""
        context, devices = self.previous or (0, {})
        lost = self.set_context(context)
        for name, device in devices.items():
            try:
                self.plan.choice.trackers[name].restore(device)
            except Exception as error:  # noqa: BLE001 - a library's own: the others follow
                lost.append(f"the device of {name} ({type(error).__name__}: {error})")
        return lost

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
        moved = self.plan.choice.moved
        if self.open < len(moved):  # else it is what fills three up
            lost.append(f"{moved[self.open].name} ({type(error).__name__}: {error})")
        return interrupt

    # -- an ordered scope, where the context is the stream's

    def wait_for_others(self) -> None:
        """Let the queue wait for each library's previous stream, as far as a capture allows.

        A wait over the border of a capture would break it. So inside one, the queue's own or that
        of the first library that captures, it waits only for those that take part: a queue outside
        forks from it. CaptureError if it is illegal to ask.
        """
        queue = self.stream._live()
        others = loaded_libraries.other_queues(queue, self.plan.choice.moved)
        # the libraries' default streams are of the primary context
        here = queue.context if queue.primary else 0
        own = ordering.capture_of(queue, here)
        captures = [ordering.capture_of(other, here) for other, _ in others]
        inside = own or next(filter(None, captures), None)
        if own == 0:
            raise _illegal(queue)
        if 0 in captures and not inside:
            raise _illegal(others[captures.index(0)][0])
        waited: list[tuple[QueueRecord, Any]] = []
        self.before = queue, waited
        for index, other in enumerate(others):
            if captures[index] == inside:
                ordering.wait_queue(queue, other[0], False, here)  # noqa: FBT003 - as its parameter
                waited.append(other)

    def let_others_wait(self, before: Sequence[str]) -> list[str]:  # noqa: C901 - an inner loop
        """Let the previous streams wait for the queue; name what is lost, after what was before."""
        lost = [*before]
        assert self.before is not None  # noqa: S101 - for type checkers: only then it is called
        queue, others = self.before
        here = queue.context if queue.primary and not lost else 0
        own: int | None = None
        is_open = False
        core = queue.core if here else None
        end = None  # of the queue: one record serves all that wait
        for other, native in others:
            try:
                if not is_open:
                    if not queue.permanent:
                        _refuse_closed(queue, None, self.stream)
                    own, is_open = ordering.capture_of(queue, here), True
                if not other.permanent:
                    _refuse_closed(other, native, native)
                capture = ordering.capture_of(other, here)
                # in one capture or none; else it would take one into the capture of the other
                if capture == own and core is not None and other.core is not None:
                    if end is None:
                        event = lifetime.take_event(queue)
                        core.record(event.core)
                        end = event
                    other.core.wait(end.core)
                elif capture == own:
                    ordering.wait_queue(other, queue, False, here)  # noqa: FBT003 - as above
                elif own is None and capture == 0:
                    lost.append(f"the order after {self.stream!r} ({_illegal(other)})")
            except Exception as error:  # noqa: BLE001 - the others must wait all the same
                lost.append(f"the order after {self.stream!r} ({error})")
        if end is not None:
            queue.wait_events.append(end)
        return lost


def _refuse_closed(queue: QueueRecord, native: object, what: object) -> None:
    """Raise StreamClosedError, of ``what``, if the queue's owner or the library's stream is closed.

    A stream of cuda.core lives as long as any of its objects, such as the queue's own.
    """
    for owner in () if queue.is_default else (queue.owner, native):
        if owner is None or (queue.core is not None and isinstance(owner, type(queue.core))):
            continue
        if identity.has_closed(owner, queue):
            raise messages.closed(what)


def _illegal(queue: QueueRecord) -> Exception:
    return messages.illegal_in_capture("an ordered scope", queue, "end the capture first.")


def nested(stream: Scoped, key: object, plan: Plan) -> CudaScope:
    """Return a scope inside one of the same stream, where everything is current already."""
    scope = CudaScope()
    scope.stream, scope.key, scope.plan = stream, key, plan
    scope.open, scope.outer = NESTED, here.scopes.innermost
    return scope
