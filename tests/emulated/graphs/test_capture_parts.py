"""The capabilities of captures, by toy libraries: who is asked what and when, what is undone."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest

import streamkit as sk
from streamkit._queues import active_captures, loaded_libraries  # to begin as a fresh process
from streamkit._support import garbage  # an interrupt comes inside it
from support.emulated.toys import program  # noqa: F401 - a fixture
from support.gpu.raw import check, driver
from support.interrupts import interrupt_everywhere

TAKES_PART = """

import contextlib

log = []
now = set()


def step(what):
    from cuda.bindings import driver
    number = toylib.current_stream().number
    inside = number and int(driver.cuStreamIsCapturing(number)[1])
    log.append(f"toylib {what}" + (" inside" if inside else ""))
    if what in now:
        raise RuntimeError(f"toylib failed to {what}")


class Graph:
    shared = None

    def __init__(self, graph, executable):
        self.graph, self.executable = int(graph), int(executable)

    def launch(self, stream):
        from cuda.bindings import driver
        assert isinstance(stream, toylib.Stream)
        step("launch")
        driver.cuGraphLaunch(self.executable, stream.number)

    def close(self):
        from cuda.bindings import driver
        step("close")
        driver.cuGraphExecDestroy(self.executable)
        driver.cuGraphDestroy(self.graph)


class Part:
    def __init__(self, stream, mode, begins):
        assert isinstance(stream, toylib.Stream) and mode == "relaxed"
        self.stream, self.begins, self.open = stream, begins, False

    def begin(self):
        from cuda.bindings import driver
        step("begin")
        self.open = True
        if self.begins:
            driver.cuStreamBeginCapture(self.stream.number, driver.CUstreamCaptureMode(2))

    def end(self):
        from cuda.bindings import driver
        step("end")
        self.open = False
        if self.begins:
            graph = driver.cuStreamEndCapture(self.stream.number)[1]
            return Graph(graph, driver.cuGraphInstantiate(graph, 0)[1])
        return "what toylib holds"

    def abandon(self):
        from cuda.bindings import driver
        step("abandon")
        if self.begins and self.open:
            driver.cuStreamEndCapture(self.stream.number)
        self.open = False

    def free_deferred(self):
        assert not self.begins


def prepare(*, empties_cache):
    step("prepare")


@contextlib.contextmanager
def around_capture(*, captures):
    step("pool")
    try:
        yield "the pool of toylib"
    finally:
        step("unpool")


def explain_capture(error):
    return "toylib says so" if "toylib" in str(error) else None
"""

BEGINS = (
    TAKES_PART
    + """

def begins_capture(stream, mode, origin):
    origins.append((stream.number, origin.number))
    return Part(stream, mode, True)


origins = []
"""
)
JOINS = (
    TAKES_PART
    + """

def joins_capture(stream, mode):
    return Part(stream, mode, False)
"""
)

START = f"""
import gc, sys
sys.path[:0] = [{str(Path(__file__).parents[2])!r}]  # of the emulator, and what is beside it
import onelib, twolib
from streamkit._queues import active_captures  # what holds the collector back must end
driver.cuInit(0)
stream = sk.new_stream(DEVICE, nonblocking=True)
event = sk.new_event(device=DEVICE)

def work():
    with sk.capture(stream, mode="relaxed") as g:
        stream.record(event, external=True)
    return g

sk.current_streams()  # loads the adapters
import streamkit_onelib, streamkit_twolib
ORDER = streamkit_onelib.log = streamkit_twolib.log = []
"""


@pytest.fixture
def captures(program):  # noqa: F811
    """Run a program in which onelib begins captures, with these additions, and twolib joins."""

    def captures(code, additions="", *, device=0, **others):
        libraries = {"onelib": BEGINS + additions, "twolib": JOINS, **others}
        program(START.replace("DEVICE", str(device)) + code, **libraries)

    return captures


@pytest.mark.parametrize("fails", ["begin", "end"])
def test_parts_are_asked_in_order_and_given_up_after_a_failure(captures, fails):
    captures(f"""
