"""New work in an old graph, of torch and CuPy, on a GPU."""

from __future__ import annotations

import pytest

import streamkit as sk
from support.libraries import need


def captured(cupy, x, y):
    cupy.add(x, 1, out=y)  # once before
    with sk.capture() as g:
        cupy.add(x, 1, out=y)
    return g


def test_later_launches_write_the_new_arrays():
    cupy = need("cupy")
    x, old, new = cupy.zeros(8), cupy.zeros(8), cupy.zeros(8)
    g = captured(cupy, x, old)
    g.launch(g.stream)
    with g.update():
        cupy.add(x, 2, out=new)
    old.fill(0)
    g.launch()
    assert (float(old[0]), float(new[0])) == (0, 2)
    g.close()


def test_a_graph_of_torch_gets_a_new_executable():
    torch = need("torch")
    x = torch.zeros(8, device="cuda")
    (x + 1).sum()
    with sk.capture() as g:
        result = x + 1
    g.launch()
    assert float(result[0]) == 1
    with g.update():
        later = torch.rand(8, device="cuda") + 3
    assert g.updated_in_place is False
    g.launch()
    first = later.clone()
    g.launch()
    assert bool((later > 3).all())
    assert not bool((later == first).all())
    assert float(result[0]) == 1
    g.close()


def test_a_failure_leaves_the_old_work():
    torch = need("torch")
    x = torch.zeros(8, device="cuda")
    (x + 1).sum()
    with sk.capture() as g:
        result = x + 1
    with pytest.raises(sk.CaptureError), g.update():
        (x + 2).sum().item()
    x.fill_(4)
    g.launch()
    assert float(result[0]) == 5
    g.close()
