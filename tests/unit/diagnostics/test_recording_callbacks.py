"""What the callbacks of CUPTI note: each call as C gives it, and nothing that stops the caller."""

from __future__ import annotations

import _thread
import ctypes
import itertools
import signal
import struct
import threading
import time

import pytest

from streamkit._cuda import loader, memory_pools  # what the driver answers is made up here
from streamkit._queues import identity  # who is told of queues
from streamkit.diagnostics.doctor import toolkit  # it is not to find CUPTI
from streamkit.diagnostics.races.cuda_recorder import CudaRaceRecorder  # what it does in a callback
from streamkit.diagnostics.recording import recorder  # CUPTI is played here
from streamkit.diagnostics.recording.recorder import (
    Fact,
    Kernel,
    NoCallbacksError,
    Subscription,
)
from streamkit.diagnostics.recording.calls import CALLS, UNKNOWN  # CUPTI's numbers
from streamkit.diagnostics.recording.driver_recorder import DriverRecording  # it needs a driver
from support.cupti import BEGIN, NUMBER, PER_THREAD, Cupti, words
from support.queues import eventually

pytestmark = pytest.mark.portable


@pytest.fixture
def cupti(monkeypatch):
    played = Cupti()
    monkeypatch.setattr(recorder, "_find", lambda: played)
    return played


@pytest.fixture(autouse=True)
def memory(monkeypatch):
    """What the driver says of memory: an allocation begins at each address."""
    asked = []

    def ask(address):
        asked.append(address)
        return memory_pools.Allocation(address, 64, is_host=False, context=77)

    monkeypatch.setattr(memory_pools, "allocation", ask)
    return asked


@pytest.fixture
def subscription(cupti):
    made = Subscription()
    made.open(lambda: "here")
    yield made
    made.close()


def noted(subscription):
    """The facts, and of launches what they are."""
    found = itertools.starmap(Fact, subscription.facts)
    return [
        fact._replace(more=Kernel(*fact.more)) if fact.call in recorder._LAUNCHES else fact
        for fact in found
    ]


# -- who listens --------------------------------------------------------------------------------


def test_nothing_is_left_when_the_last_one_has_closed(cupti):
    made = Subscription()
    facts = made.open(lambda: None)
    assert made.open(lambda: None) is facts
    assert cupti.enabled == {*CALLS, *UNKNOWN}
    made.close()
    cupti.call(NUMBER["cuEventRecord"], words(5, 16))
    assert len(facts) == 1
    made.close()
    assert (cupti.enabled, cupti.callback) == (set(), None)
    assert made.open(lambda: None) == []
    made.close()


def test_who_comes_second_is_told_why(cupti):
    cupti.code = 39
    with pytest.raises(NoCallbacksError, match="another tool has CUPTI"):
        Subscription().open(lambda: None)
    cupti.code = 15
    made = Subscription()
    with pytest.raises(NoCallbacksError, match="CUPTI answers 15"):
        made.open(lambda: None)
    cupti.code = 0
    made.open(lambda: None)
    made.close()


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
            Subscription().open(lambda: None)
    monkeypatch.setattr(recorder.sys, "platform", "win32")
    with pytest.raises(NoCallbacksError, match="Linux"):
        Subscription().open(lambda: None)


# -- what is noted ------------------------------------------------------------------------------


def test_a_call_is_noted_with_its_fields_thread_and_place(cupti, subscription):
    cupti.call(NUMBER["cuEventRecord"], words(5, 16))
    (fact,) = noted(subscription)
    assert CALLS[fact.call].name == "cuEventRecord"
    assert (fact.thread, fact.context, fact.place) == (threading.get_native_id(), 77, "here")
    assert fact.fields == words(5, 16)
    assert (fact.more, fact.since) == (None, None)


def test_a_wait_is_noted_when_it_has_ended_and_since_when(cupti, subscription):
    def meanwhile():
        cupti.call(NUMBER["cuEventRecord"], words(5, 16))

    cupti.call(NUMBER["cuStreamSynchronize"], words(16), meanwhile=meanwhile)
    cupti.call(NUMBER["cuStreamQuery"], words(16), code=600)  # not ready
    names = [(CALLS[one.call].name, one.since) for one in noted(subscription)]
    assert names == [("cuEventRecord", None), ("cuStreamSynchronize", 0)]


