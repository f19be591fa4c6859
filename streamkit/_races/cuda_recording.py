"""The recorder of CUDA streams: what the driver is asked, by which line, and what it calls it."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, NamedTuple

from streamkit._audit.cuda_recording import name_of
from streamkit._audit.operations import AuditedQueue
from streamkit._base.queue import LEGACY, PER_THREAD, Queue, QueueRecord
from streamkit._cuda import driver, loader
from streamkit._cuda.driver_callbacks import Fact, NoCallbacksError, subscription
from streamkit._queues import identity, registry
from streamkit._races import cuda_races, places
from streamkit._races.cuda_order import CudaQueue, steps
from streamkit._races.cuda_work import WorkReader
from streamkit._races.launches import Launches, NamedMemory, named_memory
from streamkit._races.places import Place
from streamkit._streams.stream import CudaStream
from streamkit.errors import StreamKitError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import CodeType, FrameType

    from streamkit._races.cuda_races import Found

_UNSEEN = "all work on CUDA streams, which is not counted"


class _Variable(NamedTuple):
    """What a line calls a stream."""

    name: str
    is_ours: bool
    """Whether it is a StreamKit stream, with a method ``wait``."""


class CudaRaceRecorder:
    """Notes what all threads ask of the driver, from ``start`` to ``stop``."""

    def __init__(self, arrays: Mapping[str, object]) -> None:
        self._arrays = arrays
        self._all: list[Any] | None = None
        self._begin = self._end = self._lost = 0
        self._why_not = ""
        self._capturing: list[int] = []
        self._met: dict[int, list[tuple[int, AuditedQueue, bool | None]]] = {}
        """By handle: how many facts there were when a queue was met, and what it is."""
        self._noted: set[tuple[CodeType, int]] = set()
        self._memory: list[NamedMemory] = []  # the latest last
        self._variables: dict[Place, dict[int, _Variable]] = {}

    def start(self) -> None:
        """Begin, if the process may use CUDA. It loads no driver for nobody."""
        if not _may_use_cuda():
            return
        try:
            facts = subscription.open(self._place)
        except NoCallbacksError as error:
            self._why_not = f": {error}"
            return
        self._begin, self._all = len(facts), facts
        identity.watch(self._meet)
        for queue in filter(identity.is_alive, identity.living()):
            with contextlib.suppress(StreamKitError):
                if driver.capture_id(queue.handle) is not None:
                    self._capturing.append(queue.handle)
            self._meet(queue)

    def stop(self) -> None:
        """End. Nothing is left behind."""
        if self._all is None:
            return
        frame = places.users_frame()
        if frame is not None:
            self._note_names(frame)
        self._end, self._lost = len(self._all), subscription.lost
        identity.unwatch(self._meet)
        subscription.close()

    # -- in the callback ------------------------------------------------------------------------

    def _place(self) -> tuple[CodeType, int] | None:
        """Return where the user's code is that calls."""
        frame = places.users_frame()
        if frame is None:
            return None
        place = frame.f_code, frame.f_lineno or 0
        if place not in self._noted:
            self._noted.add(place)
            self._note_names(frame)
        return place

    def _note_names(self, frame: FrameType) -> None:
        """Note what the code of a frame calls streams and memory, and keep none of them."""
        streams = self._variables.setdefault(places.place_of(frame), {})
        for name, value in places.variables(frame):
            with contextlib.suppress(Exception):  # of somebody's object, which may be anything
                found = named_memory(name, value)
                if found is not None:
                    self._memory.append(found)
                elif isinstance(value, CudaStream):
                    queue = value._queue or value._found[0]  # noqa: SLF001 - ``handle`` could call CUDA
                    streams[queue.handle] = _Variable(name, is_ours=True)
                else:
                    streams.setdefault(_stream_handle(value), _Variable(name, is_ours=False))

    def _meet(self, queue: QueueRecord) -> None:
        if not queue.is_default:
            name = AuditedQueue(f"cuda:{queue.device}", name_of(queue), queue.id)
            since = 0 if self._all is None else len(self._all)
            self._met.setdefault(queue.handle, []).append((since, name, queue.nonblocking))

    # -- afterwards -----------------------------------------------------------------------------

    def found(self) -> Found:
        """Return what was found in the calls that were noted."""
        if self._all is None:
            missed = (_UNSEEN + self._why_not,) if _uses_cuda() else ()
            return cuda_races.Found((), 0, 0, missed)
        facts = [_read(fact) for fact in self._all[self._begin : self._end]]
        program = steps(facts, self._capturing)
        reader = WorkReader(Launches(self._arrays.items(), reversed(self._memory)))
        private = {stream for _, stream in driver.private_streams}
        works = {}
        for step in program:
            launch = reader.read(step)
            if launch is not None and step.queue is not None and step.queue.handle not in private:
                works[step.number] = cuda_races.Work(launch, step.fact.place, step.queue)
        queues = _Queues(self._met, facts, self._begin)
        names = cuda_races.Names(
            queues.named,
            lambda place, queue: self._variable(place, queue, queues, is_waiting=False),
            lambda place, queue: self._variable(place, queue, queues, is_waiting=True),
            queues.is_blocking,
        )
        found = cuda_races.find(program, works, names)
        if not self._lost:
            return found
        unread = "calls of the driver that could not be read"
        return found._replace(missed=(*found.missed, unread))

    def _variable(
        self, place: Place | None, queue: CudaQueue, queues: _Queues, *, is_waiting: bool
    ) -> str:
        if queue.handle == LEGACY:
            return "sk.default_stream()"
        if queue.handle == PER_THREAD:
            return "sk.per_thread_stream()"
        found = self._variables.get(place, {}).get(queue.handle) if place else None
        if found is None:
            return queues.named(queue).name
        return f"sk.wrap({found.name})" if is_waiting and not found.is_ours else found.name


