"""``races`` on CUDA streams: what the calls of the driver order, as callbacks note them."""

from __future__ import annotations

import gc
import struct
import weakref
from typing import get_args

import pytest

from streamkit._cuda.memory_pools import Allocation  # what the driver says of memory
from streamkit.diagnostics.races.cuda_races import _CudaReader  # each kind has a meaning
from streamkit.diagnostics.races.cuda_recorder import CudaRaceRecorder  # CUPTI calls it on a GPU
from streamkit.diagnostics.races.memory_use import LaunchReader, WorkReader  # of made-up calls
from streamkit.diagnostics.races.report import coverage_of  # a report counts what was found
from streamkit.diagnostics.recording import copies, steps  # what is made of facts
from streamkit.diagnostics.recording.calls import CALLS, CallKind  # its numbers are CUPTI's
from streamkit.diagnostics.recording.memory import Lives  # whose memory a call uses
from streamkit.diagnostics.recording.places import Place  # where a call is
from support.cuda_calls import Program, fact_of

ORDERED, RACE, POSSIBLE = [], [True], [False]
# graphs with an event that is one outside
RECORDED = "a records e outside captured; "
AWAITED = "a waits e outside captured; "


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
        # a wait may give the queue nothing to do, and a wait of the host never does
        ("a writes; legacy waits e; b reads", POSSIBLE),
        ("a writes; sync legacy; nonblocking reads", ORDERED),
        ("a writes by 1; sync legacy by 2; b reads by 1", POSSIBLE),
        ("mine writes; a reads", RACE),
        ("mine writes; legacy reads", ORDERED),
        ("mine writes by 1; mine reads by 2", RACE),
        ("mine writes by 1; mine reads by 1", ORDERED),
        # streams that end, and others that get their handles
        ("a writes; destroy a; a reads", RACE),
        ("a writes; destroy a captured; a reads", RACE),
        # captures, which run nothing
        ("a writes captured; b reads", ORDERED),
    ],
)  # fmt: skip
def test_the_order_is_what_the_calls_say(program, verdicts):
    assert Program().run(program).verdicts() == verdicts


@pytest.mark.parametrize("first", ["a", "legacy"])
def test_a_legacy_stream_is_ordered_with_the_streams_of_its_own_context_alone(first):
    program = Program().run(f"{first} writes")
    program.context += 1
    assert program.run("legacy reads").verdicts() == RACE


def test_a_wait_for_a_value_perhaps_orders_all_that_the_queue_does():
    program = Program().run("a writes")
    program.call("cuStreamWaitValue32", 32)
    found = program.run("b reads; c reads").found()
    queues = {race.second.queue.name: race.certain for race, _ in found.races}
    assert queues == {"b": False, "c": True}
    coverage = coverage_of(found.works)
    assert (coverage.understood, coverage.total, len(coverage.missed)) == (3, 4, 1)
    program = Program()
    program.call("cuStreamWaitValue32", 32)  # what comes later can write the value
    assert program.run("b writes; a reads").verdicts() == POSSIBLE


@pytest.mark.parametrize(
    ("program", "verdicts"),
    [
        # it can come after what was given before it, through the other process
        ("a writes; b waits f; b reads", POSSIBLE),
        # and orders nothing that is given later
        ("b waits f; a writes; b reads", RACE),
        ("b waits f; b writes; a reads", RACE),
        # once recorded here it is as any other, but the other process can record it again
        ("a writes; a records f; b waits f; b reads", ORDERED),
        ("a writes; c records f; b waits f; b reads", POSSIBLE),
        ("a writes; destroy f; b waits f; b reads", RACE),
    ],
)
@pytest.mark.parametrize("call", ["cuIpcOpenEventHandle", "cuIpcGetEventHandle"])
def test_an_event_that_another_process_records_orders_perhaps(call, program, verdicts):
    found = Program()
    if call == "cuIpcGetEventHandle":
        found.call(call, 600)
    else:
        found.call(call, 0, more=600, since=0)
    assert found.run(program).verdicts() == verdicts


