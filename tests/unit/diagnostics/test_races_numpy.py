"""What NumPy's own functions read and write, held against what they do."""

from __future__ import annotations

import mmap
from array import array as plain_array
from functools import partial as call

import pytest

from streamkit.diagnostics.races import calls  # a report shows pairs, not what one call does
from streamkit.diagnostics.races.arrays import Memories  # as above
from streamkit.protocols import ArrayUse

np = pytest.importorskip("numpy")

A, B, OUT, MASK, INDICES = "a", "b", "out", "mask", "indices"


def arrays():
    return {
        A: np.arange(1.0, 5.0),
        B: np.arange(2.0, 6.0),
        OUT: np.full(4, -1.0),
        "scalar": np.full((), -1.0),
        "square": np.full((4, 4), -1.0),
        "long": np.full(8, -1.0),
        MASK: np.array([True, False, True, False]),
        INDICES: np.array([2, 1]),
        "two": np.full(2, -1.0),
        "truth": np.zeros((), bool),
        "index": np.full((), -1, np.intp),
        "pair": np.full((2, 4), -1.0),
    }


def cases():  # noqa: PLR0915 - a line for each
    """Yield a name, a call, and what it reads and writes: "a?" where not surely all of it."""
    yield "add", lambda v: call(np.add, v[A], v[B]), {A, B}, set()
    yield "add out", lambda v: call(np.add, v[A], 1, out=v[OUT]), {A}, {OUT}
    yield "add positional", lambda v: call(np.add, v[A], v[B], v[OUT]), {A, B}, {OUT}
    yield "in place", lambda v: call(np.multiply, v[A], 2, v[A]), {A}, {A}
    yield (
        "where",
        lambda v: call(np.add, v[A], 1, out=v[OUT], where=v[MASK]),
        {"a?", MASK},
        {"out?"},
    )
    yield "two outputs", lambda v: call(np.modf, v[A], v[B], v[OUT]), {A}, {B, OUT}
    yield "matmul", lambda v: call(np.matmul, v[A], v[B], out=v["scalar"]), {A, B}, {"scalar"}
    yield (
        "ufunc.at",
        lambda v: call(np.add.at, v[A], v[INDICES], v["two"]),
        {"a?", INDICES, "two"},
        {"a?"},
    )
    yield (
        "ufunc.at unary",
        lambda v: call(np.negative.at, v[A], v[INDICES]),
        {"a?", INDICES},
        {"a?"},
    )
    yield "reduce", lambda v: call(np.add.reduce, v[A], 0, None, v["scalar"]), {A}, {"scalar"}
    yield (
        "reduce where",
        lambda v: call(np.add.reduce, v[A], 0, None, v["scalar"], False, 0, v[MASK]),
        {"a?", "mask?"},
        {"scalar"},
    )
    yield (
        "reduce where True",
        lambda v: call(np.add.reduce, v[A], 0, None, v["scalar"], False, 0, True),
        {A},
        {"scalar"},
    )
    yield (
        "reduce that can stop",
        lambda v: call(np.logical_or.reduce, v[A], 0, None, v["truth"]),
        {"a?"},
        {"truth"},
    )
    yield (
        "tuple of outputs",
        lambda v: call(np.modf, v[A], out=(v[B], v[OUT])),
        {A},
        {B, OUT},
    )
    yield "accumulate", lambda v: call(np.add.accumulate, v[A], out=v[OUT]), {A}, {OUT}
    yield (
        "ufunc.outer",
        lambda v: call(np.multiply.outer, v[A], v[B], out=v["square"]),
        {A, B},
        {"square"},
    )
    yield "copyto", lambda v: call(np.copyto, v[OUT], v[A]), {A}, {OUT}
    yield (
        "copyto where",
        lambda v: call(np.copyto, v[OUT], v[A], where=v[MASK]),
        {"a?", "mask?"},
        {"out?"},
    )
    yield (
        "copyto positional where",
        lambda v: call(np.copyto, v[OUT], v[A], "same_kind", v[MASK]),
        {"a?", "mask?"},
        {"out?"},
    )
    yield (
        "copyto positional where True",
        lambda v: call(np.copyto, v[OUT], v[A], "same_kind", True),
        {A},
        {OUT},
    )
    yield "put", lambda v: call(np.put, v[OUT], v[INDICES], v[A]), {"indices?", "a?"}, {"out?"}
    yield "place", lambda v: call(np.place, v[OUT], v[MASK], v[A]), {"mask?", "a?"}, {"out?"}
    yield "putmask", lambda v: call(np.putmask, v[OUT], v[MASK], v[A]), {"mask?", "a?"}, {"out?"}
    yield "fill_diagonal", lambda v: call(np.fill_diagonal, v["square"], 3), set(), {"square?"}
    yield "sum", lambda v: call(np.sum, v[A]), {A}, set()
    for fn in np.sum, np.prod, np.mean, np.std, np.var:
        yield (
            f"{fn.__name__} out",
            lambda v, fn=fn: call(fn, v[A], 0, None, v["scalar"]),
            {A},
            {"scalar"},
        )
    yield "sum where", lambda v: call(np.sum, v[A], where=v[MASK]), {"a?", "mask?"}, set()
    for fn in np.sum, np.prod:
        yield (
            f"{fn.__name__} positional where",
            lambda v, fn=fn: call(fn, v[A], 0, None, v["scalar"], False, 1, v[MASK]),
            {"a?", "mask?"},
            {"scalar"},
        )
    for fn in np.max, np.min:
        yield (
            f"{fn.__name__} positional where",
            lambda v, fn=fn: call(fn, v[A], 0, v["scalar"], False, 1, v[MASK]),
            {"a?", "mask?"},
            {"scalar"},
        )
    yield "clip", lambda v: call(np.clip, v[A], 2, 3, v[OUT]), {A}, {OUT}
    for fn in np.cumsum, np.cumprod:
        yield fn.__name__, lambda v, fn=fn: call(fn, v[A], 0, None, v[OUT]), {A}, {OUT}
    yield "dot", lambda v: call(np.dot, v["square"], v[B], v[OUT]), {"square", B}, {OUT}
    yield "outer", lambda v: call(np.outer, v[A], v[B], v["square"]), {A, B}, {"square"}
    yield (
        "einsum",
        lambda v: call(np.einsum, "i,j->ij", v[A], v[B], out=v["square"]),
        {"a?", "b?"},
        {"square"},
    )
    yield (
        "concatenate",
        lambda v: call(np.concatenate, [v[A], v[B]], 0, v["long"]),
        {A, B},
        {"long"},
    )
    yield "stack", lambda v: call(np.stack, [v[A], v[B]], 0, v["pair"]), {A, B}, {"pair"}
    for name in "max", "min", "amax", "amin", "ptp":
        yield (
            name,
            lambda v, name=name: call(getattr(np, name), v[A], None, v["scalar"]),
            {A},
            {"scalar"},
        )
    for fn in np.round, np.around:
        yield fn.__name__, lambda v, fn=fn: call(fn, v[A], 0, v[OUT]), {A}, {OUT}
    for fn in np.any, np.all:
        yield fn.__name__, lambda v, fn=fn: call(fn, v[A], None, v["truth"]), {"a?"}, {"truth"}
    for fn in np.argmax, np.argmin:
        yield fn.__name__, lambda v, fn=fn: call(fn, v[A], None, v["index"]), {"a?"}, {"index"}
    yield (
        "choose",
        lambda v: call(np.choose, v[MASK], [v[A], v[B]], v[OUT]),
        {"mask?", "a?", "b?"},
        {OUT},
    )
    yield (
        "compress",
        lambda v: call(np.compress, v[MASK], v[A], None, v["two"]),
        {"mask?", "a?"},
        {"two"},
    )
    yield (
        "trace",
        lambda v: call(np.trace, v["square"], 0, 0, 1, None, v["scalar"]),
        {"square?"},
        {"scalar"},
    )
    yield (
        "take",
        lambda v: call(np.take, v[A], v[INDICES], 0, v["two"]),
        {"a?", "indices?"},
        {"two"},
    )
    yield "fill", lambda v: call(v[OUT].fill, 7), set(), {OUT}
    yield "sort", lambda v: call(v[OUT].sort), {OUT}, {OUT}
    yield "partition", lambda v: call(v[OUT].partition, 1), {OUT}, {OUT}
    yield "put method", lambda v: call(v[OUT].put, v[INDICES], 3), {"indices?"}, {"out?"}
    yield "setfield", lambda v: call(v[OUT].setfield, 7, np.int32, 4), set(), {"out?"}
    yield "x += 1", lambda v: call(v[OUT].__iadd__, v[A]), {A, OUT}, {OUT}
    yield "x *= 2", lambda v: call(v[OUT].__imul__, 2), {OUT}, {OUT}
    yield "a[:] = b", lambda v: call(v[OUT].__setitem__, slice(None), v[A]), {A}, {OUT}
    yield "a[1:] = b", lambda v: call(v[OUT].__setitem__, slice(1, None), 3), set(), {"out?"}
    yield "a[...] = b", lambda v: call(v[OUT].__setitem__, ..., v[A]), {A}, {OUT}
    yield "a[i] = b", lambda v: call(v[OUT].__setitem__, v[INDICES], 3), {"indices?"}, {"out?"}
    yield "method sum", lambda v: call(v[A].sum, 0, None, v["scalar"]), {A}, {"scalar"}
    yield "method clip", lambda v: call(v[A].clip, 2, 3, v[OUT]), {A}, {OUT}
    yield (
        "method take",
        lambda v: call(v[A].take, v[INDICES], 0, v["two"]),
        {"a?", "indices?"},
        {"two"},
    )


