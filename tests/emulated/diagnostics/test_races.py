"""``races`` in a process that uses CUDA: CUPTI is played, for the emulated driver calls nobody."""

from __future__ import annotations

import ctypes
import functools
import json
import signal
import struct
import threading
from types import FunctionType, SimpleNamespace

import numpy as np
import pytest

import emulator
import streamkit as sk
from streamkit._cuda import driver as driver_module  # it remembers that there is a device
from streamkit._cuda import loader, memory_pools  # it may find no driver; what is said of memory
from streamkit._queues import registry  # no library may be there
from streamkit.diagnostics.races import cuda_recorder  # Python may show no lines
from streamkit.diagnostics.races.races import program_races  # the command's
from streamkit.diagnostics.recording import places, recorder  # CUPTI is played by no user's code
from streamkit.diagnostics.recording.calls import UNKNOWN  # CUPTI's numbers
from support.cupti import NUMBER, words
from support.gpu.raw import check, driver, on_device
from support.libraries import need
from support.odd_objects import Names, Query
from support.played_driver import PlayedDriver
from support.queues import within

pytestmark = pytest.mark.usefixtures("handles")  # as the audit's
EVENT = 500


@pytest.fixture
def array():
    return need("numba").device_array(100, np.float32)


class Calls(PlayedDriver):
    """Plays what a library asks of the driver, for arrays."""

    def fill(self, stream, array, count=100):
        super().fill(stream, address(array), 4 * count)

    def download(self, stream, target, array, size=64):
        super().download(stream, target, address(array), size)


@pytest.fixture
def cupti(monkeypatch):
    played = Calls()
    monkeypatch.setattr(recorder, "_find", lambda: played)
    for module in ("support.cupti", "support.played_driver"):
        monkeypatch.setitem(places._is_users, module, False)
    for name in (Calls.fill, Calls.download):
        assert name.__module__ == __name__  # their lines are those of a race
    return played


@pytest.fixture
def no_cupti(monkeypatch):
    def find():
        raise recorder.NoCallbacksError("there is no libcupti")

    monkeypatch.setattr(recorder, "_find", find)


def address(array):
    return array if isinstance(array, int) else array.device_ctypes_pointer.value


# -- around a program that has still to initialise CUDA --------------------------------------------


def test_a_program_is_looked_at_from_its_first_call_of_cuda_on(cupti, array, monkeypatch):
    """Nothing asks the driver before the program does, which may first choose its devices."""
    asked = []
    monkeypatch.setattr(loader, "is_loaded", lambda: False)
    monkeypatch.setattr(registry, "loaded", dict)
    monkeypatch.setattr(driver_module, "is_available", lambda: asked.append("races"))
    a, b = sk.new_stream("cuda"), sk.new_stream("cuda")
    reports = []
    for block in (sk.races, program_races):
        with block() as report:
            cupti.fill(a, array)
            cupti.fill(b, array)
        reports.append(report)
    usual, of_program = reports
    assert usual.coverage.total == 0
    assert of_program.coverage.total == 2
    assert len(of_program.certain) == 1
    assert asked == []


def test_without_a_driver_a_program_is_looked_at_on_the_host_alone(cupti, monkeypatch):
    monkeypatch.setattr(loader, "driver_version", lambda: 0)
    with program_races() as report:
        sk.new_stream("cpu").submit(np.copyto, np.zeros(3), 1)
    assert (report.coverage.total, cupti.callback) == (1, None)


# -- without callbacks --------------------------------------------------------------------------

UNSEEN = "all work on CUDA streams, which is not counted: there is no libcupti"


@pytest.mark.usefixtures("no_cupti")
def test_work_on_cuda_streams_is_told_to_be_missing():
    stream, array = sk.new_stream("cpu"), np.zeros(3)
    with sk.races() as report:
        stream.submit(np.copyto, array, 1)
        sk.new_stream("cuda").sync()
    assert report.coverage.missed[1:] == (UNSEEN,)  # after what no report looks at
    assert (report.coverage.understood, report.coverage.total) == (1, 1)
    assert str(report.coverage).endswith(f"; {UNSEEN}.")


@pytest.mark.usefixtures("no_cupti")
def test_waits_for_cuda_streams_order_no_host_stream():
    streams, array = [sk.new_stream("cpu"), sk.new_stream("cpu")], np.zeros(3)
    with sk.races() as report:
        streams[0].submit(np.copyto, array, 1)
        cuda = sk.new_stream("cuda")
        cuda.sync()
        cuda.record().sync()
        cuda.then(int).result()
        streams[1].submit(np.copyto, array, 2)
    assert [race.certain for race in report.races] == [True]


