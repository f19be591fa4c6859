"""The doctor on a GPU: current streams by the driver's word, and faults while there."""

from __future__ import annotations

import json

import pytest

import streamkit as sk
from support.gpu.raw import check, current_context, driver, stream_id
from support.libraries import need
from support.programs import run_program

INSTALLED = {"torch-cpu", "cuda-majors", "old-library", "launch-blocking"}  # of this environment
ACTIVE = driver.CUstreamCaptureStatus.CU_STREAM_CAPTURE_STATUS_ACTIVE


def codes():
    findings = sk.doctor().findings
    return [(one.code, one.library) for one in findings if one.code not in INSTALLED]


@pytest.fixture
def libraries(primary_context):
    """torch, CuPy and Warp, where they start and with nothing wrong."""
    torch, cupy, warp = need("torch", "cupy", "warp")
    warp.config.log_level = warp.LOG_WARNING
    warp.init()
    torch.cuda.init()
    before = codes()
    assert before == []
    yield torch, cupy, warp
    torch.cuda.set_stream(torch.cuda.default_stream(0))
    cupy.cuda.Stream.null.use()
    assert codes() == before


def test_each_library_stands_where_the_driver_says(libraries):
    torch, _, warp = libraries
    report = sk.doctor()
    assert len(report.driver.devices) == check(driver.cuDeviceGetCount())
    assert report.driver.devices[0] == torch.cuda.get_device_name(0)
    rows = {row.name: row.current for row in report.libraries if row.current is not None}
    handles = {"torch": 1, "cupy": 1, "warp": int(warp.get_stream("cuda:0").cuda_stream)}
    assert {name: (rows[name].handle, rows[name].id) for name in handles} == {
        name: (handle, stream_id(handle)) for name, handle in handles.items()
    }
    assert {row.context for row in rows.values()} == {current_context()}
    assert all(row.primary for row in rows.values())


def test_libraries_left_redirected_and_apart(libraries):
    torch, cupy, _ = libraries
    torch.cuda.set_stream(torch.cuda.Stream())
    assert codes() == [("left-redirected", "torch")]
    stream = cupy.cuda.Stream()
    stream.use()
    assert ("left-redirected", "cupy") in codes()


@pytest.mark.parametrize("nonblocking", [True, False])
def test_control_inside_a_scope_nothing_is_found(libraries, nonblocking):
    with sk.new_stream(nonblocking=nonblocking):
        assert codes() == []


def test_two_warp_views_of_one_handle_and_what_the_end_of_one_leaves(libraries):
    _, _, warp = libraries
    own, device = warp.get_stream("cuda:0"), warp.get_cuda_device(0)
    raw = check(driver.cuStreamCreate(0))
    first = warp.Stream("cuda:0", cuda_stream=int(raw))
    second = warp.Stream("cuda:0", cuda_stream=int(raw))
    try:
        device.set_stream(first, sync=False)
        assert ("two-views", "warp") in codes()
        assert ("lost-stream", "warp") not in codes()
        del second
        assert ("two-views", "warp") not in codes()
        assert ("lost-stream", "warp") in codes()
    finally:
        device.set_stream(own, sync=False)
        del first
        check(driver.cuStreamDestroy(raw))


@pytest.mark.parametrize("mode", ["global", "thread_local", "relaxed"])
def test_an_open_capture_is_found_and_not_broken(libraries, mode):
    torch, _, _ = libraries
    x, stream = torch.zeros(8, device="cuda"), torch.cuda.Stream()
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        graph.capture_begin(capture_error_mode=mode)
        try:
            x.add_(1)
            found = codes()
            status = check(driver.cuStreamIsCapturing(stream.cuda_stream))
            x.add_(1)
        finally:
            graph.capture_end()
    assert ("open-capture", None) in found
    assert status == ACTIVE
    graph.replay()
    torch.cuda.synchronize()
    assert x.tolist() == [2.0] * 8
    assert codes() == []


def test_the_command_imports_all_and_finds_nothing_wrong():
    need("torch", "cupy", "warp")
    done = run_program("""
        import sys
        from streamkit._cli.cli import main  # the command, with this streamkit
        sys.argv = ["streamkit", "doctor", "--load", "--json"]
        main()
    """)
    data = json.loads(done.stdout)
    # a lane also installs the plugin of a contract that no StreamKit speaks: rightly found
    ours = [one for one in data["findings"] if one["library"] != "oldtoylib"]
    assert [one for one in ours if one["code"] not in INSTALLED] == []
    assert done.returncode == (0 if data["ok"] else 1)
    standing = {row["name"]: row["current"] for row in data["libraries"] if row["current"]}
    assert {"torch", "cupy", "warp"} <= set(standing)


@pytest.mark.parametrize(
    ("variable", "value", "code"),
    [
        ("CUDA_VISIBLE_DEVICES", "", "no-device"),
        ("CUPY_CUDA_PER_THREAD_DEFAULT_STREAM", "1", "per-thread-switches"),
    ],
)
def test_a_variable_that_is_in_the_way(variable, value, code):
    need("cupy")
    done = run_program(f"""
        import os
        os.environ[{variable!r}] = {value!r}
        import cupy
        import streamkit as sk
        report = sk.doctor()
        print(*(one.code for one in report.findings))
        (cupy,) = [row for row in report.libraries if row.name == "cupy"]
        print(cupy.current and cupy.current.kind)
    """)
    found, kind = done.stdout.splitlines()
    assert code in found.split()
    assert kind == ("None" if code == "no-device" else "per-thread default")