CASES = [pytest.param(*case, id=name) for name, *case in cases()]


def told(uses, values):
    """The names of what is read, and written; with a "?" where that is not sure."""
    names = {id(array): name for name, array in values.items()}
    return tuple(
        {names[id(use.array)] + "?" * (not use.is_sure) for use in uses if use.mode == mode}
        for mode in ("read", "write")
    )


@pytest.mark.parametrize(("make", "reads", "writes"), CASES)
def test_it_reads_and_writes_what_is_said(make, reads, writes):
    values = arrays()
    made = make(values)
    assert told(calls.uses_of_numpy(made), values) == (reads, writes)


@pytest.mark.parametrize(("make", "reads", "writes"), CASES)
def test_it_writes_nothing_else(make, reads, writes):
    """Whatever else there is cannot be written."""
    values = arrays()
    made = make(values)
    before = {name: array.copy() for name, array in values.items()}
    for name, array in values.items():
        array.flags.writeable = name in {one.rstrip("?") for one in writes}
    made()
    changed = {name for name, array in values.items() if not np.array_equal(array, before[name])}
    assert changed <= {one.rstrip("?") for one in writes}
    is_same = made.func.__name__ in ("sort", "partition")  # where all elements are equal
    assert changed or not writes or is_same, "this case shows nothing"


