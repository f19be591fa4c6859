"""``use``: every loaded library on one queue, and exactly back where it was."""

from __future__ import annotations

import contextlib
import itertools

import pytest
from _players import WITH_CURRENT
from _raw import current_context, held, idle, on_device, sync

import streamkit as sk
from _libraries import cuda_devices

DEVICES = [
    0,
    pytest.param(1, marks=pytest.mark.skipif(cuda_devices() < 2, reason="one CUDA device")),
]


@pytest.fixture
def three(players):
    return {name: players(name) for name in WITH_CURRENT}


@pytest.fixture(params=DEVICES)
def device(request, three):
    """The device on which the libraries play; what is current stays on device 0."""
    three["warp"].device = f"cuda:{request.param}"
    yield request.param
    three["warp"].device = "cuda:0"


def stand(three):
    """Where each library stands, by its own API; Warp's native current stream as well."""
    torch, cupy, warp = three["torch"].torch, three["cupy"].cupy, three["warp"].warp
    native = warp._src.context.runtime.core.wp_cuda_context_get_stream
    devices = range(cuda_devices())
    return {
        "torch": [torch.cuda.current_stream(index) for index in devices],
        "cupy": [cupy.cuda.get_current_stream(index) for index in devices],
        "warp": [warp.get_stream(f"cuda:{index}") for index in devices],
        "warp native": [native(warp.get_cuda_device(index).context) for index in devices],
        "warp device": str(warp.get_device()),
        "context": current_context(),
    }


def current(three):
    """The current stream of each library where it plays."""
    return {name: player.current() for name, player in three.items()}


@pytest.mark.parametrize("nonblocking", [False, True])
def test_unnamed_kernels_of_all_libraries_wait_behind_the_scopes_stream(
    three, gate, cells, nonblocking, device
):
    stream = sk.new_stream(device, nonblocking=nonblocking)
    with on_device(device):
        line = [cells_pair(cells) for _ in WITH_CURRENT]
        for name, (src, dst) in zip(WITH_CURRENT, line, strict=True):
            own = three[name].new_stream()  # loads the kernel there, which could wait for a queue
            three[name].add_one(own, src.pointer, dst.pointer)
            sync(three[name].handle_of(own))
            dst.write(0)
    with stream:
        gate.hold(stream.handle)
        for name, (src, dst) in zip(WITH_CURRENT, line, strict=True):
            three[name].add_one_current(src.pointer, dst.pointer)
        assert held(stream.handle)
    gate.open()
    stream.sync()
    assert [dst.read() for _, dst in line] == [2, 2, 2]


def cells_pair(cells):
    return cells(1), cells(0)


@pytest.mark.parametrize("library", WITH_CURRENT)
def test_control_outside_the_scope_they_do_not_wait(three, gate, cells, library):
    stream = sk.new_stream(nonblocking=True)
    src, dst = cells(1), cells(0)
    gate.hold(stream.handle)
    three[library].add_one_current(src.pointer, dst.pointer)
    sync(three[library].handle_of(three[library].current()))
    assert gate.closed
    assert dst.read() == 2


def test_a_pipeline_over_three_libraries_is_in_order(three, gate, cells):
    stream = sk.wrap(three["torch"].new_stream())
    line = [cells(float(index)) for index in (1, 0, 0, 0)]
    with sk.use(stream):
        gate.hold(stream.handle)
        for name, (src, dst) in zip(WITH_CURRENT, itertools.pairwise(line), strict=True):
            three[name].add_one_current(src.pointer, dst.pointer)
        assert {s.id for s in sk.current_streams().values()} == {stream.id}
        assert sk.current_stream() is stream
        sk.assert_one_queue()
    gate.open()
    stream.sync()
    assert line[-1].read() == 4


def test_the_current_streams_are_the_users_own_objects_again(three):
    own = {name: player.new_stream() for name, player in three.items()}
    before_all, first = stand(three), current(three)
    for name, player in three.items():
        player.make_current(own[name])
    try:
        before = stand(three)
        with sk.new_stream(), sk.use(own["torch"]), sk.wrap(own["cupy"]):
            assert sk.current_streams()["warp"] == sk.wrap(own["cupy"])
        assert stand(three) == before
        assert three["torch"].current() == own["torch"], "a pool stream came back as another id"
        assert three["cupy"].current() is own["cupy"]
        assert three["warp"].current() is own["warp"]
    finally:
        for name, player in three.items():
            player.make_current(first[name])
    assert stand(three) == before_all


