"""``races`` on torch code of the host: what its operators do, in scopes and in functions."""

from __future__ import annotations

import copy
import functools
import gc
import itertools
import threading
import time
from collections import Counter, deque

import numpy as np
import pytest

import streamkit as sk
from streamkit._queues import registry  # finds the adapter, whose functions have no public name
from streamkit.testing import accesses, adversarial
from support.libraries import need
from support.queues import eventually, pending, within

torch = need("torch")
from torch._subclasses import FakeTensorMode  # noqa: E402 - after torch; private: it has no public name

HIDDEN = "what torch does without an operator (print, tolist, save) and in threads without a stream"
UNSEEN = "what NumPy and Python do outside of streams", HIDDEN


@pytest.fixture
def a():
    return sk.new_stream("cpu", name="a")


@pytest.fixture
def b():
    return sk.new_stream("cpu", name="b")


@pytest.fixture
def x():
    return torch.zeros(6)


@pytest.fixture
def y():
    return torch.zeros(6)


def lines(report):
    return [(race.first.name, race.second.name, race.certain) for race in report.races]


def test_what_a_function_does_after_it_gave_work_waits_for_that(a, b, x, y):
    def outer(is_right=False):
        x.add_(1)
        b.wait(a)
        b.submit(y.copy_, x)
        if is_right:
            a.wait(b)
        x.add_(1)

    with sk.races() as report:
        a.submit(outer)
    (race,) = report.races
    assert (race.first.name, race.second.name) == ("copy_", "add_")
    assert race.fix.endswith(f" first, add a.wait(b) before line {race.second.line}")
    assert race.second.line == race.first.line + 3
    with sk.races() as report:
        a.submit(outer, is_right=True)
    report.assert_none(possible=True)


# -- in scopes ------------------------------------------------------------------------------------


def test_operators_in_the_bodies_of_scopes_are_certain(a, b, x, y):
    with sk.races() as report:
        with a:
            x.fill_(7)
        with b:
            y.copy_(x)
    (race,) = report.races
    assert lines(report) == [("fill_", "copy_", True)]
    assert (race.first.mode, race.second.mode) == ("write", "read")
    assert (race.first.queue.name, race.second.queue.name) == ("a", "b")
    assert (race.first.library, race.array.name, race.array.dtype) == ("torch", "x", "float32")
    assert {race.first.file, race.second.file} == {__file__}
    assert race.second.line == race.first.line + 2
    assert race.fix.endswith(f"b.wait(a) before line {race.second.line}")
    with pytest.raises(sk.errors.RaceError, match="race on x"):
        report.assert_none()


def by_wait(a, b):
    b.wait(a)


def by_event(a, b):
    b.wait(a.record())


def by_sync(a, _):
    a.sync()


def by_future(a, b):
    b.wait(a.then(torch.zeros(1).add_, 1))


def by_query(a, _=None):
    while not a.done:
        pass


def by_nothing(a, _):
    with a:
        pass


@pytest.mark.parametrize("order", [by_wait, by_event, by_sync, by_future, by_nothing])
def test_what_orders_the_streams_orders_the_operators(a, b, x, y, order):
    with sk.races() as report:
        with a:
            x.fill_(7)
        order(a, b)
        with b:
            y.copy_(x)
    assert lines(report) == [("fill_", "copy_", True)] * (order is by_nothing)


def test_use_is_a_scope_of_its_libraries_and_an_ordered_one_waits(a, b, x, y):
    with sk.races() as report, sk.use(a):
        x.fill_(7)
        with sk.use(b, ordered=True):
            y.copy_(x)
        x.fill_(8)
    assert report.races == ()
    with sk.races() as report:
        with a, sk.use(b, libraries=["cupy"]):
            x.fill_(7)
        with sk.use(b, libraries=["cupy"]):
            y.copy_(x)
    (race,) = report.certain
    assert (race.first.queue.name, race.second.queue.name) == ("a", "the host")