@pytest.mark.parametrize(
    ("program", "verdicts"),
    [
        # the graph records the event
        (RECORDED + "a writes; a launches; b waits e; b reads", POSSIBLE),
        (RECORDED + "a writes; a launches; sync e; b reads", POSSIBLE),
        (RECORDED + "a writes; b waits e; b reads", RACE),
        # so that an earlier record of it is perhaps no longer the one that is awaited
        (RECORDED + "c writes; c records e; a launches; b waits e; b reads", POSSIBLE),
        (RECORDED + "a launches; c writes; c records e; b waits e; b reads", ORDERED),
        # the graph waits for the event
        (AWAITED + "b writes; b records e; a launches; a reads", POSSIBLE),
        (AWAITED + "b writes; a launches; a reads", RACE),
        # neither makes another stream a part of the capture
        (RECORDED + "b waits e; b writes; c reads", RACE),
        # a graph of before the block can have it, but for events that are younger
        ("a writes; a launches; b waits e; b reads", POSSIBLE),
        ("make e; a writes; a launches; b waits e; b reads", RACE),
        ("b writes; b records e; a launches; a reads", POSSIBLE),
        ("make e; b writes; b records e; a launches; a reads", RACE),
        ("b writes; b records e; a launches; c waits e; c reads", ORDERED),
    ],
)  # fmt: skip
def test_events_in_graphs_order_perhaps(program, verdicts):
    assert Program().run(program).verdicts() == verdicts


@pytest.mark.parametrize(
    "call",
    [call.name for call in CALLS.values() if call.kind == "event in a graph"],
)
def test_events_that_are_put_in_graphs_are_known_to_be_there(call):
    program = Program().run("make e; c writes; c records e")
    program.call(call, 500)
    assert program.run("a launches; b waits e; b reads").verdicts() == POSSIBLE


@pytest.mark.parametrize(
    ("sort", "verdicts"), [(6, POSSIBLE), (7, POSSIBLE), (0, RACE)]
)  # a node that waits for an event, one that records it, and a kernel
@pytest.mark.parametrize("number", [712, 713, 714, 723])  # cuGraphAddNode and those that change one
def test_a_node_of_any_sort_that_is_put_in_a_graph_is_known_if_it_has_an_event(
    number, sort, verdicts
):
    program = Program().run("make e")
    program.call("cuGraphAddNode", more=struct.pack("<i12xQ", sort, 500), number=number)
    assert program.run("a writes; a launches; b waits e; b reads").verdicts() == verdicts


# -- contexts -----------------------------------------------------------------------------------


@pytest.mark.parametrize("call", ["cuMemcpyPeer", "cuMemcpy3DPeer"])
def test_a_copy_between_contexts_is_in_order_with_all_that_they_do(call):
    program = Program().run("nonblocking writes")
    program.call(call)
    program.may_hold_host = True  # as every copy without a stream may
    assert program.run("a reads").verdicts() == POSSIBLE


@pytest.mark.parametrize(
    ("own", "verdicts"), [(77, RACE), (78, ORDERED), (None, POSSIBLE)]
)  # the context of a; the second one is current throughout
@pytest.mark.parametrize("program", ["a writes; legacy reads", "legacy writes; a reads",
                                     "a writes; sync device; nonblocking reads"])  # fmt: skip
def test_a_queue_belongs_to_its_own_context_whichever_is_current(program, own, verdicts):
    found = Program()
    found.context, found.contexts[16] = 78, own
    assert found.run(program).verdicts() == verdicts


def test_a_context_that_is_named_is_the_one_that_is_waited_for():
    program = Program().run("a writes")
    program.context = 78
    program.call("cuCtxSynchronize", 77, since=1, number=800)
    assert program.run("b reads").verdicts() == ORDERED


def test_a_wait_of_the_host_orders_what_was_there_when_it_began():
    program = Program().run("a writes by 1")
    program.run("a writes by 2")
    program.call("cuStreamSynchronize", 16, since=1)  # begun before thread 2 gave its work
    ((race, _),) = program.run("b reads").found().races
    assert (race.first.line, race.certain) == (2, True)


def test_a_wait_of_the_host_that_goes_on_orders_nothing_that_others_give_meanwhile():
    program = Program().run("a writes by 1; b reads by 1")
    program.call("cuStreamSynchronize", 0, thread=2, since=1)  # of the legacy stream
    assert program.verdicts() == RACE


