"""The doctor on an emulated driver: each planted fault is found, and only while it is there."""

from __future__ import annotations

import gc
import json

import pytest

import emulator
import streamkit as sk
from support.emulated.processes import run
from support.emulated.toys import program
from support.gpu.raw import check, current_context, destroy_stream, driver, make_stream
from support.libraries import any_text_is_yes, need, version_of

pytestmark = pytest.mark.versions

__all__ = ["program"]  # the fixture

INSTALLED = {  # what may be said of this environment, whichever it is
    "torch-cpu", "cuda-majors", "no-cuda-python", "old-library", "untested-library",
    "no-nvrtc", "no-cuda-headers", "no-cupti", "no-recorder",
}  # fmt: skip
# said of a build for the CPU and of CuPy on this driver, once a test before has imported them
IMPORTED = {("no-cuda", "torch"), ("no-cuda", "cupy")}


@pytest.fixture(autouse=True)
def one_queue():
    """Leave tvm-ffi, which another file has loaded, where it is: the doctor would find it moved."""


def codes(report=None):
    """What is found wrong here, but for what the lane has installed."""
    findings = (report or sk.doctor()).findings
    assert all(finding.what and finding.remedy for finding in findings)
    told = [(found.code, found.library) for found in findings if found.code not in INSTALLED]
    return [one for one in told if one not in IMPORTED]


# the same, for programs in a process of their own
CODES = f"""
def codes():
    found = sk.doctor().findings
    return [(one.code, one.library) for one in found if one.code not in {INSTALLED!r}]
"""


# -- the driver -------------------------------------------------------------------------------

MODE = f"""
import json
import streamkit as sk
{CODES}
print(json.dumps(codes()))
"""


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ({}, []),
        ({"EMULATED_DEVICES": "0"}, ["no-device"]),
        ({"EMULATED_DEVICES": "0", "CUDA_VISIBLE_DEVICES": ""}, ["no-device"]),
        ({"EMULATED_VERSION": "11080"}, ["old-driver", "driver-older-than-runtime"]),
        ({"EMULATED_VERSION": "12040"}, ["driver-older-than-runtime"]),
        ({"EMULATED_FAIL": "cuInit:1:999"}, ["driver-fails"]),
        ({"EMULATED_FAIL": "cuInit:1:803"}, ["driver-fails"]),
        ({"EMULATED_FAIL": "cuDevicePrimaryCtxRetain:1:46"}, ["driver-fails"]),
        ({"EMULATED_FAIL": "cuDeviceGetName:2:999"}, ["driver-fails"]),
        ({"CUDA_PYTHON_CUDA_PER_THREAD_DEFAULT_STREAM": "yes"}, ["driver-fails"]),
    ],
    ids=repr,
)
def test_each_mode_of_the_driver_is_told(mode, expected):
    need("cuda")
    if version_of("cuda-bindings") < (13,) and mode.get("EMULATED_VERSION") == "12040":
        expected = []
    is_switch = "CUDA_PYTHON_CUDA_PER_THREAD_DEFAULT_STREAM" in mode
    if any_text_is_yes() and is_switch:
        expected = ["per-thread-switches"]
    found = json.loads("".join(run(MODE, **mode)))
    assert list(dict.fromkeys(code for code, _ in found)) == expected
    assert (["driver-fails", "cuda.bindings"] in found) is (is_switch and not any_text_is_yes())


@pytest.mark.parametrize("version", ["11040", "11080"])
def test_a_driver_from_before_cuda_12_is_refused_in_words(version):
    program = """
        import streamkit as sk
        for call in (sk.new_stream, lambda: sk.from_handle(0), lambda: sk.new_event(device=0)):
            try:
                call()
            except sk.errors.DriverError as error:
                assert error.code == 35 and error.name == "cudaErrorInsufficientDriver"
                assert "CUDA 11." in str(error) and "CUDA 12 or newer" in str(error)
                print("refused")
        print(sk.new_stream("cpu").device)
    """
    assert run(program, EMULATED_VERSION=version) == ["refused"] * 3 + ["cpu"]


