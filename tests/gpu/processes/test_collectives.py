"""Streams that wait for a collective of torch.distributed, with NCCL and with gloo."""

from __future__ import annotations

import gc
from datetime import timedelta
from pathlib import Path

import pytest

import streamkit as sk
from support.gpu.raw import held
from support.libraries import cuda_devices, need
from support.ranks import run_ranks

torch = need("torch")
dist = torch.distributed


@pytest.fixture(scope="module")
def group(tmp_path_factory, primary_context):
    store = dist.FileStore(str(tmp_path_factory.mktemp("group") / "store"), 1)
    limit = timedelta(seconds=60)
    here = torch.device("cuda", 0)
    dist.init_process_group(
        "nccl", store=store, rank=0, world_size=1, timeout=limit, device_id=here
    )
    # what is made or loaded at a first use would wait for the held queue
    one = torch.ones(1, device=here)
    dist.all_reduce(one.mul_(2), async_op=True).wait()
    one.copy_(torch.ones_like(one))
    with sk.use(sk.new_stream()):  # Warp begins, which takes seconds on a busy machine
        torch.cuda.synchronize()
    yield
    dist.destroy_process_group()


def is_used(address):
    """Whether torch has given the memory to a tensor that is there still."""
    blocks = (block for segment in torch.cuda.memory_snapshot() for block in segment["blocks"])
    return any((b["address"], b["state"]) == (address, "active_allocated") for b in blocks)


def begin(gate):
    """A tensor of twos, and the work that reduces it once a held queue has doubled it."""
    source, x = sk.new_stream(nonblocking=True), torch.full((1000,), 2.0, device="cuda")
    torch.cuda.synchronize()
    gate.hold(source.handle)
    with sk.use(source):
        x.mul_(2)
        return x, dist.all_reduce(x, async_op=True)


@pytest.mark.parametrize("waits_for", ["work", "future", "nothing"])
def test_the_stream_runs_after_it_and_the_host_does_not_wait(gate, group, waits_for):
    s, copy = sk.new_stream(nonblocking=True), torch.zeros(1000, device="cuda")
    x, work = begin(gate)
    if waits_for != "nothing":
        s.wait(work if waits_for == "work" else work.get_future())
    with sk.use(s):
        copy.copy_(x)
    if waits_for == "nothing":
        s.sync(10)
    else:
        assert held(s.handle)
    assert gate.closed  # nothing above has waited for the work
    gate.open()
    s.sync(10)
    assert copy[0].item() == (2 if waits_for == "nothing" else 4)


@pytest.mark.parametrize("kept", [True, False])
def test_its_memory_is_kept_until_the_stream_has_passed_it(gate, group, kept):
    s = sk.new_stream(nonblocking=True)
    x, work = begin(gate)
    address = x.data_ptr()
    if kept:
        s.wait(work)
    else:  # the control: as torch does it
        with sk.use(s):
            work.wait()
    del x, work
    gc.collect()
    assert is_used(address) is kept
    assert gate.closed
    gate.open()
    s.sync(10)
    assert not is_used(address)


def test_a_future_that_is_not_done_is_refused_with_the_way(group):
    with pytest.raises(sk.errors.UnsupportedStreamError, match=r"add_done_callback\(launch\)"):
        sk.new_stream().wait(torch.futures.Future())


