"""The recorder of host streams for ``races``: their work, and the memory that it uses."""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
from collections import Counter
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from streamkit._cuda import loader
from streamkit._queues import open_scopes, registry, trace
from streamkit._streams.host_stream import HostStream
from streamkit._support.frames import local_variables
from streamkit.diagnostics.races import calls
from streamkit.diagnostics.races.arrays import NO_ARRAYS, Memories, access_to
from streamkit.diagnostics.races.order import READS_A_NUMBER
from streamkit.diagnostics.recording import places
from streamkit.diagnostics.recording.host_recorder import HostRecorder
from streamkit.diagnostics.recording.places import skipping
from streamkit.protocols import ArrayUse, Diagnosis
from streamkit.protocols.adapters import offered

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
    from types import CodeType, FrameType

    from streamkit.diagnostics.races.arrays import MemoryUse, Named
    from streamkit.diagnostics.races.search import Access
    from streamkit.diagnostics.recording.operations import Kind
    from streamkit.diagnostics.recording.places import Place
    from streamkit.protocols.watching import WatchedStep

    Callers = tuple[tuple[Place | None, Mapping[int, str]], ...]

LIMIT = 4096  # steps that are kept, whatever the host has waited for


class RecordedWork(NamedTuple):
    """A piece of work, as the recorder saw it when it was given."""

    step: WatchedStep
    place: Place | None
    accesses: tuple[Access, ...]
    is_known: bool
    """Whether all accesses of the work are known."""
    streams: Mapping[int, str]
    """The names that the code of its place has for host streams, by their ids."""
    own: tuple[MemoryUse, ...] = ()
    """Uses of memory that no other work had used by then."""
    call: int = -1
    """Tells apart the calls of one line."""
    callers: Callers = ()
    """The lines that called the code of its place, the nearest first, with their names."""
    held: tuple[Access, ...] = ()
    """The accesses to arrays that a function holds, of which operators tell if it runs any."""


