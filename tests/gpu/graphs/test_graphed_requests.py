"""Requests that share a graphed function of torch: each gets its own result."""

from __future__ import annotations

import asyncio

import pytest

import streamkit as sk
from support.gpu.raw import Gate, held
from support.libraries import need
from support.programs import run_python
from support.queues import together

pytestmark = pytest.mark.usefixtures("libraries_as_before")
SIDE, WORKERS, EACH = 64, 4, 100
SCOPES = {
    "streamkit's": lambda torch, stream: sk.use(stream, libraries=["torch"]),
    "torch's": lambda torch, stream: torch.cuda.stream(stream.to("torch")),
}


@pytest.fixture
def torch():
    return need("torch")


@pytest.fixture
def model(torch):
    """A function that adds one, by kernels that need scratch memory too."""
    weight = torch.eye(SIDE, device="cuda")
    return lambda x: x @ weight @ weight + 1


@pytest.fixture(params=SCOPES)
def on(torch, request):
    """The scope in which a request makes its call."""
    return lambda stream: SCOPES[request.param](torch, stream)


def filled(torch, number):
    return torch.full((SIDE, SIDE), float(number), device="cuda")


@pytest.mark.parametrize("copies", [True, False])
@pytest.mark.parametrize("kind", ["threads", "tasks"])
def test_four_hundred_requests_at_once_get_their_own_results(torch, model, on, kind, copies):
    """From the first call on. They are read late; without copies, the control, some are wrong."""
    function, inputs, wrong = sk.graphed(model, copy=copies), [filled(torch, 0)], []
    torch.cuda.synchronize()

    def requests(stream, first):
        """Ten requests, whose results are read after the last."""
        with on(stream):
            for number in range(first, first + 10):
                x = filled(torch, number) if copies else inputs[0].fill_(number)
                yield number, function(x)

    async def task(index):
        stream = sk.new_stream(nonblocking=True)
        for first in range(index * EACH, (index + 1) * EACH, 10):
            found = [*requests(stream, first)]
            await stream
            wrong.extend(n for n, result in found if set(result.flatten().tolist()) != {n + 1.0})

    async def tasks():
        await asyncio.gather(*map(task, range(WORKERS)))

    if kind == "threads":
        together(WORKERS, lambda index: asyncio.run(task(index)))
    else:
        asyncio.run(tasks())
    assert (wrong == []) is copies
    assert function.captures == 1


@pytest.mark.parametrize("copies", [True, False])
def test_four_hundred_requests_in_threads_draw_numbers_of_their_own(torch, copies):
    """Without copies, the control, one that is read late has the numbers of a later one."""
    function = sk.graphed(lambda x: torch.nn.functional.dropout(x, 0.5), copy=copies)
    x, seen = torch.ones(SIDE * SIDE, device="cuda"), []
    for _ in range(0 if copies else 2):  # else torch refuses numbers beside a capture
        function(x)

    def worker(_):
        stream = sk.new_stream(nonblocking=True)
        with sk.use(stream, libraries=["torch"]):
            results = [function(x) for _ in range(EACH)]
        stream.sync()
        seen.extend([result.cpu().numpy().tobytes() for result in results])

    together(WORKERS, worker)
    assert len(seen) == WORKERS * EACH
    assert (len(set(seen)) == len(seen)) is copies


def launches_of_a_graph(model, x):
    with sk.capture() as graph:
        result = model(x)
    return lambda _: (graph.launch(), result)[1]


@pytest.mark.parametrize("make", [launches_of_a_graph, lambda model, _: sk.graphed(model)])
def test_without_copies_a_launch_waits_for_who_reads_the_last_result(torch, model, on, make):
    """On its stream, up to the launch. Launches of a graph, the control, wait for no reader."""
    x, streams = filled(torch, 0), [sk.new_stream(nonblocking=True) for _ in range(2)]
    model(x)
    torch.cuda.synchronize()
    call, gate, kept = make(model, x), Gate(), []
    try:
        for _ in range(3):
            call(x)
        torch.cuda.synchronize()
        with on(streams[0]):
            result = call(x)
            streams[0].sync()
            gate.hold(streams[0].handle)
            kept.append(result.clone())
        with on(streams[1]):
            x.fill_(1)
            kept.append(call(x).clone())
        waits = make is not launches_of_a_graph
        assert held(streams[1].handle) is waits
        gate.open()
        torch.cuda.synchronize()
        assert [one.unique().tolist() for one in kept] == [[1.0 if waits else 2.0], [2.0]]
    finally:
        gate.free()


def test_results_are_memory_of_the_callers_stream(torch, model):
    """So torch gives it to no other stream before the caller's work has run."""
    function, side = sk.graphed(model, copy=True), torch.cuda.Stream()
    with torch.cuda.stream(side):
        results = [function(filled(torch, 0)) for _ in range(4)]
    side.synchronize()
    addresses = {result.data_ptr() for result in results}
    assert len(addresses) == 4
    assert {
        segment["stream"]
        for segment in torch.cuda.memory_snapshot()
        for address in addresses
        if 0 <= address - segment["address"] < segment["total_size"]
    } == {side.cuda_stream}


SWAPS = {
    "assign": lambda layer, new: layer.load_state_dict({"weight": new}, assign=True),
    "attribute": lambda layer, new: setattr(layer, "weight", type(layer.weight)(new, False)),
    "data": lambda layer, new: setattr(layer.weight, "data", new),
}


@pytest.mark.parametrize("weights", [True, False])
@pytest.mark.parametrize("way", SWAPS)
def test_swapped_weights_are_used(torch, weights, way):
    """Without the option the old ones are: the control."""
    layer = torch.nn.Linear(4, 1, bias=False, device="cuda").requires_grad_(False)
    x, new = torch.ones(4, device="cuda"), torch.full((1, 4), 128.0, device="cuda")
    old = layer.weight.fill_(64).data  # held, or a graph would read memory of others
    function = sk.graphed(layer, weights=weights)
    found = [function(x).item() for _ in range(3)]
    SWAPS[way](layer, new)
    assert ("address of weight 0" in function.explain(x)) is weights
    found += [function(x).item() for _ in range(3)]
    assert found == [256] * 3 + [512 if weights else 256] * 3
    assert old.unique().item() == 64


ENDS = {
    "a block": "block = sk.capture(); graph = block.__enter__(); x * 2",
    "a generator": """
def work():
    with sk.capture():
        yield x * 2
running = work()
next(running)
""",
    "torch alone, the control": """
graph = torch.cuda.CUDAGraph()
block = torch.cuda.graph(graph)
block.__enter__()
x * 2
""",
}


@pytest.mark.parametrize("way", ENDS)
def test_a_program_that_ends_inside_a_capture_ends_well(torch, way):
    start = "import torch, streamkit as sk\nx = torch.ones(8, device='cuda')\nx * 2\n"
    done = run_python("-W", "ignore", "-c", start + ENDS[way])
    assert (done.returncode, done.stderr) == (0, "")
