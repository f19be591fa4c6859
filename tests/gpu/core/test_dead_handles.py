"""Streams, contexts and arrays that end while StreamKit has met them: each program in a process.

The control of each program is the same without StreamKit: it ends well too, so that what crashes
here is StreamKit's.
"""

from __future__ import annotations

import textwrap

import pytest

from support.libraries import need
from support.programs import run_python

START = """
import contextlib, gc, threading
import cupy, torch
import cuda.core
from cuda.bindings import driver as cu
core = cuda.core.Device(0)
core.set_current()
x = torch.zeros(1 << 16, device="cuda")
torch.cuda.synchronize()
if OURS:
    import streamkit as sk
    use, wrap = sk.use, sk.wrap
else:
    use = lambda stream, ordered=False: contextlib.nullcontext()
    wrap = lambda stream: None

def do(call, *arguments):
    code, *found = call(*arguments)
    assert not code, (call.__name__, code)
    return found[0] if found else None
"""

PROGRAMS = {
    "the owner closes its stream in the scope": """
    for turn in range(40):
        stream = core.create_stream()
        with use(stream, ordered=bool(turn % 2)):
            y = x + 1
            z = cupy.arange(1 << 16)
            if WARP:
                import warp
                w = warp.zeros(1 << 16, device="cuda:0")
                del w
            stream.sync()
            stream.close()
        del y, z
    print(float(x.sum()))
    """,
    "streams in circles of references": """
    for turn in range(40):
        for _ in range(12):
            circle = [cupy.cuda.Stream(non_blocking=True)]
            circle.append(circle)
            stream = wrap(circle[0])
            with use(circle[0], ordered=True):
                x.add_(1)
            if OURS:
                sk.new_stream().wait(stream)
                stream.keep(circle)
                sk.handoff(x, stream, after=sk.current_stream("torch"))
            del circle, stream
        torch.cuda.synchronize()
    print(float(x[0]))
    """,
    "another thread makes and ends streams": """
    over = threading.Event()
    def serve():
        while not over.is_set():
            stream = cupy.cuda.Stream(non_blocking=True)
            with use(stream):
                cupy.zeros(8).fill(1)
            if OURS:
                sk.wrap(stream).then(int)
                sk.wrap(stream).record()
            stream.synchronize()
            del stream
    threads = [threading.Thread(target=serve) for _ in range(2)]
    for thread in threads: thread.start()
    for turn in range(400):
        with use(torch.cuda.current_stream()):
            x.add_(1)
    over.set()
    for thread in threads: thread.join()
    torch.cuda.synchronize()
    print(float(x[0]))
    """,
    "a context ends before what was made in it": """
    new = (None, 0, 0) if cu.CUDA_VERSION >= 13000 else (0, 0)
    for turn in range(8):
        context = do(cu.cuCtxCreate, *new)
        stream = do(cu.cuStreamCreate, 1)
        memory = do(cu.cuMemAlloc, 1 << 20)
        do(cu.cuMemsetD8Async, memory, 1, 1 << 20, stream)
        if OURS:
            mine = sk.wrap(stream)
            event, timed = mine.record(), mine.record(timing=True)
            sk.new_stream(0).wait(mine)
            mine.keep(bytearray(8))
            mine.sync()
        do(cu.cuCtxSynchronize)
        do(cu.cuCtxDestroy, context)
        core.set_current()
        mine = event = timed = None
        gc.collect()
        torch.ones(8, device="cuda").sum().item()
    print("over")
    """,
}


@pytest.mark.parametrize("what", PROGRAMS)
def test_nothing_that_is_dead_is_given_to_the_driver(what):
    need("torch", "cupy", "cuda", "warp")
    ends = []
    for ours in (True, False):
        known = f"OURS, WARP = {ours}, {ours}\n"
        program = known + START + textwrap.dedent(PROGRAMS[what])
        done = run_python("-X", "faulthandler", "-W", "ignore", "-c", program)
        ends.append((done.returncode, done.stdout.splitlines()[-1:], done.stderr[-2000:]))
    assert [end[0] for end in ends] == [0, 0], ends
    assert ends[0][1] == ends[1][1], ends