def test_a_driver_that_gives_an_error_is_told_and_stops_no_program():
    driver_module.is_present.cache_clear()  # so that it asks the driver again
    for call in ("cuDeviceGetCount", "cuDevicePrimaryCtxGetState"):  # as it begins, as it ends
        emulator.fail(call, driver.CUresult.CUDA_ERROR_UNKNOWN)
    with sk.races() as report:
        sk.new_stream("cpu").submit(np.copyto, np.zeros(3), 1)
    assert report.coverage.missed[1:] == ("all work on CUDA streams, which is not counted",)
    assert report.coverage.understood == 1


# -- with callbacks -----------------------------------------------------------------------------


def test_a_race_of_two_fills_is_certain_and_a_wait_fixes_it(cupti, array):
    first, second = sk.new_stream("cuda", name="first"), sk.new_stream("cuda", name="second")
    with sk.races() as report:
        cupti.fill(first, array)
        cupti.fill(second, array)
    (race,) = report.certain
    assert [one.queue.name for one in (race.first, race.second)] == ["first", "second"]
    assert (race.first.name, race.first.mode, race.count) == ("fill", "write", 1)
    assert race.first.file == __file__
    assert str(report.coverage) == "2 of 2 operations understood."
    with sk.races() as report:
        cupti.fill(first, array)
        cupti.record(first, EVENT)
        cupti.wait(second, EVENT)
        cupti.fill(second, array)
    assert report.races == ()


def run(code, **variables):
    """Run code in a module of its own, as a user has it."""
    exec(compile(code, "program.py", "exec"), {"__name__": "__main__", **variables})  # noqa: S102


def test_a_race_on_each_array_of_a_line_is_told(cupti, array):
    other, s, t = need("numba").device_array(100, np.float32), *map(sk.new_stream, ["cuda"] * 2)
    with sk.races() as report:
        cupti.copy(s, address(array), address(other), 400)
        cupti.copy(t, address(other), address(array), 400)
    assert sorted(race.array.name for race in report.certain) == ["array", "other"]


def test_names_are_those_of_the_line_and_fix_it(cupti, array, monkeypatch):
    monkeypatch.setitem(places._is_users, __name__, False)
    code = """
with sk.races() as report:
    cupti.fill(loader, batch)
    cupti.fill(work, batch)
reports.append(report)
"""
    reports, loader, owned = [], *map(sk.new_stream, ["cuda"] * 2)
    borrowed = driver.CUstream(owned.handle)
    work = sk.wrap(borrowed)
    run(code, sk=sk, cupti=cupti, reports=reports, loader=loader, work=work, batch=array)
    (race,) = reports[0].certain
    assert str(race.array) == "batch (float32, shape (100,), 400 bytes)"
    assert race.fix == "to run fill of line 3 first, add work.wait(loader) before line 4"
    assert (race.first.file, race.first.line, race.second.line) == ("program.py", 3, 4)
    assert [race.first.queue.name, race.second.queue.name] == ["loader", "work"]  # as the fix has
    with pytest.raises(sk.errors.RaceError, match="batch"):
        reports[0].assert_none()


def test_a_librarys_stream_is_wrapped_by_the_fix_of_a_race(cupti, array, monkeypatch):
    monkeypatch.setitem(places._is_users, __name__, False)
    code = """
with sk.races() as report:
    cupti.fill(sk.default_stream(), batch)
    cupti.fill(sk.from_handle(int(native)), batch)
reports.append(report)
"""
    reports = []
    owned = sk.new_stream("cuda", nonblocking=True)
    native = owned.to("cuda.bindings")
    run(code, sk=sk, cupti=cupti, reports=reports, native=native, batch=array)
    (race,) = reports[0].certain
    assert race.first.queue.name == "legacy default stream"
    assert "sk.wrap(native).wait(sk.default_stream()) before line 4" in race.fix


def test_memory_has_the_name_that_it_had_at_the_time(cupti, array, monkeypatch):
    monkeypatch.setitem(places._is_users, __name__, False)
    code = """
with sk.races() as report:
    cupti.fill(loader, batch)
    cupti.fill(work, batch)
    target = batch
    del batch
    cupti.fill(work, target)
reports.append(report)
"""
    reports = []
    loader, work = sk.new_stream("cuda"), sk.new_stream("cuda")
    run(code, sk=sk, cupti=cupti, reports=reports, loader=loader, work=work, batch=array)
    assert [race.array.name for race in reports[0].races] == ["batch", "batch"]


