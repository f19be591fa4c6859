# ruff: noqa: PT012, SIM117 - what a capture does is in its block
"""What a capture refuses: it says so, and every library and the capture after it are as before."""

from __future__ import annotations

import functools
import gc
import warnings

import pytest

import streamkit as sk
from support.gpu.library_subjects import WITH_CURRENT
from support.gpu.raw import busy, check, driver, on_device
from support.gpu.workload import COUNT
from support.queues import within

pytestmark = pytest.mark.usefixtures("libraries_as_before")

LEGACY = 1


def capturing(handle):
    return int(check(driver.cuStreamIsCapturing(handle)))


def refused(library):
    """What is said of a library of CuPy's that is not captured, with what to do instead."""
    return f"{library} API during stream capture.* Do that step with PyTorch's operators"


def left_elsewhere(workload, g):
    workload.x * 2
    workload.torch.cuda.set_stream(workload.torch.cuda.Stream())


def unjoined(workload, g):
    side = sk.new_stream(nonblocking=True)
    side.wait(g.stream)
    with side:
        workload.torch.ones(4, device="cuda")


@functools.cache
def sparse_matrix(cupy):
    with warnings.catch_warnings():  # of optional packages
        warnings.simplefilter("ignore")
        from cupyx.scipy import sparse

    indices = cupy.arange(4, dtype="i4"), cupy.arange(5, dtype="i4")
    return sparse.csr_matrix((cupy.ones(4, "f4"), *indices), shape=(4, 4))


# what CuPy refuses once the handles of its libraries exist, and how it is called
REFUSED = {
    "cuBLAS": lambda cupy: cupy.eye(4, dtype="f4") @ cupy.eye(4, dtype="f4"),
    "cuRAND": lambda cupy: cupy.random.rand(4),
    "cuSOLVER": lambda cupy: cupy.linalg.solve(cupy.eye(4, dtype="f4"), cupy.ones(4, "f4")),
    "cuSOLVER of cholesky": lambda cupy: cupy.linalg.cholesky(cupy.eye(4, dtype="f4")),
    "cuSPARSE": lambda cupy: sparse_matrix(cupy) @ cupy.ones(4, "f4"),
}
FAILURES = {
    "torch sync": (lambda w, g: w.torch.cuda.synchronize(), "AcceleratorError"),
    "torch item": (lambda w, g: w.x[0, 0].item(), "AcceleratorError"),
    **{
        name: (lambda w, g, call=call: call(w.cupy), refused(name.partition(" ")[0]))
        for name, call in REFUSED.items()
    },
    "cupy get": (lambda w, g: w.cupy.ones(4).get(), "D2H transfers are disallowed"),
    "warp sync": (lambda w, g: w.warp.synchronize(), "broke|inside the capture"),
    "query": (lambda w, g: driver.cuStreamQuery(g.stream.handle), "broke"),
    "free": (lambda w, g: w.cupy.cuda.Memory(1 << 20), "broke|inside the capture"),
    "unjoined": (unjoined, "not joined"),
    "left elsewhere": (left_elsewhere, "has left torch on another stream"),
    "its own": (lambda w, g: 1 / 0, None),
}


@pytest.mark.parametrize("name", FAILURES)
def test_a_failure_inside_leaves_every_library_usable(workload, subjects, cells, name):
    fail, words = FAILURES[name]
    if name in REFUSED:
        fail(workload, None)  # it works outside
    with (
        pytest.raises(sk.errors.CaptureError if words else ZeroDivisionError, match=words),
        sk.capture() as g,
    ):
        held = workload.torch.rand(8, device="cuda"), workload.warp.zeros(8, device="cuda:0")
        fail(workload, g)
    del held
    assert not capturing(g.stream.handle)
    assert g.closed
    for subject in WITH_CURRENT:
        src, dst = cells(1), cells(0)
        subjects(subject).add_one_current(src.pointer, dst.pointer)
        check(driver.cuCtxSynchronize())
        assert dst.read() == 2
    if name in REFUSED:
        fail(workload, None)
    all_of_it_works(workload)
    torch = workload.torch
    with sk.capture() as again:
        made = torch.rand(8, device="cuda")
    seen = []
    for _ in range(2):
        again.launch()
        seen.append(made.clone())
    assert not torch.equal(*seen)


def all_of_it_works(workload):
    """Memory, random numbers and what has a workspace of its own, of each library."""
    torch, cupy, warp = workload.torch, workload.cupy, workload.warp
    assert not torch.equal(torch.rand(8, device="cuda"), torch.rand(8, device="cuda"))
    double = 2 * torch.eye(64, device="cuda")
    assert torch.equal(double @ double, 2 * double)
    one, other = cupy.random.rand(COUNT), cupy.random.rand(COUNT)
    assert not bool((one == other).all())
    assert float((cupy.ones(COUNT) + 1).sum()) == 2 * COUNT
    assert float((cupy.ones((8, 8)) @ cupy.ones((8, 8))).sum()) == 8**3
    values = warp.full(COUNT, 1.0, dtype=warp.float32, device="cuda:0")
    sums = warp.empty(COUNT, dtype=warp.float32, device="cuda:0")
    warp.utils.array_scan(values, sums)
    assert sums.numpy()[-1] == COUNT


