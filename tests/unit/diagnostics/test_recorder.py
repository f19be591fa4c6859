"""What the recorder in C notes: each call as it is given, and what the driver says meanwhile."""

from __future__ import annotations

import ctypes
import mmap
import struct
import threading
from types import SimpleNamespace

import pytest

from streamkit._cuda import loader  # how old the driver is
from streamkit._queues import identity  # who is told of queues
from streamkit.diagnostics.doctor import toolkit  # it is not to find CUPTI
from streamkit.diagnostics.recording import recorder  # what is tested
from streamkit.diagnostics.recording.calls import CALLS, FAILED, UNKNOWN, Kernel  # as CUPTI's
from streamkit.diagnostics.recording.driver_recorder import DriverRecording  # it needs a driver
from streamkit.diagnostics.recording.recorder import NoCallbacksError, Subscription  # the same
from support.cupti import NUMBER, PER_THREAD
from support.driver_calls import Noted
from support.queues import within

CONTEXT, AT = 77, 4096
MEMORY = (AT, 64, False, CONTEXT)  # as the driver says


# -- who listens --------------------------------------------------------------------------------


def test_each_listener_has_its_part_and_nothing_is_left_after_the_last(calls, monkeypatch):
    read, records = [], recorder._records
    spied = lambda *of: (read.append(one) or one for one in records(*of))  # noqa: E731 - short
    monkeypatch.setattr(recorder, "_records", spied)
    made = Subscription()
    first = Noted(made)
    calls.call("cuEventRecord", 5, 16)
    second = Noted(made)
    assert calls.enabled == {*CALLS, *UNKNOWN} - {0}
    calls.call("cuEventRecord", 5, 16)
    assert len(first()) == 2
    calls.call("cuEventRecord", 5, 16)
    assert len(second()) == 2
    assert len(read) == 3 + 2  # none of another's facts, which would make nested blocks quadratic
    calls.call("cuEventRecord", 5, 16)
    assert (calls.enabled, made.count, Noted(made)()) == (set(), 0, [])


def test_a_cupti_that_refuses_leaves_nothing_behind(calls):
    made, calls.code = Subscription(), 15
    with pytest.raises(NoCallbacksError, match="CUPTI answers 15"):
        made.open()
    calls.code = 0
    assert Noted(made)() == []


@pytest.mark.parametrize(
    ("name", "why"), [("_FILE", "not in this installation"), ("_SOURCE", "pip install -e .")]
)
def test_without_a_recorder_that_fits_the_remedy_is_told(calls, monkeypatch, tmp_path, name, why):
    another = tmp_path / "another"
    another.touch()
    monkeypatch.setattr(recorder, name, another)
    monkeypatch.setattr(recorder, "load", recorder.load.__wrapped__)
    with pytest.raises(NoCallbacksError, match=why):
        Subscription().open()


@pytest.mark.portable
def test_without_the_library_the_line_that_installs_it_is_told(monkeypatch):
    def missing(*_, **__):
        raise OSError

    monkeypatch.setattr(recorder.sys, "platform", "linux")
    monkeypatch.setattr(ctypes, "CDLL", missing)
    monkeypatch.setattr(toolkit.importlib, "import_module", missing)
    for version, package in ((12040, "nvidia-cuda-cupti-cu12"), (13000, "nvidia-cuda-cupti")):
        monkeypatch.setattr(loader, "driver_version", lambda version=version: version)
        with pytest.raises(NoCallbacksError, match=f"pip install {package}$"):
            Subscription().open()
    monkeypatch.setattr(recorder.sys, "platform", "win32")
    with pytest.raises(NoCallbacksError, match="Linux"):
        Subscription().open()


def test_a_recording_watches_the_queues_that_are_met_until_it_stops(calls, monkeypatch):
    monkeypatch.setattr(identity, "living", list)
    before = [*identity.watchers]
    recordings = [DriverRecording() for _ in range(2)]
    for one in recordings:
        one.start()
    recordings[0].stop()
    assert identity.watchers == [*before, recordings[1]._meet]
    recordings[1].stop()
    assert identity.watchers == before


# -- what is noted ------------------------------------------------------------------------------


def test_a_call_is_noted_with_its_fields_and_its_thread(calls, noted):
    calls.call("cuEventRecord", 5, 16)
    calls.call(UNKNOWN[0], 5)
    fact, unknown = noted()
    assert (fact.call, fact.fields) == (NUMBER["cuEventRecord"], struct.pack("<2Q", 5, 16))
    assert (fact.thread, fact.context) == (threading.get_native_id(), CONTEXT)
    assert (fact.more, fact.since) == (None, None)
    assert (unknown.call, unknown.fields) == (UNKNOWN[0], b"cuNewCall")


