"""``handoff`` of real arrays: the order, and who holds the memory how long."""

from __future__ import annotations

import contextlib
import gc
import os
import sys
import weakref

import numpy as np
import pytest

import emulator
import streamkit as sk
from streamkit._queues import keepalive  # what is kept must not grow
from support.emulated.memory import Memory
from support.emulated.state_snapshot import drop_spare_events
from support.exchange_toy import Library
from support.gpu.raw import Gate, busy, check, destroy_stream, driver, idle, make_stream, sync
from support.interrupts import interrupted
from support.keepalive import stays_until
from support.libraries import need, version_of
from support.queues import within

pytestmark = [pytest.mark.usefixtures("handles"), pytest.mark.versions]

THREAD_LOCAL = driver.CUstreamCaptureMode(1)


def warp_array(memory, device=0, **options):
    warp = need("warp")
    warp.config.log_level = warp.LOG_WARNING
    warp.init()
    return warp.array(
        ptr=memory.pointer, dtype=float, shape=(4, 8), device=f"cuda:{device}",
        deleter=memory.free, **options,
    )  # fmt: skip


def numba_array(memory, device=0):
    cuda = need("numba")
    from numba.cuda.cudadrv import devicearray
    from numba.cuda.cudadrv import driver as numba_driver

    with cuda.gpus[device]:
        context = cuda.current_context()
        handle = numba_driver.binding.CUdeviceptr(memory.pointer)
        data = numba_driver.AutoFreePointer(context, handle, 128, finalizer=memory.free)
        return devicearray.DeviceNDArray((4, 8), (32, 4), np.float32, gpu_data=data)


TOY = Library()


class Freed:
    def __init__(self, memory):
        self._free = memory.free

    def __del__(self):
        self._free()


def toy_array(memory, device=0):
    """An array of a library that StreamKit does not know."""
    return TOY.Array(memory.pointer, device, Freed(memory))


MAKERS = {"warp": warp_array, "numba": numba_array, "toy": toy_array}
each = pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)


def streams():
    return sk.new_stream(nonblocking=True), sk.new_stream(nonblocking=True)


# -- the order --------------------------------------------------------------------------------


@each
@pytest.mark.parametrize("handed", [True, False])
def test_the_stream_waits_for_what_came_before(gate, make, handed):
    source, target = streams()
    array = make(Memory())
    gate.hold(source.handle)
    if handed:
        sk.handoff(array, target, after=source)
        target.record()
    assert busy(target.handle) if handed else idle(target.handle)
    gate.open()
    sync(target.handle)


def test_without_after_it_waits_for_the_librarys_current_stream(gate, warp):
    source, target = streams()
    array = warp_array(Memory())
    with source:
        gate.hold(source.handle)
        sk.handoff(array, target)
    target.record()
    assert busy(target.handle)
    gate.open()
    sync(target.handle)


def test_of_numba_nobody_knows_where_an_array_was_used():
    with pytest.raises(TypeError, match=r"after=\.\.\."):
        sk.handoff(numba_array(Memory()), sk.new_stream())


@each
def test_on_the_same_queue_it_is_the_same_array_and_nothing_is_asked(make):
    array, stream = make(Memory()), sk.new_stream()
    other = sk.from_handle(stream.handle)
    sk.handoff(array, stream, after=stream)
    emulator.reset_calls()
    assert sk.handoff(array, stream, after=other) is array
    assert not {"cuEventRecord", "cuStreamWaitEvent"} & set(emulator.all_calls())


def calls_of_a_steady_handoff(source):
    target, array = sk.new_stream(nonblocking=True), warp_array(Memory())
    lent = [sk.handoff(array, target, after=source)]
    emulator.reset_calls()
    lent.append(sk.handoff(array, target, after=source))  # without the end of the first
    return emulator.all_calls()


def test_a_steady_handoff_is_a_wait_and_a_question_about_a_capture_of_each_stream():
    assert calls_of_a_steady_handoff(sk.new_stream(nonblocking=True)) == {
        "cuStreamIsCapturing": 2, "cuEventRecord": 1, "cuStreamWaitEvent": 1
    }  # fmt: skip


