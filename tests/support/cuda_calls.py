"""Programs of driver calls, written down as CUPTI's callbacks note them."""

from __future__ import annotations

from streamkit._cuda.memory_pools import Allocation  # what the driver says of memory
from streamkit._support.extents import Extent  # of an access
from streamkit.diagnostics.races import cuda_races  # what is made of steps
from streamkit.diagnostics.races.arrays import RacedArray  # of an access
from streamkit.diagnostics.races.memory_use import Launch  # what a call does
from streamkit.diagnostics.races.search import Access  # what a call does
from streamkit.diagnostics.recording import steps  # what is made of facts
from streamkit.diagnostics.recording.calls import CALLS, Fact, Kernel  # facts are made up here
from streamkit.diagnostics.recording.driver_recorder import KnownQueue  # what is known of a queue
from streamkit.diagnostics.recording.memory import Lives  # whose memory an access uses
from streamkit.diagnostics.recording.operations import AuditedQueue  # what a report calls a queue
from streamkit.diagnostics.recording.places import Place  # where a call is

CONTEXT = 77
STREAMS = {"a": 16, "b": 32, "c": 48, "nonblocking": 64, "unknown": 80, "legacy": 0, "mine": 2}
EVENTS = {"e": 500, "f": 600}
_HANDLES = STREAMS | EVENTS
_MODES = {"writes": "write", "reads": "read", "uses": "unknown"}
_VERBS = {
    "records": "cuEventRecord",
    "waits": "cuStreamWaitEvent",
    "launches": "cuGraphLaunch",
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
_SIZE, _EXTERNAL = 512, 1
_X_MEMORY = Allocation(0, _SIZE, is_host=False, context=0)
_X = RacedArray("x", "float32", (4,), 16)


def fact_of(name, values, more=None, since=None, number=None):
    """A call of the driver, as it is noted; what is missing of its fields is 0."""
    number = _NUMBERS[name, False] if number is None else number
    call = CALLS[number]
    missing = len(call.fields.unpack(bytes(call.fields.size))) - len(values)
    fields = call.fields.pack(*values, *[0] * missing)
    handle = b"" if call.stream is None else fields[call.stream : call.stream + 8]
    stream = int.from_bytes(handle, "little") or 1 + call.is_per_thread
    stream *= bool(handle or call.kind in steps.WORK)
    return Fact(number, 1, CONTEXT, fields, None, more, since, stream)


class Program:
    """Calls in the order in which they are given; each is at a line of its own."""

    def __init__(self):
        self.facts = []
        self.context = CONTEXT
        """The current one."""
        self.may_hold_host = False
        """Whether copies may hold the host."""
        self.contexts = {}
        """Of streams that are in another one, by their handles; None where that is not known."""
        self._accesses = {}

    def call(self, name, *values, thread=1, more=None, since=None, per_thread=False, number=None):
        """Note a call of the driver; return its place."""
        fact = fact_of(
            name, values, more, since, _NUMBERS[name, per_thread] if number is None else number
        )
        place = Place("program.py", len(self.facts) + 1)
        self.facts.append(fact._replace(thread=thread, context=self.context, place=place))
        return len(self.facts) - 1

    def kernel(self, stream, mode="write", *, thread=1, start=0, stop=16, is_sure=True):
        """Launch a kernel that uses the array."""
        handle = STREAMS.get(stream, stream)
        number = self.call("cuLaunchKernel", 0, handle, thread=thread, more=Kernel("k", ()))
        self.uses(number, mode, start, stop, is_sure=is_sure)

    def uses(self, number, mode, start=0, stop=16, *, is_sure=True):
        """Have the call of that place use the array."""
        extent = Extent(start, stop, stop - start)
        self._accesses[number] = Access(0, extent, mode, is_sure, _X)

    def run(self, text):
        """Note what a text says: a call for each line, as in ``b waits e by 2``."""
        for line in filter(None, map(str.split, text.replace(";", "\n").split("\n"))):
            words, _, thread = " ".join(line).partition(" by ")
            plain = words.removesuffix(" captured")
            self._run(plain.split(), int(thread or 1))
            self.facts[-1] = self.facts[-1]._replace(is_captured=plain != words)
        return self

    def _run(self, words, thread):
        subject, verb = words[:2]
        if verb in _MODES:
            self.kernel(subject, _MODES[verb], thread=thread)
            return
        if subject == "make":
            self.call("cuEventCreate", more=_HANDLES[verb], since=len(self.facts))
            return
        flags = [_EXTERNAL] if words[-1] == "outside" else []
        words = words[:-1] if flags else words
        if subject in ("sync", "destroy"):
            name = _ENDS[subject, "device" if verb == "device" else verb in EVENTS]
            handles = [] if verb == "device" else [_HANDLES[verb]]
        else:
            name, order = _VERBS[verb], slice(None, None, -1 if verb == "records" else 1)
            handles = [_HANDLES[word] for word in (subject, *words[2:])][order]
        if flags and verb == "records":
            name = "cuEventRecordWithFlags"
        since = len(self.facts) if subject == "sync" else None
        self.call(name, *handles, *flags, thread=thread, since=since)

    def found(self):
        """Return what was found in it."""
        program = steps.steps(self.facts)
        works, lives = {}, Lives(program, lambda address: _X_MEMORY if address < _SIZE else None)
        for step in program:
            lives.read(step)
            if step.kind in steps.WORK:
                access = self._accesses.get(step.number)
                if access is not None:
                    access = access._replace(allocation=lives.at(access.extent.start).number)
                launch = Launch(
                    step.kind,
                    None,
                    () if access is None else (access,),
                    is_known=access is not None,
                    may_hold_host=self.may_hold_host and step.kind in ("copy", "other work"),
                )
                works[step.number] = cuda_races.PlacedLaunch(launch, step.fact.place, step.queue)
        names = {handle: (name, True) for name, handle in STREAMS.items()}
        variables = {work.place: names for work in works.values()}
        return cuda_races.find(program, works, variables, _queue, self._known)

    def _known(self, queue):
        context = self.contexts.get(queue.handle, CONTEXT)
        is_default = queue.handle in (1, 2)
        return KnownQueue(
            _queue(queue), _is_blocking(queue), queue.number if is_default else context
        )

    def verdicts(self):
        """Return of each race whether it is certain."""
        return [race.certain for race, _ in self.found().races]


def _queue(queue):
    name = next((name for name, handle in STREAMS.items() if handle == queue.handle), "legacy")
    return AuditedQueue("cuda:0", name, queue.number)


def _is_blocking(queue):
    return {64: False, 80: None}.get(queue.handle, True)
