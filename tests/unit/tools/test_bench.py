"""The speed table without a GPU: its statistics, its turns, and what a wait has to meet."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from bench import lateness, timing
from bench.lateness import Wait
from bench.timing import Arms

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
