"""No public call moves the current device or context, but ``use``, ``with`` and what they run.

Each is tried on objects of device 1, while device 0 is current and while nothing is.
"""

from __future__ import annotations

import asyncio
import contextlib
from types import SimpleNamespace

import pytest

import streamkit as sk
from streamkit import processes
from streamkit._support.classes import hide  # which names are not ours
from streamkit.errors import OneQueueError, UnsupportedStreamError
from streamkit.processes import open_event, token_from_bytes
from streamkit.types import CudaEvent, CudaGraph, CudaStream
from support.gpu.raw import check, current_context, destroy_stream, driver, on_device
from support.libraries import cuda_devices, need

pytestmark = pytest.mark.skipif(cuda_devices() < 2, reason="one CUDA device")

CALLS = {}
NOT_CALLED = {
    "use",  # it is what moves
    "CudaStream.__enter__",
    "CudaStream.__exit__",
    "CudaGraph.section",  # for inside the block of a capture
    # for the tests below: the emulated driver shares nothing with other processes
    "share",
    "CudaEvent.export",
    "open_event",
    "token_from_bytes",
}
STREAMS = {"owned": sk.new_stream, "legacy": sk.default_stream}
STREAMS["own"] = lambda device: sk.default_stream(device, per_thread=True)
VALUES = ("CudaStream.name", "CudaStream.native", "CudaStream.owned", "CudaStream.closed",
          "CudaStream.is_default", "CudaStream.is_nonblocking", "CudaStream.priority",
          "CudaStream.context", "CudaStream.is_capturing", "CudaStream.handle", "CudaStream.device",
          "CudaStream.device_id", "CudaStream.dlpack_stream", "CudaStream.id", "CudaStream.done",
          "CudaEvent.closed", "CudaEvent.device", "CudaEvent.device_id", "CudaEvent.done",
          "CudaEvent.handle", "CudaEvent.native", "CudaGraph.closed", "CudaGraph.nodes",
          "CudaGraph.stream")  # fmt: skip


def call(*names):
    """The function below calls, in this order, what has these public names."""

    def add(function):
        CALLS.update(dict.fromkeys(names, function))
        return function

    return add


def make_kit(make_stream):
    stream, other = make_stream(1), sk.new_stream(1, nonblocking=True)
    event = stream.record(timing=True)
    with sk.capture(other) as graph:
        other.record(sk.new_event(device=1), external=True)
    stream.sync()
    with on_device(1):
        raw = int(check(driver.cuStreamCreate(1)))
    return SimpleNamespace(stream=stream, other=other, event=event, graph=graph, raw=raw)


class Foreign:
    def __init__(self, raw):
        self.raw = raw

    def __cuda_stream__(self):
        return 0, self.raw


async def awaited(waitable):
    await waitable


@call(*VALUES)
def read(k):
    things = {"CudaStream": k.stream, "CudaEvent": k.event, "CudaGraph": k.graph}
    for name in VALUES:
        of, _, value = name.partition(".")
        before = current_context()
        getattr(things[of], value)
        assert current_context() == before, name


@call("wrap", "from_handle", "CudaStream.from_handle")
def from_others(k):
    sk.wrap(Foreign(k.raw))
    assert sk.from_handle(k.raw, owner=k) == sk.Stream.from_handle(k.raw)


@call("new_stream", "CudaStream.close", "default_stream", "is_available")
def make(k):
    assert sk.is_available()
    made = sk.new_stream(1, name="made", priority="high")
    made.record()
    made.close()
    sk.default_stream(1).record()
    sk.default_stream(1, per_thread=True).record()


@call("new_event", "wrap_event", "CudaStream.record", "CudaEvent.close")
def record(k):
    event = sk.new_event(device=1, timing=True)
    for _ in range(3):
        k.stream.record(event)
    k.stream.record(sk.wrap_event(event))
    k.stream.record().close()


@call("CudaEvent.__sub__", "CudaEvent.sync", "CudaEvent.__await__")
def measure(k):
    end = k.stream.record(timing=True)
    end.sync(timeout=10)
    asyncio.run(awaited(end))
    assert end - k.event >= 0


@call("CudaStream.wait")
def wait(k):
    for _ in range(2):
        k.stream.wait(k.other)
        k.other.wait(k.stream)
        k.stream.wait(sk.new_stream(0))
        k.stream.wait(k.event)
        k.stream.wait(sk.default_stream(0))