def test_the_legacy_stream_is_not_asked_about_a_capture():
    assert calls_of_a_steady_handoff(sk.default_stream())["cuStreamIsCapturing"] == 1


@each
def test_a_per_thread_stream_is_one_of_its_own_thread(make):
    stream, other, told = sk.default_stream(per_thread=True), sk.new_stream(nonblocking=True), []
    array = make(Memory())

    def hand_over():
        assert sk.handoff(array, stream, after=stream) is array
        for target, source in ((stream, other), (other, stream)):
            with pytest.raises(sk.errors.ScopeError):
                sk.handoff(array, target, after=source)
            told.append(target)

    emulator.reset_calls()
    within(hand_over)
    assert told == [stream, other]
    assert not {"cuEventRecord", "cuStreamWaitEvent"} & set(emulator.all_calls())


@each
def test_an_array_of_the_other_device_is_refused_before_anything_happens(make):
    memory = Memory(1)
    array, stream = make(memory, 1), sk.new_stream(0)
    with pytest.raises(sk.errors.DeviceMismatchError, match="cuda:1"):
        sk.handoff(array, stream, after=sk.new_stream(1))
    del array
    gc.collect()
    assert memory.freed.is_set()


@each
def test_device_and_host_do_not_mix(make):
    stream, host = sk.new_stream(), sk.new_stream("cpu")
    with pytest.raises(sk.errors.DeviceMismatchError, match="cuda:0"):
        sk.handoff(make(Memory()), host, after=stream)
    with pytest.raises(sk.errors.DeviceMismatchError, match="the host"):
        sk.handoff(np.ones(3), stream, after=stream)
    with pytest.raises(sk.errors.DeviceMismatchError):
        sk.handoff(make(Memory()), stream, after=host)


@each
def test_a_stream_of_the_other_device_can_come_before(gate, make):
    source, target = sk.new_stream(1), sk.new_stream(0)
    gate.hold(source.handle)
    sk.handoff(make(Memory()), target, after=source)
    target.record()
    assert busy(target.handle)
    gate.open()
    sync(target.handle)


# -- the memory -------------------------------------------------------------------------------


@each
def test_it_is_another_array_of_the_class_on_the_same_memory(make):
    source, target = streams()
    array = make(Memory())
    lent = sk.handoff(array, target, after=source)
    assert type(lent) is type(array)
    assert lent is not array
    for name in ("shape", "dtype", "strides"):
        assert getattr(lent, name) == getattr(array, name)
    one, two = (a.__cuda_array_interface__["data"] for a in (array, lent))
    assert one == two


def test_memory_of_the_host_too_is_refused_before_anything_happens(gate):
    """Views of such an array are NumPy's, and hold no owner."""
    source, target = streams()
    array = need("numba").mapped_array(4)
    gate.hold(source.handle)
    with pytest.raises(TypeError, match=r"mapped.*s\.wait\(stream\).*s\.keep"):
        sk.handoff(array, target, after=source)
    assert busy(source.handle)
    assert idle(target.handle)


def itself(lent):
    return lent


def a_view(lent):
    return lent[1:]


def a_view_of_a_view(lent):
    return lent[1:][1:].reshape(16)


@each
@pytest.mark.parametrize("what", [itself, a_view, a_view_of_a_view])
def test_the_memory_outlives_what_is_submitted_while_anybody_holds_it(gate, make, what):
    source, target = streams()
    memory = Memory()
    array = make(memory)
    lent = sk.handoff(array, target, after=source)
    left = what(lent)
    del array, lent
    gate.hold(target.handle)  # after the handoff
    gc.collect()
    assert not memory.freed.is_set()
    del left
    stays_until(gate, target.sync, memory.freed.is_set)


@each
def test_a_slice_whose_array_is_gone_brings_the_memory_along(gate, make):
    source, target = streams()
    memory = Memory()
    lent = sk.handoff(make(memory)[1:], target, after=source)
    gate.hold(target.handle)
    del lent
    stays_until(gate, target.sync, memory.freed.is_set)