@pytest.fixture
def step(group):
    """A step of CuPy, NCCL and Warp, and what it has counted.

    A message to itself runs NCCL's own kernel, whose streams NCCL joins in its own way.
    """
    cupy, warp = need("cupy", "warp")
    warp.init()
    from support.gpu import warp_kernel

    x, y = torch.zeros(1000, device="cuda"), torch.zeros(1000, device="cuda")
    as_cupy, as_warp = cupy.from_dlpack(x), warp.from_torch(y)
    out = warp.zeros(1000, dtype=warp.float32, device="cuda:0")
    torch.cuda.synchronize()  # the zeros are there before another stream adds to them

    def step(asynchronous):
        cupy.add(as_cupy, 1, out=as_cupy)
        dist.all_reduce(x)
        messages = [dist.P2POp(dist.isend, x, 0), dist.P2POp(dist.irecv, y, 0)]
        for work in dist.batch_isend_irecv(messages):
            sk.current_stream().wait(work) if asynchronous else work.wait()
        warp.launch(warp_kernel.add_one, dim=1000, inputs=[as_warp, out], device="cuda:0")

    return step, lambda: (x[0].item(), y[0].item(), out.numpy()[0])


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_capture_has_collectives_beside_cupy_and_warp(step, asynchronous):
    (work, counted), s = step, sk.new_stream(nonblocking=True)
    with sk.use(s):
        work(asynchronous)
    s.sync(10)
    with sk.capture(s) as graph:
        work(asynchronous)
    for _ in range(1000):
        graph.launch(s)
    s.sync(10)
    assert counted() == (1001, 1001, 1002)


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_graphed_function_has_collectives(step, asynchronous):
    work, counted = step
    function, s = sk.graphed(lambda: work(asynchronous)), sk.new_stream(nonblocking=True)
    with sk.use(s):
        for _ in range(100):
            function()
    s.sync(10)
    assert (function.captures, function.hits) == (1, 98)
    assert counted() == (100, 100, 101)


def test_a_collective_that_is_not_waited_for_is_no_part_of_a_capture(group):
    x, s = torch.zeros(1000, device="cuda"), sk.new_stream(nonblocking=True)
    dist.all_reduce(x, op=dist.ReduceOp.AVG)
    torch.cuda.synchronize()
    with pytest.raises(sk.errors.CaptureError, match="not joined"), sk.capture(s):  # noqa: PT012 - what a capture does is in its block
        x.add_(1)
        work = dist.all_reduce(x, op=dist.ReduceOp.AVG, async_op=True)
        x.add_(1)
    del work


# -- two ranks, which need two GPUs ---------------------------------------------------------------

START = """
sys.path[:0] = [TESTS]
import cupy
from support.gpu.raw import Gate, held, idle

torch.cuda.set_device(rank)
cupy.cuda.Device(rank).use()
x, y = cupy.zeros(1000, dtype="f4"), cupy.zeros(1000, dtype="f4")
tensor = torch.from_dlpack(x)
dist.all_reduce(tensor)  # the first one makes what later ones use
s = sk.new_stream(nonblocking=True)
"""


def run(program, folder):
    """The last line of what each of two ranks has printed, with a GPU for each."""
    need("cupy")
    if cuda_devices() < 2:
        pytest.skip("one CUDA device")
    here = str(Path(__file__).parents[2])
    told = run_ranks(START.replace("TESTS", repr(here)) + program, folder, backend="nccl")
    return [lines.splitlines()[-1] for lines in told]  # below what Warp and torch say


REDUCTION = """
gate = Gate()
for array in (x, y):  # kernels are loaded before a queue is held
    array.fill(1), array.fill(0)
torch.cuda.synchronize()
gate.hold(s.handle)
with s.to("cupy"):
    x.fill(rank + 1)
if ORDERED:
    with sk.use(s):
        work = dist.all_reduce(tensor, async_op=True)
    after = sk.new_stream(nonblocking=True)
    after.wait(work)
    beside = sk.new_stream(nonblocking=True)
    with sk.use(beside):
        y.fill(5)
    assert idle(beside.handle)  # computation beside the reduction that is not yet done
    assert held(after.handle)
    gate.open()
else:
    work = dist.all_reduce(tensor, async_op=True)
    after = sk.wrap(torch.cuda.current_stream())
    after.wait(work)
with sk.use(after):
    print(tensor[0].item())
gate.free()
"""


@pytest.mark.parametrize(("ordered", "total"), [(True, "3.0"), (False, "0.0")])
def test_a_reduction_in_a_scope_comes_after_what_cupy_has_written(tmp_path, ordered, total):
    """The control: torch's current stream is not CuPy's, and the sum is of zeros."""
    assert run(REDUCTION.replace("ORDERED", str(ordered)), tmp_path) == [total, total]