def test_ordered_scopes_wait_for_what_was_current(a, b, x, y):
    default = sk.default_stream("cpu")
    with sk.races() as report:
        with default:
            x.fill_(7)
        default.submit(x.fill_, 7)
        with sk.use(a, ordered=True):
            x.fill_(7)
        with sk.use(b, ordered=True):
            y.copy_(x)
        x.sum()
        default.submit(y.add_, x)
        default.sync()
    assert report.races == ()
    with sk.races() as report:
        default.submit(x.fill_, 7)
        with sk.use(a):
            x.fill_(7)
        default.sync()
    assert lines(report) == [("fill_", "fill_", True)]
    with sk.races() as report:
        with sk.use(a, ordered=True):
            x.fill_(7)
        with sk.use(b):
            y.copy_(x)
    assert [race.certain for race in report.races] == [True]


def test_a_new_tensor_is_written_where_it_is_made(a, b, x):
    with sk.races() as report:
        with a:
            made = x * 2
        with b:
            made.sum()
    assert lines(report) == [("mul", "sum", True)]
    with sk.races() as report:
        with a:
            made = torch.empty(3)
        with b:
            made.fill_(1)
    assert report.races == ()


def test_a_view_is_the_memory_that_it_shows(a, b):
    x = torch.zeros(4, 4)
    with sk.races() as report:
        with a:
            x[:, 0] += 1
            x.t()[1].fill_(1)
        with b:
            x[:, 2:].mul_(2)
            x.view(16)[1:2].zero_()
    (race,) = report.races
    assert (race.first.name, race.second.name) == ("fill_", "zero_")
    assert race.array.name == "part of x"


def test_a_scope_inside_a_scope_has_its_own_operators_once(a, b, x, y):
    with sk.races() as report, a:
        x.fill_(1)
        with b:
            made = y + 1
            with a:
                x.add_(made)
            del made
        b.submit(y.add_, 1)
    assert lines(report) == [("add", "add_", True)]
    assert report.coverage.total == 4  # three operators, and a function


def test_a_block_inside_of_a_scope_sees_what_comes_before_its_first_work(a, b, x, y):
    with a, sk.races() as report:
        x.fill_(7)
        b.submit(y.copy_, x)
    assert lines(report) == [("fill_", "copy_", True)]


# -- outside of streams ---------------------------------------------------------------------------


def in_a_scope(a, x):
    with a:
        x.fill_(7)


def in_a_thread(a, x):
    thread = threading.Thread(target=lambda: a.submit(x.fill_, 7))
    thread.start()
    thread.join()


@pytest.mark.parametrize("give", [in_a_scope, in_a_thread, lambda a, x: a.submit(x.fill_, 7)])
def test_an_operator_outside_of_streams_is_work_of_the_host(a, b, x, y, give):
    with sk.races() as report:
        x.fill_(1)  # the work that is given later comes after it
        give(a, x)
        x.sum()
    (race,) = report.certain
    assert (race.first.name, race.second.name) == ("fill_", "sum")
    assert str(race).startswith("race on x (float32, shape (6,), 24 bytes): the host reads it")
    assert race.fix.endswith(f"first, add a.sync() before line {race.second.line}")
    assert (report.coverage.understood, report.coverage.total) == (3, 3)


@pytest.mark.parametrize("wait", [
    lambda a: a.sync(), lambda a: a.record().sync(), lambda a: a.then(int).result(), by_query,
])  # fmt: skip
def test_what_the_host_has_waited_for_comes_before_its_own_work(a, b, x, wait):
    with sk.races() as report:
        a.submit(x.fill_, 7)
        wait(a)
        x.mul_(2)
        b.submit(x.add_, 1)
    assert report.races == ()


def test_a_number_that_was_read_in_a_body_leaves_an_order_possible(a, b, x, y):
    """On a GPU the host has waited for it."""
    with sk.races() as report:
        with a:
            x.fill_(7)
            x.sum().item()
        with b:
            y.copy_(x)
    assert lines(report) == [("fill_", "copy_", False)]


def test_a_function_of_then_is_waited_for_at_the_end(a, b, x, y):
    with sk.races() as report:
        b.submit(x.fill_, 1)
        b.submit(time.sleep, 0.05)
        a.then(b.then, time.sleep, 0.05)
        a.wait(b.record())
        a.then(y.copy_, x)
        b.then(x.add_, 1)
    assert [(race.first.name, race.second.name) for race in report.races] == [("copy_", "add_")]
    assert "add_" not in report.coverage.missed


# -- in functions ---------------------------------------------------------------------------------