def test_arrays_without_elements_and_of_records_are_arrays(warp):
    source, target = streams()
    cuda = need("numba")
    record = np.dtype([("x", "f4"), ("y", "i4")])
    for array in (
        warp.empty((0, 3), dtype=float, device="cuda:0"),
        warp.array(ptr=Memory().pointer, dtype=warp.mat33, shape=2, device="cuda:0"),
        cuda.device_array((0, 3)),
        cuda.device_array(4, dtype=record),
        cuda.device_array(4, dtype=record)[0],
    ):
        lent = sk.handoff(array, target, after=source)
        assert (type(lent), lent.dtype) == (type(array), array.dtype)
        assert getattr(lent, "shape", None) == getattr(array, "shape", None)


@each
def test_control_the_array_alone_does_not(gate, make):
    _, target = streams()
    memory = Memory()
    array = make(memory)
    gate.hold(target.handle)
    del array
    gc.collect()
    assert memory.freed.is_set()


def test_the_gradient_of_a_warp_array_holds_the_memory_too(gate, warp):
    source, target = streams()
    memory, of_gradient = Memory(), Memory()
    gradient = warp_array(of_gradient)
    array = warp_array(memory, grad=gradient)
    lent = sk.handoff(array, target, after=source)
    left = lent.grad
    del array, gradient, lent
    gate.hold(target.handle)
    del left
    stays_until(gate, lambda: (target.sync(), gc.collect()), of_gradient.freed.is_set)
    assert memory.freed.is_set()


def test_a_lent_warp_array_is_marked_as_read(warp):
    source, target = streams()
    lent = sk.handoff(warp_array(Memory()), target, after=source)
    lent[1:].mark_read()  # as a tape that verifies does: it walks through what views are of
    assert lent._is_read


@each
def test_a_second_stream_is_waited_for_too(gate, make):
    first, second = streams()
    memory = Memory()
    one = sk.handoff(make(memory), first, after=sk.default_stream())
    two = sk.handoff(one, second, after=first)
    gate.hold(first.handle)
    del one
    del two
    second.sync()
    stays_until(gate, lambda: (first.sync(), gc.collect()), memory.freed.is_set)


@each
def test_what_is_handed_to_and_fro_does_not_hold_all_that_went_before(make):
    first, second = streams()
    array = make(Memory())
    seen = []
    for _ in range(10):
        array = sk.handoff(array, second, after=first)
        array = sk.handoff(array, first, after=second)
        seen.append(weakref.ref(array))
    first.sync()
    second.sync()
    gc.collect()
    assert [ref for ref in seen[:-1] if ref() is not None] == []


@each
def test_the_stream_object_may_go_first(gate, make):
    source, target = streams()
    memory, raw = Memory(), target.handle
    lent = sk.handoff(make(memory), target, after=source)
    gate.hold(raw)
    target.close()
    del target
    gc.collect()
    del lent
    stays_until(gate, lambda: (check(driver.cuCtxSynchronize()), gc.collect()), memory.freed.is_set)


@each
def test_it_ends_in_a_thread_without_a_context(gate, make):
    source, target = streams()
    memory = Memory()
    left = [sk.handoff(make(memory), target, after=source)]
    gate.hold(target.handle)
    within(left.clear)
    stays_until(gate, target.sync, memory.freed.is_set)


# -- memory that is counted, not lent ----------------------------------------------------------


class Counted:
    """Memory with a number of holders, as a torch storage has."""

    def __init__(self):
        self.holders = 1

    def is_held(self):
        return self.holders > 0


def test_counted_memory_lives_while_held_and_until_the_work_has_run(gate):
    target, memory = sk.new_stream(nonblocking=True), Counted()
    seen = weakref.ref(memory)
    keepalive.keep_while_held(memory, Counted.is_held, target._queue)
    target.sync()
    gc.collect()
    assert seen() is not None
    gate.hold(target.handle)  # while it is held
    memory.holders = 0
    del memory
    stays_until(gate, target.sync, lambda: seen() is None)


