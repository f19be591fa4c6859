"""The speed table without a GPU: its statistics, its turns, and what it counts."""

from __future__ import annotations

import contextlib
import gc
from dataclasses import replace
from types import SimpleNamespace

import pytest

from bench import (
    after_block,
    lateness,
    measurements,
    stream_rows,
    timing,
)
from bench.lateness import Wait
from bench.timing import Arms, Plan, Row
from streamkit._cuda import loader  # its calls are counted without a device

# -- the statistics ---------------------------------------------------------------------------


def test_the_ratio_is_the_median_of_the_repeats_ratios_with_their_extremes():
    # not the ratio of the medians, which is 30 / 100
    assert timing.ratios([10, 30, 90], [100, 50, 100]) == (0.6, 0.1, 0.9)


@pytest.fixture
def clock(monkeypatch):
    """Replace the clock by one that stands still unless it is advanced."""
    clock = SimpleNamespace(now=0)
    monkeypatch.setattr(timing, "perf_counter_ns", lambda: clock.now)
    return clock


def arms_of(clock, ours_ns, theirs_ns, log, **options):
    def loop(name, ns):
        def run(items):
            log.append((name, len(items)))
            clock.now += ns * len(items)

        return run

    def items(count):
        clock.now += 1_000_000  # what is made beforehand is not measured
        return [None] * count

    return Arms(loop("ours", ours_ns), loop("theirs", theirs_ns), items, items, **options)


def test_the_sides_take_turns_between_synchronisations_and_the_first_repeat_is_left_out(clock):
    log = []
    hooks = {name: lambda name=name: log.append(name) for name in ("before", "after", "clear")}
    arms = arms_of(clock, 5, 20, log, **hooks)
    times = timing.take_turns(arms, 2, 400, lambda: log.append("sync"))
    assert times == [[5, 5], [20, 20]]
    sides = [["sync", "before", (side, 200), "after"] for side in ("ours", "theirs")]
    assert log == [*sides[0], *sides[1], "sync", "clear"] * 2 * 3


@pytest.mark.parametrize("collecting", [True, False])
def test_the_garbage_collector_rests_meanwhile_and_is_then_as_before(collecting):
    seen = []
    loop = lambda items: seen.append(gc.isenabled())  # noqa: E731 - short
    arms = Arms(loop, loop, timing.same(1), timing.same(2))
    (gc.enable if collecting else gc.disable)()
    try:
        timing.take_turns(arms, 1, 1, lambda: None)
        assert gc.isenabled() is collecting
        with pytest.raises(TypeError):
            timing.take_turns(arms, 1, 1, None)
        assert gc.isenabled() is collecting
    finally:
        gc.enable()
    assert not any(seen)


def test_a_plan_gives_its_row(clock, monkeypatch):
    from contextlib import nullcontext

    plan = Plan("x", "y", 0.5, 0.2, lambda _: nullcontext(arms_of(clock, 5, 20, [])), "z")
    libraries = SimpleNamespace(
        torch=SimpleNamespace(cuda=SimpleNamespace(synchronize=lambda: None))
    )
    times = plan.measure(libraries, 3, 10)
    assert times == [[5] * 3, [20] * 3]
    row = plan.row(*times)
    assert row == Row("x", "y", 5, 20, 0.25, 0.25, 0.25, 0.5, 0.2, "z")
    assert plan.row(*times, [1, 4, 2]) == replace(row, bare_ns=2)