def test_copies_fills_and_rows_use_what_they_say(cupti, array):
    a, b = sk.new_stream("cuda"), sk.new_stream("cuda")
    start = address(array)

    def races_with(*call):
        with sk.races() as report:
            cupti.copy(a, start, start + 200, 100)  # reads 200 to 299, writes 0 to 99
            cupti.call(*call)
        return [race.certain for race in report.races]

    def fill(name, offset, count):
        return NUMBER[name], struct.pack("<Q8xQQ", start + offset, count, b.handle)

    assert races_with(*fill("cuMemsetD8Async", 100, 100)) == []
    assert races_with(*fill("cuMemsetD8Async", 99, 1)) == [True]
    assert races_with(*fill("cuMemsetD16Async", 100, 50)) == []
    assert races_with(*fill("cuMemsetD16Async", 100, 51)) == [True]
    assert races_with(*fill("cuMemsetD32Async", 100, 25)) == []
    assert races_with(*fill("cuMemsetD32Async", 100, 26)) == [True]

    def rows(offset, width):
        side = "QQI4xQQQQ"
        return struct.pack(
            f"<{side}{side}QQ",
            *(0, 0, 2, 0, start + 300, 0, 10),
            *(0, 1, 2, 0, start + offset, 0, 40),
            *(width, 2),
        )

    def copied(offset, width):
        kept = np.frombuffer(rows(offset, width), np.uint8).copy()
        fields = words(kept.ctypes.data, b.handle)
        return races_with(NUMBER["cuMemcpy2DAsync"], fields), kept

    assert copied(60, 10)[0] == []  # 100 to 109, and 140 to 149
    assert copied(59, 10)[0] == [True]
    assert copied(60, 60)[0] == []  # the second row to 199
    assert copied(60, 61)[0] == [True]


def test_memory_of_the_host_is_looked_at_if_it_is_pinned(cupti, array, pinned):
    a, b, usual = sk.new_stream("cuda"), sk.new_stream("cuda"), np.zeros(64, np.uint8)
    found = []
    for target in (pinned, usual.ctypes.data):
        with sk.races() as report:
            cupti.download(a, target, array)
            cupti.download(b, target, array)
            cupti.sync(a), cupti.sync(b)
        found.append([race.certain for race in report.races])
        assert report.coverage.understood == 2
    assert found == [[True], []]


@pytest.fixture
def pinned():
    found = int(check(driver.cuMemHostAlloc(100_000, 0)))
    ctypes.memset(found, 0, 100_000)
    yield found
    check(driver.cuMemFreeHost(found))


def verdicts(report):
    return [race.certain for race in report.races]


@pytest.mark.parametrize("in_order", [False, True])
def test_work_on_memory_that_is_freed_inside_races(cupti, in_order):
    a, b = sk.new_stream("cuda"), sk.new_stream("cuda")
    with sk.races() as report:
        memory = cupti.allocate(64, a if in_order else None)
        cupti.fill(a, memory, 16)
        cupti.fill(b, memory, 16)
        cupti.sync(a), cupti.sync(b)
        cupti.free(memory, a if in_order else None)
    assert verdicts(report) == [True]
    assert str(report.coverage) == "2 of 2 operations understood."
    with sk.races() as report:
        memory = cupti.allocate(64, a if in_order else None)
        cupti.fill(a, memory, 16)
        cupti.record(a, EVENT)
        cupti.wait(b, EVENT)
        cupti.fill(b, memory, 16)
        cupti.sync(a), cupti.sync(b)
        cupti.free(memory, a if in_order else None)
    assert verdicts(report) == []


def test_memory_of_before_that_is_freed_inside_is_known_too(cupti):
    a, b = sk.new_stream("cuda"), sk.new_stream("cuda")
    memory = int(check(driver.cuMemAlloc(64)))
    with sk.races() as report:
        cupti.fill(a, memory, 16)
        cupti.fill(b, memory, 16)
        cupti.free(memory)
    assert verdicts(report) == [True]


def test_memory_beside_freed_memory_races_all_the_same(cupti):
    a, b = sk.new_stream("cuda"), sk.new_stream("cuda")
    with sk.races() as report:
        first, second = cupti.allocate(64, a), cupti.allocate(64, a)
        cupti.free(first, a)
        cupti.fill(a, second, 16)
        cupti.fill(b, second, 16)
    assert verdicts(report) == [True]


