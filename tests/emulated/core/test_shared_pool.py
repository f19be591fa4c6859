"""Warp in the pool of another library: the order of its frees, captures, and the exact restore."""

from __future__ import annotations

import gc

import pytest

import emulator
import streamkit as sk
from streamkit.backends._frees import Frees, Piece  # as CuPy uses it, which cannot run here
from streamkit.backends._warp.shared_pool import take_memory  # without an adapter that gives
from streamkit.protocols.queues import LEGACY  # as Warp's frees name it
from support.emulated.captures import capturing, nothing_left
from support.emulated.toys import program
from support.gpu.raw import check, driver, held, idle

__all__ = ["nothing_left", "program"]  # the fixtures
pytestmark = pytest.mark.usefixtures("nothing_left")


class Giver:
    """A pool that tells what was taken and what came back."""

    def __init__(self):
        self.taken, self.back = {}, []
        self.spare = [int(check(driver.cuMemAlloc(64))) for _ in range(4)]

    def allocate(self, size, device, stream):
        pointer = self.spare.pop()
        self.taken[pointer] = size, device, stream
        return pointer

    def free(self, pointer):
        self.back.append(pointer)


@pytest.fixture
def giver(warp):
    giver = Giver()
    restore = take_memory(giver)
    yield giver
    gc.collect()
    assert restore()
    assert set(giver.back) == set(giver.taken)
    for pointer in (*giver.taken, *giver.spare):
        check(driver.cuMemFree(pointer))


def test_an_array_is_taken_for_warps_stream_and_goes_back(warp, giver):
    with sk.new_stream(nonblocking=True) as s:
        inside = warp.empty(8, dtype=float, device="cuda:0")
    outside = warp.empty(4, dtype=float, device="cuda:1")
    own = warp.get_stream("cuda:1").cuda_stream
    assert giver.taken == {inside.ptr: (32, 0, s.handle), outside.ptr: (16, 1, own)}
    pointers = [inside.ptr, outside.ptr]
    del inside, outside
    assert giver.back == pointers


def test_the_per_thread_stream_is_refused(warp, giver):
    """Memory of one thread would go to another, whose stream has the same handle."""
    with (
        sk.per_thread_stream(),
        pytest.raises(sk.UnsupportedStreamError, match=r"Warp.*per-thread default stream"),
    ):
        warp.empty(8, dtype=float, device="cuda:0")
    assert giver.taken == {}


@pytest.mark.parametrize("nonblocking", [True, False])
def test_its_stream_waits_for_the_streams_that_used_it(warp, giver, gate, nonblocking):
    made_on = sk.new_stream(nonblocking=True)
    with made_on:
        array = warp.empty(4, dtype=float, device="cuda:0")
    with sk.new_stream(nonblocking=nonblocking) as s:
        gate.hold(s.handle)
    made_on.record()
    assert idle(made_on.handle), "the control: without the free it runs"
    del array
    assert giver.back
    made_on.record()
    assert held(made_on.handle)
    gate.open()
    made_on.sync()


@pytest.mark.parametrize("which", ["made_on", "last"])
def test_beside_a_capture_memory_goes_back_with_a_later_call(which):
    streams = {name: sk.new_stream(nonblocking=True) for name in ("made_on", "last")}
    capturing_one, freed = streams[which].handle, []
    frees = Frees(lambda: True)
    check(driver.cuStreamBeginCapture(capturing_one, driver.CUstreamCaptureMode(2)))
    handles = [stream.handle for stream in streams.values()]
    frees.add(Piece(0, *handles, tuple(streams.values()), lambda: freed.append(1)))
    assert freed == []
    assert capturing(capturing_one) == 1
    check(driver.cuGraphDestroy(check(driver.cuStreamEndCapture(capturing_one))))
    frees.do()
    frees.do()
    assert freed == [1]


