"""The table of objects that it does not keep alive."""

from __future__ import annotations

import contextlib
import gc

from streamkit._support.weak_table import WeakTable  # no public name tells what it holds


class Thing:
    pass


def test_it_keeps_nothing_alive():
    table = WeakTable()
    thing = Thing()
    table.put(1, thing)
    assert table[1]() is thing
    del thing
    gc.collect()
    assert table[1]() is None
    assert list(table.living()) == []


def test_a_sweep_takes_the_dead_and_leaves_the_living():
    table = WeakTable()
    things = {number: Thing() for number in range(0, 5_000, 100)}
    for number in range(5_000):
        table.put(number, things.get(number) or Thing())
    assert len(table) < 2_500, "the dead are still there"
    assert all(table[number]() is thing for number, thing in things.items())
    assert set(table.living()) == set(things.values())


def test_the_first_one_stays_while_it_lives():
    table = WeakTable()
    one, two = Thing(), Thing()
    assert table.first(1, one) is one
    assert table.first(1, two) is one is table[1]()
    del one
    gc.collect()
    assert table.first(1, two) is two is table[1]()


def test_of_two_that_find_the_first_one_dead_the_earlier_stays():
    table = WeakTable()
    table.first(1, Thing())
    earlier, later = Thing(), Thing()

    class Overtaken(contextlib.AbstractContextManager):
        def __enter__(self):
            """Another thread had the lock before."""
            table._lock = contextlib.nullcontext()
            assert table.first(1, earlier) is earlier

        def __exit__(self, *_):
            pass

    table._lock = Overtaken()
    assert table.first(1, later) is earlier is table[1]()


def test_the_first_ones_are_swept_too():
    table = WeakTable()
    for number in range(5_000):
        table.first(number, Thing())
    assert len(table) < 2_500


def test_the_living_are_not_looked_through_at_every_entry():
    sweeps = []

    class Counted(WeakTable):
        def _sweep(self):
            sweeps.append(len(self))
            super()._sweep()

    table, things = Counted(), [Thing() for _ in range(5_000)]
    for number, thing in enumerate(things):
        table.put(number, thing)
    assert 0 < len(sweeps) < 5, sweeps
