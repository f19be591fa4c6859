"""The machine of the reference model on the CUDA streams of an emulated driver.

Work is a write of a word and a gate is a wait for one, by calls of the driver on raw handles. What
has run is read from memory, so that nothing depends on StreamKit's answers. Streams and events have
many origins. This is not for hardware, which may put two streams on one channel, where the gate of
one would hold the other.
"""

from __future__ import annotations

import ctypes
import itertools
import sys
import time

from cuda.bindings import driver
from cuda.core import Device

import streamkit as sk
from support.queues import LONG

WORDS = 1024  # more than a program has items
SIZE = 2 * WORDS * 4


def check(result):
    code, *answers = result
    assert not code, f"{code!r}"
    return answers[0] if len(answers) == 1 else None


class Words:
    """Pinned host memory, two words for each item: 1 once it has run, 1 once its gate is open."""

    def __init__(self):
        self._host = check(driver.cuMemHostAlloc(SIZE, driver.CU_MEMHOSTALLOC_DEVICEMAP))
        self._device = int(check(driver.cuMemHostGetDevicePointer(self._host, 0)))
        self._values = (ctypes.c_uint32 * (2 * WORDS)).from_address(int(self._host))
        ctypes.memset(self._values, 0, SIZE)

    def write(self, handle, item):
        check(driver.cuStreamWriteValue32(handle, self._device + 4 * item, 1, 0))

    def hold(self, handle, item):
        check(driver.cuStreamWaitValue32(handle, self._device + 4 * (WORDS + item), 1, 0))
        self.write(handle, item)

    def open(self, item):
        self._values[WORDS + item] = 1

    def finished(self, items):
        return frozenset(item for item in items if self._values[item])

    def free(self):
        check(driver.cuMemFreeHost(self._host))


class Cuda:
    """CUDA streams of StreamKit and of others. If Warp is imported, scopes move its stream."""

    can_hold = True
    is_inline = False
    patience = LONG

    def __init__(self, make_stream=sk.wrap):
        """``make_stream`` makes a StreamKit stream of another one."""
        self._device = Device(0)
        self._device.set_current()
        self._warp = sys.modules.get("warp")
        self.has_libraries = self._warp is not None
        self._make_stream, self._origins = make_stream, itertools.cycle(ORIGINS)
        self._words, self._items, self._gates = Words(), [], []
        self._streams, self._others, self._events = {}, {}, {}
        self._raw_streams, self._raw_events = [], {}

    # -- where the streams and events come from -----------------------------------------------

    def _blocking(self):
        return sk.new_stream("cuda:0")

    def _nonblocking(self):
        return sk.new_stream("cuda:0", nonblocking=True)

    def _raw(self):
        self._raw_streams.append(check(driver.cuStreamCreate(1)))
        return self._raw_streams[-1]

    def _core(self):
        return self._device.create_stream()

    def make(self, stream, number):
        other = next(self._origins)(self)
        self._others[stream] = other  # what is waited for
        self._streams[stream] = self._make_stream(other)

    def _event(self, event):
        if event == 0 and event not in self._raw_events:
            self._raw_events[event] = check(driver.cuEventCreate(2))
        return self._raw_events.get(event, self._events.get(event))

    # -- the operations -----------------------------------------------------------------------

    def work(self, stream, item):
        self._items.append(item)
        self._words.write(self._streams[stream].handle, item)

    def work_here(self, item):
        current = self._warp.get_stream("cuda:0").cuda_stream if self._warp else None
        self._items.append(item)
        self._words.write(current or sk.current_stream().handle, item)

    def hold(self, stream, item):
        self._items.append(item)
        self._gates.append(item)
        self._words.hold(self._streams[stream].handle, item)

    def open(self, item):
        self._words.open(item)

    def record(self, stream, event):
        self._events[event] = self._streams[stream].record(self._event(event))

    def wait_event(self, stream, event):
        self._streams[stream].wait(self._event(event))

    def wait_stream(self, stream, other):
        self._streams[stream].wait(self._others[other])

    def sync(self, stream):
        self._streams[stream].sync(timeout=self.patience)

    def sync_event(self, event):
        sk.wrap_event(self._event(event)).sync(timeout=self.patience)

    def done(self, stream):
        return self._streams[stream].done

    def close(self, stream):
        del self._others[stream]
        self._streams.pop(stream).close()

    def scope(self, stream, ordered):
        return sk.use(self._streams[stream], libraries=["warp"], ordered=ordered)

    # -- what happened ------------------------------------------------------------------------

    def settle(self):
        """Give work that runs though it should be held the time to do so."""
        time.sleep(0.001)

    def finished(self):
        return self._words.finished(self._items)

    def order(self):
        """Return nothing, because memory tells that an item has run, but not when."""
        return {}

    def end(self):
        for item in self._gates:
            self._words.open(item)
        check(driver.cuCtxSynchronize())
        self._words.free()
        for raw in self._raw_events.values():
            check(driver.cuEventDestroy(raw))
        self._streams.clear()
        for raw in self._raw_streams:
            check(driver.cuStreamDestroy(raw))


ORIGINS = (Cuda._blocking, Cuda._raw, Cuda._core, Cuda._nonblocking)