def test_legacy_work_beside_a_blocking_capture(workload):
    torch = workload.torch
    default, x = torch.cuda.default_stream(), workload.x
    with pytest.raises(sk.errors.CaptureError, match="blocking one"):
        with sk.capture(sk.new_stream()):
            x * 2
            with torch.cuda.stream(default):
                x * 3
    with sk.capture() as g:
        y = x * 2
        with torch.cuda.stream(default):
            z = x * 3
    g.launch()
    assert torch.equal(y, x * 2)
    assert torch.equal(z, x * 3)


@pytest.mark.parametrize("nonblocking", [True, False])
def test_legacy_work_of_another_thread_beside_a_capture(
    workload, cells, primary_context, nonblocking
):
    """A blocking stream's capture it breaks, in whatever thread; a nonblocking one's never."""
    cell, codes = cells(0), []

    def fill():
        check(driver.cuCtxSetCurrent(primary_context))
        codes.extend(driver.cuMemsetD32Async(cell.pointer, 0x40000000, 1, LEGACY))

    def block():
        made = workload.x * 2
        within(fill)
        return made

    stream = sk.new_stream(nonblocking=nonblocking)
    if nonblocking:
        with sk.capture(stream) as g:
            made = block()
        g.launch()
        assert workload.torch.equal(made, workload.x * 2)
        assert cell.read() == 2
    else:
        with pytest.raises(sk.errors.CaptureError, match=r"blocking one.*of any thread"):
            with sk.capture(stream):
                block()
        assert not capturing(stream.handle)
        assert cell.read() == 0
    expected = 0 if nonblocking else driver.CUresult.CUDA_ERROR_STREAM_CAPTURE_IMPLICIT
    assert codes == [expected]


@pytest.mark.parametrize("is_known", [False, True])
def test_a_section_that_ran_elsewhere_is_found(workload, gate, is_known):
    """Also on a stream of torch's that was known before by its handle alone."""
    stream = workload.torch.cuda.Stream()
    known = [sk.from_handle(stream.cuda_stream)] if is_known else []
    assert all(one.id for one in known)
    elsewhere = sk.wrap(stream)
    with sk.capture() as g:
        workload.x * 2
        gate.hold(elsewhere.handle)
        with pytest.raises(sk.errors.CaptureError, match=f"pending on .*{elsewhere.handle:#x}"):
            with g.section("lost"):
                check(driver.cuMemsetD32Async(workload.x.data_ptr(), 0, 1, elsewhere.handle))
    assert busy(elsewhere.handle)
    gate.open()
    elsewhere.sync()


def test_a_stream_of_torchs_pool_that_was_not_joined_is_named(workload):
    """No object of it lives when the capture ends, but torch destroys no stream of its pool."""
    torch = workload.torch

    def fork(g):
        side = torch.cuda.Stream()
        sk.wrap(side).wait(g.stream)
        with torch.cuda.stream(side):
            workload.x.add_(1)
        return side.cuda_stream

    with pytest.raises(sk.errors.CaptureError, match="was not joined again") as refused:
        with sk.capture() as g:
            workload.x.mul_(2)
            handle = fork(g)
            gc.collect()
    assert f"{handle:#x}" in str(refused.value)
    assert g.closed
    assert not capturing(handle)
    all_of_it_works(workload)


def test_one_capture_of_torch_at_a_time(workload):
    with sk.capture():
        workload.x * 2
        with pytest.raises(sk.errors.CaptureError, match="one at a time"):
            within(lambda: sk.capture().__enter__())


@pytest.mark.parametrize("mode", ["global", "thread_local", "relaxed"])
@pytest.mark.parametrize("where", ["here", "elsewhere"])
def test_the_mode_says_whose_unsafe_calls_break_the_capture(workload, mode, where):
    """torch is given the mode, and Warp is told it."""
    made = []

    def allocate():
        with on_device(0):
            code, pointer = driver.cuMemAlloc(1 << 20)
        made.extend([pointer] if not code else [])

    def work():
        with sk.capture(mode=mode):
            workload.run()
            allocate() if where == "here" else within(allocate)

    breaks = mode == "global" or (mode == "thread_local" and where == "here")
    if breaks:
        with pytest.raises(sk.errors.CaptureError):
            work()
    else:
        work()
    assert bool(made) is not breaks
    for pointer in made:
        check(driver.cuMemFree(pointer))
