"""Scopes over several libraries: all moved, all restored, whatever happens in between."""

from __future__ import annotations

from pathlib import Path

import pytest
from _raw import current_context
from _toys import FORGETS, INTERRUPTED, REFUSES, program
from test_order import held

import streamkit as sk

__all__ = ["program"]  # the fixture


# -- in, and back -----------------------------------------------------------------------------


def test_libraries_are_restored_in_reverse_order(program):
    program(
        """
import toya, toyb
moves = []
for library in (toya, toyb):
    def move(stream, name=library.__name__, move=library.set_current_stream):
        moves.append((name, stream.number))
        return move(stream)
    library.set_current_stream = move
stream = sk.new_stream()
with sk.use(stream):
    raw = stream.handle
    assert moves == [("toya", raw), ("toyb", raw)]
    moves.clear()
assert moves == [("toyb", 0), ("toya", 0)]
""",
        toya="",
        toyb="",
    )


def test_a_library_that_refuses_leaves_the_others_where_they_were(program):
    program(
        """
import toya, toyb
stream = sk.new_stream(1)
for scope in (stream, sk.use(stream)):
    try:
        scope.__enter__()
    except sk.UnsupportedStreamError as error:
        assert "enough" in str(error)
    else:
        raise AssertionError("it was entered")
    assert stands(toya, toyb) == [0, 0]
    assert int(driver.cuCtxGetCurrent()[1]) == 0
with sk.use(stream, libraries=["toya"]):
    assert stands(toya, toyb) == [stream.handle, 0]
""",
        toya="",
        toyb=REFUSES,
    )


@pytest.mark.parametrize("scope", ["stream", "sk.use(stream)"])
def test_a_library_that_cannot_be_restored_does_not_keep_the_others(program, scope):
    program(
        f"""
import toya, toyb
stream = sk.new_stream(1)
try:
    with {scope}:
        pass
except sk.ScopeError as error:
    assert "toyb" in str(error) and "forgot" in str(error), error
else:
    raise AssertionError("nobody was told")
assert stands(toya, toyb) == [0, stream.handle]
assert int(driver.cuCtxGetCurrent()[1]) == 0
""",
        toya="",
        toyb=FORGETS,
    )


def test_an_interrupt_while_libraries_are_restored_comes_when_all_are(program):
    program(
        """
import toya, toyb
stream = sk.new_stream(1)
try:
    with sk.use(stream):
        pass
except KeyboardInterrupt:
    pass
else:
    raise AssertionError("the interrupt was swallowed")
assert stands(toya, toyb) == [0, 0]
assert int(driver.cuCtxGetCurrent()[1]) == 0
""",
        toya="",
        toyb=INTERRUPTED,
    )


def test_in_a_scope_its_context_is_current(program):
    program("""
zero, one = sk.new_stream(0), sk.new_stream(1)
with zero:
    with one:
        assert int(driver.cuCtxGetCurrent()[1]) == one.context != zero.context
    assert int(driver.cuCtxGetCurrent()[1]) == zero.context
assert int(driver.cuCtxGetCurrent()[1]) == 0
""")


def test_only_the_named_libraries_are_moved(program):
    program(
        """
import toya, toyb
stream = sk.new_stream()
with sk.use(stream, libraries=["toyb"]):
    assert stands(toya, toyb) == [0, stream.handle]
assert stands(toya, toyb) == [0, 0]
""",
        toya="",
        toyb="",
    )


# -- order ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("shared", "edges"), [(True, 2), (False, 4)])
def test_libraries_on_one_queue_cost_an_ordered_scope_two_edges(program, shared, edges):
    program(
        f"""
sys.path.insert(0, {str(Path(__file__).parent)!r})
import _emulator
import toya, toyb
previous = sk.new_stream()
other = previous if {shared} else sk.new_stream()
toya.set_current_stream(previous.to("toya"))
toyb.set_current_stream(other.to("toyb"))
stream = sk.new_stream()
with sk.use(stream, ordered=True):
    pass
_emulator.reset_calls()
with sk.use(stream, ordered=True):
    pass
assert _emulator.calls("cuEventRecord") == _emulator.calls("cuStreamWaitEvent") == {edges}
""",
        toya="",
        toyb="",
    )


# -- with Warp, which has the ways to nest cheaply ----------------------------------------------


@pytest.mark.parametrize("ordered", [True, False])
def test_an_ordered_scope_waits_for_what_came_before(warp, gate, ordered):
    previous, stream = warp.Stream("cuda:0"), sk.new_stream(nonblocking=True)
    with warp.ScopedStream(previous, sync_enter=False):
        gate.hold(previous.cuda_stream)
        with sk.use(stream, ordered=ordered):
            assert held(stream) is ordered
        gate.open()
        stream.sync()


@pytest.mark.parametrize("ordered", [True, False])
def test_what_follows_waits_for_an_ordered_scope(warp, gate, ordered):
    previous, stream = warp.Stream("cuda:0"), sk.new_stream(nonblocking=True)
    with warp.ScopedStream(previous, sync_enter=False):
        with sk.use(stream, ordered=ordered):
            gate.hold(stream.handle)
        assert held(sk.wrap(previous)) is ordered
        gate.open()
        stream.sync()


@pytest.mark.parametrize("again", [lambda stream: stream, sk.use])
def test_what_a_nested_scope_moved_is_put_back(warp, again):
    stream, elsewhere = sk.new_stream(), warp.Stream("cuda:0")
    native = warp._src.context.runtime.core.wp_cuda_context_get_stream
    with stream:
        with again(stream):
            warp.set_stream(elsewhere, "cuda:0")
            warp.set_device("cuda:1")
        assert warp.get_stream("cuda:0").cuda_stream == stream.handle
        assert native(warp.get_cuda_device(0).context) == stream.handle
        assert str(warp.get_device()) == "cuda:0"
        assert current_context() == stream.context


@pytest.mark.parametrize("again", [lambda stream: stream, sk.use])
def test_entering_again_moves_what_the_body_had_moved_away(warp, again):
    stream, elsewhere = sk.new_stream(), warp.Stream("cuda:0")
    with stream:
        warp.set_stream(elsewhere, "cuda:0")
        with again(stream):
            assert warp.get_stream("cuda:0").cuda_stream == stream.handle
            sk.assert_one_queue()
        assert warp.get_stream("cuda:0") is elsewhere


def test_leaving_out_of_order_restores_everything(warp):
    outer, inner = sk.use(sk.new_stream(0)), sk.use(sk.new_stream(1, name="inner"))
    outer.__enter__()
    inner.__enter__()
    with pytest.raises(sk.ScopeError, match="inner"):
        outer.__exit__(None, None, None)
    with pytest.raises(sk.ScopeError, match="not open"):
        inner.__exit__(None, None, None)
