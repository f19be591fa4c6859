"""Requests that share a graphed function: each gets its own result, in whatever thread."""

from __future__ import annotations

import asyncio
import contextlib
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import emulator
import streamkit as sk
from streamkit._graphs import graphed as graphed_module  # another thread has the turn
from streamkit._queues import loaded_libraries  # to hide the loaded libraries
from support.emulated.captures import nothing_left  # noqa: F401 - a fixture
from support.emulated.graphed import address, copy, read
from support.emulated.operations import foreign
from support.gpu.raw import LEGACY, check, destroy_stream, driver, held, idle, make_stream
from support.queues import together

pytestmark = pytest.mark.usefixtures("handles", "nothing_left")


@pytest.fixture(autouse=True)
def warp_alone(warp, monkeypatch):
    """Hide what other tests have loaded: outside scopes the libraries' streams would not be one."""
    found = tuple(one for one in loaded_libraries.libraries() if one.name == "warp")
    monkeypatch.setattr(loaded_libraries, "_found", found)
    monkeypatch.setattr(loaded_libraries, "_missing", {})


@pytest.fixture
def model(array):
    """A function whose result is one memory, as that of a graph is; no library here makes any."""
    result = array()

    def model(x):
        copy(result, x)
        return result

    return model


@pytest.fixture
def undo():
    with contextlib.ExitStack() as stack:
        yield stack


@pytest.fixture(params=["own", "foreign", "legacy", "outside scopes"])
def where(request, undo, warp):
    """The stream of the first request, and what a request enters.

    Outside scopes a result is read on the libraries' streams, which the next request may not have.
    """
    if request.param == "outside scopes":
        return sk.wrap(warp.Stream("cuda:0")), lambda s: warp.ScopedStream(s.to("warp"), False)
    make = {"foreign": lambda: sk.wrap(foreign(undo)), "legacy": sk.default_stream}
    return make.get(request.param, lambda: sk.new_stream(nonblocking=True))(), sk.use


def put(x, value):
    """Fill an array at once, whatever queue is held."""
    stream = make_stream()
    bits = int(np.float32(value).view(np.uint32))
    check(driver.cuMemsetD32Async(address(x), bits, 4, stream))
    check(driver.cuStreamSynchronize(stream))
    destroy_stream(stream)


def launches_of_a_graph(model, x):
    """The control: launches of a graph do not wait for those who read."""
    with sk.capture() as graph:
        result = model(x)
    return lambda _: (graph.launch(), result)[1]


def without_copies(model, x):
    return warmed(sk.graphed(model), x)


def with_copies(model, x):
    return warmed(sk.graphed(model, copy=True), x)


def warmed(function, x):
    """The function, which has been captured."""
    with sk.new_stream(nonblocking=True):
        for _ in range(3):
            function(x)
    check(driver.cuCtxSynchronize())
    return function


@pytest.mark.parametrize("make", [launches_of_a_graph, without_copies, with_copies])
def test_a_request_on_another_stream_leaves_results(array, model, gate, make, where):
    """Without copies it waits for the present end of the first one's stream; with them not."""
    x, answers, late = array(), [array(), array()], sk.new_stream(nonblocking=True)
    (first, enter), call = where, make(model, x)
    put(x, 1)
    with enter(first):
        result = call(x)
        check(driver.cuStreamSynchronize(first.handle))
        gate.hold(first.handle)
        copy(answers[0], result)
    put(x, 2)
    with enter(late):
        copy(answers[1], call(x))
    assert held(late.handle) if make is without_copies else idle(late.handle)
    gate.open()
    expected = [2, 2] if make is launches_of_a_graph else [1, 2]
    assert [read(one) for one in answers] == expected


@pytest.mark.parametrize("make", [without_copies, with_copies])
def test_a_request_on_the_same_stream_costs_no_wait(array, model, make):
    """With copies it records one event, for calls on other streams."""
    call, x = make(model, array()), array()
    with sk.new_stream(nonblocking=True):
        for _ in range(4):
            emulator.reset_calls()
            call(x)
        calls = emulator.all_calls()
    assert calls.get("cuEventRecord", 0) == (make is with_copies)
    assert {"cuStreamWaitEvent", "cuEventQuery"}.isdisjoint(calls)