g = work()
assert ORDER == [
    "onelib prepare", "twolib prepare", "onelib pool", "twolib pool",
    "onelib begin", "twolib begin inside", "twolib end inside", "onelib end inside",
    "twolib unpool", "onelib unpool",
], ORDER
assert g.nodes == 1
ORDER.clear()
g.launch(stream)
assert ORDER == ["onelib launch"]
stream.sync()
g.close()
assert ORDER == ["onelib launch", "onelib close"]

for library, fails in ((streamkit_onelib, "{fails}"), (streamkit_twolib, "{fails}")):
    ORDER.clear()
    library.now.add(fails)
    error = error_of(sk.errors.CaptureError, work)
    assert "says so" in str(error) and isinstance(error.__cause__, RuntimeError)
    library.now.clear()
    assert any("onelib abandon" in step for step in ORDER), ORDER
    assert any("twolib abandon" in step for step in ORDER) or library is streamkit_onelib, ORDER
    given_up = [step.split()[0] for step in ORDER if "abandon" in step]
    assert given_up == sorted(given_up, reverse=True), ORDER  # the one that began is the last
    assert ORDER[-2:] == ["twolib unpool", "onelib unpool"], ORDER
    assert not stream.is_capturing and gc.isenabled() and not active_captures.any_goes_on()
    assert current_handles(onelib, twolib) == [0, 0]
work()

# a second one at the same time
with sk.capture(stream, mode="relaxed"):
    stream.record(event, external=True)
    import threading
    refused = []
    def other():
        try:
            with sk.capture(mode="relaxed"):
                pass
        except sk.errors.CaptureError as error:
            refused.append(str(error))
    thread = threading.Thread(target=other)
    thread.start()
    thread.join()
assert "onelib and twolib can take part in one at a time" in refused[0], refused
""")


def test_a_library_may_begin_on_a_stream_that_no_other_living_graph_has(captures):
    captures("""
first, second = work(), work()
with sk.capture(mode="relaxed") as third:
    third.stream.record(event, external=True)
origins = streamkit_onelib.origins
(one, own), (two, other), (three, same) = origins
assert one == two == stream.handle
assert three == same == third.stream.handle
assert len({stream.handle, own, other, third.stream.handle}) == 4, origins
del first, second, third
for _ in range(3):
    work()
assert {origin for _, origin in origins[3:]} <= {own, other, same}, origins
""")


HOLDS = """
import ctypes
driver.cuCtxSetCurrent(driver.cuDevicePrimaryCtxRetain(0)[1])
host = int(driver.cuMemHostAlloc(4, driver.CU_MEMHOSTALLOC_DEVICEMAP)[1])
word = ctypes.c_uint32.from_address(host)
address = driver.cuMemHostGetDevicePointer(host, 0)[1]
"""


@pytest.mark.parametrize("ends", ["g.close()", "del g"])
def test_a_private_stream_serves_one_graph_until_its_last_run_has_ended(captures, ends):
    """The library keeps memory for the stream, which that run uses."""
    captures(
        HOLDS
        + """
def private():
    with sk.capture(mode="relaxed") as g:
        g.stream.record(event, external=True)
    return g

g = private()
used = g.stream.handle
driver.cuStreamWaitValue32(stream.handle, address, 1, 0)
g.launch(stream)
ENDS
g = None
held = [private() for _ in range(3)]
assert used not in [graph.stream.handle for graph in held]
word.value = 1
stream.sync()
sk.new_stream()  # looks at what was given up
driver.cuCtxSynchronize()  # a stream that is busy for a moment is not used again yet
held.append(private())
assert held[-1].stream.handle == used
held.clear()

def many():
    for _ in range(20):
        driver.cuCtxSynchronize()
        yield private().stream.handle

known = {*many()}
assert {*many()} <= known, known  # there are as many as graphs that lived at once
""".replace("ENDS", ends)
    )


SHARES = """

Graph.shared = "toylib's scratch memory"
"""


def test_a_second_living_graph_of_one_stream_warns_if_its_library_shares(captures):
    captures(
        """
import sys, warnings

def told(call):
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        call()
    return found

graphs = []

def keep():
    graphs.append(work())

def loop():
    for _ in range(3):
        with sk.capture(stream, mode="relaxed") as g:
            stream.record(event, external=True)

def private():
    with sk.capture(mode="relaxed") as g:
        g.stream.record(event, external=True)
    graphs.append(g)

