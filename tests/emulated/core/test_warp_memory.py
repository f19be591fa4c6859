"""What Warp frees waits for the non-blocking queues lent to it.

The legacy stream, on which Warp frees, is busy as long as a blocking stream is that waits.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import os
import re
import threading
import warnings
import weakref
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest

import emulator
import streamkit as sk
from streamkit._cuda import events  # its calls are made to fail
from streamkit._queues import identity  # told what an adapter says
from streamkit.protocols.queues import Queue  # as an adapter reads it
from support.gpu.raw import Foreign, check, destroy_stream, driver, held, idle, make_stream
from support.interrupts import interrupted
from support.libraries import need, version_of
from support.queues import eventually, within

pytestmark = [pytest.mark.usefixtures("handles", "memory"), pytest.mark.versions]
LEGACY = 1
RELAXED = driver.CUstreamCaptureMode(2)
MOST = 8


@pytest.fixture
def memory(warp):
    """StreamKit's file, whose lists are empty before the test and after it."""
    from streamkit.backends._warp import memory as memory_module  # what is unfreed

    gc.collect()
    memory_module.watched.clear()
    yield memory_module
    gc.collect()
    assert not memory_module._unfreed


@pytest.fixture
def array(warp):
    """Make arrays that Warp's own allocator frees, though it cannot allocate on this driver."""
    core = warp._src.context.runtime.core
    core.wp_set_error_output_enabled(0)
    made = []

    def make(device=0, size=4):
        where = warp.get_cuda_device(device)
        made.append(check(driver.cuMemAllocAsync(4 * size, LEGACY)))
        return warp.array(
            ptr=int(made[-1]),
            dtype=warp.int32,
            shape=size,
            device=where,
            deleter=where.mempool_allocator.deallocate,
        )

    yield make
    check(driver.cuCtxSynchronize())
    gc.collect()
    for pointer in made:
        driver.cuMemFreeAsync(pointer, LEGACY)
    core.wp_set_error_output_enabled(1)


def current_pool():
    return int(check(driver.cuDeviceGetMemPool(0)))


# -- arrays -----------------------------------------------------------------------------------


def test_control_warp_alone_frees_while_the_queue_works(warp, array, gate):
    handle = make_stream()
    view = warp.Stream("cuda:0", cuda_stream=handle)
    with warp.ScopedStream(view, sync_enter=False):
        temporary = array()
        gate.hold(handle)
        del temporary
    assert idle(LEGACY)
    gate.open()
    del view
    destroy_stream(handle)


class Closable(Foreign):
    """A stream of somebody who says when it is closed."""

    def close(self):
        destroy_stream(self.handle)
        del self.handle


@pytest.mark.parametrize("closes", ["its own", "the one before it"])
@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize("of_core", [False, True])
def test_an_owner_closes_a_stream_inside_the_scope(warp, array, of_core, ordered, closes):
    """The emulated driver ends the process where it gets a dead handle."""
    device = need("cuda").Device(0)
    device.set_current()
    make = device.create_stream if of_core else lambda: Closable(make_stream())
    outer, inner, before = make(), make(), warp.get_stream("cuda:0")
    lost = ordered and not of_core  # of cuda.core each object keeps the stream alive
    with sk.use(outer):
        place, temporary = warp.get_stream("cuda:0"), array()
        with (
            pytest.raises(sk.errors.ScopeError, match=r"the order after .* is closed")
            if lost
            else contextlib.nullcontext(),
            sk.use(inner, ordered=ordered),
        ):
            (inner if closes == "its own" else outer).close()
            del temporary  # Warp frees it after the queues that it knows
        assert warp.get_stream("cuda:0") is place
    assert warp.get_stream("cuda:0") is before


@pytest.mark.parametrize("owned", [True, False])
@pytest.mark.parametrize("inside", [True, False])
def test_a_dropped_array_is_freed_after_the_work_of_the_scope(array, gate, owned, inside):
    handle = 0 if owned else make_stream()
    stream = sk.new_stream(nonblocking=True) if owned else sk.from_handle(handle)
    before = array()
    with stream:
        temporary = array()
        gate.hold(stream.handle)
        assert idle(LEGACY)
        if inside:
            del before, temporary
            assert held(LEGACY)
    if not inside:
        assert idle(LEGACY)
        del before, temporary
        assert held(LEGACY)
    gate.open()
    stream.sync()
    assert idle(LEGACY)
    del stream
    if handle:
        destroy_stream(handle)


def test_the_other_devices_queue_is_waited_for_there(array, gate):
    stream = sk.new_stream(1, nonblocking=True)
    with stream:
        temporary = array(1)
        gate.hold(stream.handle)
        del temporary
        assert held(LEGACY)
    assert idle(LEGACY), "the first device has nothing to wait for"


def test_a_queue_given_to_warp_without_a_scope_is_waited_for(array, gate):
    stream = sk.new_stream(nonblocking=True)
    view = stream.to("warp")
    gate.hold(view.cuda_stream)
    array()
    assert held(LEGACY)


