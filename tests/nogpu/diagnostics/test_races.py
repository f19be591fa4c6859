"""``races`` on host streams with the libraries' own arrays in the memory of the host."""

from __future__ import annotations

import numpy as np
import pytest

import streamkit as sk
from streamkit.testing import accesses
from support.libraries import need


def torch_tensor():
    torch = need("torch")
    return torch.zeros(6)


def warp_array():
    wp = need("warp")
    return wp.zeros(6, dtype=wp.float32, device="cpu")


@accesses(writes=("x",))
def write(x):
    pass


@pytest.mark.parametrize(("make", "is_watched"), [(torch_tensor, True), (warp_array, False)])
def test_a_librarys_array_is_one_and_its_memory_is_possible(make, is_watched):
    a, b, x = sk.new_stream("cpu"), sk.new_stream("cpu"), make()
    with sk.races() as report:
        a.submit(write, x[:4])
        b.submit(write if is_watched else print, x[2:3])
        b.submit(write, x[4:])
        b.submit(write, np.zeros(6))
    (race,) = report.races
    assert race.certain is is_watched
    assert (race.array.shape, race.array.dtype) == ((4,), "float32")
    assert race.second.name == ("write" if is_watched else "print")


def test_what_cannot_be_lent_is_no_array():
    torch = need("torch")
    stream, tensor = sk.new_stream("cpu"), torch.zeros(3, requires_grad=True)
    with sk.races() as report:
        stream.submit(print, tensor.grad_fn, tensor)
    assert report.races == ()
    assert report.coverage.missed[0] == "print"
