"""What NumPy's own functions read and write, held against what they do."""

from __future__ import annotations

import mmap
from array import array as plain_array
from functools import partial as call

import pytest

from streamkit.diagnostics.races import calls  # a report shows pairs, not what one call does
from streamkit.diagnostics.races.arrays import Memories  # as above
from streamkit.protocols import ArrayUse
from streamkit.testing import accesses

np = pytest.importorskip("numpy")


def arrays():
    return {
        "a": np.arange(1.0, 5.0),
        "b": np.arange(2.0, 6.0),
        "out": np.full(4, -1.0),
        "scalar": np.full((), -1.0),
        "square": np.full((4, 4), -1.0),
        "long": np.full(8, -1.0),
        "mask": np.array([True, False, True, False]),
        "indices": np.array([2, 1]),
        "two": np.full(2, -1.0),
        "truth": np.zeros((), bool),
        "index": np.full((), -1, np.intp),
        "pair": np.full((2, 4), -1.0),
    }


TABLE = """
np.add, a, b | a b |
np.add, a, 1, out=out | a | out
np.add, a, b, out | a b | out
np.multiply, a, 2, a | a | a
np.add, a, 1, out=out, where=mask | a? mask | out?
np.modf, a, b, out | a | b out
np.matmul, a, b, out=scalar | a b | scalar
np.add.at, a, indices, two | a? indices two | a?
np.negative.at, a, indices | a? indices | a?
np.add.reduce, a, 0, None, scalar | a | scalar
np.add.reduce, a, 0, None, scalar, False, 0, mask | a? mask? | scalar
np.add.reduce, a, 0, None, scalar, False, 0, True | a | scalar
np.logical_or.reduce, a, 0, None, truth | a? | truth
np.modf, a, out=(b, out) | a | b out
np.add.accumulate, a, out=out | a | out
np.multiply.outer, a, b, out=square | a b | square
np.copyto, out, a | a | out
np.copyto, out, a, where=mask | a? mask? | out?
np.copyto, out, a, 'same_kind', mask | a? mask? | out?
np.copyto, out, a, 'same_kind', True | a | out
np.put, out, indices, a | indices? a? | out?
np.place, out, mask, a | mask? a? | out?
np.putmask, out, mask, a | mask? a? | out?
np.fill_diagonal, square, 3 |  | square?
np.sum, a | a |
np.sum, a, 0, None, scalar | a | scalar
np.prod, a, 0, None, scalar | a | scalar
np.mean, a, 0, None, scalar | a | scalar
np.std, a, 0, None, scalar | a | scalar
np.var, a, 0, None, scalar | a | scalar
np.sum, a, where=mask | a? mask? |
np.sum, a, 0, None, scalar, False, 1, mask | a? mask? | scalar
np.prod, a, 0, None, scalar, False, 1, mask | a? mask? | scalar
np.max, a, 0, scalar, False, 1, mask | a? mask? | scalar
np.min, a, 0, scalar, False, 1, mask | a? mask? | scalar
np.clip, a, 2, 3, out | a | out
np.cumsum, a, 0, None, out | a | out
np.cumprod, a, 0, None, out | a | out
np.dot, square, b, out | square b | out
np.outer, a, b, square | a b | square
np.einsum, 'i,j->ij', a, b, out=square | a? b? | square
np.concatenate, [a, b], 0, long | a b | long
np.stack, [a, b], 0, pair | a b | pair
np.max, a, None, scalar | a | scalar
np.min, a, None, scalar | a | scalar
np.amax, a, None, scalar | a | scalar
np.amin, a, None, scalar | a | scalar
np.ptp, a, None, scalar | a | scalar
np.round, a, 0, out | a | out
np.around, a, 0, out | a | out
np.any, a, None, truth | a? | truth
np.all, a, None, truth | a? | truth
np.argmax, a, None, index | a? | index
np.argmin, a, None, index | a? | index
np.choose, mask, [a, b], out | mask? a? b? | out
np.compress, mask, a, None, two | mask? a? | two
np.trace, square, 0, 0, 1, None, scalar | square? | scalar
np.take, a, indices, 0, two | a? indices? | two
out.fill, 7 |  | out
out.sort | out | out
out.partition, 1 | out | out
out.put, indices, 3 | indices? | out?
out.setfield, 7, np.int32, 4 |  | out?
out.__iadd__, a | a out | out
out.__imul__, 2 | out | out
out.__setitem__, slice(None), a | a | out
out.__setitem__, slice(1, None), 3 |  | out?
out.__setitem__, ..., a | a | out
out.__setitem__, indices, 3 | indices? | out?
a.sum, 0, None, scalar | a | scalar
a.clip, 2, 3, out | a | out
a.take, indices, 0, two | a? indices? | two
"""
"""Calls, and what each reads and writes: "a?" where that is not surely all of it."""


def cases():
    for row in TABLE.strip().splitlines():
        call_of, reads, writes = row.split("|")
        yield pytest.param(call_of, set(reads.split()), set(writes.split()), id=call_of.strip())


def made_of(call_of, values):
    return eval(f"call({call_of})", {"np": np, "call": call, **values})  # noqa: S307 - of the table


CASES = [*cases()]


def told(uses, values):
    """The names of what is read, and written; with a "?" where that is not sure."""
    names = {id(array): name for name, array in values.items()}
    return tuple(
        {names[id(use.array)] + "?" * (not use.is_sure) for use in uses if use.mode == mode}
        for mode in ("read", "write")
    )


@pytest.mark.parametrize(("call_of", "reads", "writes"), CASES)
def test_it_reads_and_writes_what_is_said(call_of, reads, writes):
    values = arrays()
    made = made_of(call_of, values)
    assert told(calls.uses_of_numpy(made), values) == (reads, writes)


@pytest.mark.parametrize(("call_of", "reads", "writes"), CASES)
def test_it_writes_nothing_else(call_of, reads, writes):
    """Whatever else there is cannot be written."""
    values = arrays()
    made = made_of(call_of, values)
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
    declared = accesses(reads=["x"])(lambda x: x)
    known = [calls.uses(call(declared, one))[1] for one in (x, np.frombuffer(mmap.mmap(-1, 24)))]
    assert known == [True, False]  # a file can be mapped twice


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
