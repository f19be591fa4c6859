"""The speed table without a GPU: its statistics, its turns, its data, and what it asks for."""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
from dataclasses import replace
from types import SimpleNamespace

import pytest

import bench
from bench import (
    BenchReport,
    after_block,
    growth,
    lateness,
    measurements,
    stream_rows,
    timing,
)
from bench.end_to_end import Whole
from bench.growth import Curve, Growth, Point
from bench.lateness import Wait
from bench.measurements import Count, Import
from bench.memory import Memory, peak
from bench.timing import Arms, Plan, Row
from streamkit import errors
from streamkit._cli import machine  # the command needs a device
from streamkit._cuda import driver, loader  # its calls are counted without a device

# -- the statistics ---------------------------------------------------------------------------


def test_the_ratio_is_the_median_of_the_repeats_ratios_with_their_extremes():
    # not the ratio of the medians, which is 30 / 100
    assert timing.ratios([10, 30, 90], [100, 50, 100]) == (0.6, 0.1, 0.9)


def test_both_sides_need_the_same_number_of_repeats():
    with pytest.raises(ValueError, match="shorter"):
        timing.ratios([1, 2], [1])


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


def test_what_has_to_be_called_takes_its_turn_too(clock):
    log = []

    def bare(items):
        log.append(("bare", items))
        clock.now += 2 * len(items)

    arms = replace(arms_of(clock, 5, 20, log), bare=bare)
    assert timing.take_turns(arms, 1, 3, lambda: None) == [[5], [20], [2]]
    assert log[:3] == [("ours", 3), ("theirs", 3), ("bare", [None] * 3)]


def test_items_that_are_costly_to_make_last_one_turn(clock):
    log = []
    arms = arms_of(clock, 5, 20, log, one_turn=300)
    assert timing.take_turns(arms, 1, 1000, lambda: None) == [[5], [20]]
    assert log == [("ours", 300), ("theirs", 300)] * 2


def test_the_time_of_an_item_is_that_of_the_calls_it_stands_for(clock):
    arms = arms_of(clock, 40, 80, [], each=8)
    assert timing.take_turns(arms, 1, 10, lambda: None) == [[5], [10]]


def test_an_empty_loop_costs_nothing(monkeypatch):
    clock = SimpleNamespace(now=0)

    def read():
        clock.now += 700  # every reading of the clock costs
        return clock.now

    monkeypatch.setattr(timing, "perf_counter_ns", read)
    arms = arms_of(clock, 5, 20, [])
    assert timing.take_turns(arms, 1, 100, lambda: None) == [[5], [20]]


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


def test_the_loops_call_with_each_item_without_it_and_hold_the_results():
    seen = []
    timing.calls(seen.append)(["a", "b"])
    timing.calls_without(lambda: seen.append("-"))(["a", "b"])
    assert seen == ["a", "b", "-", "-"]
    assert timing.held_calls(str.upper)(["a", "b"]) == ["A", "B"]
    items = ["a", "b"]
    timing.dropping_calls(seen.append)(items)
    timing.each_of([lambda: seen.append("1"), lambda: seen.append("2")])([None] * 2)
    assert (items, seen[4:]) == ([], ["b", "a", "1", "2", "1", "2"])
    assert timing.same("a")(3) == ["a"] * 3


# -- the data ---------------------------------------------------------------------------------