def _stream_handle(value: object) -> int:
    """Return the handle of a library's stream; TypeError if it is none."""
    for adapter in registry.candidates(type(value)):
        with contextlib.suppress(Exception):  # another object of the library's
            return adapter.extract(value).handle
    raise TypeError


def _read(noted: Any) -> Fact:
    fact = Fact(*noted)
    if fact.place is None:
        return fact
    code, line = fact.place
    return fact._replace(place=Place(code.co_filename, line))


def _may_use_cuda() -> bool:
    if loader.is_forked or not (loader.is_loaded() or registry.loaded()):
        return False
    try:
        return driver.is_present()
    except StreamKitError:  # the driver cannot be asked
        return False


def _uses_cuda() -> bool:
    """Whether a library of the process may have work on a CUDA device; loads no driver for none."""
    if loader.is_forked or not (loader.is_loaded() or registry.loaded()):
        return False
    try:
        return driver.is_present() and any(
            map(driver.primary_is_active, range(driver.device_count()))
        )
    except StreamKitError:  # the driver cannot be asked, and a library may use it all the same
        return True


class _Queues:
    """What is known of queues: as they were met, and at the end."""

    def __init__(
        self,
        met: Mapping[int, list[tuple[int, AuditedQueue, bool | None]]],
        facts: Sequence[Fact],
        begin: int,
    ) -> None:
        self._known: dict[CudaQueue, tuple[AuditedQueue, bool | None]] = {}
        self._ends: dict[int, list[int]] = {}
        for step in steps(facts):
            if step.kind == "stream destroyed":
                self._ends.setdefault(step.fields[0], []).append(int(step.number) + begin)
        for handle, each in met.items():
            for since, name, nonblocking in each:
                ended = sum(end < since for end in self._ends.get(handle, ()))
                blocking = None if nonblocking is None else not nonblocking
                self._known[CudaQueue(handle, ended)] = name, blocking

    def named(self, queue: CudaQueue) -> AuditedQueue:
        """Return what a report calls a queue."""
        return self._of(queue)[0]

    def is_blocking(self, queue: CudaQueue) -> bool | None:
        """Whether it waits for the legacy stream; None if that is not known."""
        return self._of(queue)[1]

    def _of(self, queue: CudaQueue) -> tuple[AuditedQueue, bool | None]:
        found = self._known.get(queue)
        if found is None:
            found = self._known[queue] = self._ask(queue)
        return found

    def _ask(self, queue: CudaQueue) -> tuple[AuditedQueue, bool | None]:
        handle = queue.handle
        if handle <= PER_THREAD:
            device = f"cuda:{driver.device_of.get(queue.number, '?')}"
            which = "legacy" if handle == LEGACY else "per-thread"
            return AuditedQueue(device, f"{which} default stream", None), True
        if queue.number == len(self._ends.get(handle, ())):  # it lives
            with contextlib.suppress(StreamKitError):
                record = identity.identify(Queue(handle))
                name = AuditedQueue(f"cuda:{record.device}", name_of(record), record.id)
                return name, None if record.nonblocking is None else not record.nonblocking
        return AuditedQueue("cuda:?", f"stream {handle:#x}, which has ended", None), None