def test_a_forked_child_is_told_and_calls_nothing():
    found = run(f"""
import os
import streamkit as sk
{CODES}
stream = sk.new_stream()
assert codes() == []
if not os.fork():
    print(codes()[0][0], sk.doctor().driver, flush=True)
    os._exit(0)
os.wait()
""")
    assert found == ["forked", "None"]


def test_the_report_says_what_is_here():
    sk.new_stream().to("cuda.core")  # loads it, if no test has before
    report = sk.doctor()
    assert (report.driver.cuda, report.driver.devices) == (
        "13.0",
        ["Emulated device 0", "Emulated device 1"],
    )
    loaded = {library.name: library for library in report.libraries if library.loaded}
    assert {"cuda.bindings", "cuda.core"} <= set(loaded)
    assert loaded["cuda.core"].current is None


def test_looking_changes_nothing():
    sk.doctor()
    kinds = ("streams", "events", "contexts", "graphs", "executables")
    gc.collect()
    context = check(driver.cuDevicePrimaryCtxRetain(1))
    try:
        check(driver.cuCtxSetCurrent(context))
        sk.doctor()
        before = [emulator.live(kind) for kind in kinds], current_context()
        sk.doctor()
        gc.collect()
        assert ([emulator.live(kind) for kind in kinds], current_context()) == before
    finally:
        check(driver.cuCtxSetCurrent(0))
        check(driver.cuDevicePrimaryCtxRelease(1))


# -- Warp -------------------------------------------------------------------------------------


def test_two_views_of_one_handle(warp, warp_state):
    raw = make_stream()
    first = warp.Stream("cuda:0", cuda_stream=raw)
    assert ("two-views", "warp") not in codes()
    second = warp.Stream("cuda:0", cuda_stream=raw)
    (finding,) = [one for one in sk.doctor().findings if one.code == "two-views"]
    assert f"2 wp.Stream objects on the stream {raw:#x} of cuda:0" in finding.what
    del first, second
    assert ("two-views", "warp") not in codes()
    destroy_stream(raw)


def test_streamkits_own_view_is_no_second_one(warp, warp_state):
    stream = sk.wrap(warp.Stream("cuda:0"))
    with stream, sk.new_stream() as other:
        assert other.to("warp") is not None
        assert ("two-views", "warp") not in codes()


def test_a_current_stream_that_warp_has_lost(warp, warp_state):
    own, raw = warp.get_stream("cuda:0"), make_stream(nonblocking=False)
    shown = warp.Stream("cuda:0", cuda_stream=raw)
    try:
        warp.set_stream(shown, "cuda:0")
        assert ("lost-stream", "warp") not in codes()
        warp.Stream("cuda:0", cuda_stream=raw)  # and it dies
        assert ("lost-stream", "warp") in codes()
        warp.get_cuda_device(0).set_stream(shown, sync=False)  # the remedy
        assert ("lost-stream", "warp") not in codes()
    finally:
        warp.set_stream(own, "cuda:0")
        del shown
        destroy_stream(raw)


@pytest.mark.parametrize("device", [0, 1])
@pytest.mark.parametrize("nonblocking", [True, False])
def test_warp_left_on_a_stream_that_is_not_its_own(warp, warp_state, nonblocking, device):
    own = warp.get_stream(f"cuda:{device}")
    stream = sk.new_stream(device, nonblocking=nonblocking)
    with stream:  # put there by a scope
        assert codes() == []
    warp.get_cuda_device(device).set_stream(stream.to("warp"), sync=False)
    try:
        found = codes()
        assert ("left-redirected", "warp") in found
        assert (("blocking-mixture", "warp") in found) is nonblocking
    finally:
        warp.get_cuda_device(device).set_stream(own, sync=False)
    assert codes() == []


def test_a_scope_moves_libraries_on_its_own_device_and_warps_own_streams_are_its_users(
    warp, warp_state
):
    with sk.new_stream(1), sk.new_stream(0):
        assert codes() == []
    with sk.new_stream(1):
        assert codes() == []
    with warp.ScopedStream(warp.Stream("cuda:0"), sync_enter=False):
        assert codes() == []


