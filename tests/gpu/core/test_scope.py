"""``use``: every loaded library on one queue, and exactly back where it was."""

from __future__ import annotations

import contextlib
import functools
import itertools

import pytest

import streamkit as sk
from support.gpu.library_subjects import WITH_CURRENT
from support.gpu.places import (
    current,
    current_state,
    one_stream_current,
    own_streams_current,
    place,
    pushed_last,
    working_on,
)
from support.gpu.raw import held, idle, make_stream, on_device, sync
from support.libraries import cuda_devices, need
from support.programs import python

DEVICES = [
    0,
    pytest.param(1, marks=pytest.mark.skipif(cuda_devices() < 2, reason="one CUDA device")),
]


@pytest.fixture
def device(each_device):
    return each_device


def owned(three):
    return sk.new_stream()


def owned_nonblocking(three):
    return sk.new_stream(nonblocking=True)


def torchs(three):
    return sk.wrap(three["torch"].new_stream())


def cupys(three):
    return sk.wrap(three["cupy"].new_stream())


def warps(three):
    return sk.wrap(three["warp"].new_stream())


def raw(three):
    return sk.from_handle(make_stream(nonblocking=False))


def raw_nonblocking(three):
    return sk.from_handle(make_stream())


@pytest.fixture(params=[owned, owned_nonblocking, torchs, cupys, warps, raw, raw_nonblocking])
def stream(request, three, device):
    """One of each kind."""
    with on_device(device):
        return request.param(three)


@pytest.fixture
def line(cells, device):
    """Two cells for the kernel of each library."""
    with on_device(device):
        return [(cells(1), cells(0)) for _ in WITH_CURRENT]


def written(line, peek):
    """What the kernels have written so far, which nothing here waits for."""
    return [peek(dst) for _, dst in line]


def test_unnamed_kernels_of_all_libraries_wait_behind_the_scopes_stream(  # noqa: PLR0917 - the cases
    three, gate, peek, device, stream, line
):
    with own_streams_current(three, device):
        with stream:
            gate.hold(stream.handle)
            for name, (src, dst) in zip(WITH_CURRENT, line, strict=True):
                three[name].add_one_current(src.pointer, dst.pointer)
        assert held(stream.handle)
        assert written(line, peek) == [0, 0, 0], "it ran although the scope's queue is held"
        assert gate.closed
        gate.open()
        sync(stream.handle)
        assert written(line, peek) == [2, 2, 2]


def test_control_outside_the_scope_they_do_not_wait(  # noqa: PLR0917 - the cases
    three, gate, peek, device, stream, line
):
    with own_streams_current(three, device), working_on(three, device):
        gate.hold(stream.handle)
        for name, (src, dst) in zip(WITH_CURRENT, line, strict=True):
            three[name].add_one_current(src.pointer, dst.pointer)
            sync(three[name].handle_of(three[name].current()))
        assert written(line, peek) == [2, 2, 2]
        assert gate.closed
        gate.open()
        sync(stream.handle)


@pytest.mark.parametrize("scoped", [True, False])
def test_a_pipeline_over_three_libraries_is_in_order_by_the_scope(  # noqa: PLR0917 - the cases
    three, gate, cells, peek, device, scoped
):
    with on_device(device):
        line = [cells(float(index)) for index in (1, 0, 0, 0)]
    with own_streams_current(three, device), working_on(three, device):
        stream = sk.wrap(three["torch"].current())
        with sk.use(stream) if scoped else contextlib.nullcontext():
            gate.hold(stream.handle)
            for name, pair in zip(WITH_CURRENT, pairs_of(line), strict=True):
                three[name].add_one_current(*pair)
                if not scoped and name != "torch":
                    sync(three[name].handle_of(three[name].current()))
            if scoped:
                assert {s.id for s in sk.current_streams().values()} == {stream.id}
                assert sk.current_stream() is stream
                sk.assert_one_queue()
        assert held(stream.handle)
        assert [peek(cell) for cell in line] == ([1, 0, 0, 0] if scoped else [1, 0, 1, 2])
        assert gate.closed
        gate.open()
        sync(stream.handle)
        assert [peek(cell) for cell in line] == ([1, 2, 3, 4] if scoped else [1, 2, 1, 2])


def pairs_of(line):
    """What each kernel of a pipeline reads and writes."""
    return [(src.pointer, dst.pointer) for src, dst in itertools.pairwise(line)]