def test_the_rows_are_those_that_were_promised():
    bounds = {plan.name: (plan.at_most, plan.aim) for plan in bench.PLANS}
    assert bounds == {
        "with s:, three libraries, blocking stream": (0.30, 0.22),
        "with s:, three libraries, torch's pool stream": (0.32, 0.25),
        "with s:, nested in one of s": (0.10, 0.06),
        "with sk.use(s, ordered=True), three libraries": (0.6, 0.4),
        "with sk.use(q, libraries=('torch', 'cupy'))": (0.5, 0.35),
        "with sk.use(q, libraries=('torch', 'cupy')) from 8 threads": (1.0, 0.67),
        "with sk.follow('torch', libraries=['cupy']), on one queue already": (0.65, 0.5),
        "with s:, tvm-ffi beside the three": (0.40, 0.30),
        "wrap and first scope of a stream": (2.5, 1.5),
        "a Warp array made and dropped, non-blocking s": (3.0, 2.0),
        "b.wait(a)": (0.35, 0.26),
        "s.wait(native stream), wrapped by nobody": (0.7, 0.35),
        "sk.wrap(torch stream).wait(CuPy stream), nothing held": (0.8, 0.4),
        "sk.handoff(x, t, after=s)": (1.2, 0.8),
        "s.record(e), e reused": (0.60, 0.53),
        "s.keep(x), idle": (1.0, 0.5),
        "s.keep(x), busy": (1.0, 0.5),
        "s.then(fn), the call": (3.0, 1.5),
        "wrap(torch stream), never seen": (0.6, 0.45),
        "sk.wrap(torch.cuda.current_stream()), result dropped: the wrap alone": (0.25, 0.15),
        "wrap(fresh object of a known queue)": (1.8, 1.4),
        "wrap(the same object again)": (0.6, 0.4),
        "s.to(library), cached": (1.0, 0.7),
        "current_stream('torch')": (0.20, 0.12),
        "a launch inside audit()": (2.0, 1.6),
        "a launch inside audit(times=True)": (1.5, 1.2),
        "a launch inside races()": (2.0, 1.6),
        "any CUDA call of the process after audit() has ended": (1.05, 1.0),
        "any CUDA call of the process after races() has ended": (1.05, 1.0),
        "any CUDA call of the process after audit(times=True) has ended": (3.0, 1.0),
        "g.launch(s), a small pipeline": (0.20, 0.10),
        "g.launch(s)": (1.6, 1.2),
        "g.launch(s) with random numbers": (1.6, 1.2),
        "g.launch(s) without random numbers": (1.2, 1.1),
        "a training step by graphed": (1.05, 0.8),
    }


def test_the_waits_are_those_that_were_promised():
    bounds = [
        (wait.ours, wait.work_ms, wait.at_most, wait.aim, wait.within_us) for wait in lateness.WAITS
    ]
    assert bounds == [
        ("await s", (0.02, 0.2, 1, 5, 50), 1.0, 0.6, 0),
        ("s.sync()", (0.02, 0.2, 1), 1.0, None, 20),
        ("s.sync()", (5, 50), 1.0, 0.8, 0),
    ]


def test_the_rows_that_grow_are_those_that_were_promised():
    assert {one.over: (one.counts[0], one.counts[-1]) for one in growth.GROWTHS} == {
        "known streams": (10, 5000),
        "threads": (1, 8),
        "kept objects": (1, 100_000),
        "awaiting tasks": (1, 1000),
    }


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


def test_a_curve_has_a_point_for_each_number_of_as_many_calls_as_it_needs(clock):
    ended, log = [], []

    def arrange(libraries, count):
        yield arms_of(clock, count, 2 * count, log, one_turn=count)
        ended.append(count)

    one = Growth("x", "y", "things", (1, 500, 50_000), arrange)
    libraries = SimpleNamespace(
        torch=SimpleNamespace(cuda=SimpleNamespace(synchronize=lambda: None))
    )
    points = [Point(1, 1, 2), Point(500, 500, 1000), Point(50_000, 50_000, 100_000)]
    assert one.measure(libraries) == Curve("x", "y", "things", points)
    assert ended == [1, 500, 50_000]
    assert [log.count(("ours", count)) - 1 for count in ended] == [15, 4, 2]


# -- what a block leaves behind ---------------------------------------------------------------


def after_a_block(monkeypatch, child):
    """Measure in a child that runs this instead."""
    monkeypatch.setattr(after_block, "_CHILD", child)
    plan = after_block.AfterBlock("after", "before", 1.1, 1.0, block="races()")
    return plan.measure(SimpleNamespace(device=3), 2, 40)


def test_the_child_is_told_what_to_measure_and_its_last_line_is_the_times(monkeypatch):
    child = (
        "import sys; print('talks'); assert sys.argv[3] == 'races()'; "
        "print([[*map(int, sys.argv[4:])], [1.5]])"
    )
    assert after_a_block(monkeypatch, child) == [[3, 2, 40], [1.5]]


def test_each_row_of_what_a_block_leaves_behind_names_a_block_that_there_is():
    found = [plan for plan in stream_rows.PLANS if isinstance(plan, after_block.AfterBlock)]
    assert {plan.block for plan in found} == {*after_block.BLOCKS}
    assert all(plan.block in plan.name for plan in found)
    for block in after_block.BLOCKS.values():  # on the host
        with block():
            pass


def test_a_child_that_fails_says_why(monkeypatch):
    with pytest.raises(bench.CannotRunError, match=r"^ValueError: no CUPTI$"):
        after_a_block(monkeypatch, "raise ValueError('no CUPTI')")


# -- all of it --------------------------------------------------------------------------------


