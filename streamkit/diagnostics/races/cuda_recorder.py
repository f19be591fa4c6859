"""The recorder of CUDA streams: the calls of the driver, the lines that make them, their names."""

from __future__ import annotations

import contextlib
import functools
import sys
from typing import TYPE_CHECKING

from streamkit._cuda import driver, loader
from streamkit._queues import registry
from streamkit._streams.stream import CudaStream
from streamkit._support.frames import can_be_read
from streamkit.diagnostics.races.arrays import NO_ARRAYS
from streamkit.diagnostics.races.cuda_races import Found, PlacedLaunch, find
from streamkit.diagnostics.races.memory_use import NamedMemory, WorkReader, named_memory
from streamkit.diagnostics.races.report import named_queues
from streamkit.diagnostics.recording import places
from streamkit.diagnostics.recording.driver_recorder import DriverRecording
from streamkit.diagnostics.recording.driver_recorder import operations as given_to_cuda
from streamkit.diagnostics.recording.memory import Lives
from streamkit.diagnostics.recording.places import skipping
from streamkit.diagnostics.recording.recorder import NoCallbacksError, has_lines
from streamkit.errors import StreamKitError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import CodeType, FrameType

    from streamkit.diagnostics.races.cuda_races import Variable
    from streamkit.diagnostics.recording.places import Place
    from streamkit.diagnostics.recording.steps import StepKind

_NOT_READ: tuple[StepKind, ...] = ("unknown", "not followed")
_UNSEEN = "all work on CUDA streams, which is not counted"


class CudaRaceRecorder(DriverRecording):
    """Notes the driver calls of all threads, from ``start`` to ``stop``."""

    def __init__(
        self, arrays: Mapping[str, object], has_driver: Callable[[], bool] | None = None
    ) -> None:
        """Take named arrays, and a test for a driver, which by default must be loaded and work."""
        super().__init__(self._note)
        self._arrays, self._has_driver = arrays, has_driver or _has_driver
        self._has_begun = False
        self._why_not = ""
        self._noticed: set[tuple[CodeType, int | None]] = set()
        self._unread: dict[CodeType, Place] = {}
        self._may_be_named: Callable[[type], bool] = functools.cache(_may_be_named)
        self._memory: list[NamedMemory] = []  # the latest last
        self._variables: dict[Place | None, dict[int, Variable]] = {}

    def start(self) -> None:
        """Begin the recording, if there is a driver."""
        has_driver = False
        with contextlib.suppress(StreamKitError):  # the driver gives an error
            has_driver = self._has_driver()
        try:
            if has_driver:
                super().start()
                self._has_begun = True
        except NoCallbacksError as error:
            self._why_not = f": {error}"

    def stop(self) -> None:
        """End the recording, and leave nothing behind."""
        if self._has_begun:
            self._noticed.clear()
            try:
                self._note()  # the names at the end too
            finally:  # a signal's handler can raise
                super().stop()

    # -- the names at the lines of calls --------------------------------------------------------

    def _note(self) -> None:
        """Note the names at the lines where the threads are now, soon after calls from new ones."""
        # one of the frames is this function's: a variable for it here would keep it, and with it
        # all that called it and their variables, until the garbage is collected
        for users in map(places.users_around, sys._current_frames().values()):  # noqa: SLF001
            if users is not None and (users.f_code, users.f_lineno) not in self._noticed:
                with skipping:
                    self._note_names(users)
                self._noticed.add((users.f_code, users.f_lineno))

    def _note_names(self, frame: FrameType) -> None:
        """Note the names of streams and memory in the code of a frame; keep no object alive."""
        here, now = places.Place(frame.f_code.co_filename, frame.f_lineno or 0), self.count()
        self._unread[frame.f_code] = here
        streams = self._variables.setdefault(here, {})
        for *_, line in frame.f_code.co_lines():  # the call can have come from another one
            self._variables.setdefault(here._replace(line=line or 0), streams)
        for name, value in places.variables(frame):
            with skipping:
                if not self._may_be_named(type(value)):
                    continue
                found = named_memory(name, value)
                if found is not None:
                    self._memory.append(found._replace(noted=now))
                elif isinstance(value, CudaStream):
                    closable = value._closable  # noqa: SLF001 - ``handle`` could call CUDA, as below
                    queue = value._queue or (closable.queue if closable else value._found[0])  # noqa: SLF001
                    streams[queue.handle] = name, True
                else:
                    streams.setdefault(_stream_handle(value), (name, False))
        if can_be_read(frame):
            self._unread.pop(frame.f_code, None)

    # -- afterwards -----------------------------------------------------------------------------

    def found(self) -> Found:
        """Return the races and the coverage of the calls that were noted."""
        if not self._has_begun:
            return Found(unseen=(_UNSEEN + self._why_not,) if _uses_cuda() else ())
        program = self.steps()
        queues = self.queues(program)
        reader = WorkReader(Lives(program), self._arrays.items(), reversed(self._memory))
        private = {stream for _, stream in driver.private_streams}
        works = {}
        for step in program:
            launch = reader.read(step)
            if launch is not None and step.queue is not None and step.queue.handle not in private:
                works[step.number] = PlacedLaunch(launch, step.fact.place, step.queue)
        met = {step.queue: queues.named(step.queue) for step in program if step.queue}
        lines = self._variables.values()
        names = ({one: line[one.handle][0] for one in met if one.handle in line} for line in lines)
        queue_of = named_queues(met, names).__getitem__

        found = find(program, works, self._variables, queue_of, queues.of)
        unseen = [step.call.name for step in program if step.kind in _NOT_READ]
        if not has_lines():
            unseen.append("the lines of calls, which this Python does not show")
        unseen += (f"the variables at {file}:{line}" for file, line in self._unread.values())
        if self.lost:
            unseen.append("calls of the driver that could not be read")
        operations = tuple(given_to_cuda(program, queue_of, "wait for a value"))
        return found._replace(operations=operations, unseen=tuple(unseen))


def _may_be_named(kind: type) -> bool:
    """Whether such an object can be an array or a stream; most variables are neither."""
    is_of_library = id(kind) not in NO_ARRAYS and any(True for _ in registry.candidates(kind))
    return is_of_library or issubclass(kind, CudaStream)


def _stream_handle(value: object) -> int:
    """Return the handle of a library's stream; TypeError for any other object."""
    for adapter in registry.candidates(type(value)):
        with skipping:  # another object of the library's
            return adapter.extract(value).handle
    raise TypeError


def _has_driver() -> bool:
    """Whether some library has loaded a driver, and it works; this never loads the driver."""
    return (loader.is_loaded() or bool(registry.loaded())) and driver.is_available()


def _uses_cuda() -> bool:
    """Whether a library of the process may have work on a CUDA device."""
    try:
        devices = range(driver.device_count()) if _has_driver() else ()
        return any(map(driver.primary_is_active, devices))
    except StreamKitError:  # the driver gives an error, and a library may use it all the same
        return True