WHO_ENDS_FIRST = """
import gc
t = cupy.cuda.Stream(non_blocking=True)
summed = torch.ones(1 << 20, device="cuda")
work = dist.all_reduce(summed, async_op=True)
waited = work if WAITS == "work" else work.get_future()
sk.wrap(t).wait(waited)
as_cupy = cupy.from_dlpack(summed)
with t:
    as_cupy *= 2
t.synchronize()
total = float(as_cupy[0])
del as_cupy, work, waited
gc.collect()
if ENDS == "the stream":
    del t
elif ENDS == "the memory":
    del summed
gc.collect()
t = summed = None
gc.collect()
again = [torch.ones(1 << 20, device="cuda") for _ in range(4)]
torch.cuda.synchronize()
torch.cuda.empty_cache()
print(total)
"""


@pytest.mark.parametrize("waits", ["work", "future"])
@pytest.mark.parametrize("ends", ["the stream", "the memory", "neither"])
def test_the_memory_and_the_stream_that_waited_may_end_in_any_order(tmp_path, ends, waits):
    program = WHO_ENDS_FIRST.replace("ENDS", repr(ends)).replace("WAITS", repr(waits))
    assert run(program, tmp_path) == ["4.0", "4.0"]


REMEMBERS = """
import gc, time
t, gate = cupy.cuda.Stream(non_blocking=True), Gate()
summed = torch.ones(1 << 20, device="cuda")
future = dist.all_reduce(summed, async_op=True).get_future()
if OURS:
    sk.wrap(t).wait(future)
else:
    with torch.cuda.stream(torch.cuda.ExternalStream(t.ptr)):
        future.wait()
torch.cuda.synchronize()
gate.hold(t.ptr)
address = summed.data_ptr()
del summed, future
gc.collect()
sk.new_stream()
for _ in range(20):  # NCCL lets go of what it has reduced at a later call; both ranks make each
    dist.all_reduce(torch.ones(1, device="cuda"))
    time.sleep(0.05)
blocks = [one for found in torch.cuda.memory_snapshot() for one in found["blocks"]]
print([one["state"] for one in blocks if one["address"] == address])
gate.open()
gate.free()
"""


@pytest.mark.parametrize(
    ("ours", "state"), [(True, "active_allocated"), (False, "active_pending_free")]
)
def test_streamkit_keeps_the_memory_for_it_and_torch_does_not(tmp_path, ours, state):
    """The control: torch waits for an event on CuPy's stream, which it so uses after its end."""
    assert run(REMEMBERS.replace("OURS", str(ours)), tmp_path) == [f"['{state}']"] * 2


STEPS = """
import warp
from support.gpu import warp_kernel

warp.init()
device = f"cuda:{rank}"
summed = torch.zeros(1000, device=device)
as_warp, out = warp.from_torch(summed), warp.zeros(1000, dtype=warp.float32, device=device)

def step():
    cupy.add(x, rank + 1, out=x)
    summed.copy_(tensor)
    work = dist.all_reduce(summed, async_op=True)
    sk.current_stream().wait(work)
    warp.launch(warp_kernel.add_one, dim=1000, inputs=[as_warp, out], device=device)

with sk.use(s):
    step()
s.sync(60)
if GRAPHED:
    function = sk.graphed(step)
    with sk.use(s):
        for _ in range(1000):
            function()
    assert (function.captures, function.hits) == (1, 998)
    end = function.clear
else:
    with sk.capture(s) as graph:
        step()
    for _ in range(1000):
        graph.launch(s)
    end = graph.close
s.sync(60)
end()  # or NCCL would wait for it in destroy_process_group
print(summed[0].item(), out.numpy()[0])
"""


@pytest.mark.parametrize("graphed", [True, False])
def test_a_graph_of_each_rank_reduces_a_thousand_times(tmp_path, graphed):
    """CuPy writes, NCCL adds up what both ranks have, and Warp reads the sum."""
    need("warp")
    told = run(STEPS.replace("GRAPHED", str(graphed)), tmp_path)
    assert told == ["3003.0 3004.0"] * 2