@call("CudaStream.sync", "CudaStream.__await__", "CudaStream.then")
def block(k):
    k.stream.sync(timeout=10)
    asyncio.run(awaited(k.stream))
    assert k.stream.then(current_context).result(10) == k.stream.context


@call("CudaStream.submit", "CudaStream.keep", "CudaGraph.keep")
def hold(k):
    contexts = []
    try:
        k.stream.submit(lambda: contexts.append(current_context()))
    except UnsupportedStreamError:  # torch, where it is loaded, takes no per-thread stream
        assert k.stream == sk.default_stream(1, per_thread=True)
    else:
        assert contexts == [k.stream.context]
    k.stream.keep(k)
    k.graph.keep([])


@call("CudaStream.to", "CudaEvent.to")
def convert(k):
    warp = need("warp")
    warp.config.log_level = warp.LOG_WARNING
    for library in ("cuda.core", "cuda.bindings", "warp"):
        with contextlib.suppress(UnsupportedStreamError):
            k.stream.to(library)
        k.other.to(library)
    k.event.to("warp")


@contextlib.contextmanager
def array_on_device_1():
    warp = need("warp")
    with on_device(1):
        memory = int(check(driver.cuMemAlloc(16)))
    yield warp.array(ptr=memory, shape=(4,), dtype=warp.float32, device="cuda:1")
    with on_device(1):
        check(driver.cuMemFree(memory))


@call("handoff")
def hand_over(k):
    with array_on_device_1() as array:
        with unmoved():
            sk.handoff(array, k.stream, after=k.other)
        k.stream.sync()


@call("current_stream", "current_streams", "assert_one_queue")
def look(k):
    need("warp").init()
    sk.current_stream("warp", device=1)
    sk.current_stream("warp")
    sk.current_streams(device=1)
    with contextlib.suppress(OneQueueError):  # Warp is on a stream of its own
        sk.assert_one_queue()


@call(
    "capture",
    "CudaGraph.launch",
    "CudaGraph.upload",
    "CudaGraph.to_dot",
    "CudaGraph.to_svg",
    "CudaGraph.races",
    "CudaGraph.close",
)
def replay(k):
    with sk.capture(sk.new_stream(1)) as graph:
        graph.stream.record(k.event, external=True)
    with unmoved():
        graph.upload(k.other)
        graph.launch(k.other)
        graph.launch()
        assert "digraph" in graph.to_dot()
        assert graph.to_svg().startswith("<svg")
        assert not graph.races().races
        k.other.sync()
        graph.close()
    with pytest.raises(ZeroDivisionError), sk.capture(sk.new_stream(1)):
        raise ZeroDivisionError


@call("graphed")
def call_a_graph(k):
    with on_device(1):
        memory = int(check(driver.cuMemAlloc(16)))

    @sk.graphed(stream=k.other)
    def fill():
        check(driver.cuMemsetD32Async(memory, 1, 4, sk.current_stream().handle))

    for _ in range(3):
        fill()
    assert (fill.captures, fill.hits) == (1, 1)
    k.other.sync()
    with on_device(1):
        check(driver.cuMemFree(memory))


SCOPED = {hold, replay, call_a_graph}  # these open scopes


@call("doctor", "audit", "races")
def look_around(k):
    sk.doctor()
    with contextlib.suppress(Exception), sk.audit():  # CUPTI's own too
        k.stream.record()
    with sk.races() as report:
        k.stream.record()
    assert not report.races


@call("CudaStream.__int__", "CudaStream.__cuda_stream__", "CudaStream.__eq__",
      "CudaStream.__hash__", "CudaStream.__repr__", "CudaEvent.__repr__", "CudaGraph.__repr__",
      "CudaStream.__reduce__", "CudaEvent.__reduce__", "CudaGraph.__reduce__",
      "CudaEvent.__cuda_event__")  # fmt: skip
def compare(k):
    assert k.event.__cuda_event__() == (0, k.event.handle)
    assert k.stream.__cuda_stream__()[1] == int(k.stream)
    assert k.stream == sk.from_handle(int(k.stream), device=1)
    assert k.stream != sk.new_stream(1)
    for thing in (k.stream, k.event, k.graph):
        hash(thing), repr(thing)
        with pytest.raises(TypeError):
            thing.__reduce__()


@contextlib.contextmanager
def unmoved():
    before = current_context()
    yield
    assert current_context() == before