class RaceRecorder(HostRecorder):
    """Records what all threads give to host streams, with the memory that it uses."""

    shown: ClassVar[dict[str, Kind]] = {**HostRecorder.shown, "then": "function"}

    def __init__(self, arrays: Mapping[str, object], calls: Callable[[], int]) -> None:
        """Take arrays by their names, and a function that counts the calls of the driver so far."""
        super().__init__(calls)
        self.given: dict[int, RecordedWork] = {}
        """By the order of their steps."""
        self._arrays = dict(arrays)
        self._memories = Memories()
        # of functions that operators tell, by the orders of their steps: the names of arrays
        self._operators: dict[int, Mapping[int, Named]] = {}
        self._lines: dict[object, tuple[Any, ...]] = {}  # of operators at lines, on memory
        self._streams: dict[tuple[tuple[int, str], ...], dict[int, str]] = {}
        self._thread = _Thread()
        self._home = vars(self._thread)  # of the thread that begins; another one may end this
        self._watching = ExitStack()  # of the same thread
        self._around = (self._watched,)  # one tuple for all steps
        self.has_bodies: bool = False  # whether a scope was entered
        self.seen: set[int] = set()
        """The scopes in which operators ran, by their orders."""
        self.told: set[str] = set()  # the libraries that told their operators
        self.counted: Counter[tuple[str, bool]] = Counter()
        """The operators that are no part of an understood function, by names and ``is_known``."""
        self.limit: int = LIMIT
        """The number of steps from which on ``let_go`` is called when the host has waited."""
        self.let_go: Callable[[], object] = int

    def start(self) -> None:
        """Begin the recording; code for a GPU is watched from its first host stream on."""
        super().start()
        if open_scopes.innermost_on(host=True) or not loader.driver_version():
            self._watch(self._watching)

    def stop(self) -> None:
        """End the recording."""
        super().stop()
        self._watching.close()
        self._keep(self._home)

    @property
    def steps(self) -> list[WatchedStep]:
        """All steps, in the order in which they were given."""
        return sorted(self._steps, key=lambda step: step.order)

    def take(self, step: WatchedStep) -> None:
        """Note a step and its accesses, in the thread that gives it."""
        self._keep()
        if step.kind in ("function", "then", "scope", "future"):
            self.given[step.order] = self._read(step)
            self.has_bodies = self.has_bodies or step.kind == "scope"
            if step.kind != "future":
                step.around += self._around
        super().take(step)
        if len(self._steps) > self.limit:
            if step.kind == "query":
                self.let_go()
            elif step.kind == "synchronisation":
                step.around += (self._waited,)
        if isinstance(step.stream, HostStream) and vars(self._thread) is self._home:
            try:  # noqa: SIM105 - as in ``_read``
                self._watch(self._watching)  # from here on, also outside of streams
            except RecursionError:
                pass

    @contextmanager
    def _waited(self, _: WatchedStep) -> Generator[None]:
        yield
        self.let_go()

    @contextmanager
    def letting_go(self) -> Generator[tuple[list[WatchedStep], dict[int, RecordedWork]]]:
        """Lend the steps so far and their work, of which ``drop`` forgets some."""
        with self._lock:
            steps = self._steps.copy()
            given = self.given
            yield steps, {one.order: given[one.order] for one in steps if one.order in given}
            self.limit = max(LIMIT, 2 * len(self._steps))

    def drop(self, steps: Sequence[WatchedStep], given: Iterable[int]) -> None:
        """Forget the first steps, and work by its orders."""
        del self._steps[: len(steps)]
        for order in given:
            del self.given[order]
            self.seen.discard(order)

    def accesses(self, work: RecordedWork) -> tuple[Access, ...]:
        """Return the accesses of some work, without those to memory that it alone has used."""
        is_all = self._memories.has_foreign  # which can be the same memory by another owner
        found = [access_to(use) for use in work.own if is_all or use[0].user is None]
        return (*work.accesses, *work.held, *filter(None, found))

    def _read(self, step: WatchedStep) -> RecordedWork:
        work = RecordedWork(step, None, (), is_known=False, streams={})
        try:
            self._thread.is_reading = True
            with skipping:
                frame = _frame() or (None if step.giver else places.users_frame())
                is_known = isinstance(step.mark, trace.Step)  # the future of a step that was given
                by = self.given.get(step.giver.order) if step.giver and frame is None else None
                variables = _objects(frame)
                if by is not None:  # a lambda, or a call of StreamKit's that was given directly
                    work = by._replace(step=step, accesses=(), is_known=is_known, held=())
                else:
                    streams, callers = self._streams_among(variables), self._callers(frame)
                    call = -1 if frame is None else frame.f_lasti
                    place = places.place_of(frame)
                    work = RecordedWork(step, place, (), is_known, streams, (), call, callers)
                work = work if step.call is None else self._with_accesses(work, variables)
        except RecursionError:  # the stack is too deep for a context too
            pass
        finally:
            self._thread.is_reading = False
        return work

    def _with_accesses(
        self, work: RecordedWork, variables: Iterable[tuple[str, object]]
    ) -> RecordedWork:
        """Add the accesses of a call. An object that raises leaves those of others."""
        memories, call, uses, is_known = self._memories, work.step.call, list[ArrayUse](), False
        with skipping:
            uses, is_known = calls.uses(call)
        reached = [] if is_known else [*memories.reached(call)]
        names = memories.names_of((*reached, *variables, *self._arrays.items()))
        uses += (ArrayUse(array, "unknown", is_sure=False) for _, array in reached)
        if calls.is_operator(call):
            self._operators[work.step.order] = names
        found: dict[Access | None, Any] = {}  # each once
        unread = len(uses)
        for use in uses:
            with skipping:
                found[memories.access(use, names)] = use.array
                unread -= 1
        told = {one for one in found if not is_known and memories.watching(found[one])}
        accesses = tuple(one for one in found if one is not None and one not in told)
        held = tuple(filter(None, told))
        return work._replace(accesses=accesses, is_known=is_known and not unread, held=held)

    def _streams_among(self, variables: Iterable[tuple[str, object]]) -> Mapping[int, str]:
        """Return the names of host streams by their ids; one object for all that are alike."""
        found = {one.id: name for name, one in variables if type(one) is HostStream}
        return self._streams.setdefault(tuple(found.items()), found)

    def _callers(self, frame: FrameType | None) -> Callers:
        """Return the lines around a frame, each with its own names of host streams."""
        around = ((one, reversed(local_variables(one).items())) for one in places.callers(frame))
        return tuple((places.place_of(one), self._streams_among(names)) for one, names in around)

    # -- operators ----------------------------------------------------------------------------

    def _watch(self, until: ExitStack) -> None:
        """Let the libraries tell the operators of this thread, once, until a stack is closed."""
        thread = self._thread
        for library, load in registry.loaded().items() if not thread.is_watched else ():
            watch = offered(load(), Diagnosis.watch_operators)
            if watch is not None:
                if not thread.is_watched:
                    thread.is_watched = True
                    until.callback(vars(thread).update, is_watched=False)
                until.enter_context(watch(functools.partial(self._tell, library)))

    @contextmanager
    def _watched(self, step: WatchedStep) -> Generator[None]:
        """Watch while a step runs, in the thread that runs it."""
        running, stream = self._thread.running, step.stream
        around = next(open_scopes.of_thread(), None)
        if step.kind == "scope":  # which tells itself what it moves
            _, stream, around, _ = running[-1]
        with ExitStack() as watching:
            self._watch(watching)
            self._keep()
            running.append((step.order, stream, around, _caller()))
            try:
                yield
            finally:
                running.pop()
                self._keep()
                self._operators.pop(step.order, None)

    def _tell(self, library: str, name: str, uses: Iterable[Any], is_known: bool) -> None:  # noqa: FBT001 - as the adapters call it
        """Note an operator, in the thread that runs it."""
        thread = self._thread
        if thread.is_reading:
            return
        self.told.add(library)
        order, stream, around, caller = thread.running[-1]
        for scope in open_scopes.of_thread():
            if scope is around:
                break
            moved = getattr(scope, "libraries", ())  # which a scope of a CUDA stream lacks
            if moved is None or library in moved:
                stream = scope.stream
                break
        if not self._is_part(order, is_known=is_known):
            self.counted[name, is_known] += 1
        if thread.entries.stream is not stream:
            self._keep()
            thread.entries.stream = stream
        with skipping:
            self._note(library, name, uses, order, _frame(caller))
            return
        self.counted[name, False] += 1

    def _note(
        self, library: str, name: str, uses: Iterable[Any], order: int, frame: FrameType | None
    ) -> None:
        """Note an operator at a line, as part of a step."""
        entries = self._thread.entries
        # what these operators alone have used so far has no race, and perhaps is gone soon
        arrays, old, own = [], [], []
        for array, mode, is_sure, told in uses:
            owner, layout = self._memories.memory(array, told, entries)
            if owner.user is entries and owner.is_own:
                own.append((owner, layout, mode, is_sure))
            else:
                arrays.append(array)
                old.append((owner, layout, mode, is_sure))
        # by its id, because to hash code takes as long as to run it
        line = None if frame is None else (id(frame.f_code), frame.f_lasti)
        key = name, line, *old
        found = entries.get(key)
        if found is None:  # else it is as before, as in a loop
            where = None if frame is None else self._lines.get(key)
            if where is None:
                where = self._lines[key] = self._where(order, frame, zip(arrays, old, strict=True))
            step: Any = trace.Step(entries.stream, "operator", name, None)
            step.module, step.is_inline = library, True
            step.start_ns = step.end_ns = step.given_ns
            found = entries[key] = step, where, set()
        found[-1].update(own)
        if len(found[-1]) > LIMIT or len(entries) > LIMIT:
            self._keep()

    def _is_part(self, order: int, *, is_known: bool) -> bool:
        """Note that an operator told of a step; whether that is a function that is understood."""
        whole = self.given.get(order)
        if whole is None:
            return False
        if whole.step.kind == "scope":
            self.seen.add(order)
        if whole.held:
            whole = self.given[order] = whole._replace(held=())
        if not is_known if whole.is_known else order in self._operators:
            whole = self.given[order] = whole._replace(is_known=is_known)
        return whole.is_known

    def _where(
        self, order: int, frame: FrameType | None, uses: Iterable[tuple[object, MemoryUse]]
    ) -> tuple[Any, ...]:
        """Return the code that called an operator, the line, its names for streams, the accesses.

        Of a function that is given directly, the line is that which gave it.
        """
        memories = self._memories
        if frame is None:
            whole = self.given.get(order)
            code, place, streams = None, whole and whole.place, whole.streams if whole else {}
            names = self._operators.get(order, {})
        else:
            variables = _objects(frame)
            code, place = frame.f_code, places.place_of(frame)
            streams = self._streams_among(variables)
            names = memories.names_of((*variables, *self._arrays.items()))
        found = (memories.made(use, memories.name_of(one, use[0], names)) for one, use in uses)
        if len(self._lines) > LIMIT:
            self._lines.clear()
        return code, place, streams, tuple(filter(None, found))

    def _keep(self, of: dict[str, Any] | None = None) -> None:
        """Keep the operators since the latest step of a thread, but for memory that is gone."""
        thread = vars(self._thread) if of is None else of
        entries, thread["entries"] = thread["entries"], _Entries()
        for (name, *_), (step, (_, place, streams, accesses), own) in [*entries.items()]:
            alive = tuple(
                use for use in own if use[0].user is not entries or use[0].ref() is not None
            )
            if alive or accesses or name in READS_A_NUMBER:
                self.given[step.order] = RecordedWork(step, place, accesses, True, streams, alive)  # noqa: FBT003 - is_known
                super().take(step)
        entries.clear()  # which the owners of memory hold


