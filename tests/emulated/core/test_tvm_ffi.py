"""Scopes over real tvm-ffi: where its functions launch, what comes back, and what stays away."""

from __future__ import annotations

import contextlib
import threading

import pytest

import emulator
import streamkit as sk
from streamkit.diagnostics.doctor import doctor  # what it finds by library
from support.gpu.raw import Peek, busy, check, driver, held, sync
from support.libraries import need
from support.queues import within

pytestmark = [pytest.mark.usefixtures("handles"), pytest.mark.versions]


@pytest.fixture
def tvm_ffi():
    """tvm-ffi, whose environment streams were never set, and are as before after the test."""
    tvm_ffi = need("tvm_ffi")
    devices = [tvm_ffi.device("cuda", index) for index in range(2)]
    assert [tvm_ffi.get_raw_stream(device) for device in devices] == [0, 0]
    yield tvm_ffi
    assert [tvm_ffi.get_raw_stream(device) for device in devices] == [0, 0]


@pytest.fixture(autouse=True)
def one_queue():
    """Leave them where they are."""


@pytest.fixture
def handle(tvm_ffi):
    """Tell with which handle a function of tvm-ffi launches now on a device."""
    devices = [tvm_ffi.device("cuda", index) for index in range(2)]
    tell = tvm_ffi.convert(tvm_ffi.get_raw_stream)
    return lambda device=0: tell(devices[device])


@pytest.fixture
def put(tvm_ffi):
    """A function of tvm-ffi, which writes 1.0 where an array is, on the stream that it finds."""

    def put(array, pointer):  # which 0.1.6 does not tell
        stream = tvm_ffi.get_raw_stream(array.device)
        check(driver.cuMemsetD32Async(pointer, 0x3F800000, 1, stream))

    return tvm_ffi.convert(put)


@pytest.mark.parametrize("device", [0, 1])
@pytest.mark.parametrize("nonblocking", [False, True])
def test_its_functions_launch_on_the_scopes_stream(handle, device, nonblocking):
    stream = sk.new_stream(device, nonblocking=nonblocking)
    with stream:
        assert handle(device) == stream.handle
        assert handle(1 - device) == 0
        assert sk.current_stream("tvm_ffi") == stream == sk.current_stream()
        assert sk.current_streams()["tvm_ffi"] == stream
        sk.assert_one_queue()


def leave_by_exception(stream, tvm_ffi):
    with pytest.raises(KeyError), sk.use(stream):
        raise KeyError


def leave_by_generator(stream, tvm_ffi):
    def body():
        with sk.use(stream):
            yield

    generator = body()
    next(generator)
    generator.close()


def leave_inner_first(stream, tvm_ffi):
    with stream, sk.new_stream(1), stream:
        assert sk.current_stream("tvm_ffi") == stream


def leave_after_a_change(stream, tvm_ffi):
    device = tvm_ffi.device("cuda", stream.device_id)
    with stream:
        tvm_ffi.use_raw_stream(device, 1).__enter__()  # set, and never put back
        with stream:
            assert tvm_ffi.get_raw_stream(device) == stream.handle
        assert tvm_ffi.get_raw_stream(device) == 1


@pytest.mark.parametrize(
    "leave", [leave_by_exception, leave_by_generator, leave_inner_first, leave_after_a_change]
)
@pytest.mark.parametrize("start", ["never set", "legacy", "per thread", "a stream"])
@pytest.mark.parametrize("device", [0, 1])
def test_what_was_there_comes_back_exactly(tvm_ffi, handle, leave, start, device):
    own = sk.new_stream(device)
    before = {"never set": 0, "legacy": 1, "per thread": 2, "a stream": own.handle}[start]
    with tvm_ffi.use_raw_stream(tvm_ffi.device("cuda", device), before):
        leave(sk.new_stream(device), tvm_ffi)
        assert handle(device) == before


def test_zero_is_the_legacy_default_stream(tvm_ffi):
    for device in range(2):
        assert sk.current_stream("tvm_ffi", device=device) == sk.default_stream(device)
    with sk.default_stream():
        assert sk.current_stream("tvm_ffi") == sk.default_stream()


@pytest.mark.parametrize("inside", [True, False])
def test_a_function_given_arrays_of_warp_launches_on_the_scopes_queue(
    put, warp, gate, cells, inside
):
    """Warp's arrays bring no stream: outside of a scope the function takes stream 0."""
    stream = sk.new_stream(nonblocking=True)  # which work on stream 0 does not wait for
    cell, peek = cells(0), Peek(0)
    array = warp.array(ptr=cell.pointer, shape=1, dtype=float, device="cuda:0")
    gate.hold(stream.handle)
    with stream if inside else contextlib.nullcontext():
        put(array, cell.pointer)
    if not inside:  # there stream 0 waits for Warp's current one, as Warp's ``__dlpack__`` has it
        sync(1)
    assert held(stream.handle)
    assert peek(cell) == (0 if inside else 1)
    gate.open()
    stream.sync()
    assert peek(cell) == 1
    peek.free()


