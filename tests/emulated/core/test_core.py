"""cuda.core's own objects, live: streams, events and a graph builder, which is a stream too."""

from __future__ import annotations

import asyncio
import gc
import sys
import types

import pytest

import emulator
import streamkit as sk
from streamkit._cuda import events  # which remembers cuda.core
from support.gpu.raw import busy, stream_id, sync
from support.libraries import need

pytestmark = pytest.mark.usefixtures("handles")


@pytest.fixture(params=[0, 1])
def device(request, in_primary_context):
    device = need("cuda").Device(request.param)
    device.set_current()
    return device


def test_a_stream_of_cuda_core_is_the_queue_it_names(device):
    native = device.create_stream()
    stream = sk.wrap(native)
    assert stream.native is native
    assert stream.to("cuda.core") is native
    assert stream.id == stream_id(int(native.handle))
    assert stream.device_id == device.device_id
    assert stream.is_nonblocking is native.is_nonblocking
    assert stream.priority == native.priority
    assert stream == sk.wrap(device.create_stream(native)) == sk.from_handle(int(native.handle))
    native.close()


def test_a_closed_stream_is_refused_and_one_made_of_handle_0_is_not(device):
    native = device.create_stream()
    builder = native.create_graph_builder()
    null = type(native).from_handle(0)
    assert sk.wrap(null) == sk.default_stream(device.device_id)
    for closed in (builder, native, null):
        closed.close()
        with pytest.raises(sk.errors.StreamClosedError):
            sk.wrap(closed)


async def awaited(stream):
    await stream


USES = {
    "handle": lambda stream: stream.handle,
    "__cuda_stream__": lambda stream: stream.__cuda_stream__(),
    "record": lambda stream: stream.record(),
    "record again": lambda stream: stream.record(RECORDED[0]),
    "wait": lambda stream: stream.wait(sk.new_stream()),
    "waited for": lambda stream: sk.new_stream().wait(stream),
    "sync": lambda stream: stream.sync(),
    "done": lambda stream: stream.done,
    "then": lambda stream: stream.then(print),
    "await": lambda stream: asyncio.run(awaited(stream)),
    "keep": lambda stream: stream.keep([]),
    "with": lambda stream: stream.__enter__(),
    "use": lambda stream: sk.use(stream).__enter__(),
    "to": lambda stream: stream.to("numba"),
    "to itself": lambda stream: stream.to("cuda.core"),
    "wrap": sk.wrap,
    "priority": lambda stream: stream.priority,
}
RECORDED = []


def of_a_builder(device):
    native = device.create_stream()
    return native.create_graph_builder(), [native]


@pytest.mark.parametrize("make", [lambda device: (device.create_stream(), []), of_a_builder])
@pytest.mark.parametrize("used", [False, True])
def test_a_wrapped_stream_that_its_library_closes_is_closed(device, make, used):
    """Whoever gets the handle next must not get its work; the other streams go on."""
    need("numba")
    native, held = make(device)
    stream, other = sk.wrap(native), sk.new_stream(device.device_id)
    RECORDED[:] = [sk.new_event(device=device.device_id)]
    before = hash(stream), stream.id
    assert not stream.closed
    if used:  # what the first use has kept must not serve the next one
        for name in USES.keys() - {"then", "await", "with", "use", "wrap"}:
            USES[name](stream)
        with stream, sk.use(stream):
            pass
    native.close()
    held.clear()
    recycled = [device.create_stream() for _ in range(8)]
    for name, use in USES.items():
        with pytest.raises(sk.errors.StreamClosedError, match="is closed"):
            pytest.fail(f"{name} gave {use(stream)!r}")
    assert stream.closed
    assert not stream.owned
    assert (hash(stream), stream.id, stream.device_id) == (*before, device.device_id)
    assert repr(stream).endswith("closed>")
    assert stream == stream  # noqa: PLR0124 - as every closed stream
    assert stream != sk.wrap(recycled[0])
    other.wait(recycled[0])
    other.sync()


def test_a_stream_of_a_handle_is_closed_with_the_owner_that_says_so(device):
    need("numba")
    native = device.create_stream()
    stream = sk.from_handle(int(native.handle), owner=native)
    view = sk.wrap(stream.to("numba"))
    native.close()
    for one in (stream, view):
        with pytest.raises(sk.errors.StreamClosedError):
            one.record()
        assert one.closed
        assert not one.owned