def test_while_warp_knows_of_a_capture_memory_stays(warp, giver, monkeypatch):
    array, runtime = warp.empty(4, dtype=float, device="cuda:0"), warp._src.context.runtime
    with monkeypatch.context() as told:
        told.setattr(runtime, "captures", {1: None})
        del array
        assert giver.back == []
    other = warp.empty(4, dtype=float, device="cuda:0")
    assert len(giver.back) == 1
    del other


def test_inside_a_capture_nothing_waits_and_the_next_call_frees(warp, giver):
    with sk.capture() as g:
        inside = warp.empty(4, dtype=float, device="cuda:0")
        assert giver.taken[inside.ptr][2] == g.stream.handle
        del inside
        assert giver.back == []
        check(driver.cuMemsetD32Async(next(iter(giver.taken)), 0, 1, g.stream.handle))
    del g
    again = warp.empty(4, dtype=float, device="cuda:0")
    assert len(giver.back) == 1
    del again


class OutsideCaptures(Giver):
    """One without memory for graphs."""

    def allocate(self, size, device, stream):
        if capturing(stream):
            raise sk.CaptureError("not in a capture")
        return super().allocate(size, device, stream)


def test_from_a_pool_without_memory_for_graphs_a_graph_has_what_warp_had_before(warp, giver):
    restore = take_memory(outside_captures := OutsideCaptures())
    outside = warp.empty(4, dtype=float, device="cuda:0")
    assert [*outside_captures.taken] == [outside.ptr]
    with sk.capture() as g:
        inside = warp.empty(4, dtype=float, device="cuda:0")
        assert giver.taken == {inside.ptr: (16, 0, g.stream.handle)}
        check(driver.cuMemsetD32Async(inside.ptr, 0, 1, g.stream.handle))
    assert restore()
    del inside, outside
    assert len(giver.back) == len(outside_captures.back) == 1
    assert giver.back == [*giver.taken]
    for pointer in (*outside_captures.taken, *outside_captures.spare):
        check(driver.cuMemFree(pointer))


def test_the_legacy_stream_is_not_touched_beside_a_capture():
    stream, freed = sk.new_stream().handle, []
    frees = Frees(lambda: True)
    check(driver.cuStreamBeginCapture(stream, driver.CUstreamCaptureMode(2)))
    emulator.reset_calls()
    frees.add(Piece(0, LEGACY, LEGACY, (), lambda: freed.append(1)))
    assert freed == []
    assert emulator.calls("cuEventRecord") == 0
    assert capturing(stream) == 1
    check(driver.cuGraphDestroy(check(driver.cuStreamEndCapture(stream))))
    frees.do()
    assert freed == [1]


@pytest.mark.parametrize("call", ["cuEventRecord", "cuStreamWaitEvent"])
def test_what_cannot_be_ordered_now_goes_back_later(warp, giver, call):
    array = warp.empty(4, dtype=float, device="cuda:0")
    events = emulator.live("events")
    emulator.fail(call, 906)
    del array
    assert emulator.clear_faults() == 0
    assert giver.back == []
    assert emulator.live("events") == events
    other = warp.empty(4, dtype=float, device="cuda:0")
    assert len(giver.back) == 1
    del other


def test_what_its_pool_refuses_beside_a_capture_goes_back_later():
    """Another thread can begin one after the look at the streams."""
    streams, freed = [sk.new_stream(nonblocking=True) for _ in range(2)], []
    refusals = [sk.CaptureError("it captures")]

    def free():
        if refusals:
            raise refusals.pop()
        freed.append(1)

    frees = Frees(lambda: True)
    frees.add(Piece(0, *[stream.handle for stream in streams], tuple(streams), free))
    assert freed == []
    frees.do()
    frees.do()
    assert freed == [1]


