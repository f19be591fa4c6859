"""What the recorder in C notes: each call as C gives it, and nothing that stops the caller."""

from __future__ import annotations

import ctypes
import struct
import threading
from types import SimpleNamespace

import pytest

from streamkit._cuda import loader, memory_pools  # what the driver answers is made up here
from streamkit._queues import identity  # who is told of queues
from streamkit.diagnostics.doctor import toolkit  # it is not to find CUPTI
from streamkit.diagnostics.recording import recorder  # CUPTI is played here
from streamkit.diagnostics.recording.calls import CALLS, FAILED, UNKNOWN, Kernel  # CUPTI's numbers
from streamkit.diagnostics.recording.driver_recorder import DriverRecording  # it needs a driver
from streamkit.diagnostics.recording.recorder import NoCallbacksError, Subscription
from support.cupti import BEGIN, NUMBER, PER_THREAD, Answers, Cupti, says_of_memory, words

CONTEXT = 77


@pytest.fixture(autouse=True)
def recorder_in_c():
    try:
        recorder._load()
    except NoCallbacksError as why:
        pytest.skip(str(why))


@pytest.fixture
def cupti(monkeypatch, answers):
    played = Cupti()
    monkeypatch.setattr(recorder, "_find", lambda: played)
    return played


class Driver:
    """What the driver says."""

    def __init__(self):
        self.is_capturing = 0
        self.sizes = [8, 4]
        self.is_function = self.is_kernel = True

    def parameter(self, is_known, number):
        if not is_known:
            return OSError()
        offset = sum(self.sizes[:number])
        return (offset, self.sizes[number]) if number < len(self.sizes) else None


@pytest.fixture
def says():
    return Driver()


@pytest.fixture
def answers(monkeypatch, says):
    """All that the driver is asked: streams have the id 9, the context 5 and the flags 0."""
    monkeypatch.setattr(
        memory_pools,
        "allocation",
        lambda address: memory_pools.Allocation(address, 64, is_host=False, context=CONTEXT),
    )
    return Answers(
        monkeypatch,
        cuStreamGetCtx=lambda _: 5,
        cuStreamIsCapturing=lambda _: says.is_capturing,
        cuStreamGetFlags=lambda _: 0,
        cuStreamGetId=lambda _: 9,
        cuCtxGetDevice=lambda: 0,
        cuPointerGetAttributes=says_of_memory,
        cuFuncGetParamInfo=lambda _, number: says.parameter(says.is_function, number),
        cuKernelGetParamInfo=lambda _, number: says.parameter(says.is_kernel, number),
    )


class Noted:
    """A listener, and what was noted for it."""

    def __init__(self, subscription):
        self._subscription, self._listener = subscription, subscription.open()

    def __call__(self, *, streams=False):
        """End, and return the facts; those of streams that were met only if that is wanted."""
        facts, _ = self._subscription.close(self._listener)
        return [fact for fact in facts if fact.call or streams]


@pytest.fixture
def noted(cupti):
    """The facts so far, which ends the recording."""
    return Noted(Subscription())


# -- who listens --------------------------------------------------------------------------------


def test_each_listener_has_its_part_and_nothing_is_left_after_the_last(cupti):
    made, call = Subscription(), (NUMBER["cuEventRecord"], words(5, 16))
    first = Noted(made)
    cupti.call(*call)
    second = Noted(made)
    assert cupti.enabled == {*CALLS, *UNKNOWN} - {0}
    cupti.call(*call)
    assert len(first()) == 2
    cupti.call(*call)
    assert len(second()) == 2
    assert (cupti.enabled, cupti.callback, made.count) == (set(), None, 0)
    assert Noted(made)() == []


def test_who_comes_second_is_told_why(cupti):
    made = Subscription()
    for cupti.code, why in ((39, "another tool has CUPTI"), (15, "CUPTI answers 15")):
        with pytest.raises(NoCallbacksError, match=why):
            made.open()
    cupti.code = 0
    Noted(made)()


@pytest.mark.parametrize(
    ("change", "why"),
    [("missing", "recorder in C is not in this installation"), ("stale", "pip install -e .")],
)
def test_without_a_recorder_that_fits_the_remedy_is_told(cupti, monkeypatch, tmp_path, change, why):
    another = tmp_path / "another"
    another.touch()
    monkeypatch.setattr(recorder, "_SOURCE" if change == "stale" else "_FILE", another)
    monkeypatch.setattr(recorder, "_load", recorder._load.__wrapped__)
    with pytest.raises(NoCallbacksError, match=why):
        Subscription().open()


