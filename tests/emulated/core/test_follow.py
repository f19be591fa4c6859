"""``follow``: the others on the stream where one library is, and back; in several threads."""

from __future__ import annotations

import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

import streamkit as sk
from support.emulated.toys import TRACKS, program
from support.libraries import need

__all__ = ["program"]  # the fixture

TOLD = """

from streamkit.protocols import Binding, Traits

traits = Traits(streams_are_fixed=True)

def bind(stream):
    return Binding(
        toylib.current_stream, lambda before: toylib.set_current_stream(stream),
        toylib.set_current_stream, lambda: toylib.current_stream() is stream,
        lambda: toylib.set_current_stream(stream), told_outside=TOLD,
    )
"""
ALONE = TOLD.replace("told_outside=TOLD", "told_outside=True")
ENTERED = TOLD.replace("told_outside=TOLD", "told_outside=False")

TWO = """
import toya, toyb

def stand(stream):
    "Each on its own object on the queue, by its own call."
    toya.set_current_stream(stream.to("toya"))
    toyb.set_current_stream(stream.to("toyb"))

def watch(library):
    move = library.set_current_stream
    def set_current_stream(stream):
        moves.append((library, stream.number))
        return move(stream)
    library.set_current_stream = set_current_stream

moves = []
watch(toya)
watch(toyb)
one, two = sk.new_stream(), sk.new_stream()
"""


def test_the_others_follow_at_each_entry_and_come_back(program):
    program(
        TWO
        + """
@sk.follow("toya")
def handles():
    return current_handles(toya, toyb), sk.current_stream()

stand(two)
for stream in (one, two, one):
    toya.set_current_stream(stream.to("toya"))
    found, current = handles()
    assert found == [stream.handle] * 2 and current == stream
    assert current_handles(toya, toyb) == [stream.handle, two.handle]
with sk.use(one):
    toya.set_current_stream(two.to("toya"))
    assert handles()[0] == [two.handle] * 2, "where it is, not where the scope around it is"
    assert current_handles(toyb) == [one.handle]
"""
    )


@pytest.mark.parametrize("addition", [ALONE, ENTERED], ids=["alone", "entered"])
def test_where_all_are_on_the_queue_already_nothing_is_moved(program, addition):
    program(
        TWO
        + f"""
driver.cuCtxSetCurrent(one.context)
stand(one)
stream = sk.wrap(toya.current_stream())
follow = sk.follow("toya")
for _ in range(2):
    moves.clear()
    with follow as followed:
        assert followed == one == sk.current_stream()
        assert bool(moves) is {addition is ENTERED}, moves
    assert bool(moves) is {addition is ENTERED}, moves
with follow:
    stand(two)
    moves.clear()
assert current_handles(toya, toyb) == [one.handle] * 2, "what the body moved is put back"
assert moves
toyb.set_current_stream(two.to("toyb"))
with follow:
    assert current_handles(toya, toyb) == [one.handle] * 2, "one of them is elsewhere by now"
assert current_handles(toyb) == [two.handle]
""",
        toya=addition,
        toyb=addition,
    )


@pytest.mark.parametrize("addition", [ALONE, ENTERED], ids=["alone", "entered"])
def test_inside_a_scope_of_the_same_libraries_nothing_is_moved(program, addition):
    program(
        TWO
        + """
for options in ({}, {"libraries": ["toyb"]}):
    with sk.use(one, libraries=["toya", "toyb"]):
        moves.clear()
        with sk.follow("toya", **options) as followed:
            assert followed == one and not moves
            toyb.set_current_stream(two.to("toyb"))
            moves.clear()
        assert moves and current_handles(toya, toyb) == [one.handle] * 2
    assert current_handles(toya, toyb) == [0, 0]
""",
        toya=addition,
        toyb=addition,
    )


def test_a_library_that_is_loaded_later_follows_from_then_on(program):
    program(
        """
import toya
stream = sk.new_stream()
toya.set_current_stream(stream.to("toya"))
kept = sk.current_stream("toya")
with sk.follow("toya"):
    pass
import toyb
assert current_handles(toyb) == [0]
with sk.follow("toya"):
    assert current_handles(toya, toyb) == [stream.handle] * 2
""",
        toya=ALONE,
        toyb=ALONE,
    )


def test_only_the_named_libraries_follow(program):
    program(
        TWO
        + """
import toyc
toya.set_current_stream(one.to("toya"))
with sk.follow("toya", libraries=["toyc"]):
    assert current_handles(toya, toyb, toyc) == [one.handle, 0, one.handle]
    with sk.follow("toya", libraries=["toya"]):
        toyc.set_current_stream(two.to("toyc"))
    assert current_handles(toyc) == [two.handle], "which it was not asked for"
assert current_handles(toya, toyb, toyc) == [one.handle, 0, 0]
""",
        toya=ALONE,
        toyb=ALONE,
        toyc=ALONE,
    )