class _Entries(dict[Any, tuple[Any, ...]]):
    """A thread's operators since its latest step, those of a line on the same memory once."""

    stream: Any = None  # of all of them


class _Thread(threading.local):
    def __init__(self) -> None:
        # of the host and the steps that it runs: the order, the stream, the innermost scope that
        # was open, the code that runs it
        self.running: list[tuple[int, Any, Any, CodeType | None]] = [(-1, None, None, None)]
        self.is_reading = False  # whether this recorder itself runs operators
        self.is_watched = False  # whether the libraries tell the operators of this thread
        self.entries = _Entries()


def _frame(within: CodeType | None = None) -> FrameType | None:
    """Return the user's frame that gives work: around lambdas, in which no call can be added."""
    frame = places.users_around(sys._getframe(1), within)  # noqa: SLF001 - a traceback keeps more
    while frame is not None and frame.f_code.co_name == "<lambda>":
        frame = places.users_around(frame.f_back, within)
    return frame


def _objects(frame: FrameType | None) -> list[tuple[str, object]]:
    """Return the variables of a frame that may be arrays or streams."""
    return [one for one in places.variables(frame) if id(type(one[1])) not in NO_ARRAYS]


def _caller() -> CodeType | None:
    """Return the code that entered a step."""
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001 - a traceback keeps more
    own = {__name__, trace.__name__, contextlib.__name__}
    while frame is not None and frame.f_globals.get("__name__") in own:
        frame = frame.f_back
    return None if frame is None else frame.f_code
