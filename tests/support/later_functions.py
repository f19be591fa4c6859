"""Functions whose call runs nothing of their body."""

from __future__ import annotations

import functools

import pytest


async def asynchronous():
    raise AssertionError


async def asynchronous_generator():
    yield


def generator():
    yield


class Callable:
    async def __call__(self):
        raise AssertionError

    def method(self):
        yield


def returns_a_coroutine():
    return asynchronous()


RUN_NOTHING = pytest.mark.parametrize(
    ("fn", "kind"),
    [
        (asynchronous, "an async function"),
        (asynchronous_generator, "an async generator"),
        (generator, "a generator"),
        (functools.partial(generator), "a generator"),
        (functools.partial(functools.partial(asynchronous), x=1), "an async function"),
        (Callable(), "an async function"),
        (functools.partial(Callable()), "an async function"),
        (Callable().__call__, "an async function"),
        (Callable().method, "a generator"),
    ],
)