@pytest.mark.parametrize("name", ["cuMemAllocAsync", "cuMemAlloc", "cuMemHostAlloc",
                                  "cuMemHostRegister", "cuMemMap"])  # fmt: skip
def test_memory_that_a_call_made_is_noted(cupti, subscription, name):
    made = ctypes.c_uint64(4096)
    where = ctypes.addressof(made) if "Alloc" in name else 4096
    cupti.call(NUMBER[name], words(where, 64, 16))
    (fact,) = noted(subscription)
    assert (fact.more, fact.since) == ((4096, 64, False, 77), 0)


def test_memory_of_which_the_driver_says_nothing_is_as_it_was_asked_for(
    cupti, subscription, monkeypatch
):
    monkeypatch.setattr(memory_pools, "allocation", lambda _: None)
    made = ctypes.c_uint64(4096)
    cupti.call(NUMBER["cuMemAlloc"], words(ctypes.addressof(made), 32))
    cupti.call(NUMBER["cuIpcOpenMemHandle"], words(ctypes.addressof(made)))
    assert [fact.more[:2] for fact in noted(subscription)] == [(4096, 32), (4096, 1)]


@pytest.mark.parametrize("name", ["cuMemFree", "cuMemFreeHost", "cuMemHostUnregister",
                                  "cuIpcCloseMemHandle"])  # fmt: skip
def test_memory_that_ends_is_asked_for_while_it_is_there(cupti, subscription, memory, name):
    seen = []
    cupti.call(NUMBER[name], words(4096), meanwhile=lambda: seen.extend(memory))
    (fact,) = noted(subscription)
    assert (seen, memory) == ([4096], [4096])  # before the call, and not after it
    assert (fact.more, fact.since) == ((4096, 64, False, 77), 0)
    cupti.call(NUMBER[name], words(4096), code=1)  # it failed: the memory is there
    assert len(subscription.facts) == 1


def test_memory_that_a_stream_frees_is_noted_as_the_call_begins(cupti, subscription):
    cupti.call(NUMBER["cuMemFreeAsync"], words(4096, 16), sites=(BEGIN,))
    (fact,) = noted(subscription)
    assert (fact.more, fact.since) == ((4096, 64, False, 77), None)


class Streams:
    """What the driver says of streams: the context is 5, the flags are those of blocking ones."""

    def __init__(self):
        self.is_capturing, self.asked = 0, []

    def with_gil(self, call):
        def answer(_stream, found):
            self.asked.append(call)
            found._obj.value = {"cuStreamGetCtx": 5, "cuStreamIsCapturing": self.is_capturing}.get(
                call, 0
            )
            return 0

        return answer


@pytest.fixture
def streams(monkeypatch):
    found = Streams()
    monkeypatch.setattr(loader, "with_gil", found.with_gil)
    return found


def test_the_context_of_a_stream_is_noted_when_it_is_made_and_before_it_ends(
    cupti, subscription, streams
):
    made = ctypes.c_uint64(4096)
    cupti.call(NUMBER["cuStreamCreate"], words(ctypes.addressof(made), 1))
    cupti.call(NUMBER["cuStreamDestroy"], words(4096))
    assert [fact.more for fact in noted(subscription)] == [(4096, 5), (5, True)]
    assert streams.asked.count("cuStreamGetFlags") == 2


def test_a_stream_that_captures_is_not_asked_for_its_flags(cupti, subscription, streams):
    streams.is_capturing = 1
    cupti.call(NUMBER["cuStreamDestroy"], words(4096))
    assert noted(subscription)[0].more == (5, None)
    assert "cuStreamGetFlags" not in streams.asked


def test_a_call_that_is_not_known_here_is_noted_by_its_name(cupti, subscription):
    cupti.call(UNKNOWN[0], words(5), name=b"cuNewCall")
    (fact,) = noted(subscription)
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