def test_counted_memory_that_is_handed_over_again_and_again_is_listed_once():
    target, memory = sk.new_stream(nonblocking=True), Counted()
    for _ in range(10):
        keepalive.keep_while_held(memory, Counted.is_held, target._queue)
    assert len(keepalive._held) == 1
    memory.holders = 0
    gc.collect()
    assert not keepalive._held


def test_a_stream_a_request_leaves_no_owner():
    device, owners, memories = need("cuda").Device(0), [], []
    device.set_current()
    for _ in range(50):
        owner, memory = device.create_stream(), Counted()
        owners.append(weakref.ref(owner))
        memories.append(weakref.ref(memory))
        keepalive.keep_while_held(memory, Counted.is_held, sk.wrap(owner)._live())
        gc.collect()
        assert owners[-1]() is not None
        memory.holders = 0
        del owner, memory
        sk.new_stream().sync()  # the next request
    check(driver.cuCtxSynchronize())
    gc.collect()
    assert [ref for ref in owners + memories if ref() is not None] == []


# -- where it ends ----------------------------------------------------------------------------


@each
def test_in_a_capture_it_is_refused(make):
    raw, array, other = make_stream(), make(Memory()), sk.new_stream(nonblocking=True)
    captured = sk.from_handle(raw)
    check(driver.cuStreamBeginCapture(raw, THREAD_LOCAL))
    for first, second in [(captured, other), (other, captured)]:
        with pytest.raises(sk.errors.CaptureError, match="as long as the graph"):
            sk.handoff(array, first, after=second)
    assert sk.handoff(array, captured, after=captured) is array
    check(driver.cuGraphDestroy(check(driver.cuStreamEndCapture(raw))))
    destroy_stream(raw)


@each
def test_what_ends_while_its_stream_captures_is_kept_until_that_is_over(make):
    raw = make_stream()
    memory = Memory()
    lent = sk.handoff(make(memory), sk.from_handle(raw), after=sk.new_stream())
    check(driver.cuStreamBeginCapture(raw, THREAD_LOCAL))
    del lent
    gc.collect()
    assert int(check(driver.cuStreamIsCapturing(raw))) == 1
    assert not memory.freed.is_set()
    check(driver.cuGraphDestroy(check(driver.cuStreamEndCapture(raw))))
    sk.new_stream()
    sync(raw)
    gc.collect()
    assert memory.freed.is_set()
    assert not keepalive._waiting
    destroy_stream(raw)


@each
def test_no_call_tries_more_than_some_of_many_that_wait(make):
    raw, other = make_stream(), sk.new_stream()
    target, memories = sk.from_handle(raw), [Memory() for _ in range(150)]
    lent = [sk.handoff(make(memory), target, after=other) for memory in memories]
    check(driver.cuStreamBeginCapture(raw, THREAD_LOCAL))
    lent.clear()
    gc.collect()
    emulator.reset_calls()
    sk.new_stream()
    assert 0 < emulator.all_calls()["cuStreamIsCapturing"] <= 70
    check(driver.cuGraphDestroy(check(driver.cuStreamEndCapture(raw))))
    for _ in range(4):
        sk.new_stream()
    sync(raw)
    gc.collect()
    assert all(memory.freed.is_set() for memory in memories)
    assert not keepalive._waiting
    destroy_stream(raw)


class Raw:
    """A stream of somebody's who destroys it at ``close``, and has no handle any more."""

    def __init__(self, *, nonblocking):
        self.handle = make_stream(nonblocking=nonblocking)

    def __cuda_stream__(self):
        return 0, self.handle

    def close(self):
        destroy_stream(self.handle)
        self.handle = 0


@each
def test_what_ends_on_a_blocking_stream_that_is_destroyed_waits_on_the_legacy_stream(make, gate):
    owner, memory = Raw(nonblocking=False), Memory()
    lent = sk.handoff(make(memory), owner, after=sk.new_stream())
    gate.hold(owner.handle)
    owner.close()
    del lent
    gc.collect()
    assert not keepalive._waiting
    stays_until(gate, lambda: (check(driver.cuCtxSynchronize()), gc.collect()), memory.freed.is_set)


