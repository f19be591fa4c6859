"""Scopes over several libraries: all moved, all restored, whatever happens in between."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest

import emulator
import streamkit as sk
from support.emulated.toys import FAILS, FORGETS, INTERRUPTED, REFUSES, TRACKS, program
from support.gpu.raw import check, current_context, destroy_stream, driver, held, make_stream

pytestmark = pytest.mark.versions

__all__ = ["program"]  # the fixture


# -- in, and back -----------------------------------------------------------------------------


# One library at a time of so many; three are written out in the source, the others a loop.
ONE_OF = [(1, 0), (2, 1), (3, 0), (3, 1), (3, 2), (4, 0), (4, 3)]


def toys(count, odd=None, addition=""):
    """So many toy libraries, of which one is odd."""
    return {f"toy{'abcd'[i]}": addition if i == odd else "" for i in range(count)}


@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_libraries_are_restored_in_reverse_order(program, count):
    names = ", ".join(toys(count))
    program(
        f"""
import {names}
libraries = [{names}]
moves = []
for library in libraries:
    def move(stream, library=library, move=library.set_current_stream):
        moves.append((library, stream.number))
        return move(stream)
    library.set_current_stream = move
stream = sk.new_stream()
with sk.use(stream):
    raw = stream.handle
    assert moves == [(library, raw) for library in libraries]
    moves.clear()
assert moves == [(library, 0) for library in reversed(libraries)]
""",
        **toys(count),
    )


HALFWAY = """

def bind(stream):
    from streamkit.protocols import Binding
    def enter(before):
        toylib.set_current_stream(stream)
        raise KeyboardInterrupt("toylib has had enough")
    return Binding(toylib.current_stream, enter, toylib.set_current_stream,
                   lambda: toylib.current_stream() is stream, lambda: None)
"""


@pytest.mark.parametrize(
    ("addition", "error"),
    [(REFUSES, "sk.errors.UnsupportedStreamError"), (HALFWAY, "KeyboardInterrupt")],
    ids=["refused", "interrupted"],
)
@pytest.mark.parametrize(("count", "odd"), ONE_OF)
def test_a_library_whose_move_fails_leaves_all_where_they_were(
    program, count, odd, addition, error
):
    names = ", ".join(toys(count))
    program(
        f"""
import {names}
stream = sk.new_stream(1)
for scope in (stream, sk.use(stream)):
    assert "enough" in str(error_of({error}, scope.__enter__))
    assert current_handles({names}) == [0] * {count}
    assert int(driver.cuCtxGetCurrent()[1]) == 0
    assert "not open" in str(error_of(sk.errors.ScopeError, scope.__exit__, None, None, None))
others = [{names}]
fails = others.pop({odd})
with sk.use(stream, libraries=[library.__name__ for library in others]):
    assert current_handles(*others) == [stream.handle] * {count - 1}
    assert current_handles(fails) == [0]
""",
        **toys(count, odd, addition),
    )


@pytest.mark.parametrize("ends", ["error", "interrupt"])
@pytest.mark.parametrize("scope", ["stream", "sk.use(stream)"])
@pytest.mark.parametrize(("count", "odd"), ONE_OF)
def test_a_library_that_cannot_be_restored_does_not_keep_the_others(
    program, scope, count, odd, ends
):
    names = ", ".join(toys(count))
    program(
        f"""
import {names}
stream, left = sk.new_stream(1), [0] * {count}
if "{ends}" == "error":
    told = str(error_of(sk.errors.ScopeError, nothing_inside, {scope}))
    assert "{list(toys(count))[odd]} (ValueError: " in told, told
    assert told.count("ValueError") == 1, told
    left[{odd}] = stream.handle
else:
    error_of(KeyboardInterrupt, nothing_inside, {scope})
assert current_handles({names}) == left
assert int(driver.cuCtxGetCurrent()[1]) == 0
""",
        **toys(count, odd, FORGETS if ends == "error" else INTERRUPTED),
    )


def test_each_library_that_is_not_restored_is_named_with_its_own_error(program):
    program(
        """