def test_an_array_across_two_mappings_races_in_the_second(cupti, array, monkeypatch):
    real, start = memory_pools.allocation, address(array)

    def allocation(where):
        found = real(where)
        if found is None or found.start != start:
            return found
        half = found.size // 2
        begin = start + half * (where >= start + half)
        return found._replace(start=begin, size=half)

    monkeypatch.setattr(memory_pools, "allocation", allocation)
    a, b = sk.new_stream("cuda"), sk.new_stream("cuda")
    with sk.races() as report:
        cupti.fill(a, start, 100)
        cupti.fill(b, start + 300, 10)
    assert verdicts(report) == [True]


def test_work_on_memory_that_nobody_knows_is_not_understood(cupti):
    s = sk.new_stream("cuda")
    with sk.races() as report:
        cupti.fill(s, 1 << 20, 16)
        cupti.copy(s, 1 << 20, 1 << 21)
    assert str(report.coverage) == "0 of 2 operations understood. Not understood: fill, copy."


@pytest.mark.parametrize(
    "name", ["cuLaunchNewKernel", "cuCtxDestroy", "cuLaunchCooperativeKernelMultiDevice"]
)
def test_calls_after_which_not_all_is_known_are_named(cupti, array, name):
    s = sk.new_stream("cuda")
    with sk.races() as report:
        cupti.fill(s, array)
        cupti.call(NUMBER.get(name, UNKNOWN[0]), words(0), name=name.encode())
    assert report.coverage.missed == (name,)


@pytest.mark.parametrize("call", ["cuMemcpyDtoA", "cuMemcpyAtoH", "cuMemcpyHtoA", "cuMemcpyAtoD"])
def test_copies_of_textures_are_work_that_may_hold_the_host(cupti, array, call):
    s, t = (sk.new_stream("cuda", nonblocking=nonblocking) for nonblocking in (False, True))
    with sk.races() as report:
        cupti.fill(s, array)
        cupti.ask(call, 0)  # of the legacy stream, for which s is waited
        cupti.fill(t, array)
    assert report.coverage.missed == (call,)
    assert [race.certain for race in report.races] == [False]
    with sk.audit() as told:
        cupti.ask(call, 0)
    (copy,) = told.work
    assert (copy.kind, copy.blocks_host) == ("copy", "H" in call)


@pytest.mark.parametrize("waits", [False, True])
def test_a_queue_is_one_of_its_own_device_whichever_is_current(cupti, waits):
    """The legacy stream of the other device, and a wait for it, order the other's queues."""
    first, (blocking, free, other) = sk.new_stream("cuda:0"), (
        sk.new_stream("cuda:1", nonblocking=nonblocking) for nonblocking in (False, True, True)
    )  # fmt: skip
    with on_device(1):
        memory = int(check(driver.cuMemAlloc(64)))

    def races_of(*, legacy_waits):
        with sk.races() as report:
            if waits:
                cupti.record(first, EVENT)
                cupti.wait(blocking, EVENT)
                cupti.wait(free, EVENT)
            with on_device(1):
                if legacy_waits:
                    cupti.fill(blocking, memory, 16)
                    cupti.fill(1, memory, 16)
                else:
                    cupti.fill(free, memory, 16)
            with on_device(not legacy_waits):
                cupti.sync_context()
            with on_device(1):
                cupti.fill(other, memory, 16)
        return verdicts(report)

    assert races_of(legacy_waits=False) == []
    assert races_of(legacy_waits=True) == [True]  # the host waited for cuda:0 alone


# -- copies to the host -------------------------------------------------------------------------


def test_a_copy_that_the_host_has_not_waited_for_is_perhaps_read_too_early(
    cupti, array, pinned, monkeypatch, tmp_path
):
    monkeypatch.setitem(places._is_users, __name__, False)
    code = """
with sk.races() as report:
    for _ in range(3):
        cupti.download(work, target, batch)
reports.append(report)
"""
    reports, work = [], sk.new_stream("cuda", name="queue")
    run(code, sk=sk, cupti=cupti, reports=reports, work=work, target=pinned, batch=array)
    (race,) = reports[0].possible
    assert reports[0].certain == ()
    assert (race.first.line, race.first.mode, race.count) == (4, "write", 3)
    assert (race.second.name, race.second.mode, race.second.queue) == ("the host", "read", None)
    told = str(race)
    assert "copy writes it on queue (cuda:0), program.py:4" in told
    assert "the host may read it, because it has not waited for that" in told
    assert "before the host reads it: work.sync(), or wait for an event" in told
    reports[0].assert_none()
    with pytest.raises(sk.errors.RaceError, match="let the block end after that wait"):
        reports[0].assert_none(possible=True)
    text, _ = page_of(reports[0], tmp_path)
    assert "the host may read it" in text


