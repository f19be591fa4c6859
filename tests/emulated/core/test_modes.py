"""No device, an old driver, a driver that fails to start, another meaning of handle 0."""

from __future__ import annotations

import pytest

from support.emulated.processes import run
from support.libraries import any_text_is_yes, need

pytestmark = pytest.mark.versions

SWITCH = "CUDA_PYTHON_CUDA_PER_THREAD_DEFAULT_STREAM"

RAISED = """
def raised(call):
    try:
        call()
    except sk.StreamKitError as error:
        return type(error).__name__
    return "nothing"
"""


def test_without_a_device_there_is_the_host():
    program = f"""
import streamkit as sk
{RAISED}
print(sk.is_available(), sk.new_stream().device)
print(raised(lambda: sk.new_stream("cuda:0")), raised(lambda: sk.from_handle(0)))
print(raised(lambda: sk.new_event(device=0)))
"""
    assert run(program, EMULATED_DEVICES="0") == ["False", "cpu", *["NoDeviceError"] * 3]


def test_a_machine_with_one_device_has_a_device_and_to_ask_makes_nothing_on_it():
    program = """
import streamkit as sk
from cuda.bindings import driver
print(sk.is_available(), driver.cuDevicePrimaryCtxGetState(0)[2])
print(sk.new_stream().device, sk.new_event().device, driver.cuDevicePrimaryCtxGetState(0)[2])
"""
    assert run(program, EMULATED_DEVICES="1") == ["True", "0", "cuda:0", "cuda:0", "1"]


@pytest.mark.parametrize("code", [999, 802, 803, 2, 46])
def test_a_driver_that_does_not_start_is_an_error_and_no_host(code):
    program = """
import streamkit as sk
try:
    sk.new_stream()
except sk.errors.DriverError as error:
    print(error.code, "cuInit" in str(error))
print(sk.new_stream().device)  # the next attempt finds it
"""
    assert run(program, EMULATED_FAIL=f"cuInit:1:{code}") == [str(code), "True", "cuda:0"]
    asked = "import streamkit as sk; print(sk.is_available(), sk.is_available())"
    assert run(asked, EMULATED_FAIL=f"cuInit:1:{code}") == ["False", "True"]


@pytest.mark.parametrize(
    ("code", "raised"),
    [*((code, "NoDeviceError") for code in (3, 35, 100, 801, 803, 804)), (2, "CUDARuntimeError")],
)
def test_where_cupy_finds_no_cuda_there_is_no_device_and_its_other_errors_stay(code, raised):
    need("cupy")
    program = """
import contextlib, cupy
cupy.cuda.is_available()  # it tries once, and remembers the error
import streamkit as sk
with contextlib.suppress(Exception):
    sk.new_stream()  # fails only if CUDA 12's runtime has opened a copy of the driver for itself
try:
    sk.current_stream("cupy")
except Exception as error:
    print(type(error).__name__)
"""
    assert run(program, EMULATED_FAIL=f"cuInit:1:{code}") == [raised]


WORK = """
from cuda.bindings import driver
import streamkit as sk

first, second = sk.new_stream(), sk.new_stream(1, nonblocking=True)
second.wait(first)
first.wait(second)
first.sync()
core = first.to("cuda.core")
assert sk.wrap(core) == first == sk.from_handle(first.handle)
assert sk.from_handle(second.handle).device == "cuda:1"
assert sk.default_stream() == sk.from_handle(0) != sk.default_stream(per_thread=True)
with first:
    assert sk.current_stream() is first
(end := second.record(timing=True)).sync()
first.close()
print(first.closed, second.done, end.device)
"""


@pytest.mark.parametrize("version", ["12000", "12040", "12080", "13000"])
def test_drivers_of_cuda_12_and_13_serve(version):
    assert run(WORK, EMULATED_VERSION=version) == ["True", "True", "cuda:1"]


def test_recycled_handles_and_other_orders_serve():
    for seed in ("2", "3", "4"):
        found = run(WORK, EMULATED_SEED=seed, EMULATED_RECYCLE="1")
        assert found == ["True", "True", "cuda:1"]


def test_a_handle_0_that_means_the_per_thread_stream():
    program = """
from cuda.bindings import driver
import streamkit as sk

legacy, mine, bare = sk.default_stream(0), sk.default_stream(0, per_thread=True), sk.from_handle(0)
assert bare == legacy != mine
legacy.record().sync()
print(legacy.id == int(driver.cuStreamGetId(1)[1]))
print(mine.id == int(driver.cuStreamGetId(2)[1]) == int(driver.cuStreamGetId(0)[1]))
"""
    per_thread = run(
        "from cuda.bindings import driver; driver.cuInit(0);"
        "driver.cuCtxSetCurrent(driver.cuDevicePrimaryCtxRetain(0)[1])" + program,
        **{SWITCH: "1"},
    )
    assert per_thread == ["True", "True"]


NULL_STREAMS = {
    "cuda.bindings": "driver.CUstream(0)",
    "cuda.core": "__import__('cuda.core').core.Stream.from_handle(0)",
    "numba": "__import__('numba.cuda').cuda.default_stream()",
}


@pytest.mark.parametrize("library", NULL_STREAMS)
@pytest.mark.parametrize("switch", ["", "0", "1"])
def test_a_null_stream_is_the_queue_on_which_its_library_works(library, switch):
    """The truth is the id that the driver gives through the bindings, which the library uses."""
    need(library.partition(".")[0])
    program = f"""
from cuda.bindings import driver
import streamkit as sk

driver.cuInit(0)
driver.cuCtxSetCurrent(driver.cuDevicePrimaryCtxRetain(0)[1])
null = {NULL_STREAMS[library]}
used = int(driver.cuStreamGetId(driver.CUstream(int(getattr(null, "handle", null))))[1])
print(sk.wrap(null).id == used)
print(sk.wrap(null) == sk.default_stream(per_thread=True), sk.wrap(null) == sk.default_stream())
print(sk.wrap(null).handle)
"""
    found = run(program, **({SWITCH: switch} if switch else {}))
    on = switch == "1" or (switch == "0" and any_text_is_yes())
    assert found == ["True", *(["True", "False", "2"] if on else ["False", "True", "0"])]


@pytest.mark.parametrize("captured", ["blocking", "per-thread"])
@pytest.mark.parametrize("switch", ["0", "1"])
def test_a_null_stream_first_met_beside_a_capture(captured, switch):
    """What a 0 means is asked for once, and must not end a capture by it."""
    program = f"""
from cuda.bindings import driver
import streamkit as sk

legacy = sk.default_stream(0)
driver.cuCtxSetCurrent(legacy.context)
mine = sk.default_stream(0, per_thread=True)
origin = {{"blocking": sk.new_stream(), "per-thread": mine}}[{captured!r}]
driver.cuStreamBeginCapture(origin.handle, driver.CUstreamCaptureMode(1))
null = sk.wrap(driver.CUstream(0), device=0)
code, status = driver.cuStreamIsCapturing(origin.handle)
print(int(code), int(status))
code, graph = driver.cuStreamEndCapture(origin.handle)
print(int(code), null == legacy)
"""
    on = switch == "1" or any_text_is_yes()
    assert run(program, **{SWITCH: switch}) == ["0", "1", "0", str(not on)]


def test_what_a_null_stream_is_takes_no_other_device():
    program = """
from cuda.bindings import driver
import streamkit as sk

null = sk.wrap(driver.CUstream(0), device=1)
print(null.device, int(driver.cuDevicePrimaryCtxGetState(0)[2]))
"""
    assert run(program) == ["cuda:1", "0"]