def test_an_array_dropped_by_another_thread_waits_too(array, gate):
    stream = sk.new_stream(nonblocking=True)
    arrays = [array()]
    with stream:
        gate.hold(stream.handle)
        within(arrays.clear)
        assert held(LEGACY)


def test_a_foreign_stream_is_not_touched_once_its_scope_was_left(array, gate):
    handle = make_stream()
    stream = sk.from_handle(handle)
    with stream:
        gate.hold(handle)
    destroy_stream(handle)  # its work goes on; the fixture "handles" sees who uses it now
    array()
    assert held(LEGACY)
    gate.open()
    check(driver.cuCtxSynchronize())
    emulator.reset_calls()
    array()
    assert not emulator.calls("cuStreamWaitEvent"), "it was waited for already"
    del stream


def test_a_scope_that_ends_while_it_is_asked_about_is_waited_for(memory, array, gate, monkeypatch):
    """In another thread, whose mark is there before the scope has ended."""
    handle = make_stream()
    stream = sk.from_handle(handle)
    has_scope = memory.Lent.has_scope

    def ended_meanwhile(self):
        monkeypatch.undo()
        stream.__exit__(None, None, None)
        return has_scope(self)

    stream.__enter__()
    gate.hold(handle)
    monkeypatch.setattr(memory.Lent, "has_scope", ended_meanwhile)
    array()
    assert held(LEGACY)
    gate.open()
    stream.sync()
    stream = None
    destroy_stream(handle)


def test_a_queue_whose_mark_is_replaced_meanwhile_is_waited_for(memory, array, gate, monkeypatch):
    """By another thread, and the older event is recorded elsewhere before the wait for it."""
    handles = make_stream(), make_stream()
    one, two = map(sk.from_handle, handles)
    wait = events.wait

    def leave_scopes_and_wait(*arguments):
        monkeypatch.undo()
        for stream in (one, two):
            with stream:
                pass
        wait(*arguments)

    with one:
        gate.hold(handles[0])
    monkeypatch.setattr(events, "wait", leave_scopes_and_wait)
    array()
    assert held(LEGACY)
    gate.open()
    one.sync()
    one = two = None
    for handle in handles:
        destroy_stream(handle)


def test_a_stream_that_is_gone_was_waited_for(array, gate):
    stream = sk.new_stream(nonblocking=True)
    with stream:
        gate.hold(stream.handle)
    emulator.fail("cuEventRecord", 1)  # the first wait, for the buffer of its sorts
    del stream
    gc.collect()
    assert held(LEGACY)


def test_a_blocking_queue_needs_nothing(array, gate):
    stream = sk.new_stream()
    with stream:
        emulator.reset_calls()
        array()
        assert not emulator.calls("cuEventRecord")


def test_a_scope_of_a_stream_that_stays_costs_no_driver_call():
    blocking, nonblocking = sk.new_stream(), sk.new_stream(nonblocking=True)
    asked = []
    for stream in (blocking, nonblocking):
        for _ in range(2):
            emulator.reset_calls()
            with stream:
                pass
        asked.append(emulator.all_calls())
    assert asked[0] == asked[1]


def test_leaving_a_foreign_stream_marks_its_end_by_events_that_are_used_again(array, gate):
    handle = make_stream()
    stream = sk.from_handle(handle)
    for _ in range(2):  # builds the view, and the second of two events
        with stream:
            pass
    for _ in range(4):
        emulator.reset_calls()
        with stream:
            pass
        asked = {name: n for name, n in emulator.all_calls().items() if "Event" in name}
        assert asked == {"cuEventRecord": 1}
        array()
    with stream:
        gate.hold(handle)
    array()
    assert held(LEGACY), "what an older mark waited for was taken for this one's"
    gate.open()
    stream.sync()
    del stream
    destroy_stream(handle)
    emulator.reset_calls()
    with sk.from_handle(make_stream()):
        pass
    assert emulator.calls("cuEventCreate") == 1, "Warp makes one, and there are spare ones for ours"


def test_scopes_of_more_queues_than_are_waited_for_wait_for_none(gate):
    first, *others = [sk.new_stream(nonblocking=True) for _ in range(MOST + 2)]
    with first:
        gate.hold(first.handle)
    for stream in others:  # builds the views
        stream.to("warp")
    emulator.reset_calls()
    for stream in (*others, first, *others):
        with stream:
            pass
    assert idle(LEGACY), "it waits for the queue that is held"
    check(driver.cuStreamBeginCapture(others[0].handle, RELAXED))
    for stream in (*others, first, *others):
        with stream:
            pass
    check(driver.cuGraphDestroy(check(driver.cuStreamEndCapture(others[0].handle))))
    assert not {name for name in emulator.all_calls() if "Event" in name or "Wait" in name}