def test_a_wait_is_noted_when_it_has_ended_and_since_when(calls, noted):
    calls.half(0, "cuStreamSynchronize", 16)
    within(lambda: calls.call("cuEventRecord", 5, 16))
    calls.half(1, "cuStreamSynchronize", 16)
    calls.call("cuStreamQuery", 16, code=600)  # not ready
    names = [(CALLS[one.call].name, one.since) for one in noted(streams=True)]
    assert names == [("-", None), ("cuEventRecord", None), ("cuStreamSynchronize", 1)]


def test_a_call_that_failed_is_noted_as_such_if_its_beginning_was_noted(calls, noted):
    for name in ("cuStreamBeginCapture", "cuMemAlloc", "cuMemFree"):
        calls.call(name, AT, code=1)
    calls.call("cuEventRecord", 5, 16, code=1)
    assert [fact.more is FAILED for fact in noted()] == [True]


MADE = ctypes.c_uint64(AT)
WHERE = ctypes.addressof(MADE)
BYTES = ctypes.create_string_buffer(bytes(range(128)), 128)
HERE = ctypes.addressof(BYTES)
MAKE = "cuMemAllocAsync", "cuMemAlloc", "cuMemHostAlloc", "cuIpcOpenMemHandle"
END = "cuMemFree", "cuMemFreeHost", "cuMemHostUnregister", "cuIpcCloseMemHandle"


@pytest.mark.parametrize(
    ("call", "fields", "expected"),
    [
        *((name, (WHERE, 32, 16), (MEMORY, True)) for name in MAKE),
        *((name, (AT, 32), (MEMORY, True)) for name in ("cuMemHostRegister", "cuMemMap")),
        *((name, (AT,), (MEMORY, True)) for name in END),
        ("cuMemFreeAsync", (AT, 16), (MEMORY, False)),
        ("cuEventCreate", (WHERE,), (AT, True)),
        ("cuStreamCreate", (WHERE, 1), (AT, True)),
        ("cuMemcpy2DAsync", (HERE, 16), (bytes(range(128)), False)),
        # cuGraphAddNode and those that change a node, by which field points to its parameters
        *(
            (number, (0,) * place + (HERE,), (bytes(range(24)), False))
            for number, place in ((712, 4), (713, 1), (714, 2), (723, 5))
        ),
    ],
)
def test_what_the_fields_point_to_is_noted_while_it_is_there(calls, noted, call, fields, expected):
    calls.half(0, call, *fields)
    asked_before = calls.asked[5]
    calls.half(1, call, *fields)
    (fact,) = noted()
    assert (fact.more, fact.since is not None) == expected
    is_gone = call in (*END, "cuMemFreeAsync")
    assert (asked_before, calls.asked[5]) == (is_gone, fact.more == MEMORY)


def test_memory_of_which_the_driver_says_nothing_is_as_it_was_asked_for(calls, noted):
    calls.says[5] = 0
    calls.call("cuMemAlloc", WHERE, 32)
    calls.call("cuIpcOpenMemHandle", WHERE)
    assert [fact.more[:2] for fact in noted()] == [(AT, 32), (AT, 1)]


@pytest.mark.parametrize("of_races", [True, False])
def test_the_memory_of_an_upload_is_looked_at_as_long_as_it_is_there(calls, monkeypatch, of_races):
    monkeypatch.setattr(ctypes.c_uint64.in_dll(calls.free, "sort"), "value", 1)  # the host's
    memory = mmap.mmap(-1, 4096)
    at = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    noted = Noted(Subscription(), int if of_races else None)
    upload, event = ("cuMemcpyHtoDAsync", 0, at, 4000, 16), ("cuEventSynchronize", 5)
    for call in (upload, event, ("cuStreamQuery", 17), ("cuStreamQuery", 16), event, upload):
        calls.call(*call)
        memory[3999] = call == event
    memory.close()
    calls.call(*event)
    found = [fact.more for fact in noted()]
    places = [[content[:2] for content in contents] for contents in found]
    once = [(at, 4000)] * of_races
    assert places == [once, once, once, once, [], once, []]  # not after a wait for the stream
    assert len({*found[:3]}) == 1 + of_races


# -- streams ------------------------------------------------------------------------------------


def met(facts):
    return [CALLS[0].fields.unpack(fact.fields) for fact in facts if not fact.call]


def test_a_stream_is_asked_for_once_in_the_call_that_uses_it_first(calls, noted):
    for _ in range(2):
        calls.call("cuEventRecord", 5, 16)
        assert calls.asked[:4] == [1, 1, 1, 1]
    assert met(noted(streams=True)) == [(16, 9, 5, -1, 0)]
    assert calls.asked[:4] == [1, 1, 1, 1]


def test_a_stream_that_is_made_or_ends_is_another_one_with_its_handle(calls, noted):
    calls.call("cuStreamCreate", WHERE, 1)
    calls.call("cuStreamDestroy", AT)
    for _ in range(2):
        calls.call("cuStreamCreate", WHERE, 1)  # the second time its context has ended
    names = [CALLS[one.call].name.removeprefix("cuStream") for one in noted(streams=True)]
    assert names == ["-", "Create", "Destroy", "-", "Create", "-", "Create"]


