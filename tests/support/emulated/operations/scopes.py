"""More operations: current streams, and scopes."""

from __future__ import annotations

import streamkit as sk
from support.emulated.operations import capturing, foreign, join, operation, without_a_context
from support.emulated.operations.libraries import warp
from support.gpu.raw import check, driver

# -- current streams --------------------------------------------------------------------------


@operation
def current_stream_of_warp(undo):
    warp()
    return lambda: (sk.current_stream("warp"), sk.current_stream("warp", device=1))


@operation
def current_stream(undo):
    warp()
    return lambda: (sk.current_stream(), sk.current_stream(device=1))


@operation
def current_streams(undo):
    warp()
    return lambda: (sk.current_streams(), sk.current_streams(device=1), sk.assert_one_queue())


# -- scopes -----------------------------------------------------------------------------------


@operation
def enter_for_the_first_time(undo):
    warp()
    stream = sk.new_stream()
    return lambda: undo.enter_context(stream)


@operation
def enter_again(undo):
    warp()
    stream = sk.new_stream()
    with stream:
        pass
    return lambda: undo.enter_context(stream)


@operation
def enter_a_foreign_stream_for_one_library(undo):
    warp()
    stream = foreign(undo)
    return lambda: undo.enter_context(sk.use(stream, libraries=["warp"]))


@operation
def enter_where_warp_is(undo):
    warp()
    return lambda: undo.enter_context(sk.follow("warp"))


@operation
def enter_where_warp_is_again(undo):
    warp()
    undo.enter_context(sk.follow("warp"))
    return lambda: undo.enter_context(sk.follow("warp"))


@operation
def enter_on_the_other_device(undo):
    warp()
    stream = sk.new_stream(1)
    return lambda: undo.enter_context(stream)


@operation
def enter_the_default_stream(undo):
    warp()
    stream = sk.default_stream(1)
    return lambda: undo.enter_context(stream)


@operation
def enter_inside_itself(undo):
    warp()
    stream = sk.new_stream(1)
    undo.enter_context(stream)
    return lambda: undo.enter_context(stream)


@operation
def use_inside_itself(undo):
    warp()
    stream = sk.new_stream(1)
    undo.enter_context(stream)
    return lambda: undo.enter_context(sk.use(stream))


@operation
def enter_inside_another(undo):
    warp()
    stream, other = sk.new_stream(), sk.new_stream(1)
    undo.enter_context(stream)
    undo.enter_context(other)
    return lambda: undo.enter_context(stream)


@operation
def enter_without_a_context(undo):
    warp()
    stream = sk.new_stream(1)
    without_a_context(undo)
    return lambda: undo.enter_context(stream)


@operation
def enter_ordered(undo):
    warp()
    stream = sk.new_stream()
    return lambda: undo.enter_context(sk.use(stream, ordered=True))


@operation
def enter_ordered_on_the_other_device(undo):
    warp()
    stream = sk.new_stream(1, nonblocking=True)
    return lambda: undo.enter_context(sk.use(stream, ordered=True))


def on_a_captured_stream(undo):
    """Warp on a stream that captures, and a stream that forks from it."""
    warp()
    stream, side = sk.wrap(capturing(undo)), sk.wrap(foreign(undo))
    undo.callback(join, stream.native, side.native)
    undo.enter_context(stream)
    return side


@operation
def enter_ordered_in_a_capture(undo):
    side = on_a_captured_stream(undo)
    return lambda: undo.enter_context(sk.use(side, ordered=True))


def left(stream, undo, **options):
    """Enter a scope and return what leaves it; then everything must be as before."""
    undo.expect_what_is_now()
    scope = sk.use(stream, **options)
    scope.__enter__()
    return lambda: scope.__exit__(None, None, None)


@operation(ends=True)
def leave(undo):
    warp()
    stream = sk.new_stream()
    return left(stream, undo)


@operation(ends=True)
def leave_a_foreign_nonblocking_stream(undo):
    warp()
    return left(sk.wrap(foreign(undo)), undo)


@operation(ends=True)
def leave_the_other_device(undo):
    warp()
    return left(sk.new_stream(1), undo)


@operation(ends=True)
def leave_without_a_context(undo):
    warp()
    stream = sk.new_stream(1)
    without_a_context(undo)
    return left(stream, undo)


@operation(ends=True)
def leave_ordered(undo):
    warp()
    return left(sk.new_stream(), undo, ordered=True)


@operation(ends=True)
def leave_ordered_on_the_other_device(undo):
    warp()
    return left(sk.new_stream(1), undo, ordered=True)


@operation(ends=True)
def leave_inside_itself(undo):
    warp()
    stream = sk.new_stream(1)
    undo.enter_context(stream)
    return left(stream, undo)


@operation(ends=True)
def leave_inside_another(undo):
    warp()
    undo.enter_context(sk.new_stream(1))
    return left(sk.new_stream(), undo)


@operation(ends=True)
def leave_after_the_body_has_moved_everything(undo):
    library = warp()
    leave = left(sk.new_stream(), undo)
    check(driver.cuCtxSetCurrent(check(driver.cuDevicePrimaryCtxRetain(1))))
    undo.callback(lambda: check(driver.cuDevicePrimaryCtxRelease(1)))
    library.set_device("cuda:1")
    return leave


@operation(ends=True)
def leave_ordered_in_a_capture(undo):
    return left(on_a_captured_stream(undo), undo, ordered=True)


@operation
def submit(undo):
    warp()
    stream = sk.new_stream(1)
    return lambda: stream.submit(int)