@pytest.mark.parametrize("closes", ["the first", "the second"])
def test_of_two_streams_on_one_queue_the_open_one_goes_on(device, closes):
    first = device.create_stream()
    second = device.create_stream(first)
    streams = sk.wrap(first), sk.wrap(second)
    keep = type(first).from_handle(int(first.handle))
    (first if closes == "the first" else second).close()
    closed, other = streams if closes == "the first" else reversed(streams)
    with pytest.raises(sk.errors.StreamClosedError):
        closed.sync()
    if hasattr(first, "is_closed") or closes == "the second":  # else the handle is gone
        other.record().sync()
    del keep


def test_a_closed_event_is_no_point_that_was_never_recorded(device):
    stream, native = sk.new_stream(device.device_id), device.create_event()
    wrapped = sk.wrap_event(native)
    stream.record(wrapped)
    native.close()
    for use in (
        lambda: stream.wait(wrapped), lambda: stream.wait(native), lambda: stream.record(wrapped),
        wrapped.sync, lambda: wrapped.done, lambda: wrapped.handle, lambda: sk.wrap_event(native),
    ):  # fmt: skip
        with pytest.raises(sk.errors.StreamClosedError):
            use()


class Slotted:
    """Somebody's stream, which holds what destroys its handle."""

    __slots__ = "__weakref__", "native"

    def __init__(self, native):
        self.native = native

    def __cuda_stream__(self):
        return self.native.__cuda_stream__()


@pytest.mark.parametrize("owner", [lambda native: native, Slotted])
@pytest.mark.parametrize(
    "use",
    [
        lambda obj: sk.wrap(obj).record(),
        lambda obj: sk.new_stream().wait(sk.wrap(obj)),
        lambda obj: [sk.new_stream().wait(obj) for _ in range(3)],
        lambda obj: [sk.wrap(obj).record(), sk.new_stream().wait(obj)],
    ],
)
def test_a_stream_that_the_program_drops_goes_at_once(device, owner, use):
    sk.new_stream().wait(device.create_stream())  # what the first use makes
    gc.collect()
    before = emulator.live("streams")
    kept = sk.new_stream()
    for _ in range(3):
        use(owner(device.create_stream()))
        gc.collect()
    del kept
    gc.collect()
    assert emulator.live("streams") <= before + 1  # StreamKit's may be parked


def test_its_events_order_streamkits_streams(device, gate):
    native, stream = device.create_stream(), sk.new_stream(nonblocking=True)
    control = sk.new_stream(nonblocking=True)
    gate.hold(int(native.handle))
    stream.wait(native.record())
    assert busy(stream.handle)
    assert control.done
    gate.open()
    stream.sync()


def test_streamkits_streams_order_its_streams(device, gate):
    native, control = device.create_stream(), device.create_stream()
    stream = sk.new_stream(device.device_id, nonblocking=True)
    gate.hold(stream.handle)
    native.wait(stream)
    assert busy(int(native.handle))
    assert not busy(int(control.handle))
    gate.open()
    sync(int(native.handle))


def test_work_joins_the_graph_that_a_builder_captures(device):
    native = device.create_stream()
    builder = native.create_graph_builder()
    builder.begin_building()
    capturing = sk.wrap(builder)
    side, beside = (sk.new_stream(device.device_id, nonblocking=True) for _ in range(2))
    assert capturing.is_capturing
    side.wait(capturing)
    assert side.is_capturing
    assert not beside.is_capturing
    capturing.wait(side)
    called = []
    builder.callback(lambda: called.append(True))
    graph = builder.end_building().complete()
    assert called == []
    graph.launch(native)
    native.sync()
    assert called == [True]
    assert not side.is_capturing
    assert sk.wrap(native).id == stream_id(int(native.handle))


def test_a_collection_in_the_middle_of_its_import_makes_events_without_it(monkeypatch):
    stream = sk.new_stream(nonblocking=True)
    events._core.cache_clear()
    with monkeypatch.context() as half:
        half.setitem(sys.modules, "cuda.core", types.ModuleType("cuda.core"))
        event = stream.record(timing=True)
    events._core.cache_clear()
    end = stream.record(timing=True)
    end.sync()
    assert end - event >= 0
