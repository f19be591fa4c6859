"""What CUPTI sees of a scope: nothing at all, unless it is ordered, or of a stream that may go.

A foreign non-blocking stream may be destroyed after its scope, so that records an event at its end,
for which Warp's frees wait then.
"""

from __future__ import annotations

import contextlib
from collections import Counter

import pytest

import streamkit as sk
from support.gpu.places import own_streams_current, working_on
from support.gpu.raw import check, driver, make_stream, on_device


@pytest.fixture
def device(each_device):
    return each_device


KINDS = {
    "blocking": lambda _: sk.new_stream(),
    "non-blocking": lambda _: sk.new_stream(nonblocking=True),
    "torch": lambda three: sk.wrap(three["torch"].new_stream()),
    "cupy": lambda three: sk.wrap(three["cupy"].new_stream()),
    "raw": lambda _: sk.from_handle(make_stream()),
}
MAY_GO = ("cupy", "raw")


@pytest.fixture(params=KINDS)
def stream(request, three, device):
    """One of each kind."""
    with on_device(device):
        return KINDS[request.param](three)


@pytest.fixture
def recorded(request, stream):
    """The ids of the queues on which its scopes record an event."""
    may_go = request.node.callspec.params["stream"] in MAY_GO
    return {stream.id} if may_go else set()


@pytest.fixture
def other(three, device):
    with on_device(device):
        return sk.wrap(three["torch"].new_stream())


def scopes(stream, other):
    """Every kind of scope that shall wait for nothing; an ordered one is on its own queue."""
    with stream:
        sk.assert_one_queue()
    with stream, stream, other, stream:
        sk.assert_one_queue()
    with sk.use(stream), sk.use(other, libraries=["torch", "cupy"]), sk.use(stream):
        sk.assert_one_queue()
    with stream, sk.use(stream, ordered=True):
        sk.assert_one_queue()
    with contextlib.suppress(KeyError), stream:
        raise KeyError


@pytest.fixture
def kernels(three, cells, device):
    """Run a kernel of each library on its current stream."""
    with on_device(device):
        src, dst = cells(1).pointer, cells(0).pointer

    def run():
        for subject in three.values():
            subject.add_one_current(src, dst)

    return run


def test_scopes_give_the_device_nothing_and_wait_for_nothing(  # noqa: PLR0917 - the cases
    three, kernels, device, stream, other, recorded
):
    with own_streams_current(three, device), working_on(three, device):
        scopes(stream, other)  # builds the views
        kernels()
        check(driver.cuCtxSynchronize())
        with sk.audit() as report:
            scopes(stream, other)
    assert [one for one in report.operations if one.kind != "record"] == []
    assert {one.queue.id for one in report.operations} == recorded


def test_scopes_of_many_queues_wait_for_none_of_them(three, kernels, device):
    """Beside non-blocking ones Warp's frees wait for them, at most eight; their scopes never do."""
    with on_device(device):
        streams = [sk.wrap(three["torch"].new_stream()) for _ in range(16)]
        streams += [sk.new_stream(nonblocking=True) for _ in range(4)]
    for stream in streams:
        stream.to("warp")
    with own_streams_current(three, device), working_on(three, device):
        kernels()
        check(driver.cuCtxSynchronize())
        with sk.audit() as report:
            for stream in (*streams, *streams):
                with stream:
                    pass
    assert report.operations == ()


def test_their_work_is_all_there_is_and_the_queues_are_theirs(  # noqa: PLR0917 - the cases
    three, kernels, device, stream, other, recorded
):
    with own_streams_current(three, device):
        scopes(stream, other)
        with sk.audit() as report, stream:
            kernels()
            with other:
                kernels()
            kernels()
    others = [one for one in report.operations if one.kind != "kernel"]
    assert {one.queue.id for one in others} == recorded
    assert {one.kind for one in others} <= {"record"}
    found = Counter(one.queue.id for one in report.work)
    assert found == {stream.id: 6, other.id: 3}


def test_control_an_ordered_scope_waits_for_each_library_and_each_for_it(
    three, kernels, device, stream
):
    with own_streams_current(three, device), working_on(three, device):
        before = [sk.wrap(subject.current()) for subject in three.values()]
        with sk.use(stream, libraries=[*three], ordered=True):  # makes what it needs
            pass
        with sk.audit() as report:
            kernels()
            with sk.use(stream, libraries=[*three], ordered=True):
                kernels()
            kernels()
    its, theirs = stream.id, [one.id for one in before]
    assert Counter(wait.queue.id for wait in report.waits) == {its: 3, **dict.fromkeys(theirs, 1)}
    assert {wait.after.id for wait in report.waits} == {its, *theirs}
    assert report.synchronisations == []