OTHER_DEVICE = """
gate = Gate()
tensor.add_(1)  # kernels are loaded before a queue is held
torch.cuda.synchronize()
gate.hold(s.handle)
with sk.use(s):
    work = dist.all_reduce(tensor, async_op=True)
other, beside = (sk.new_stream(1 - rank, nonblocking=True) for _ in range(2))
other.wait(work)
print(held(other.handle), held(beside.handle))
gate.open()
other.sync(60)
gate.free()
"""


def test_a_stream_of_another_device_waits_for_it(tmp_path):
    assert run(OTHER_DEVICE, tmp_path) == ["True False"] * 2


# -- gloo, with tensors on a GPU that both ranks use --------------------------------------------

GLOO = """
import time

x, y = torch.empty(1 << 24, device="cuda"), torch.empty(1 << 24, device="cuda")
s, host, own = sk.new_stream(nonblocking=True), sk.new_stream("cpu"), torch.cuda.Stream()

def begin():
    "A broadcast of ones, which begins when the slower rank joins it."
    x.fill_(2 * rank + 1)
    y.fill_(0)
    torch.cuda.synchronize()
    dist.barrier()
    time.sleep(0.02 * rank)
    return dist.broadcast(x, 0, async_op=True)

def later():
    "Threes, unless what gloo has received is copied there later still."
    y.copy_(x)
    x.mul_(3)

def on_the_host():
    with torch.cuda.stream(own):
        later()
    own.synchronize()

def on_the_stream():
    with sk.use(s):
        later()

begin().wait()  # kernels are loaded
on_the_stream()
s.sync(60)
wrong = 0
for _ in range(10):
    work = begin()
    PROGRAM
    torch.cuda.synchronize()
    work.wait()
    torch.cuda.synchronize()
    wrong += bool((y != 1).any() or (x != 3).any())
s.sync(60)
print(wrong)
"""
WAYS = {
    "stream": "s.wait(work); on_the_stream(); s.sync(60)",
    "two streams": "s.wait(work); t = sk.new_stream(); t.wait(work); t.sync(60); on_the_host()",
    "host": "host.wait(work); host.submit(on_the_host); host.sync(60)",
}


@pytest.mark.parametrize("way", WAYS)
def test_what_waits_for_gloo_comes_after_its_copy_to_the_gpu(tmp_path, way):
    told = run_ranks(GLOO.replace("PROGRAM", WAYS[way]), tmp_path)
    assert [lines.splitlines()[-1] for lines in told] == ["0", "0"]


def test_with_one_connection_to_the_gpu_it_waits_too(tmp_path, monkeypatch):
    """Where all streams share one, no copy may be stuck behind the kernel that waits for it."""
    monkeypatch.setenv("CUDA_DEVICE_MAX_CONNECTIONS", "1")
    told = run_ranks(GLOO.replace("PROGRAM", WAYS["stream"]), tmp_path)
    assert [lines.splitlines()[-1] for lines in told] == ["0", "0"]


def test_control_what_does_not_wait_comes_before(tmp_path):
    told = run_ranks(GLOO.replace("PROGRAM", "on_the_stream(); s.sync(60)"), tmp_path)
    assert "0" not in [lines.splitlines()[-1] for lines in told]


GONE = """
x, s = torch.ones(1000, device="cuda"), sk.new_stream(nonblocking=True)
dist.all_reduce(x)
with sk.use(s):
    x.mul_(2)
s.sync(60)
if rank == 0:
    work = dist.all_reduce(x, async_op=True)
    s.wait(work)
    assert not s.done
    store.set("begun", "")
    s.sync(60)
    try:
        work.wait()
        print("no error")
    except RuntimeError:
        print("its wait raises")
else:
    store.wait(["begun"])
"""


def test_gloo_that_fails_holds_no_stream(tmp_path):
    """As with torch's own calls, the stream goes on, and the error is the work's."""
    told = run_ranks(GONE, tmp_path, end="")
    assert told[0].splitlines()[-1] == "its wait raises"