@contextlib.contextmanager
def at_most_on_device_0(primary_context):
    """The same, but that a scope, which some of the calls open, may put a thread without context
    on device 0, as any first call of CUDA's runtime does."""
    before = current_context()
    yield
    assert current_context() in (before, before or primary_context)


def test_every_public_call_is_tried():
    """A new function or method has to be added to the list above."""
    public = set()
    for module in (sk, processes):
        for name in module.__all__:
            found = getattr(module, name)
            if callable(found) and not isinstance(found, type):
                public.add(name)
    for one in (CudaStream, CudaEvent, CudaGraph):
        public |= {f"{one.__name__}.{member}" for member in members(one)}
    assert public | {"use"} == CALLS.keys() | NOT_CALLED
    assert not CALLS.keys() & NOT_CALLED


def members(cls):
    """What it offers: its public names, and what operators and the language call."""
    of_the_class = {"__init__", "__subclasshook__", "__del__", "__dir__"}
    for base in cls.__mro__:
        if base.__module__.startswith("streamkit"):
            for name in hide(base, vars(base)):  # other libraries' names are not there
                value = vars(base)[name]
                is_special = name.startswith("__") and callable(value)
                if (is_special or not name.startswith("_")) and name not in of_the_class:
                    yield name


@pytest.fixture
def captures():
    """Every library takes part in captures; where one cannot, this is where it is told not to."""


@pytest.mark.usefixtures("captures")
@pytest.mark.parametrize("kind", STREAMS)
@pytest.mark.parametrize("calls", dict.fromkeys(CALLS.values()), ids=lambda calls: calls.__name__)
def test_no_call_moves_the_current_device(calls, kind, primary_context):
    for current in (primary_context, 0):  # 0: none
        check(driver.cuCtxSetCurrent(primary_context))
        kit = make_kit(STREAMS[kind])
        check(driver.cuCtxSetCurrent(current))
        with at_most_on_device_0(primary_context) if calls in SCOPED else unmoved():
            calls(kit)
        with unmoved():
            kit.stream.sync()
            del kit.stream, kit.other, kit.event, kit.graph
        with on_device(1):
            destroy_stream(kit.raw)


def numbers(subjects, library):
    """An array of the library on device 1."""
    with on_device(1):
        if library == "torch":
            array = subjects("torch").torch.zeros(4, device="cuda:1")
        else:
            array = subjects("cupy").cupy.zeros(4, dtype="f4")
        check(driver.cuCtxSynchronize())
    return array


@pytest.mark.parametrize("library", ["torch", "cupy"])
def test_nor_do_those_that_ask_torch_and_cupy(three, subjects, library, primary_context):
    for current in (primary_context, 0):  # 0: none
        check(driver.cuCtxSetCurrent(primary_context))
        kit = make_kit(sk.new_stream)
        array = numbers(subjects, library)
        with on_device(1):  # the device of the array's library, if nobody says
            sk.current_stream(library)
        check(driver.cuCtxSetCurrent(current))
        with unmoved():
            sk.current_stream(library, device=1)
        with unmoved():
            sk.current_streams(device=1)
        with unmoved():
            sk.current_stream(library, device=0)
        # torch's own guard of its device leaves a thread without context on device 0
        guard = at_most_on_device_0(primary_context) if library == "torch" else unmoved()
        with guard:
            lent = sk.handoff(array, kit.stream, after=kit.other)
            again = sk.handoff(array, kit.other)
        kit.stream.sync()
        kit.other.sync()
        check(driver.cuCtxSetCurrent(primary_context))  # freeing is the library's own
        del lent, again, array
        with on_device(1):
            destroy_stream(kit.raw)


def test_nor_do_those_of_other_processes(primary_context):
    for current in (primary_context, 0):  # 0: none
        check(driver.cuCtxSetCurrent(primary_context))
        kit = make_kit(sk.new_stream)
        with array_on_device_1() as array:
            check(driver.cuCtxSetCurrent(current))
            with unmoved():
                event = sk.new_event(device=1, interprocess=True)
                kit.stream.record(event)
                token = token_from_bytes(bytes(event.export()))
                assert open_event(token) is event
            with unmoved():
                lease = sk.share(array, after=kit.stream)
                opened = lease.token.open(kit.other)
                lease.close()
            kit.other.sync()
            check(driver.cuCtxSetCurrent(primary_context))  # freeing is the library's own
            del opened, array
        with on_device(1):
            destroy_stream(kit.raw)
