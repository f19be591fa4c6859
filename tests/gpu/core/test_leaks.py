"""What 100,000 cycles of wrapping and converting leave behind: nothing."""

from __future__ import annotations

import gc
import os
import weakref

import pytest

import streamkit as sk
from support.gpu.raw import check, driver, make_stream, stream_id
from support.keepalive import resident_bytes

CYCLES = int(os.environ.get("STREAMKIT_LEAK_CYCLES", "100000"))


def fresh_torch(subjects):
    torch = subjects("torch").torch
    return torch.cuda.current_stream


def fresh_cupy(subjects):
    cupy, native = subjects("cupy").cupy, subjects("torch").new_stream()
    return lambda: cupy.cuda.Stream.from_external(native)


def fresh_core(subjects):
    core, raw = subjects("cuda.core").core, make_stream()
    return lambda: core.Stream.from_handle(raw)


def owned(subjects):
    return sk.new_stream


def count_objects():
    """How many objects there are, but for dead weak references: tables hold some until a sweep."""
    every = gc.get_objects()  # ``isinstance`` asks some for a property of theirs, which may warn
    return sum(not (issubclass(type(one), weakref.ref) and one() is None) for one in every)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("maker", [fresh_torch, fresh_cupy, fresh_core, owned])
def test_cycles_leave_nothing(subjects, maker):
    for name in ("torch", "cupy", "warp", "cuda.core", "numba"):
        subjects(name)
    make = maker(subjects)
    libraries = ("torch", "cupy", "warp", "cuda.core", "numba")
    anchor = sk.new_stream()

    def cycle(count):
        for index in range(count):
            stream = sk.wrap(make())
            stream.to(libraries[index % len(libraries)])
            anchor.wait(stream)
            stream.close()
        anchor.sync()
        check(driver.cuCtxSynchronize())

    cycle(min(CYCLES, 5_000))
    gc.collect()
    objects, resident = count_objects(), resident_bytes()
    cycle(CYCLES)
    gc.collect()
    assert count_objects() - objects < 50
    assert resident_bytes() - resident < 2**20
    handles = [make_stream() for _ in range(8)]
    assert all(stream_id(handle) for handle in handles)
    for handle in handles:
        check(driver.cuStreamDestroy(handle))
