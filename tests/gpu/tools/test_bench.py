"""The speed table on real hardware: every row is there and a number. No latency is asserted."""

from __future__ import annotations

import json
import math

import pytest

from support.libraries import need

pytestmark = pytest.mark.alone  # as the memory in use is that of all processes


@pytest.fixture(scope="module")
def report(primary_context):
    need("torch", "cupy", "warp", "tvm_ffi")
    from support.gpu.raw import check, driver

    # set up before the context of each test is: the file before may have left another device
    check(driver.cuCtxSetCurrent(primary_context))
    import bench

    return bench.run(repeats=2, iterations=40)


def test_every_row_is_there_and_finite(report):
    from bench import PLANS

    assert [row.name for row in report.rows] == list(dict.fromkeys(plan.name for plan in PLANS))
    for row in report.rows:
        numbers = (row.ours_ns, row.theirs_ns, row.ratio, row.ratio_low, row.ratio_high)
        assert all(map(math.isfinite, numbers)), row
        assert row.ratio_low <= row.ratio <= row.ratio_high


def test_a_wait_is_one_record_and_one_wait_and_a_scope_nothing(report):
    wait, scope = report.counts
    assert wait.met, wait
    assert scope.met, scope


def test_control_an_ordered_scope_is_counted():
    need("torch", "cupy", "warp")
    import streamkit as sk
    from bench import measurements

    class Ordered:
        def __init__(self):
            self.stream, self.scopes = sk.new_stream(nonblocking=True), []

        def __enter__(self):
            self.scopes.append(sk.use(self.stream, ordered=True))
            self.scopes[-1].__enter__()

        def __exit__(self, *error):
            self.scopes.pop().__exit__(*error)

    count = measurements.count_extra(Ordered(), scopes=2)
    assert count.found["waits"] > 0
    assert not count.met


def test_every_wait_is_measured_for_work_of_each_length(report):
    from bench import lateness

    assert [late.work_ms for late in report.lateness] == [
        work_ms for wait in lateness.WAITS for work_ms in wait.work_ms
    ]
    for late in report.lateness:
        numbers = (late.ours_us, late.theirs_us, late.ours_core, late.theirs_core)
        assert all(map(math.isfinite, numbers)), late


def test_every_curve_is_there_and_finite(report):
    from bench import growth

    assert [curve.over for curve in report.curves] == [one.over for one in growth.GROWTHS]
    for curve, one in zip(report.curves, growth.GROWTHS, strict=True):
        assert [point.count for point in curve.points] == [*one.counts]
        for point in curve.points:
            assert math.isfinite(point.ours_ns), curve
            assert math.isfinite(point.theirs_ns), curve


def test_every_way_of_the_whole_program_does_the_same():
    torch = need("torch", "cupy", "warp")[0]
    import bench
    from bench import end_to_end

    x = torch.ones(8, 8, device="cuda:0")
    found = {}
    for name, run in end_to_end.ways(bench.load(), x).items():
        x.fill_(1)
        torch.cuda.synchronize()
        run()
        torch.cuda.synchronize()
        found[name] = x.tolist()
    assert len(found) == 6
    assert all(values == found["one scope"] for values in found.values()), found


def test_the_rest_is_there(report):
    import bench

    assert math.isfinite(report.imported.ms)
    assert report.device
    assert {"streamkit", "python", "torch", "cupy", "warp"} <= set(report.versions)
    json.dumps(bench.as_data(report), allow_nan=False)


def test_the_libraries_stand_afterwards_where_they_stood(monkeypatch):
    need("torch", "cupy", "warp")
    import bench
    import streamkit as sk
    from support.gpu.raw import current_context

    monkeypatch.setattr(bench, "GROWTHS", bench.GROWTHS[:1])  # the others take long
    before, context = sk.current_streams(), current_context()
    bench.run(repeats=1, iterations=4)
    assert (sk.current_streams(), current_context()) == (before, context)
