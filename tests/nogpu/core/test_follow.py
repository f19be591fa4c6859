"""``follow`` where no library has CUDA: the same program runs, and nothing is moved."""

from __future__ import annotations

import pytest

import streamkit as sk
from support.libraries import need

torch = need("torch")


def test_a_decorated_function_runs_as_it_is():
    @sk.follow("torch")
    def total(x):
        return x.sum()

    assert total(torch.arange(10)) == 45


def test_the_stream_is_that_of_the_scope_around_it_or_the_hosts():
    stream = sk.new_stream()
    with sk.follow("torch") as followed:
        assert followed == sk.default_stream("cpu") == sk.current_stream()
    with stream, sk.follow("torch") as followed:
        assert followed is stream is sk.current_stream()
        stream.submit(lambda: None)
        with stream:
            assert stream.done
    assert stream.done


def test_one_object_is_entered_again_and_ends_with_its_blocks():
    scope = sk.follow("torch", libraries=["cupy"])
    with scope, scope:
        pass
    with pytest.raises(ZeroDivisionError), scope:
        raise ZeroDivisionError
    with pytest.raises(sk.errors.ScopeError, match="not open"):
        scope.__exit__(None, None, None)


def test_a_scope_left_while_it_is_open_inside_names_it():
    stream = sk.new_stream()
    outer, inner = sk.use(stream), sk.follow("torch")
    outer.__enter__()
    inner.__enter__()
    with pytest.raises(sk.errors.ScopeError, match="ended too"):
        outer.__exit__(None, None, None)
    assert sk.current_stream() == sk.default_stream("cpu")
