"""What is current in this thread and the libraries, by the driver's answers and their own."""

from __future__ import annotations

import sys

import emulator
from streamkit._queues import identity, keepalive, lifetime, registry  # what others left goes first
from support.gpu.raw import check, driver

LIVE = ("streams", "events", "contexts", "graphs", "nodes", "executables", "pools")
RELAXED = driver.CUstreamCaptureMode(2)


def alive():
    """How many are in use, of each kind, once all work is done; who captures holds a graph."""
    for device in range(2):
        check(driver.cuCtxPushCurrent(check(driver.cuDevicePrimaryCtxRetain(device))))
        check(driver.cuCtxSynchronize())  # else a stream is still busy, and not given again
        check(driver.cuCtxPopCurrent())
        check(driver.cuDevicePrimaryCtxRelease(device))
    keepalive.drain()
    drop_spare_events()
    identity._learned.clear()
    parked = sum(map(len, lifetime._parked.values()))  # a new one joins those that are just busy
    return {kind: emulator.live(kind) - parked * (kind == "streams") for kind in LIVE}


def drop_spare_events():
    """Destroy the events that wait to be used again."""
    for events_of_context in lifetime._spare_events.values():
        events_of_context.clear()  # the queues of the context share the list
    if "warp" in sys.modules:
        registry.adapter("warp").memory._events.clear()


class StateSnapshot:
    """This thread's contexts and capture mode, Warp's streams and default device, and tvm-ffi's."""

    def __init__(self):
        self.contexts = contexts()
        self.mode = check(driver.cuThreadExchangeStreamCaptureMode(RELAXED))
        check(driver.cuThreadExchangeStreamCaptureMode(self.mode))
        self.warp = _Warp() if "warp" in sys.modules else None
        self.tvm_ffi = _TvmFfi() if "tvm_ffi" in sys.modules else None

    def differences(self):
        """What is otherwise now, each with its text."""
        now = StateSnapshot()
        pairs = {
            "the contexts": (self.contexts, now.contexts),
            "the capture mode": (self.mode.name, now.mode.name),
            "Warp": (str(self.warp), str(now.warp)),
            "tvm-ffi": (str(self.tvm_ffi), str(now.tvm_ffi)),
        }
        return {
            what: f"{what}: {before} became {after}"
            for what, (before, after) in pairs.items()
            if before != after
        }

    def restore(self):
        check(driver.cuThreadExchangeStreamCaptureMode(self.mode))
        if self.warp is not None:
            self.warp.restore()
        if self.tvm_ffi is not None:
            self.tvm_ffi.restore()
        set_contexts(self.contexts)


def contexts():
    """Every context on this thread's stack, the current one first."""
    found = []
    while context := int(check(driver.cuCtxGetCurrent())):
        found.append(context)
        check(driver.cuCtxPopCurrent())
    set_contexts(found)
    return found


def set_contexts(contexts):
    while int(check(driver.cuCtxGetCurrent())):
        check(driver.cuCtxPopCurrent())
    for context in reversed(contexts):
        check(driver.cuCtxPushCurrent(context))


class _Warp:
    def __init__(self):
        import warp

        self._set_device = warp.set_device
        self._default = warp.get_device()
        self._devices = [warp.get_cuda_device(index) for index in range(2)]
        self._streams = [device.stream for device in self._devices]
        native = warp._src.context.runtime.core.wp_cuda_context_get_stream
        self._native = [native(device.context) for device in self._devices]

    def __str__(self):
        streams = [stream.cuda_stream for stream in self._streams]
        return f"{streams} in Python, {self._native} natively, {self._default}"

    def restore(self):
        for device, stream in zip(self._devices, self._streams, strict=True):
            device.set_stream(stream, sync=False)
        self._set_device(self._default)


class _TvmFfi:
    def __init__(self):
        import tvm_ffi

        self._devices = [tvm_ffi.device("cuda", index) for index in range(2)]
        self._handles = [tvm_ffi.get_raw_stream(device) for device in self._devices]
        self._use = tvm_ffi.use_raw_stream

    def __str__(self):
        return f"its environment streams {self._handles}"

    def restore(self):
        for device, handle in zip(self._devices, self._handles, strict=True):
            self._use(device, handle).__enter__()  # set, for good