def test_scopes_record_no_event_on_a_stream_that_a_library_never_destroys(memory):
    """Not only if it says so first: an earlier view of the handle is the library's stream too."""
    handle = make_stream(nonblocking=True)
    with sk.from_handle(handle) as known:
        assert not known.to("warp")._streamkit_lent.stays
    found = Queue(handle, 0)
    found.permanent = True  # as torch's adapter says of the streams of its pool
    identity.identify(found)
    emulator.reset_calls()
    with sk.from_handle(handle):
        pass
    assert not emulator.calls("cuEventRecord")


def test_of_many_queues_the_longest_watched_is_waited_for_once_and_then_left(memory, array, gate):
    streams = [sk.new_stream(nonblocking=True) for _ in range(MOST + 2)]
    for stream in streams:
        stream.to("warp")
    gate.hold(streams[0].handle)

    def waited_for():
        emulator.reset_calls()
        array()
        return emulator.calls("cuEventRecord")

    assert waited_for() == MOST + 2
    assert held(LEGACY)
    gate.open()
    assert waited_for() == MOST
    with streams[0], sk.use(streams[1], libraries=[]):
        assert waited_for() == MOST + 1
        assert waited_for() == MOST
    watched = memory.watched
    assert [stream.to("warp")._streamkit_lent in watched for stream in streams] == [
        True, False, False, *[True] * (MOST - 1)
    ]  # fmt: skip


def test_a_queue_with_an_open_scope_is_not_left_however_many_there_are(memory, array):
    entered, *others = [sk.new_stream(nonblocking=True) for _ in range(MOST + 3)]
    with entered:
        for stream in others:
            stream.to("warp")
        for _ in range(2):
            array()
            assert entered.to("warp")._streamkit_lent in memory.watched


@pytest.mark.parametrize("left", [False, True])
def test_a_queue_that_is_entered_while_it_is_dropped_stays(memory, array, gate, monkeypatch, left):
    """Also if its scope has been left again: what that was given came after the wait."""
    stream, *others = [sk.new_stream(nonblocking=True) for _ in range(MOST + 1)]
    for other in (stream, *others):
        other.to("warp")
    waits, wait = [], events.wait

    def entered_meanwhile(companion, event):
        wait(companion, event)
        if not waits:  # the first of them is this queue's
            stream.__enter__()
            gate.hold(stream.handle)
            if left:
                stream.__exit__(None, None, None)
        waits.append(event)

    with monkeypatch.context() as patched:
        patched.setattr(events, "wait", entered_meanwhile)
        array()
    try:
        assert len(waits) == MOST + 1
        assert idle(LEGACY)
        array()
        assert held(LEGACY)
    finally:
        if not left:
            stream.__exit__(None, None, None)


# -- captures ---------------------------------------------------------------------------------


def test_a_drop_leaves_a_capture_valid(array):
    stream, other = sk.new_stream(nonblocking=True), sk.new_stream(nonblocking=True)
    other.to("warp")
    with stream:
        temporary = array()
        check(driver.cuStreamBeginCapture(stream.handle, driver.CUstreamCaptureMode(0)))
        emulator.reset_calls()
        del temporary
        assert emulator.calls("cuEventRecord") == 1, "the other queue's"
    graph = check(driver.cuStreamEndCapture(stream.handle))
    check(driver.cuGraphDestroy(graph))
    array()  # and what was dropped goes with it


def test_while_a_queue_captures_untold_what_earlier_work_may_use_is_not_freed(memory):
    stream, freed = sk.new_stream(nonblocking=True), []
    free = memory._after_the_queues(freed.append)
    with stream:
        check(driver.cuStreamBeginCapture(stream.handle, driver.CUstreamCaptureMode(0)))
        free("first")
        free("second")
        assert not freed
        check(driver.cuGraphDestroy(check(driver.cuStreamEndCapture(stream.handle))))
    free("third")
    assert sorted(freed) == ["first", "second", "third"]


def test_a_capture_that_another_thread_begins_meanwhile_takes_no_stream_of_ours(
    memory, monkeypatch
):
    stream, freed = sk.new_stream(nonblocking=True), []
    free, record = memory._after_the_queues(freed.append), events.record

    def begun_first(event, handle):
        monkeypatch.undo()
        check(driver.cuStreamBeginCapture(handle, RELAXED))
        record(event, handle)

    with stream:
        monkeypatch.setattr(events, "record", begun_first)
        free("first")
        assert not int(check(driver.cuStreamIsCapturing(memory.companions[0])))
        free("second")
        assert not int(check(driver.cuStreamIsCapturing(memory.companions[0])))
        assert not freed
        check(driver.cuGraphDestroy(check(driver.cuStreamEndCapture(stream.handle))))
    free("third")
    assert sorted(freed) == ["first", "second", "third"]


