"""``assert_follows``: each planted fault is named, with CUPTI and without it; right ones pass."""

from __future__ import annotations

import ctypes
import struct
import time

import pytest

import streamkit as sk
from streamkit._queues import identity  # no stream of a check may stay
from streamkit.diagnostics.recording import (  # CUPTI is played by code that is no user's
    places,
    recorder,
)
from streamkit.testing import assert_follows
from support.cupti import NUMBER, Cupti, words
from support.emulated.captures import capturing, fill, nothing_left
from support.gpu.raw import check, driver, make_stream, sync

__all__ = ["nothing_left"]  # the fixture
pytestmark = pytest.mark.usefixtures("nothing_left")


class Calls(Cupti):
    """Plays what a library asks of the driver."""

    def __init__(self):
        super().__init__()
        self.functions = {}

    def ran(self, name, handle):
        """It launched a kernel."""
        function = self.functions.setdefault(name, len(self.functions) + 1)
        fields = struct.pack("<Q32xQQ", function, handle, 0)
        self.call(NUMBER["cuLaunchKernel"], fields, symbol=name.encode())

    def synchronised(self):
        """It waited for a context."""
        self.call(NUMBER["cuCtxSynchronize"], b"")


@pytest.fixture(params=[True, False], ids=["CUPTI", "no CUPTI"])
def cupti(request, monkeypatch):
    """CUPTI as it is played, or None where CUPTI is not."""
    played = Calls() if request.param else None

    def find():
        if played is None:
            raise recorder.NoCallbacksError("there is no libcupti")
        return played

    monkeypatch.setattr(recorder, "_find", find)
    yield played
    assert played is None or played.callback is None


@pytest.fixture
def work(cupti, cells):
    """Give a stream a kernel; for CUPTI it is a call unless the stream captures."""
    cell = cells(0)

    def work(stream, name="my_kernel"):
        handle = int(stream)
        fill(cell, 2, handle)
        if cupti is not None and not capturing(handle):
            cupti.ran(name, handle)

    return work


@pytest.fixture
def side():
    return sk.new_stream(nonblocking=True)


def failure(fn, *args, **how):
    with pytest.raises(AssertionError) as caught:
        assert_follows(fn, *args, **how)
    return str(caught.value)


def test_all_work_has_ended_before_each_run(work):
    """The caller's and the last run's, whatever its stream: it may use the same arguments."""
    raw, log = make_stream(), []

    @ctypes.CFUNCTYPE(None, ctypes.c_void_p)
    def end(_):
        time.sleep(0.05)
        log.append("end")

    function = driver.CUhostFn(ctypes.cast(end, ctypes.c_void_p).value)

    def fn(*, stream):
        work(stream)
        log.append("run")
        if log == ["end", "run"]:
            check(driver.cuLaunchHostFunc(raw, function, 0))

    check(driver.cuLaunchHostFunc(raw, function, 0))
    assert_follows(fn)
    assert log == ["end", "run", "end", "run"]


def test_work_on_the_stream_passes_however_it_is_given(work):
    assert_follows(lambda *, stream: work(stream))
    assert_follows(lambda: work(sk.current_stream("warp")))
    assert_follows(lambda: work(sk.current_stream("warp")), library="warp")
    assert_follows(lambda give: give(sk.current_stream("warp")), work)


def test_with_a_library_no_stream_is_passed(work):
    def fn(stream=None):
        assert stream is None
        work(sk.current_stream("warp"))

    assert_follows(fn, library="warp")


def test_a_function_that_tells_no_parameters_is_given_the_current_stream(work):
    class Callable:
        __signature__ = "none"

        def __call__(self):
            work(sk.current_stream("warp"))

    assert_follows(Callable())


def test_a_side_stream_that_is_joined_passes(work, side):
    def fn(*, stream):
        side.wait(stream)
        work(side)
        work(stream)
        stream.wait(side)

    assert_follows(fn)


def test_a_wait_for_the_callers_current_stream_is_no_work_there(work):
    def fn(*, stream):
        stream.wait(sk.current_stream("warp"))
        work(stream)

    assert_follows(fn)


def test_a_copy_of_pageable_memory_is_named_with_its_line_and_the_remedy(
    work, cupti, cells, monkeypatch
):
    if cupti is None:
        return  # nothing else tells that this copy waits
    monkeypatch.setitem(places._is_users, "support.cupti", False)
    pageable, cell = ctypes.c_uint32(), cells(0)

    def fn(*, stream):
        work(stream)
        if not capturing(stream.handle):
            fields = words(ctypes.addressof(pageable), cell.pointer, 4, stream.handle)
            cupti.call(NUMBER["cuMemcpyDtoHAsync"], fields)

    message = failure(fn)
    assert "the host waits for the GPU:" in message
    assert "copy device to host, 4 bytes on stream for " in message
    assert f", {__file__}:" in message
    assert "pinned memory" in message


