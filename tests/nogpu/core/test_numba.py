"""numba-cuda and numba-cuda-mlir, the real ones, without a driver."""

from __future__ import annotations

import gc
import weakref
from types import SimpleNamespace

import pytest

import streamkit as sk
from streamkit._queues import registry  # the public calls need a device
from streamkit.protocols import CurrentStream, Queue
from support.keepalive import keeps_its_queue
from support.libraries import installed, need
from support.programs import run_program

pytestmark = pytest.mark.versions

LIBRARIES = [name for name in ("numba", "numba_mlir") if installed(name)] or ["numba"]


@pytest.fixture(params=LIBRARIES)
def library(request):
    """One of the two: its name, its module, and the classes of its streams and events."""
    from cuda.bindings.driver import CUevent, CUstream  # the handles of both

    cuda, adapter = need(request.param), registry.adapter(request.param)
    own = adapter._driver
    return SimpleNamespace(
        name=request.param,
        cuda=cuda,
        Stream=own.Stream,
        Event=own.Event,
        stream=lambda handle: own.Stream(CUstream(handle), external=True),
        event=lambda: own.Event(CUevent(64)),
        adapter=adapter,
    )


def read(obj):
    queue, adapter = registry.extract(obj)
    return queue.handle, queue.device, queue.owner is obj, adapter.name


@pytest.mark.parametrize(("handle", "owned"), [(0, False), (1, False), (2, False), (64, True)])
def test_a_stream_is_read(library, handle, owned):
    class MyStream(library.Stream):
        pass

    stream = library.stream(handle)
    for one in (stream, MyStream(stream.handle, external=True)):
        assert read(one) == (handle, None, owned, library.name)


def test_events_are_read_and_they_and_streams_want_a_device_only(library):
    for handle in (0, 1, 2, 123):
        with pytest.raises(sk.errors.NoDeviceError, match="new_stream"):
            sk.wrap(library.stream(handle))
    found = registry.event_library(library.event())
    assert (found.adapter.name, found.handle(library.event())) == (library.name, 64)
    with pytest.raises(sk.errors.NoDeviceError):
        sk.wrap_event(library.event())
    with pytest.raises(sk.errors.DeviceMismatchError):
        sk.new_stream("cpu").wait(library.stream(64))


def test_what_is_no_stream_is_refused(library):
    cuda = library.cuda
    for obj in (
        library.Stream,
        library.Event,
        library.event(),
        cuda,
        cuda.jit,
        cuda.jit(lambda: None),
    ):
        with pytest.raises(sk.errors.UnsupportedStreamError):
            sk.wrap(obj)
    with pytest.raises(sk.errors.UnsupportedStreamError):
        sk.wrap_event(library.stream(64))


def test_a_stream_is_built_and_keeps_the_queue_alive(library):
    for handle in (1, 2, 64):
        built = library.adapter.borrow(Queue(handle, 0))
        assert (type(built), int(built.handle)) == (library.Stream, handle)
        assert built.external
    assert keeps_its_queue(library.name)


def test_an_event_is_built_which_keeps_its_owner(library):
    class Owner:
        pass

    owner = Owner()
    built = library.adapter.borrow_event(64, 0, owner)
    assert type(built) is library.Event
    assert int(built.handle) == 64
    alive = weakref.ref(owner)
    del owner
    gc.collect()
    assert alive() is not None


def test_it_has_no_current_stream(library):
    assert not isinstance(library.adapter, CurrentStream)
    row = registry.BY_NAME[library.name]
    for name in (row.name, *row.aliases):
        assert registry.adapter(name) is library.adapter
        with pytest.raises(sk.errors.UnsupportedStreamError, match=r"s\.to"):
            sk.current_stream(name)
        with pytest.raises(sk.errors.UnsupportedStreamError, match="no current stream"):
            sk.use(sk.new_stream("cpu"), libraries=[name])


def test_numbas_own_cuda_is_refused_by_name():
    """Without numba-cuda's finder, ``numba.cuda`` is the target that numba has left behind."""
    need("numba")
    done = run_program("""
        import ctypes, sys
        sys.meta_path = [one for one in sys.meta_path if "numba" not in repr(one).lower()]
        from numba.cuda.cudadrv import driver
        import streamkit as sk
        stream = driver.Stream(None, ctypes.c_void_p(0x1234), None)
        try:
            sk.wrap(stream)
        except sk.errors.UnsupportedStreamError as error:
            print(error)
    """)
    assert done.returncode == 0, done.stderr
    assert "numba/cuda/__init__.py, which is not numba-cuda" in done.stdout
