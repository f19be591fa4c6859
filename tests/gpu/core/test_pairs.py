"""Every ordered pair of libraries: one queue through conversion, order through a wait."""

from __future__ import annotations

import itertools

import pytest

import streamkit as sk
from support.gpu.library_subjects import SUBJECTS
from support.gpu.raw import busy, held, idle, stream_id, sync

PAIRS = list(itertools.permutations(SUBJECTS, 2))
pairs = pytest.mark.parametrize(("first", "second"), PAIRS, ids=[f"{a}-{b}" for a, b in PAIRS])


@pairs
def test_round_trip_keeps_handle_device_and_identity(subjects, first, second):
    one, two = subjects(first), subjects(second)
    native = one.new_stream()
    stream = sk.wrap(native)

    view = stream.to(second)

    assert isinstance(view, two.stream_class())
    assert two.handle_of(view) == one.handle_of(native) == stream.handle
    assert stream.id == stream_id(one.handle_of(native))
    back = sk.wrap(view)
    assert back == stream
    assert hash(back) == hash(stream)
    assert (back.device, back.id) == ("cuda:0", stream.id)
    assert back.native is view
    own = back.to(first)
    assert own is native or (first == "torch" and own == native)  # torch's streams are values
    assert stream.to(first) is native
    assert stream.to(second) is view


@pairs
def test_a_kernel_on_the_converted_stream_runs_on_the_same_queue(  # noqa: PLR0917 - the cases
    subjects, gate, cells, peek, first, second
):
    one, two = subjects(first), subjects(second)
    native = one.new_stream()
    view = sk.wrap(native).to(second)
    src, dst = cells(1), cells(0)

    gate.hold(one.handle_of(native))
    two.add_one(view, src.pointer, dst.pointer)

    assert held(one.handle_of(native))
    assert peek(dst) == 0, "it ran although the queue is held"
    assert gate.closed
    gate.open()
    sync(one.handle_of(native))
    assert peek(dst) == 2


@pairs
def test_control_on_a_stream_of_its_own_it_does_not_wait(  # noqa: PLR0917 - the cases
    subjects, gate, cells, peek, first, second
):
    one, two = subjects(first), subjects(second)
    native, own = one.new_stream(), two.new_stream()
    src, dst = cells(1), cells(0)

    gate.hold(one.handle_of(native))
    two.add_one(own, src.pointer, dst.pointer)

    sync(two.handle_of(own))
    assert peek(dst) == 2
    assert gate.closed


def produce_and_consume(one, two, gate, cells, order):
    """Hold a producer, let a consumer read what it writes, and return what the consumer saw."""
    producer, consumer = one.new_stream(), two.new_stream()
    src, between, result = cells(6), cells(0), cells(0)
    gate.hold(one.handle_of(producer))
    one.add_one(producer, src.pointer, between.pointer)

    order(consumer, producer)
    assert gate.closed, "the call waited for the producer"
    assert busy(one.handle_of(producer))
    two.add_one(consumer, between.pointer, result.pointer)

    return producer, consumer, result


@pairs
def test_the_consumer_waits_for_the_held_producer(subjects, gate, cells, first, second):
    one, two = subjects(first), subjects(second)
    _, consumer, result = produce_and_consume(
        one, two, gate, cells, lambda later, earlier: sk.wrap(later).wait(earlier)
    )
    assert busy(two.handle_of(consumer)), "the consumer ran ahead of its producer"
    gate.open()
    sync(two.handle_of(consumer))
    assert result.read() == 8


@pairs
def test_control_without_the_wait_it_reads_the_old_value(subjects, gate, cells, first, second):
    one, two = subjects(first), subjects(second)
    _, consumer, result = produce_and_consume(one, two, gate, cells, lambda _later, _earlier: None)
    sync(two.handle_of(consumer))
    assert gate.closed
    gate.open()
    assert result.read() == 1


@pairs
def test_the_consumer_waits_for_the_other_librarys_event(subjects, gate, first, second):
    one, two = subjects(first), subjects(second)
    producer, consumer = one.new_stream(), two.new_stream()
    gate.hold(one.handle_of(producer))
    event = one.new_event(producer)

    assert idle(two.handle_of(consumer))
    sk.wrap(consumer).wait(event)

    assert not sk.wrap_event(event).done
    assert held(two.handle_of(consumer))
    gate.open()
    sync(two.handle_of(consumer))
    assert sk.wrap_event(event).done


@pairs
def test_every_call_returns_while_the_queue_is_held(subjects, gate, first, second):
    for name in ("torch", "cupy", "warp"):  # the scope below moves all that are imported
        subjects(name)
    one, two = subjects(first), subjects(second)
    native, other = one.new_stream(), two.new_stream()
    handle = one.handle_of(native)
    gate.hold(handle)

    stream = sk.wrap(native)
    event = stream.record()
    timed = stream.record(timing=True)
    stream.to(second)
    stream.wait(other)
    sk.wrap(other).wait(stream)
    sk.wrap(other).wait(event)
    assert not sk.wrap_event(two.new_event(other)).done
    assert not stream.done
    assert not event.done
    assert not timed.done
    repr(stream), hash(stream), stream.is_nonblocking, stream.priority, stream.context
    with stream:
        assert sk.current_streams() is not None
    with sk.use(other, ordered=True):
        pass
    with pytest.raises(TimeoutError, match="CudaStream"):
        stream.sync(timeout=0.01)
    with pytest.raises(TimeoutError, match="CudaEvent"):
        event.sync(timeout=0.01)
    stream.close()
    del stream, event, timed

    assert gate.closed
    assert busy(handle)
