"""cuda.core's own objects, live: streams, events and a graph builder, which is a stream too."""

from __future__ import annotations

import sys
import types

import pytest

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
        with pytest.raises(sk.StreamClosedError):
            sk.wrap(closed)


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


@pytest.mark.parametrize("priority", [-99, 1, 100])
def test_a_priority_out_of_range_is_told_the_range(priority):
    with pytest.raises(ValueError, match=rf"priority {priority} .*0 \(low\) to -\d+ \(high\)"):
        sk.new_stream(priority=priority)


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
