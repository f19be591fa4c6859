"""The memory of graphs goes back: without a wait, not too early, and what was deferred as well."""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

import streamkit as sk
from streamkit._cuda import driver as streamkit_driver  # its thread's mode, and its calls fail
from streamkit._cuda import memory_pools  # what CuPy's memory in a graph comes from
from support.emulated.toys import program  # noqa: F401 - a fixture
from support.gpu.raw import busy, check, current_context, driver, make_stream, on_device
from support.libraries import need

pytestmark = pytest.mark.usefixtures("handles")


# -- memory for any stream ----------------------------------------------------------------------


@pytest.fixture
def no_source():
    memory_pools._source.cache_clear()
    yield
    memory_pools._source.cache_clear()


def used():
    pool = memory_pools._source(0)[0]
    attribute = driver.CUmemPool_attribute.CU_MEMPOOL_ATTR_USED_MEM_CURRENT
    return int(check(driver.cuMemPoolGetAttribute(pool, attribute)))


@pytest.mark.usefixtures("no_source")
def test_memory_is_given_back_while_every_other_stream_is_held(gate):
    streams = make_stream(), make_stream(nonblocking=False), 1
    for held in streams:
        gate.hold(held)
    pointer = memory_pools.allocate(0, 1 << 20)
    assert used() == 1 << 20
    memory_pools.free(0, pointer)
    assert gate.closed
    assert used() == 0


@pytest.mark.usefixtures("no_source")
def test_what_is_freed_while_a_graph_has_the_memory_goes_at_its_end():
    """CuPy frees what it can where memory runs out, and the graph has the addresses."""
    need("cupy")
    from streamkit.backends._cupy import capture  # it imports CuPy

    memory = capture._GraphMemory()
    for _ in range(2):  # the graph, and the one after it
        memory.is_used = True
        memory.free(0, memory_pools.allocate(0, 4096))
        later = memory_pools.allocate(0, 512)
        assert used() == 4096 + 512
        memory.end()
        assert used() == 512
        memory.free(0, later)
        assert used() == 0


def test_control_the_drivers_own_free_waits_for_them(gate):
    pointer = check(driver.cuMemAlloc(1 << 20))
    gate.hold(make_stream())
    threading.Timer(0.2, gate.open).start()
    check(driver.cuMemFree(pointer))
    assert not gate.closed


@pytest.mark.usefixtures("no_source")
def test_memory_can_be_made_and_given_back_in_a_capture_of_the_thread(cells):
    cell, pointers = cells(1), []
    with sk.use(sk.new_stream(nonblocking=True), libraries=[]) as stream:
        check(driver.cuStreamBeginCapture(stream.handle, driver.CUstreamCaptureMode(0)))
        with streamkit_driver.beside_captures():
            pointers.append(memory_pools.allocate(0, 4))
            check(driver.cuMemcpyDtoDAsync(pointers[0], cell.pointer, 4, stream.handle))
            memory_pools.free(0, memory_pools.allocate(0, 4))
        check(driver.cuGraphDestroy(check(driver.cuStreamEndCapture(stream.handle))))
    memory_pools.free(0, pointers.pop())


@pytest.mark.usefixtures("no_source")
def test_the_other_devices_reach_it():
    pool, _ = memory_pools._source(0)
    place = driver.CUmemLocation()
    place.type, place.id = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE, 1
    assert int(check(driver.cuMemPoolGetAccess(pool, place))) == 3


@pytest.mark.usefixtures("no_source")
def test_a_device_without_pools_gives_ordinary_memory(monkeypatch):
    ask = streamkit_driver.ask

    def without_pools(call, *rest):
        return 0 if call == "cuDeviceGetAttribute" else ask(call, *rest)

    monkeypatch.setattr(streamkit_driver, "ask", without_pools)
    with on_device(0):
        pointer = memory_pools.allocate(0, 4)
        memory_pools.free(0, pointer)
    assert memory_pools._source(0) is None


# -- the end of a graph -------------------------------------------------------------------------

