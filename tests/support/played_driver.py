"""Calls of the driver that are made, with the callbacks that CUPTI would give for them.

What the emulated driver remembers is really done: memory, streams, captures, the context. Work
and events are played alone, because nothing asks the driver for them afterwards.
"""

from __future__ import annotations

import ctypes
import struct

from cuda.bindings import driver

from support import cupti
from support.cupti import END, NUMBER, Cupti, words
from support.gpu.raw import check, current_context

EXTERNAL = 1


def handle_of(stream):
    return int(getattr(stream, "handle", stream))


class PlayedDriver(Cupti):
    """One method for each call; streams are StreamKit's, or handles."""

    def ask(self, name, *values, **how):
        self.call(NUMBER[name], words(*values), **how)

    def call(self, number, fields, **how):
        before, cupti.CONTEXT = cupti.CONTEXT, current_context()
        try:
            super().call(number, fields, **how)
        finally:
            cupti.CONTEXT = before

    # -- work -------------------------------------------------------------------------------------

    def fill(self, stream, address, size=4):
        fields = struct.pack("<Q8xQQ", address, size, handle_of(stream))
        self.call(NUMBER["cuMemsetD8Async"], fields)

    def copy(self, stream, target, source, size=4):
        self.ask("cuMemcpyDtoDAsync", target, source, size, handle_of(stream))

    def download(self, stream, target, source, size=4):
        self.ask("cuMemcpyDtoHAsync", target, source, size, handle_of(stream))

    def upload(self, stream, target, source, size=4):
        self.ask("cuMemcpyHtoDAsync", target, source, size, handle_of(stream))

    def launch_graph(self, stream):
        self.ask("cuGraphLaunch", 1, handle_of(stream))

    # -- order ------------------------------------------------------------------------------------

    def record(self, stream, event, *, external=False):
        name = "cuEventRecordWithFlags" if external else "cuEventRecord"
        self.ask(name, event, handle_of(stream), EXTERNAL * external)

    def wait(self, stream, event, *, external=False):
        self.ask("cuStreamWaitEvent", handle_of(stream), event, EXTERNAL * external)

    def open_event(self, event):
        place = ctypes.c_uint64(event)
        self.ask("cuIpcOpenEventHandle", ctypes.addressof(place))

    def sync_event(self, event):
        self.ask("cuEventSynchronize", event)

    def sync(self, stream):
        self.ask("cuStreamSynchronize", handle_of(stream))

    def sync_context(self):
        self.ask("cuCtxSynchronize")

    # -- what is made and ends, which is really done ----------------------------------------------

    def really(self, name, *fields):
        fields = [getattr(one, "handle", one) for one in fields]
        self.ask(name, *fields, meanwhile=lambda: check(getattr(driver, name)(*fields)))

    def begin(self, stream):
        self.really("cuStreamBeginCapture", stream, driver.CUstreamCaptureMode(2))

    def end(self, stream, code=0):
        ended, graph = driver.cuStreamEndCapture(handle_of(stream))
        assert ended == code
        check(driver.cuGraphDestroy(graph)) if not code else None

    def allocate(self, size, stream=None):
        """Return an address; with a stream in its order."""
        place = ctypes.c_uint64()

        def make():
            if stream is None:
                place.value = int(check(driver.cuMemAlloc(size)))
            else:
                place.value = int(check(driver.cuMemAllocAsync(size, handle_of(stream))))

        if stream is None:
            self.ask("cuMemAlloc", ctypes.addressof(place), size, meanwhile=make)
        else:
            fields = ctypes.addressof(place), size, handle_of(stream)
            self.ask("cuMemAllocAsync", *fields, meanwhile=make)
        return place.value

    def free(self, address, stream=None):
        if stream is None:
            self.ask("cuMemFree", address, meanwhile=lambda: check(driver.cuMemFree(address)))
        else:
            self.ask("cuMemFreeAsync", address, handle_of(stream))
            check(driver.cuMemFreeAsync(address, handle_of(stream)))

    def make_stream(self, *, nonblocking=False):
        place = ctypes.c_uint64()

        def make():
            place.value = int(check(driver.cuStreamCreate(int(nonblocking))))

        fields = struct.pack("<QI", ctypes.addressof(place), nonblocking)
        self.call(NUMBER["cuStreamCreate"], fields, meanwhile=make)
        return place.value

    def destroy_stream(self, handle):
        self.ask("cuStreamDestroy", handle, sites=(0,))
        check(driver.cuStreamDestroy(handle))
        self.ask("cuStreamDestroy", handle, sites=(END,))