def test_a_capture_that_did_not_begin_is_not_noted(cupti, subscription):
    cupti.call(NUMBER["cuStreamBeginCapture"], words(16), code=1)
    assert noted(subscription) == []
    cupti.call(NUMBER["cuStreamBeginCapture"], words(16))
    assert len(noted(subscription)) == 1


def test_a_call_of_a_thread_that_runs_no_python_has_no_line(cupti):
    recorder, made = CudaRaceRecorder({}), Subscription()
    made.open(recorder._place)
    returned = []

    def call_back(*arguments):
        calls = map(made.noted_by, *zip(arguments, strict=True))
        _thread.start_new_thread(returned.extend, (calls,))

    def returns():
        assert eventually(lambda: returned == [None])

    cupti.callback = call_back
    cupti.call(NUMBER["cuEventRecord"], words(5, 16), sites=(BEGIN,), meanwhile=returns)
    (fact,) = noted(made)
    assert (fact.place, made.lost) == (None, 0)
    made.close(recorder._place)


def test_a_listener_can_ask_for_the_places_of_all_but_launches(cupti, monkeypatch):
    made = Subscription()

    def places():
        made.facts.clear()
        cupti.call(NUMBER["cuEventRecord"], words(5, 16))
        cupti.call(NUMBER["cuLaunchKernel"], struct.pack("<Q32xQQQ", 9, 16, 0, 0))
        return [fact.place for fact in noted(made)]

    def few():
        return "few"

    def every():
        return "every"

    made.open(few, of_launches=False)
    assert places() == ["few", None]
    made.open(every)
    assert places() == ["every", "every"]
    made.close(every)
    assert places() == ["few", None]
    made.close(few)


def test_what_a_pointer_of_a_copy_points_to_is_noted(cupti, subscription):
    rows = ctypes.create_string_buffer(bytes(range(128)), 128)
    cupti.call(NUMBER["cuMemcpy2DAsync"], words(ctypes.addressof(rows), 16))
    assert noted(subscription)[0].more == bytes(range(128))


@pytest.mark.parametrize(
    ("number", "place"), [(712, 4), (713, 1), (714, 2), (723, 5)]
)  # cuGraphAddNode and those that change a node, by which field points to its parameters
def test_the_node_that_a_graph_gets_is_noted_as_it_was_given(cupti, subscription, number, place):
    node = ctypes.create_string_buffer(bytes(range(24)), 24)
    cupti.call(number, words(*[0] * place, ctypes.addressof(node)))
    (fact,) = noted(subscription)
    assert fact.more == bytes(range(24))


# -- launches -----------------------------------------------------------------------------------


class Launch:
    """The parameters of a kernel: an address and a float."""

    def __init__(self, monkeypatch):
        self.parameters = ctypes.c_uint64(4096), ctypes.c_float(2)
        self.pointers = words(*map(ctypes.addressof, self.parameters))
        self.kept = ctypes.create_string_buffer(self.pointers, 16)
        self.asked = 0

        def ask(_function, number, offset, size):
            self.asked += 1
            if number.value == 2:
                return 1
            offset._obj.value, size._obj.value = [(0, 8), (8, 4)][number.value]
            return 0

        self.calls = {"cuFuncGetParamInfo": ask}
        monkeypatch.setattr(loader, "with_gil", self.calls.__getitem__)

    def fields(self, stream=16, *, pointers=None, extra=0):
        where = ctypes.addressof(self.kept) if pointers is None else pointers
        return struct.pack("<Q32xQQQ", 9, stream, where, extra)


EXPECTED = struct.pack("<Q", 4096), struct.pack("<f", 2)


@pytest.fixture
def launch(monkeypatch):
    return Launch(monkeypatch)


def test_a_launch_is_noted_with_the_bytes_of_its_parameters(cupti, subscription, launch):
    for stream in (16, 0):
        cupti.call(NUMBER["cuLaunchKernel"], launch.fields(stream))
    cupti.call(PER_THREAD["cuLaunchKernel"], launch.fields(0))
    assert [fact.more for fact in noted(subscription)] == [
        ("kernel", stream, EXPECTED) for stream in (16, 1, 2)
    ]
    assert launch.asked == 3  # for the first launch alone