TAKES_PART = """

import contextlib
import weakref

log, pools = [], []


class Pool:
    pass


class Part:
    def begin(self):
        log.append("begin")

    def end(self):
        log.append("end")

    def abandon(self):
        log.append("abandon")

    def free_deferred(self):
        from streamkit._queues import active_captures  # the toy sees that none goes on
        assert not active_captures.any_goes_on()
        log.append("free")


@contextlib.contextmanager
def around_capture(*, captures):
    assert captures
    made = Pool()
    pools.append(weakref.ref(made))
    yield made


def joins_capture(stream, mode):
    return Part()
"""

START = f"""
import gc, sys, threading
sys.path[:0] = [{str(Path(__file__).parents[2])!r}]
import onelib
driver.cuInit(0)
stream, event = sk.new_stream(nonblocking=True), sk.new_event()
driver.cuCtxSetCurrent(stream.context)
from support.gpu.raw import Gate, check, make_stream
from support.queues import eventually

def work():
    with sk.capture(stream) as g:
        stream.record(event, external=True)
    g.launch(stream)
    stream.sync()
    return g

def pool_goes_when_open(gate):
    sk.new_stream()
    assert library.pools[-1]() is not None
    gate.open()
    check(driver.cuCtxSynchronize())
    assert eventually(lambda: sk.new_stream() and library.pools[-1]() is None)
    gate.free()

sk.current_streams()  # loads the adapter
import streamkit_onelib as library
"""


@pytest.fixture
def program_of_a_part(program):  # noqa: F811 - the fixture
    """Run a program with a toy library that takes part in captures."""
    return lambda code: program(START + code, onelib=TAKES_PART)


@pytest.mark.parametrize(
    "reader",
    [
        "sk.new_stream(nonblocking=True)",
        "sk.new_stream()",
        "sk.wrap(onelib.Stream(make_stream()))",
        "sk.default_stream()",
        "stream",
    ],
)
def test_a_pool_waits_for_what_was_submitted_before_the_end_and_close_does_not(
    program_of_a_part, reader
):
    """A queue may read an array of the graph that was dropped, long after the last launch."""
    program_of_a_part(f"""
reader = {reader}
g, gate = work(), Gate()
gate.hold(int(reader.handle))
g.close()
assert gate.closed
pool_goes_when_open(gate)

g, gate = work(), Gate()
g.close()
gate.hold(int(reader.handle))  # what comes later has no array of the graph
assert eventually(lambda: sk.new_stream() and library.pools[-1]() is None)
assert gate.closed
gate.free()
""")


def test_a_pool_waits_where_a_library_is(program_of_a_part):
    program_of_a_part("""
handle = make_stream()
g, gate = work(), Gate()
onelib.set_current_stream(onelib.Stream(handle))  # StreamKit has never seen it
gate.hold(handle)
g.close()
for other in (stream.handle, 1):
    check(driver.cuStreamSynchronize(other))
pool_goes_when_open(gate)
""")


def test_a_pool_waits_until_a_queue_that_captures_can_be_asked(program_of_a_part):
    program_of_a_part("""
other = sk.new_stream(nonblocking=True)
g, gate = work(), Gate()
gate.hold(other.handle)
check(driver.cuStreamBeginCapture(other.handle, driver.CUstreamCaptureMode(2)))
g.close()
sk.new_stream()
assert library.pools[-1]() is not None
assert int(check(driver.cuStreamIsCapturing(other.handle))) == 1
check(driver.cuGraphDestroy(check(driver.cuStreamEndCapture(other.handle))))
pool_goes_when_open(gate)
""")


@pytest.mark.parametrize("fails", ["in the block", "at its end"])
def test_a_pool_of_a_failed_capture_waits_for_what_ran_elsewhere_meanwhile(
    program_of_a_part, fails
):
    """A library allocates from it in the whole thread: also for work on streams outside."""
    program_of_a_part(f"""
other, gate = sk.new_stream(nonblocking=True), Gate()
gate.hold(other.handle)
try:
    with sk.capture(stream):
        if {fails == "in the block"}:
            raise KeyError
except (KeyError, sk.errors.CaptureError) as error:  # at its end: nothing was captured
    failure = error
assert gate.closed
pool_goes_when_open(gate)  # also while somebody has the failure
""")


