"""The scratch memory of CuPy's FFT in graphs beside each other, and beside eager work.

The same is done with CuPy alone, whose plan has one work area: that control must be wrong.
"""

from __future__ import annotations

import contextlib

import pytest

import streamkit as sk
from support.gpu.raw import check, driver
from support.libraries import need

pytestmark = pytest.mark.usefixtures("libraries_as_before")
ROUNDS, LENGTH, BATCH = 200, 65_537, 16  # a prime: cuFFT needs much scratch memory
PLAIN = 1 << 20  # a plan for it can be made inside a capture


@pytest.fixture
def cupy():
    return need("cupy")


class Transform:
    """A transform of many rows, and its right result."""

    def __init__(self, cupy, seed, length=LENGTH):
        self.cupy = cupy
        values = cupy.random.RandomState(seed)
        real, imaginary = (values.standard_normal((BATCH, length), dtype="f4") for _ in range(2))
        self.x = real + 1j * imaginary
        self.right = self()
        check(driver.cuCtxSynchronize())

    def __call__(self):
        return self.cupy.fft.fft(self.x)

    def is_right(self, result):
        return bool(self.cupy.allclose(result, self.right, rtol=1e-3, atol=1e-1))


class WithStreamKit:
    """A graph of StreamKit."""

    is_wrong = False

    def __init__(self, work, stream):
        self.work = work
        with sk.capture(stream) as self.graph:
            self.result = work()

    def launch(self, stream):
        self.graph.launch(stream)


class WithCupy:
    """A graph of CuPy alone, and what keeps its result's memory."""

    is_wrong = True

    def __init__(self, work, stream):
        self.work, native = work, stream.to("cupy")
        with native:
            native.begin_capture()
            self.result = work()
            self.graph = native.end_capture()

    def launch(self, stream):
        self.graph.launch(stream.to("cupy"))


ARMS = pytest.mark.parametrize("arm", [WithStreamKit, WithCupy], ids=lambda arm: arm.__name__)


def streams(count):
    return [sk.new_stream(nonblocking=True) for _ in range(count)]


@ARMS
@pytest.mark.parametrize("beside", ["a graph", "eager work"])
def test_transforms_side_by_side_are_right(cupy, arm, beside):
    s, t, one, two = streams(4)
    first, second = Transform(cupy, 1), Transform(cupy, 2)
    graph = arm(first, s)
    other = arm(second, t) if beside == "a graph" else None
    wrong = 0
    for _ in range(ROUNDS):
        graph.launch(one)
        if other is None:
            with sk.use(two, libraries=["cupy"]):
                result = second()
        else:
            other.launch(two)
            result = other.result
        check(driver.cuCtxSynchronize())
        wrong += not (first.is_right(graph.result) and second.is_right(result))
    assert wrong > 0 if arm.is_wrong else wrong == 0


@pytest.mark.parametrize("ends", ["well", "badly"])
def test_after_a_capture_the_plans_are_as_before(cupy, ends):
    first, second = Transform(cupy, 1), Transform(cupy, 2)
    cupy.fft.ifft(first.x)
    cache = cupy.fft.config.get_plan_cache()
    before = [(key, node.plan) for key, node in cache]
    with contextlib.suppress(KeyError), sk.capture() as g:
        first()
        if ends == "badly":
            raise KeyError
    after = [(key, node.plan) for key, node in cache]
    assert dict(after) == dict(before)
    g.close()
    assert second.is_right(second())


def test_a_plan_that_was_made_inside_leaves_the_cache(cupy):
    first = Transform(cupy, 1, PLAIN)
    cache = cupy.fft.config.get_plan_cache()
    cache.clear()
    with contextlib.suppress(sk.errors.CaptureError), sk.capture():  # not each has a plan inside
        first()
    assert not list(cache)
    assert first.is_right(first())


def test_a_graph_keeps_the_plans_that_it_needs(cupy):
    first = Transform(cupy, 1)
    (s,) = streams(1)
    with sk.capture(s) as g:
        result = first()
    cupy.fft.config.get_plan_cache().clear()
    overwritten = [cupy.full(1 << 20, -1, "f4") for _ in range(64)]
    for _ in range(3):
        result.fill(0)
        check(driver.cuCtxSynchronize())
        g.launch(s)
        check(driver.cuCtxSynchronize())
        assert first.is_right(result)
    assert all(bool((values == -1).all()) for values in overwritten)


def test_the_limits_of_the_cache_hold_again_after_a_capture(cupy):
    first = Transform(cupy, 1)
    cache = cupy.fft.config.get_plan_cache()
    before = cache.get_size(), cache.get_memsize()
    try:
        cache.set_size(1)
        cache.set_memsize(1 << 30)
        first()
        with sk.capture() as g:
            first()
        assert (cache.get_size(), cache.get_memsize()) == (1, 1 << 30)
        assert len(list(cache)) == 1
        g.close()
    finally:
        cache.set_size(before[0])
        cache.set_memsize(before[1])
