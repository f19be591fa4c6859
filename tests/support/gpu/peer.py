"""Another process on the same GPU, which does what a test tells it, one call after the other."""

from __future__ import annotations

import gc
import importlib
import multiprocessing
import os
import signal
import time

import streamkit as sk
from streamkit.processes import open_event

LONG = 60  # seconds


class Peer:
    """The test's side: ``peer.name(...)`` calls that method of ``Inside`` over there.

    The process starts beside this one; ``begin`` waits for it, as the first call does.
    """

    def __init__(self, *libraries, **environment):
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        before = {name: os.environ.get(name) for name in environment}
        os.environ.update(environment)
        self.process = context.Process(target=serve, args=(theirs, libraries), daemon=True)
        self.process.start()
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
        theirs.close()
        self._has_begun = False

    def __getattr__(self, name):
        def call(*arguments):
            self.ask(name, *arguments)
            return self.answer()

        return call

    def begin(self):
        if not self._has_begun:
            self._has_begun = True
            self.answer()

    def ask(self, name, *arguments):
        self.begin()
        self._pipe.send((name, arguments))

    def has_answered(self, seconds=0.2):
        return self._pipe.poll(seconds)

    def answer(self, seconds=LONG):
        assert self._pipe.poll(seconds), "the other process does not answer"
        kind, result = self._pipe.recv()
        if kind == "error":
            raise result
        return result

    def kill(self):
        self.begin()
        os.kill(self.process.pid, signal.SIGKILL)
        self.process.join(LONG)

    def end(self):
        if self.process.is_alive():
            self.process.kill()
        self.process.join(LONG)
        self._pipe.close()


def serve(pipe, libraries):
    for name in libraries:
        importlib.import_module(name)
    inside = Inside()
    pipe.send(("result", None))
    while True:
        try:
            name, arguments = pipe.recv()
        except EOFError:
            return
        try:
            answer = "result", getattr(inside, name)(*arguments)
        except Exception as error:  # noqa: BLE001 - it is raised in the test
            answer = "error", error.with_traceback(None)
        del arguments
        pipe.send(answer)


class Inside:
    """What the other process can do; its arrays, events and streams have names."""

    def __init__(self):
        self.arrays, self.events, self.leases, self.copies = {}, {}, {}, {}
        self.streams = [sk.new_stream(nonblocking=True) for _ in range(4)]
        self.gate = None

    def open(self, name, token, library=None, stream=0):
        self.arrays[name] = token.open(self.streams[stream], library)
        return type(self.arrays[name]).__module__.partition(".")[0]

    def open_event(self, name, token):
        self.events[name] = open_event(token)

    def export(self, name):
        self.events[name] = sk.new_event(interprocess=True)
        return self.events[name].export()

    def wait(self, name, stream=0):
        self.streams[stream].wait(self.events[name])

    def new_stream(self, device):
        """Make one more stream; return its number."""
        self.streams.append(sk.new_stream(device, nonblocking=True))
        return len(self.streams) - 1

    def is_done(self, stream):
        return self.streams[stream].done

    def record(self, name):
        self.streams[0].record(self.events[name])
        self.streams[0].sync(LONG)

    def copy(self, name, stream=0):
        """Queue a copy of a CuPy array; say whether it is held."""
        from support.gpu.raw import held

        with self.streams[stream]:
            self.copies[name] = self.arrays[name].copy()
        return held(self.streams[stream].handle)

    def copied(self, name, stream=0):
        self.streams[stream].sync(LONG)
        return self.copies[name].tolist()

    def values(self, name, stream=0):
        array = self.arrays[name]
        with self.streams[stream]:
            if hasattr(array, "copy_to_host"):
                return array.copy_to_host().tolist()
            if hasattr(array, "get"):
                return array.get().tolist()
            return array.numpy().tolist() if not hasattr(array, "cpu") else array.cpu().tolist()

    def add(self, name, value):
        with self.streams[0]:
            self.arrays[name] += value
        self.streams[0].sync(LONG)

    def drop(self, name):
        del self.arrays[name]
        gc.collect()

    def look(self):
        """Let StreamKit see what has ended."""
        gc.collect()
        for stream in self.streams:
            stream.sync(LONG)

    def hold(self, stream=0):
        from support.gpu.raw import Gate, on_device

        with on_device(0):
            self.gate = Gate()
            self.gate.hold(self.streams[stream].handle)

    def release(self):
        self.gate.open()

    def share(self, name, value, size=1000):
        """Share an array that a held stream fills, if it is held."""
        import cupy

        with self.streams[0]:
            array = cupy.zeros(size, "f4")
            array.fill(value)
        self.leases[name] = sk.share(array, after=self.streams[0])
        return self.leases[name].token

    def shares(self, count, held):
        """Share so many arrays; the stream of those from this one on is held."""
        tokens = []
        for number in range(count):
            if number == held:
                self.hold()
            tokens.append(self.share(str(number), number))
        return tokens

    def share_tensor(self, name, value, copy):
        import torch

        with self.streams[0]:
            tensor = torch.full((1000,), value, device="cuda")
        self.leases[name] = sk.share(tensor, after=self.streams[0], copy=copy)
        return self.leases[name].token

    def pass_on(self, name, copy):
        """Share an array that another process has shared."""
        self.leases[name] = sk.share(self.arrays[name], after=self.streams[0], copy=copy)
        return self.leases[name].token

    def take(self, name, tensor):
        """What torch.multiprocessing has sent."""
        self.arrays[name] = tensor

    def ends(self, tokens):
        """The first and last number of each array, opened on the streams by turns, and dropped."""
        found = []
        for number, token in enumerate(tokens):
            s = self.streams[number % len(self.streams)]
            array = token.open(s)
            with s:
                found.append((s, array[0:1].copy(), array[-1:].copy()))
            del array
        return [
            (first.get(stream=s).item(), last.get(stream=s).item())
            for s, first, last in [(s.to("cupy"), a, b) for s, a, b in found]
        ]


def until(done, seconds=20):
    """Whether it becomes true, for which a slow machine has time."""
    limit = time.monotonic() + seconds
    while not done():
        if time.monotonic() > limit:
            return False
        time.sleep(0.005)
    return True