def test_a_function_of_the_library_is_known(a, b, x):
    with sk.races() as report:
        a.submit(x.fill_, 7)
        b.submit(x.add_, 1)
    (race,) = report.certain
    assert lines(report) == [("fill_", "add_", True)]
    assert race.array.name == "x"
    assert race.first.file == __file__
    assert (report.coverage.understood, report.coverage.total) == (2, 2)


def test_of_another_function_its_operators_count_and_it_is_named(a, b, x, y):
    def fill(value):
        part = x[1:]
        part.fill_(value)

    with sk.races() as report:
        a.submit(fill, 7)
        b.submit(x.mul_, 2)
        b.submit(lambda: torch.add(x, 1, out=y))
    assert lines(report) == [("fill_", "mul_", False), ("fill_", "add", False)]
    assert report.races[0].array.name in {"part", "x"}
    assert [name.rpartition(".")[2] for name in report.coverage.missed] == [
        "fill", "<lambda>", *UNSEEN
    ]  # fmt: skip
    assert (report.coverage.understood, report.coverage.total) == (3, 5)


def in_a_body(b, tensor):
    with b:
        tensor.mul_(2)


def given_directly(b, tensor):
    b.submit(tensor.mul_, 2)


def on_the_host(_, tensor):
    tensor.mul_(2)


@pytest.mark.parametrize("hold", [lambda array: array, torch.from_numpy], ids=["array", "tensor"])
@pytest.mark.parametrize("work", [in_a_body, given_directly, on_the_host])
def test_numpys_work_in_a_function_races_with_operators_on_its_memory(a, b, hold, work):
    array, elsewhere = np.zeros(6), torch.zeros(6)
    tensor, held = torch.from_numpy(array), hold(array)
    reports = []
    for wait, used in ((None, tensor), (b.wait, tensor), (None, elsewhere)):
        with sk.races() as report:
            a.submit(lambda: np.add(held, 1, out=np.asarray(held)))
            if wait is not None:
                a.sync() if work is on_the_host else wait(a)
            work(b, used)
        a.sync()
        b.sync()
        reports.append(report)
    (race,) = reports[0].possible
    assert reports[0].certain == reports[1].races == reports[2].races == ()
    assert (race.first.name.rpartition(".")[2], race.second.name) == ("<lambda>", "mul_")
    assert race.array.name in ("array", "tensor", "held")
    assert "does with it was not seen" in race.reason
    assert race.fix.endswith(f" before line {race.second.line}")


def test_a_line_of_the_standard_library_is_that_of_its_caller(a, x):
    with sk.races() as report:
        a.submit(x.fill_, 7)
        copy.deepcopy(x)
    (race,) = report.certain
    assert (race.second.file, race.second.line) == (__file__, race.first.line + 1)
    assert race.fix.endswith(f"add a.sync() before line {race.second.line}")


@pytest.mark.parametrize(
    "own",
    [
        lambda x: (x.add_, 1),
        lambda x: (x.__iadd__, 1),
        lambda x: (torch.add, x, 1),
        lambda x: (torch.mul, x, torch.ones(6, dtype=torch.float32)),
        lambda x: (functools.partial(torch.zeros_like, dtype=x.dtype), x),
        lambda x: (torch._foreach_add_, [x], [torch.ones(6)]),
        lambda x: (torch.nn.functional.linear, x, torch.nn.Parameter(torch.ones(2, 6))),
    ],
)
def test_a_compiled_function_of_the_library_is_understood_and_tells_nobody(a, b, x, own):
    y, given = torch.zeros(6), own(x)
    with sk.races() as report:
        a.submit(*given)
        a.submit(y.fill_, 1)
        b.submit(y.add_, 1)
    assert ("fill_", "add_", True) in lines(report)
    assert report.coverage.missed == UNSEEN
    assert (report.coverage.understood, report.coverage.total) == (3, 3)


class Signals(torch.Tensor):
    """Its operators run code of the program's."""


class Module(torch.nn.Module):
    def forward(self, x):
        return x.relu_()


