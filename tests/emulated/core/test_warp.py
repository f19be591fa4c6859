"""Scopes over real Warp: its current streams, what comes back, what the driver is asked."""

from __future__ import annotations

import contextlib
import gc
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

import emulator
import streamkit as sk
from support.gpu.raw import busy
from support.libraries import need
from support.queues import together, within

pytestmark = [pytest.mark.usefixtures("handles"), pytest.mark.versions]


@pytest.mark.parametrize("device", [0, 1])
@pytest.mark.parametrize("nonblocking", [False, True])
def test_warp_is_on_the_scopes_stream_and_then_on_the_one_before(
    warp, warp_state, device, nonblocking
):
    stream = sk.new_stream(device, nonblocking=nonblocking)
    with stream:
        assert warp.get_stream(f"cuda:{device}").cuda_stream == stream.handle
        assert warp_state()[1][device] == stream.handle
        assert str(warp.get_device()) == stream.device
        assert sk.current_stream("warp") == stream == sk.current_stream()
        sk.assert_one_queue()


def leave_by_exception(stream):
    with pytest.raises(KeyError), sk.use(stream):
        raise KeyError


def leave_by_generator(stream):
    def body():
        with sk.use(stream):
            yield

    generator = body()
    next(generator)
    generator.close()


def leave_inner_first(stream):
    with stream, sk.new_stream(1), stream:
        assert sk.current_stream("warp") == stream


def leave_after_a_change(stream):
    warp = need("warp")
    with stream:
        warp.set_stream(warp.Stream(stream.device), stream.device)
        warp.set_device(f"cuda:{1 - stream.device_id}")


@pytest.mark.parametrize(
    "leave", [leave_by_exception, leave_by_generator, leave_inner_first, leave_after_a_change]
)
@pytest.mark.parametrize("start", ["own", "another", "null"])
@pytest.mark.parametrize("device", [0, 1])
def test_what_was_current_comes_back_however_the_block_ends(warp, warp_state, leave, start, device):
    where = warp.get_cuda_device(device)
    own = where.stream
    another = {"own": own, "another": warp.Stream(where), "null": where.null_stream}[start]
    warp.set_stream(another, where)
    try:
        before = warp_state()
        leave(sk.new_stream(device))
        assert warp_state() == before
        assert warp.get_stream(where) is another
    finally:
        warp.set_stream(own, where)


def test_a_scope_adds_no_event_and_no_wait(warp_state):
    first, second = sk.new_stream(), sk.new_stream(1)
    with first, second:  # builds the views
        pass
    emulator.reset_calls()
    with first, second, first:
        pass
    forbidden = ("Event", "Synchronize", "Query", "Wait", "Create", "Destroy", "StreamGet")
    asked = {name for name in emulator.all_calls() if any(part in name for part in forbidden)}
    assert not asked


@contextlib.contextmanager
def in_another_thread(stream):
    """Hold a scope of the stream in a thread named holder; yield what ends it before."""
    entered, leave = threading.Event(), threading.Event()

    def hold():
        with stream:
            entered.set()
            leave.wait(10)

    def end():
        leave.set()
        holder.join()

    holder = threading.Thread(target=hold, name="holder")
    holder.start()
    try:
        assert entered.wait(10)
        yield end
    finally:
        end()


def test_another_queue_in_another_thread_is_refused_and_the_same_one_joins(warp_state):
    stream, other = sk.new_stream(name="one"), sk.new_stream(name="two")
    with in_another_thread(stream) as end:
        with pytest.raises(sk.errors.ScopeError, match="holder"), other:
            pass
        with stream:
            end()
            assert sk.current_stream("warp") == stream, "the first one out restored"
    with other:
        assert sk.current_stream("warp") == other


def test_a_scope_is_of_its_thread_alone_though_threads_shared_the_one_before(warp_state):
    """Whose memory, and so whose id, the next one gets."""
    stream = sk.new_stream()

    def come_and_go():
        with stream:
            pass

    with ThreadPoolExecutor(1) as other:
        for _ in range(20):
            with stream:
                other.submit(come_and_go).result()
            other.submit(come_and_go).result()
            assert sk.current_stream("warp") != stream


def test_threads_that_come_and_go_at_once_leave_warp_as_it_was(warp_state):
    stream = sk.new_stream()

    def come_and_go(_):
        for _ in range(200):
            with stream:
                assert sk.current_stream("warp") == stream

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        together(4, come_and_go)
    finally:
        sys.setswitchinterval(before)


def test_a_scope_waits_to_enter_and_to_leave_while_another_thread_moves_warp(
    warp_state, monkeypatch
):
    from streamkit.backends._warp import current_stream  # its lock, and the wait for it

    lock, another, waited = current_stream._lock, object(), []

    def wait_for_turn(lock, me):
        waited.append(warp_state()[:3])
        lock.remove(another)
        assert lock == [me]

    monkeypatch.setattr(current_stream, "wait_for_turn", wait_for_turn)
    before = warp_state()[:3]
    try:
        lock.append(another)
        with sk.new_stream():
            inside = warp_state()[:3]
            lock.append(another)
    finally:
        lock.clear()
    assert waited == [before, inside]