def test_without_the_library_the_line_that_installs_it_is_told(monkeypatch):
    def missing(*_, **__):
        raise OSError

    monkeypatch.setattr(recorder.sys, "platform", "linux")
    monkeypatch.setattr(toolkit.os, "RTLD_NOLOAD", 4, raising=False)
    monkeypatch.setattr(toolkit.os, "RTLD_NOW", 2, raising=False)
    monkeypatch.setattr(recorder.ctypes, "CDLL", missing)
    monkeypatch.setattr(toolkit.importlib, "import_module", missing)
    for version, package in ((12040, "nvidia-cuda-cupti-cu12"), (13000, "nvidia-cuda-cupti")):
        monkeypatch.setattr(loader, "driver_version", lambda version=version: version)
        with pytest.raises(NoCallbacksError, match=f"pip install {package}$"):
            Subscription().open()
    monkeypatch.setattr(recorder.sys, "platform", "win32")
    with pytest.raises(NoCallbacksError, match="Linux"):
        Subscription().open()


# -- what is noted ------------------------------------------------------------------------------


def test_a_call_is_noted_with_its_fields_thread_and_place(cupti, noted, monkeypatch):
    cupti.call(NUMBER["cuEventRecord"], words(5, 16))
    (fact,) = noted()
    assert CALLS[fact.call].name == "cuEventRecord"
    assert (fact.thread, fact.context) == (threading.get_native_id(), CONTEXT)
    assert fact.place.file.endswith("cupti.py")
    assert fact.fields == words(5, 16)
    assert (fact.more, fact.since) == (None, None)


def test_a_wait_is_noted_when_it_has_ended_and_since_when(cupti, noted):
    def meanwhile():
        cupti.call(NUMBER["cuEventRecord"], words(5, 16))

    cupti.call(NUMBER["cuStreamSynchronize"], words(16), meanwhile=meanwhile)
    cupti.call(NUMBER["cuStreamQuery"], words(16), code=600)  # not ready
    names = [(CALLS[one.call].name, one.since) for one in noted(streams=True)]
    assert names == [("-", None), ("cuEventRecord", None), ("cuStreamSynchronize", 1)]


@pytest.mark.parametrize("name", ["cuMemAllocAsync", "cuMemAlloc", "cuMemHostAlloc",
                                  "cuMemHostRegister", "cuMemMap"])  # fmt: skip
def test_memory_that_a_call_made_is_noted(cupti, noted, name):
    made = ctypes.c_uint64(4096)
    where = ctypes.addressof(made) if "Alloc" in name else 4096
    cupti.call(NUMBER[name], words(where, 64, 16))
    (fact,) = noted()
    assert fact.more == (4096, 64, False, CONTEXT)
    assert fact.since is not None


def test_memory_of_which_the_driver_says_nothing_is_as_it_was_asked_for(cupti, noted, monkeypatch):
    monkeypatch.setattr(memory_pools, "allocation", lambda _: None)
    made = ctypes.c_uint64(4096)
    cupti.call(NUMBER["cuMemAlloc"], words(ctypes.addressof(made), 32))
    cupti.call(NUMBER["cuIpcOpenMemHandle"], words(ctypes.addressof(made)))
    assert [fact.more[:2] for fact in noted()] == [(4096, 32), (4096, 1)]


@pytest.mark.parametrize("name", ["cuMemFree", "cuMemFreeHost", "cuMemHostUnregister",
                                  "cuIpcCloseMemHandle"])  # fmt: skip
def test_memory_that_ends_is_asked_for_while_it_is_there(cupti, noted, answers, name):
    seen, asked = [], answers.asked
    cupti.call(NUMBER[name], words(4096), meanwhile=lambda: seen.extend(asked))
    cupti.call(NUMBER[name], words(4096), code=1)  # it failed: the memory is there
    assert seen == ["cuPointerGetAttributes"]  # before the call, and not after it
    assert asked == seen * 2
    (fact,) = noted()
    assert (fact.more, fact.since) == ((4096, 64, False, CONTEXT), 0)


def test_memory_that_a_stream_frees_is_noted_as_the_call_begins(cupti, noted):
    cupti.call(NUMBER["cuMemFreeAsync"], words(4096, 16), sites=(BEGIN,))
    (fact,) = noted()
    assert (fact.more, fact.since) == ((4096, 64, False, CONTEXT), None)


# -- streams ------------------------------------------------------------------------------------

MET = struct.Struct("<QQQiii4x")


def met(facts):
    return [MET.unpack(fact.fields) for fact in facts if not fact.call]