def test_a_kernel_that_was_unloaded_is_asked_for_again(cupti, subscription, launch):
    cupti.call(NUMBER["cuLaunchKernel"], launch.fields())
    cupti.call(NUMBER["cuModuleUnload"], words(3))
    cupti.call(NUMBER["cuLaunchKernel"], launch.fields(), symbol=b"another")
    assert [getattr(fact.more, "symbol", None) for fact in noted(subscription)] == [
        "kernel", None, "another",
    ]  # fmt: skip


def test_what_is_no_function_is_asked_for_as_a_kernel(cupti, subscription, launch):
    launch.calls["cuKernelGetParamInfo"] = launch.calls["cuFuncGetParamInfo"]
    launch.calls["cuFuncGetParamInfo"] = lambda *_: 400
    cupti.call(NUMBER["cuLaunchKernel"], launch.fields())
    assert noted(subscription)[0].more == ("kernel", 16, EXPECTED)
    launch.calls["cuKernelGetParamInfo"] = lambda *_: 400
    cupti.call(NUMBER["cuModuleUnload"], words(3))
    cupti.call(NUMBER["cuLaunchKernel"], launch.fields())
    assert noted(subscription)[-1].more == ("kernel", 16, None)


def test_a_launch_with_a_configuration_has_its_stream_there(cupti, subscription, launch):
    configuration = ctypes.create_string_buffer(bytes(32) + words(48), 56)
    fields = words(ctypes.addressof(configuration), 9, ctypes.addressof(launch.kept), 0)
    cupti.call(NUMBER["cuLaunchKernelEx"], fields)
    assert noted(subscription)[0].more == ("kernel", 48, EXPECTED)


def test_parameters_in_one_buffer_are_found(cupti, subscription, launch):
    buffer = ctypes.create_string_buffer(struct.pack("<Qf", 4096, 2), 12)
    size = ctypes.c_size_t(12)
    found = words(1, ctypes.addressof(buffer), 2, ctypes.addressof(size), 0)
    extra = ctypes.create_string_buffer(found, len(found))
    cupti.call(NUMBER["cuLaunchKernel"], launch.fields(pointers=0, extra=ctypes.addressof(extra)))
    cupti.call(NUMBER["cuLaunchKernel"], launch.fields(pointers=0))
    assert [fact.more.parameters for fact in noted(subscription)] == [EXPECTED, None]


def test_a_driver_that_does_not_tell_sizes_leaves_parameters_unknown(
    cupti, subscription, monkeypatch
):
    def missing(_):
        raise AttributeError

    monkeypatch.setattr(loader, "with_gil", missing)
    cupti.call(NUMBER["cuLaunchKernel"], struct.pack("<Q32xQQQ", 9, 16, 0, 0))
    assert noted(subscription)[0].more == ("kernel", 16, None)


# -- what must not stop the caller ----------------------------------------------------------------


def test_an_error_in_a_callback_is_counted_and_goes_no_further(cupti, monkeypatch):
    made = Subscription()

    def place():
        raise RuntimeError

    made.open(place)
    cupti.call(NUMBER["cuEventRecord"], words(5, 16))
    assert (made.facts, made.lost) == ([], 1)
    made.close()


def wait_for_interrupt(call):
    call()
    for _ in range(20_000):  # the thread that tells of it needs its turn
        time.sleep(0.001)


def test_an_interrupt_in_a_callback_comes_after_it(cupti):
    made = Subscription()
    interrupts = []

    def place():
        if not interrupts:
            interrupts.append(True)
            signal.raise_signal(signal.SIGINT)

    made.open(place)
    with pytest.raises(KeyboardInterrupt):
        wait_for_interrupt(lambda: cupti.call(NUMBER["cuEventRecord"], words(5, 16)))
    made.close()
    assert made.lost == 0
