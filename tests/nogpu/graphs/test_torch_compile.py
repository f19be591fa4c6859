"""Where a scope may be as torch compiles: around what is compiled, or in a function left alone."""

from __future__ import annotations

import pytest

import streamkit as sk
from streamkit.types import CudaStream
from support.libraries import need
from support.programs import python

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


def test_a_scope_in_a_function_that_is_left_alone_leaves_the_rest_compiled(graphs):
    alone = torch.compiler.disable(in_a_scope)
    assert graphs(lambda x: alone(x + 1) * 3) == ([15.0] * 3, 2)


def calls_in_a_scope(x):
    y = x + 1
    y = y * 2
    with sk.use(s):
        return double(y)


def calls_in_with(x):
    y = x + 1
    y = y * 2
    with s:
        return double(y)


INSIDE = [calls_in_a_scope, calls_in_with]


@pytest.mark.parametrize("function", INSIDE)
def test_what_is_before_a_scope_and_what_it_calls_are_compiled(graphs, function):
    assert graphs(function) == ([9.0] * 3, 2)


def test_what_a_scope_calls_runs_in_the_scope(graphs):
    def name_of_current(x):
        return x + 1, sk.current_stream(device="cpu").name

    def function(x):
        with sk.use(named):
            return name_of_current(x + 1)[1]

    named = sk.new_stream("cpu", name="named")
    assert torch.compile(function, backend="eager")(torch.ones(3)) == "named"
    with sk.use(s):
        assert torch.compile(name_of_current, backend="eager")(torch.ones(3))[1] is None


STEPS = {
    "use": lambda s, x: sk.use(s).__enter__(),
    "wait": lambda s, x: s.wait(t),
    "record": lambda s, x: s.record(),
    "submit": lambda s, x: s.submit(int),
    "then": lambda s, x: s.then(int),
    "keep": lambda s, x: s.keep(x),
    "sync": lambda s, x: s.sync(),
    "handoff": lambda s, x: sk.handoff(x, s, after=t),
}
STREAMS = {"host": s, "CUDA": CudaStream.__new__(CudaStream)}  # which takes no device


@pytest.mark.parametrize("kind", STREAMS)
@pytest.mark.parametrize("name", STEPS)
def test_a_step_inside_with_fullgraph_says_where_it_belongs(graphs, name, kind):
    stream, step = STREAMS[kind], STEPS[name]

    def function(x):
        y = x * 2
        step(stream, y)
        return y + 1

    where = r"Put 'with streamkit\.use\(stream\):' around the call of the compiled function"
    with pytest.raises(dynamo.exc.Unsupported, match=where):
        graphs(function, fullgraph=True)


@pytest.mark.parametrize("kind", STREAMS)
def test_with_inside_and_fullgraph_the_stream_is_named_or_said_where_it_belongs(graphs, kind):
    stream = STREAMS[kind]

    def function(x):
        with stream:
            return x * 2

    own = r"how to enter a `(Host|Cuda)Stream` context manager"  # torch's, up to 2.13
    with pytest.raises(dynamo.exc.Unsupported, match=rf"{own}|Put 'with streamkit\.use\("):
        graphs(function, fullgraph=True)


@pytest.mark.parametrize("name", ["wait", "record", "submit", "then", "sync"])
def test_a_step_inside_breaks_the_graph_in_two(graphs, name):
    def function(x):
        y = x * 2
        STEPS[name](s, y)
        return y + 1

    assert graphs(function) == ([3.0] * 3, 2)


# -- the compiler leaves StreamKit's own functions alone -------------------------------------------

LOADS = {
    "first": "registry.adapter('torch'); import torch._dynamo",
    "last": "import torch._dynamo; registry.adapter('torch')",
    "without torch's private rule": "from torch._dynamo import trace_rules; del trace_rules.add",
}
PROGRAM = """
import torch
import streamkit as sk
from streamkit._queues import registry  # a public name would need a device

{load}
s, t = (sk.new_stream("cpu") for _ in range(2))

def handoff(x):
    return sk.handoff(x * 2, s, after=t) + 1

def keep(x):
    y = x * 2
    s.keep(y)
    return y + 1

def then(x):
    y = x * 2
    s.then(len, y).result()
    return y + 1

for function in (handoff, keep, then):
    graphs = []

    def backend(module, inputs):
        graphs.append(module)
        return module.forward

    print(torch.compile(function, backend=backend)(torch.ones(1)).item(), len(graphs))
"""


@pytest.mark.parametrize("order", ["first", "last"])
def test_it_compiles_no_function_of_ours_that_gets_a_tensor(order):
    assert python(PROGRAM.format(load=LOADS[order])).splitlines() == ["3.0 2"] * 3


@pytest.mark.versions
def test_without_its_private_rule_it_tries_to_and_the_results_are_right():
    load = LOADS["without torch's private rule"]
    printed = python(PROGRAM.format(load=load), options=("-W", "ignore")).split()
    assert printed[::2] == ["3.0"] * 3
    assert int(printed[1]) > 2