def test_warps_streams_and_events_order_with_streamkits(warp, warp_state, gate):
    native = warp.Stream("cuda:0")
    stream, waiting = sk.wrap(native), sk.new_stream(nonblocking=True)
    assert stream.native is native
    assert stream.to("warp") is native
    gate.hold(native.cuda_stream)
    waiting.wait(native.record_event())
    assert busy(waiting.handle)
    warp_view = waiting.to("warp")
    third = warp.Stream("cuda:0")
    third.wait_event(warp_view.record_event())
    assert busy(third.cuda_stream)
    gate.open()
    sk.wrap(third).sync()


def test_one_view_of_a_queue_for_warp(warp, warp_state):
    stream = sk.new_stream()
    view = stream.to("warp")
    assert view is stream.to("warp") is sk.from_handle(stream.handle).to("warp")
    with stream, sk.from_handle(stream.handle):
        assert warp.get_stream("cuda:0") is view


@pytest.mark.parametrize("elsewhere", ["cpu", "cuda:1"])
@pytest.mark.parametrize(
    "again",
    [
        lambda stream: stream,
        lambda stream: sk.use(stream, libraries=["warp"]),
        lambda stream: sk.from_handle(stream.handle),
    ],
    ids=["stream", "use", "another object"],
)
def test_entering_again_moves_the_default_device_and_puts_it_back(
    warp, warp_state, again, elsewhere
):
    """The body has moved that alone: every library is on the scope's stream all the same."""
    stream = sk.new_stream()
    with stream:
        there = warp_state()
        warp.set_device(elsewhere)
        moved = warp_state()
        with again(stream):
            assert warp_state() == there
        assert warp_state() == moved


def moves_the_stream(warp):
    warp.set_stream(warp.Stream("cuda:0"), "cuda:0")


def moves_the_default_device(warp):
    warp.set_device("cuda:1")


def test_who_shares_a_scope_may_enter_it_again_where_its_block_has_moved_warp(warp, warp_state):
    """That moves Warp to where the others expect it; then the block has its own place again."""
    stream = sk.new_stream()
    with in_another_thread(stream) as end, stream:
        there = warp_state()
        warp.set_device("cpu")
        moved = warp_state()
        with stream:
            assert warp_state() == there
            end()
            assert warp_state() == there
        assert warp_state() == moved


def test_who_shared_a_scope_is_still_in_it_when_an_inner_one_has_ended(warp, warp_state):
    stream = sk.new_stream()
    with stream:
        with in_another_thread(stream):
            pass
        with sk.use(stream, libraries=["warp"]):
            pass
        assert warp.get_stream("cuda:0") is stream.to("warp")


def test_nobody_joins_a_scope_of_a_thread_that_ended_inside_it(warp_state):
    """The scope is ended for that thread then, which moves Warp back under whoever has joined."""
    outer, inner = sk.new_stream(), sk.new_stream()
    left_open = contextlib.ExitStack()

    def open_and_end():
        left_open.enter_context(outer)
        left_open.enter_context(inner)

    within(open_and_end)
    with inner:
        assert sk.current_stream("warp") == inner


def test_nobody_joins_a_scope_that_is_inside_others(warp_state):
    """It is on the stream they ask for, and ends before those do."""
    stream = sk.new_stream()
    says = "(?s)inside a scope that will put it else.*share it while Warp is moved nowhere else"
    with stream, sk.new_stream(), stream, pytest.raises(sk.errors.ScopeError, match=says):
        within(stream.__enter__)


@pytest.mark.parametrize(
    ("move", "says"),
    [
        (moves_the_stream, r"a block has moved it to the stream 0x\w+ of cuda:0 since"),
        (moves_the_default_device, "a block has made cuda:1 the default device since"),
    ],
    ids=["stream", "default device"],
)
def test_nobody_joins_a_scope_whose_block_has_moved_warp(warp, warp_state, move, says):
    """It would move Warp under that block; and to share its stream is no way out."""
    stream = sk.new_stream()
    with stream:
        move(warp)
        moved = warp_state()
        with pytest.raises(sk.errors.ScopeError, match=says) as caught:
            within(stream.__enter__)
        assert warp_state() == moved
    assert "share it while Warp is moved nowhere else" in str(caught.value)
    assert "share one stream" not in str(caught.value)


def test_what_the_body_of_an_inner_scope_moved_is_put_back_to_the_outer_scopes_stream(
    warp, warp_state
):
    stream, other = sk.new_stream(), sk.new_stream()
    with stream:
        there = warp_state()
        with sk.use(stream, libraries=["warp"]):  # not nested in a scope of all libraries: it joins
            warp.set_stream(other.to("warp"), "cuda:0")
            warp.set_device("cuda:1")
        assert warp_state()[:3] == there[:3]


