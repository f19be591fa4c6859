"""``follow`` without a library: what it decorates, what it refuses, and in which words."""

from __future__ import annotations

import functools
import inspect
import sys

import pytest

import streamkit as sk

pytestmark = pytest.mark.quick


async def asynchronous():
    pass


async def asynchronous_generator():
    yield


def generator():
    yield


class Callable:
    def __init__(self, kind):
        self.kind = kind

    async def __call__(self):
        pass


@pytest.mark.parametrize(
    ("fn", "pause"),
    [
        (asynchronous, "async function.*await"),
        (asynchronous_generator, "async generator.*yield or await"),
        (generator, "a generator.*yield"),
        (functools.partial(generator), "a generator.*yield"),
        (Callable(0), "async function.*await"),
        (Callable(0).__call__, "async function.*await"),
    ],
)
def test_what_would_hold_the_scope_across_a_pause_is_refused_with_the_reason(fn, pause):
    with pytest.raises(TypeError, match=f"{pause}.*with streamkit.follow\\('torch'\\):"):
        sk.follow("torch")(fn)


@pytest.mark.parametrize(
    "obj", [None, 5, Callable, staticmethod(len), classmethod(len), property(len)]
)
def test_what_is_no_function_is_refused(obj):
    with pytest.raises(TypeError, match="is not a function"):
        sk.follow("torch")(obj)


def test_a_decorated_function_looks_like_the_one_that_was_written():
    def smooth(x: int, *, times: int = 1) -> str:
        """Smooth it."""
        return "x" * x * times

    found = sk.follow("torch")(smooth)
    assert (found.__name__, found.__doc__, found.__wrapped__) == ("smooth", "Smooth it.", smooth)
    assert inspect.signature(found) == inspect.signature(smooth)


@pytest.mark.parametrize("library", ["jax", "", 5, None, "Torch", ["torch"], asynchronous])
def test_an_unknown_library_is_refused_when_it_is_made(library):
    for options in ({"library": library}, {"library": "torch", "libraries": [library]}):
        if callable(library) and "libraries" not in options:
            continue  # perhaps the function to decorate, which has an answer of its own
        if library == ["torch"] and "libraries" in options:
            continue  # the names of several, of which none may be a list
        with pytest.raises(sk.errors.UnsupportedStreamError, match="no adapter for"):
            sk.follow(**options)


@pytest.mark.parametrize("library", ["numba", "cuda.core", "cuda.bindings", "cuda"])
def test_a_library_without_a_current_stream_is_refused_when_it_is_made(library):
    with pytest.raises(sk.errors.UnsupportedStreamError, match="no current stream"):
        sk.follow(library)
    with pytest.raises(sk.errors.UnsupportedStreamError, match="no current stream"):
        sk.follow("torch", libraries=[library])


def test_a_library_that_is_not_imported_is_an_error_at_the_entry(monkeypatch):
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    calls = []
    following = sk.follow("torch")(calls.append)  # as at the top of a module
    with pytest.raises(sk.errors.ScopeError, match="Import it before"):
        following(1)
    assert not calls


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({}, "streamkit.follow('torch')"),
        ({"libraries": "cupy"}, "streamkit.follow('torch', libraries=['cupy', 'torch'])"),
        ({"libraries": ["torch"]}, "streamkit.follow('torch', libraries=['torch'])"),
    ],
)
def test_its_text_is_how_to_make_it(options, text):
    scope = sk.follow("torch", **options)
    scope(len)  # else it would warn that it was not used
    assert repr(scope) == text


def test_leaving_what_was_not_entered_names_it():
    scope = sk.follow("torch")
    scope(len)  # else it would warn that it was not used
    with pytest.raises(sk.errors.ScopeError, match=r"follow\('torch'\).*not open in this thread"):
        scope.__exit__(None, None, None)


def test_one_that_is_neither_entered_nor_a_decorator_warns_where_it_is_dropped():
    with pytest.warns(RuntimeWarning, match=r"follow\('torch'\) was never entered") as warned:
        sk.follow("torch")
    assert warned[0].filename == __file__