def test_another_thread_that_meets_a_capture_leaves_this_ones_wait_whole(memory, gate, monkeypatch):
    stream, freed = sk.new_stream(nonblocking=True), []
    free = memory._after_the_queues(lambda what: freed.append((what, held(LEGACY))))
    record, wait = events.record, events.wait
    stream.to("warp")
    gate.hold(stream.handle)

    def begun_first(event, handle):
        check(driver.cuStreamBeginCapture(handle, RELAXED))
        record(event, handle)

    def other_first(companion, event):
        monkeypatch.undo()
        monkeypatch.setattr(events, "record", begun_first)
        within(memory.wait_for_queues)
        monkeypatch.undo()
        check(driver.cuGraphDestroy(check(driver.cuStreamEndCapture(stream.handle))))
        wait(companion, event)

    monkeypatch.setattr(events, "wait", other_first)
    free("ours")
    assert freed == [("ours", True)]


def test_a_stream_that_is_gone_while_it_captures_is_waited_for_later(memory, array, gate):
    """And its pool is another's then."""
    memory._spare.clear()
    stream = sk.new_stream(nonblocking=True)
    handle = stream.handle
    call = memory._in_own_pools(current_pool)
    with stream:
        pool = call()
        gate.hold(handle)
    check(driver.cuStreamBeginCapture(handle, RELAXED))
    del stream
    gc.collect()
    assert not memory._spare
    array()
    assert idle(LEGACY), "it is not freed"
    check(driver.cuGraphDestroy(check(driver.cuStreamEndCapture(handle))))
    array()
    assert held(LEGACY)
    gate.open()
    check(driver.cuCtxSynchronize())
    with sk.new_stream(nonblocking=True):
        assert call() == pool


def test_while_warp_itself_captures_it_is_told_of_what_is_dropped(warp, memory):
    """It puts that off itself, or lets the graph free what the graph has allocated."""
    context, freed = warp._src.context, []
    free = memory._after_the_queues(freed.append)
    stream, other = sk.new_stream(nonblocking=True), sk.new_stream(nonblocking=True)
    view = stream.to("warp")
    other.to("warp")
    check(driver.cuStreamBeginCapture(stream.handle, RELAXED))
    number = int(check(driver.cuStreamGetCaptureInfo(stream.handle))[1])
    # Warp's native part begins no capture on this driver: what its capture_begin notes then
    graph = context.Graph(view.device, capture_id=number)
    context._register_capture(view.device, view, graph, number)
    free("while Warp captures")
    check(driver.cuStreamBeginCapture(other.handle, RELAXED))
    free("while another captures too")
    context._unregister_capture(view.device, view, graph)
    free("untold")
    assert freed == ["while Warp captures"]
    for captured in (stream, other):
        check(driver.cuGraphDestroy(check(driver.cuStreamEndCapture(captured.handle))))
    free("now")
    assert len(freed) == 4


def told(warp, memory, stream, external):
    """Tell Warp of a capture, whose native part can begin none on this driver."""
    context, view = warp._src.context, stream.to("warp")
    handle = stream.handle

    def begin(*_):
        if not external:
            check(driver.cuStreamBeginCapture(handle, RELAXED))

    memory._before_capture(begin)(view.device.context, handle, int(external), 1)
    number = int(check(driver.cuStreamGetCaptureInfo(handle))[1])
    graph = context.Graph(view.device, capture_id=number)
    context._register_capture(view.device, view, graph, number)
    return lambda: context._unregister_capture(view.device, view, graph)


def test_what_warp_defers_while_it_captures_waits_for_the_work_before(warp, memory, gate):
    """It frees that on the legacy stream when the capture has ended."""
    stream, freed = sk.new_stream(nonblocking=True), []
    stream.to("warp")
    gate.hold(stream.handle)
    end = told(warp, memory, stream, external=False)
    assert held(LEGACY)
    memory._after_the_queues(freed.append)("put off by Warp")
    assert freed
    end()
    check(driver.cuGraphDestroy(check(driver.cuStreamEndCapture(stream.handle))))


@pytest.mark.parametrize("prepared", [True, False])
def test_of_a_capture_told_when_it_had_begun_what_earlier_work_may_use_is_not_freed(
    warp, memory, gate, prepared
):
    """As the user's own ``wp.capture_begin(external=True)``; ``capture`` has waited before."""
    stream, freed = sk.new_stream(nonblocking=True), []
    free = memory._after_the_queues(lambda what: freed.append((what, held(LEGACY))))
    view = stream.to("warp")
    gate.hold(stream.handle)
    if prepared:
        memory.wait_for_queues()
    check(driver.cuStreamBeginCapture(stream.handle, RELAXED))
    end = told(warp, memory, stream, external=True)
    if prepared:
        memory.prepared(view)
    free("inside")
    assert freed == ([("inside", True)] if prepared else [])
    end()
    check(driver.cuGraphDestroy(check(driver.cuStreamEndCapture(stream.handle))))
    free("after")
    assert sorted(freed) == [("after", True), ("inside", True)]