def test_a_scope_on_another_device_is_refused_too_and_no_shared_stream_is_advised(warp, warp_state):
    """Warp's default device is one for the process: it would follow the second thread."""
    with in_another_thread(sk.new_stream(0)):
        there = warp_state()
        stream = sk.new_stream(1)
        with pytest.raises(sk.errors.ScopeError, match="holder") as caught, stream:
            pass
        assert warp_state() == there
        assert "libraries=" in str(caught.value)
        assert "device='cuda:1', stream=s.to('warp')" in str(caught.value)
        assert "share one stream" not in str(caught.value)
        with pytest.raises(sk.errors.ScopeError, match="or share one stream"), sk.new_stream(0):
            pass
        with sk.use(stream, libraries=[]):
            assert warp_state()[:3] == there[:3]


def test_what_the_body_sets_on_another_device_than_the_scopes_is_its_own(warp, warp_state):
    """As with ``torch.cuda.stream``; the default device, of which there is one, is put back."""
    here, there = warp.Stream("cuda:0"), warp.Stream("cuda:1")
    first, before = warp.get_stream("cuda:1"), warp_state()
    with sk.new_stream(0):
        warp.set_stream(here, "cuda:0")
        warp.set_stream(there, "cuda:1")
        warp.set_device("cuda:1")
    streams, native, *others = warp_state()
    assert streams == [before[0][0], there]
    assert native == [before[1][0], there.cuda_stream]
    assert others == list(before[2:])
    warp.set_stream(first, "cuda:1")


@pytest.fixture
def public(warp, monkeypatch):
    """As in a version of Warp whose own state is not known."""
    from streamkit.backends._warp import current_stream  # its public fallback is chosen here

    stream = sk.new_stream()
    assert stream.handle  # for what others may have seen, the first view asks for Warp's runtime
    stream.to("warp")
    monkeypatch.setattr(current_stream, "_native", lambda: None)
    monkeypatch.setattr(current_stream, "warp_runtime", None)  # which nothing needs then


@pytest.mark.usefixtures("public")
@pytest.mark.parametrize(
    "leave", [leave_by_exception, leave_by_generator, leave_inner_first, leave_after_a_change]
)
@pytest.mark.parametrize("start", ["own", "another", "null"])
@pytest.mark.parametrize("device", [0, 1])
def test_what_was_current_comes_back_by_warps_public_functions_too(
    warp, warp_state, leave, start, device
):
    test_what_was_current_comes_back_however_the_block_ends(warp, warp_state, leave, start, device)


@pytest.mark.usefixtures("public")
@pytest.mark.parametrize("device", [0, 1])
def test_warp_is_on_the_scopes_stream_by_its_public_functions_too(warp, warp_state, device):
    stream, elsewhere = sk.new_stream(device), warp.Stream(f"cuda:{device}")
    with stream:
        there = warp_state()
        assert sk.current_stream("warp") == stream == sk.current_stream()
        assert there[0][device].cuda_stream == there[1][device] == stream.handle
        assert there[2:] == (stream.device, stream.context)
        with stream:
            assert warp_state() == there
            warp.set_stream(elsewhere, stream.device)
            warp.set_device(f"cuda:{1 - device}")
            with stream:
                assert warp_state() == there
            assert sk.current_stream("warp", device=device) == sk.wrap(elsewhere)
        assert warp_state() == there


@pytest.mark.usefixtures("public")
def test_another_thread_joins_and_is_refused_by_warps_public_functions_too(warp_state):
    test_another_queue_in_another_thread_is_refused_and_the_same_one_joins(warp_state)


@pytest.mark.parametrize("device", [0, 1])
def test_an_event_of_warp_is_its_devices_and_warps_own(warp, device):
    with warp.ScopedDevice(f"cuda:{device}"):
        native = warp.Event(f"cuda:{device}")
    event = sk.wrap_event(native)
    assert event.device == f"cuda:{device}"
    assert event.to("warp") is native
    right, wrong = sk.new_stream(device), sk.new_stream(1 - device)
    right.record(event)
    emulator.reset_calls()
    with pytest.raises(sk.errors.DeviceMismatchError):
        wrong.record(event)
    assert "cuEventRecord" not in emulator.all_calls()


@pytest.mark.parametrize("first", [0, 1])
def test_an_event_for_warp_lives_until_both_objects_have_gone(warp, first):
    event = sk.new_event()
    theirs = [event.to("warp")]
    live, ends = [emulator.live("events")], [event.close, theirs.clear]
    for end in (ends.pop(first), *ends):
        end()
        gc.collect()
        live.append(emulator.live("events"))
    assert live == [live[0], live[0], live[0] - 1]
