"""PyTorch, the real one, without a driver: a build for the CPU, or one for CUDA that finds none."""

from __future__ import annotations

import contextlib
import weakref

import pytest

import streamkit as sk
from streamkit._queues import registry  # the public calls need a device
from streamkit.protocols import CurrentStream, Queue
from support.libraries import need

torch = need("torch")

from streamkit.backends._torch import random_numbers  # it imports torch  # noqa: E402


class MyStream(torch.Stream):
    pass


def test_the_header_tells_whether_graphs_share_random_numbers():
    version = tuple(map(int, torch.__version__.split(".")[:2]))
    assert random_numbers.ARE_SHARED is (version < (2, 12))


@pytest.mark.parametrize("kind", [torch.Stream, MyStream])
def test_a_stream_of_the_cpu_is_refused_with_its_device(kind):
    with pytest.raises(sk.errors.UnsupportedStreamError, match=r"torch stream.*cpu.*CUDA"):
        sk.wrap(kind("cpu"))


def test_a_generic_stream_of_cuda_needs_no_native_handle():
    """The stream is read through ``torch.cuda.Stream``, or its lack told."""

    class Old(torch.Stream):
        native_handle = property()

    with pytest.raises(sk.errors.NoDeviceError, match="torch"):
        registry.extract(Old(stream_id=35, device_index=0, device_type=1))


@pytest.mark.parametrize(
    "obj",
    [
        torch.Stream,
        torch.cuda.Stream,
        torch.cuda.ExternalStream,
        torch.Event("cpu"),
        torch.zeros(3),
        torch.tensor(5),
        torch.nn.Parameter(torch.zeros(3)),
        torch.device("cpu"),
        torch.device("cuda:0"),
        torch.float32,
        torch.Generator(),
        torch.nn.Linear(1, 1),
        torch.cuda,
        torch,
        torch.Event,
        torch.cuda.Event,
        torch.Stream("cpu"),
    ],
    ids=lambda obj: type(obj).__name__,
)
def test_what_is_no_stream_and_no_event_of_cuda_is_refused(obj):
    with pytest.raises(sk.errors.UnsupportedStreamError):
        sk.wrap(obj)
    with pytest.raises(sk.errors.UnsupportedStreamError):
        sk.wrap_event(obj)


def test_a_tensor_that_speaks_the_protocol_is_a_stream_of_the_protocol():
    class Speaks(torch.Tensor):
        def __cuda_stream__(self):
            return 0, 64

    queue, adapter = registry.extract(Speaks())
    assert (adapter.name, queue.handle) == ("protocol", 64)


@pytest.mark.parametrize("handle", [torch.tensor(0.5), torch.tensor([1, 2]), torch.tensor(True)])
def test_a_tensor_is_no_handle(handle):
    class Protocol:
        def __cuda_stream__(self):
            return 0, handle

    with pytest.raises(sk.errors.UnsupportedStreamError, match="__cuda_stream__"):
        sk.wrap(Protocol())
    with pytest.raises(sk.errors.UnsupportedStreamError, match="a stream handle is an int"):
        sk.from_handle(handle)


def test_a_host_stream_does_not_wait_for_a_stream_of_the_cpu():
    with pytest.raises((sk.errors.UnsupportedStreamError, sk.errors.DeviceMismatchError)):
        sk.new_stream("cpu").wait(torch.Stream("cpu"))


def test_its_device_is_read():
    assert sk.new_stream(torch.device("cpu")).device == "cpu"
    for device in ("cuda", "cuda:0", "cuda:7"):
        with pytest.raises(sk.errors.NoDeviceError):
            sk.new_stream(torch.device(device))


@pytest.mark.parametrize(
    "device",
    [*map(torch.device, ("meta", "mps", "xpu:0")), torch.zeros(2), torch.tensor(0), torch.float32],
)
def test_its_device_of_another_kind_and_what_is_none_of_its_are_refused(device):
    with pytest.raises(ValueError, match="is not a device"):
        sk.new_stream(device)


@pytest.mark.parametrize("handle", [1, 64])
def test_a_stream_cannot_be_built_without_a_device(handle):
    with pytest.raises(sk.errors.NoDeviceError, match="torch"):
        registry.adapter("torch").borrow(Queue(handle, 0))


def test_the_per_thread_default_stream_is_refused_with_what_to_do():
    with pytest.raises(sk.errors.UnsupportedStreamError, match="new_stream"):
        registry.adapter("torch").borrow(Queue(2, 0))


def test_a_build_without_cuda_has_no_current_stream():
    adapter = registry.adapter("torch")
    assert isinstance(adapter, CurrentStream)
    with pytest.raises(sk.errors.NoDeviceError, match="torch"):
        adapter.current(0)
    with pytest.raises(sk.errors.NoDeviceError):
        sk.current_stream("torch")
    assert sk.current_streams() == {}
    sk.assert_one_queue(libraries=["torch"])


@pytest.mark.parametrize("options", [{}, {"ordered": True}, {"libraries": "torch"}])
def test_a_scope_on_the_host_leaves_it_alone(options):
    before = torch.get_default_device(), torch.get_num_threads(), torch.cuda.is_initialized()
    stream = sk.new_stream("cpu")
    with sk.use(stream, **options):
        inside = torch.get_default_device(), torch.get_num_threads(), torch.cuda.is_initialized()
        total = torch.arange(10, device=stream.device).sum()
    assert inside == before
    assert total == 45


def test_submitted_work_of_torch_is_ordered():
    stream, x = sk.new_stream("cpu"), torch.zeros(1000)
    for _ in range(20):
        stream.submit(x.add_, 1)
    stream.sync()
    assert (x == 20).all()