def test_of_an_operation_in_several_settings_the_worst_is_reported(monkeypatch):
    def lacks(*_):
        raise errors.BackendNotInstalledError("install cupti")

    asked = []

    def plan(name, ratio, note, *, is_last=False):
        def measure(_, repeats, iterations):
            asked.append((note, repeats, iterations))
            return [ratio * 100] * repeats, [100.0] * repeats

        row = Plan(name, "y", 0.5, 0.2, None, note).row
        return SimpleNamespace(name=name, measure=measure, row=row, is_last=is_last)

    plans = [plan("slow", 0.1, "slow", is_last=True), plan("b", 0.3, "bad"), plan("b", 0.2, "good")]
    plans.append(SimpleNamespace(name="c", measure=lacks, is_last=False))
    grown = SimpleNamespace(over="things", measure=lambda _: asked.append("grown") or "a curve")
    cuda = SimpleNamespace(
        Stream=lambda **_: None, synchronize=lambda: None, get_device_name=lambda _: "a GPU"
    )
    library = SimpleNamespace(cuda=cuda, __version__="1.0")
    libraries = timing.Libraries(library, library, library, 0)
    counts = [Count("wait", {}, {}), Count("scope", {}, {})]
    imported = Import("import", 1, 1, 1, 25)
    seen = []
    monkeypatch.setattr(bench, "PLANS", plans)
    monkeypatch.setattr(bench, "load", lambda: libraries)
    monkeypatch.setattr(bench.sk, "wrap", lambda _: None)
    monkeypatch.setattr(bench.sk, "new_stream", lambda: None)
    monkeypatch.setattr(bench, "count_calls", lambda *_: counts[0])
    monkeypatch.setattr(bench, "count_extra", lambda *_: counts[1])
    monkeypatch.setattr(bench, "time_import", lambda: imported)
    monkeypatch.setattr(bench, "GROWTHS", [grown])
    monkeypatch.setattr(bench.lateness, "measure", lambda _, times: [f"{times} waits"])
    monkeypatch.setattr(bench.memory, "measure", lambda _: ["a pool"])
    monkeypatch.setattr(bench.end_to_end, "measure", lambda _, repeats: [f"{repeats} times"])
    monkeypatch.setattr(
        loader, "cu", SimpleNamespace(cuDriverGetVersion=lambda: (0, 13020)), raising=True
    )
    report = bench.run(repeats=2, iterations=3, progress=lambda *step: seen.append(step))
    assert [(row.name, row.note) for row in report.rows] == [("slow", "slow"), ("b", "bad")]
    assert asked == [("bad", 1, 3), ("good", 1, 3)] * 2 + ["grown", ("slow", 2, 3)]
    assert (report.lateness, report.end_to_end) == (["4 waits"], ["2 times"])
    assert report.memory == ["a pool"]
    assert report.curves == ["a curve"]
    assert report.left_out == {"c": "install cupti"}
    assert (report.device, report.cuda, report.repeats, report.iterations) == (
        "a GPU",
        "13.2",
        2,
        3,
    )
    assert report.counts == counts
    assert [done for _, done, _ in seen] == list(range(15))
    assert {steps for _, _, steps in seen} == {14}
    asked.clear()
    bench.run(repeats=7, iterations=3)
    assert [one[1] for one in asked if one[0] == "bad"] == [3, 2, 2]
    monkeypatch.setattr(bench, "count_extra", lacks)
    report = bench.run(repeats=2, iterations=3)
    assert report.counts == counts[:1]
    assert report.left_out == {"c": "install cupti", measurements.SCOPE: "install cupti"}