def test_of_a_capture_that_streamkit_began_the_work_before_counts_as_waited_for(
    warp, memory, monkeypatch
):
    from streamkit.backends._warp.capture import WarpPart  # no capture of Warp's begins here

    view = sk.new_stream(nonblocking=True).to("warp")
    view._streamkit_lent.late = 5  # as ``wp.capture_begin`` notes
    monkeypatch.setattr(warp, "capture_begin", lambda **_: None)
    WarpPart(view, "relaxed").begin()
    assert view._streamkit_lent.late is None


def test_a_stream_first_seen_while_it_captures_is_lent_too(array, gate):
    handle = make_stream()
    check(driver.cuStreamBeginCapture(handle, driver.CUstreamCaptureMode(0)))
    stream = sk.from_handle(handle)
    stream.to("warp")
    check(driver.cuGraphDestroy(check(driver.cuStreamEndCapture(handle))))
    with stream:
        gate.hold(handle)
        array()
        assert held(LEGACY)
    gate.open()
    stream.sync()
    del stream
    destroy_stream(handle)


# -- native functions -------------------------------------------------------------------------


def test_a_native_function_of_a_scope_has_a_pool_of_the_queues_own(memory):
    call = memory._in_own_pools(current_pool)
    found = current_pool()
    one, other = (sk.new_stream(nonblocking=True) for _ in range(2))
    pools = []
    for stream in (one, one, other):
        with stream:
            pools.append(call())
            assert current_pool() == found
    assert pools[0] == pools[1]
    assert len({*pools, found}) == 3
    assert call() == found
    with sk.new_stream():
        assert call() == found


def test_warps_scan_is_such_a_function(warp, array):
    numbers, sums = array(), array()
    with sk.new_stream(nonblocking=True):
        emulator.reset_calls()
        no_kernels = pytest.raises(RuntimeError, match="scan_device")  # of CUB, here
        before = version_of("warp-lang") < (1, 18)  # it did not tell what failed
        with contextlib.nullcontext() if before else no_kernels:
            warp.utils.array_scan(numbers, sums)
        assert emulator.calls("cuDeviceSetMemPool") == 2


def test_another_thread_lends_the_first_queue_of_another_device_meanwhile(
    warp, memory, monkeypatch
):
    get = warp.get_cuda_device
    companions = memory.companions

    def lent_first(device):
        companions.setdefault("meanwhile", None)
        return get(device)

    with sk.new_stream(nonblocking=True):
        monkeypatch.setattr(warp, "get_cuda_device", lent_first)
        try:
            assert memory._in_own_pools(lambda: 1)() == 1
        finally:
            companions.pop("meanwhile", None)


def test_a_second_threads_native_function_comes_after_the_firsts(memory, monkeypatch):
    """Else it would take the pool of the first one's queue for the device's, and leave that set."""
    found, lock = current_pool(), memory._lock
    arrived, left, second = threading.Event(), threading.Event(), []

    @contextlib.contextmanager
    def arriving():
        arrived.set()
        with lock:
            yield

    def of_the_second():
        arrived.set()
        assert left.wait(10)

    def of_the_first():
        monkeypatch.setattr(memory, "_lock", arriving())  # tells when the second waits for it
        second.append(other.submit(memory._in_own_pools(of_the_second)))
        assert arrived.wait(10)

    with ThreadPoolExecutor(1) as other, sk.new_stream(nonblocking=True):
        memory._in_own_pools(of_the_first)()
        left.set()
        second[0].result()
    assert current_pool() == found


def test_the_pool_comes_back_after_an_error(memory):
    found = current_pool()
    with sk.new_stream(nonblocking=True), pytest.raises(ZeroDivisionError):
        memory._in_own_pools(lambda: 1 / 0)()
    assert current_pool() == found


@pytest.mark.parametrize(
    "function",
    [
        "cuMemPoolCreate",
        "cuMemPoolSetAttribute",
        "cuMemPoolGetAccess",
        "cuDeviceGetMemPool",
        "cuDeviceSetMemPool",
    ],
)
def test_a_failure_before_the_native_function_leaves_the_pool(memory, function):
    found, pools = current_pool(), emulator.live("pools")
    memory._spare.clear()
    with sk.new_stream(nonblocking=True):
        emulator.fail(function, 1)
        with pytest.raises(sk.errors.DriverError):
            memory._in_own_pools(current_pool)()
        assert current_pool() == found
        assert memory._in_own_pools(current_pool)() != found
    assert emulator.live("pools") == pools + 1


def test_the_pool_of_a_queue_that_is_gone_is_used_again_when_its_work_is_done(memory, gate):
    call = memory._in_own_pools(current_pool)

    def pool_of_a_new_queue(*, held=False):
        stream = sk.new_stream(nonblocking=True)
        with stream:
            pool = call()
            if held:
                gate.hold(stream.handle)
        del stream
        gc.collect()
        return pool

    memory._spare.clear()
    first = pool_of_a_new_queue(held=True)
    second = pool_of_a_new_queue()
    assert first != second
    gate.open()
    check(driver.cuCtxSynchronize())
    assert pool_of_a_new_queue() in (first, second)