@pytest.mark.parametrize(
    "other",
    [
        lambda x: (x.as_subclass(Signals).add_, 1),
        lambda x: (x.add_, x.as_subclass(Signals)),
        lambda x: (x.apply_, float),
        lambda x: (x.clone().requires_grad_().sum().backward,),
        lambda x: (torch.nn.functional.relu, x),
        lambda x: (torch.nn.Linear(6, 2), x),
        lambda x: (torch.nn.Sequential(Module()), x),
        lambda x: (x.tolist,),
        lambda x: (x.numpy,),
        lambda x: (format, x),
        lambda x: (torch.from_numpy, np.zeros(3)),
    ],
)
def test_another_may_have_told_and_is_not_understood(a, b, x, other):
    y = torch.zeros(6)
    fn, *arguments = other(x)
    with sk.races() as report:
        a.submit(y.fill_, 1)
        a.submit(fn, *arguments)
        b.submit(y.add_, 1)
    assert lines(report) == [("fill_", "add_", False)]
    name = getattr(fn, "__qualname__", type(fn).__qualname__)
    assert name in report.coverage.missed


def test_a_function_is_no_point(a, b, x, y):
    def forward():
        x.fill_(1)
        b.submit(y.copy_, x)
        x.fill_(2)

    with sk.races() as report:
        a.submit(forward)
        a.submit(x.fill_, 3)
        a.sync()
    first = forward.__code__.co_firstlineno
    told = {tuple(sorted((race.first.line - first, race.second.line - first)))
            for race in report.certain}  # fmt: skip
    assert told == {(2, 3), (2, 7)}


def test_a_function_waits_in_the_middle(a, b, x):
    def waits():
        b.sync()
        x.add_(1)

    with sk.races() as report:
        b.submit(x.fill_, 1)
        a.submit(waits)
    assert report.certain == ()
    with sk.races() as report:
        b.submit(x.fill_, 1)
        a.submit(lambda: x.add_(1))  # a later function can have told nobody
    assert lines(report) == [("fill_", "add_", True)]


def test_what_then_calls_is_seen(a, b, x):
    with sk.races() as report:
        a.submit(x.fill_, 1)
        future = a.then(lambda: x.add_(1))
        with b:
            b.wait(future)  # which orders what is given to b, and nothing else
            a.submit(x.mul_, 2)
            x.neg_()
    found = {frozenset((race.first.queue.name, race.second.queue.name)) for race in report.races}
    assert found == {frozenset(("a", "'then' of a")), frozenset(("a", "b"))}


def test_in_the_order_of_a_seed_the_places_are_the_same(a, b, x):
    with sk.races() as report, adversarial(3):
        a.submit(x.fill_, 7)
        b.submit(x.add_, 1)
        b.sync()
    (race,) = report.certain
    assert race.first.file == race.second.file == __file__
    assert race.second.line != race.first.line
    assert {race.first.queue.name, race.second.queue.name} == {"a", "b"}


def test_a_promise_and_an_operator_speak_of_one_memory(a, b, x):
    with sk.races() as report:
        a.submit(accesses(writes=("part",))(lambda part: None), x[:3])
        with b:
            x[3:].add_(1)
            x[2:].sum()
    (race,) = report.races
    assert race.certain
    assert race.second.name == "sum"


def test_memory_that_has_a_new_owner_is_other_memory(a, b):
    with sk.races() as report:
        for _ in range(5):
            with a:
                torch.zeros(10).add_(1)
            gc.collect()
            with b:
                torch.zeros(10).add_(1)
    assert report.certain == ()


@pytest.mark.parametrize("kept", [[], deque(maxlen=0)], ids=["kept", "dropped"])
@pytest.mark.parametrize("order", [by_nothing, by_wait])
@pytest.mark.parametrize("show", [
    torch.from_numpy, torch.as_tensor, torch.from_dlpack,
    lambda array: torch.frombuffer(array, dtype=torch.float64),
])  # fmt: skip
def test_memory_of_another_library_is_possible(a, b, kept, order, show):
    array = np.zeros(6)
    with sk.races() as report:
        with a:
            kept.append(show(array).add_(1))
        order(a, b)
        b.submit(np.copyto, array, 7)
    assert [race.certain for race in report.races] == [False] * (order is by_nothing)


def test_gradients_are_computed_on_the_stream_of_the_scope(a, b):
    w = torch.ones(3, requires_grad=True)
    with sk.races() as report:
        with a:
            (w * 2).sum().backward()
        with b:
            w.grad.zero_()
    assert any(
        race.array.name == "w.grad" or race.second.name == "zero_" for race in report.certain
    )
    with sk.races() as report:
        with a:
            (w * 2).sum().backward()
        b.wait(a)
        with b:
            w.grad.zero_()
    assert report.certain == ()


