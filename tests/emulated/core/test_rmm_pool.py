"""RMM's pool for Warp: the stream, the resource and the order of what RMM is told, and no captures.

RMM's own resources need a GPU. Here it has a real one that asks the emulated driver.
"""

from __future__ import annotations

import gc

import pytest

import streamkit as sk
from streamkit.backends import _frees  # the control arm frees without order
from support.emulated.captures import capturing, nothing_left
from support.gpu.raw import check, driver, held, idle
from support.libraries import need

__all__ = ["nothing_left"]  # the fixture
pytestmark = pytest.mark.usefixtures("nothing_left")


class Resource:
    """A device's resource, and what it was asked for."""

    def __init__(self, rmm):
        self.taken, self.back = {}, []
        self.resource = rmm.mr.CallbackMemoryResource(self.allocate, self.deallocate)

    def allocate(self, size, stream):
        pointer = int(check(driver.cuMemAlloc(size)))
        self.taken[pointer] = size, int(check(driver.cuCtxGetDevice())), stream.__cuda_stream__()[1]
        return pointer

    def deallocate(self, pointer, size, stream):
        now = size, int(check(driver.cuCtxGetDevice())), stream.__cuda_stream__()[1]
        assert now == self.taken[pointer], "RMM must be told the same as before"
        self.back.append(pointer)  # not freed here: that waits for the whole device


@pytest.fixture
def resources():
    rmm = need("rmm")
    before = [rmm.mr.get_per_device_resource(device) for device in range(2)]
    made = [Resource(rmm) for _ in range(2)]
    for device, one in enumerate(made):
        rmm.mr.set_per_device_resource(device, one.resource)
    yield made
    for device, resource in enumerate(before):
        rmm.mr.set_per_device_resource(device, resource)
    gc.collect()
    assert all(one.back == [*one.taken] for one in made), "all has to go back, in order"
    for pointer in (pointer for one in made for pointer in one.back):
        check(driver.cuMemFree(pointer))


@pytest.fixture
def shared(warp, resources):
    with sk.share_pool("rmm", libraries="warp") as shared:
        assert shared.library == "rmm"
        yield shared


def test_memory_is_the_devices_and_the_streams(warp, resources, shared):
    with sk.new_stream(nonblocking=True) as s:
        inside = warp.empty(8, dtype=float, device="cuda:0")
    outside = warp.empty(4, dtype=float, device="cuda:1")
    assert resources[0].taken == {inside.ptr: (32, 0, s.handle)}
    assert resources[1].taken == {outside.ptr: (16, 1, warp.get_stream("cuda:1").cuda_stream)}
    pointers = inside.ptr, outside.ptr
    del inside, outside
    assert (resources[0].back, resources[1].back) == ([pointers[0]], [pointers[1]])


def test_memory_goes_back_to_the_resource_that_it_came_from(warp, resources, shared):
    rmm = need("rmm")
    array = warp.empty(4, dtype=float, device="cuda:0")
    first, second = resources[0], Resource(rmm)
    rmm.mr.set_per_device_resource(0, second.resource)
    del first.resource  # RMM has let it go: its memory has to keep it
    gc.collect()
    other = warp.empty(4, dtype=float, device="cuda:0")
    shared.close()
    pointers = array.ptr, other.ptr
    del array, other
    assert (first.back, second.back) == ([pointers[0]], [pointers[1]])
    check(driver.cuMemFree(pointers[1]))


@pytest.mark.usefixtures("shared")
@pytest.mark.parametrize("is_ordered", [True, False])
def test_rmm_is_told_after_the_stream_waits_for_who_used_it(
    warp, resources, gate, monkeypatch, is_ordered
):
    if not is_ordered:
        monkeypatch.setattr(_frees, "_has_order", lambda *_: True)
    made_on = sk.new_stream(nonblocking=True)
    with made_on:
        array = warp.empty(4, dtype=float, device="cuda:0")
    with sk.new_stream(nonblocking=True) as s:
        gate.hold(s.handle)
    del array
    assert resources[0].back
    made_on.record()
    assert (held if is_ordered else idle)(made_on.handle)
    gate.open()
    made_on.sync()


def test_rmm_never_sees_a_stream_that_captures(resources, shared):
    from streamkit._queues import registry  # CuPy, which would ask so, cannot run here

    rmm, stream = registry.adapter("rmm"), sk.new_stream(nonblocking=True).handle
    before = rmm.allocate(8, 0, stream)
    check(driver.cuStreamBeginCapture(stream, driver.CUstreamCaptureMode(2)))
    with pytest.raises(sk.CaptureError, match=r"RMM has no memory for a graph.*cuda:0"):
        rmm.allocate(8, 0, stream)
    with pytest.raises(sk.CaptureError):
        rmm.free(before)
    assert capturing(stream) == 1
    assert resources[0].back == []
    check(driver.cuGraphDestroy(check(driver.cuStreamEndCapture(stream))))
    rmm.free(before)
    assert resources[0].back == [before]


def test_nor_the_legacy_stream_beside_a_capture(resources):
    from streamkit._queues import registry  # as above

    rmm, stream = registry.adapter("rmm"), sk.new_stream().handle
    check(driver.cuStreamBeginCapture(stream, driver.CUstreamCaptureMode(2)))
    with pytest.raises(sk.CaptureError):
        rmm.allocate(8, 0, 0)
    assert capturing(stream) == 1
    check(driver.cuGraphDestroy(check(driver.cuStreamEndCapture(stream))))
    pointer = rmm.allocate(8, 0, 0)
    assert resources[0].taken[pointer] == (8, 0, 1)
    rmm.free(pointer)


def test_its_streams_are_read_and_made():
    need("rmm")
    from rmm.pylibrmm.stream import Stream

    own = sk.new_stream()
    theirs = own.to("rmm")
    assert isinstance(theirs, Stream)
    assert sk.wrap(theirs) == own
    assert theirs.__cuda_stream__() == (0, own.handle)