def test_a_stream_is_asked_for_once_in_the_call_that_uses_it_first(cupti, noted, answers):
    for _ in range(2):
        cupti.call(NUMBER["cuEventRecord"], words(5, 16))
        answers.asked.append("ended")
    questions = ["cuStreamIsCapturing", "cuStreamGetCtx", "cuStreamGetId", "cuStreamGetFlags"]
    assert answers.asked == [*questions, "ended", "ended"]
    assert met(noted(streams=True)) == [(16, 9, 5, -1, 0, 0)]
    assert len(answers.asked) == 6


def test_a_stream_that_is_made_or_ends_is_another_one_with_its_handle(cupti, noted):
    made = ctypes.c_uint64(4096)
    cupti.call(NUMBER["cuStreamCreate"], words(ctypes.addressof(made), 1))
    cupti.call(NUMBER["cuStreamDestroy"], words(4096))
    cupti.call(NUMBER["cuStreamCreate"], words(ctypes.addressof(made), 1))
    cupti.call(NUMBER["cuStreamCreate"], words(ctypes.addressof(made), 1))  # its context has ended
    facts = noted(streams=True)
    names = [CALLS[fact.call].name.removeprefix("cuStream") for fact in facts]
    assert names == ["-", "Create", "Destroy", "-", "Create", "-", "Create"]
    assert [fact.more for fact in facts if fact.call == NUMBER["cuStreamCreate"]] == [4096] * 3


def test_a_stream_that_captures_is_asked_for_its_id_when_that_is_over(cupti, noted, answers, says):
    for says.is_capturing in (1, 1, 0, 0):
        cupti.call(NUMBER["cuEventRecord"], words(5, 16))
    assert met(noted(streams=True)) == [(16, 0, 5, -1, -1, 1), (16, 9, 5, -1, 0, 0)]
    assert answers.asked.count("cuStreamGetFlags") == 1


def test_default_streams_are_those_of_their_contexts_and_threads(cupti, noted):
    cupti.call(NUMBER["cuMemsetD8"], words(4096, 0, 1))
    cupti.call(PER_THREAD["cuMemsetD8"], words(4096, 0, 1))
    cupti.call(NUMBER["cuCtxDestroy"], b"")
    cupti.call(NUMBER["cuMemsetD8"], words(4096, 0, 1))
    handles = [
        (handle, context, device) for handle, _, context, device, *_ in met(noted(streams=True))
    ]
    assert handles == [(1, CONTEXT, 0), (2, CONTEXT, 0), (1, CONTEXT, 0)]


@pytest.mark.parametrize("state", [0, 2])  # none; one that is invalid, and goes on
def test_a_capture_whose_end_fails_has_ended_if_its_stream_says_so(cupti, noted, says, state):
    says.is_capturing = state
    cupti.call(NUMBER["cuStreamEndCapture"], words(16), code=901)
    facts = noted()
    assert [fact.more is FAILED for fact in facts] == [False, True][: 1 + bool(state)]


def test_a_call_that_is_not_known_here_is_noted_by_its_name(cupti, noted):
    cupti.call(UNKNOWN[0], words(5), name=b"cuNewCall")
    (fact,) = noted()
    assert (fact.call, fact.fields) == (UNKNOWN[0], b"cuNewCall")


def test_a_recording_watches_the_queues_that_are_met_until_it_stops(cupti, monkeypatch):
    monkeypatch.setattr(identity, "living", list)
    before = identity._watchers
    recordings = [DriverRecording() for _ in range(2)]
    for one in recordings:
        one.start()
    recordings[0].stop()
    assert identity._watchers == (*before, recordings[1]._meet)
    recordings[1].stop()
    assert identity._watchers == before


def test_a_capture_that_did_not_begin_is_not_noted(cupti, noted):
    for code in (1, 0):
        cupti.call(NUMBER["cuStreamBeginCapture"], words(16), code=code)
    assert len(noted()) == 1


def test_a_listener_can_ask_for_the_places_of_all_but_launches(cupti):
    made = Subscription()

    def has_places(**which):
        listener = made.open(**which)
        cupti.call(NUMBER["cuEventRecord"], words(5, 16))
        cupti.call(NUMBER["cuLaunchKernel"], struct.pack("<Q32xQQQ", 9, 16, 0, 0))
        return [fact.place is not None for fact in made.close(listener)[0] if fact.call]

    assert has_places(of_launches=False) == [True, False]
    few = made.open(of_launches=False)
    assert has_places() == [True, True]
    assert has_places(of_launches=False) == [True, False]
    made.close(few)


def test_what_a_pointer_of_a_copy_points_to_is_noted(cupti, noted):
    rows = ctypes.create_string_buffer(bytes(range(128)), 128)
    cupti.call(NUMBER["cuMemcpy2DAsync"], words(ctypes.addressof(rows), 16))
    assert noted()[0].more == bytes(range(128))


