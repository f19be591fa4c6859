"""The recorder of host streams for ``races``: their work, and the memory that it uses."""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from streamkit._queues import open_scopes, registry, trace
from streamkit._streams.host_stream import HostStream
from streamkit._support.frames import local_variables
from streamkit.diagnostics.races import calls
from streamkit.diagnostics.races.arrays import NO_ARRAYS, Memories
from streamkit.diagnostics.recording import places
from streamkit.diagnostics.recording.host_recorder import HostRecorder
from streamkit.protocols import Diagnosis
from streamkit.protocols.adapters import offered

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
    from contextlib import AbstractContextManager
    from types import CodeType, FrameType

    from streamkit.diagnostics.races.search import Access
    from streamkit.diagnostics.recording.operations import Kind
    from streamkit.diagnostics.recording.places import Place
    from streamkit.protocols import ArrayUse
    from streamkit.protocols.watching import WatchedStep


class RecordedWork(NamedTuple):
    """A piece of work, as the recorder saw it when it was given."""

    step: WatchedStep
    place: Place | None
    accesses: tuple[Access, ...]
    is_known: bool
    """Whether all accesses of the work are known."""
    is_future: bool
    """Whether the work only waits for a future."""
    streams: Mapping[int, str]
    """The names that the code of its place has for host streams, by their ids."""
    call: int = -1
    """Tells apart the calls of one line."""
    callers: tuple[tuple[Place | None, Mapping[int, str]], ...] = ()
    """The lines that called the code of its place, the nearest first, with their names."""


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
        # the work of functions once operators have told of it, by the orders of their steps
        self._if_told: dict[int, RecordedWork] = {}
        self._names: dict[int, dict[int, str]] = {}  # of arrays, by these orders
        # the names that the code of a line has for its arrays, by their ids, and for its streams
        self._lines: dict[Any, tuple[list[int], Place | None, Mapping[int, str], dict[int, str]]]
        self._lines = {}
        self._streams: dict[tuple[tuple[int, str], ...], dict[int, str]] = {}
        self._thread = _Thread()
        self._around = (self._watched,)  # one tuple for all steps
        self._plain: set[int] = set()  # scopes whose code names watched arrays only
        self.seen: set[int] = set()
        """The plain scopes in which operators ran, by their orders: operators tell all of these."""
        self.open_before: list[HostStream] = []
        """The streams of the scopes that this thread had entered before the recording."""

    def start(self) -> None:
        """Begin the recording."""
        scopes = (scope.stream for scope in open_scopes.stack.scopes)
        self.open_before = [one for one in scopes if isinstance(one, HostStream)]
        super().start()

    @property
    def steps(self) -> list[WatchedStep]:
        """All steps, in the order in which they were given."""
        return sorted(self._steps, key=lambda step: step.order)

    def take(self, step: WatchedStep) -> None:
        """Note a step and its accesses, in the thread that gives it."""
        super().take(step)
        if step.kind in ("function", "then", "scope"):
            self.given[step.order] = self._read(step)
            if not self.given[step.order].is_future:
                step.around += self._around

    def _read(self, step: WatchedStep) -> RecordedWork:
        frame = places.users_frame()
        place, variables = places.place_of(frame), _objects(frame)
        streams, callers = self._streams_among(variables), self._callers(frame)
        call = -1 if frame is None else frame.f_lasti
        if step.call is None:
            is_future = step.kind == "function"
            if frame is not None and not is_future and self._is_plain(frame):
                self._plain.add(step.order)
            is_known = isinstance(step.mark, trace.Step)
            return RecordedWork(step, place, (), is_known, is_future, streams, call, callers)
        work = RecordedWork(
            step, place, (), is_known=False, is_future=False, streams=streams, call=call,
            callers=callers,
        )  # fmt: skip
        try:
            self._thread.is_reading = True
            return self._with_uses(
                work, self._memories.names_of((*variables, *self._arrays.items()))
            )
        except Exception:  # noqa: BLE001 - an object of the program's may raise anything
            return work
        finally:
            self._thread.is_reading = False

    def _with_uses(self, work: RecordedWork, names: dict[int, str]) -> RecordedWork:
        """Return a function with its accesses, as far as they are known before it runs."""
        step = work.step
        uses, is_known = calls.uses(step.call)
        work = work._replace(accesses=self._accesses(uses, names), is_known=is_known)
        if not is_known:
            others = [use for use in uses if not self._is_watched(use.array)]
            is_operator = calls.is_operator(step.call)
            self._if_told[step.order] = work._replace(
                accesses=self._accesses(others, names), is_known=is_operator
            )
            if is_operator:  # it runs in a thread without these names
                self._names[step.order] = names
        return work

    def _accesses(self, uses: Iterable[ArrayUse], names: Mapping[int, str]) -> tuple[Access, ...]:
        with self._lock:
            found = (self._memories.access(use, names) for use in uses)
            return tuple(access for access in found if access is not None)

    def _streams_among(self, variables: Iterable[tuple[str, object]]) -> Mapping[int, str]:
        """Return the names of host streams by their ids; one object for all that are alike."""
        found = {one.id: name for name, one in variables if isinstance(one, HostStream)}
        return self._streams.setdefault(tuple(found.items()), found)

    def _callers(
        self, frame: FrameType | None
    ) -> tuple[tuple[Place | None, Mapping[int, str]], ...]:
        """Return the lines around a frame, each with its own names of host streams."""
        around = ((one, reversed(local_variables(one).items())) for one in places.callers(frame))
        return tuple((places.place_of(one), self._streams_among(names)) for one, names in around)

    def _is_plain(self, frame: FrameType) -> bool:
        """Whether all arrays that the code of a frame names are watched."""
        with contextlib.suppress(Exception):  # an object may raise anything
            return calls.names_no_others(places.named_by(frame), self._is_watched)
        return False

    def _is_watched(self, value: object) -> bool:
        return self._memories.watching(value) is not None

    # -- operators ----------------------------------------------------------------------------

    @contextmanager
    def _watched(self, step: WatchedStep) -> Generator[None]:
        """Let the libraries tell the operators of a step, once for steps inside each other."""
        thread = self._thread
        watches: list[AbstractContextManager[object]] = []
        for library, load in registry.loaded().items() if not thread.running else ():
            watch = offered(load(), Diagnosis.watch_operators)
            if watch is not None:
                watches.append(watch(functools.partial(self._tell, library)))
        if not (watches or thread.running):
            yield
            return
        thread.running.append(_Running(step, len(open_scopes.stack.scopes), _caller()))
        try:
            with ExitStack() as watching:
                for one in watches:
                    watching.enter_context(one)
                yield
        finally:
            thread.running.pop()

    def _tell(self, library: str, name: str, uses: Sequence[ArrayUse], is_known: bool) -> None:  # noqa: FBT001 - as the adapters call it
        """Note an operator, in the thread that runs it."""
        thread = self._thread
        if thread.is_reading or not thread.running:
            return
        outer, depth, caller = thread.running[-1]
        inside = (one.stream for one in reversed(open_scopes.stack.scopes[depth:]))
        stream = next((one for one in inside if isinstance(one, HostStream)), outer.stream)
        step = trace.Step(stream, "operator", name, None)
        step.module, step.is_inline = library, True
        step.start_ns = step.end_ns = step.given_ns
        frame = places.users_frame(within=caller)
        line = None if frame is None else (frame.f_code, frame.f_lineno or 0)
        arrays = [id(use.array) for use in uses]
        known = self._lines.get(line)
        if frame is None:
            place, streams = self.given[outer.order].place, self.given[outer.order].streams
            names = self._names.get(outer.order, {})
        elif known is not None and known[0] == arrays:  # as in a loop
            _, place, streams, names = known
        else:
            place, variables = places.place_of(frame), _objects(frame)
            streams = self._streams_among(variables)
            names = self._memories.names_of((*variables, *self._arrays.items()))
            self._lines[line] = arrays, place, streams, names
        found: tuple[Access, ...] = ()
        try:
            found = self._accesses(uses, names)
        except Exception:  # noqa: BLE001 - as above
            is_known = False
        if outer.order in self._plain:
            self.seen.add(outer.order)
        told = self._if_told.pop(outer.order, None)
        if told is not None:
            self.given[outer.order] = told
        self.given[step.order] = RecordedWork(
            step, place, found, is_known, is_future=False, streams=streams
        )
        super().take(step)


class _Running(NamedTuple):
    """A step that a thread runs."""

    step: WatchedStep
    depth: int
    """The number of scopes that were open when the step began."""
    caller: CodeType | None
    """The code that runs the step."""


class _Thread(threading.local):
    def __init__(self) -> None:
        self.running: list[_Running] = []
        self.is_reading = False  # whether this recorder itself runs operators


def _objects(frame: FrameType | None) -> list[tuple[str, object]]:
    """Return the variables of a frame that may be arrays or streams."""
    return [one for one in places.variables(frame) if type(one[1]) not in NO_ARRAYS]


def _caller() -> CodeType | None:
    """Return the code that entered a step."""
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001 - a traceback keeps more
    own = {__name__, trace.__name__, contextlib.__name__}
    while frame is not None and frame.f_globals.get("__name__") in own:
        frame = frame.f_back
    return None if frame is None else frame.f_code