def test_a_copy_to_the_host_is_over_when_it_returns():
    program = Program().run("a writes")
    begun = program.call("cuMemcpyDtoH", 0, 0, 4)
    program.call("cuMemcpyDtoH", 0, 0, 4, since=begun)
    program.uses(begun, "write")
    assert program.run("nonblocking reads").verdicts() == ORDERED
    program = Program().run("a writes")
    program.call("cuMemcpyHtoD", 0, 0, 4)  # it may have waited
    program.may_hold_host = True
    assert program.run("nonblocking reads").verdicts() == POSSIBLE
    program.may_hold_host = False
    assert program.verdicts() == RACE


def test_a_call_of_the_per_thread_variant_means_the_threads_own_stream():
    program = Program()
    program.call("cuEventRecord", 500, 0, thread=1, per_thread=True)
    program.run("mine writes by 1; legacy reads by 1")
    assert program.verdicts() == ORDERED
    program = Program().run("nonblocking writes; nonblocking records e")
    program.call("cuStreamWaitEvent", 0, 500, thread=3, per_thread=True)
    assert program.run("mine reads by 3").verdicts() == ORDERED


# -- memory that is freed, and used again -----------------------------------------------------


def memory(start, size=16, context=0):
    return Allocation(start, size, is_host=False, context=context)


def freed(allocates, size=16):
    """A kernel on a; its memory is freed there, and allocated by another queue."""
    program = Program()
    program.call("cuMemAllocAsync", 0, 16, 16, more=memory(1000), since=0)
    program.kernel("a", start=1000, stop=1016)
    program.call("cuMemFreeAsync", 1000, 16, more=memory(1000))
    more, since = memory(allocates, size), len(program.facts)
    program.call("cuMemAllocAsync", 0, size, 32, more=more, since=since)
    program.kernel("b", start=allocates, stop=allocates + size)
    return program


def test_memory_that_cuda_gives_again_is_other_memory():
    assert freed(1000).verdicts() == ORDERED
    assert freed(900, size=200).verdicts() == ORDERED


def test_memory_that_is_freed_inside_still_raced():
    program = Program()
    program.call("cuMemAllocAsync", 0, 16, 16, more=memory(1000), since=0)
    program.kernel("a", start=1000, stop=1016)
    program.kernel("b", start=1000, stop=1016)
    program.call("cuMemFreeAsync", 1000, 16, more=memory(1000))
    assert program.verdicts() == RACE


def test_an_order_that_only_new_memory_makes_is_perhaps_one():
    program = Program().run("a writes")
    program.call("cuMemFreeAsync", 1000, 16, more=memory(1000))
    program.call("cuMemAllocAsync", 0, 16, 32, more=memory(2000), since=2)
    assert program.run("b reads").verdicts() == POSSIBLE


def test_memory_that_a_pool_gives_again_does_not():
    program = Program().run("a writes")  # the pool of a library gives the same bytes to b
    assert program.run("b writes").verdicts() == RACE


@pytest.mark.parametrize(("context", "verdicts"), [(77, ORDERED), (0, ORDERED), (78, POSSIBLE)])
def test_the_end_of_memory_orders_all_of_its_device(context, verdicts):
    program = Program().run("nonblocking writes")
    program.call("cuMemFree", 1000, more=memory(1000, context=context), since=1)
    assert program.run("a writes").verdicts() == verdicts


@pytest.mark.parametrize("call", ["cuMemFreeHost", "cuMemHostUnregister", "cuMemUnmap"])
def test_the_end_of_other_memory_perhaps_orders_all(call):
    program = Program().run("nonblocking writes")
    program.call(call, 1000, more=memory(1000), since=1)
    assert program.run("a writes").verdicts() == POSSIBLE


# -- what the calls of one line use -----------------------------------------------------------


def launches(*calls):
    """What calls do that are given from one line, as in a loop."""
    line = Place("program.py", 5)
    program = steps.steps([fact_of(*call)._replace(place=line) for call in calls])
    reader = WorkReader(Lives(program, lambda start: memory(start) if start >= 1 << 20 else None))
    return [found for step in program if (found := reader.read(step)) is not None]