def test_a_pool_goes_to_one_queue_though_it_is_given_up_twice(memory, monkeypatch):
    """By a free that meets the queue just gone, and by the end of its view."""
    call = memory._in_own_pools(current_pool)
    memory._spare.clear()
    stream = sk.new_stream(nonblocking=True)
    lent = stream.to("warp")._streamkit_lent
    with stream:
        pool = call()
    del stream
    gc.collect()
    first, record, kept = lent.passed, events.record, []
    with monkeypatch.context() as patch:  # meanwhile another thread may take the pool
        patch.setattr(
            events, "record", lambda *at: (kept.append(lent.passed is first), record(*at))
        )
        memory.end(lent)
    assert set(kept) == {True}, "an event that is not recorded yet counts as done"
    assert eventually(lambda: events.is_done(lent.passed.handle))  # else it is nobody's yet
    later, pools = [sk.new_stream(nonblocking=True) for _ in range(4)], []
    for stream in later:
        with stream:
            pools.append(call())
    assert pool in pools
    assert len(set(pools)) == len(later)


READ_WRITE = driver.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE


def place(device):
    found = driver.CUmemLocation()
    found.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    found.id = device
    return found


def test_a_queue_that_is_left_keeps_its_pool_as_long_as_its_view_lives(memory):
    call = memory._in_own_pools(current_pool)

    def pool_of(stream):
        with stream:
            return call()

    memory._spare.clear()
    streams = [sk.new_stream(nonblocking=True) for _ in range(MOST + 3)]
    pools = [pool_of(stream) for stream in streams]
    assert memory.wait_for_queues()
    assert len(memory.watched) == MOST
    check(driver.cuCtxSynchronize())
    assert pool_of(sk.new_stream(nonblocking=True)) not in pools
    assert [pool_of(stream) for stream in streams] == pools


def test_the_pool_is_in_reach_of_whom_the_common_one_is(memory):
    """For what a function allocates may stay, and be read on another device."""

    def reached():
        access = check(driver.cuMemPoolGetAccess(check(driver.cuDeviceGetMemPool(0)), place(1)))
        return access == READ_WRITE

    common = check(driver.cuDeviceGetMemPool(0))
    call = memory._in_own_pools(reached)
    memory._spare.clear()
    stream, access = sk.new_stream(nonblocking=True), driver.CUmemAccessDesc()
    access.location = place(1)
    with stream:
        assert not call()
        access.flags = READ_WRITE  # as wp.set_mempool_access_enabled does it
        check(driver.cuMemPoolSetAccess(common, [access], 1))
        try:
            assert call()
        finally:
            access.flags = driver.CUmemAccess_flags(0)
            check(driver.cuMemPoolSetAccess(common, [access], 1))


def test_a_device_without_pools_gets_none(warp, memory, monkeypatch):
    pools = emulator.live("pools")
    memory._spare.clear()
    monkeypatch.setattr(warp.get_cuda_device(0), "is_mempool_supported", False)
    with sk.new_stream(nonblocking=True):
        assert memory._in_own_pools(lambda: 1)() == 1
    assert emulator.live("pools") == pools


def test_where_warps_arrays_are_not_of_a_pool_its_functions_memory_still_is(warp, memory):
    found = current_pool()
    warp.set_mempool_enabled("cuda:0", False)
    try:
        with sk.new_stream(nonblocking=True):
            assert memory._in_own_pools(current_pool)() != found
    finally:
        warp.set_mempool_enabled("cuda:0", True)


def test_in_a_capture_the_graph_has_its_own_memory(memory):
    found = current_pool()
    stream = sk.new_stream(nonblocking=True)
    with stream:
        check(driver.cuStreamBeginCapture(stream.handle, driver.CUstreamCaptureMode(0)))
        assert memory._in_own_pools(current_pool)() == found
        graph = check(driver.cuStreamEndCapture(stream.handle))
    check(driver.cuGraphDestroy(graph))


def test_what_replaces_its_memory_waits_first_and_what_begins_a_capture(memory, gate):
    core = need("warp")._src.context.runtime.core
    sk.new_stream(nonblocking=True).to("warp")
    ours = memory.__name__
    functions = vars(core).items()
    names = {name for name, found in functions if getattr(found, "__module__", "") == ours}
    assert names >= {
        "wp_free_device_async", "wp_mesh_destroy_device", "wp_hash_grid_update_device",
        "wp_radix_sort_pairs_int_device", "wp_array_sum_float_device", "wp_bsr_transpose_device",
        "wp_mesh_refit_device", "wp_mesh_create_device", "wp_cuda_graph_begin_capture",
    }  # fmt: skip
    assert ("wp_volume_rebuild_from_tiles_device" in names) is (version_of("warp-lang") >= (1, 16))
    assert not names & {"wp_memset_device", "wp_alloc_device_async", "wp_cuda_launch_kernel"}
    stream = sk.new_stream(nonblocking=True)
    stream.to("warp")
    gate.hold(stream.handle)
    memory._waiting_first(lambda: None)()
    assert held(LEGACY)


