"""``races`` on CUDA streams: what the calls of the driver order, as callbacks note them."""

from __future__ import annotations

import pytest

from streamkit._races.report import coverage_of  # a report counts what was found
from streamkit._recording.calls import CALLS  # its numbers are CUPTI's
from support.cuda_calls import Program

ORDERED, RACE, POSSIBLE = [], [True], [False]


@pytest.mark.parametrize(
    ("program", "verdicts"),
    [
        ("a writes; b reads", RACE),
        ("a reads; b writes", RACE),
        ("a writes; b writes", RACE),
        ("a reads; b reads", ORDERED),
        ("a uses; b reads", POSSIBLE),
        ("a uses; b writes", RACE),
        ("a writes; a reads", ORDERED),
        # two lines that race with a third are two races
        ("a reads; b reads; c writes", RACE * 2),
        ("a writes; b reads; c reads", RACE * 2),
        # events: the point at which they were recorded
        ("a writes; a records e; b waits e; b reads", ORDERED),
        ("a records e; a writes; b waits e; b reads", RACE),
        ("a writes; b waits e; a records e; b reads", RACE),
        ("a writes; a records e; b waits e; b records f; c waits f; c reads", ORDERED),
        ("a writes; a records e; destroy e; b waits e; b reads", RACE),
        ("a writes; a records e; b records e; c waits e; c reads", RACE),
        # the host
        ("a writes; sync a; b reads", ORDERED),
        ("sync a; a writes; b reads", RACE),
        ("a writes; sync b; b reads", RACE),
        ("a writes; a records e; sync e; b reads", ORDERED),
        ("a records e; a writes; sync e; b reads", RACE),
        ("a writes; sync device; b reads", ORDERED),
        ("a writes; sync a by 2; b reads by 2", ORDERED),
        ("a writes; sync a by 2; b reads by 1", POSSIBLE),
        ("a writes by 1; b reads by 2", RACE),
        # default streams
        ("a writes; legacy reads", ORDERED),
        ("legacy writes; a reads", ORDERED),
        ("a writes; legacy records e; b reads", ORDERED),
        ("a writes; nonblocking reads; legacy records e", RACE),
        ("nonblocking writes; legacy reads", RACE),
        ("legacy writes; nonblocking reads", RACE),
        ("unknown writes; legacy reads", POSSIBLE),
        ("mine writes; a reads", RACE),
        ("mine writes; legacy reads", ORDERED),
        ("mine writes by 1; mine reads by 2", RACE),
        ("mine writes by 1; mine reads by 1", ORDERED),
        # streams that end, and others that get their handles
        ("a writes; destroy a; a reads", RACE),
        # captures, which run nothing
        ("a begins; a writes; a ends; b reads", ORDERED),
        ("a begins; a records e; b waits e; b writes; a ends; c reads", ORDERED),
        ("a begins; a writes; a ends; a writes; b reads", RACE),
        ("a begins; a records e; a ends; b waits e; b writes; c reads", RACE),
    ],
)  # fmt: skip
def test_the_order_is_what_the_calls_say(program, verdicts):
    assert Program().run(program).verdicts() == verdicts


@pytest.mark.parametrize("first", ["a", "legacy"])
def test_a_legacy_stream_is_ordered_with_the_streams_of_its_own_context_alone(first):
    program = Program().run(f"{first} writes")
    program.context += 1
    assert program.run("legacy reads").verdicts() == RACE


def test_what_captured_at_the_beginning_runs_nothing():
    assert Program(capturing=["a"]).run("a writes; b reads").verdicts() == ORDERED
    assert Program(capturing=["a"]).run("a ends; a writes; b reads").verdicts() == RACE