import toya, toyb, toyc, toyd
errors = {toya: IndexError("a"), toyc: KeyError("c")}
for library, error in errors.items():
    adapter = __import__("streamkit_" + library.__name__)
    adapter.fails.append(error)
for libraries in (None, ["toya", "toyb", "toyc"], ["toya", "toyc"]):
    outer, inner = sk.use(sk.new_stream(0)), sk.use(sk.new_stream(1), libraries=libraries)
    told = str(error_of(sk.errors.ScopeError, nothing_inside, inner))
    assert "toya (IndexError: a)" in told and "toyc (KeyError: 'c')" in told, told
    assert "toyb" not in told and "toyd" not in told, told
    outer.__enter__()
    inner.__enter__()
    told = str(error_of(sk.errors.ScopeError, outer.__exit__, None, None, None))
    told = told.partition("Not restored: ")[2]
    assert "toya (IndexError: a)" in told and "toyc (KeyError: 'c')" in told, told
    assert "toyb" not in told and "toyd" not in told, told
""",
        **dict.fromkeys(["toya", "toyb", "toyc", "toyd"], FAILS),
    )


CANNOT_SET = """

def bind(stream):
    from streamkit.protocols import Binding
    def set_current():
        raise ValueError("cannot")
    return Binding(toylib.current_stream, lambda before: toylib.set_current_stream(stream),
                   toylib.set_current_stream,
                   lambda: toylib.current_stream() is stream, set_current)
"""


def test_a_library_that_a_nested_scope_cannot_put_back_is_named(program):
    program(
        """
import toya, toyb, toyc
stream, elsewhere = sk.new_stream(), sk.new_stream()
def moved_inside(scope):
    with scope:
        toya.set_current_stream(elsewhere.to("toya"))
with stream:
    for scope in (stream, sk.use(stream)):
        told = str(error_of(sk.errors.ScopeError, moved_inside, scope))
        assert "toya (ValueError: cannot)" in told and "toyc" not in told, told
        toya.set_current_stream(stream.to("toya"))
""",
        toya=CANNOT_SET,
        toyb=LOOKS,
        toyc=LOOKS,
    )


@pytest.mark.parametrize("body", ["leave", "fail", "elsewhere", "refuse", "out of order", "nested"])
@pytest.mark.parametrize("libraries", [None, ["toya"], ["toyb"]])
def test_the_device_of_a_librarys_own_is_put_back_after_the_context(program, body, libraries):
    program(
        f"""
import toya, toyb
import streamkit_toya, streamkit_toyb
zero, one = sk.new_stream(0), sk.new_stream(1)
driver.cuCtxSetCurrent(zero.context)
for before, stream in ((0, one), (1, one), (7, one), (7, zero)):
    streamkit_toya.restore_device(before)
    scope = sk.use(stream, libraries={libraries})
    try:
        if "{body}" == "refuse":
            streamkit_toyb.fails.append(sk.errors.UnsupportedStreamError("toyb has had enough"))
        scope.__enter__()
        if "{body}" == "fail":
            streamkit_toyb.forgets.append(ValueError("toyb forgot"))
        if "{body}" in ("elsewhere", "refuse"):
            streamkit_toya.remembered[0] = None
        if "{body}" == "out of order":
            sk.use(zero, libraries={libraries}).__enter__()
        if "{body}" == "nested":
            with stream:
                streamkit_toya.remembered[0] = 5
        scope.__exit__(None, None, None)
    except (sk.errors.ScopeError, sk.errors.UnsupportedStreamError) as error:
        assert "{body}" in ("fail", "refuse", "out of order"), error
    streamkit_toyb.fails.clear(), streamkit_toyb.forgets.clear()
    assert streamkit_toya.current_device() == before, (before, stream)
    assert int(driver.cuCtxGetCurrent()[1]) == zero.context
    streamkit_toya.remembered[0] = None
""",
        toya=TRACKS,
        toyb=FAILS_ON_DEMAND,
    )


REFUSES_ITS_DEVICE = """

def restore_device(device):
    raise ValueError("toylib forgot its device")

