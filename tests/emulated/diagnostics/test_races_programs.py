"""``races`` on random programs of driver calls: no verdict is wrong, by a truth of brute force."""

from __future__ import annotations

import os
import random
from concurrent.futures import ThreadPoolExecutor

import pytest

import emulator
import streamkit as sk
from streamkit.diagnostics.recording import (  # CUPTI is played by code that is no user's
    places,
    recorder,
)
from support import cuda_truth
from support.cuda_truth import Program
from support.gpu.raw import check, driver, on_device
from support.played_driver import PlayedDriver

COUNT = int(os.environ.get("STREAMKIT_PROGRAMS", "100"))
HOST = "the host"
HEAD = "with sk.races() as report:\n"


@pytest.fixture
def run(monkeypatch):
    """Run a program in three threads; return its report."""
    d = PlayedDriver()
    monkeypatch.setattr(recorder, "_find", lambda: d)
    for module in ("support.cupti", "support.played_driver", __name__):
        monkeypatch.setitem(places._is_users, module, False)
    contexts = [check(driver.cuDevicePrimaryCtxRetain(device)) for device in (0, 1)]
    threads = [ThreadPoolExecutor(1) for _ in range(3)]
    monkeypatch.setitem(places._is_users, "concurrent.futures.thread", False)

    def call(context, code):
        check(driver.cuCtxSetCurrent(contexts[context]))
        code()

    def on(thread, context, code):
        threads[thread].submit(call, context, code).result()

    def run(text):
        s = []
        for number in range(6):
            with on_device(number % 2):
                s.append(int(check(driver.cuStreamCreate(int(number >= 3)))))
        m = [int(check(driver.cuMemAlloc(cuda_truth.SIZE))) for _ in range(2)]
        h = int(check(driver.cuMemHostAlloc(cuda_truth.SIZE, 0)))
        names = {"__name__": "program", "sk": sk, "on": on, "d": d, "s": s, "m": m, "h": h}
        exec(compile(HEAD + text, "program.py", "exec"), names)  # noqa: S102
        return names["report"]

    yield run
    emulator.end_captures()  # a program may leave one
    for thread in threads:
        thread.shutdown()


def found_by(report):
    """Whether each pair of lines that is told is told to be certain."""
    found = {}
    for race in report.races:
        if race.second.name == HOST:
            continue
        pair = race.first.line - 1, race.second.line - 1
        found[pair] = found.get(pair, False) or race.certain
    return found


def unread_by(report):
    """The lines of copies to the host that are told to be read too early."""
    return {race.first.line - 1 for race in report.races if race.second.name == HOST}


def test_the_programs_have_races_of_each_sort():
    programs = [Program(random.Random(seed)) for seed in range(50)]  # noqa: S311 - of programs
    found = [certain for program in programs for certain in program.races().values()]
    assert min(found.count(True), found.count(False)) > 20
    assert sum(len(program.unread()) for program in programs) > 20


@pytest.mark.parametrize("seed", range(COUNT))
def test_a_program_without_graphs_has_exactly_these_races(run, seed):
    program = Program(random.Random(seed), has_graphs=False, has_others=seed % 2 == 1)  # noqa: S311
    report = run(program.text)
    assert found_by(report) == program.races(), program.text
    assert unread_by(report) == program.unread(), program.text
    assert report.coverage.missed == ()


@pytest.mark.parametrize("seed", range(COUNT))
def test_with_graphs_none_is_missed_and_none_accused_wrongly(run, seed):
    program = Program(random.Random(seed))  # noqa: S311 - of programs
    report = run(program.text)
    truth, found = program.races(), found_by(report)
    assert unread_by(report) <= program.unread(), program.text
    missed = {pair for pair in truth if pair not in found}
    accused = {pair for pair in found if found[pair] and not truth.get(pair)}
    assert (missed, accused) == (set(), set()), program.text