# -- what cannot be seen --------------------------------------------------------------------------


def test_bodies_that_nothing_orders_are_possible_once_for_a_pair_of_lines(a, b):
    x, y = np.zeros(3), np.zeros(3)
    with sk.races() as report:
        for _ in range(3):
            with a:
                x[:] = 7
            with b:
                y[:] = x
    (race,) = report.possible
    assert report.certain == ()
    assert [one.name for one in (race.first, race.second)] == ["the body of a scope"] * 2
    assert race.second.line == race.first.line + 2
    assert str(race).startswith("possible race on memory that neither body shows: ")
    report.assert_none()
    with pytest.raises(sk.errors.RaceError, match="the body of a scope may read or write it on a"):
        report.assert_none(possible=True)
    with sk.races() as report:
        with a:
            x[:] = 7
        b.wait(a)
        with b:
            y[:] = x
    report.assert_none(possible=True)


def test_of_a_body_in_which_operators_ran_the_rest_was_not_looked_at(a, b, y):
    lent = torch.zeros(3)

    def fill():
        lent.numpy().fill(1)

    with sk.races() as report:
        for stream in (a, b):
            with stream:
                y.sum()
                fill()
    assert report.races == ()
    unseen = f"{UNSEEN[0]} and in the bodies of scopes; {UNSEEN[1]}."
    assert f"2 of 2 operations understood. Not seen: {unseen}" in str(report)


# -- what schemas do not tell ---------------------------------------------------------------------


def batch_norm(x, y):
    mean = y[:2].detach()
    return (
        torch.nn.functional.batch_norm,
        x.view(3, 2),
        mean,
        y[2:4].detach(),
        None,
        None,
        True,
    ), mean


def reduced(x, _):
    if not torch.distributed.is_initialized():
        store = torch.distributed.HashStore()
        torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    return (torch.distributed.all_reduce, x), x


@pytest.mark.parametrize("of", [
    batch_norm, reduced, lambda x, _: ((lambda: x.resize_(1000),), x[:]),
])  # fmt: skip
def test_an_operator_that_declares_no_write_is_possible(a, b, x, y, of):
    call, read = of(x, y)
    read = read[:]
    with sk.races() as report:
        a.submit(*call)
        b.submit(torch.zeros(6)[: len(read)].copy_, read)
    assert [race.certain for race in report.races] == [False]


@pytest.mark.parametrize("call", [
    lambda x: torch.nn.functional.conv1d(x.view(1, 1, 6), torch.ones(1, 1, 1), stride=2),
    lambda x: x.pow(0), lambda x: x.max(0), lambda x: x.argmax(),
])  # fmt: skip
def test_what_may_not_read_everything_is_not_sure(a, b, x, call):
    with sk.races() as report:
        with a:
            call(x)
        with b:
            x[1:].fill_(1)
    assert {race.certain for race in report.races} == {False}


def test_a_file_that_is_mapped_twice_is_not_understood(a, b, y, tmp_path):
    one, other = (torch.from_file(str(tmp_path / "file"), shared=True, size=6) for _ in range(2))
    with sk.races() as report:
        a.submit(one.fill_, 1)
        b.submit(y.copy_, other)
    assert report.coverage.understood == 0


# -- tensors without memory of their own ----------------------------------------------------------

EYE = torch.eye(3)
WITHOUT = [
    ("sparse", lambda x: torch.sparse.mm(EYE.to_sparse(), x)),
    ("vmap", torch.vmap(lambda row: row * 2)),
    ("grad", torch.func.grad(lambda one: (one * one).sum())),
    ("cond", lambda x: torch.ops.higher_order.cond(TRUE, torch.sin, torch.cos, (x,))),
]
TRUE = torch.tensor(True)


@pytest.mark.parametrize("call", [case[1] for case in WITHOUT], ids=[case[0] for case in WITHOUT])
def test_a_program_that_has_tensors_without_memory_of_their_own_runs_as_ever(a, b, call):
    x = torch.ones(3, 3)
    sparse = EYE.to_sparse()  # a variable of the code that gives the work
    expected = call(x)
    with sk.races() as report:
        a.submit(lambda: torch.testing.assert_close(call(x), expected))
        with b:
            found = call(x)
        a.sync()
    torch.testing.assert_close(found, expected)
    assert report.certain == ()
    assert sparse.is_sparse