def own_device():
    from streamkit.protocols import OwnDevice
    return OwnDevice(lambda: 0, restore_device)
"""


def test_a_device_of_a_librarys_own_that_cannot_be_put_back_is_named_and_keeps_no_other(program):
    program(
        """
import toya, toyb
import streamkit_toyb
zero, one = sk.new_stream(0), sk.new_stream(1)
driver.cuCtxSetCurrent(zero.context)
streamkit_toyb.restore_device(7)
scope = sk.use(one, libraries=["toya"])
scope.__enter__()
streamkit_toyb.remembered[0] = None
told = str(error_of(sk.errors.ScopeError, scope.__exit__, None, None, None))
assert "the device of toya (ValueError: toya forgot its device)" in told, told
assert streamkit_toyb.current_device() == 7
""",
        toya=REFUSES_ITS_DEVICE,
        toyb=TRACKS,
    )


def test_the_device_is_put_back_after_a_library_that_changes_it(program):
    program("""
import toya
zero, one = sk.new_stream(0), sk.new_stream(1)
def move(stream, move=toya.set_current_stream):
    driver.cuCtxSetCurrent(zero.context)
    return move(stream)
toya.set_current_stream = move
driver.cuCtxSetCurrent(one.context)
with one:
    pass
assert int(driver.cuCtxGetCurrent()[1]) == one.context
""")


@pytest.mark.parametrize("devices", [1, 2])
@pytest.mark.parametrize("way", ["with one: pass", "driver.cuCtxSetCurrent(one.context)"])
def test_a_thread_that_had_no_context_has_that_of_device_0_after_a_scope(
    program, monkeypatch, devices, way
):
    monkeypatch.setenv("EMULATED_DEVICES", str(devices))
    program(
        f"""
import toya, toyb
with sk.new_stream({devices} - 1) as one:  # which finds the two libraries
    pass
current, used = int(driver.cuCtxGetCurrent()[1]), driver.cuDevicePrimaryCtxGetState(0)[2]
assert (current, used) == ((one.context, 1) if {devices} == 1 else (0, 0)), "nobody uses device 0"
zero = sk.new_stream(0)
for scope in (one, zero, sk.use(zero, ordered=True), sk.use(one, libraries=["toyb"])):
    driver.cuCtxSetCurrent(0)
    with scope:
        {way}
    assert int(driver.cuCtxGetCurrent()[1]) == int(driver.cuDevicePrimaryCtxRetain(0)[1])
""",
        toya="def own_device(): raise AssertionError\n" * (devices == 1),  # none to tell apart
    )


def test_only_the_named_libraries_are_moved(program):
    program("""
import toya, toyb
stream = sk.new_stream()
for _ in range(2):  # also when one choice follows another
    with sk.use(stream, libraries=["toyb"]):
        assert current_handles(toya, toyb) == [0, stream.handle]
    with sk.use(stream, libraries="toya"):
        assert current_handles(toya, toyb) == [stream.handle, 0]
    assert current_handles(toya, toyb) == [0, 0]
""")


FAILS_ON_DEMAND = """

fails, forgets = [], []

def enter(stream, enter=enter):
    if fails:
        raise fails[0]
    return enter(stream)

def leave(token, leave=leave):
    leave(token)
    if forgets:
        raise forgets[0]
"""

LOOKS = """

def bind(stream):
    from streamkit.protocols import Binding
    def move():
        return toylib.set_current_stream(stream)
    return Binding(toylib.current_stream, lambda before: move(), toylib.set_current_stream,
                   lambda: toylib.current_stream() is stream, move)
"""


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5])
def test_the_context_and_every_library_are_looked_at_however_many(program, count):
    names = [f"toy{letter}" for letter in "abcde"[:count]]
    program(
        f"""
import {", ".join(names)}
libraries = [{", ".join(names)}]
stream, elsewhere, there = sk.new_stream(), sk.new_stream(), sk.new_stream(1)
def place():
    return int(driver.cuCtxGetCurrent()[1]), current_handles(*libraries)
