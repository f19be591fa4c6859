"""How a script asks the driver and writes down what it answered.

Only ``cuda.bindings.driver`` is used, and no address, id or time is ever an observation.
"""

from __future__ import annotations

import contextlib
import ctypes
import threading
import time

from cuda.bindings import driver

SETTLE = 0.5
"""Seconds after which work that has not run counts as held."""

LEGACY, PER_THREAD = 1, 2
GLOBAL, THREAD_LOCAL, RELAXED = (driver.CUstreamCaptureMode(number) for number in range(3))
MODES = {"global": GLOBAL, "thread_local": THREAD_LOCAL, "relaxed": RELAXED}
STATUS = ("none", "active", "invalidated")


def code(result):
    """The name of the code with which a call ended."""
    return driver.CUresult(int(result[0])).name.removeprefix("CUDA_").removeprefix("ERROR_")


def ok(result):
    """The answer of a call that has to succeed."""
    answers = result[1:]
    assert not result[0], code(result)
    return answers[0] if len(answers) == 1 else answers


def answer(result):
    """The answer as a number, or the name of the error."""
    return code(result) if result[0] else int(result[1])


def device_count():
    return int(ok(driver.cuDeviceGetCount()))


def primary(device=0):
    return ok(driver.cuDevicePrimaryCtxRetain(device))


def new_context(device=0):
    """A context of its own, which becomes current."""
    arguments = (None, 0, device) if driver.CUDA_VERSION >= 13000 else (0, device)
    return ok(driver.cuCtxCreate(*arguments))


@contextlib.contextmanager
def current(context):
    ok(driver.cuCtxPushCurrent(context))
    try:
        yield
    finally:
        ok(driver.cuCtxPopCurrent())


@contextlib.contextmanager
def streams(*nonblocking):
    """Streams for the block, given by their flag."""
    made = [int(ok(driver.cuStreamCreate(int(flag)))) for flag in nonblocking]
    try:
        yield made[0] if len(made) == 1 else made
    finally:
        for handle in made:
            driver.cuStreamDestroy(handle)


@contextlib.contextmanager
def events(count=1, flags=2):
    made = [ok(driver.cuEventCreate(flags)) for _ in range(count)]
    try:
        yield made[0] if count == 1 else made
    finally:
        for event in made:
            driver.cuEventDestroy(event)


class Gate:
    """A word of pinned memory on which queues wait; opens by itself, so that nothing hangs."""

    def __init__(self):
        self.word = ok(driver.cuMemHostAlloc(64, driver.CU_MEMHOSTALLOC_DEVICEMAP))
        self.device_word = int(ok(driver.cuMemHostGetDevicePointer(self.word, 0)))
        self.view = (ctypes.c_uint32 * 16).from_address(int(self.word))
        self.view[:] = [0] * 16
        self.opener = threading.Timer(30, self.open)
        self.opener.daemon = True
        self.opener.start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.open()
        self.opener.cancel()
        ok(driver.cuCtxSynchronize())
        ok(driver.cuMemFreeHost(self.word))

    def hold(self, stream):
        ok(driver.cuStreamWaitValue32(stream, self.device_word, 1, 0))

    def open(self):
        self.view[0] = 1


def settled(ask):
    """``reached`` once the query succeeds, ``held`` if it stays NOT_READY, or its error."""
    deadline = time.monotonic() + SETTLE
    while True:
        found = code(ask())
        if found == "SUCCESS":
            return "reached"
        if found != "NOT_READY":
            return found
        if time.monotonic() > deadline:
            return "held"
        time.sleep(0.001)


def in_thread(fn, *, context=None):
    """What ``fn()`` returns in a thread of its own."""
    found = []

    def run():
        if context is not None:
            ok(driver.cuCtxSetCurrent(context))
        try:
            found.append(fn())
        except Exception as error:  # noqa: BLE001 - that it raised is the observation
            found.append(f"raised {type(error).__name__}")

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return found[0]


def returns(call, gate):
    """Whether a call comes back while the gate holds a queue, and its code in the end."""
    context, found = ok(driver.cuCtxGetCurrent()), []

    def run():
        ok(driver.cuCtxSetCurrent(context))
        found.append(code(call()))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(SETTLE)
    way = "held" if thread.is_alive() else "returned"
    gate.open()
    thread.join()
    return [way, *found]


def exchange(mode):
    """Exchange this thread's capture mode; return the previous one's name."""
    return driver.CUstreamCaptureMode(
        int(ok(driver.cuThreadExchangeStreamCaptureMode(mode)))
    ).name.rpartition("_")[2]


def capture_status(stream):
    result = driver.cuStreamIsCapturing(stream)
    return code(result) if result[0] else STATUS[int(result[1])]


def node_types(graph):
    """The types of a graph's nodes, sorted."""
    _, count = ok(driver.cuGraphGetNodes(graph))
    nodes = ok(driver.cuGraphGetNodes(graph, count))[0] if count else []
    return sorted(
        ok(driver.cuGraphNodeGetType(node)).name.removeprefix("CU_GRAPH_NODE_TYPE_")
        for node in nodes[:count]
    )


def end_capture(stream):
    """How a capture ends: the types of its nodes, or the error."""
    result = driver.cuStreamEndCapture(stream)
    if result[0]:
        return code(result)
    types = node_types(result[1])
    ok(driver.cuGraphDestroy(result[1]))
    return types
