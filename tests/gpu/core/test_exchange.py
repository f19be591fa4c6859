"""Arrays that go between libraries on one queue: who waits for what (docs/guides/arrays.md)."""

from __future__ import annotations

import itertools
import threading
import time
import warnings

import numpy as np
import pytest

import streamkit as sk
from support.gpu.raw import Cell, Gate, busy, check, driver, sync

SIZE = 256


def make_torch(subjects, stream):
    return subjects("torch").torch.ones(SIZE, device="cuda")


def make_cupy(subjects, stream):
    return subjects("cupy").cupy.ones(SIZE, "f4")


def make_warp(subjects, stream):
    return subjects("warp").warp.ones(SIZE, dtype=float, device="cuda:0")


def make_numba(subjects, stream):
    return subjects("numba").cuda.to_device(np.ones(SIZE, "f4"))


def make_numba_bound(subjects, stream):
    return make_numba(subjects, stream).bind(stream.to("numba"))


DLPACK = {
    "torch": lambda subjects: subjects("torch").torch.from_dlpack,
    "cupy": lambda subjects: subjects("cupy").cupy.from_dlpack,
    "warp": lambda subjects: subjects("warp").warp.from_dlpack,
}
MAKERS = {"torch": make_torch, "cupy": make_cupy, "warp": make_warp}


def into_torch(subjects):
    torch = subjects("torch").torch
    return lambda array: torch.as_tensor(array, device="cuda")


def into_warp(subjects):
    warp = subjects("warp").warp
    return lambda array: warp.array(data=array, dtype=float, copy=False, device="cuda:0")


INTERFACE = {
    "torch": into_torch,
    "cupy": lambda subjects: subjects("cupy").cupy.asarray,
    "warp": into_warp,
    "numba": lambda subjects: subjects("numba").cuda.as_cuda_array,
}
SHOWN = {**MAKERS, "numba": make_numba, "numba, bound": make_numba_bound}
BLOCKS = {("cupy", "numba"), ("numba, bound", "cupy")}
"""Who is shown a stream by the producer and waits for it on the host."""


@pytest.fixture(params=["torch's", "StreamKit's"])
def stream(subjects, request):
    for name in ("torch", "cupy", "warp", "numba"):
        subjects(name)
    if request.param == "torch's":
        return sk.wrap(subjects("torch").new_stream())
    return sk.new_stream(nonblocking=True)


def blocks(gate, call):
    """Whether the call waits for the gate, which is opened for it then."""
    gate._view.value = 0
    timer = threading.Timer(0.3, gate.open)
    timer.start()
    call()
    waited = not gate.closed
    timer.cancel()
    timer.join()
    return waited


def pairs(makers, takers):
    return [pair for pair in itertools.product(makers, takers) if pair[0][:5] != pair[1]]


# -- DLPack -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("source", "taker"), pairs(MAKERS, DLPACK))
def test_dlpack_on_a_held_queue_returns_at_once(subjects, gate, stream, source, taker):
    take = DLPACK[taker](subjects)
    with stream:
        take(MAKERS[source](subjects, stream))  # the first time anything may be compiled
        stream.sync()
        array = MAKERS[source](subjects, stream)
        gate.hold(stream.handle)
        assert not blocks(gate, lambda: take(array))


@pytest.mark.parametrize(("source", "taker"), pairs(MAKERS, DLPACK))
def test_dlpack_makes_the_queue_wait_for_no_other(subjects, gate, stream, source, taker):
    take = DLPACK[taker](subjects)
    others = [subjects(name).current() for name in MAKERS]
    holder = sk.new_stream(nonblocking=True)
    with stream:
        take(MAKERS[source](subjects, stream))
        array = MAKERS[source](subjects, stream)
        check(driver.cuCtxSynchronize())
        gate.hold(holder.handle)
        for other in [*map(sk.wrap, others), sk.default_stream()]:
            other.wait(holder)
        assert not blocks(gate, lambda: (take(array), sync(stream.handle)))


