"""Two devices: order across them, and nobody's current device moved."""

from __future__ import annotations

import pytest

import streamkit as sk
from support.gpu.raw import check, current_context, driver, held, idle, on_device, sync
from support.libraries import cuda_devices
from support.queues import within

pytestmark = pytest.mark.skipif(cuda_devices() < 2, reason="one CUDA device")


@pytest.mark.parametrize("told", [True, False])
def test_streams_wait_across_devices(gate, told):
    zero, one = sk.new_stream(0, nonblocking=True), sk.new_stream("cuda:1", nonblocking=True)
    assert (zero.device_id, one.device_id) == (0, 1)
    before = current_context()
    gate.hold(zero.handle)
    if told:
        one.wait(zero)
    assert held(one.handle) if told else idle(one.handle)
    zero.wait(one)
    assert current_context() == before
    gate.open()
    one.sync()
    zero.sync()


def test_default_streams_are_their_devices(gate):
    zero, one = sk.default_stream(0), sk.default_stream(1)
    assert zero != one
    assert zero.id != one.id
    holder = sk.new_stream(0, nonblocking=True)
    gate.hold(holder.handle)
    one.wait(holder)
    assert not one.done
    assert zero.done
    gate.open()
    one.sync()


def test_events_belong_to_their_device():
    event = sk.new_event(device=1)
    with pytest.raises(sk.errors.DeviceMismatchError):
        sk.new_stream(0).record(event)
    sk.new_stream(1).record(event)
    sk.new_stream(0).wait(event)


@pytest.mark.parametrize("library", ["torch", "cupy", "warp", "cuda.core", "numba"])
def test_conversion_keeps_the_device(subjects, library):
    subject = subjects(library)
    before = current_context()
    stream = sk.new_stream(1)
    view = stream.to(library)
    assert subject.handle_of(view) == stream.handle
    assert sk.wrap(view) == stream
    assert sk.wrap(view).device == "cuda:1"
    assert current_context() == before


def test_a_scope_switches_the_device_once_and_back(subjects):
    torch, cupy, warp = (subjects(name) for name in ("torch", "cupy", "warp"))
    before = (current_context(), torch.torch.cuda.current_device(), cupy.cupy.cuda.Device().id,
              str(warp.warp.get_device()))  # fmt: skip
    with sk.new_stream(1) as stream:
        assert torch.torch.cuda.current_device() == 1 == cupy.cupy.cuda.Device().id
        assert str(warp.warp.get_device()) == "cuda:1"
        assert {s.id for s in sk.current_streams().values()} == {stream.id}
        assert torch.torch.ones(1, device="cuda").device.index == 1
    after = (current_context(), torch.torch.cuda.current_device(), cupy.cupy.cuda.Device().id,
             str(warp.warp.get_device()))  # fmt: skip
    assert after == before


def test_a_wrong_device_is_refused():
    stream = sk.new_stream(1)
    with pytest.raises(sk.errors.DeviceMismatchError, match="cuda:0"):
        sk.from_handle(stream.handle, device=0)


def test_torch_streams_of_the_other_device(subjects, gate):
    torch = subjects("torch").torch
    native = torch.cuda.Stream(device=1)
    stream = sk.wrap(native)
    assert stream.device == "cuda:1"
    holder = sk.new_stream(0, nonblocking=True)
    gate.hold(holder.handle)
    assert idle(native.cuda_stream)
    stream.wait(holder)
    assert held(native.cuda_stream)
    gate.open()
    sync(native.cuda_stream)
    assert int(check(driver.cuCtxGetDevice())) == 0


def test_a_scope_leaves_a_new_thread_and_the_runtimes_on_device_0(three, primary_context):
    torch, cupy = three["torch"].torch, three["cupy"].cupy
    there, y = sk.new_stream(1), torch.zeros(1000, device="cuda:1")

    def places_after(scope):
        assert current_context() == 0  # nobody has used CUDA in this thread
        with scope:  # the runtimes go to device 0, and are set to device 1 again
            y.copy_(torch.ones(1000, device="cuda:0"))
            with cupy.cuda.Device(0):
                cupy.ones(1000)
        return current_context(), torch.cuda.current_device(), cupy.cuda.runtime.getDevice()

    def work():
        assert places_after(sk.use(there, ordered=True)) == (primary_context, 0, 0)
        assert float(y.sum()) == 1000  # a kernel of device 1, not launched on device 0
        x = cupy.ones(1000)
        assert (x.device.id, float(x.sum())) == (0, 1000)

    within(work)
    assert within(lambda: places_after(on_device(1))) == (0, 1, 1), "control"