def test_the_current_streams_are_the_users_own_objects_again(three):
    own = {name: subject.new_stream() for name, subject in three.items()}
    before_all, first = current_state(three), current(three)
    for name, subject in three.items():
        subject.make_current(own[name])
    try:
        before = current_state(three)
        with sk.new_stream(), sk.use(own["torch"]), sk.wrap(own["cupy"]):
            assert sk.current_streams()["warp"] == sk.wrap(own["cupy"])
        assert current_state(three) == before
        assert three["torch"].current() == own["torch"], "a pool stream came back as another id"
        assert three["cupy"].current() is own["cupy"]
        assert three["warp"].current() is own["warp"]
    finally:
        for name, subject in three.items():
            subject.make_current(first[name])
    assert current_state(three) == before_all


def leave_by_return(stream, body):
    with sk.use(stream):
        body()


def leave_by_exception(stream, body):
    with pytest.raises(KeyError), sk.use(stream):  # noqa: PT012 - the body is what is tested
        body()
        raise KeyError


def leave_by_generator_close(stream, body):
    def generate():
        with sk.use(stream):
            body()
            yield

    generator = generate()
    next(generator)
    generator.close()


@functools.cache
def spare(device, number):
    """One of some streams that are made once: converting a new one to Warp takes milliseconds."""
    return sk.new_stream(device, name=f"spare {number}")


def body_elsewhere(three, device):
    """One of the bodies: it goes to another device, and stays there."""

    def goes_elsewhere():
        elsewhere, warp = (device + 1) % cuda_devices(), three["warp"].warp
        three["torch"].torch.cuda.set_device(elsewhere)
        three["cupy"].cupy.cuda.Device(elsewhere).use()
        warp.set_device("cpu")
        with spare(device, 1):
            assert str(warp.get_device()) == f"cuda:{device}"
        assert warp.get_device().is_cpu
        warp.set_device(f"cuda:{elsewhere}")

    return goes_elsewhere


def bodies(three, device):
    """What a block may do to the libraries on its device, by their own functions and by scopes."""
    torch, cupy, warp = (three[name] for name in WITH_CURRENT)
    kept = []  # a CuPy stream that dies is no longer current

    def new(subject):
        kept.append(subject.new_stream())
        return kept[-1]

    def nothing():
        pass

    def sets():
        for subject in three.values():
            subject.make_current(new(subject))

    def sets_defaults():
        for subject in three.values():
            subject.make_current(subject.default())

    def enters():
        with (
            torch.torch.cuda.stream(new(torch)),
            new(cupy),
            warp.warp.ScopedStream(new(warp)),
        ):
            sets()

    def sets_and_enters():
        sets()
        enters()

    def nests():
        sets()
        with spare(device, 1):
            sets()
            with sk.use(spare(device, 2), libraries=["cupy"]):
                enters()
            with sk.use(spare(device, 3), ordered=True):
                sets()
            with spare(0, 4):
                pass

    return (
        nothing,
        sets,
        sets_defaults,
        enters,
        sets_and_enters,
        body_elsewhere(three, device),
        nests,
    )


def torch_states(subject, keep):
    torch = subject.torch
    foreign = sk.new_stream()
    keep.append(foreign)
    return {
        "default": torch.cuda.default_stream(),
        "pool": torch.cuda.Stream(),
        "external": torch.cuda.get_stream_from_external(foreign.handle, foreign.device_id),
    }


@pytest.mark.parametrize("leave", [leave_by_return, leave_by_exception, leave_by_generator_close])
@pytest.mark.parametrize("warp_state", ["own", "other", "null"])
@pytest.mark.parametrize("cupy_state", ["default", "use", "pushed", "pushed, then use"])
@pytest.mark.parametrize("torch_state", ["default", "pool", "external"])
def test_prior_states_are_restored_however_the_block_ends(  # noqa: PLR0917 - the cases
    three, device, leave, torch_state, cupy_state, warp_state
):
    torch, cupy, warp = (three[name] for name in WITH_CURRENT)
    before_all = current_state(three)
    keep = []
    with contextlib.ExitStack() as undo:
        with on_device(device):  # where its streams are; outside of it, device 0 is current
            first = current(three)
            pushed, used = cupy.new_stream(), cupy.new_stream()
            undo.callback(place, three, first, device)
            torch.make_current(torch_states(torch, keep)[torch_state])
            if cupy_state.startswith("pushed"):
                undo.enter_context(pushed)
            undo.callback(place, three, current(three), device)
            if cupy_state.endswith("use"):
                cupy.make_current(used)
            if warp_state != "own":
                warp.make_current(warp.new_stream() if warp_state == "other" else warp.default())
        before, below = current_state(three), pushed_last(three, device)
        assert current_state(three) == before
        stream = sk.new_stream(device)

        for body in bodies(three, device):
            leave(stream, body)
            assert current_state(three) == before, body.__name__
            assert pushed_last(three, device) == below, body.__name__

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
            leave(spare(0, 4), lambda: None)
            leave(spare(device, 1), lambda: None)
        assert current_state(three) == before
        assert pushed_last(three, device) == below
    assert current_state(three) == before_all