@pytest.mark.parametrize("taker", DLPACK)
def test_control_an_array_of_another_queue_is_waited_for(subjects, gate, stream, taker):
    source = "cupy" if taker == "torch" else "torch"
    other = sk.new_stream(nonblocking=True)
    with stream:
        DLPACK[taker](subjects)(MAKERS[source](subjects, stream))
    with other:
        array = MAKERS[source](subjects, other)
        check(driver.cuCtxSynchronize())
        gate.hold(other.handle)
        with sk.use(stream, libraries=[taker]):
            DLPACK[taker](subjects)(array)
        stream.record()
        assert busy(stream.handle)


# -- JAX, on a queue of its own that nobody can move ------------------------------------------

FILL = {
    "torch": lambda array: array.fill_(5),
    "cupy": lambda array: array.fill(5),
    "warp": lambda array: array.fill_(5.0),
}


@pytest.fixture(scope="module")
def jax():
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of its plugins
        patch.setenv("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # else it takes most of the memory
        jax = pytest.importorskip("jax")
        try:
            jax.devices("gpu")[0].get_stream_for_external_ready_events()
            (jax.numpy.zeros(SIZE) + 1).block_until_ready()  # beside other libraries
        except RuntimeError as error:
            pytest.skip(f"JAX has no GPU here, cannot use it, or names no stream: {error}")
    return jax


class Unordered:
    """An array that has nobody wait for it."""

    def __init__(self, array):
        self._array = array
        self.__dlpack_device__ = array.__dlpack_device__

    def __dlpack__(self, stream=None):
        return self._array.__dlpack__(stream=-1)


@pytest.fixture
def adding(subjects, stream, jax):
    """An array of some library, and what has JAX add to it; both have worked before."""

    def prepare(source):
        def add(array):
            return jax.dlpack.from_dlpack(array) + 1

        with stream:
            array = MAKERS[source](subjects, stream)
            FILL[source](array)
            add(array).block_until_ready()
            array = MAKERS[source](subjects, stream)
        check(driver.cuCtxSynchronize())
        return array, add

    return prepare


@pytest.mark.parametrize("source", MAKERS)
@pytest.mark.parametrize("ordered", [True, False])
def test_jax_adds_to_what_the_queue_has_written_before(adding, gate, stream, source, ordered):
    (array, add), added = adding(source), []
    with stream:
        gate.hold(stream.handle)
        FILL[source](array)
        blocks(gate, lambda: added.append(add(array if ordered else Unordered(array))))
        if ordered:
            gate.open()
        assert set(np.asarray(added[0]).tolist()) == {6.0 if ordered else 2.0}
        assert ordered or gate.closed, "the control has read too early"


@pytest.mark.parametrize("source", MAKERS)
def test_jax_has_the_host_wait_for_nothing(adding, gate, stream, source):
    array, add = adding(source)
    with stream:
        gate.hold(stream.handle)
        assert not blocks(gate, lambda: add(array))


@pytest.mark.parametrize("source", MAKERS)
def test_jax_waits_for_no_other_queue(subjects, adding, gate, stream, source):
    (array, add), holder = adding(source), sk.new_stream(nonblocking=True)
    others = [subjects(name).current() for name in MAKERS]
    with stream:
        gate.hold(holder.handle)
        for other in [*map(sk.wrap, others), sk.default_stream()]:
            other.wait(holder)
        assert not blocks(gate, lambda: add(array).block_until_ready())


ADDRESS = {
    "torch": lambda tensor: tensor.data_ptr(),
    "cupy": lambda array: array.data.ptr,
    "warp": lambda array: array.ptr,
}
LONG = 1 << 28, 1 << 29  # numbers; the second where JAX is done too soon with the first


@pytest.fixture(scope="module")
def computing(jax):
    """Begin an array of some 100 ms of work, and tell the value of its numbers."""
    count, steps = itertools.count(), 256

    @jax.jit
    def work(array, factor, summand):
        for _ in range(steps):  # that nobody can shorten
            array = array * factor + summand
        return array

    def begin(size, calls):
        first = float(next(count) % steps)  # else earlier work could leave the same in its memory
        array = jax.numpy.full(size, first, "float32")
        for _ in range(calls):
            array = work(array, 1.0, 1.0)
        return array, first + calls * steps

    for size in reversed(LONG):
        array, value = begin(size, 1)  # compiles
        assert array[size - 1] == value
    start = time.perf_counter()
    begin(LONG[0], 4)[0].block_until_ready()
    one = (time.perf_counter() - start) / 4
    calls = min(max(2, round(0.1 / one)), 24)  # with more of them under way JAX waits for the first
    return lambda size: begin(size, calls)


@pytest.mark.parametrize("taker", DLPACK)
@pytest.mark.parametrize("ordered", [True, False])
def test_a_queue_waits_for_what_jax_computes_and_the_host_does_not(
    subjects, stream, computing, taker, ordered
):
    """In the control arm it is another queue that takes the array."""
    take, cell, other = DLPACK[taker](subjects), Cell(0), sk.new_stream(nonblocking=True)
    for size in LONG:
        array, value = computing(size)
        with stream if ordered else other:
            taken = take(array)
        waited = array.is_ready()
        if not waited:
            break
    assert not waited, "the host has waited for JAX"
    last = ADDRESS[taker](taken) + array.nbytes - 4
    check(driver.cuMemcpyDtoDAsync(cell.pointer, last, 4, stream.handle))
    sync(stream.handle)
    assert ordered or not array.is_ready(), "the control has read too late"
    assert (cell.read() == value) is ordered
    cell.free()


# -- the CUDA array interface -----------------------------------------------------------------


@pytest.mark.parametrize(("source", "taker"), pairs(SHOWN, INTERFACE))
def test_the_array_interface_blocks_where_the_page_says(subjects, gate, stream, source, taker):
    take = INTERFACE[taker](subjects)
    with stream:
        take(SHOWN[source](subjects, stream))
        array = SHOWN[source](subjects, stream)
        check(driver.cuCtxSynchronize())
        gate.hold(stream.handle)
        assert blocks(gate, lambda: take(array)) is ((source, taker) in BLOCKS)


@pytest.mark.parametrize("taker", INTERFACE)
def test_jax_shows_no_stream_and_forbids_to_write(subjects, gate, stream, jax, taker):
    take = INTERFACE[taker](subjects)
    array = (jax.numpy.zeros(SIZE, "float32") + 1).block_until_ready()
    with stream:
        if taker == "torch":
            with pytest.raises(TypeError, match="read only"):
                take(array)
            return
        take(array)
        check(driver.cuCtxSynchronize())
        gate.hold(stream.handle)
        assert not blocks(gate, lambda: take(array))


@pytest.mark.parametrize(("source", "taker"), pairs(MAKERS, INTERFACE))
def test_the_array_interface_orders_nothing_on_the_device(subjects, stream, source, taker):
    """So an array of another queue has to be ordered by hand, but where the host has waited."""
    other, gate = sk.new_stream(nonblocking=True), Gate()
    take = INTERFACE[taker](subjects)
    with other:
        take(SHOWN[source](subjects, other))
        array = SHOWN[source](subjects, other)
        check(driver.cuCtxSynchronize())
        gate.hold(other.handle)
    with stream:
        take(array)
        assert gate.closed
        stream.record()
        sync(stream.handle)
    assert gate.closed
    gate.free()


def test_the_remedies(subjects, gate, stream):
    cupy, cuda = subjects("cupy").cupy, subjects("numba").cuda
    with stream:
        array = make_cupy(subjects, stream)
        bound = make_numba_bound(subjects, stream)
        check(driver.cuCtxSynchronize())
        gate.hold(stream.handle)
        assert not blocks(gate, lambda: cuda.as_cuda_array(array, sync=False))
        assert not blocks(gate, lambda: cupy.asarray(bound.bind(0)))