@pytest.mark.parametrize(
    ("number", "place"), [(712, 4), (713, 1), (714, 2), (723, 5)]
)  # cuGraphAddNode and those that change a node, by which field points to its parameters
def test_the_node_that_a_graph_gets_is_noted_as_it_was_given(cupti, noted, number, place):
    node = ctypes.create_string_buffer(bytes(range(24)), 24)
    cupti.call(number, words(*[0] * place, ctypes.addressof(node)))
    (fact,) = noted()
    assert fact.more == bytes(range(24))


# -- launches -----------------------------------------------------------------------------------


class Launch:
    """The parameters of a kernel: an address and a float."""

    def __init__(self):
        self.parameters = ctypes.c_uint64(4096), ctypes.c_float(2)
        self.pointers = words(*map(ctypes.addressof, self.parameters))
        self.kept = ctypes.create_string_buffer(self.pointers, 16)

    def fields(self, stream=16, *, pointers=None, extra=0):
        where = ctypes.addressof(self.kept) if pointers is None else pointers
        return struct.pack("<Q32xQQQ", 9, stream, where, extra)


EXPECTED = struct.pack("<Q", 4096), struct.pack("<f", 2)


@pytest.fixture
def launch():
    return Launch()


def test_a_launch_is_noted_with_the_bytes_of_its_parameters(cupti, noted, launch, answers):
    for stream in (16, 0):
        cupti.call(NUMBER["cuLaunchKernel"], launch.fields(stream))
    cupti.call(PER_THREAD["cuLaunchKernel"], launch.fields(0))
    assert [fact.more for fact in noted()] == [
        ("kernel", stream, EXPECTED) for stream in (16, 1, 2)
    ]
    assert answers.asked.count("cuFuncGetParamInfo") == 3  # for the first launch alone


def test_a_kernel_that_was_unloaded_is_asked_for_again(cupti, noted, launch):
    cupti.call(NUMBER["cuLaunchKernel"], launch.fields())
    cupti.call(NUMBER["cuModuleUnload"], words(3))
    cupti.call(NUMBER["cuLaunchKernel"], launch.fields(), symbol=b"another")
    assert [getattr(fact.more, "symbol", None) for fact in noted()] == [
        "kernel", None, "another",
    ]  # fmt: skip


@pytest.mark.parametrize(("is_kernel", "expected"), [(True, EXPECTED), (False, None)])
def test_what_is_no_function_is_asked_for_as_a_kernel(cupti, noted, says, is_kernel, expected):
    says.is_function, says.is_kernel = False, is_kernel
    launch = Launch()
    cupti.call(NUMBER["cuLaunchKernel"], launch.fields())
    assert noted()[0].more == ("kernel", 16, expected)


def test_a_launch_with_a_configuration_has_its_stream_there(cupti, noted, launch):
    configuration = ctypes.create_string_buffer(bytes(32) + words(48), 56)
    fields = words(ctypes.addressof(configuration), 9, ctypes.addressof(launch.kept), 0)
    cupti.call(NUMBER["cuLaunchKernelEx"], fields)
    assert noted()[0].more == ("kernel", 48, EXPECTED)


def test_parameters_in_one_buffer_are_found(cupti, noted, launch):
    buffer = ctypes.create_string_buffer(struct.pack("<Qf", 4096, 2), 12)
    size = ctypes.c_size_t(12)
    found = words(1, ctypes.addressof(buffer), 2, ctypes.addressof(size), 0)
    extra = ctypes.create_string_buffer(found, len(found))
    cupti.call(NUMBER["cuLaunchKernel"], launch.fields(pointers=0, extra=ctypes.addressof(extra)))
    cupti.call(NUMBER["cuLaunchKernel"], launch.fields(pointers=0))
    assert [fact.more.parameters for fact in noted()] == [EXPECTED, None]


def test_a_driver_that_does_not_tell_sizes_leaves_parameters_unknown(cupti, monkeypatch):
    functions = [*recorder.driver_functions()[:6], None, None]
    monkeypatch.setattr(recorder, "driver_functions", lambda: functions)
    noted = Noted(Subscription())
    cupti.call(NUMBER["cuLaunchKernel"], struct.pack("<Q32xQQQ", 9, 16, 0, 0))
    assert noted()[0].more == Kernel("kernel", 16, None)


def test_functions_that_a_driver_lacks_are_none(monkeypatch):
    kept = dict.fromkeys(recorder._FUNCTIONS[:6], 1)
    monkeypatch.setattr(recorder.ctypes, "CDLL", lambda _: SimpleNamespace(**kept))
    assert recorder.driver_functions() == [1] * 6 + [None] * 2