with stream:
    here = place()
    assert here == (stream.context, [stream.handle] * {count})
    for library in [None, *libraries]:
        with stream:
            if library is None:
                driver.cuCtxSetCurrent(there.context)
            else:
                library.set_current_stream(elsewhere.to(library.__name__))
            moved = place()
            with stream:
                assert place() == here != moved
            assert place() == moved
        assert place() == here
assert place() == (stream.context, [0] * {count})
""",
        **dict.fromkeys(names, LOOKS),
    )


TELLS = """

asked = []

def current_context():
    asked.append(1)
    return int(__import__("cuda.bindings.driver", fromlist=["x"]).cuCtxGetCurrent()[1])
"""

CANNOT_TELL = """

asked = []

def current_context():
    asked.append(1)
    raise ValueError("toylib does not know")
"""


NOTES_WHERE_IT_IS_LEFT = """

left = []

def leave(token, leave=leave):
    left.append(int(__import__("cuda.bindings.driver", fromlist=["x"]).cuCtxGetCurrent()[1]))
    leave(token)
"""


def test_a_library_that_tells_the_context_is_asked(program):
    program(
        """
import toya, toyb
zero, one = sk.new_stream(0), sk.new_stream(1)
with one:
    assert int(driver.cuCtxGetCurrent()[1]) == one.context
    with zero:
        assert int(driver.cuCtxGetCurrent()[1]) == zero.context
    assert int(driver.cuCtxGetCurrent()[1]) == one.context
assert int(driver.cuCtxGetCurrent()[1]) == zero.context
import streamkit_toyb
assert len(streamkit_toyb.asked) == 4
sys.path[:0] = PATHS
import emulator
emulator.reset_calls()
with zero:
    pass
assert len(streamkit_toyb.asked) == 6
assert emulator.calls("cuCtxGetCurrent") == 2, "the driver was asked besides the library"
with one:
    pass
assert emulator.calls("cuDevicePrimaryCtxGetState") == 0, "asked although there was a context"
""".replace("PATHS", repr([str(Path(__file__).parents[2])])),
        toyb=TELLS,
    )


def test_a_forked_child_does_not_ask_it(program):
    program(
        """
import os
import toya
import streamkit_toya
stream = sk.new_stream()

def refused(call, *arguments):
    try:
        call(*arguments)
    except (sk.errors.ForkedProcessError, sk.errors.ScopeError) as error:
        return "fork" in str(error)
    return False

stream.__enter__()
stream.__enter__()
asked = len(streamkit_toya.asked)
child = os.fork()
if child == 0:
    told = [refused(stream.__enter__)]
    told += [refused(stream.__exit__, None, None, None) for _ in range(2)]
    os._exit(0 if all(told) and len(streamkit_toya.asked) == asked else 1)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
stream.__exit__(None, None, None)
stream.__exit__(None, None, None)
assert len(streamkit_toya.asked) > asked
""",
        toya=LOOKS + TELLS,
    )


def test_a_library_that_cannot_tell_the_context_does_no_harm(program):
    program(
        """
import toya
zero, one = sk.new_stream(0), sk.new_stream(1)
for stream in (zero, one):
    with stream:
        assert int(driver.cuCtxGetCurrent()[1]) == stream.context
        assert current_handles(toya) == [stream.handle]
        driver.cuCtxSetCurrent((one if stream is zero else zero).context)
    import streamkit_toya
    assert streamkit_toya.left == [stream.context], "it was restored on another device"
    streamkit_toya.left.clear()
    assert current_handles(toya) == [0]
    assert int(driver.cuCtxGetCurrent()[1]) == zero.context
""",
        toya=CANNOT_TELL + NOTES_WHERE_IT_IS_LEFT,
    )


# -- order ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("shared", "records", "waits"), [(True, 2, 2), (False, 3, 4)])
def test_an_ordered_scope_ends_in_one_record(program, shared, records, waits):
    program(f"""
sys.path.insert(0, {str(Path(__file__).parents[2])!r})
import emulator
import toya, toyb
previous = sk.new_stream()
other = previous if {shared} else sk.new_stream()
toya.set_current_stream(previous.to("toya"))
toyb.set_current_stream(other.to("toyb"))
stream = sk.new_stream()
with sk.use(stream, ordered=True):
    pass