def test_a_line_that_fills_memory_again_fills_what_is_there_by_then():
    start = 1 << 17
    made, freed = memory(start), ("cuMemFreeAsync", (start, 16), memory(start))
    fill = "cuMemsetD8Async", (start, 16, 16)
    found = launches(fill, *[("cuMemAllocAsync", (0, 16, 16), made), fill, fill, freed, fill] * 2)
    numbers = [one.accesses[0].allocation for one in found if one.name == "fill"]
    before, first, again, gone, second, *_ = numbers
    assert (before, gone, again) == (None, None, first)
    assert len({first, second, None}) == 3


OF_TEXTURES = copies._ROWS.pack(*(0, 0, copies._ARRAY, 0, 0, 0) * 2, 16, 1)


@pytest.mark.parametrize(
    ("name", "fields", "more"),
    [
        ("cuMemcpy", (1 << 20, 1 << 21, 16), None),
        ("cuMemcpy2D", (), OF_TEXTURES),
        ("cuMemsetD2D8", (), None),
    ],
)
def test_work_of_a_call_without_a_stream_may_hold_the_host(name, fields, more):
    found = launches((name, fields, more), (f"{name}Async", fields, more))
    assert [one.may_hold_host for one in found] == [True, False]


@pytest.mark.parametrize("is_host", [True, False])
def test_a_kernel_with_memory_of_the_host_may_write_any_of_it_or_tell_the_host(is_host):
    reader = LaunchReader(memory_at=lambda start: memory(start)._replace(is_host=is_host))
    given = (1 << 20).to_bytes(8, "little")
    assert [reader.kernel("k", one).is_unclear for one in ([given], None)] == [is_host, True]


# -- what a race tells ------------------------------------------------------------------------


def test_a_race_tells_both_lines_and_its_fix():
    ((race, _),) = Program().run("a writes; legacy records e; nonblocking reads").found().races
    assert (race.first.line, race.second.line, race.count) == (1, 3, 1)
    assert (race.first.mode, race.second.mode) == ("write", "read")
    assert race.array.name == "x"
    assert race.fix == "to run launch of line 1 first, add nonblocking.wait(a) before line 3"


NO_ORDER = {
    "stream met",
    "begin of capture", "stream made", "stream destroyed", "memory made",
    "memory mapped", "memory unmapped", "free and wait", "code unloaded", "graph node",
    "not followed", "unknown", "event done", "stream done", "device done",
}  # fmt: skip
"""The kinds of steps that order nothing, or that are read as other steps."""


def test_each_kind_of_call_has_a_meaning_for_the_order_or_surely_none():
    kinds = {*get_args(CallKind), "point", "done"}
    names = {kind: f"_{kind.replace(' ', '_')}" for kind in kinds - steps.WORK}
    read = {kind for kind, name in names.items() if hasattr(_CudaReader, name)}
    assert steps.WORK | read == kinds - NO_ORDER
    assert {call.kind for call in CALLS.values()} == {*get_args(CallKind)} - {"unknown"}


def test_each_fill_has_the_elements_that_its_name_tells():
    fills = [call for call in CALLS.values() if call.kind in steps.ELEMENTS]
    assert len(fills) == 12
    for call in fills:
        assert call.name.removesuffix("Async") == f"cuMemsetD{8 * steps.ELEMENTS[call.kind]}"


def test_the_numbers_of_the_calls_are_told_apart():
    assert len(CALLS) == 203
    assert {(call.name, call.is_per_thread) for call in CALLS.values()} >= {
        ("cuLaunchKernel", False), ("cuLaunchKernel", True), ("cuCtxSynchronize", False),
    }  # fmt: skip
    assert (CALLS[307].fields.size, CALLS[307].stream) == (64, 40)


def test_a_notice_of_new_lines_keeps_no_variable_alive():
    """As of Warp's ``zeros``, whose array lived on after the program had dropped it."""

    def library():
        array = {1}
        CudaRaceRecorder({})._notice()
        return weakref.ref(array)

    gc.disable()
    try:
        assert library()() is None
    finally:
        gc.enable()
