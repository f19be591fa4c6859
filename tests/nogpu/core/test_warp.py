"""Warp, the real one, without a driver. It makes no stream there, so none can be read."""

from __future__ import annotations

import numpy as np
import pytest

import streamkit as sk
from streamkit._queues import registry  # the public calls need a device
from streamkit.protocols import CurrentStream, Queue
from support.libraries import need

pytestmark = pytest.mark.versions

warp = need("warp")
warp.config.log_level = warp.LOG_WARNING
warp.init()


@pytest.mark.parametrize(
    "make",
    [
        lambda: warp.Stream,
        lambda: warp.Event,
        lambda: warp.get_device("cpu"),
        lambda: warp.zeros(3, device="cpu"),
        lambda: warp.float32,
        lambda: warp.vec3(1.0, 2.0, 3.0),
        lambda: warp.ScopedStream(None),
        lambda: warp,
    ],
    ids=["Stream", "Event", "device", "array", "dtype", "vector", "scope", "module"],
)
def test_what_is_no_stream_is_refused(make):
    obj = make()
    with pytest.raises(sk.errors.UnsupportedStreamError):
        sk.wrap(obj)
    with pytest.raises(sk.errors.UnsupportedStreamError):
        sk.wrap_event(obj)


def test_its_device_is_read():
    assert sk.new_stream(warp.get_device("cpu")).device == "cpu"


@pytest.mark.parametrize("handle", [1, 2, 64])
def test_a_stream_cannot_be_built_without_a_device(handle):
    with pytest.raises(sk.errors.NoDeviceError, match="Warp"):
        registry.adapter("warp").borrow(Queue(handle, 0))


def test_an_event_cannot_be_built_without_a_device():
    with pytest.raises(sk.errors.NoDeviceError, match="Warp"):
        registry.adapter("warp").borrow_event(64, 0, None)


def test_without_a_device_it_has_no_current_stream():
    adapter = registry.adapter("warp")
    assert isinstance(adapter, CurrentStream)
    with pytest.raises(sk.errors.NoDeviceError, match="Warp"):
        adapter.current(0)
    with pytest.raises(sk.errors.NoDeviceError):
        sk.current_stream("warp")


def test_it_has_no_current_stream():
    assert sk.current_streams() == {}
    sk.assert_one_queue(libraries=["warp"])


@pytest.mark.parametrize("options", [{}, {"ordered": True}, {"libraries": "warp"}])
def test_a_scope_on_the_host_leaves_it_alone(options):
    before = warp.get_device()
    stream = sk.new_stream("cpu")
    with sk.use(stream, **options):
        inside = warp.get_device()
        ones = warp.full(10, 1.0, device=stream.device)
    assert inside == before
    assert warp.get_device() == before
    assert np.all(ones.numpy() == 1.0)


def test_warp_is_told_the_mode_of_a_capture_that_it_joins():
    from streamkit.backends._warp import capture  # a capture needs a device

    for name in ("global", "thread_local", "relaxed"):
        mode = capture.WarpPart(None, name)._mode
        assert mode is warp.CaptureMode[name.upper()]
