"""``graphed`` on torch, CuPy and Warp: right with old and new data, in old and new arrays."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest

import streamkit as sk
from support.gpu.raw import Gate, check, driver
from support.libraries import cuda_devices, need
from support.programs import run_python

pytestmark = pytest.mark.usefixtures("libraries_as_before")
COUNT = 4096


@pytest.fixture
def torch():
    return need("torch")


def device_memory():
    """Bytes in use on the device."""
    check(driver.cuCtxSynchronize())
    free, total = check(driver.cuMemGetInfo())
    return total - free


def in_all_libraries(workload):
    """What the workload does after its dropout: work of each library, on each other's results."""
    return sk.graphed(workload.rest)


def test_a_mixed_function_is_right_at_each_call(workload):
    torch = workload.torch
    function, x = in_all_libraries(workload), torch.rand(COUNT // 64, 64, device="cuda")
    for _ in range(100):
        x.uniform_(-1, 1)
        assert torch.allclose(function(x), workload.rest(x), rtol=1e-4, atol=1e-4)
    assert (function.captures, function.hits) == (1, 98)


@pytest.mark.parametrize("copies", [False, True])
def test_new_data_in_new_arrays_is_not_the_old(workload, copies):
    torch = workload.torch
    function = sk.graphed(workload.rest, copy=copies)
    held = []
    for _ in range(20):
        x = torch.empty(COUNT // 64, 64, device="cuda").uniform_(-1, 1)
        held.append(x)  # so that each has its own address
        for _ in range(3):
            assert torch.allclose(function(x), workload.rest(x), rtol=1e-4, atol=1e-4)
    assert function.captures == (1 if copies else 20)


@pytest.mark.parametrize("library", ["torch", "cupy", "warp", "numba"])
def test_what_a_function_writes_into_arguments_is_copied_back(torch, library):
    served = need(library)
    taken_by = {"cupy": "from_dlpack", "warp": "from_torch", "numba": "as_cuda_array"}
    from_torch = getattr(served, taken_by[library]) if library in taken_by else torch.as_tensor
    cupy = need("cupy")

    @sk.graphed(copy=True)
    def double(array):
        cupy.multiply(cupy.asarray(array), 2, out=cupy.asarray(array))

    for value in range(1, 6):
        x = torch.full((COUNT,), float(value), device="cuda")
        double(from_torch(x))
        assert set(x.tolist()) == {2.0 * value}
    assert double.captures == 1


def test_a_state_that_a_call_returns_is_the_argument_of_the_next_one(torch):
    weight = torch.rand(64, 64, device="cuda")

    def advance(x, state):
        return torch.tanh(x + state @ weight)

    graphed, states = sk.graphed(advance, copy=True), [torch.zeros(1, 64, device="cuda")] * 2
    for _ in range(8):
        x = torch.rand(1, 64, device="cuda")
        states = [step(x, state) for step, state in zip((advance, graphed), states, strict=True)]
        assert torch.equal(*states)
    assert (graphed.captures, graphed.hits) == (1, 6)


def test_expanded_arrays_and_chunks_of_one_array_have_copies(torch):
    @sk.graphed(copy=True)
    def attend(bias, q, k):
        return q * k + bias

    held = []
    for number in range(4):
        bias = torch.full((1,), float(number), device="cuda").expand(8, 4)
        q, k = torch.rand(8, 8, device="cuda").chunk(2, -1)
        held += [bias, q, k]
        assert torch.equal(attend(bias, q, k), q * k + bias)
        assert bias.unique().tolist() == [number]
    assert attend.captures == 1


def test_a_tensor_that_only_holds_others_is_refused(torch):
    two_tensor = pytest.importorskip("torch.testing._internal.two_tensor")
    whole = two_tensor.TwoTensor(*(torch.ones(4, device="cuda") for _ in range(2)))
    with pytest.raises(TypeError, match=r"has no memory of its own.*Pass the arrays that it holds"):
        sk.graphed(lambda x: x * 2)(whole)


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")  # torch's own, as it begins
def test_forward_mode_differentiation_sees_each_call(torch):
    from torch.autograd import forward_ad

    square = sk.graphed(lambda x: x * x)
    x, tangent = torch.arange(4.0, device="cuda"), torch.ones(4, device="cuda")
    for _ in range(4):
        with forward_ad.dual_level():
            found = forward_ad.unpack_dual(square(forward_ad.make_dual(x, tangent)))
            assert torch.equal(found.tangent, 2 * x)
    assert (square.captures, square.graphs) == (0, 0)
    for _ in range(3):
        square(x)
    assert square.captures == 1


@pytest.mark.alone  # for the memory in use is that of all processes
def test_a_thousand_signatures_leave_the_memory_flat(workload):
    torch = workload.torch
    function, used = in_all_libraries(workload), []
    for index in range(1000):
        x = torch.rand(COUNT // 64, 64, device="cuda")
        kept = [torch.empty(0, device="cuda")]
        for _ in range(2):
            result = function(x)
        assert torch.allclose(result, workload.rest(x), rtol=1e-4, atol=1e-4)
        del x, result, kept
        if index in (200, 999):
            gc.collect()
            used.append(device_memory())
    assert function.graphs <= 16
    assert used[1] - used[0] < 32 * 2**20


@pytest.mark.alone  # as above
def test_without_torch_a_new_signature_takes_the_place_of_the_oldest_graph():
    """Its memory goes with it, and the results of its last run stay as they were."""
    tests = Path(__file__).parents[2]
    done = run_python(tests / "support/gpu/graphed_without_torch.py", path=[tests])
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == (
        "300 captures, 4 graphs, 300 executables, [] wrong, memory flat"
    )


def test_a_result_outlives_its_graph(workload):
    torch = workload.torch
    function, x = in_all_libraries(workload), torch.rand(COUNT // 64, 64, device="cuda")
    for _ in range(3):
        result = function(x)
    expected = result.clone()
    function.clear()
    del function
    gc.collect()
    torch.cuda.synchronize()
    others = [torch.full((COUNT,), -1.0, device="cuda") for _ in range(50)]
    assert torch.equal(result, expected)
    del others


def test_a_launch_is_in_order_with_each_library(torch):
    """It waits for what is held on torch's current stream, and torch's next work for it."""
    cupy, gate = need("cupy"), Gate()

    @sk.graphed
    def copied(x):
        return torch.from_dlpack(cupy.from_dlpack(x) * 1)

    x = torch.zeros(COUNT, device="cuda")
    side = torch.cuda.Stream()
    try:
        with torch.cuda.stream(side):
            for _ in range(2):
                result = copied(x)
            torch.cuda.synchronize()
            gate.hold(side.cuda_stream)
            x.fill_(7)
            copied(x)
            seen = result.clone()
            gate.open()
            assert set(seen.tolist()) == {7.0}
        # the control: launched without that order a graph has read the old values
        torch.cuda.synchronize()
        gate.free()
        gate = Gate()
        with sk.capture() as graph:
            result = torch.from_dlpack(cupy.from_dlpack(x) * 1)
        graph.launch()
        torch.cuda.synchronize()
        with torch.cuda.stream(side), sk.use(sk.new_stream(nonblocking=True)) as apart:
            gate.hold(side.cuda_stream)
            with torch.cuda.stream(side):
                x.fill_(8)
            graph.launch()
            apart.sync()
            assert set(result.tolist()) == {7.0}
    finally:
        gate.free()


def test_what_waits_for_the_gpu_is_told_with_its_line(torch):
    @sk.graphed
    def function(x):
        y = x * 2
        return y.sum().item()  # the line

    x = torch.ones(COUNT, device="cuda")
    function(x)
    line = function.__wrapped__.__code__.co_firstlineno + 3
    with pytest.raises(sk.errors.CaptureError, match=rf"function \(line {line} of "):
        function(x)
    assert torch.equal(x * 2, torch.full_like(x, 2))


def test_a_tensor_that_requires_a_gradient_is_refused(torch):
    function = sk.graphed(lambda x: x * 2)
    with pytest.raises(ValueError, match="requires a gradient"):
        function(torch.ones(4, device="cuda", requires_grad=True))


# -- a training step ------------------------------------------------------------------------------


@pytest.fixture
def training(workload):
    from support.gpu import training  # imports them

    return training


@pytest.mark.parametrize("mixed", [False, True], ids=["torch", "torch, CuPy and Warp"])
@pytest.mark.parametrize(
    "optimizer", ["SGD", "SGD with momentum", "fused SGD", "capturable Adam", "fused Adam"]
)
def test_a_training_step_is_one_graph(training, optimizer, mixed):
    """Equal to eager bit by bit; each loss is held, as by a program that prints them later."""
    arms = training.Training(optimizer, mixed=mixed), training.Training(optimizer, mixed=mixed)
    (eager, graphed), losses = arms, []
    step = sk.graphed(graphed.step)
    for x, target in training.batches(20):
        expected = eager.step(x, target)  # all on the legacy stream, in autograd's threads too
        losses.append((step(x, target).clone(), expected.detach()))
    assert [one for one, _ in losses] == [other for _, other in losses]
    for one, other in zip(graphed.weights(), eager.weights(), strict=True):
        assert one.equal(other)
    assert (step.captures, step.hits) == (1, 18)
    assert not losses[0][0].equal(losses[-1][0])  # it has learned something


def test_two_training_steps_of_one_model_are_two_graphs(training):
    both = training.Training("SGD", mixed=False)
    one, other = (sk.graphed(both.step) for _ in range(2))
    eager = training.Training("SGD", mixed=False)
    held = []
    for x, target in training.batches(5):
        for step in (one, other):
            held.append(step(x, target))
            assert held[-1].item() == eager.step(x, target).item()
    assert (one.captures, other.captures) == (1, 1)


def test_a_step_is_captured_after_a_warm_up_on_its_stream(training, torch):
    own, s = training.Training("SGD", mixed=True), sk.new_stream(nonblocking=True)
    ((x, target),) = training.batches(1)
    # in one thread: CuPy in autograd's threads would be on its own default stream
    with torch.autograd.set_multithreading_enabled(False), sk.use(s, ordered=True):
        held = own.step(x, target)
    with sk.capture(s) as graph:
        loss = own.step(x, target)
    graph.launch()
    assert loss.item() < held.item()


def test_a_result_of_a_warm_up_elsewhere_is_named(training):
    own = training.Training("SGD", mixed=False)
    ((x, target),) = training.batches(1)
    held_loss = own.step(x, target)
    named = r"look at .*held_loss.*Let go of that result"
    with pytest.raises(sk.errors.CaptureError, match=named), sk.capture():
        own.step(x, target)
    del held_loss
    with sk.capture() as graph:
        own.step(x, target)
    graph.launch()


def test_an_optimizer_that_counts_on_the_cpu_is_refused_with_the_remedy(training, torch):
    own = training.Training("SGD", mixed=False)
    own.optimizer = torch.optim.Adam(own.model.parameters())
    step = sk.graphed(own.step)
    ((x, target),) = training.batches(1)
    step(x, target)
    with pytest.raises(sk.errors.CaptureError, match="capturable=True"):
        step(x, target)


@pytest.mark.parametrize("optimizer", ["SGD", "fused Adam"])
def test_a_gradient_scaler_is_right_or_refused(training, torch, optimizer):
    own = training.Training(optimizer, mixed=False)
    scaler = torch.amp.GradScaler("cuda", init_scale=2.0**4)

    def step(x, target):
        own.optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", torch.float16):
            loss = (own.model(x) - target).square().mean()
        scaler.scale(loss).backward()
        scaler.step(own.optimizer)
        scaler.update()
        return loss

    function, batches = sk.graphed(step), training.batches(4)
    before = function(*next(batches)).item()
    if optimizer == "SGD":
        with pytest.raises(sk.errors.CaptureError, match=r"GradScaler asks on the CPU"):
            function(*next(batches))
        return
    for batch in batches:
        after = function(*batch).item()
    assert (function.captures, after != before) == (1, True)


# -- what makes a call another one ------------------------------------------------------------


def matmul(x):
    return x @ x


SETTINGS = {
    "autocast": (lambda torch: torch.autocast("cuda", dtype=torch.float16), "autocast of torch"),
    "inference mode": (lambda torch: torch.inference_mode(), "grad mode of torch"),
    "default device": (lambda torch: torch.device("cpu"), "default device of torch"),
}


@pytest.mark.parametrize("name", SETTINGS)
def test_a_graph_of_one_setting_of_torch_is_not_launched_under_another(torch, name):
    make, told = SETTINGS[name]
    function, x = sk.graphed(matmul), torch.rand(64, 64, device="cuda")
    for _ in range(3):
        function(x)
    with make(torch):
        assert told in function.explain(x)
        for _ in range(3):
            result, expected = function(x), matmul(x)
            assert result.dtype is expected.dtype
            assert result.is_inference() == expected.is_inference()
            assert torch.allclose(result, expected, rtol=1e-2)
    assert function(x).dtype is torch.float32
    assert (function.graphs, function.captures, function.hits) == (2, 2, 3)


@pytest.mark.skipif(cuda_devices() < 2, reason="one CUDA device")
def test_a_graph_of_one_device_is_not_launched_under_another(torch):
    function = sk.graphed(lambda n: torch.full((8,), float(n), device="cuda"))
    for _ in range(3):
        for device in (0, 1):
            with torch.cuda.device(device):
                result = function(3)
                assert result.get_device() == device
                assert set(result.tolist()) == {3.0}
    assert (function.graphs, function.hits) == (2, 2)


@pytest.mark.parametrize("changed", ["in the block", "between blocks"])
def test_under_autocast_a_graph_follows_the_weights(torch, changed):
    """torch keeps the weights that it has cast until the block ends, and then frees them."""
    layer, x = torch.nn.Linear(64, 64, device="cuda"), torch.rand(64, 64, device="cuda")

    @sk.graphed
    def function(x):
        return layer(x).detach()

    def change(value):
        with torch.no_grad():
            layer.weight.fill_(value)

    def check_result(value):
        expected = x.half() @ torch.full((64, 64), value, device="cuda").half().T
        expected += layer.bias.detach().half()
        assert torch.allclose(function(x).float(), expected.float(), rtol=1e-2)

    if changed == "in the block":
        with torch.autocast("cuda", dtype=torch.float16):
            for _ in range(2):  # the capture comes after a call that has cast the weights
                function(x)
            for value in (1.0, 2.0, 3.0):
                change(value)
                check_result(value)
    else:
        for value in (1.0, 2.0, 3.0, 4.0):
            change(value)
            with torch.autocast("cuda", dtype=torch.float16):
                check_result(value)
                others = [torch.full((64, 64), -1.0, device="cuda") for _ in range(50)]
            del others
    assert function.captures == 1


@pytest.mark.alone  # for the memory in use is that of all processes
def test_a_dropped_instance_gives_its_memory_back(torch):
    class Model:
        def __init__(self):
            self.weight = torch.rand(1024, 1024, device="cuda")

        @sk.graphed
        def step(self, x):
            return self.weight @ x

    x, used = torch.rand(1024, 1024, device="cuda"), []
    for number in range(60):
        model = Model()
        for _ in range(3):
            result = model.step(x)
        assert torch.allclose(result, model.weight @ x, rtol=1e-3)
        del model, result
        if number in (19, 59):
            gc.collect()
            used.append(device_memory())
    assert Model.step.graphs == 0
    # torch keeps the memory of at most eight that ended: of each the result and cuBLAS's 32 MB
    assert used[1] - used[0] < 8 * 60 * 2**20