def test_of_torchs_errors_those_of_captures_are_explained_and_others_pass():
    from streamkit._graphs import capture  # a capture needs a device

    adapters = [registry.adapter("torch")]
    said = "CUDA error: operation not permitted when stream is capturing"
    assert capture.names_capture(torch.AcceleratorError(said), adapters)
    assert not capture.names_capture(torch.AcceleratorError(said), [])
    full = "CUDA out of memory. 2.00 MiB are allocated in private pools (e.g., CUDA Graphs)"
    assert not capture.names_capture(torch.OutOfMemoryError(full), adapters)


def test_without_the_question_whose_memory_it_is_an_array_is_lent(monkeypatch):
    """A later torch may have another name for it: then torch's allocator gets no array to watch."""
    torch_adapter = registry.adapter("torch")
    assert hasattr(torch._C, "_has_Standard_Deleter"), "else look for its new name"
    monkeypatch.delattr(torch._C, "_has_Standard_Deleter")
    tensor = torch.ones(3)
    assert torch_adapter.record_stream(tensor, None) is False
    assert torch_adapter._own_storage(tensor) is None


# -- what a capture refuses of a training step ----------------------------------------------------


def advice(error):
    from streamkit.backends._torch.capture import explain_capture  # a capture needs a device

    try:
        raise error
    except RuntimeError as raised:
        return explain_capture(raised)


def test_the_variable_that_holds_autograds_nodes_is_named():
    weight = torch.ones(2, requires_grad=True)
    held_loss, only_a_number = (weight * 2).sum(), weight.detach()
    legacy = RuntimeError(
        "CUDA error: operation would make the legacy stream depend on a capturing blocking stream"
    )
    assert "(look at held_loss)" in advice(legacy)
    assert held_loss.grad_fn is not None
    assert only_a_number.grad_fn is None
    seen = weakref.ref(held_loss)
    del held_loss
    assert seen() is None
    assert "as long as the result is alive, and" in advice(legacy)
    assert advice(RuntimeError("CUDA error: out of memory")) is None


class Node(torch.autograd.Function):
    """Its node holds an object, through which a test sees whether it is alive."""

    @staticmethod
    def forward(ctx, x, seen, *, fails=False):
        ctx.held = Queue(0, 0)
        ctx.fails = fails
        seen.append(weakref.ref(ctx.held))
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        if ctx.fails:
            raise RuntimeError("fails")
        return gradient, None


class FailingNode(Node):
    @staticmethod
    def forward(ctx, x, seen):
        return Node.forward(ctx, x, seen, fails=True)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode, contextlib.nullcontext])
def test_what_a_failed_backward_pass_left_is_dropped(mode):
    from streamkit.backends._torch.capture import drop_failed_backward  # a capture needs a device

    def fail():
        left = [Node.apply(torch.ones(2, requires_grad=True), seen) for _ in range(9)]
        last = FailingNode.apply(torch.ones(2, requires_grad=True), seen)
        (sum(one.sum() for one in left) + last.sum()).backward()

    seen = []
    with (
        pytest.raises(RuntimeError, match="fails"),
        torch.autograd.set_multithreading_enabled(False),
    ):
        fail()
    assert any(one() is not None for one in seen)
    with mode():
        drop_failed_backward()
    assert [one() for one in seen] == [None] * 10


def test_inside_of_a_transform_of_torch_a_failed_pass_stays():
    """torch allows no pass there, and what else a capture leaves has to end all the same."""
    from streamkit.backends._torch.capture import drop_failed_backward  # a capture needs a device

    gradient = torch.func.grad(lambda x: (drop_failed_backward(), x.sum())[1])(torch.ones(3))
    assert gradient.tolist() == [1, 1, 1]


def test_an_optimizer_that_counts_on_the_cpu_is_told_from_others():
    refusal = "Attempting CUDA graph capture of step() for an instance of Adam but param_groups' "
    assert "capturable=True" in advice(RuntimeError(refusal + "capturable is False."))


def test_a_gradient_scaler_that_asks_on_the_cpu_is_told():
    from streamkit.backends._torch.capture import explain_capture  # a capture needs a device

    scaler = torch.amp.GradScaler("cpu")
    weight = torch.nn.Parameter(torch.ones(2))

    class Refuses(torch.optim.SGD):
        def step(self):
            raise RuntimeError("operation not permitted when stream is capturing")

    optimizer = Refuses([weight], lr=1.0)
    scaler.scale(weight.sum()).backward()
    with pytest.raises(RuntimeError) as raised:
        scaler.step(optimizer)
    assert "fused=True" in explain_capture(raised.value)
    with pytest.raises(RuntimeError) as raised:
        optimizer.step()
    assert explain_capture(raised.value) is None


# -- results of graphed functions -----------------------------------------------------------------


def test_a_graphed_function_gives_results_without_autograds_graph():
    """As a launch has to: else a training loop that holds its loss could not be captured."""
    weight = torch.ones(3, requires_grad=True)

    @sk.graphed
    def step(x):
        loss = (weight * x).sum()
        loss.backward()
        return {"loss": loss, "all": (loss * 2, x, weight)}

    x = torch.full((3,), 2.0)
    with sk.new_stream("cpu"):
        found = step(x)
    twice, same_x, same_weight = found["all"]
    assert (found["loss"].item(), twice.item()) == (6, 12)
    assert (found["loss"].grad_fn, twice.requires_grad) == (None, False)
    assert same_x is x
    assert same_weight is weight
    assert weight.grad.tolist() == [2, 2, 2]


def test_a_result_without_autograds_graph_is_the_very_object():
    held = [torch.ones(2)]
    with sk.new_stream("cpu"):
        assert sk.graphed(lambda: held)() is held
