"""Programs of driver calls, written down as CUPTI's callbacks note them."""

from __future__ import annotations

from streamkit._races import cuda_races  # what is made of steps
from streamkit._races.arrays import RacedArray  # of an access
from streamkit._races.extents import Extent  # of an access
from streamkit._races.memory_use import Launch  # what a call does
from streamkit._races.places import Place  # where a call is
from streamkit._races.search import Access  # what a call does
from streamkit._recording import driver_recorder  # what is made of facts
from streamkit._recording.callbacks import Fact, Kernel  # facts are made up here
from streamkit._recording.calls import CALLS  # facts are made up here
from streamkit._recording.operations import AuditedQueue  # what a report calls a queue

CONTEXT = 77
STREAMS = {"a": 16, "b": 32, "c": 48, "nonblocking": 64, "unknown": 80, "legacy": 0, "mine": 2}
EVENTS = {"e": 500, "f": 600}
_HANDLES = STREAMS | EVENTS
_MODES = {"writes": "write", "reads": "read", "uses": "unknown"}
_VERBS = {
    "records": "cuEventRecord",
    "waits": "cuStreamWaitEvent",
    "begins": "cuStreamBeginCapture",
    "ends": "cuStreamEndCapture",
}
_ENDS = {
    ("sync", "device"): "cuCtxSynchronize",
    ("sync", True): "cuEventQuery",
    ("sync", False): "cuStreamSynchronize",
    ("destroy", True): "cuEventDestroy",
    ("destroy", False): "cuStreamDestroy",
}
_NUMBERS = {
    (call.name, call.is_per_thread): number for number, call in reversed(CALLS.items())
}  # the first number of a name is of the oldest variant that is watched
_X = RacedArray("x", "float32", (4,), 16)


class Program:
    """Calls in the order in which they are given; each is at a line of its own."""

    def __init__(self, capturing=()):
        self.facts = []
        self.context = CONTEXT
        self._accesses = {}
        self._capturing = [STREAMS[name] for name in capturing]

    def call(self, name, *values, thread=1, more=None, since=None, per_thread=False):
        """Note a call of the driver; return its place."""
        number = _NUMBERS[name, per_thread]
        call = CALLS[number]
        fields = b"" if isinstance(more, Kernel) else call.fields.pack(*values)
        place = Place("program.py", len(self.facts) + 1)
        self.facts.append(Fact(number, thread, self.context, fields, place, more, since))
        return len(self.facts) - 1

    def kernel(self, stream, mode="write", *, thread=1, start=0, stop=16, is_sure=True):
        """Launch a kernel that uses the array."""
        handle = STREAMS.get(stream, stream) or 1
        number = self.call("cuLaunchKernel", thread=thread, more=Kernel("k", handle, ()))
        extent = Extent(start, stop, stop - start)
        self._accesses[number] = Access(0, extent, mode, is_sure, _X)

    def run(self, text):
        """Note what a text says: a call for each line, as in ``b waits e by 2``."""
        for line in filter(None, map(str.split, text.replace(";", "\n").split("\n"))):
            words, _, thread = " ".join(line).partition(" by ")
            self._run(words.split(), int(thread or 1))
        return self

    def _run(self, words, thread):
        subject, verb = words[:2]
        if verb in _MODES:
            self.kernel(subject, _MODES[verb], thread=thread)
            return
        if subject in ("sync", "destroy"):
            name = _ENDS[subject, "device" if verb == "device" else verb in EVENTS]
            handles = [] if verb == "device" else [_HANDLES[verb]]
        else:
            name, order = _VERBS[verb], slice(None, None, -1 if verb == "records" else 1)
            handles = [_HANDLES[word] for word in (subject, *words[2:])][order]
        since = len(self.facts) if subject == "sync" else None
        self.call(name, *handles, thread=thread, since=since)

    def found(self):
        """Return what was found in it."""
        program = driver_recorder.steps(self.facts, self._capturing)
        works = {}
        for step in program:
            if step.kind in driver_recorder.WORK:
                access = self._accesses.get(step.number)
                launch = Launch(
                    step.kind,
                    None,
                    () if access is None else (access,),
                    is_known=access is not None,
                )
                works[step.number] = cuda_races.PlacedLaunch(launch, step.fact.place, step.queue)
        return cuda_races.find(program, works, _queue, _missing_call, _is_blocking)

    def verdicts(self):
        """Return of each race whether it is certain."""
        return [race.certain for race, _ in self.found().races]


def _queue(queue):
    name = next((name for name, handle in STREAMS.items() if handle == queue.handle), "legacy")
    return AuditedQueue("cuda:0", name, queue.number)


def _missing_call(first, second):
    return f"{_queue(second.queue).name}.wait({_queue(first.queue).name})"


def _is_blocking(queue):
    return {64: False, 80: None}.get(queue.handle, True)
