"""What is mistaken in a call is refused at the call, on CUDA streams as on those of the host."""

from __future__ import annotations

import copy
import pickle
import weakref

import pytest

import streamkit as sk
from support.later_functions import RUN_NOTHING, returns_a_coroutine
from support.libraries import need


def waits():
    stream = sk.new_stream()
    event, future = stream.record(), stream.then(int)
    return {
        "CudaStream": stream.sync,
        "CudaEvent": event.sync,
        "Outcome": future.result,
        "Outcome at": future.exception,
    }


@pytest.mark.parametrize("named", ["CudaStream", "CudaEvent", "Outcome", "Outcome at"])
def test_a_timeout_that_is_none_is_refused_at_the_call(named):
    wait = waits()[named]
    match = rf"{named.removesuffix(' at')}.* a timeout is .*seconds.*None"
    for timeout in ("a", True, []):
        with pytest.raises(TypeError, match=match):
            wait(timeout=timeout)
    for timeout in (-1, float("nan")):
        with pytest.raises(ValueError, match=match):
            wait(timeout=timeout)
    for timeout in (5, float("inf"), 10**400):
        wait(timeout=timeout)


@pytest.mark.parametrize("fn", [5, None], ids=repr)
@pytest.mark.parametrize("method", ["submit", "then"])
def test_what_cannot_be_called_is_refused_at_the_call(method, fn):
    with pytest.raises(TypeError, match=rf"{method} of .*CudaStream .*needs a function.*\(fn, x\)"):
        getattr(sk.new_stream(), method)(fn)


@RUN_NOTHING
@pytest.mark.parametrize("method", ["submit", "then"])
def test_a_function_whose_call_runs_nothing_is_refused_at_the_call(method, fn, kind):
    with pytest.raises(TypeError, match=rf"^{method} of .*CudaStream.* is {kind}: .*await s"):
        getattr(sk.new_stream(), method)(fn)


def test_a_coroutine_that_a_submitted_function_returns_is_its_error():
    with pytest.raises(TypeError, match=r"^returns_a_.* returned .*, asynchronous, .*awaited"):
        sk.new_stream().submit(returns_a_coroutine)


@pytest.mark.parametrize("name", ["pytorch", 5, ["torch"]], ids=repr)
def test_what_is_no_library_is_named(name):
    with pytest.raises(sk.errors.UnsupportedStreamError, match=r"no adapter for.*Known: .*torch"):
        sk.new_stream().to(name)


@pytest.mark.parametrize("library", ["torch", "cuda.core"])
def test_a_library_that_can_wrap_no_event_is_named_with_what_to_do(library):
    need(*library.split(".")[:1])
    with pytest.raises(sk.errors.UnsupportedStreamError, match=rf"{library}.*s\.wait\(event\)"):
        sk.new_event().to(library)


@pytest.mark.parametrize("event", [5, object()], ids=["int", "object"])
def test_what_is_no_event_is_not_recorded(event):
    with pytest.raises(sk.errors.UnsupportedStreamError, match="is not an event of a library"):
        sk.new_stream().record(event)


def test_a_stream_and_an_event_have_no_room_for_attributes():
    stream = sk.new_stream(name="mine")
    for one in (stream, stream.record(), sk.wrap(stream.to("cuda.core"))):
        with pytest.raises(AttributeError, match="foo"):
            one.foo = 1
        assert weakref.ref(one)() is one
        for copied in (copy.copy, copy.deepcopy, pickle.dumps):
            with pytest.raises(TypeError, match="cannot be copied or pickled"):
                copied(one)


def test_name_and_owner_are_told_before_and_after_the_end():
    stream = sk.new_stream(name="mine")
    wrapped, borrowed = sk.wrap(stream.to("cuda.core")), sk.from_handle(stream.handle)
    assert [one.name for one in (stream, wrapped, borrowed)] == ["mine", None, None]
    assert [one.owned for one in (stream, wrapped)] == [True, False]
    stream.close()
    assert (stream.name, stream.owned, stream.closed) == ("mine", True, True)
    assert "'mine'" in repr(stream)
    assert (wrapped.closed, wrapped.owned) == (False, False)