def leave_by_return(stream):
    with sk.use(stream):
        return


def leave_by_exception(stream):
    with pytest.raises(KeyError), sk.use(stream):
        raise KeyError


def leave_by_generator_close(stream):
    def body():
        with sk.use(stream):
            yield

    generator = body()
    next(generator)
    generator.close()


def torch_states(player, keep):
    torch = player.torch
    foreign = sk.new_stream()
    keep.append(foreign)
    return {
        "default": torch.cuda.default_stream(),
        "pool": torch.cuda.Stream(),
        "external": torch.cuda.get_stream_from_external(foreign.handle, foreign.device_id),
    }


@pytest.mark.parametrize("leave", [leave_by_return, leave_by_exception, leave_by_generator_close])
@pytest.mark.parametrize("warp_state", ["own", "other", "null"])
@pytest.mark.parametrize("cupy_state", ["default", "use", "pushed"])
@pytest.mark.parametrize("torch_state", ["default", "pool", "external"])
def test_prior_states_are_restored_however_the_block_ends(  # noqa: PLR0917 - the cases
    three, device, leave, torch_state, cupy_state, warp_state
):
    torch, cupy, warp = (three[name] for name in WITH_CURRENT)
    before_all = stand(three)
    keep = []
    with contextlib.ExitStack() as undo:
        with on_device(device):  # where its streams are; outside of it, device 0 is current
            first = current(three)
            pushed, used = cupy.new_stream(), cupy.new_stream()
            undo.callback(put_back, three, first, device)
            torch.make_current(torch_states(torch, keep)[torch_state])
            if cupy_state == "pushed":
                undo.enter_context(pushed)
            if cupy_state != "default":
                undo.callback(put_back, three, current(three), device)
                cupy.make_current(used)
            if warp_state != "own":
                warp.make_current(warp.new_stream() if warp_state == "other" else warp.default())
        before = stand(three)
        stream = sk.new_stream(device)

        leave(stream)
        assert stand(three) == before

        with stream:  # what the body sets does not survive it, nor a nested scope of the same
            with stream:
                torch.make_current(torch.new_stream())
                warp.make_current(warp.new_stream())
                cupy.make_current(pushed)
            sk.assert_one_queue()
            assert sk.current_stream("torch") == stream
            torch.make_current(torch.new_stream())
            warp.make_current(warp.new_stream())
            cupy.make_current(pushed)
            leave(sk.new_stream(0))
            leave(sk.new_stream(device))
        assert stand(three) == before
    assert stand(three) == before_all


def put_back(three, streams, device):
    """Make each library's stream current again where it plays."""
    with on_device(device):  # CuPy takes no stream of another
        for name, player in three.items():
            player.make_current(streams[name])


def test_a_scope_creates_no_event_and_asks_for_no_wait(three, monkeypatch):
    from streamkit import _driver, _driver_events, _edges

    stream, other = sk.wrap(three["torch"].new_stream()), sk.new_stream()
    with stream, other:  # builds the views
        pass

    def refuse(*_, **__):
        raise AssertionError("a driver call")

    for seam, names in {
        _driver: ("stream_done",),
        _driver_events: ("create_event", "record_event", "wait_event", "event_done"),
        _edges: ("create_event", "stream", "edge"),
    }.items():
        for name in names:
            monkeypatch.setattr(seam, name, refuse)
    with stream, other, stream, stream, sk.use(stream, ordered=True):
        pass


def test_a_library_that_refuses_leaves_the_others_where_they_were(three):
    before = stand(three)
    with pytest.raises(sk.UnsupportedStreamError, match="torch"):
        sk.per_thread_stream().__enter__()
    with pytest.raises(sk.UnsupportedStreamError, match="torch"), sk.per_thread_stream():
        pass
    assert stand(three) == before
    with sk.use(sk.per_thread_stream(), libraries=["cupy"]):
        assert sk.current_stream("cupy") == sk.per_thread_stream()
        assert three["torch"].current() == before["torch"][0]
    assert stand(three) == before


