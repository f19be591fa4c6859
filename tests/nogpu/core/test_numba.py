"""numba-cuda, the real one, without a driver."""

from __future__ import annotations

import gc
import weakref

import pytest

import streamkit as sk
from streamkit._queues import registry  # the public calls need a device
from streamkit.protocols import CurrentStream, Queue
from support.keepalive import keeps_its_queue
from support.libraries import need
from support.programs import run_program

pytestmark = pytest.mark.versions

need("numba")

from cuda.bindings.driver import CUevent, CUstream  # noqa: E402 - numba-cuda's own handles
from numba import cuda  # noqa: E402 - only once it is known to be there
from numba.cuda.cudadrv.driver import Event, Stream  # noqa: E402 - the same


class MyStream(Stream):
    pass


def stream(handle, kind=Stream):
    return kind(CUstream(handle), external=True)


def read(obj):
    queue, adapter = registry.extract(obj)
    return queue.handle, queue.device, queue.owner is obj, adapter.name


@pytest.mark.parametrize(("handle", "owned"), [(0, False), (1, False), (2, False), (64, True)])
@pytest.mark.parametrize("kind", [Stream, MyStream])
def test_a_stream_is_read(handle, owned, kind):
    assert read(stream(handle, kind)) == (handle, None, owned, "numba")


@pytest.mark.parametrize("handle", [0, 1, 2, 123])
def test_a_stream_wants_a_device_only(handle):
    with pytest.raises(sk.NoDeviceError, match="new_stream"):
        sk.wrap(stream(handle))


def test_an_event_is_read():
    library = registry.event_library(Event(CUevent(64)))
    assert library.adapter.name == "numba"
    assert library.handle(Event(CUevent(64))) == 64


def test_an_event_wants_a_device_only():
    with pytest.raises(sk.NoDeviceError):
        sk.wrap_event(Event(CUevent(64)))


@pytest.mark.parametrize(
    "obj", [Stream, Event, Event(CUevent(64)), cuda, cuda.jit, cuda.jit(lambda: None)], ids=repr
)
def test_what_is_no_stream_is_refused(obj):
    with pytest.raises(sk.UnsupportedStreamError):
        sk.wrap(obj)


def test_a_stream_is_no_event():
    with pytest.raises(sk.UnsupportedStreamError):
        sk.wrap_event(stream(64))


def test_a_host_stream_does_not_wait_for_it():
    with pytest.raises(sk.DeviceMismatchError):
        sk.new_stream("cpu").wait(stream(64))


@pytest.mark.parametrize("handle", [1, 2, 64])
def test_a_stream_is_built(handle):
    built = registry.adapter("numba").borrow(Queue(handle, 0))
    assert type(built) is Stream
    assert int(built.handle) == handle
    assert built.external


def test_what_is_built_keeps_the_queue_alive():
    assert keeps_its_queue("numba")


def test_an_event_is_built_which_keeps_its_owner():
    class Owner:
        pass

    owner = Owner()
    built = registry.adapter("numba").borrow_event(64, 0, owner)
    assert type(built) is Event
    assert int(built.handle) == 64
    alive = weakref.ref(owner)
    del owner
    gc.collect()
    assert alive() is not None


@pytest.mark.parametrize("name", ["numba", "numba-cuda", "numba.cuda"])
def test_it_has_no_current_stream(name):
    assert not isinstance(registry.adapter(name), CurrentStream)
    with pytest.raises(sk.UnsupportedStreamError, match=r"s\.to"):
        sk.current_stream(name)
    with pytest.raises(sk.UnsupportedStreamError, match="no current stream"):
        sk.use(sk.new_stream("cpu"), libraries=[name])


def test_numbas_own_cuda_is_refused_by_name():
    """Without numba-cuda's finder, ``numba.cuda`` is the target that numba has left behind."""
    done = run_program("""
        import ctypes, sys
        sys.meta_path = [one for one in sys.meta_path if "numba" not in repr(one).lower()]
        from numba.cuda.cudadrv import driver
        import streamkit as sk
        stream = driver.Stream(None, ctypes.c_void_p(0x1234), None)
        try:
            sk.wrap(stream)
        except sk.UnsupportedStreamError as error:
            print(error)
    """)
    assert done.returncode == 0, done.stderr
    assert "numba/cuda/__init__.py, which is not numba-cuda" in done.stdout