@pytest.mark.parametrize(
    ("call", "name"), [(WITHOUT[0][1], "_to_sparse"), (WITHOUT[-1][1], "cond")]
)
def test_what_is_done_with_such_tensors_is_counted_and_named(a, call, name):
    with sk.races() as report:
        a.submit(call, torch.ones(3, 3))  # a function of which the operators tell all
    assert name in report.coverage.missed


def test_a_fake_tensor_has_no_memory(a, b):
    with FakeTensorMode():
        fake = torch.ones(3)
    with sk.races() as report:
        a.submit(fake.add_, 1)
        assert eventually(lambda: not pending(a))  # torch lets one thread at a time use the mode
        with b:
            fake.mul_(2)
    assert report.races == ()


def test_what_an_operator_does_with_the_other_tensors_is_known(a, b, x):
    x = torch.ones(3, 3)
    with sk.races() as report:
        with a:
            torch.sparse.mm(EYE.to_sparse(), x)
            torch.ops.higher_order.cond(TRUE, torch.sin, torch.cos, (x,))
        with b:
            x.fill_(1)
    names = {race.first.name for race in report.possible}
    assert names == {"_sparse_addmm", "cond"}
    assert {race.array.name for race in report.races} == {"x"}


# -- nothing stays --------------------------------------------------------------------------------


def state():
    noted = vars(torch.utils._python_dispatch).items()
    flags = {name: on for name, on in noted if name.startswith("_is_in_")}
    return torch._C._len_torch_dispatch_stack(), flags


def test_torch_is_as_it_was(x):
    before = state()
    streams = [sk.new_stream("cpu") for _ in range(8)]
    with sk.races() as report:
        for number in range(200):
            streams[number % 8].submit(torch.zeros(4).add_, 1)
        with pytest.raises(KeyError), streams[0]:  # noqa: PT012 - the scope is what ends
            x.fill_(1)
            raise KeyError
    assert report.coverage.total == 401  # with the zeros
    assert (state(), before[0]) == (before, 0)


@pytest.mark.parametrize("ends", [lambda call: call(), within], ids=["here", "in another thread"])
@pytest.mark.parametrize("order", [1, -1], ids=["one after the other", "nested"])
def test_each_block_sees_its_own_wherever_and_in_whatever_order_they_end(a, x, ends, order):
    def block():
        with sk.races() as report:
            yield report

    before = state()
    (one, first), (other, last) = [(new, next(new)) for new in (block(), block())][::order]
    ends(lambda: next(one, None))
    a.submit(x.fill_, 7)
    float(x.sum())
    ends(lambda: next(other, None))
    assert first.coverage.total == 0
    assert lines(last) == [("fill_", "sum", True)]
    assert last.coverage.understood == last.coverage.total == 3
    assert state()[1] == before[1]
    with sk.races():  # no other thread could take the mode off
        x.add_(1)
    assert state() == before


class Counting(torch.utils._python_dispatch.TorchDispatchMode):
    seen = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.seen += 1
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("ends", [lambda call: call(), within], ids=["here", "in another thread"])
@pytest.mark.parametrize("order", ["uoUO", "ouOU", "uoOU", "ouUO", "ouvOVU", "uovVUO"])
def test_a_users_mode_is_active_from_its_begin_to_its_end(x, order, ends):
    """Whenever it (u, v) and ours (o) begin and end: in a program for a GPU ours begins late."""
    before, told, active, expected = state(), [], set(), Counter()
    watch = registry.adapter("torch").watch_operators
    modes = {"o": watch(lambda *_: told.append(0)), "u": Counting(), "v": Counting()}
    earlier = watch(print)
    earlier.__enter__()
    ends(lambda: earlier.__exit__(None, None, None))
    for step in order:
        mode = modes[step.lower()]
        mode.__enter__() if step.islower() else mode.__exit__(None, None, None)
        active ^= {step.lower()}
        expected.update(active)
        x.add_(1)
        assert set(state()[1].values()) == {bool(active)}
    assert Counter(o=len(told), u=modes["u"].seen, v=modes["v"].seen) == expected
    assert state() == before


@pytest.mark.parametrize("kinds", [*itertools.permutations([Counting, FakeTensorMode, sk.races])])
def test_a_block_among_a_users_mode_and_one_of_torchs_leaves_nothing(kinds):
    before, (first, second, third) = state(), kinds
    with first(), second(), third():
        assert all(state()[1].values())
    assert state() == before