emulator.reset_calls()
with sk.use(stream, ordered=True):
    pass
assert emulator.calls("cuEventRecord") == {records}
assert emulator.calls("cuStreamWaitEvent") == {waits}
""")


@pytest.mark.parametrize("captured", ["stream", "toya", "toyb"])
def test_an_ordered_scope_has_no_edge_over_the_border_of_a_capture(program, captured):
    """Of somebody's capture: one that takes part is waited for, one that does not would break it.

    The stream either captures itself or forks from the library that does.
    """
    program(f"""
import toya, toyb
streams = dict(stream=sk.new_stream(), toya=sk.new_stream(), toyb=sk.new_stream())
toya.set_current_stream(streams["toya"].to("toya"))
toyb.set_current_stream(streams["toyb"].to("toyb"))
origin = streams[{captured!r}]

def scope():
    with sk.use(streams["stream"], ordered=True):
        streams["stream"].record(external=inside)

inside = False
scope()  # each has work
mode = driver.CUstreamCaptureMode(1)
for outer in range(2):
    inside = True
    assert not driver.cuStreamBeginCapture(origin.handle, mode)[0]
    scope()
    code, graph = driver.cuStreamEndCapture(origin.handle)
    assert not code, code
    assert not any(stream.is_capturing for stream in streams.values())
    assert driver.cuGraphGetNodes(graph, 0)[2] == 1
    assert not driver.cuGraphDestroy(graph)[0]
    inside = False
    scope()