@pytest.mark.parametrize("mode", [0, 1, 2])
@pytest.mark.parametrize("by_another_thread", [True, False])
def test_a_native_function_leaves_an_untold_capture_of_another_queue_valid(
    memory, gate, mode, by_another_thread
):
    """And its temporary, freed at once on the legacy stream, comes back to its own queue only."""

    def native():
        assert current_pool() != common
        temporary = check(driver.cuMemAllocAsync(1 << 10, stream.handle))
        check(driver.cuMemFreeAsync(temporary, LEGACY))
        return held(LEGACY)

    def begin():
        check(driver.cuStreamBeginCapture(other.handle, driver.CUstreamCaptureMode(mode)))

    def end():
        check(driver.cuGraphDestroy(check(driver.cuStreamEndCapture(other.handle))))

    common = current_pool()
    call = memory._waiting_first(memory._in_own_pools(native))
    stream, other = (sk.new_stream(nonblocking=True) for _ in range(2))
    other.to("warp")
    with ThreadPoolExecutor(1) as thread, stream:
        run = (lambda fn: thread.submit(fn).result()) if by_another_thread else lambda fn: fn()
        call()  # the pool is there
        gate.hold(stream.handle)
        run(begin)
        assert call()
        assert current_pool() == common
        run(end)


def test_the_end_of_a_view_frees_the_buffer_of_its_sorts_late_enough(warp, gate):
    """That of the sorts before it was lent, which is of no pool of ours."""
    core = warp._src.context.runtime.core
    stream = sk.new_stream(nonblocking=True)
    stream.to("warp")
    unregister = core.wp_cuda_stream_unregister
    gate.hold(stream.handle)
    emulator.fail("cuEventRecord", 1)
    unregister(0, 0)  # a destructor calls it: nothing is raised
    assert idle(LEGACY)
    unregister(0, 0)
    assert held(LEGACY)


# -- failures ---------------------------------------------------------------------------------


def test_a_free_that_cannot_wait_is_done_with_the_next_one(memory):
    freed = []
    free = memory._after_the_queues(freed.append)
    stream = sk.new_stream(nonblocking=True)
    stream.to("warp")
    for function in ("cuStreamIsCapturing", "cuEventRecord", "cuStreamWaitEvent"):
        emulator.fail(function, 1)
        free(function)
    assert not freed
    free("now")
    assert sorted(freed) == ["cuEventRecord", "cuStreamIsCapturing", "cuStreamWaitEvent", "now"]


def test_what_another_thread_has_freed_meanwhile_is_not_freed_again(memory, monkeypatch):
    stream, freed = sk.new_stream(nonblocking=True), []
    stream.to("warp")
    free, settle = memory._after_the_queues(freed.append), memory.wait_for_queues
    emulator.fail("cuEventRecord", 1)
    free("put off")

    def other_first():
        monkeypatch.undo()
        within(lambda: free("the other's"))
        return settle()

    monkeypatch.setattr(memory, "wait_for_queues", other_first)
    free("ours")
    assert sorted(freed) == ["ours", "put off", "the other's"]


def test_an_interrupt_loses_at_most_the_free_that_it_interrupts(memory):
    stream, freed = sk.new_stream(nonblocking=True), []
    stream.to("warp")
    free = memory._after_the_queues(freed.append)
    nth, came = 0, True
    while came:
        nth += 1
        for number in range(5):
            emulator.fail("cuEventRecord", 1)
            free((nth, number))
        came = interrupted(functools.partial(free, (nth, "interrupted")), nth)
        free((nth, "later"))
        made = [which for at, which in freed if at == nth]
        assert len(made) == len(set(made)) >= 6, f"after an interrupt at the call {nth}"
    assert nth > 5


def test_a_wait_that_fails_is_made_again(array, gate):
    handle = make_stream()
    stream = sk.from_handle(handle)
    with stream:
        gate.hold(handle)
    emulator.fail("cuStreamWaitEvent", 1)
    array()
    assert idle(LEGACY)
    array()
    assert held(LEGACY)
    gate.open()
    stream.sync()
    del stream
    destroy_stream(handle)


def test_a_queue_that_could_not_be_lent_is_lent_the_next_time(memory, monkeypatch):
    stream = sk.new_stream(nonblocking=True)
    monkeypatch.setattr(memory, "companions", {})  # so this queue is the first of its device
    emulator.fail("cuStreamCreateWithPriority", 2)
    with pytest.raises(sk.errors.DriverError):
        stream.to("warp")
    assert not memory.watched
    stream.to("warp")
    assert len(memory.watched) == 1


def test_a_forked_child_frees_without_the_driver(memory):
    stream = sk.new_stream(nonblocking=True)
    stream.to("warp")
    freed = []
    free = memory._after_the_queues(freed.append)
    child = os.fork()
    if not child:
        code = 1
        with contextlib.suppress(BaseException):
            free(1)
            memory._in_own_pools(freed.append)(2)
            memory._waiting_first(freed.append)(3)
            memory._before_capture(lambda *given: freed.append(given))(4, stream.handle, 1)
            code = int(freed != [1, 2, 3, (4, stream.handle, 1)])
        os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