def test_an_interrupt_while_a_block_begins_leaves_a_users_mode_where_it_is(monkeypatch):
    late, where = lambda _: {}["interrupted"], "streamkit.backends._torch.operators._Watching"
    monkeypatch.setattr(f"{where}.__enter__", late)
    with Counting():
        with pytest.raises(KeyError), sk.races():
            pass
        assert (state()[0], set(state()[1].values())) == (1, {True})


def test_a_block_ends_among_users_modes_that_end_out_of_order():
    modes = Counting(), sk.races(), Counting()
    for mode in modes:
        mode.__enter__()
    for mode in modes:  # torch takes away the third one first, and keeps the first one
        mode.__exit__(None, None, None)
    with sk.races():  # the mode of the other block stays until here, and tells nobody
        pass
    assert state()[0] == 0


# -- what an operator does ------------------------------------------------------------------------

SQUARE = torch.ones(4, 4)
CASES = [
    ("add_", lambda x, y: x.add_(y), {"x", "y"}, {"x"}),
    ("copy_", lambda x, y: x.copy_(y), {"y"}, {"x"}),
    ("fill_", lambda x, y: x.fill_(1), set(), {"x"}),
    ("zero_", lambda x, y: x.zero_(), set(), {"x"}),
    ("normal_", lambda x, y: x.normal_(), set(), {"x"}),
    ("bernoulli", lambda x, y: torch.bernoulli(x, out=y), {"x"}, {"y"}),
    ("bernoulli p", lambda x, y: torch.bernoulli(x, 0.8), set(), set()),
    ("equal", torch.equal, {"x?", "y?"}, set()),
    ("out", lambda x, y: torch.mul(y, 2, out=x), {"y"}, {"x"}),
    ("mm", torch.mm, {"x", "y"}, set()),
    ("linear", torch.nn.functional.linear, {"x", "y"}, set()),
    ("addmm", lambda x, y: torch.addmm(x, y, y), {"x", "y"}, set()),
    ("addmm 0", lambda x, y: torch.addmm(x, y, y, beta=0), {"x?", "y?"}, set()),
    ("sum", lambda x, y: x.sum(), {"x"}, set()),
    ("cat", lambda x, y: torch.cat([x, y]), {"x", "y"}, set()),
    ("item", lambda x, y: x[:1, :1].sum().item(), {"x"}, set()),
    ("where", lambda x, y: torch.where(x > 0, x, y), {"x", "x?", "y?"}, set()),
    ("masked_fill_", lambda x, y: x.masked_fill_(y > 9, 1), {"y", "x?"}, {"x?"}),
    ("index", lambda x, y: x[[0]], {"x?"}, set()),
    ("index_put_", lambda x, y: x.__setitem__([0], 1.0), {"x?"}, {"x?"}),
    ("foreach", lambda x, y: torch._foreach_add_([x], [y]), {"x", "y"}, {"x"}),
    ("like", lambda x, y: (torch.zeros_like(x), torch.empty_like(x), x.new_zeros(3)), set(), set()),
    ("view", lambda x, y: x.view(x.shape).detach().unsqueeze_(0).mT, set(), set()),
    ("empty", lambda x, y: x[:0].add_(y[:0]), set(), set()),
]


@pytest.mark.parametrize(("call", "reads", "writes"), [case[1:] for case in CASES],
                         ids=[case[0] for case in CASES])  # fmt: skip
def test_an_operator_reads_and_writes_what_its_schema_says(call, reads, writes):
    x, y = SQUARE.clone(), SQUARE.clone()
    names = {one.data_ptr(): name for name, one in (("x", x), ("y", y))}
    told = {"read": set(), "write": set()}

    def tell(_, uses, is_all):
        assert is_all
        for array, mode, is_sure, _ in uses:
            address = array.untyped_storage().data_ptr()
            if address in names and array.numel():
                told[mode].add(names[address] + "?" * (not is_sure))

    with registry.adapter("torch").watch_operators(tell):
        call(x, y)
    assert (told["read"], told["write"]) == (reads, writes)
    changed = {
        name for name, one in (("x", x), ("y", y)) if not torch.equal(one.view(-1), SQUARE.view(-1))
    }
    assert changed <= {name.rstrip("?") for name in writes}