def test_leaving_out_of_order_raises_and_restores(three):
    before = stand(three)
    outer, inner = sk.new_stream(name="outer"), sk.new_stream(name="inner")
    first, second = sk.use(outer), sk.use(inner)
    first.__enter__()
    second.__enter__()
    with pytest.raises(sk.ScopeError, match="inner"):
        first.__exit__(None, None, None)
    assert stand(three) == before
    with pytest.raises(sk.ScopeError):
        second.__exit__(None, None, None)
    assert stand(three) == before


def test_libraries_narrows_the_scope(three):
    before = stand(three)
    stream = sk.new_stream()
    with sk.use(stream, libraries=["cupy"]):
        assert sk.current_stream("cupy") == stream != sk.current_stream("torch")
        assert three["torch"].current() == before["torch"][0]
        with pytest.raises(sk.OneQueueError, match=r"torch on .*; cupy on "):
            sk.assert_one_queue()
        sk.assert_one_queue(libraries=["cupy"])
    assert stand(three) == before
    for name in ("numba", "cuda.core"):
        with pytest.raises(sk.UnsupportedStreamError, match="no current stream"):
            sk.use(stream, libraries=[name])
        with pytest.raises(sk.UnsupportedStreamError, match="no current stream"):
            sk.current_stream(name)


@contextlib.contextmanager
def standing_on(three, library, device):
    """A new stream of the library, made current there; then the one before."""
    with on_device(device):
        first, previous = current(three), three[library].new_stream()
        three[library].make_current(previous)
    try:
        yield previous
    finally:
        put_back(three, first, device)


@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize("library", WITH_CURRENT)
def test_only_an_ordered_scope_waits_for_the_previous_stream(three, gate, device, library, ordered):
    scope = sk.new_stream(device, nonblocking=True)
    with standing_on(three, library, device) as previous:
        gate.hold(three[library].handle_of(previous))
        with sk.use(scope, ordered=ordered):
            assert held(scope.handle) if ordered else idle(scope.handle)
        gate.open()
        sync(three[library].handle_of(previous))


@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize("library", WITH_CURRENT)
def test_the_previous_stream_waits_for_an_ordered_scope_also_by_exception(
    three, gate, device, library, ordered
):
    scope = sk.new_stream(device, nonblocking=True)
    with standing_on(three, library, device) as previous:
        with contextlib.suppress(KeyError), sk.use(scope, ordered=ordered):
            gate.hold(scope.handle)
            raise KeyError
        handle = three[library].handle_of(previous)
        assert held(handle) if ordered else idle(handle)
        gate.open()
        scope.sync()


@pytest.mark.parametrize("library", WITH_CURRENT)
def test_work_before_in_and_after_an_ordered_scope_is_in_order(three, gate, cells, library):
    player, scope = three[library], sk.new_stream(nonblocking=True)
    src, dst = cells_pair(cells)
    with standing_on(three, library, 0) as previous:
        gate.hold(player.handle_of(previous))
        with sk.use(scope, ordered=True):
            player.add_one_current(src.pointer, dst.pointer)
        player.add_one_current(dst.pointer, src.pointer)
        gate.open()
        sync(player.handle_of(previous))
        assert (dst.read(), src.read()) == (2, 3)


def test_current_stream_names_those_that_differ(three):
    first = current(three)["torch"]
    three["torch"].make_current(three["torch"].new_stream())
    try:
        with pytest.raises(sk.ScopeError, match=r"torch on .*; cupy on "):
            sk.current_stream()
    finally:
        three["torch"].make_current(first)
    with sk.new_stream() as stream:
        assert sk.current_stream() is stream


def test_submit_runs_now_on_the_queue(three, gate, cells):
    stream = sk.new_stream()
    src, dst = cells_pair(cells)
    gate.hold(stream.handle)
    assert stream.submit(three["cupy"].add_one_current, src.pointer, dst=dst.pointer) is None
    assert held(stream.handle)
    gate.open()
    stream.sync()
    assert dst.read() == 2


def test_foreign_streams_are_entered_too(three):
    native = three["torch"].new_stream()
    with sk.use(native) as stream:
        assert stream.native is native
        assert sk.current_stream("warp") == stream
