"""What only hardware shows of the recorder in C: each program does in a block what it does without.

Each runs in a process of its own, because a dead handle or a lock that never comes ends no test.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

from support.libraries import need

HEAD = """
import contextlib, sys, threading
import streamkit as sk
block = getattr(sk, sys.argv[1], contextlib.nullcontext)
"""

PASSES_A_DESTRUCTOR = """
from cuda.core import Device
Device(0).set_current()
with block():
    try:
        Device(0).create_graph_builder().begin_building(mode=None)
    except BaseException as error:
        print(type(error).__name__)
"""

COLLECTED = """
import cupy
x = cupy.zeros(8)
for _ in range(20):
    with block():
        for _ in range(12):
            cycle = [cupy.cuda.Stream(non_blocking=True)]
            cycle.append(cycle)
            with cycle[0]:
                x.fill(1)
print("made")
"""

ENDED_BY_A_THREAD = """
import cupy
x, over = cupy.zeros(8), threading.Event()
def serve():
    while not over.is_set():
        stream = cupy.cuda.Stream(non_blocking=True)
        with stream:
            x.fill(1)
        stream.synchronize()
thread = threading.Thread(target=serve)
thread.start()
for _ in range(20):
    with block():
        for _ in range(30):
            x.fill(2)
over.set()
thread.join()
print("made")
"""

ENDED_WITH_ITS_CONTEXT = """
import torch
from cuda.bindings import driver as cu
torch.zeros(1, device="cuda")
arguments = (None, 0, 0) if cu.CUDA_VERSION >= 13000 else (0, 0)
for _ in range(4):
    with block():
        context = cu.cuCtxCreate(*arguments)[1]
        memory = cu.cuMemAlloc(1 << 20)[1]
        cu.cuMemsetD8Async(memory, 1, 1 << 20, 0)
        cu.cuMemsetD8Async(memory, 2, 1 << 20, cu.cuStreamCreate(1)[1])
        cu.cuCtxSynchronize()
        cu.cuCtxDestroy(context)
        print(int(torch.ones(8, device="cuda").sum()))
"""

LOCKED_BY_A_LIBRARY = """
import torch
size = 256
weight = torch.ones((size, size), device="cuda")
results = [torch.ones((size, size), device="cuda") for _ in range(2)]
def work(number):
    with torch.cuda.stream(torch.cuda.Stream()):
        for _ in range(400):
            results[number] = torch.mm(results[number], weight).div_(size)
    torch.cuda.synchronize()
torch.cuda.synchronize()
with block():
    threads = [threading.Thread(target=work, args=(number,)) for number in range(2)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
print([float(one.sum()) == size * size for one in results])
"""

AFTER_A_FAILED_END_OF_CAPTURE = """
import cupy
x, event = cupy.zeros(1 << 10), cupy.cuda.Event(disable_timing=True)
one, other = (cupy.cuda.Stream(non_blocking=True) for _ in "12")
with other:
    x.fill(1)  # once before
    one.begin_capture()
    event.record(one)
    with block() as report:
        other.wait_event(event)  # which takes it into the capture
        x.fill(1)
        for call in (one.synchronize, one.end_capture):
            with contextlib.suppress(Exception):
                call()
        for _ in range(5):
            x.fill(1)
        other.synchronize()
print(len(getattr(report, "work", range(5))))  # a report of races has none
"""

PROGRAMS = {
    "an exception passes a destructor": (PASSES_A_DESTRUCTOR, ["cuda"], "ValueError"),
    "a stream is collected": (COLLECTED, ["cupy"], "made"),
    "a thread ends streams": (ENDED_BY_A_THREAD, ["cupy"], "made"),
    "a context ends": (ENDED_WITH_ITS_CONTEXT, ["torch", "cuda"], "8"),
    "two threads use cuBLAS": (LOCKED_BY_A_LIBRARY, ["torch"], "[True, True]"),
    "the end of a capture fails": (AFTER_A_FAILED_END_OF_CAPTURE, ["cupy"], "5"),
}


@pytest.mark.parametrize("block", ["none", "audit", "races"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_does_in_a_block_what_it_does_without(tmp_path, name, block):
    """``none`` is the control: the program itself ends so."""
    program, libraries, said = PROGRAMS[name]
    for library in libraries:
        need(library)
    file = tmp_path / "program.py"
    file.write_text(HEAD + program, encoding="utf-8")
    command = [sys.executable, "-X", "faulthandler", str(file), block]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert (done.returncode, done.stdout.split("\n")[-2:]) == (0, [said, ""]), done.stderr
