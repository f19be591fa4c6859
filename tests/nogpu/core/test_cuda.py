"""cuda.core and cuda.bindings, the real ones, without a driver."""

from __future__ import annotations

import pytest

import streamkit as sk
from streamkit._cuda import driver as cuda_driver  # the calls around it need a device
from streamkit._queues import registry  # the public calls need a device
from streamkit.processes import driver as sharing  # the calls around it need a device
from streamkit.protocols import Queue
from support.libraries import need

pytestmark = pytest.mark.versions

core = need("cuda")

from cuda.bindings import driver, runtime  # noqa: E402 - only once they are known to be there


class MyStream(core.Stream):
    pass


class MyHandle(driver.CUstream):
    pass


def read(obj):
    queue, adapter = registry.extract(obj)
    return queue.handle, queue.device, queue.owner is obj, adapter.name


# -- what is read, the default streams included ------------------------------------------------


@pytest.mark.parametrize(
    ("handle", "owned"), [(0, False), (1, False), (2, False), (64, True), (2**64 - 16, True)]
)
@pytest.mark.parametrize("kind", [core.Stream, MyStream])
def test_a_stream_from_a_handle_and_one_of_a_subclass(kind, handle, owned):
    assert read(kind.from_handle(handle)) == (handle, None, owned, "cuda.core")


@pytest.mark.parametrize(
    ("stream", "handle"), [(core.LEGACY_DEFAULT_STREAM, 1), (core.PER_THREAD_DEFAULT_STREAM, 2)]
)
def test_the_default_streams(stream, handle):
    assert read(stream) == (handle, None, False, "cuda.core")


@pytest.mark.parametrize("kind", [driver.CUstream, runtime.cudaStream_t, MyHandle])
@pytest.mark.parametrize("handle", [0, 1, 2, 64, 2**64 - 16])
def test_a_handle_of_the_bindings(kind, handle):
    assert read(kind(handle)) == (handle, None, False, "cuda.bindings")


@pytest.mark.parametrize("kind", [driver.CUipcEventHandle, driver.CUipcMemHandle])
def test_a_handle_for_another_process_is_read_and_written_whole(kind):
    data = bytes(range(64))
    assert cuda_driver.handle_bytes(sharing.handle_of(kind, data)) == data
    for wrong in (data[1:], data + b"x"):
        with pytest.raises(ValueError, match="size"):
            sharing.handle_of(kind, wrong)


@pytest.mark.parametrize("handle", [0, 1, 2, 64])
def test_a_closed_stream_is_never_taken_for_the_default_one(handle):
    stream = core.Stream.from_handle(handle)
    stream.close()
    with pytest.raises(sk.errors.StreamClosedError, match=r"cuda\.core"):
        sk.wrap(stream)


@pytest.mark.parametrize("kind", [driver.CUevent, runtime.cudaEvent_t])
def test_an_event_of_the_bindings_is_read_and_wants_a_device_only(kind):
    library = registry.event_library(kind(64))
    assert library.adapter.name == "cuda.bindings"
    assert library.handle(kind(64)) == 64
    with pytest.raises(sk.errors.NoDeviceError):
        sk.wrap_event(kind(64))


# -- how far it goes without a driver ----------------------------------------------------------


@pytest.mark.parametrize(
    "make",
    [
        lambda: core.Stream.from_handle(123),
        lambda: core.LEGACY_DEFAULT_STREAM,
        lambda: core.PER_THREAD_DEFAULT_STREAM,
        lambda: MyStream.from_handle(123),
        lambda: driver.CUstream(123),
        lambda: driver.CUstream(0),
        lambda: runtime.cudaStream_t(123),
    ],
)
def test_a_stream_wants_a_device_only(make):
    with pytest.raises(sk.errors.NoDeviceError, match="new_stream"):
        sk.wrap(make())
    with pytest.raises(sk.errors.NoDeviceError):
        sk.use(make())


def test_a_host_stream_does_not_wait_for_it():
    stream = sk.new_stream("cpu")
    for obj in (core.Stream.from_handle(123), driver.CUstream(123)):
        with pytest.raises(sk.errors.DeviceMismatchError):
            stream.wait(obj)
    assert stream.done


# -- what is refused ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "obj",
    [
        core.Stream,
        core.Device,
        core.GraphBuilder if hasattr(core, "GraphBuilder") else core.Program,
        core.StreamOptions(),
        core.LaunchConfig(grid=1, block=1),
        driver.CUstream,
        driver.CUevent(64),
        driver.CUcontext(64),
        driver.CUdevice(0),
        driver.CUstream_flags.CU_STREAM_DEFAULT,
        driver.CU_STREAM_LEGACY,
        runtime.cudaStream_t,
        runtime.cudaEvent_t(64),
        runtime.cudaStreamNonBlocking,
    ],
    ids=lambda obj: type(obj).__name__,
)
def test_what_is_no_stream_is_refused(obj):
    with pytest.raises(sk.errors.UnsupportedStreamError):
        sk.wrap(obj)


@pytest.mark.parametrize("obj", [driver.CUstream(64), core.Stream.from_handle(64), driver.CUevent])
def test_what_is_no_event_is_refused(obj):
    with pytest.raises(sk.errors.UnsupportedStreamError):
        sk.wrap_event(obj)


def test_a_protocol_may_answer_with_an_enum_of_the_bindings():
    class Protocol:
        def __cuda_stream__(self):
            return 0, driver.CUstream_flags.CU_STREAM_NON_BLOCKING

    assert read(Protocol()) == (1, None, True, "protocol")


def test_a_protocol_may_not_answer_with_a_handle_object():
    class Protocol:
        def __cuda_stream__(self):
            return 0, driver.CUstream(64)

    with pytest.raises(sk.errors.UnsupportedStreamError, match="CUstream"):
        sk.wrap(Protocol())


@pytest.mark.parametrize("handle", [driver.CUstream(64), core.Stream.from_handle(64)])
def test_a_stream_object_is_no_handle(handle):
    with pytest.raises(sk.errors.UnsupportedStreamError, match="wrap"):
        sk.from_handle(handle)


# -- what is built -----------------------------------------------------------------------------


@pytest.mark.parametrize("handle", [1, 2, 64])
def test_a_handle_is_built(handle):
    built = registry.adapter("cuda.bindings").borrow(Queue(handle, 0))
    assert type(built) is driver.CUstream
    assert int(built) == handle


@pytest.mark.parametrize(
    ("handle", "default"), [(1, core.LEGACY_DEFAULT_STREAM), (2, core.PER_THREAD_DEFAULT_STREAM)]
)
def test_a_default_stream_is_the_librarys_own(handle, default):
    assert registry.adapter("cuda.core").borrow(Queue(handle, 0)) is default


def test_an_event_handle_is_built():
    built = registry.adapter("cuda.bindings").borrow_event(64, 0, None)
    assert type(built) is driver.CUevent
    assert int(built) == 64


@pytest.mark.parametrize("name", ["cuda.core", "cuda.bindings"])
def test_it_has_no_current_stream(name):
    with pytest.raises(sk.errors.UnsupportedStreamError, match="no current stream"):
        sk.current_stream(name)