def test_a_kernel_on_the_default_stream_is_named(work, cupti):
    def fn(*, stream):
        work(stream)
        work(1)

    message = failure(fn)
    assert "fn does not follow the stream that it was passed" in message
    if cupti is None:
        assert "it works on the default stream" in message
        assert f"CAPTURE_IMPLICIT: 906>, at {__file__}:" in message
    else:
        assert "this ran on the default stream:\n  my_kernel" in message


def test_a_host_synchronisation_is_named(work, cupti):
    def fn(*, stream):
        work(stream)
        if cupti is not None:
            cupti.synchronised()
        sync(stream.handle)

    message = failure(fn)
    if cupti is None:
        assert "it waits for the GPU, or cannot be captured" in message
        assert f"CAPTURE_UNSUPPORTED: 900>, at {__file__}:" in message
    else:
        assert "the host waits for the GPU:\n  cuCtxSynchronize on a whole device" in message


def test_a_kernel_on_a_private_stream_is_named(work, cupti):
    raw = make_stream()

    def fn(*, stream):
        work(stream)
        work(raw, "astray")

    if cupti is None:
        assert_follows(fn)  # what a capture cannot see, as the docstring says
    else:
        assert "this did not wait:\n  astray [library unknown] on stream " in failure(fn)


def test_a_function_that_works_on_a_private_stream_alone_fails_without_cupti_too(work, cupti):
    raw = make_stream()
    message = failure(lambda *, stream: work(raw, "astray"))
    assert ("there is no GPU work on it" if cupti is None else "\n  astray") in message


@pytest.mark.parametrize("joins", [True, False])
def test_a_kernel_on_the_current_stream_beside_the_one_passed_is_named(work, joins):
    def fn(*, stream):
        other = sk.current_stream("warp")
        other.wait(stream)
        work(stream)
        work(other)
        if joins:
            stream.wait(other)

    assert "a memset was given to another current stream" in failure(fn)


def test_no_work_fails(cupti):
    del cupti
    assert "there is no GPU work" in failure(lambda: None)


def test_a_side_stream_that_is_not_joined_is_named(work, side):
    def fn(*, stream):
        work(stream)
        side.wait(stream)
        work(side)

    assert "a memset goes on when the stream is done" in failure(fn)


def test_what_cannot_be_captured_fails_with_what_ran_elsewhere(work, cupti, side):
    def fn(*, stream):
        side.wait(stream)
        work(side, "aside")
        stream.wait(side)
        check(driver.cuMemFree(check(driver.cuMemAlloc(4))))

    message = failure(fn)
    assert "CAPTURE_UNSUPPORTED" in message
    assert ("aside" in message) is (cupti is not None)


def test_what_cannot_be_captured_passes_if_all_ran_on_the_stream(work, cupti):
    def fn(*, stream):
        work(stream)
        check(driver.cuMemFree(check(driver.cuMemAlloc(4))))

    if cupti is None:
        assert "or cannot be captured" in failure(fn)
    else:
        assert_follows(fn)


@pytest.mark.parametrize("kind", [ValueError, KeyboardInterrupt])
@pytest.mark.parametrize("call", [1, 2, 3])
def test_an_error_of_the_function_passes_and_nothing_stays_held(work, side, cupti, kind, call):
    calls = []

    def fn(*, stream):
        calls.append(stream)
        side.wait(stream)
        work(side)
        stream.wait(side)
        if len(calls) == call:
            raise kind("of the function")

    last = 3 if cupti else 2
    if call > last:
        assert_follows(fn)
    else:
        with pytest.raises(kind, match="of the function"):
            assert_follows(fn)
    assert len(calls) == min(call, last)
    assert calls[0].closed
    owned = [queue for queue in identity.living() if queue.is_owned]  # a test's own may be dead
    assert len(owned) >= 1  # that of ``side``
    assert not any(capturing(queue.handle) for queue in owned)


def test_where_another_tool_has_cupti_the_capture_decides(work, cupti):
    if cupti is not None:
        cupti.code = 39
    assert_follows(lambda *, stream: work(stream))
    message = failure(lambda *, stream: (work(stream), work(1)))
    assert "it works on the default stream" in message
