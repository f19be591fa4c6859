"""CuPy, the real one, without a driver."""

from __future__ import annotations

import warnings

import pytest

import streamkit as sk
from streamkit._queues import registry  # the public calls need a device
from streamkit.protocols import CurrentStream, Queue
from support.keepalive import keeps_its_queue
from support.libraries import need
from support.programs import python

pytestmark = pytest.mark.versions

cupy = need("cupy")


class Handle:
    def __init__(self, handle):
        self._handle = handle

    def __cuda_stream__(self):
        return 0, self._handle


class MyStream(cupy.cuda.ExternalStream):
    pass


def external(handle, device=-1, kind=cupy.cuda.ExternalStream):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # and still what many people hold
        return kind(handle, device)


def read(obj):
    queue, adapter = registry.extract(obj)
    return queue.handle, queue.device, queue.owner is obj, adapter.name


@pytest.mark.parametrize(("handle", "owned"), [(0, False), (1, False), (2, False), (64, True)])
def test_a_stream_made_from_another(handle, owned):
    assert read(cupy.cuda.Stream.from_external(Handle(handle))) == (handle, None, owned, "cupy")


@pytest.mark.parametrize(("handle", "owned"), [(0, False), (1, False), (2, False), (64, True)])
@pytest.mark.parametrize(("device", "said"), [(-1, None), (0, 0), (3, 3)])
@pytest.mark.parametrize("kind", [cupy.cuda.ExternalStream, MyStream])
def test_an_external_stream_and_one_of_a_subclass(handle, owned, device, said, kind):
    assert read(external(handle, device, kind)) == (handle, said, owned, "cupy")


def test_the_null_stream():
    assert read(cupy.cuda.Stream.null) == (0, None, False, "cupy")


def test_the_per_thread_default_stream():
    assert read(cupy.cuda.Stream.ptds) == (2, None, False, "cupy")


@pytest.mark.parametrize(("switched", "later"), [(1, 1), (1, 0), (0, 0), (0, 1)])
def test_the_null_stream_is_the_default_stream_that_cupy_has_chosen(switched, later):
    """CuPy reads the switch as it is imported; a program may change the variable afterwards."""
    python(
        f"""
import os
os.environ["CUPY_CUDA_PER_THREAD_DEFAULT_STREAM"] = "{switched}"
import cupy
os.environ["CUPY_CUDA_PER_THREAD_DEFAULT_STREAM"] = "{later}"
from streamkit._queues import registry  # the public calls need a device
from streamkit.protocols import Queue
class Handle:
    def __cuda_stream__(self):
        return 0, 1
assert registry.extract(cupy.cuda.Stream.null)[0].handle == 2 * {switched}
assert registry.extract(cupy.cuda.Stream.from_external(Handle()))[0].handle == 1
borrow = registry.adapter("cupy").borrow
assert borrow(Queue(1, 0)).ptr == {switched}
assert borrow(Queue(2, 0)).ptr == 2
import streamkit as sk
(row,) = [row for row in sk.doctor().libraries if row.name == "cupy"]
assert row.handle_0 == ("legacy", "per-thread")[{switched}]
"""
    )


@pytest.mark.parametrize(
    "make",
    [
        lambda: cupy.cuda.Stream.from_external(Handle(123)),
        lambda: external(123),
        lambda: external(123, 0, MyStream),
        lambda: cupy.cuda.Stream.null,
        lambda: cupy.cuda.Stream.ptds,
    ],
)
def test_a_stream_wants_a_device_only(make):
    with pytest.raises(sk.errors.NoDeviceError, match="new_stream"):
        sk.wrap(make())


def test_a_host_stream_does_not_wait_for_it():
    with pytest.raises(sk.errors.DeviceMismatchError):
        sk.new_stream("cpu").wait(external(123))


@pytest.mark.parametrize(
    "obj",
    [
        cupy.cuda.Stream,
        cupy.cuda.ExternalStream,
        cupy.cuda.Event,
        cupy.cuda.Device(0),
        cupy.cuda.MemoryPool(),
        cupy.ndarray,
        cupy.float32,
        cupy.dtype("float32"),
        cupy,
        cupy.cuda,
    ],
    ids=repr,
)
def test_what_is_no_stream_is_refused(obj):
    with pytest.raises(sk.errors.UnsupportedStreamError):
        sk.wrap(obj)
    with pytest.raises(sk.errors.UnsupportedStreamError):
        sk.wrap_event(obj)


@pytest.mark.parametrize(("handle", "default"), [(1, "null"), (2, "ptds")])
def test_a_default_stream_is_the_librarys_own(handle, default):
    built = registry.adapter("cupy").borrow(Queue(handle, 0))
    assert built is getattr(cupy.cuda.Stream, default)


def test_a_stream_is_built_with_its_device():
    built = registry.adapter("cupy").borrow(Queue(64, 3))
    assert type(built) is cupy.cuda.Stream
    assert (built.ptr, built.device_id) == (64, 3)


def test_what_is_built_keeps_the_queue_alive():
    assert keeps_its_queue("cupy")


def test_what_stands_for_an_event_has_its_handle_and_its_owner():
    owner = object()
    event = registry.adapter("cupy").borrow_event(64, 0, owner)
    assert event.ptr == 64
    assert owner in vars(event).values()


def test_it_has_a_current_stream_which_wants_a_device():
    assert isinstance(registry.adapter("cupy"), CurrentStream)
    with pytest.raises(sk.errors.NoDeviceError):
        sk.current_stream("cupy")


def test_what_cupy_does_not_capture_is_explained():
    from streamkit.backends._cupy.capture import explain_capture  # a capture needs a device

    refusal = NotImplementedError(
        "calling cuBLAS API during stream capture is currently unsupported"
    )
    assert "no cuBLAS" in explain_capture(refusal)
    assert "first use" not in explain_capture(refusal)
    cold = cupy.cuda.runtime.CUDARuntimeError(900)
    assert "no cuBLAS" in explain_capture(cold)
    assert "first use" in explain_capture(cold)
    assert explain_capture(NotImplementedError("a user's")) is None
    assert explain_capture(RuntimeError("stream capture")) is None


def test_errors_that_no_capture_makes_are_not_explained():
    """A program's own, whatever its package is called; memory that ran out; a kernel's source."""
    from streamkit.backends._cupy.capture import explain_capture  # a capture needs a device

    helper = type("HelperError", (Exception,), {"__module__": "cupy_helpers.cache"})
    unbuilt = type("OwnError", (NotImplementedError,), {})
    for error in (
        helper("full"),
        unbuilt("no stream capture yet"),
        cupy.cuda.memory.OutOfMemoryError(1, 2),
        cupy.cuda.compiler.CompileException("expected a ;", "f(", "f.cu", ()),
    ):
        assert explain_capture(error) is None


@pytest.mark.parametrize("is_own", [True, False])
def test_an_nvrtc_of_another_major_is_a_finding(monkeypatch, is_own):
    """As where torch for CUDA 13 is beside CuPy for CUDA 12, and its NVRTC is found first."""
    built = cupy.cuda.driver.get_build_version() // 1000
    if not is_own:  # the answer of such an NVRTC
        monkeypatch.setattr(cupy.cuda.nvrtc, "getVersion", lambda: (25 - built, 4))
    found = list(registry.adapter("cupy").diagnose())
    if is_own:
        assert found == []
    else:
        assert [one.code for one in found] == ["other-nvrtc"]
        assert f"built for CUDA {built}, and" in found[0].what
        assert f"of CUDA {25 - built}.4" in found[0].what
        assert f"libnvrtc.so.{built}" in found[0].remedy