@pytest.mark.parametrize("was_set", [False, True])
def test_a_with_of_cupys_in_a_scope_ends_on_the_scopes_stream(three, device, was_set):
    """It goes back to what was pushed, so a scope must push, and a nested one too if need be."""
    cupy, stream = three["cupy"], sk.new_stream(device)
    with on_device(device):
        first, other, third = (cupy.new_stream() for _ in range(3))

    def goes_back():
        with other:
            assert cupy.current() is other
        return cupy.handle_of(cupy.current()) == stream.handle

    with one_stream_current(three, "cupy", device, first if was_set else None), stream:
        assert goes_back()
        with stream, spare(device, 1), stream:
            assert goes_back()
        assert goes_back()
        third.use()
        with stream:
            assert goes_back()
        assert cupy.current() is third
        assert goes_back()


@pytest.mark.parametrize("elsewhere", ["cpu", "cuda:0", "cuda:1"])
@pytest.mark.parametrize(
    "again",
    [
        lambda stream: stream,
        lambda stream: sk.use(stream, libraries=["warp"]),
        lambda stream: sk.from_handle(stream.handle),
    ],
    ids=["stream", "use", "another object"],
)
def test_entering_again_moves_the_devices_and_gives_the_bodys_back(three, device, again, elsewhere):
    """The body has moved those alone: every library is on the scope's stream all the same."""
    if elsewhere[-1] in set("01") - set(map(str, range(cuda_devices()))):
        pytest.skip("one CUDA device")
    before, stream = current_state(three), sk.new_stream(device)
    with stream:
        inside = current_state(three)
        three["warp"].warp.set_device(elsewhere)
        if elsewhere != "cpu":
            three["torch"].torch.cuda.set_device(elsewhere)
        moved = current_state(three)
        with again(stream):
            assert current_state(three) == inside
        assert current_state(three) == moved
    assert current_state(three) == before


def test_a_scope_creates_no_event_and_asks_for_no_wait(three, monkeypatch):
    from streamkit._cuda import driver, events  # the driver's calls are refused

    stream, other = sk.wrap(three["torch"].new_stream()), sk.new_stream()
    with stream, other:  # builds the views
        pass

    def refuse(*_, **__):
        raise AssertionError("a driver call")

    with monkeypatch.context() as patched:  # not for the ends of the streams, which may call
        for seam, names in {
            driver: ("stream_done",),
            events: (
                *("create", "record", "wait", "is_done"),
                *("create_core", "core_stream", "record_and_wait"),
            ),
        }.items():
            for name in names:
                patched.setattr(seam, name, refuse)
        with stream, other, stream, stream, sk.use(stream, ordered=True):
            pass


def test_a_library_that_refuses_leaves_the_others_where_they_were(three, device):
    before = current_state(three)
    mine = sk.default_stream(device, per_thread=True)
    with pytest.raises(sk.errors.UnsupportedStreamError, match="torch"):
        mine.__enter__()
    assert current_state(three) == before
    with pytest.raises(sk.errors.UnsupportedStreamError, match="torch"), mine:
        pass
    assert current_state(three) == before
    with sk.use(mine, libraries=["cupy"]):
        assert sk.current_stream("cupy") == mine
        assert three["torch"].current() == before["torch"][device]
    assert current_state(three) == before


@pytest.mark.parametrize("outer_device", DEVICES)
def test_leaving_out_of_order_raises_and_restores(three, device, outer_device):
    before = current_state(three)
    outer, inner = sk.new_stream(outer_device, name="outer"), sk.new_stream(device, name="inner")
    first, second = sk.use(outer), sk.use(inner)
    first.__enter__()
    second.__enter__()
    with pytest.raises(sk.errors.ScopeError, match="inner"):
        first.__exit__(None, None, None)
    assert current_state(three) == before
    with pytest.raises(sk.errors.ScopeError):
        second.__exit__(None, None, None)
    assert current_state(three) == before