""")


def test_an_ordered_scope_is_refused_where_the_legacy_stream_cannot_be_asked(warp, blocking):
    legacy, raw = sk.default_stream(), blocking
    with warp.ScopedStream(legacy.to("warp"), sync_enter=False):
        check(driver.cuStreamBeginCapture(raw, driver.CUstreamCaptureMode(1)))
        with pytest.raises(sk.errors.CaptureError), sk.use(sk.new_stream(), ordered=True):
            pass
        with pytest.raises(sk.errors.CaptureError), sk.use(legacy, ordered=True):
            pass
        assert int(check(driver.cuStreamIsCapturing(raw))) == 1


def test_an_ordered_scope_that_a_capture_outlives_adds_no_fork_to_it(warp, blocking):
    raw, stream = blocking, sk.new_stream(nonblocking=True)
    with sk.use(stream, ordered=True):
        check(driver.cuStreamBeginCapture(stream.handle, driver.CUstreamCaptureMode(1)))
    assert not sk.wrap(warp.get_stream("cuda:0")).is_capturing
    check(driver.cuGraphDestroy(check(driver.cuStreamEndCapture(stream.handle))))
    legacy = sk.default_stream()
    with warp.ScopedStream(legacy.to("warp"), sync_enter=False):
        with pytest.raises(sk.errors.ScopeError, match="the order after"):  # noqa: SIM117 - it raises
            with sk.use(stream, ordered=True):
                check(driver.cuStreamBeginCapture(raw, driver.CUstreamCaptureMode(1)))
        assert int(check(driver.cuStreamIsCapturing(raw))) == 1


@pytest.fixture
def blocking():
    """A blocking stream, whose capture a test may begin."""
    raw = make_stream(nonblocking=False)
    yield raw
    if int(check(driver.cuStreamIsCapturing(raw))):
        check(driver.cuGraphDestroy(check(driver.cuStreamEndCapture(raw))))
    destroy_stream(raw)


# -- with Warp, which has the ways to nest cheaply ----------------------------------------------


@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize("first", ["what came before", "the scope"])
def test_an_ordered_scope_waits_and_is_waited_for(warp, gate, ordered, first):
    previous, stream = warp.Stream("cuda:0"), sk.new_stream(nonblocking=True)
    handles = previous.cuda_stream, stream.handle
    with warp.ScopedStream(previous, sync_enter=False):
        if first == "what came before":
            gate.hold(handles[0])
        with sk.use(stream, ordered=ordered):
            if first == "the scope":
                gate.hold(handles[1])
        assert all(map(held, handles)) is ordered
        gate.open()
        stream.sync()


def test_the_device_is_switched_once_and_once_back(warp):
    here, there = sk.new_stream(0), sk.new_stream(1)
    for stream in (there, here, there):  # builds the views
        with stream:
            pass
    emulator.reset_calls()
    with there, there:
        pass
    asked = emulator.all_calls()
    assert asked["cuCtxSetCurrent"] == 2
    assert not {name for name in asked if "CtxPush" in name or "PrimaryCtx" in name}
    emulator.reset_calls()
    with here, here:
        pass
    assert emulator.calls("cuCtxSetCurrent") == 0


def test_the_first_scope_of_a_stream_makes_views_and_events_in_the_context_that_is_current(warp):
    raws, counts = [make_stream(nonblocking=True) for _ in range(4)], []
    for raw in raws:
        emulator.reset_calls()
        stream = sk.from_handle(raw)
        with stream:
            pass
        counts.append(emulator.calls("cuCtxSetCurrent"))
    # a view's maker may leave another one: it is set back, and no other call was needed, one more
    # where tests before have loaded other libraries; the first scope loads what is needed
    assert min(counts) <= 2
    del stream
    gc.collect()
    for raw in raws:
        destroy_stream(raw)


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
        warp.set_stream(elsewhere, "cuda:0")  # entering again moves it
        with again(stream):
            assert warp.get_stream("cuda:0").cuda_stream == stream.handle
            sk.assert_one_queue()
        assert warp.get_stream("cuda:0") is elsewhere


def test_a_scope_entered_again_is_left_out_of_order_once(warp):
    stream, inner = sk.new_stream(0), sk.use(sk.new_stream(1, name="inner"))
    before, own = warp.get_stream("cuda:1"), stream.to("warp")
    with stream:
        stream.__enter__()
        warp.set_stream(warp.Stream("cuda:0"), "cuda:0")  # the body moves it before the inner scope
        inner.__enter__()
        with pytest.raises(sk.errors.ScopeError, match="inner"):
            stream.__exit__(None, None, None)
        assert warp.get_stream("cuda:0") is own
        assert warp.get_stream("cuda:1") is before
    assert warp.get_stream("cuda:0") is not own


def test_a_closed_stream_is_not_entered_inside_a_scope_of_it(warp):
    stream = sk.new_stream()
    with stream:
        stream.close()
        with pytest.raises(sk.errors.StreamClosedError):
            stream.__enter__()


@pytest.mark.parametrize("error", [KeyboardInterrupt(), RuntimeError("mine")])
@pytest.mark.parametrize("ordered", [False, True])
def test_the_exception_of_the_body_passes_with_what_could_not_be_restored(warp, ordered, error):
    stream, elsewhere = sk.new_stream(1), sk.new_stream(0)
    before = current_context()

    def fails():
        elsewhere.__enter__()
        emulator.break_down(driver.CUresult.CUDA_ERROR_ILLEGAL_ADDRESS)
        raise error

    try:
        with pytest.raises(type(error)) as caught, sk.use(stream, ordered=ordered):
            fails()
    finally:
        emulator.break_down(0)
    assert caught.value is error
    told = "".join(error.__notes__)
    assert repr(elsewhere) in told
    assert ("the order after" in told) is ordered, told
    assert current_context() == before


# -- the current stream of one kind -----------------------------------------------------------


def test_the_scopes_of_the_other_kind_do_not_tell_the_current_stream(warp):
    host, cuda = sk.new_stream("cpu"), sk.new_stream(0)
    outside = sk.current_stream(device="cuda")
    with host:
        assert sk.current_stream() is host
        assert sk.current_stream(device="cuda") == outside
        assert sk.current_stream(device="cuda:0") == outside
        with cuda:
            assert sk.current_stream(device="cpu") is host
            with sk.new_stream("cpu"):
                for device in ("cuda", "cuda:0", 0):
                    assert sk.current_stream(device=device) is cuda
                assert sk.current_stream(device="cuda:1").device == "cuda:1"