assert told(loop) == []  # each replaces the one before
assert told(keep) == []
(warning,) = told(keep)
assert warning.category is RuntimeWarning
assert warning.filename == work.__code__.co_filename, warning.filename
said = str(warning.message)
assert "share onelib's scratch memory" in said, said
assert "streamkit.capture()" in said, said
assert told(private) == told(private) == []
graphs[0].close()
assert len(told(keep)) == 1  # beside the second
graphs.clear()
assert told(keep) == []

# a warning that is an error leaves both graphs whole
warnings.simplefilter("error")
error_of(RuntimeWarning, keep)
graphs[0].launch(stream)
graphs.clear()
keep()
""",
        SHARES,
    )


def test_graphs_of_one_stream_that_share_nothing_warn_of_nothing(captures):
    captures("""
import warnings
warnings.simplefilter("error")
graphs = [work(), work()]
""")


def test_runs_on_streams_first_seen_in_captures_are_in_order_with_a_library(captures):
    """What a library does before each run is ordered by an edge, so the two must not be one."""
    captures("""
import emulator
seen = []
driver.cuCtxSetCurrent(stream.context)
for _ in range(2):
    other = driver.cuStreamCreate(1)[1]
    assert not driver.cuStreamBeginCapture(other, driver.CUstreamCaptureMode(1))[0]
    seen.append(sk.from_handle(int(other)))
    assert not driver.cuGraphDestroy(driver.cuStreamEndCapture(other)[1])[0]
g = work()
emulator.reset_calls()
g.launch(seen[0])
assert emulator.calls("cuStreamWaitEvent") == 0
g.launch(seen[1])
assert emulator.calls("cuStreamWaitEvent") == 1
g.launch(seen[1])
assert emulator.calls("cuStreamWaitEvent") == 1
""")


THE_DRIVERS = """

def launch(graph, stream, run=Graph.launch):
    run(graph, stream)
    return True


Graph.launch = launch
"""


def test_a_graph_that_a_library_leaves_to_the_driver_is_launched_by_it(captures):
    """From the second time on, at the price of the driver's own graphs from the third on."""
    captures(
        """
import emulator
g = work()
ORDER.clear()
g.launch(stream)
assert ORDER == ["onelib launch"], ORDER
g.launch(stream)
emulator.reset_calls()
g.launch(stream)
assert emulator.all_calls() == {"cuStreamIsCapturing": 1, "cuGraphLaunch": 1}
other = sk.new_stream(nonblocking=True)
g.launch(other)
assert "cuStreamWaitEvent" not in emulator.all_calls(), emulator.all_calls()
assert ORDER == ["onelib launch"], ORDER
other.sync()

# what the library refuses it refuses also then
import streamkit_onelib as adapter
def borrow(queue):
    raise sk.errors.UnsupportedStreamError("toylib takes no such stream")
adapter.borrow = borrow
error_of(sk.errors.UnsupportedStreamError, g.launch, sk.new_stream())
g.close()
assert ORDER == ["onelib launch", "onelib close"], ORDER
""",
        THE_DRIVERS,
    )


LEAVES_A_CONTEXT = """

def close(graph, end=Graph.close):
    from cuda.bindings import driver
    found.append(int(driver.cuCtxGetCurrent()[1]))
    end(graph)
    driver.cuCtxSetCurrent(driver.cuDevicePrimaryCtxRetain(0)[1])  # as CUDA's runtime does


Graph.close, found = close, []
"""


def test_the_end_of_a_graph_is_on_its_device_and_moves_nobody(captures):
    captures(
        """
contexts = 0, int(driver.cuDevicePrimaryCtxRetain(0)[1])
for context in contexts:
    graphs = [work(), work()]
    driver.cuCtxSetCurrent(context)
    graphs.pop().close()
    graphs.clear()
    assert int(driver.cuCtxGetCurrent()[1]) == context, context
assert streamkit_onelib.found == 4 * [stream.context], streamkit_onelib.found
""",
        LEAVES_A_CONTEXT,
        device=1,
    )


REMEMBERS_THE_CONTEXT = """

def prepare(*, empties_cache):
    from cuda.bindings import driver
    found.append(int(driver.cuCtxGetCurrent()[1]))


found = []
"""