WAITS = {
    "sync": lambda cupti, s: cupti.sync(s),
    "query": lambda cupti, s: cupti.ask("cuStreamQuery", s.handle),
    "event": lambda cupti, s: (cupti.record(s, EVENT), cupti.sync_event(EVENT)),
    "device": lambda cupti, _: cupti.sync_context(),
    "free": lambda cupti, _: cupti.free(cupti.allocate(64)),
    "another stream": lambda cupti, s: (
        cupti.record(s, EVENT), cupti.wait(1, EVENT), cupti.sync(1)
    ),
    "host function": lambda cupti, s: cupti.ask("cuLaunchHostFunc", s.handle),
    "blocking copy": lambda cupti, s: cupti.download(s, 4096, cupti.array),
}  # fmt: skip


@pytest.mark.parametrize("how", [*WAITS, "nothing"])
@pytest.mark.parametrize("copy", ["cuMemcpyDtoHAsync", "cuMemcpyHtoDAsync"])
def test_the_host_uses_memory_again_after_a_wait_for_its_copy(cupti, array, pinned, copy, how):
    cupti.array, s, t = array, sk.new_stream("cuda", name="s"), sk.new_stream("cuda")
    waits = WAITS | {"nothing": lambda cupti, s: cupti.record(s, EVENT)}
    is_upload = copy == "cuMemcpyHtoDAsync"

    def give(stream, start, size):
        ends = pinned + start, address(array) + start
        cupti.ask(copy, *(reversed(ends) if is_upload else ends), size, stream.handle)

    with sk.races() as report:
        give(s, 0, 32)
        waits[how](cupti, s)
        give(t if is_upload else s, 16, 16)  # the host has written it, or read it
        give(s, 32, 32)  # no byte of the others
        waits[how if how != "nothing" else "sync"](cupti, s)
    found = [race for race in report.races if race.second.name == "the host"]
    assert len(found) == (how == "nothing")
    does = "write" if is_upload else "read"
    for race in found:
        assert (race.array.nbytes, race.certain, race.second.mode) == (32, False, does)
        assert f"the host may {does} it, because it has not waited for that" in str(race)
        assert f"before the host {does}s it: " in race.fix