# -- what it costs ----------------------------------------------------------------------------


def test_the_speed_table_has_one_side_wait_for_one_queue_and_the_other_for_none(memory, array):
    import bench

    (plan,) = [plan for plan in bench.PLANS if plan.name.startswith("a Warp array")]
    other = sk.new_stream(nonblocking=True)
    other.to("warp")
    found = {*memory.watched}
    # Warp cannot allocate on this driver, but free
    libraries = SimpleNamespace(warp=SimpleNamespace(empty=lambda *_, **__: array()), device=0)
    records = []
    with plan.arrange(libraries) as arms:
        for _ in range(2):
            for run in (arms.ours, arms.theirs):
                emulator.reset_calls()
                run([None] * 5)
                records.append(emulator.calls("cuEventRecord"))
                arms.after()
    assert records == [5, 0, 5, 0]
    assert found <= {*memory.watched}


# -- what is not covered ----------------------------------------------------------------------


class Own:
    """An allocator of the user's, which this test does not use."""

    def allocate(self, size_in_bytes):
        raise NotImplementedError

    def deallocate(self, ptr, size_in_bytes):
        raise NotImplementedError


class Compiled:
    """One that is not referenced weakly, as many an extension's class."""

    __slots__ = ()
    allocate, deallocate = Own.allocate, Own.deallocate


@pytest.fixture
def allocators(warp):
    """Warp's allocators of both devices, put back after the test."""
    yield
    warp.set_cuda_allocator(None)


@pytest.mark.usefixtures("allocators")
@pytest.mark.parametrize("kind", [Own, Compiled])
@pytest.mark.parametrize("inside", [True, False])
def test_a_users_allocator_is_left_alone_and_warned_of_once(warp, kind, inside):
    usual, allocator = warp.get_device_allocator("cuda:0"), kind()
    stream, other = sk.new_stream(nonblocking=True), sk.new_stream(1, nonblocking=True)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        if not inside:
            warp.set_cuda_allocator(allocator)
        with stream:
            assert bool(told) is not inside
            warp.set_cuda_allocator(allocator)
    assert [warning.category for warning in told] == [RuntimeWarning]
    assert re.search(rf"{kind.__name__}.*s\.keep\(array\)", str(told[0].message))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with stream, other:
            pass
    assert warp.get_device_allocator("cuda:0") is allocator
    warp.set_device_allocator("cuda:0", kind())
    with pytest.warns(RuntimeWarning, match=kind.__name__), stream:
        pass
    warp.set_device_allocator("cuda:0", None)
    assert warp.get_device_allocator("cuda:0") is usual


@pytest.mark.usefixtures("allocators")
def test_an_allocator_is_not_kept_and_the_next_at_its_address_is_warned_of_too(warp):
    stream = sk.new_stream(nonblocking=True)
    for _ in range(3):
        allocator = Own()
        alive = weakref.ref(allocator)
        warp.set_device_allocator("cuda:0", allocator)
        with pytest.warns(RuntimeWarning, match="Own"), stream:
            pass
        warp.set_device_allocator("cuda:0", None)
        del allocator
        assert alive() is None


@pytest.mark.usefixtures("allocators")
def test_a_scope_is_left_though_its_warning_is_made_an_error(warp):
    before, stream = warp.get_stream("cuda:0"), sk.new_stream(nonblocking=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(sk.errors.ScopeError, match=r"RuntimeWarning: .*Own"), stream:
            warp.set_device_allocator("cuda:0", Own())
    assert warp.get_stream("cuda:0") is before
    assert sk.current_stream("warp") != stream


def test_blocking_queues_and_managed_memory_are_not_warned_of(warp):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        cases = [(sk.new_stream(), Own())]
        if version_of("warp-lang") >= (1, 15):  # the first with managed memory
            cases += [(sk.new_stream(nonblocking=True), warp.CudaManagedAllocator())]
        for stream, allocator in cases:
            warp.set_device_allocator("cuda:0", allocator)
            try:
                with stream:
                    pass
            finally:
                warp.set_device_allocator("cuda:0", None)


def test_a_warp_of_unknown_functions_is_left_alone_and_warned_of(monkeypatch, memory):
    """That one of them is known does not mean that all are."""

    def free():
        raise NotImplementedError

    core = SimpleNamespace(wp_free_device_async=free)
    monkeypatch.setattr(memory, "warp_runtime", lambda: SimpleNamespace(core=core))
    monkeypatch.setattr(memory, "_install", memory._install.__wrapped__)
    memory.warn_of_version.cache_clear()
    with pytest.warns(RuntimeWarning, match="does not know how Warp"):
        sk.new_stream(nonblocking=True).to("warp")
    sk.new_stream(nonblocking=True).to("warp")
    assert vars(core) == {"wp_free_device_async": free}