@pytest.mark.parametrize("end", ["closes", "captures", "dies"])
def test_a_stream_that_has_ended_or_captures_holds_up_no_request(array, model, undo, end):
    x, answer, late = array(1), array(), sk.new_stream(nonblocking=True)
    first = sk.wrap(foreign(undo)) if end == "dies" else sk.new_stream(nonblocking=True)
    call = without_copies(model, x)
    with sk.use(first):
        call(x)
    if end == "captures":
        handle = first.handle
        check(driver.cuStreamBeginCapture(handle, driver.CUstreamCaptureMode(2)))
    elif end == "closes":
        first.close()
    else:
        del first
        undo.close()
    with sk.use(late):
        copy(answer, call(x))
    late.sync()
    if end == "captures":
        check(driver.cuGraphDestroy(check(driver.cuStreamEndCapture(handle))))
    assert read(answer) == 1


# -- with copies ------------------------------------------------------------------------------


def test_results_are_the_callers(array, model):
    """Each call's is another array; one that is returned twice is one, and a view is another."""

    @sk.graphed(copy=True)
    def function(x, same):
        result = model(x)
        return result, [result, result[:2]], same, 5

    kept = []
    for number in range(4):
        given = array()
        (one, (two, view), same, five) = function(array(number), given)
        assert one is two
        assert same is given
        assert five == 5
        kept.append((one, view))
    assert [(read(one), read(view)) for one, view in kept] == [(n, n) for n in range(4)]
    assert len({address(one) for pair in kept for one in pair}) == 8
    assert (function.captures, function.hits) == (1, 2)


@pytest.mark.parametrize("kind", ["threads", "tasks"])
def test_a_hundred_requests_at_once_get_their_own_results(array, model, kind):
    function, wrong = with_copies(model, array()), []

    async def task(index):
        stream = sk.new_stream(nonblocking=True)
        for number in range(index * 25, index * 25 + 25):
            with sk.use(stream, libraries=()):
                result = function(array(number))
            await stream
            wrong.extend([number] * (set(result.copy_to_host().tolist()) != {number}))

    async def tasks():
        await asyncio.gather(*map(task, range(4)))

    if kind == "threads":
        together(4, lambda index: asyncio.run(task(index)))
    else:
        asyncio.run(tasks())
    assert wrong == []
    assert (function.captures, function.hits) == (1, 101)


def test_beside_a_capture_of_another_thread_a_call_with_copies_waits(array, model):
    """torch refuses random numbers there, so that the call could not run the function."""
    function, x = sk.graphed(model, copy=True), array(1)
    with ThreadPoolExecutor(1) as other, ThreadPoolExecutor(1) as caller:
        other.submit(graphed_module._turn.acquire).result()
        called = caller.submit(function, x)
        with pytest.raises(TimeoutError):
            called.result(timeout=0.2)
        other.submit(graphed_module._turn.release).result()
        assert read(called.result(timeout=20)) == 1


# -- the first call, and the order where no library has a current stream --------------------------


@pytest.mark.parametrize("with_copies", [False, True])
def test_a_first_call_that_has_raised_does_not_count(array, model, with_copies):
    calls = []

    @sk.graphed(copy=with_copies)
    def function(x):
        calls.append(1)
        if len(calls) == 1:
            raise LookupError("its own")
        return model(x)

    x = array(1)
    with pytest.raises(LookupError, match="its own"):
        function(x)
    assert function.explain(x) == "it calls the function, because it is the first call"
    found = []
    for _ in range(3):
        function(x)
        found.append((len(calls), function.captures))
    assert found == [(2, 0), (3, 1), (3, 1)]


@pytest.mark.parametrize("behind", ["the legacy stream", "the graph's"])
@pytest.mark.parametrize("of", ["streamkit", "the driver"])
def test_without_a_current_stream_anywhere_a_launch_is_in_order_with_the_legacy_one(
    array, gate, monkeypatch, of, behind
):
    """``current_stream`` names that one. A launch of the driver's own is the control."""
    monkeypatch.setattr(loaded_libraries, "_found", ())
    monkeypatch.setattr(loaded_libraries, "_missing", {})
    x, result, answer = array(1), array(), array()
    with sk.capture() as graph:
        copy(result, x)
    assert sk.current_stream() == sk.default_stream()
    raw, own = graph._owned.executable.executable, graph.stream.handle
    first, second = (LEGACY, own) if behind == "the legacy stream" else (own, LEGACY)
    gate.hold(first)
    bits = int(np.float32(2).view(np.uint32))
    check(driver.cuMemsetD32Async(address(x), bits, 4, LEGACY))
    graph.launch() if of == "streamkit" else check(driver.cuGraphLaunch(raw, own))
    check(driver.cuMemcpyDtoDAsync(address(answer), address(result), 16, LEGACY))
    assert held(second) if of == "streamkit" else idle(second)
    gate.open()
    assert (read(answer) == 2) is (of == "streamkit")