def test_warp_left_behind_by_a_thread_that_ended_in_a_scope():
    need("warp")
    found = run(f"""
import threading
import streamkit as sk, warp
{CODES}
warp.config.log_level = warp.LOG_WARNING
assert codes() == []
stream = sk.new_stream()
held, end = threading.Event(), threading.Event()

def enter():
    stream.__enter__()
    held.set()
    end.wait()

thread = threading.Thread(target=enter)
thread.start()
held.wait()
print("living", *codes())
end.set()
thread.join()
print("ended", *(code for code, _ in codes()))
""")
    assert found[-3:] == ["living", "ended", "left-redirected"]  # after what Warp says


# -- libraries that stand apart, with toys ----------------------------------------------------


def test_control_libraries_where_they_start_and_in_scopes_are_no_finding(program):
    program(f"""{CODES}
import toya, toyb
assert codes() == []
stream = sk.new_stream(nonblocking=True)
with stream:
    assert codes() == []
    with sk.use(sk.new_stream(nonblocking=True), libraries=["toyb"]):
        assert codes() == []
with sk.new_stream("cpu"):
    assert codes() == []
assert codes() == []
""")


def test_a_library_left_redirected(program):
    program(f"""{CODES}
import toya
stream = sk.new_stream()
toya.set_current_stream(stream.to("toya"))
assert codes() == [("left-redirected", "toya")], codes()
(row,) = [one for one in sk.doctor().libraries if one.name == "toya"]
assert (row.current.handle, row.current.kind) == (stream.handle, "blocking"), row
assert (row.version, row.loaded) == ("1", True), row
toya.set_current_stream(toya.Stream(0))
assert codes() == []
""")


def test_a_library_that_is_not_where_the_scope_puts_it(program):
    program(f"""{CODES}
import toya
with sk.new_stream() as stream:
    toya.set_current_stream(toya.Stream(0))
    assert codes() == [("outside-the-scope", "toya")], codes()
    toya.set_current_stream(stream.to("toya"))
    assert codes() == []
    import toyb
    assert codes() == [("outside-the-scope", "toyb")], codes()
assert codes() == []
""")


CONTEXT = f"""{CODES}
def create_context():
    arguments = (None, 0, 0) if driver.CUDA_VERSION >= 13000 else (0, 0)
    code, made = driver.cuCtxCreate(*arguments)
    assert not code, code
    return made
"""


def test_another_current_context(program):
    program(
        f"""{CONTEXT}
driver.cuInit(0)
assert codes() == []
made = create_context()
assert codes() == [("other-context", None)], codes()
assert sk.doctor().context == int(made)
driver.cuCtxPopCurrent()
assert codes() == []
"""
    )


def test_a_library_on_a_stream_of_another_context(program):
    program(f"""{CONTEXT}
import toya
assert codes() == []
made = create_context()
_, raw = driver.cuStreamCreate(0)
driver.cuCtxPopCurrent()
toya.set_current_stream(toya.Stream(int(raw)))
assert codes() == [("left-redirected", "toya"), ("other-context", "toya")], codes()
(row,) = [one for one in sk.doctor().libraries if one.name == "toya"]
assert (row.current.context, row.current.primary) == (int(made), False), row
""")


# -- captures ---------------------------------------------------------------------------------

CAPTURE = f"""{CODES}
ACTIVE = driver.CUstreamCaptureStatus.CU_STREAM_CAPTURE_STATUS_ACTIVE

def begin(handle, mode):
    (code,) = driver.cuStreamBeginCapture(handle, driver.CUstreamCaptureMode(mode))
    assert not code, code

def end(handle):
    assert driver.cuStreamIsCapturing(handle)[1] == ACTIVE, "the doctor broke the capture"
    code, graph = driver.cuStreamEndCapture(handle)
    assert not code, code
"""


