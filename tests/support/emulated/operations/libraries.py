"""More operations: the libraries' own objects."""

from __future__ import annotations

import streamkit as sk
from support.emulated.operations import foreign, fresh, operation
from support.libraries import need


def warp():
    warp = need("warp")
    warp.config.log_level = warp.LOG_WARNING
    warp.init()
    for device in ("cuda:0", "cuda:1"):
        warp.get_stream(device)  # makes its streams
    return warp


def numba():
    cuda = need("numba")
    from numba.cuda.cudadrv.driver import config

    config.CUDA_DEALLOCS_COUNT = 0  # it destroys at once, not when enough is waiting
    return cuda


@operation
def wrap_a_stream_of_warp(undo):
    native = warp().Stream("cuda:0")
    return lambda: sk.wrap(native)


@operation
def wrap_the_null_stream_of_warp(undo):
    native = warp().get_cuda_device(1).null_stream
    return lambda: sk.wrap(native)


@operation
def wrap_a_stream_of_numba(undo):
    native = numba().stream()
    return lambda: sk.wrap(native)


@operation
def to_cuda_core(undo):
    stream = fresh()
    return lambda: stream.to("cuda.core")


@operation
def to_cuda_bindings(undo):
    stream = sk.wrap(foreign(undo))
    return lambda: stream.to("cuda.bindings")


@operation
def to_numba(undo):
    need("numba")
    stream = fresh()
    return lambda: stream.to("numba")


@operation
def to_warp(undo):
    warp()
    stream = sk.wrap(foreign(undo))
    return lambda: stream.to("warp")


@operation
def to_warp_on_the_other_device(undo):
    warp()
    stream = sk.new_stream(1)
    return lambda: stream.to("warp")


@operation
def to_tvm_ffi(undo):
    need("tvm_ffi")
    stream = sk.wrap(foreign(undo))
    return lambda: stream.to("tvm_ffi")


@operation
def wrap_a_stream_of_tvm_ffi(undo):
    tvm_ffi = need("tvm_ffi")
    _, handle = foreign(undo).__cuda_stream__()
    native = tvm_ffi.use_raw_stream(tvm_ffi.device("cuda", 0), handle)
    return lambda: sk.wrap(native).id


@operation
def the_current_stream_of_tvm_ffi(undo):
    need("tvm_ffi")
    return lambda: sk.current_stream("tvm_ffi", device=1)


@operation
def the_per_thread_stream_to_each_library(undo):
    warp(), need("numba"), need("tvm_ffi")
    stream = sk.default_stream(per_thread=True)
    names = ("cuda.core", "cuda.bindings", "numba", "warp", "tvm_ffi")
    return lambda: [stream.to(name) for name in names]


@operation
def wrap_an_event_of_warp(undo):
    event = warp().Stream("cuda:0").record_event()
    return lambda: sk.wrap_event(event).done


@operation
def record_in_events_of_the_libraries(undo):
    stream, events = fresh(), [warp().Event("cuda:0"), numba().event()]
    return lambda: [stream.record(event) for event in events]


@operation
def wait_for_events_and_streams_of_the_libraries(undo):
    stream, native = fresh(), warp().Stream("cuda:0")
    others = [native.record_event(), native, numba().stream()]
    return lambda: [stream.wait(other) for other in others]


@operation
def event_to_each_library(undo):
    warp(), need("numba")
    event = fresh().record()
    return lambda: [event.to(name) for name in ("cuda.bindings", "numba", "warp")]


@operation(ends=True)
def drop_a_stream_that_warp_has_seen(undo):
    warp()
    stream = sk.new_stream(priority=-1)
    made = [stream, stream.to("warp"), stream.record().to("warp")]
    del stream
    return made.clear