def test_a_library_frees_what_it_deferred_at_the_end_of_each_capture(program_of_a_part):
    """And at no other time: a graph that never ran has left its addresses to the next."""
    program_of_a_part("""
g = work()
assert library.log == ["begin", "end", "free"], library.log
library.log.clear()
g.launch(stream)
stream.sync()
g.close()
for _ in range(3):
    sk.new_stream()
    gc.collect()
assert library.log == [], library.log

# one that fails leaves it to the next
try:
    with sk.capture(stream):
        raise KeyError
except KeyError:
    pass
assert library.log == ["begin", "abandon"], library.log

# one that is refused beside another ends nothing
library.log.clear()
def refused():
    try:
        work()
    except sk.errors.CaptureError:
        library.log.append("refused")

other = sk.new_stream(nonblocking=True)
with sk.capture(other):
    other.record(event, external=True)
    thread = threading.Thread(target=refused)
    thread.start()
    thread.join()
assert library.log == ["begin", "refused", "end", "free"], library.log
""")


# -- what Warp deferred ---------------------------------------------------------------------------


@pytest.fixture
def core(warp, monkeypatch):
    """Warp's native functions; its captures call CUDA's runtime, which does not run here."""
    from streamkit.backends._warp import memory  # what it waits for

    core, log = warp._src.context.runtime.core, []
    sk.new_stream(nonblocking=True).to("warp")  # StreamKit's own functions stay in place
    memory.watched.clear()
    for name in ("begin_capture", "end_capture", "destroy"):
        full = f"wp_cuda_graph_{name}"
        monkeypatch.setitem(
            vars(core), full, lambda *arguments, name=name: log.append((name, *arguments[2:3]))
        )
    core.log = log
    yield core
    del core.log


def test_warp_frees_at_the_end_of_an_empty_capture_of_its_own(warp, core, gate):
    from streamkit.backends._warp import capture  # no capture of Warp's begins here
    from streamkit.backends._warp.memory import companions  # frees come after it

    lent = sk.new_stream(nonblocking=True)
    lent.to("warp")
    gate.hold(lent.handle)
    capture.free_deferred()
    assert [name for name, *_ in core.log] == ["begin_capture", "end_capture"]
    assert core.log[0][1] == 0  # no external one, whose end frees nothing
    assert busy(companions[0]), "what is freed would come before the work"
    assert not warp.get_device("cuda:0").is_capturing


@pytest.mark.parametrize("device", [0, 1])
def test_what_warp_frees_moves_no_context(warp, cells, monkeypatch, device):
    from streamkit.backends._warp import adapter as warp_adapter  # its part cannot run here
    from streamkit.backends._warp import capture  # a part of it stands in; it imports Warp

    free = capture.free_deferred
    part = SimpleNamespace(begin=int, end=int, abandon=int, free_deferred=free)
    monkeypatch.setattr(warp_adapter, "joins_capture", lambda *_: part)
    sk.new_stream(device=0, nonblocking=True).to("warp")
    with on_device(device):
        before, cell = current_context(), cells(1)
        stream = sk.new_stream(device=device, nonblocking=True)
        with sk.capture(stream) as g:
            check(driver.cuMemsetD32Async(cell.pointer, 1, 1, stream.handle))
        assert current_context() == before  # Warp's own stream is of one of the devices alone
        g.close()


def test_warp_frees_later_what_a_queue_that_captures_may_use(core):
    from streamkit.backends._warp import capture  # no capture of Warp's begins here

    lent = sk.new_stream(nonblocking=True)
    lent.to("warp")
    check(driver.cuStreamBeginCapture(lent.handle, driver.CUstreamCaptureMode(2)))
    capture.free_deferred()
    assert core.log == []
    check(driver.cuGraphDestroy(check(driver.cuStreamEndCapture(lent.handle))))
    capture.free_deferred()
    assert core.log


def test_warps_empty_capture_ends_whatever_comes(core, monkeypatch):
    from streamkit.backends._warp import capture  # no capture of Warp's begins here

    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setitem(vars(core), "wp_cuda_graph_begin_capture", interrupted)
    with pytest.raises(KeyboardInterrupt):
        capture.free_deferred()
    assert [name for name, *_ in core.log] == ["end_capture"]