def test_the_data_is_json_with_a_verdict_for_each_bound():
    rows = [
        Row("met", "y", 50.0, 100.0, 0.5, 0.4, 0.6, 0.5, 0.2),
        Row("missed", "y", 51.0, 100.0, 0.51, 0.4, 0.6, 0.5, 0.2, "z"),
    ]
    count = Count("wait", {"record": 1.0}, {"record": 1})
    imported = Import("import streamkit", 12.0, 11.0, 13.0, 25.0)
    wait = Wait("a", "b", (5,), 1.0, None, core_within=0.1)
    late = [lateness.summary(wait, 5, [((70.0, 0.2), (80.0, 0.1))])]
    curves = [Curve("a", "b", "things", [Point(1, 2.0, 3.0)])]
    whole = [Whole("one scope", 4.0, 3.0, 5.0)]
    report = BenchReport(
        "2026-11-21", "a GPU", None, "13.0", None, {"torch": "2"}, 3, 9, rows, late, curves, whole,
        [Memory("a", "b", 4, 6, 12, 0.5)], [count], imported,
    )  # fmt: skip
    data = json.loads(json.dumps(bench.as_data(report), allow_nan=False))
    assert set(data) == {
        "date", "device", "driver", "cuda", "cpu", "versions", "repeats", "iterations", "rows",
        "lateness", "curves", "end_to_end", "memory", "counts", "imported", "left_out",
    }  # fmt: skip
    assert data["rows"][1] == {
        "name": "missed", "against": "y", "ours_ns": 51.0, "theirs_ns": 100.0, "ratio": 0.51,
        "ratio_low": 0.4, "ratio_high": 0.6, "at_most": 0.5, "aim": 0.2, "note": "z",
        "bare_ns": None, "met": False,
    }  # fmt: skip
    assert data["rows"][0]["met"] is True
    assert data["counts"] == [
        {"name": "wait", "found": {"record": 1}, "expected": {"record": 1}, "met": True},
    ]
    assert data["imported"]["aim_ms"] == 25
    assert data["lateness"] == [
        {
            "name": "lateness of a after 5 ms of work", "against": "b", "work_ms": 5,
            "ours_us": 70, "theirs_us": 80, "ours_core": 0.2, "theirs_core": 0.1,
            "at_most_us": 80, "aim_us": None, "core_at_most": pytest.approx(0.44),
            "note": "", "met": True,
        }
    ]  # fmt: skip
    points = [{"count": 1, "ours_ns": 2, "theirs_ns": 3}]
    assert data["curves"] == [{"name": "a", "against": "b", "over": "things", "points": points}]
    assert data["memory"] == [
        {"name": "a", "against": "b", "each_bytes": 4, "ours_bytes": 6, "theirs_bytes": 12,
         "at_most": 0.5, "met": True}
    ]  # fmt: skip
    assert data["end_to_end"] == [{"name": "one scope", "ms": 4, "ms_low": 3, "ms_high": 5}]


# -- memory -----------------------------------------------------------------------------------


class Cache:
    """Memory that one library has taken, and keeps when nobody uses it."""

    def __init__(self):
        self.taken = self.used = 0

    def use(self):
        self.used += 10
        self.taken = max(self.taken, self.used)
        return Used(self)


class Used:
    """An array in it."""

    def __init__(self, cache):
        self.cache = cache

    def __del__(self):
        self.cache.used -= 10


def test_the_peak_is_that_of_one_array_at_a_time_and_of_what_the_caches_keep():
    one, others = Cache(), [Cache() for _ in range(3)]
    assert peak([one.use] * 6, lambda: 100 - one.taken) == 10
    assert (
        peak([cache.use for cache in others] * 2, lambda: 100 - sum(c.taken for c in others)) == 30
    )


def test_the_peak_is_the_most_and_not_the_last():
    left = iter([100, 70, 90])
    assert peak([list] * 2, lambda: next(left)) == 30


@pytest.mark.parametrize(("ours", "met"), [(5, True), (6, False)])
def test_one_pool_has_to_take_at_most_half(ours, met):
    assert Memory("a", "b", 4, ours, 10, 0.5).met is met


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


def test_the_driver_is_put_back_after_an_error(bindings, monkeypatch):
    b = Waiter("cuMissing")
    monkeypatch.setattr(measurements.sk, "from_handle", lambda _: b)
    with pytest.raises(AttributeError), measurements._counting(b):
        b.wait(Waiter())


def test_the_import_is_timed_in_fresh_processes():
    found = measurements.time_import(times=2)
    assert found.name == "import streamkit"
    assert 0 < found.ms_low <= found.ms <= found.ms_high


# -- what it asks for -------------------------------------------------------------------------


def cannot_run(monkeypatch, *, present=True):
    """Return the refusal of a machine with these libraries."""
    monkeypatch.setattr(driver, "is_present", lambda: present)
    with pytest.raises(bench.CannotRunError) as refused:
        bench.load()
    return str(refused.value)


def test_without_a_device_it_says_so(monkeypatch):
    assert cannot_run(monkeypatch, present=False) == (
        "The bench needs a CUDA GPU, on which it measures calls of torch, CuPy and Warp; none was "
        "found."
    )


def test_libraries_that_are_missing_broken_or_without_the_device_are_named(monkeypatch):
    def module(name):
        if name == "cupy":
            raise ModuleNotFoundError(name=name)
        if name == "warp":
            raise OSError("warp.so")
        return SimpleNamespace(cuda=SimpleNamespace(is_available=lambda: False), __version__="1")

    monkeypatch.setattr(importlib, "import_module", module)
    monkeypatch.setattr(machine, "install_line", "install {}".format)
    assert cannot_run(monkeypatch) == (
        "torch: torch 1 finds no GPU; CuPy: not installed; Warp: OSError: warp.so. The bench needs "
        "torch, CuPy and Warp. Install what is missing with: install torch; install cupy; install "
        "warp"
    )