def test_libraries_narrows_the_scope(three, device):
    before = current_state(three)
    stream = sk.new_stream(device)
    with sk.use(stream, libraries=["cupy"]):
        assert sk.current_stream("cupy") == stream != sk.current_stream("torch")
        assert three["torch"].current() == before["torch"][device]
        with pytest.raises(sk.errors.OneQueueError, match=r"torch on .*; cupy on "):
            sk.assert_one_queue()
        sk.assert_one_queue(libraries=["cupy"])
    assert current_state(three) == before
    for name in ("numba", "cuda.core"):
        with pytest.raises(sk.errors.UnsupportedStreamError, match="no current stream"):
            sk.use(stream, libraries=[name])
        with pytest.raises(sk.errors.UnsupportedStreamError, match="no current stream"):
            sk.current_stream(name)


@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize("library", WITH_CURRENT)
def test_only_an_ordered_scope_waits_for_the_previous_stream(three, gate, device, library, ordered):
    scope = sk.new_stream(device, nonblocking=True)
    with one_stream_current(three, library, device) as previous:
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
    with one_stream_current(three, library, device) as previous:
        with contextlib.suppress(KeyError), sk.use(scope, ordered=ordered):
            gate.hold(scope.handle)
            raise KeyError
        handle = three[library].handle_of(previous)
        assert held(handle) if ordered else idle(handle)
        gate.open()
        scope.sync()


@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize("first", ["previous", "scope"])
@pytest.mark.parametrize("library", WITH_CURRENT)
def test_only_an_ordered_scope_keeps_what_is_before_in_and_after_it_in_order(  # noqa: PLR0917 - the cases
    three, gate, cells, peek, device, library, first, ordered
):
    """``first`` is the queue that is held, from its first work on."""
    subject = three[library]
    with on_device(device):
        line = [cells(float(index)) for index in (1, 0, 0, 0)]
    with one_stream_current(three, library, device) as previous, working_on(three, device):
        scope = sk.new_stream(device, nonblocking=True)
        queues = {"previous": subject.handle_of(previous), "scope": scope.handle}
        works = [lambda pair=pair: subject.add_one_current(*pair) for pair in pairs_of(line)]
        if first == "previous":
            gate.hold(queues["previous"])
        works[0]()
        with sk.use(scope, ordered=ordered):
            if first == "scope":
                gate.hold(queues["scope"])
            works[1]()
        works[2]()
        if ordered:
            assert held(queues["previous"])
            assert [peek(cell) for cell in line] == [1, 0 if first == "previous" else 2, 0, 0]
        else:
            sync(queues["scope" if first == "previous" else "previous"])
            assert [peek(cell) for cell in line] == (
                [1, 0, 1, 0] if first == "previous" else [1, 2, 0, 1]
            )
        assert gate.closed
        gate.open()
        sync(queues["scope"])
        sync(queues["previous"])
        if ordered:
            assert [peek(cell) for cell in line] == [1, 2, 3, 4]


def test_current_stream_names_those_that_differ(three):
    first = current(three)["torch"]
    three["torch"].make_current(three["torch"].new_stream())
    try:
        with pytest.raises(sk.errors.ScopeError, match=r"torch on .*; cupy on "):
            sk.current_stream()
    finally:
        three["torch"].make_current(first)
    with sk.new_stream() as stream:
        assert sk.current_stream() is stream


@pytest.mark.parametrize("submitted", [True, False])
@pytest.mark.parametrize("library", WITH_CURRENT)
def test_only_what_is_submitted_waits_for_the_queue(  # noqa: PLR0917 - the cases
    three, gate, cells, peek, device, library, submitted
):
    stream, subject = sk.new_stream(device), three[library]
    with on_device(device):
        src, dst = cells(1), cells(0)
    with own_streams_current(three, device), working_on(three, device):
        gate.hold(stream.handle)
        if submitted:
            assert stream.submit(subject.add_one_current, src.pointer, dst=dst.pointer) is None
            assert held(stream.handle)
        else:
            subject.add_one_current(src.pointer, dst.pointer)
            sync(subject.handle_of(subject.current()))
        assert peek(dst) == (0 if submitted else 2)
        assert gate.closed
        gate.open()
        sync(stream.handle)
        assert peek(dst) == 2


def test_foreign_streams_are_entered_too(three):
    native = three["torch"].new_stream()
    with sk.use(native) as stream:
        assert stream.native is native
        assert sk.current_stream("warp") == stream


