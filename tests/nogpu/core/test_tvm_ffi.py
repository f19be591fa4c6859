"""tvm-ffi, the real one, without a driver: its environment streams are bare handles."""

from __future__ import annotations

import ctypes
import threading

import pytest

import streamkit as sk
from streamkit._queues import registry  # the public calls need a device
from streamkit.backends._managed_tensor import (  # a tensor there needs a device
    DescribedMemory,
    Layout,
    layout_of,
)
from streamkit.protocols import Queue
from support.keepalive import keeps_its_queue
from support.libraries import need

pytestmark = pytest.mark.versions

tvm_ffi = need("tvm_ffi")
CUDA = tvm_ffi.device("cuda", 0), tvm_ffi.device("cuda", 1)


def handles():
    return [tvm_ffi.get_raw_stream(device) for device in CUDA]


@pytest.fixture(autouse=True)
def start():
    """Where a program may have put them before; both are as before after the test."""
    with tvm_ffi.use_raw_stream(CUDA[0], 11), tvm_ffi.use_raw_stream(CUDA[1], 12):
        yield
        assert handles() == [11, 12]


@pytest.fixture(params=["private", "public"])
def adapter(request, monkeypatch):
    """The adapter with each of the two ways that it has to tvm-ffi."""
    adapter = registry.adapter("tvm_ffi")
    for name in ("_get", "_set"):
        if request.param == "public":
            monkeypatch.setattr(adapter, name, getattr(adapter, f"_public{name}"))
        assert (getattr(adapter, name) is getattr(adapter, f"_public{name}")) is (
            request.param == "public"
        )
    return adapter


def read(obj):
    queue, adapter = registry.extract(obj)
    return queue.handle, queue.device, queue.owner, adapter.name


@pytest.mark.parametrize("handle", [0, 1, 2, 64, 2**63 + 5])
@pytest.mark.parametrize("kind", [int, ctypes.c_void_p])
@pytest.mark.parametrize("device", [0, 1])
def test_a_stream_is_read(handle, kind, device):
    context = tvm_ffi.use_raw_stream(CUDA[device], kind(handle))
    assert read(context) == (handle, device, None, "tvm_ffi")


def test_a_stream_wants_a_device_only():
    with pytest.raises(sk.errors.NoDeviceError, match="new_stream"):
        sk.wrap(tvm_ffi.use_raw_stream(CUDA[0], 0))


@pytest.mark.parametrize("device", ["cpu", "metal:0"])
def test_a_stream_of_another_kind_of_device_is_refused(device):
    with pytest.raises(sk.errors.UnsupportedStreamError, match="only CUDA"):
        sk.wrap(tvm_ffi.use_raw_stream(tvm_ffi.device(device), 64))


@pytest.mark.parametrize("name", ["tvm_ffi", "tvm-ffi"])
def test_it_has_a_current_stream_under_both_its_names(name):
    with pytest.raises(sk.errors.NoDeviceError):
        sk.current_stream(name)
    with sk.use(sk.new_stream("cpu"), libraries=[name]):
        assert handles() == [11, 12]


@pytest.mark.parametrize("device", [0, 1])
def test_the_current_stream_is_read(adapter, device):
    assert adapter.current(device) == adapter.EnvironmentStream(11 + device, device)


def test_a_binding_moves_one_device_and_puts_it_back(adapter):
    binding = adapter.bind(adapter.borrow(Queue(64, 1)))
    before = binding.save()
    assert handles() == [11, 12]
    assert not binding.is_current()
    binding.enter(before)
    assert handles() == [11, 64]
    assert binding.is_current()
    with tvm_ffi.use_raw_stream(CUDA[1], 99):
        assert not binding.is_current()
        binding.set_current()
        assert handles() == [11, 64]
    binding.leave(before)
    assert handles() == [11, 12]


@pytest.mark.parametrize("handle", [1, 2, 64])
def test_what_is_built_is_an_argument_and_a_block(handle):
    built = registry.adapter("tvm_ffi").borrow(Queue(handle, 0))
    assert isinstance(built, tvm_ffi.StreamContext)
    passed_on = tvm_ffi.convert(lambda stream: stream.value)  # what a function gets for it
    assert passed_on(built) == handle
    with built:
        assert handles() == [handle, 12]
        with pytest.raises(ZeroDivisionError), built:
            raise ZeroDivisionError
        with built, built:
            assert handles() == [handle, 12]
        assert handles() == [handle, 12]


def test_one_block_serves_two_threads_at_once():
    built = registry.adapter("tvm_ffi").borrow(Queue(64, 0))
    meet, found = threading.Barrier(2, timeout=60), []

    def run():
        with built:
            meet.wait()  # both are inside
            meet.wait()
        found.append(tvm_ffi.get_raw_stream(CUDA[0]))

    thread = threading.Thread(target=run)
    with tvm_ffi.use_raw_stream(CUDA[0], 7):
        thread.start()
        with built:
            meet.wait()
        assert handles()[0] == 7
        meet.wait()
        thread.join()
    assert found == [0]


def test_what_is_built_keeps_the_queue_alive():
    queue = Queue(64, 0)
    assert registry.extract(registry.adapter("tvm_ffi").borrow(queue))[0] is queue
    assert keeps_its_queue("tvm_ffi")


def test_two_are_equal_by_device_and_handle():
    made = registry.adapter("tvm_ffi").EnvironmentStream
    assert made(64, 0) == made(64, 0) == tvm_ffi.use_raw_stream(CUDA[0], ctypes.c_void_p(64))
    assert made(64, 0) not in (made(64, 1), made(65, 0), 64)
    assert len({made(64, 0), made(64, 0), made(64, 1)}) == 2


def test_it_has_no_events():
    with pytest.raises(sk.errors.UnsupportedStreamError):
        sk.wrap_event(tvm_ffi.use_raw_stream(CUDA[0], 64))


def test_an_array_of_no_axes_is_lent_too():
    owner = Owner()
    number = tvm_ffi.from_dlpack(DescribedMemory(Layout(4096, (), (), (2, 32, 1)), 0, "another"))
    lent = registry.adapter("tvm_ffi").lend(number, owner)
    assert layout_of(lent) == (4096, (), (), (2, 32, 1))
    assert registry.adapter("tvm_ffi").array_device(lent) == 0


@pytest.mark.parametrize(("kind", "device"), [(2, 1), (13, 1), (1, None), (3, None)])
def test_memory_of_a_device_is_told_from_memory_of_the_host(kind, device):
    """DLPack counts CUDA 2, what host and CUDA share 13, the host 1, its pinned memory 3."""
    memory = DescribedMemory(Layout(4096, (4,), (1,), (2, 32, 1)), 1, Owner(), kind)
    tensor = tvm_ffi.from_dlpack(memory)
    assert registry.adapter("tvm_ffi").array_device(tensor) == device


class Owner:
    """What holds memory."""