@each
@pytest.mark.parametrize("borrowed", [True, False])
def test_a_handle_that_cuda_core_has_let_go_is_not_used_after_its_close(make, borrowed):
    """The fixture "handles" sees who uses it."""
    device, memory = need("cuda").Device(0), Memory()
    device.set_current()
    raw = make_stream() if borrowed else None
    native = need("cuda").Stream.from_handle(raw) if borrowed else device.create_stream()
    lent = [sk.handoff(make(memory), native, after=sk.new_stream())]
    native.close()
    if borrowed:
        destroy_stream(raw)
    keepalive._warn_of_lost.cache_clear()
    with pytest.warns(RuntimeWarning, match="keeps the array for ever"):
        lent.clear()
    gc.collect()
    assert not memory.freed.is_set()
    keepalive._lost.clear()


@each
@pytest.mark.parametrize("elder", [False, True])
def test_what_ends_on_a_nonblocking_stream_that_is_destroyed_is_kept_and_told_once(make, elder):
    keepalive._warn_of_lost.cache_clear()
    memories, streams = [Memory(), Memory()], []
    for memory in memories:
        owner = Raw(nonblocking=True)
        target = sk.wrap(owner)
        if elder:
            target = sk.from_handle(target.handle, owner=sk.Stream)  # an owner that is no stream
        lent = sk.handoff(make(memory), target, after=sk.new_stream())
        owner.close()
        expected = pytest.warns(RuntimeWarning, match="keeps the array for ever")
        with contextlib.nullcontext() if streams else expected:
            del lent
            gc.collect()
        streams.append(owner)
    sk.new_stream().sync()
    assert not any(memory.freed.is_set() for memory in memories)
    assert not keepalive._waiting, "it would be asked at each call"
    keepalive._lost.clear()


@each
def test_what_ends_in_a_thread_that_is_over_waits_on_the_legacy_stream(make):
    memory, held = Memory(), []

    def use():
        mine = sk.default_stream(0, per_thread=True)
        held.append(sk.handoff(make(memory), mine, after=sk.new_stream()))

    within(use)
    held.clear()
    gc.collect()
    assert not keepalive._waiting
    sk.default_stream(0).sync()
    assert memory.freed.is_set()


@each
def test_while_the_owner_has_not_it_is_given_back(make):
    device = need("cuda").Device(0)
    device.set_current()
    owner = device.create_stream()
    memory = Memory()
    lent = sk.handoff(make(memory), sk.wrap(owner), after=sk.new_stream())
    del lent
    gc.collect()
    sync(owner.handle)
    gc.collect()
    assert memory.freed.is_set()


@each
def test_an_owner_that_is_no_stream_is_not_asked(make):
    raw, memory = make_stream(), Memory()
    lent = sk.handoff(make(memory), sk.from_handle(raw, owner=memory), after=sk.new_stream())
    del lent
    sync(raw)
    gc.collect()
    assert memory.freed.is_set()
    destroy_stream(raw)


@each
def test_what_ends_in_another_thread_waits_for_that_of_its_per_thread_stream(make, gate):
    memory = Memory()
    stream = sk.default_stream(per_thread=True)
    left = [sk.handoff(make(memory), stream, after=sk.new_stream())]
    gate.hold(stream.handle)

    def clear():
        left.clear()
        gc.collect()

    within(clear)
    sk.new_stream()
    stays_until(gate, lambda: (stream.sync(), gc.collect()), memory.freed.is_set)


@each
def test_what_the_driver_refuses_at_the_end_is_tried_again(make):
    source, target = streams()
    memory = Memory()
    lent = sk.handoff(make(memory), target, after=source)
    emulator.fail("cuStreamIsCapturing", 700)
    del lent
    assert not memory.freed.is_set()
    target.sync()
    sk.new_stream()
    sync(target.handle)
    gc.collect()
    assert memory.freed.is_set()


