"""tvm-ffi on real hardware: where its functions launch, given arrays of each library."""

from __future__ import annotations

import contextlib
from functools import partial

import pytest

import streamkit as sk
from support.gpu.raw import check, driver, held, sync
from support.libraries import need


@pytest.fixture(params=["torch", "cupy", "warp"])
def writer_of(request, subjects):
    """Make, for a cell, a call of tvm-ffi that writes 1.0 there, on the stream that it finds."""
    tvm_ffi = need("tvm_ffi")
    made = {name: subjects(name) for name in ("torch", "cupy", "warp")}  # the scope moves all

    def put(array, pointer):
        stream = tvm_ffi.get_raw_stream(array.device)
        check(driver.cuMemsetD32Async(pointer, 0x3F800000, 1, stream))

    function = tvm_ffi.convert(put)
    return lambda cell: partial(function, made[request.param].array(cell.pointer), cell.pointer)


@pytest.mark.parametrize("inside", [True, False])
def test_its_function_runs_on_the_scopes_queue(gate, cells, peek, writer_of, inside):
    stream = sk.new_stream(nonblocking=True)  # which work on the legacy stream does not wait for
    cell = cells(0)
    write = writer_of(cell)
    gate.hold(stream.handle)
    with stream if inside else contextlib.nullcontext():
        write()
    if not inside:  # the control
        sync(1)
    assert held(stream.handle)
    assert peek(cell) == (0 if inside else 1)
    gate.open()
    sync(stream.handle)
    assert peek(cell) == 1


@pytest.mark.parametrize("given", [True, False])
def test_a_stream_as_an_argument_is_the_queue(subjects, gate, cells, peek, given):
    tvm_ffi, stream, cell = need("tvm_ffi"), sk.new_stream(nonblocking=True), cells(0)

    def put(pointer, queue):
        check(driver.cuMemsetD32Async(pointer, 0x3F800000, 1, queue.value or 0))

    gate.hold(stream.handle)
    tvm_ffi.convert(put)(cell.pointer, stream if given else sk.default_stream())
    if not given:  # the control
        sync(1)
    assert held(stream.handle)
    assert (peek(cell), gate.closed) == (0 if given else 1, True)
    gate.open()
    sync(stream.handle)
    assert peek(cell) == 1