# -- the data ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ours", "theirs", "options", "met"),
    [
        ((100, 0.9), (100, 0.1), {}, True),
        ((101, 0.1), (100, 0.1), {}, False),
        ((15, 0.1), (-5, 1.0), {"within_us": 20}, True),
        ((16, 0.1), (-5, 1.0), {"within_us": 20}, False),
        # the look of 1.2 ms is 0.24 of work of 5 ms
        ((50, 0.38), (100, 0.1), {"core_within": 0.05}, True),
        ((50, 0.4), (100, 0.1), {"core_within": 0.05}, False),
    ],
)
def test_a_wait_has_to_be_early_and_may_have_to_leave_the_core(ours, theirs, options, met):
    late = lateness.summary(Wait("a", "b", (5,), 1.0, 0.6, **options), 5, [(ours, theirs)])
    assert (late.name, late.against) == ("lateness of a after 5 ms of work", "b")
    assert late.aim_us == 0.6 * theirs[0]
    assert late.met is met


def test_the_lateness_is_the_median_of_the_rounds():
    rounds = [((10 * n, n), (20 * n, 2 * n)) for n in (1, 2, 9)]
    late = lateness.summary(Wait("a", "b", (1,), 2.0, None), 1, rounds)
    found = late.ours_us, late.theirs_us, late.ours_core, late.theirs_core, late.at_most_us
    assert found == (20, 40, 2, 4, 80)
    assert late.aim_us is None


# -- what a block leaves behind ---------------------------------------------------------------


def test_each_row_of_what_a_block_leaves_behind_names_a_block_that_there_is():
    found = [plan for plan in stream_rows.PLANS if isinstance(plan, after_block.AfterBlock)]
    assert {plan.block for plan in found} == {*after_block.BLOCKS}
    assert all(plan.block in plan.name for plan in found)
    for block in after_block.BLOCKS.values():  # on the host
        with block():
            pass


# -- counting, and the import -----------------------------------------------------------------


class Waiter:
    """Makes the driver calls it is told to, and none where the other is its own queue."""

    handle = 7

    def __init__(self, *extra):
        self.extra = extra
        core = SimpleNamespace(record=lambda _: None, wait=lambda _: None)
        self._queue = SimpleNamespace(core=core)

    def wait(self, other):
        if other is not self:
            other._queue.core.record("event")
            self._queue.core.wait("event")
            for name in self.extra:
                getattr(loader.cu, name)()


@pytest.fixture
def bindings(monkeypatch):
    functions = {"cuCtxGetCurrent": lambda: (0, 1), "CUstream": int, "cuuint32_t": int}
    monkeypatch.setattr(loader, "cu", SimpleNamespace(**functions))
    yield
    assert vars(loader.cu) == functions


@pytest.mark.parametrize(
    ("extra", "other"),
    [
        ((), 0),
        (("cuCtxGetCurrent", "CUstream", "cuuint32_t"), 1),
        (("cuCtxGetCurrent", "cuCtxGetCurrent"), 2),
    ],
)
def test_every_driver_call_is_counted(bindings, monkeypatch, extra, other):
    a, b = Waiter(), Waiter(*extra)
    cores = a._queue.core, b._queue.core
    monkeypatch.setattr(measurements.sk, "from_handle", lambda _: b)
    count = measurements.count_calls(a, b, waits=4)
    assert (a._queue.core, b._queue.core) == cores
    assert count.found == {"record": 1, "wait": 1, "other": other, "same queue": 0}
    assert count.met is (other == 0)


@pytest.mark.parametrize(("strays", "met"), [(0, True), (1, False)])
def test_what_a_scope_does_beside_its_body_is_counted(monkeypatch, strays, met):
    entered = []

    @contextlib.contextmanager
    def audit():
        before = len(entered)
        report = SimpleNamespace(work=[], waits=[1] * strays, synchronisations=[])
        yield report
        entered.append(len(entered) - before)

    class Stream:
        def __enter__(self):
            entered.append(self)

        def __exit__(self, *_):
            pass

    monkeypatch.setattr(measurements.sk, "audit", audit)
    count = measurements.count_extra(Stream(), Stream(), scopes=3)
    assert entered.pop() == 2 * 3 * 2  # and each once before, to make its views
    assert count.found == {"GPU work": 0, "waits": strays, "host synchronisations": 0}
    assert count.met is met