@pytest.mark.parametrize("ends", [True, False])
def test_an_interrupt_frees_nothing_too_early_and_keeps_nothing(monkeypatch, ends):
    """Of the handing over, or of what follows the end of what was handed over."""
    monkeypatch.setattr(sys, "unraisablehook", lambda _: None)  # pytest's keeps the frames
    source, target = streams()
    sk.handoff(numba_array(Memory()), target, after=source)
    nth, came = 0, True
    while came:
        nth += 1
        gate, memory, lent = Gate(), Memory(), []
        array = [numba_array(memory)]

        def hand(array=array, lent=lent):
            lent.append(sk.handoff(array[0], target, after=source))

        came = interrupted(hand, 0 if ends else nth)
        handed = bool(lent)
        array.clear()
        gate.hold(target.handle)
        came = interrupted(lent.clear, nth if ends else 0) or came
        assert not (handed and memory.freed.is_set()), f"at the call {nth}"
        gate.open()
        target.sync()
        sk.new_stream()
        target.sync()
        assert memory.freed.is_set(), f"at the call {nth}"
        gate.free()
    assert nth > 20


# up to four seconds each: a leak of one object in thousands of cycles is seen only after thousands
@each
@pytest.mark.timeout(300)
def test_cycles_leave_nothing(make):
    first, second = streams()
    memory = Memory()
    whole = make(memory)

    def cycle(count):
        for _ in range(count):
            lent = sk.handoff(whole, second, after=first)
            lent = sk.handoff(lent, first, after=second)
        del lent
        check(driver.cuCtxSynchronize())  # a sync that waits has an event of its own
        first.sync()
        second.sync()

    def alive():
        gc.collect()
        drop_spare_events()
        return {kind: emulator.live(kind) for kind in ("streams", "events")}

    cycle(500)
    before, objects = alive(), len(gc.get_objects())
    cycle(int(os.environ.get("STREAMKIT_LEAK_CYCLES", "100000")) // 4)  # each of four cases
    assert alive() == before
    assert len(gc.get_objects()) - objects < 50
    assert not memory.freed.is_set()
    assert not keepalive._busy
    assert not keepalive._waiting


@each
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_child_that_drops_a_lent_array_says_nothing_and_calls_nothing(make, capfd):
    source, target = streams()
    memory = Memory()
    lent = [sk.handoff(make(memory), target, after=source)]
    gc.collect()  # what others have left, in which the child is not asked
    capfd.readouterr()
    child = os.fork()
    if not child:
        code, said = 1, []
        with contextlib.suppress(BaseException):
            sys.unraisablehook = said.append
            emulator.reset_calls()
            lent.clear()
            gc.collect()
            code = 2 * memory.freed.is_set() + 4 * bool(emulator.all_calls()) + 8 * bool(said)
        os._exit(code)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    said = capfd.readouterr().err
    if make is warp_array and version_of("warp-lang") < (1, 15):
        assert not code & 3  # at the end of any array it makes a context current, or complains
    else:
        assert (code, said) == (0, "")
    lent.clear()
    target.sync()
    gc.collect()
    assert memory.freed.is_set()


# -- DLPack's integer -------------------------------------------------------------------------


def test_the_integer_of_dlpack():
    stream = sk.new_stream()
    assert stream.dlpack_stream == stream.handle
    assert type(stream.dlpack_stream) is int
    assert sk.default_stream().dlpack_stream == 1
    assert sk.from_handle(0).dlpack_stream == 1
    assert sk.default_stream(per_thread=True).dlpack_stream == 2
    stream.close()
    with pytest.raises(sk.errors.StreamClosedError):
        stream.dlpack_stream  # noqa: B018 - the question is what is tested


def test_who_takes_the_integer_of_dlpack_may_remember_it():
    stream = sk.new_stream(1, nonblocking=True, priority=-4)  # where no other test's are parked
    number = stream.id
    assert stream.dlpack_stream
    stream.close()
    del stream
    gc.collect()
    assert sk.new_stream(1, nonblocking=True, priority=-4).id == number
