"""What a recording of CUPTI on an H200 becomes: queues, libraries, waits, synchronisations."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from streamkit.diagnostics.audit.cupti import Activity, Recorded  # records are made up here
from streamkit.diagnostics.audit.cupti_recorder import Queues  # records are made up here
from streamkit.diagnostics.recording import kernel_names  # an audit without CUDA names no kernel
from streamkit.diagnostics.recording.operations import (  # records are made up here
    AuditedQueue,
    WaitTimes,
)
from support.recorded import DATA, LEGACY, TORCH, WARP, operations, readers, records, report


def names(operations):
    return [(one.library, one.queue) for one in operations]


def test_before_three_libraries_ran_on_three_queues():
    before = report("before")
    assert sorted(names(before.work), key=str) == sorted(
        [("torch", TORCH)] * 4 + [("cupy", LEGACY), ("warp", WARP)], key=str
    )
    assert before.queues == [TORCH, LEGACY, WARP]
    assert names(before.off_queue(TORCH)) == [("cupy", LEGACY), ("warp", WARP)]
    assert names(before.legacy_work) == [("cupy", LEGACY)]


def test_after_all_ran_on_one():
    after = report("after")
    assert names(after.work) == [("torch", TORCH)] * 4 + [("cupy", TORCH), ("warp", TORCH)]
    after.assert_one_queue(TORCH)
    assert after.legacy_work == []


def test_the_recorders_own_synchronisation_is_left_out_and_no_other():
    assert report("before").synchronisations == []
    seen = report("before", own=[], window=(0, 10**12)).synchronisations
    assert [one.name for one in seen] == ["cuCtxSynchronize"]


def test_what_was_asked_for_outside_the_window_is_left_out():
    everything = operations("before")
    first, *_ = sorted(everything, key=lambda one: one.start_ns)
    # the kernel itself ran after this time, and was launched before
    launched = next(
        record["start"]
        for record in DATA["parts"]["before"]["records"]
        if record["kind"] == DATA["kinds"]["RUNTIME"]
    )
    assert launched < launched + 1 < first.start_ns
    assert len(operations("before", window=(launched + 1, 10**12))) == len(everything) - 1
    assert len(operations("before", window=(0, launched))) == 1
    moved = operations("before", window=(launched, 10**12))
    assert min(one.start_ns for one in moved) == first.start_ns - launched


def test_what_had_not_ended_is_left_out():
    """A block that raises waits for nothing."""
    delivered = records("before")
    last = max((one for one in delivered if isinstance(one, Activity)), key=lambda one: one.start)
    delivered[delivered.index(last)] = last._replace(end=0)
    left = operations("before", delivered=delivered)
    assert len(left) == len(operations("before")) - 1
    assert all(one.start_ns <= one.end_ns for one in left)


def test_a_wait_names_the_queue_it_waited_for_and_when_that_got_there():
    waits = report("waits").waits
    kernel = next(one for one in report("waits").work if one.queue == TORCH)
    after = next(one for one in report("waits").work if one.queue.key == (2, 25))
    first = waits[0]
    assert (first.after, first.queue.key) == (TORCH, (2, 25))
    assert first.start_ns == kernel.end_ns  # the awaited event was recorded behind it
    assert first.end_ns == after.start_ns  # what it held back
    assert [wait.after.key for wait in waits] == [
        (2, 21), (2, 25), (2, 150), (2, 25), (2, 25), (2, 25),
    ]  # fmt: skip
    assert all(wait.start_ns <= wait.end_ns for wait in waits)


def test_a_wait_for_an_event_that_was_recorded_before_names_no_queue():
    first = next(one for one in records("waits") if isinstance(one, Recorded))
    delivered = [one for one in records("waits") if one != first]
    (before, *others), (wait, *more) = (
        report("waits").waits, report("waits", delivered=delivered).waits
    )  # fmt: skip
    assert (wait.after, wait.queue, wait.end_ns) == (None, before.queue, before.end_ns)
    assert more == others


def test_a_wait_called_for_in_another_context_is_on_its_own_queue():
    """CUPTI's ids of streams are the process's, but for those of the default streams."""
    there = AuditedQueue("cuda:1", "there", 5, key=(3, 318))
    legacy = [AuditedQueue(f"cuda:{n}", "legacy", n, key=(2 + n, 7)) for n in (0, 1)]
    queues = Queues({one.key: one for one in (there, *legacy)}, {2: 0, 3: 1, 4: 2})
    seen = queues[3, 319]  # by its work alone
    assert queues.called_for((2, 318)) is there
    assert queues.called_for((2, 319)) is seen
    assert queues.called_for((3, 7)) is legacy[1]
    assert queues.called_for((4, 7)).key == (4, 7), "of which of the two devices is not told"
    assert queues.called_for((2, 400)).key == (2, 400)


def synchronisations(report):
    return [one for one in report.synchronisations if not one.is_work]


def test_copies_of_pageable_memory_hold_the_host_and_have_a_remedy():
    copies = [one for one in report("others").synchronisations if one.is_work]
    assert copies
    assert {"host" in one.name for one in copies} == {True}
    assert {"pinned memory" in one.remedy for one in copies} == {True}


def test_questions_do_not_count_as_synchronisations():
    asked = [name for name in DATA["runtime"] if "Query" in name]
    assert asked
    names = {one.name for one in synchronisations(report("others"))}
    assert names == {"cudaStreamSynchronize", "cudaEventSynchronize", "cudaDeviceSynchronize"} | {
        "cuStreamSynchronize"
    }


def test_a_synchronisation_is_on_its_stream_and_one_of_the_device_on_none():
    found = {(one.name, one.queue and one.queue.key) for one in synchronisations(report("others"))}
    assert {one for one in found if one[0] != "cudaEventSynchronize"} == {
        ("cudaStreamSynchronize", (2, 25)),
        ("cudaStreamSynchronize", LEGACY.key),
        ("cuStreamSynchronize", (2, 151)),
        ("cuStreamSynchronize", (2, 25)),
        ("cudaDeviceSynchronize", None),
    }


def test_a_wait_of_the_host_for_an_event_is_on_the_events_queue():
    (found,) = [
        one for one in report("others").synchronisations if one.name == "cudaEventSynchronize"
    ]
    assert found.queue == TORCH
    assert found.blocks_host


def test_copies_and_fills_say_what_they_are():
    work = report("others").work
    assert {one.name for one in work if one.kind == "copy"} >= {
        "copy host to device, 4000 bytes",
        "copy device to host, 4 bytes",
        "copy device to device, 64 bytes",
    }
    assert {one.name for one in work if one.kind == "fill"} >= {"fill, 40 bytes"}


@pytest.mark.parametrize(
    ("flags", "memory", "blocks"), [(0, 2, True), (0, 1, True), (1, 2, False), (0, 3, False)]
)
def test_a_blocking_copy_of_host_memory_holds_the_host(flags, memory, blocks):
    copy = DATA["kinds"]["MEMCPY"]
    record = next(one for one in DATA["parts"]["others"]["records"] if one["kind"] == copy)
    changed = {**record, "flags_": flags, "src_kind": 3, "dst_kind": memory}
    assert readers()[copy](SimpleNamespace(**changed)).blocks_host is blocks


def test_a_graph_counts_where_it_was_launched_branches_included():
    other = (2, 25)
    work = report("graph").work
    assert {one.graph for one in work} == {2}
    assert [one.queue.key for one in work] == [TORCH.key] * 3 + [other] * 3
    assert any(
        record["stream_id"] == 154  # a branch ran on a stream of the graph's own
        for record in DATA["parts"]["graph"]["records"]
        if "stream_id" in record
    )


def test_a_library_is_told_by_its_own_names_only():
    libraries = {one.name: one.library for one in report("others").work if one.kind == "kernel"}
    assert libraries["mine"] is None
    assert libraries["cupy_fill"] == "cupy"
    unknown = [name for name, library in libraries.items() if library is None]
    assert all(
        name == "mine" or name.startswith(("sm80_xmma", "cutlass", "cub::", "generate_", "gen_"))
        or name == "memtile_value_kernel<int>"
        for name in unknown
    ), unknown  # fmt: skip


# what numba-cuda 0.30.4 calls outer.<locals>.add_one, compiled for two arrays
SYMBOL = (
    "_ZN8__main__5outer12_3clocals_3e7add_oneB2v1B72cw51cXTLSUwv1sDUaKthqaNgoKmjgOR3W3CwAkMXLaJtQYk"
    "OIgxJU0gCqOkELKEJAA_3d_3dE5ArrayIfLi1E1A7mutable7alignedE5ArrayIfLi1E1A7mutable7alignedE"
)
OPTIONS = "cw51cXTLSUwv1sDUaKthqaNgoKmjgOR3W3CwAkMXLaJtQYkOIgxJU0gCqOkELKEJAA_3d_3d"
NUMBA = f"__main__::outer::_3clocals_3e::add_one[abi:v1][abi:{OPTIONS}]"


@pytest.mark.parametrize(
    ("name", "library"),
    [
        ("at::native::vectorized_elementwise_kernel<4>", "torch"),
        ("(anonymous namespace)::elementwise_kernel_with_index<at::native::f>", "torch"),
        ("cupy_multiply__float32", "cupy"),
        ("add_one_b5b6dbb2_cuda_kernel_forward", "warp"),
        ("cudapy::__main__::f", "numba"),
        (NUMBA, "numba"),
        ("ncclDevKernel_AllReduce_Sum_f32_RING_LL", "nccl"),
        ("ncclKernel_AllReduce_RING_LL_Sum_float", "nccl"),
        ("ncclAllReduceRingLLKernel_sum_f32", "nccl"),
        ("my_ncclDevKernel_AllReduce", None),
        ("mine::f[abi:v160006]", None),
        ("mine::f[abi:v1][abi:cxx11]", None),
        ("that::native::kernel", None),
        ("my::at::kernel", None),
        ("my_cupy_kernel", None),
    ],
)
def test_which_library_a_name_tells(name, library):
    assert kernel_names.library_of_kernel(name) == library


@pytest.mark.parametrize(
    ("symbol", "name"),
    [
        ("cupy_fill", "cupy_fill"),
        ("_Z3fooi", "foo"),
        (SYMBOL, NUMBA),
        ("_ZN2at6native3barIfEEvi", "at::native::bar<float>"),
        ("_Znot a symbol", "_Znot a symbol"),
    ],
)
def test_symbols_are_read_without_types_of_result_and_parameters(symbol, name):
    if kernel_names._runtime() is None:
        pytest.skip("no C++ runtime here")
    assert kernel_names.readable(symbol) == name


def test_without_a_c_plus_plus_runtime_symbols_stay(monkeypatch):
    monkeypatch.setattr(kernel_names, "_runtime", lambda: None)
    assert kernel_names._demangled("_Z3fooi") == "_Z3fooi"


def test_when_a_queue_got_to_a_point_and_when_it_went_on():
    work = [(TORCH, 5, 30, 40), (TORCH, 1, 0, 50), (WARP, 3, 7, 9)]
    timeline = WaitTimes(work)
    assert timeline.got_to(TORCH, 6, 0) == 50  # the first ended last
    assert timeline.got_to(TORCH, 5, 0) == 50
    assert timeline.got_to(TORCH, 1, 12) == 12  # nothing before
    assert timeline.got_to(WARP, 9, 12) == 12  # it was idle when that was given
    assert timeline.went_on(TORCH, 1, 10) == 30
    assert timeline.went_on(TORCH, 1, 35) == 35
    assert timeline.went_on(TORCH, 5, 99) == 99
    assert timeline.went_on(LEGACY, 0, 3) == 3


@pytest.mark.parametrize(
    ("name", "operation"),
    [
        ("ncclDevKernel_AllReduce_Sum_f32_RING_LL", "allreduce"),
        ("ncclSymDevKernel_AllGather_LL", "allgather"),
        ("ncclDevKernel_SendRecv", "sendrecv"),
        ("ncclAllReduceRingLLKernel_sum_f32", "ncclAllReduceRingLLKernel_sum_f32"),
    ],
)
def test_what_a_kernel_of_nccl_does(name, operation):
    assert kernel_names.operation(name, "nccl") == operation
