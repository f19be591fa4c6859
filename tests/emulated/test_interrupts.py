"""An interrupt at any moment of an operation leaves no lock held, and other threads go on.

It is an exception that the interpreter raises at the next point where it looks for signals, so it
comes where a Ctrl-C can come, which is not between any two lines.
"""

from __future__ import annotations

import sys
import threading

import pytest

import streamkit as sk
from support.emulated.interrupts import held, interrupt_everywhere, locks
from support.gpu.raw import check, destroy_stream, driver, make_stream
from support.libraries import need
from support.queues import LONG, eventually, pending, within

# -- controls ---------------------------------------------------------------------------------


def by_calls(lock):
    lock.acquire()
    try:
        pass
    finally:
        lock.release()


def by_with(lock):
    with lock:
        pass


@pytest.mark.parametrize(("take", "is_safe"), [(by_with, True), (by_calls, False)])
def test_control_the_interrupt_comes_between_acquire_and_try(take, is_safe):
    lock = threading.RLock()
    left = [held({nth: lock}) for nth in interrupt_everywhere(lambda: take(lock), __file__)]
    assert left
    assert (not any(left)) is is_safe


# what interrupts the end of an object is printed, for nobody can be told
unraisable = pytest.mark.filterwarnings(
    "ignore:Exception ignored in:pytest.PytestUnraisableExceptionWarning"
)


# -- the operations ---------------------------------------------------------------------------


def a_scope(streams):
    with streams[0]:
        pass


def nested_scopes(streams):
    with streams[0], streams[0], streams[1], streams[0]:
        pass


def an_ordered_scope(streams):
    with sk.use(streams[0], ordered=True):
        pass


def a_stream_never_seen(streams):
    check(driver.cuCtxSetCurrent(streams[0].context))
    raw = make_stream()
    try:
        sk.from_handle(raw).record()
    finally:
        destroy_stream(raw)


def a_first_conversion(streams):
    sk.new_stream().to("warp")


def a_function_to_call(streams):
    streams[0].then(int)


def a_body(stream):
    with stream:
        pass


def bodies(stream):
    with stream, stream:
        pass


def a_submit(stream):
    stream.submit(int)


def a_host_sync(stream):
    stream.submit(int)
    stream.sync()


def a_recorded_event(stream):
    stream.record().sync()


def a_host_wait(stream):
    other = sk.new_stream("cpu")
    other.submit(int)
    stream.wait(other)


def a_function_after_it(stream):
    stream.then(int).result(LONG)


@unraisable
@pytest.mark.parametrize(
    "operation",
    [a_body, bodies, a_submit, a_host_sync, a_recorded_event, a_host_wait, a_function_after_it],
)
def test_an_interrupt_leaves_a_host_stream_whole(operation):
    """What was queued runs, what follows it too, and nothing holds the queue."""
    stream = sk.new_stream("cpu")
    within(lambda: operation(stream))
    nth, seen = 0, []
    for nth in interrupt_everywhere(lambda: operation(stream)):
        assert eventually(lambda: pending(stream) == 0), f"after an interrupt at the call {nth}"
        stream.submit(seen.append, nth)
        stream.sync(timeout=LONG)
        assert stream.then(int).result(LONG) == 0, f"after an interrupt at the call {nth}"
    assert nth > 4
    assert seen == list(range(1, nth + 1))


@unraisable
@pytest.mark.parametrize(
    "operation",
    [
        a_scope,
        nested_scopes,
        an_ordered_scope,
        a_stream_never_seen,
        a_first_conversion,
        a_function_to_call,
    ],
)
def test_an_interrupt_leaves_no_lock_and_other_threads_go_on(operation):
    warp = need("warp")
    warp.config.quiet = True
    warp.init()
    own, device = [warp.get_stream(f"cuda:{index}") for index in range(2)], warp.get_device()
    streams, other = (sk.new_stream(0), sk.new_stream(1)), sk.new_stream()
    a_scope([other])
    within(lambda: operation(streams))  # what is done once has been done
    found = locks()
    from streamkit.backends._warp import current_stream  # not above: it imports Warp

    nth = 0
    for nth in interrupt_everywhere(lambda: operation(streams)):
        assert not held(found), f"after an interrupt at the call {nth}"
        assert not current_stream._lock, f"after an interrupt at the call {nth}"
        within(lambda: a_scope([other]))
        if operation is a_function_to_call:
            assert other.then(int).result(LONG) == 0, f"after an interrupt at the call {nth}"
        # only a block that is interrupted is promised that the libraries are put back
        for stream in own:
            warp.set_stream(stream, stream.device)
        warp.set_device(device)
    assert nth > (4 if sys.version_info >= (3, 13) else 40)  # 3.13 does not show all of them
    assert len(found) > 4