def test_a_wait_for_a_value_or_another_process_orders_all_that_follows():
    program = Program().run("a writes")
    program.call("cuStreamWaitValue32", 32)
    found = program.run("b reads; c reads").found()
    assert [race.second.queue.name for race, _ in found.races] == ["c"]
    coverage = coverage_of(found.works)
    assert (coverage.understood, coverage.total, len(coverage.missed)) == (3, 4, 1)
    program = Program().run("a writes")
    program.call("cuIpcOpenEventHandle", 0, more=600, since=1)
    assert program.run("b waits f; b reads").verdicts() == ORDERED


def test_a_wait_of_the_host_orders_what_was_there_when_it_began():
    program = Program().run("a writes by 1")
    program.run("a writes by 2")
    program.call("cuStreamSynchronize", 16, since=1)  # begun before thread 2 gave its work
    ((race, _),) = program.run("b reads").found().races
    assert (race.first.line, race.certain) == (2, True)


def test_a_copy_to_the_host_is_over_when_it_returns():
    program = Program().run("a writes")
    begun = program.call("cuMemcpyDtoH", 0, 0, 4)
    program.call("cuMemcpyDtoH", 0, 0, 4, since=begun)
    assert program.run("nonblocking reads").verdicts() == ORDERED
    program = Program().run("a writes")
    program.call("cuMemcpyHtoD", 0, 0, 4)  # it may have waited
    assert program.run("nonblocking reads").verdicts() == POSSIBLE


def test_a_call_of_the_per_thread_variant_means_the_threads_own_stream():
    program = Program()
    program.call("cuEventRecord", 500, 0, thread=1, per_thread=True)
    program.run("mine writes by 1; legacy reads by 1")
    assert program.verdicts() == ORDERED
    program = Program().run("nonblocking writes; nonblocking records e")
    program.call("cuStreamWaitEvent", 0, 500, thread=3, per_thread=True)
    assert program.run("mine reads by 3").verdicts() == ORDERED


# -- memory that is freed, and used again -----------------------------------------------------


def freed(allocates, *between, size=16):
    """A kernel on a; its memory is freed there, and allocated by another queue."""
    program = Program()
    program.call("cuMemAllocAsync", 0, 16, 16, more=1000, since=0)
    program.kernel("a", start=1000, stop=1016)
    for line in between:
        program.run(line)
    program.call("cuMemFreeAsync", 1000, 16)
    program.call("cuMemAllocAsync", 0, size, 32, more=allocates, since=len(program.facts))
    program.kernel("b", start=allocates, stop=allocates + size)
    return program


def test_memory_that_cuda_gives_again_comes_after_its_end():
    assert freed(1000).verdicts() == ORDERED
    assert freed(900, size=200).verdicts() == ORDERED


def test_memory_that_a_pool_gives_again_does_not():
    program = Program().run("a writes")  # the pool of a library gives the same bytes to b
    assert program.run("b writes").verdicts() == RACE


def test_the_end_of_memory_on_the_whole_device_orders_all():
    program = Program().run("nonblocking writes")
    program.call("cuMemFree", 5, since=1)
    assert program.run("a writes").verdicts() == ORDERED


# -- what a race tells ------------------------------------------------------------------------


def test_a_race_tells_both_lines_and_its_fix():
    ((race, _),) = Program().run("a writes; legacy records e; nonblocking reads").found().races
    assert (race.first.line, race.second.line, race.count) == (1, 3, 1)
    assert (race.first.mode, race.second.mode) == ("write", "read")
    assert race.array.name == "x"
    assert race.fix == "to run launch of line 1 first, add nonblocking.wait(a) before line 3"


def test_the_numbers_of_the_calls_are_told_apart():
    assert len(CALLS) == 132
    assert {(call.name, call.is_per_thread) for call in CALLS.values()} >= {
        ("cuLaunchKernel", False), ("cuLaunchKernel", True), ("cuCtxSynchronize", False),
    }  # fmt: skip
    assert CALLS[307].fields.size == 64
    assert CALLS[307].stream_of((1, 0, 2, 3)) == 1
    assert CALLS[442].stream_of((1, 0, 2, 3)) == 2
    assert CALLS[442].stream_of((1, 99, 2, 3)) == 99