@pytest.mark.parametrize("way", ["wrap", "handle"])
def test_a_nested_scope_tells_torchs_two_streams_of_one_handle_apart(three, device, way):
    """A pool stream and an external one of its handle are not equal, and torch counts by them."""
    torch = three["torch"]
    with on_device(device):
        pool = torch.new_stream()
        external = torch.torch.cuda.ExternalStream(pool.cuda_stream, device)
        # by its handle it is known as what it was wrapped as before, or by an external stream
        stream = sk.wrap(pool) if way == "wrap" else sk.from_handle(pool.cuda_stream, owner=pool)
        with stream:
            before = torch.current()
            assert (before == pool) != (before == external)
            for other in (pool, external):
                with stream:
                    torch.make_current(other)
                assert torch.current() == before


ANOTHER_TORCH = {
    "the same": ("", False),
    "a newer one": ("torch.__version__ = '2.16.0'", False),
    "one name less": ("del calls._cuda_getCurrentRawStream", True),
    "another handle": ("calls._cuda_getCurrentRawStream = lambda device: 64", True),
    "one that notes": ("torch.cuda.set_stream = noting(torch.cuda.set_stream)", True),
    "other places": ("calls._cuda_setStream = swapped(calls._cuda_setStream)", True),
}


@pytest.mark.parametrize("change", ANOTHER_TORCH)
def test_torchs_private_calls_are_used_as_long_as_they_do_what_the_public_ones_do(change):
    """Torch's own public functions go on with each change, by the names of the arguments."""
    changed, is_public = ANOTHER_TORCH[change]
    need("torch")
    said = python(f"""
import torch

def swapped(move):
    return lambda device_type, device_index, stream_id: move(
        stream_id=stream_id, device_index=device_index, device_type=device_type
    )

def noting(move):  # as vLLM does, which launches on what it has noted
    return lambda stream: noted.append(stream) or move(stream)

noted = [torch.cuda.current_stream()]
calls = torch._C
{changed}
import streamkit as sk

first, native = torch.cuda.current_stream(), torch.cuda.Stream()
for stream in (sk.new_stream(), sk.wrap(native)):
    with stream, stream:
        assert torch.cuda.current_stream().cuda_stream == stream.handle
        assert len(noted) == 1 or noted[-1].cuda_stream == stream.handle
        inner = sk.new_stream()
        with inner:
            assert torch.cuda.current_stream().cuda_stream == inner.handle
        assert sk.current_stream("torch") == stream
    assert torch.cuda.current_stream() == first
from streamkit.backends._torch import adapter  # it says which functions were taken

print(adapter._set is adapter._public_set, adapter._get is adapter._public_get)
print("slow-scopes" in [one.code for one in sk.doctor().findings])
""")
    assert said.split() == [str(is_public)] * 3


@pytest.mark.parametrize("state", ["default", "pool", "external"])
@pytest.mark.parametrize("leave", [leave_by_return, leave_by_exception, leave_by_generator_close])
def test_torchs_public_calls_do_what_the_private_ones_do(three, device, monkeypatch, leave, state):
    """They are for versions of torch whose private ones are not known."""
    from streamkit.backends._torch import adapter as torch_adapter  # torch's public calls are tried

    sk.current_stream("torch")  # torch's functions are chosen at the first question
    private = torch_adapter._get, torch_adapter._set
    monkeypatch.setattr(torch_adapter, "_get", torch_adapter._public_get)
    monkeypatch.setattr(torch_adapter, "_set", torch_adapter._public_set)
    monkeypatch.setattr(torch_adapter, "_get_handle", None)
    assert torch_adapter._get not in private, "torch has no private ones"
    torch, keep = three["torch"], []
    with on_device(device):
        first = current(three)
        stands_on = torch_states(torch, keep)[state]
        torch.make_current(stands_on)
        assert torch_adapter._get(device) == private[0](device)
        assert sk.current_stream("torch") == sk.wrap(stands_on)
    try:
        before = current_state(three)
        for body in bodies(three, device):
            leave(spare(device, 5), body)
            assert current_state(three) == before, body.__name__
        stream = sk.new_stream(device)
        with stream, stream:
            torch.make_current(torch.new_stream())
            with stream:
                sk.assert_one_queue()
                assert sk.current_stream("torch") == stream
                assert torch.handle_of(torch.current()) == stream.handle
        assert current_state(three) == before
        assert sk.current_stream("torch", device=device) == sk.wrap(stands_on)
    finally:
        place(three, first, device)
