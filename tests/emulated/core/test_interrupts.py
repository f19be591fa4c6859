"""An interrupt at any moment of a scope leaves no lock held, and other threads go on.

It is an exception that the interpreter raises at the next point where it looks for signals, so it
comes where a Ctrl-C can come, which is not between any two lines.
"""

from __future__ import annotations

import contextlib
import threading

import pytest

import streamkit as sk
from streamkit._queues import open_scopes  # what is open in the thread that was interrupted
from support.gpu.raw import check, current_context, driver
from support.interrupts import count, do_not_count, held, interrupt_everywhere, locks
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


# two seconds for the unsafe one: so long a lock is asked for that no thread will free
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


def a_body(stream):
    with stream:
        pass


def bodies(stream):
    with stream, stream:
        pass


@unraisable
@pytest.mark.parametrize("operation", [a_body, bodies])
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
@pytest.mark.parametrize("operation", [a_scope, nested_scopes, an_ordered_scope])
def test_an_interrupt_leaves_no_lock_and_other_threads_go_on(operation):
    warp = need("warp")
    warp.config.log_level = warp.LOG_WARNING
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
        # at the first call of leaving nothing is put back: see below
        for stream in own:
            warp.set_stream(stream, stream.device)
        warp.set_device(device)
    assert nth > 30
    assert len(found) > 4


# -- a scope: nothing is left of one that is not entered, and leaving is done to its end -----------


def one_scope(streams):
    return streams[0]


def scope_by_use(streams):
    return sk.use(streams[0])


def ordered_scope(streams):
    return sk.use(streams[0], ordered=True)


def scope_of_one_library(streams):
    return sk.use(streams[0], libraries=["warp"])


def scope_of_two_libraries(streams):
    return sk.use(streams[0], libraries=["warp", "tvm_ffi"], ordered=True)


def scope_of_a_foreign_stream(streams):
    need("numba")  # numba's import warns with some versions of NumPy
    return sk.use(streams[0].to("numba"))


SCOPES = pytest.mark.parametrize(
    "make",
    [
        one_scope,
        scope_by_use,
        ordered_scope,
        scope_of_one_library,
        scope_of_two_libraries,
        scope_of_a_foreign_stream,
    ],
)
OUTSIDE = pytest.mark.parametrize(
    "outside", ["nothing", "the same stream", "another", "no context"]
)


class Watched:
    """A scope that is interrupted while it is entered, or while it is left, in a thread."""

    def __init__(self, make, outside):
        self._warp = need("warp")
        self._warp.config.log_level = self._warp.LOG_WARNING
        self._warp.init()
        self._tvm_ffi = need("tvm_ffi")
        self._streams = sk.new_stream(1), sk.new_stream(0)
        self._make, self._outside = make, outside
        self.home = int(check(driver.cuDevicePrimaryCtxRetain(0)))
        self.left = None  # what was seen before and after
        self.was_entered = False
        self._run(lambda scope: scope.__enter__() and scope.__exit__(None, None, None))

    def entering(self):
        self._run(self._enter)

    def leaving(self):
        self._run(self._leave)

    def _enter(self, scope):
        with scope:
            do_not_count()
            self.was_entered = True

    def _leave(self, scope):
        do_not_count()
        scope.__enter__()
        count()
        scope.__exit__(None, None, None)

    def _run(self, interrupted):
        do_not_count()
        check(driver.cuCtxSetCurrent(0 if self._outside == "no context" else self.home))
        scope, self.was_entered = self._make(self._streams), False
        outer = {"the same stream": self._streams[0], "another": self._streams[1]}
        with outer.get(self._outside, contextlib.nullcontext()):
            before = self._state()
            try:
                count()
                interrupted(scope)
            finally:
                do_not_count()
                self.left = before, self._state()
                if open_scopes.innermost() and self.left[1]["scopes"] > before["scopes"]:
                    scope.__exit__(None, None, None)  # its first call was interrupted
                self.repaired = before, self._state()

    def _state(self):
        from streamkit.backends._warp import current_stream  # not above: it imports Warp

        devices = range(2)
        native = current_stream.native_stream
        return {
            "context": current_context(),
            "tvm-ffi": [
                self._tvm_ffi.get_raw_stream(self._tvm_ffi.device("cuda", index))
                for index in devices
            ],
            "warp": [self._warp.get_stream(f"cuda:{index}") for index in devices],
            "native": [native(self._warp.get_cuda_device(index)) for index in devices],
            "warp device": self._warp.get_device(),
            "warp levels": [[*current_stream._threads(one)] for one in current_stream._levels],
            "scopes": len([*open_scopes.of_thread()]),
        }


@unraisable
@SCOPES
@OUTSIDE
def test_an_interrupt_while_a_scope_is_entered_leaves_nothing_of_it(make, outside):
    watched = Watched(make, outside)
    nth = 0
    for nth in interrupt_everywhere(watched.entering):
        before, after = watched.left
        if after["context"]:  # else it came before the scope made one current
            before["context"] = before["context"] or watched.home
        assert before == after, f"after an interrupt at the call {nth}"
        assert not watched.was_entered, f"at the call {nth} it came too late"
    assert nth > (2 if outside == "the same stream" else 10)


@unraisable
@SCOPES
@OUTSIDE
def test_an_interrupt_while_a_scope_is_left_comes_when_all_is_back(make, outside):
    """But at its very first call, which finds the scope as it was, to be left again."""
    watched = Watched(make, outside)
    nth, still_open = 0, []
    for nth in interrupt_everywhere(watched.leaving):
        before, after = watched.left
        if after["scopes"] > before["scopes"]:
            still_open.append(nth)
            before, after = watched.repaired
        before["context"] = before["context"] or watched.home
        assert before == after, f"after an interrupt at the call {nth}"
    assert len(still_open) <= 1, still_open
    assert nth > (0 if outside == "the same stream" else 10)