def test_a_library_prepares_on_the_device_of_the_capture(captures):
    captures(
        """
before = driver.cuDevicePrimaryCtxRetain(0)[1]
driver.cuCtxSetCurrent(before)
work()
assert streamkit_onelib.found == [stream.context], streamkit_onelib.found
assert int(driver.cuCtxGetCurrent()[1]) == int(before)
""",
        REMEMBERS_THE_CONTEXT,
        device=1,
    )


EMPTIES_ITS_CACHE = """

def prepare(*, empties_cache):
    emptied.extend([True] * empties_cache)


emptied = []
"""


@pytest.mark.parametrize("device", [0, 1])
def test_a_cache_is_emptied_when_many_graphs_have_ended_and_nothing_runs(captures, device):
    """Nor on the other device, for which the library waits too."""
    captures(
        f"""{HOLDS}
import time
busy = sk.new_stream({device}, nonblocking=True)
emptied = streamkit_onelib.emptied

def hold():
    word.value = 0
    driver.cuStreamWaitValue32(busy.handle, address, 1, 0)

def end(graphs):
    for _ in range(graphs):
        work().close()
    return len(emptied)

def end_until(count):  # soon, as StreamKit itself has recorded events on all streams
    for _ in range(15):  # far fewer than are too many
        if end(1) == count:
            return True
        time.sleep(0.2)

assert end(8) == 0
assert end_until(1)
hold()
assert end(40) == 1
word.value = 1
assert end_until(2)
hold()
assert (end(63), end(1)) == (2, 3)
word.value = 1
""",
        EMPTIES_ITS_CACHE,
    )


def test_a_failed_capture_lets_go_of_the_blocks_variables(captures):
    """At once: torch keeps the nodes of a forward pass as long as its result is alive."""
    captures("""
import weakref

class Array:
    pass

def failing():
    array = Array()
    seen.append(weakref.ref(array))
    raise RuntimeError("operation not permitted when stream is capturing")

seen = []
gc.disable()
try:
    with sk.capture(stream, mode="relaxed"):
        failing()
except sk.errors.CaptureError as error:
    assert "not permitted" in str(error)
    assert seen[0]() is not None
assert seen[0]() is None
""")


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # in destructors
def test_an_interrupt_at_any_moment_leaves_nothing_capturing(monkeypatch):
    # what a scope then leaves is for its own tests
    monkeypatch.setattr(loaded_libraries, "_found", ())
    monkeypatch.setattr(loaded_libraries, "_missing", {})
    monkeypatch.setattr(garbage, "_holders", set())  # where one can stay
    stream, event = sk.new_stream(nonblocking=True), sk.new_event()
    gc.collect()

    def work():
        with sk.capture(stream) as g, g.section("all"):
            stream.record(event, external=True)
        g.launch(stream)

    work()
    problems = []
    for nth in interrupt_everywhere(work):
        is_capturing = int(check(driver.cuStreamIsCapturing(stream.handle)))
        state = is_capturing, active_captures.any_goes_on()
        if state != (0, False):
            problems.append((nth, state))
    assert problems == []
    work()
    stream.sync()
    gc.enable()  # which a holder that stayed does not let it do


TELLS_WHETHER_IT_CAPTURES = """

@contextlib.contextmanager
def around_capture(*, captures):
    told.append(captures)
    yield
    told.append("left")


told = []
"""


def test_calls_before_the_capture_are_in_the_librarys_block_too(captures):
    """Threads of its own would otherwise give the GPU work that the capture then misses."""
    captures(
        """
driver.cuCtxSetCurrent(stream.context)
cell = int(driver.cuMemAlloc(4)[1])
told, seen = streamkit_onelib.told, []

def work():
    seen.append(list(told))
    handle = sk.current_stream("onelib").handle
    assert not driver.cuMemsetD32Async(cell, 0, 1, handle)[0]

function = sk.graphed(work)
with stream:
    while not function.captures:
        function()
assert [told[-1] for told in seen] == [False] * (len(seen) - 1) + [True], seen
assert told.count("left") == len(seen) > 1
""",
        onelib=TAKES_PART + TELLS_WHETHER_IT_CAPTURES,
        twolib="",
    )