def test_a_stream_that_captures_is_asked_for_its_id_when_that_is_over(calls, noted):
    for calls.says[1] in (1, 1, 0, 0):
        calls.call("cuEventRecord", 5, 16)
    facts = noted(streams=True)
    assert met(facts) == [(16, 0, 5, -1, -1), (16, 9, 5, -1, 0)]
    assert [one.is_captured for one in facts if one.call] == [True, True, False, False]
    assert (calls.asked[2], calls.asked[3]) == (1, 1)


@pytest.mark.parametrize("call", ["cuStreamWaitEvent", "cuStreamBeginCapture", "cuMemAllocAsync"])
def test_a_call_can_have_its_stream_captured_until_the_driver_says_otherwise(calls, noted, call):
    fields = (WHERE, 32, 16) if "Alloc" in call else (16, 5)
    calls.half(0, call, *fields)
    calls.says[1] = 1  # as where the event is one of a capture that was begun before
    calls.half(1, call, *fields)
    for calls.says[1] in (1, 0, 1):  # the last time nothing asks
        calls.call("cuEventRecord", 5, 16)
    captured = [one.is_captured for one in noted()]
    assert captured == [True] * ("Wait" in call) + [True, False, False]


# -- launches -----------------------------------------------------------------------------------

PARAMETERS = ctypes.c_uint64(AT), ctypes.c_float(2)
POINTERS = (ctypes.c_uint64 * 2)(*map(ctypes.addressof, PARAMETERS))
EXPECTED = struct.pack("<Q", AT), struct.pack("<f", 2)
BUFFER = ctypes.create_string_buffer(struct.pack("<Qf", AT, 2), 12)
SIZES = [ctypes.c_size_t(size) for size in (12, 11)]
PACKED = [
    (ctypes.c_uint64 * 5)(1, ctypes.addressof(BUFFER), 2, ctypes.addressof(size)) for size in SIZES
]
CONFIGURATION = (ctypes.c_uint64 * 7)(0, 0, 0, 0, 48)
CONFIGURED = ctypes.addressof(CONFIGURATION), 9, ctypes.addressof(POINTERS), 0


def launch(stream=16, pointers=POINTERS, extra=None):
    where = (ctypes.addressof(one) if one else 0 for one in (pointers, extra))
    return 9, 0, 0, 0, 0, stream, *where


@pytest.mark.parametrize(
    ("number", "fields", "expected"),
    [
        (NUMBER["cuLaunchKernel"], launch(), (16, EXPECTED)),
        (NUMBER["cuLaunchKernel"], launch(0), (1, EXPECTED)),
        (PER_THREAD["cuLaunchKernel"], launch(0), (2, EXPECTED)),
        (NUMBER["cuLaunchCooperativeKernel"], launch(), (16, EXPECTED)),
        (NUMBER["cuLaunchKernel"], launch(16, None, PACKED[0]), (16, EXPECTED)),
        (NUMBER["cuLaunchKernel"], launch(16, None, PACKED[1]), (16, None)),
        (NUMBER["cuLaunchKernel"], launch(16, None), (16, None)),
        (NUMBER["cuLaunchKernelEx"], CONFIGURED, (48, EXPECTED)),
    ],
)
def test_a_launch_has_its_stream_and_the_bytes_of_its_parameters(
    calls, noted, number, fields, expected
):
    for _ in range(2):
        calls.call(number, *fields)
        assert calls.asked[6] == 3  # for the first launch alone
    assert [(fact.stream, fact.more[1]) for fact in noted()] == [expected] * 2


@pytest.mark.parametrize(("codes", "parameters"), [((400, 0), EXPECTED), ((400, 400), None)])
def test_what_is_no_function_is_asked_for_as_a_kernel(calls, noted, codes, parameters):
    calls.says[6:] = codes
    calls.call("cuLaunchKernel", *launch())
    assert noted()[0].more == Kernel("kernel", parameters)


def test_a_driver_that_does_not_tell_sizes_leaves_parameters_unknown(calls, monkeypatch):
    answers, kept = recorder.driver_functions(), recorder._FUNCTIONS[:6]
    monkeypatch.undo()
    library = SimpleNamespace(**dict(zip(kept, answers, strict=False)))
    monkeypatch.setattr(ctypes, "CDLL", lambda _: library)  # such a driver lacks two functions
    monkeypatch.setattr(recorder, "_find", lambda: calls)
    noted = Noted(Subscription())
    calls.call("cuLaunchKernel", *launch())
    assert noted()[0].more == Kernel("kernel", None)


def test_a_kernel_that_was_unloaded_is_asked_for_again(calls, noted, monkeypatch):
    symbol = ctypes.c_char_p.in_dll(calls.free, "symbol")
    before = symbol.value
    for symbol.value in (before, b"another"):
        calls.call("cuLaunchKernel", *launch())
        calls.call("cuModuleUnload")
    symbol.value = before
    assert [fact.more.symbol for fact in noted() if fact.more] == ["kernel", "another"]