def test_an_array_goes_back_also_after_the_end_and_what_was_set_since_stays(warp):
    giver, before = Giver(), warp.get_device_allocator("cuda:0")
    restore = take_memory(giver)
    array = warp.empty(4, dtype=float, device="cuda:0")
    other = Giver()
    inner = take_memory(other)
    assert not restore()
    assert inner()
    assert restore()
    assert warp.get_device_allocator("cuda:0") is before
    assert giver.back == []
    del array
    assert giver.back == [*giver.taken]
    assert other.taken == {}


GIVES = """

taken, back = {}, []

def allocate(size, device, stream):
    from cuda.bindings import driver
    pointer = int(driver.cuMemAlloc(size)[1])
    taken[pointer] = stream
    return pointer

def free(pointer):
    back.append(pointer)
"""

LENDS = """

def array_device(array):
    return None

def lend(array, owner):
    return array
"""

COPIES = """

def array_layout(array):
    return None

def array_like(array, device):
    return array

def copy_array(to, source, stream):
    pass
"""

SHARES = """
import warnings
import warp, toya, toyb, toyc, streamkit_toya as giver
warp.config.log_level = warp.LOG_WARNING
warp.init()
before = warp.get_device_allocator("cuda:0")

with warnings.catch_warnings(record=True) as told:
    warnings.simplefilter("always")
    with sk.share_pool("toya") as shared:
        a = warp.empty(4, dtype=float, device="cuda:0")
        assert a.ptr in giver.taken
        assert repr(shared) == "<streamkit shared pool of toya, for warp>"
assert [str(one.message) for one in told] == [
    "toyb cannot allocate from the pool of toya, and keeps its own."
]
assert repr(shared) == "<streamkit shared pool of toya, closed>"
assert warp.get_device_allocator("cuda:0") is before
shared.close()

first = sk.share_pool("toya", libraries="warp")
second = sk.share_pool("toya", libraries=["warp"])
with warnings.catch_warnings(record=True) as told:
    warnings.simplefilter("always")
    first.close()
assert "The allocator of warp was changed" in str(told[0].message)
second.close()

print(error_of(sk.UnsupportedStreamError, sk.share_pool, "toyb"))
print(error_of(sk.UnsupportedStreamError, sk.share_pool, "toya", libraries=["warp", "toyb"]))
print(error_of(ValueError, sk.share_pool, "toya", libraries=["toya"]))
s = sk.new_stream(nonblocking=True)
driver.cuStreamBeginCapture(s.handle, driver.CUstreamCaptureMode(2))
with sk.use(s, libraries="toya"):
    print(error_of(sk.CaptureError, sk.share_pool, "toya", libraries="warp"))
driver.cuStreamEndCapture(s.handle)
del a
assert giver.back == [*giver.taken]
"""


def test_who_takes_who_is_left_out_and_what_is_refused(program):
    said = program(SHARES, toya=GIVES, toyb=LENDS + COPIES, toyc=LENDS).splitlines()
    for line, part in zip(
        said,
        [
            "no other library can allocate from the pool of toyb",
            "toyb cannot allocate from another library's pool. Leave it out.",
            "toya has its own pool already: name the others.",
            "was not tried: share it before",
        ],
        strict=True,
    ):
        assert part in line


def test_two_threads_that_share_take_all_libraries_one_after_the_other(program):
    """Else neither could be closed last, and give each library back what it had."""
    program(
        """
import threading
import toya, toyb, toyc, streamkit_toyb, streamkit_toyc

def share():
    sk.share_pool("toya", libraries=["toyb", "toyc"])

def taking(name):
    def take_memory(giver):
        order.append(name)
        if len(order) == 1:
            other.start()
            other.join(0.2)  # it waits for this thread
        return lambda: True
    return take_memory

order, other = [], threading.Thread(target=share)
streamkit_toyb.take_memory, streamkit_toyc.take_memory = taking("b"), taking("c")
share()
other.join()
assert order == ["b", "c", "b", "c"], order
""",
        toya=GIVES,
        toyb="",
        toyc="",
    )