def test_each_thread_has_its_own(tvm_ffi, handle):
    one, two = sk.new_stream(), sk.new_stream()
    meet, found = threading.Barrier(2, timeout=60), []

    def run():
        found.append(handle())
        with two:
            found.append(handle())
            meet.wait()
            meet.wait()
        found.append(handle())

    thread = threading.Thread(target=run)
    with sk.use(one, libraries=["tvm_ffi"]):
        thread.start()
        meet.wait()
        assert handle() == one.handle
        meet.wait()
        thread.join()
        assert handle() == one.handle
    assert found == [0, two.handle, 0]


def test_an_object_of_the_per_thread_stream_is_each_threads_own(tvm_ffi):
    theirs = tvm_ffi.use_raw_stream(tvm_ffi.device("cuda", 0), 2)
    held = sk.wrap(theirs)
    held.sync()
    within(lambda: sk.wrap(theirs).sync())
    held.sync()


def test_a_scope_moves_the_named_libraries_only(tvm_ffi, handle, warp):
    stream = sk.new_stream()
    with sk.use(stream, libraries=["warp"]):
        assert handle() == 0
        with pytest.raises(sk.errors.OneQueueError, match="tvm_ffi on"):
            sk.assert_one_queue()
    with sk.use(stream, libraries=["tvm-ffi"]):
        assert handle() == stream.handle
        assert sk.current_stream("warp") != stream


def test_others_follow_it_and_it_follows_others(tvm_ffi, handle, warp):
    stream = sk.new_stream()
    with tvm_ffi.use_raw_stream(tvm_ffi.device("cuda", 0), stream.handle):
        with sk.follow("tvm_ffi") as followed:
            assert followed == stream == sk.current_stream("warp")
            assert handle() == stream.handle
        assert sk.current_stream("warp") != stream
    with warp.ScopedStream(stream.to("warp"), sync_enter=False), sk.follow("warp"):
        assert handle() == stream.handle


def test_to_follow_it_where_it_is_enters_nothing(tvm_ffi):
    stream, follow = sk.new_stream(), sk.follow("tvm_ffi", libraries=["tvm_ffi"])
    with tvm_ffi.use_raw_stream(tvm_ffi.device("cuda", 0), stream.handle):
        with follow:
            pass
        emulator.reset_calls()
        for _ in range(2):
            with follow as followed:
                assert followed == stream
        assert not {name for name in emulator.all_calls() if "SetCurrent" in name}


def test_a_scope_asks_the_driver_nothing_for_it(tvm_ffi):
    scope = sk.use(sk.new_stream(), libraries=["tvm_ffi"])
    with scope:
        pass
    emulator.reset_calls()
    with scope:
        pass
    assert set(emulator.all_calls()) <= {"cuCtxGetCurrent", "cuCtxSetCurrent"}


@pytest.mark.parametrize("ordered", [True, False])
def test_an_ordered_scope_waits_for_its_stream(tvm_ffi, gate, ordered):
    before, stream = sk.new_stream(nonblocking=True), sk.new_stream(nonblocking=True)
    with tvm_ffi.use_raw_stream(tvm_ffi.device("cuda", 0), before.handle):
        gate.hold(before.handle)
        with sk.use(stream, libraries=["tvm_ffi"], ordered=ordered):
            assert busy(stream.handle) is ordered
        gate.open()
        stream.sync()


def test_a_closed_stream_comes_to_no_function(tvm_ffi, handle):
    stream = sk.new_stream()
    with stream:
        pass
    view = stream.to("tvm_ffi")
    number = stream.handle
    stream.close()
    with view:  # it keeps its queue
        assert handle() == number
    del view
    with pytest.raises(sk.errors.StreamClosedError), stream:
        pass


def test_the_doctor_finds_one_that_was_left_redirected(tvm_ffi):
    stream = sk.new_stream()
    with tvm_ffi.use_raw_stream(tvm_ffi.device("cuda", 0), stream.handle):
        found = [one for one in doctor.doctor().findings if one.library == "tvm_ffi"]
    assert [one.code for one in found] == ["left-redirected"]
    (row,) = [row for row in doctor.doctor().libraries if row.name == "tvm_ffi"]
    assert row.current.kind == "legacy default"
    assert row.loaded