@pytest.mark.parametrize("nonblocking", [True, False])
def test_a_capture_left_open_on_a_stream_of_streamkits_own(program, nonblocking):
    program(
        f"""{CAPTURE}
for mode in range(3):
    stream = sk.new_stream(nonblocking={nonblocking})
    assert codes() == []
    begin(stream.handle, mode)
    assert codes() == [("open-capture", None)], codes()
    assert repr(stream) in sk.doctor().findings[-1].what, sk.doctor().findings
    end(stream.handle)
    assert codes() == []
"""
    )


def test_a_capture_left_open_on_a_wrapped_stream_that_its_owner_keeps(program):
    program(f"""{CAPTURE}
import toya
sk.doctor()
driver.cuCtxSetCurrent(sk.default_stream().context)
_, raw = driver.cuStreamCreate(1)
held = sk.from_handle(int(raw), owner=object())
begin(raw, 1)
assert codes() == [("open-capture", None)], codes()
assert repr(held) in sk.doctor().findings[-1].what
end(raw)
assert codes() == []
""")


@pytest.mark.parametrize("nonblocking", [True, False])
@pytest.mark.parametrize("known", [True, False])
def test_a_capture_left_open_on_a_librarys_current_stream(program, nonblocking, known):
    program(f"""{CAPTURE}
import toya
sk.doctor()
for mode in range(3):
    driver.cuCtxSetCurrent(sk.default_stream().context)
    _, raw = driver.cuStreamCreate({int(nonblocking)})
    stream = toya.Stream(int(raw))
    if {known}:
        sk.wrap(stream)
    begin(raw, mode)
    toya.set_current_stream(stream)
    assert codes() == [("open-capture", None)], codes()
    end(raw)
    toya.set_current_stream(toya.Stream(0))
    assert codes() == []
""")


@pytest.mark.parametrize("device", [0, 1])
def test_a_capture_on_a_blocking_stream_that_nobody_shows(program, device):
    program(f"""{CAPTURE}
import toya
assert codes() == []
with sk.new_stream({device}):
    _, raw = driver.cuStreamCreate(0)
begin(raw, 1)
assert codes() == [("open-capture", None)], codes()
assert "a blocking stream of this process" in sk.doctor().findings[-1].what
end(raw)
assert codes() == []
""")


# -- plugins ----------------------------------------------------------------------------------

DIAGNOSES = """

from streamkit.protocols import Finding
from cuda.bindings import driver

def diagnose():
    assert int(driver.cuCtxGetCurrent()[1])  # the device's primary context
    yield Finding("toy-trouble", "toylib is tired", "Let it sleep.", name)
"""
BREAKS = DIAGNOSES + "    raise ValueError('it is broken')\n"


def test_a_plugin_tells_its_own_findings(program):
    program(
        f"""{CODES}
from streamkit.protocols import Diagnosis
assert codes() == []
import toya
assert codes() == [("toy-trouble", "toya")], codes()
import streamkit_toya, streamkit_toyb
assert isinstance(streamkit_toya, Diagnosis) and not isinstance(streamkit_toyb, Diagnosis)
""",
        toya=DIAGNOSES,
        toyb="",
    )


def test_what_is_broken_in_a_plugin_is_a_finding_and_stops_nothing(program):
    program(
        f"""{CODES}
import toya, toyb, toyc, toyd, toye
assert codes() == [
    ("toy-trouble", "toya"), ("cannot-be-asked", "toya"),
    ("cannot-be-asked", "toyb"),
    ("cannot-be-asked", "toyc"),
    ("no-cuda", "toyd"),
], codes()
texts = "".join(one.what for one in sk.doctor().findings)
assert "ValueError: it is broken" in texts
assert "contract 99" in texts
assert "ZeroDivisionError" in texts
""",
        toya=BREAKS,
        toyb="\napi = 99\n",
        toyc="\ndef current(device):\n    1 / 0\n",
        toyd="""
def current(device):
    from streamkit.errors import NoDeviceError
    raise NoDeviceError("this build of toylib has no CUDA")
""",
    )
