"""The machines of the reference model on the host: worker threads, and the adversarial order."""

from __future__ import annotations

import threading
import time
from contextlib import ExitStack

import streamkit as sk
from streamkit.testing import adversarial
from support.queues import LONG


class Threads:
    """Host streams as they are."""

    can_hold = True
    is_inline = True  # the body of a scope is the stream's running item, and entering it waits
    has_libraries = False
    patience = LONG  # seconds in which work has to run that nothing holds

    def __init__(self, make_stream=lambda: sk.new_stream("cpu")):
        self._make_stream = make_stream
        self._streams, self._events, self._gates = {}, {}, {}
        self._ran = []

    def make(self, stream, number):
        self._streams[stream] = self._make_stream()

    def work(self, stream, item):
        self._streams[stream].submit(self._ran.append, item)

    def work_here(self, item):
        sk.current_stream(device="cpu").submit(self._ran.append, item)

    def hold(self, stream, item):
        opened = self._gates[item] = threading.Event()

        def gate():
            assert opened.wait(60), "the gate was not opened"
            self._ran.append(item)

        self._streams[stream].submit(gate)

    def open(self, item):
        self._gates[item].set()

    def record(self, stream, event):
        self._events[event] = self._streams[stream].record(self._events.get(event))

    def wait_event(self, stream, event):
        self._streams[stream].wait(self._events[event])

    def wait_stream(self, stream, other):
        self._streams[stream].wait(self._streams[other])

    def sync(self, stream):
        self._streams[stream].sync(timeout=self.patience)

    def sync_event(self, event):
        self._events[event].sync(timeout=self.patience)

    def done(self, stream):
        return self._streams[stream].done

    def close(self, stream):
        self._streams[stream].close()

    def scope(self, stream, ordered):
        return sk.use(self._streams[stream], ordered=ordered)

    def settle(self):
        """Give work that runs though it should be held the time to do so."""
        time.sleep(0.001)

    def end(self):
        for opened in self._gates.values():
            opened.set()

    def finished(self):
        return frozenset(self._ran)

    def order(self):
        """Return each item's place in the order in which they ran."""
        return {item: place for place, item in enumerate(self._ran)}


class Adversarial(Threads):
    """Host streams in the order of a seed."""

    can_hold = False  # because a gate would hold the only thread

    def __init__(self, seed, make_stream=lambda: sk.new_stream("cpu")):
        super().__init__(make_stream)
        self._scope = ExitStack()
        self._scope.enter_context(adversarial(seed))

    def settle(self):
        """Let all work run, because none runs by itself."""
        self._scope.close()

    def end(self):
        self._scope.close()