class Own:
    """It has its own idea of what a function does."""

    def __array_function__(self, *_):
        return NotImplemented

    def __array_ufunc__(self, *_, **__):
        return NotImplemented


class Subclass(np.ndarray):
    pass


class Converted:
    def __array__(self, *_, **__):
        return np.zeros(3)


@pytest.mark.parametrize(
    "made",
    [
        call(np.add, Own(), 1),
        call(np.copyto, np.zeros(3), Own()),
        call(np.add, np.zeros(3), 1, out=np.zeros(3).view(Subclass)),
        call(np.apply_along_axis, sum, 0, np.zeros(3)),
        call(np.zeros(3).view(Subclass).fill, 1),
        call(np.zeros(3).tofile, "x"),
        call(np.add.resolve_dtypes, ()),
        call(print, np.zeros(3)),
        call(type("sum", (), {"__name__": "sum", "__call__": None})()),
        call(np.copyto),
        call(np.copyto, np.zeros(3), plain_array("d", [0, 0, 0])),
        call(np.concatenate, [np.zeros(3), Converted()]),
        call(np.copyto, np.zeros(3), np.frombuffer(mmap.mmap(-1, 24))),
    ],
    ids=lambda made: getattr(made.func, "__name__", "other"),
)
def test_what_is_not_known_is_not_guessed(made):
    assert calls.uses_of_numpy(made) is None


@pytest.mark.parametrize("scalar", [np.float64(2), 2, [1.0, 2.0, 3.0]])
def test_scalars_and_lists_are_no_arrays(scalar):
    x = np.zeros(3)
    assert [use.array is x for use in calls.uses_of_numpy(call(np.add, x, scalar))] == [True]


@pytest.mark.parametrize(
    "made",
    [
        call(np.add, np.zeros((0, 3)), np.zeros(3)),
        call(np.copyto, np.zeros((0, 3)), np.zeros(3)),
        call(np.concatenate, [np.zeros(0), np.zeros(3)]),
    ],
    ids=lambda made: made.func.__name__,
)
def test_beside_an_empty_array_nothing_is_surely_used(made):
    uses = calls.uses_of_numpy(made)
    assert len(uses) == 2
    assert not any(use.is_sure for use in uses)


def test_an_array_of_objects_is_not_understood_and_neither_are_the_arrays_in_it():
    x, objects = np.zeros(3), np.zeros(1, object)
    objects[0] = x
    uses, is_known = calls.uses(call(np.add, objects, 1))
    assert not is_known
    assert [use.mode for use in uses] == ["unknown", "unknown"]
    assert any(use.array is x for use in uses)


RECORD = np.dtype([("p", "f8"), ("q", "f8"), ("r", "i4")])


@pytest.mark.parametrize(
    ("array", "is_sure"),
    [
        (np.zeros(3), True),
        (np.zeros(3, RECORD)["q"], True),
        (np.zeros(3, RECORD), False),
        (np.zeros(3, RECORD)[["p", "r"]], False),  # "q" lies between them
    ],
)
def test_elements_with_fields_are_not_surely_used_as_a_whole(array, is_sure):
    access = Memories().access(ArrayUse(array, "write", True), {})
    assert access.is_sure is is_sure