def test_the_own_device_of_a_library_left_out_is_put_back(program):
    program(
        TWO
        + """
import toyc, streamkit_toyc
there = sk.new_stream(1)
driver.cuCtxSetCurrent(there.context)
stand(there)
stream = sk.wrap(toya.current_stream())
for _ in range(2):
    with sk.follow("toya", libraries=["toyb"]):
        streamkit_toyc.remembered[0] = 0
    assert streamkit_toyc.current_device() == 1
""",
        toya=ALONE,
        toyb=ALONE,
        toyc=TRACKS,
    )


def test_threads_follow_each_its_own_stream_with_one_object(program):
    program(
        TWO
        + """
import threading
from concurrent.futures import ThreadPoolExecutor
follow, meet = sk.follow("toya"), threading.Barrier(2, timeout=10)

def run(stream):
    toya.set_current_stream(stream.to("toya"))
    with follow:
        meet.wait()
        assert current_handles(toya, toyb) == [stream.handle] * 2
        with follow:
            meet.wait()
        assert current_handles(toyb) == [stream.handle]
    meet.wait()
    assert current_handles(toya, toyb) == [stream.handle, 0]

with ThreadPoolExecutor(2) as pool:
    list(pool.map(run, (one, two)))
""",
        toya=ALONE,
        toyb=ALONE,
    )


def test_a_library_that_refuses_the_stream_leaves_all_where_they_were(program):
    program(
        TWO
        + """
toya.set_current_stream(one.to("toya"))
error = error_of(sk.errors.UnsupportedStreamError, nothing_inside, sk.follow("toya"))
assert "had enough" in str(error)
assert current_handles(toya, toyb) == [one.handle, 0]
assert error_of(sk.errors.ScopeError, sk.follow("toya").__exit__, None, None, None)
""",
        toyb='\n\ndef enter(stream):\n    raise UnsupportedStreamError("toylib has had enough")\n',
    )


def test_a_library_whose_build_has_no_cuda_leads_nobody(program):
    program(
        TWO
        + """
toyb.set_current_stream(one.to("toyb"))
with sk.follow("toya"):
    assert current_handles(toyb) == [one.handle] and sk.current_stream() == one
with sk.use(two), sk.follow("toya") as followed:
    assert followed is two is sk.current_stream() and current_handles(toyb) == [two.handle]
with sk.follow("toyb") as followed:
    assert followed == one
""",
        toya="\n\ndef current(device):\n    from streamkit.errors import NoDeviceError\n"
        '    raise NoDeviceError("no CUDA")\n',
    )


def test_the_libraries_follow_to_another_device_and_come_back(program):
    program(
        TWO
        + """
other = sk.new_stream(1)
with sk.follow("toya"):
    pass
toya.set_current_stream(other.to("toya"))
before = driver.cuCtxGetCurrent()
with sk.follow("toya") as followed:
    assert followed == other and int(driver.cuCtxGetDevice()[1]) == 1
    assert current_handles(toyb) == [other.handle]
assert driver.cuCtxGetCurrent() == before
"""
    )


# -- Warp, whose current stream is the process's --------------------------------------------------


def test_a_library_that_is_not_loaded_is_named(monkeypatch):
    monkeypatch.delitem(sys.modules, "cupy", raising=False)  # which other tests may have loaded
    with pytest.raises(sk.errors.ScopeError, match="cupy is not imported"), sk.follow("cupy"):
        pass


@pytest.mark.usefixtures("handles")
def test_the_followed_warp_stays_while_it_is_followed(warp, warp_state):
    other, follow = sk.new_stream(name="other"), sk.follow("warp")

    def move():
        with other:
            pass

    with ThreadPoolExecutor(1) as thread:
        with follow as followed:
            assert followed == sk.wrap(warp.get_stream("cuda:0"))
            with pytest.raises(sk.errors.ScopeError, match=r"MainThread .* holds it"):
                thread.submit(move).result()
        thread.submit(move).result()


@pytest.mark.usefixtures("handles")
def test_threads_follow_warp_at_once(warp_state):
    follow, meet = sk.follow("warp"), threading.Barrier(2, timeout=10)

    def run(_):
        with follow as followed:
            meet.wait()
            with follow as again:
                meet.wait()
            return followed, again

    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(run, range(2)))
    assert len({stream for pair in found for stream in pair}) == 1


@pytest.mark.parametrize("libraries", [None, ["toya"], ["toya", "warp"]])
def test_warp_follows_unless_others_are_named(program, libraries):
    need("warp")
    program(
        f"""
import toya, warp
warp.init()
stream = sk.new_stream()
before = warp.get_stream("cuda:0")
toya.set_current_stream(stream.to("toya"))
with sk.follow("toya", libraries={libraries}):
    assert (sk.current_stream("warp") == stream) is {libraries != ["toya"]}
assert warp.get_stream("cuda:0") is before
warp.set_stream(stream.to("warp"))  # Warp stands there, but for every thread
for _ in range(2):
    with sk.follow("toya", libraries={libraries}):
        import threading
        def elsewhere():
            try:
                with sk.new_stream():
                    pass
            except sk.errors.ScopeError:
                refused.append(True)
        refused = []
        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join()
        assert bool(refused) is {libraries != ["toya"]}
warp.set_stream(before)
""",
        toya=ALONE,
    )