@pytest.mark.parametrize(
    ("certain", "calls"),
    [
        ([True], "write, sync"), ([True], "poll, write, sync"), ([True], "write, block"),
        ([True], "write, upload"), ([False], "graph, write, sync"),  # which may have written it
        *(([], f"{how}, write, sync") for how in WAITS), ([], "sync"),
        # what the device writes there, and the host only hands on
        ([], "download, write, sync"), ([], "sync, download, upload, write, sync"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("name", ["cuMemcpyHtoDAsync", "cuMemcpyAsync"])
@pytest.mark.parametrize("size", [61, 100_000])  # whose digest is of all bytes, or of some
def test_pinned_memory_stays_as_it_is_until_the_host_has_waited_for_its_upload(  # noqa: PLR0917
    cupti, pinned, certain, calls, name, size
):
    s = sk.new_stream("cuda")
    cupti.array = device = cupti.allocate(size)
    play = {
        "upload": lambda: cupti.ask(name, device, pinned, size, s.handle),
        "download": lambda: cupti.download(s, pinned, device, size),
        "write": lambda: ctypes.memset(pinned + size - 1, 7, 1),
        "graph": lambda: cupti.launch_graph(s),
        "poll": lambda: cupti.ask("cuStreamQuery", s.handle, code=600),
        "block": lambda: cupti.ask("cuMemcpyDtoH", 4096, device, 1),
    }
    with sk.races() as report:
        for call in f"upload, {calls}".split(", "):
            play[call]() if call in play else WAITS[call](cupti, s)
    assert verdicts(report) == certain


def test_a_copy_to_pageable_memory_or_to_the_device_is_no_finding(cupti, array, pinned):
    s = sk.new_stream("cuda")
    with sk.races() as report:
        cupti.download(s, np.zeros(64, np.uint8).ctypes.data, array)
        cupti.upload(s, address(array), pinned)
        cupti.ask("cuMemcpyAsync", address(array), pinned + 16, 48, s.handle)
    assert report.races == ()
    with sk.races() as report:  # a copy whose call does not say what it is
        cupti.ask("cuMemcpyAsync", pinned, address(array), 64, s.handle)
    assert verdicts(report) == [False]


def test_what_is_not_understood_is_named(cupti, array):
    s = sk.new_stream("cuda")
    with sk.races() as report:
        cupti.call(NUMBER["cuGraphLaunch"], words(9, s.handle))
        cupti.call(NUMBER["cuLaunchHostFunc"], words(s.handle))
        cupti.call(NUMBER["cuMemcpy3DAsync"], words(0, s.handle))
        cupti.call(NUMBER["cuStreamWaitValue32"], words(s.handle))
        cupti.fill(s, array)
    assert str(report.coverage) == (
        "1 of 5 operations understood. Not understood: a CUDA graph, a host function, "
        "cuMemcpy3DAsync, a wait for a value."
    )


def test_a_call_that_fails_orders_nothing_and_uses_nothing(cupti, array):
    a, b = sk.new_stream("cuda"), sk.new_stream("cuda")
    with sk.races() as report:
        cupti.fill(a, array)
        cupti.record(a, EVENT)
        cupti.ask("cuStreamWaitEvent", b.handle, EVENT, code=400)
        cupti.fill(b, array)
    assert [race.certain for race in report.races] == [True]
    with sk.races() as report:
        cupti.fill(a, array)
        cupti.ask("cuMemcpyDtoDAsync", address(array), 0, 4, b.handle, code=1)
        cupti.ask("cuMemcpyDtoH", 0, address(array), 4, code=1)
    assert (report.races, report.coverage.total) == ((), 1)


def test_a_free_beside_work_on_the_memory_is_a_race(cupti, array):
    a, b = sk.new_stream("cuda", name="a"), sk.new_stream("cuda", name="b")
    with sk.races() as report:
        cupti.fill(a, array)
        cupti.call(NUMBER["cuMemFreeAsync"], words(address(array), b.handle))
    (race,) = report.certain
    assert (race.second.name, race.second.queue.name) == ("free", "b")
    assert ": b frees it while a writes it\n" in str(race)
    assert "\n  it is freed on b (cuda:0), " in str(race)
    assert report.coverage.total == 1


def test_blocks_nest_and_leave_nothing(cupti, array):
    s = sk.new_stream("cuda")
    with sk.races() as outer:
        cupti.fill(s, array)
        with sk.races() as inner:
            cupti.fill(s, array)
    assert (inner.coverage.total, outer.coverage.total) == (1, 2)
    assert (cupti.enabled, cupti.callback) == (set(), None)


@pytest.mark.parametrize("tool", [sk.races, sk.audit])
def test_what_the_host_waits_for_is_known_in_a_block_inside_of_another(cupti, array, tool):
    a, b = sk.new_stream("cuda"), sk.new_stream("cuda")

    def work():
        cupti.fill(a, array)
        cupti.sync(a)
        cupti.fill(b, array)

    with sk.races() as outer:
        work()
        with tool() as inner:
            work()
        cupti.sync(b)
        work()
    found = [inner] if tool is sk.races else []
    assert [one.coverage.total for one in (outer, *found)] == [6, *[2] * len(found)]
    assert len(inner.races if found else inner.work) == (0 if found else 2)
    # the wait inside does not order the first part of b before the fill of a in the next
    assert [race.count for race in outer.certain] == [1]


def test_streams_that_ended_and_those_of_nobody_have_names(cupti, array):
    ours = sk.new_stream("cuda", name="ours")
    lives, ends = (SimpleNamespace(handle=int(check(driver.cuStreamCreate(1)))) for _ in range(2))

    def name_of_first(stream, *, is_destroyed):
        with sk.races() as report:
            cupti.fill(stream, array)
            if is_destroyed:
                cupti.call(NUMBER["cuStreamDestroy"], words(stream.handle))
            cupti.fill(ours, array)
        (race,) = report.races
        return race.first.queue.name

    other = sk.new_stream("cuda", name="other")
    assert name_of_first(other, is_destroyed=True) == "other"
    assert name_of_first(lives, is_destroyed=False).startswith("stream id=")
    number = int(check(driver.cuStreamGetId(ends.handle)))
    assert name_of_first(ends, is_destroyed=True) == f"stream id={number}, which has ended"
    check(driver.cuStreamDestroy(ends.handle))
    check(driver.cuStreamDestroy(lives.handle))


@pytest.mark.parametrize("is_joined", [True, False])
def test_of_a_capture_from_before_the_block_only_later_work_counts(cupti, array, is_joined):
    """A fork that is not joined lets the end fail."""
    s, before, inside = (sk.new_stream("cuda", nonblocking=True) for _ in range(3))
    code, event = driver.CUresult.CUDA_ERROR_STREAM_CAPTURE_UNJOINED, sk.new_event()
    cupti.begin(s)
    cupti.really("cuEventRecord", event, s)
    cupti.really("cuStreamWaitEvent", before, event, 0)
    with sk.races() as report:
        cupti.really("cuStreamWaitEvent", inside, event, 0)
        for fork in (before, inside):
            check(driver.cuMemsetD8Async(address(array), 0, 1, fork.handle))
            cupti.fill(fork, array)
            if is_joined:
                cupti.really("cuEventRecord", event, fork)
                cupti.really("cuStreamWaitEvent", s, event, 0)
        cupti.end(s, 0 if is_joined else code)
        cupti.fill(before, array)
        cupti.fill(inside, array)
    assert (report.coverage.total, verdicts(report)) == (2, [True])


def test_threads_are_told_apart(cupti, array):
    s, t = sk.new_stream("cuda"), sk.new_stream("cuda")
    with sk.races() as report:
        within(lambda: (cupti.fill(s, array), cupti.sync(s)))
        cupti.fill(t, array)
    assert [race.certain for race in report.races] == [False]


def test_threads_that_follow_one_another_have_each_a_stream_of_its_own(cupti, array):
    """Though Python, and the system below it, give the new one the ident of the old one."""
    idents = []

    def work():
        idents.append(threading.get_ident())
        check(driver.cuCtxSetCurrent(check(driver.cuDevicePrimaryCtxRetain(0))))
        cupti.fill(2, array)

    with sk.races() as report:
        while len(set(idents)) == len(idents) < 20:
            within(work)
    assert len(set(idents)) < len(idents)
    assert verdicts(report) == [True]
    (race,) = report.races
    assert race.count == len(idents) * (len(idents) - 1) / 2


@pytest.mark.parametrize(
    ("names", "unread"), [(SimpleNamespace, ()), (Names, ("the variables at <string>:1",))]
)
def test_variables_that_cannot_be_read_change_nothing_and_are_named(cupti, array, names, unread):
    odd = type("Odd", (), {"__slots__": (), "__dict__": print})()
    given = {"fill": super(Calls, cupti).fill, "s": sk.new_stream("cuda"), "x": address(array)}
    given = names(**given, self=odd, one=Query("One", (), {})())
    with sk.races() as report:
        exec("fill(s, x)\n[0 for _ in 'ab']", {}, given if unread else vars(given))  # noqa: S102 - it takes any mapping
    assert (report.coverage.understood, report.coverage.missed) == (1, unread)


HANDLERS = {
    "function": lambda late: late,
    "partial": functools.partial,
    "object": lambda late: type("", (), {"__call__": late})(),
    "library": lambda late: FunctionType(late.__code__, {"__name__": "torch.utils.data"}),
}


@pytest.mark.parametrize("handler", HANDLERS)
@pytest.mark.parametrize("at_end", [False, True])
def test_what_a_signals_handler_raises_while_names_are_read_passes_and_leaves_nothing(
    cupti, array, monkeypatch, at_end, handler
):
    def late(*_):
        raise InterruptedError

    def read(*_):
        signals.pop() and signal.raise_signal(signal.SIGALRM)

    s, signals = sk.new_stream("cuda"), [False, True]
    before = signal.signal(signal.SIGALRM, HANDLERS[handler](late))
    with pytest.raises(InterruptedError), sk.races() as report:  # noqa: PT012 - both are tested
        if not at_end:
            monkeypatch.setattr(cuda_recorder, "named_memory", read)
        cupti.fill(s, array)
        monkeypatch.setattr(cuda_recorder, "named_memory", read)
    signal.signal(signal.SIGALRM, before)
    assert (signals, report.coverage.total) == ([False] * at_end, 1)
    assert (cupti.enabled, cupti.callback, recorder.subscription.count) == (set(), None, 0)


def test_what_python_does_not_show_and_calls_that_cannot_be_read_are_told(
    cupti, array, monkeypatch
):
    monkeypatch.setattr(cuda_recorder, "has_lines", bool)
    s = sk.new_stream("cuda")
    with sk.races() as report:
        ctypes.c_uint64.in_dll(recorder.load(), "recorder_lost").value = 1
        cupti.fill(s, array)
    assert report.coverage.missed == (
        "the lines of calls, which this Python does not show",
        "calls of the driver that could not be read",
    )


# -- the page -----------------------------------------------------------------------------------


def page_of(report, tmp_path):
    """Return the page, and what its script draws."""
    text = report.to_html(tmp_path / "races.html").read_text(encoding="utf-8")
    return text, json.loads(text.partition("const DATA = ")[2].partition(";</script>")[0])


def test_the_page_tells_a_race_and_draws_the_order_that_is_missing(
    cupti, array, monkeypatch, tmp_path
):
    monkeypatch.setitem(places._is_users, __name__, False)
    code = """
with sk.races(arrays={"<b>batch": batch}) as report:
    host.submit(np.copyto, x, 1)
    cupti.fill(side, other)
    cupti.fill(load, batch)
    cupti.record(load, 500)
    cupti.wait(side, 500)
    cupti.fill(train, batch)
reports.append(report)
"""
    names = ("load", "side", "train</script>")
    load, side, train = (sk.new_stream("cuda", name=name) for name in names)
    host, reports, other = sk.new_stream("cpu", name="host"), [], need("numba").device_array(9)
    variables = {"load": load, "side": side, "train": train, "batch": array, "other": other}
    run(code, sk=sk, np=np, x=np.zeros(3), cupti=cupti, reports=reports, host=host, **variables)
    text, data = page_of(reports[0], tmp_path)
    for told in (
        "race on &lt;b&gt;batch (float32, shape (100,), 400 bytes): load and train&lt;/script&gt;",
        "fill writes it on load (cuda:0), program.py:5",
        "fill writes it on train&lt;/script&gt; (cuda:0), program.py:8",
        "to run fill of line 5 first, add train.wait(load) before line 8",
    ):
        assert told in text
    assert "<b>batch" not in text.partition("<script>")[0].replace("<b>race", "")
    assert text.count("</script>") == 2
    assert data["rows"] == [
        "host (cpu)", "side (cuda:0)", "load (cuda:0)", "train</script> (cuda:0)"
    ]  # fmt: skip
    assert [(one[0], one[4]) for one in data["work"]] == [(n, n) for n in range(4)]
    assert data["waits"] == [[2, 3, 1, 3]]
    assert data["missing"] == [[2, 3, 3, 3]]


def test_the_page_has_frees_and_what_host_streams_were_given_in_one_order(cupti, array, tmp_path):
    a, b = (sk.new_stream("cuda", name="same") for _ in "ab")
    c, d = (sk.new_stream("cpu", name="same") for _ in "cd")
    x = np.zeros(3)
    with sk.races() as report:
        c.submit(np.copyto, x, 1)
        cupti.fill(a, array)
        d.submit(np.copyto, x, 2)
        a.sync()
        cupti.call(NUMBER["cuMemFreeAsync"], words(address(array), b.handle))
    text, data = page_of(report, tmp_path)
    names = [f"same id={one.id} ({where})" for where, one in
             (("cpu", c), ("cuda:0", a), ("cpu", d), ("cuda:0", b))]  # fmt: skip
    assert data["rows"] == names
    assert data["missing"] == [[0, 1, 2, 2], [1, 2, 3, 3]]
    assert [data["names"][one[2]] for one in data["work"]] == ["copyto", "fill, 400 bytes",
                                                               "copyto", "free"]  # fmt: skip
    assert text.count("<li>") == len(report.races) == 2
    assert all(f" on {name}" in text for name in names)


def test_the_page_draws_the_waits_of_host_streams_among_the_calls_of_the_driver(
    cupti, array, tmp_path
):
    s, (a, b) = sk.new_stream("cuda"), (sk.new_stream("cpu") for _ in "ab")
    with sk.races() as report:
        a.submit(np.copyto, np.zeros(3), 1)
        event = a.record()
        cupti.fill(s, array)
        b.wait(event)
        b.submit(np.copyto, np.zeros(3), 2)
    _, data = page_of(report, tmp_path)
    assert data["waits"] == [[0, 1, 2, 2]]
