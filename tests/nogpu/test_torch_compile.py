"""Where a scope may be as torch compiles: around what is compiled, or in a function left alone."""

from __future__ import annotations

import pytest

import streamkit as sk
from support.libraries import need

torch = need("torch")
dynamo = pytest.importorskip("torch._dynamo")
s, t = (sk.new_stream("cpu") for _ in range(2))


@pytest.fixture
def graphs():
    """Compile a function and call it; return the result, and in how many graphs it is."""

    def graphs(function, **options):
        dynamo.reset()  # what it has compiled of the function serves with other options too
        dynamo.utils.counters.clear()
        result = torch.compile(function, backend="eager", **options)(torch.ones(3))
        return result.tolist(), dynamo.utils.counters["stats"].get("unique_graphs", 0)

    yield graphs
    dynamo.reset()


def double(x):
    return x * 2 + 1


def test_a_scope_around_a_compiled_function_leaves_it_whole(graphs):
    with sk.use(s):
        assert graphs(double, fullgraph=True) == ([3.0] * 3, 1)


def in_a_scope(x):
    with sk.use(s):
        return x * 2 + 1


@pytest.mark.filterwarnings("ignore:Dynamo does not know how to trace:UserWarning")
def test_with_a_scope_inside_nothing_is_compiled_and_the_result_is_right(graphs):
    assert graphs(in_a_scope) == ([3.0] * 3, 0)
    with pytest.raises(dynamo.exc.Unsupported):
        graphs(in_a_scope, fullgraph=True)


def test_a_scope_in_a_function_that_is_left_alone_leaves_the_rest_compiled(graphs):
    alone = torch.compiler.disable(in_a_scope)
    assert graphs(lambda x: alone(x + 1) * 3) == ([15.0] * 3, 2)


@pytest.mark.parametrize("step", [lambda: s.wait(t), s.record], ids=["wait", "record"])
def test_a_wait_or_record_inside_breaks_the_graph_in_two(graphs, step):
    def function(x):
        y = x * 2
        step()
        return y + 1

    assert graphs(function) == ([3.0] * 3, 2)
    with pytest.raises(dynamo.exc.Unsupported):
        graphs(function, fullgraph=True)
