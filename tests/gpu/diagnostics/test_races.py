"""``races`` on hardware: each missing wait is found, whatever the libraries, and corrupts."""

from __future__ import annotations

import asyncio
import ctypes
import itertools
import subprocess
import sys
from types import SimpleNamespace

import pytest

import streamkit as sk
from streamkit.diagnostics.recording.recorder import subscription  # nothing is to be left of it
from support.gpu.peer import until
from support.gpu.raw import check, driver, on_device, sync
from support.libraries import cuda_devices, need
from support.programs import environment
from support.queues import together

COUNT = 1 << 12


@pytest.fixture(scope="module")
def libraries():
    """What each library does with the same two arrays: y = x + 1, and x = 5."""
    torch, cupy, wp = need("torch", "cupy", "warp")
    wp.config.log_level = wp.LOG_WARNING
    wp.init()
    from support.gpu.library_subjects import _warp_kernel

    kernel = _warp_kernel()
    x, y = (torch.zeros(COUNT, device="cuda") for _ in "xy")
    cx, cy = map(cupy.from_dlpack, (x, y))
    wx, wy = map(wp.from_torch, (x, y))

    def fill():
        check(driver.cuMemsetD32Async(x.data_ptr(), 0x40A00000, COUNT, sk.current_stream().handle))

    def copy():
        check(
            driver.cuMemcpyDtoDAsync(
                y.data_ptr(), x.data_ptr(), 4 * COUNT, sk.current_stream().handle
            )
        )

    found = SimpleNamespace(
        x=x,
        y=y,
        torch=torch,
        cupy=cupy,
        writes={
            "torch": lambda: x.fill_(5),
            "cupy": lambda: cx.fill(5),
            "driver": fill,
        },
        reads={
            "torch": lambda: torch.add(x, 0, out=y),
            "cupy": lambda: cupy.add(cx, cupy.float32(0), out=cy),
            "warp": lambda: wp.launch(kernel, dim=COUNT, inputs=[wx, wy]),
            "driver": copy,
        },
    )
    for use in (*found.writes.values(), *found.reads.values()):
        with sk.use(sk.default_stream()):
            use()
    check(driver.cuCtxSynchronize())
    return found


PAIRS = list(itertools.product(("torch", "cupy", "driver"), ("torch", "cupy", "warp", "driver")))


def run(libraries, writer, reader, *, wait):
    """One library writes x on a stream, another one reads it on a second; return both lines."""
    first, second = sk.new_stream(name="first"), sk.new_stream(name="second")
    with sk.use(first):
        libraries.writes[writer]()
    if wait:
        second.wait(first)
    with sk.use(second):
        libraries.reads[reader]()
    return first, second


@pytest.mark.parametrize(("writer", "reader"), PAIRS)
def test_a_missing_wait_is_found_between_any_two_libraries(libraries, writer, reader):
    with sk.races(arrays={"x": libraries.x, "y": libraries.y}) as report:
        run(libraries, writer, reader, wait=False)
    on_x = [race for race in report.races if race.array.address == libraries.x.data_ptr()]
    assert on_x, report
    assert {(one.first.queue.name, one.second.queue.name) for one in on_x} == {("first", "second")}
    if reader != "warp":  # what its kernels do with an array is not known
        assert any(race.certain for race in on_x), report
    with sk.races() as report:
        run(libraries, writer, reader, wait=True)
    assert report.races == (), report


@pytest.mark.parametrize(("writer", "reader"), [pair for pair in PAIRS if pair[1] != "warp"])
def test_what_is_certain_corrupts_and_its_mending_does_not(libraries, gate, writer, reader):
    def result(*, wait):
        libraries.x.zero_()
        libraries.y.fill_(9)
        check(driver.cuCtxSynchronize())
        first, second = sk.new_stream(nonblocking=True), sk.new_stream(nonblocking=True)
        value = ctypes.c_float()
        if not wait:
            gate.hold(first.handle)
        with sk.use(first, libraries=["torch", "cupy"]):
            libraries.writes[writer]()
        if wait:
            second.wait(first)
        with sk.use(second, libraries=["torch", "cupy"]):
            libraries.reads[reader]()
        address, size = libraries.y.data_ptr(), ctypes.sizeof(value)
        check(driver.cuMemcpyDtoHAsync(ctypes.addressof(value), address, size, second.handle))
        sync(second.handle)
        gate.open()
        check(driver.cuCtxSynchronize())
        return value.value

    assert result(wait=False) == 0
    assert result(wait=True) == 5


# -- what orders, and what does not -----------------------------------------------------------


def verdicts(libraries, between):
    """Write x on a stream, do something, and write x on another one."""
    torch, x = libraries.torch, libraries.x
    first, second = sk.new_stream(), sk.new_stream()
    with sk.races() as report:
        with sk.use(first):
            x.fill_(1)
        between(first, second)
        with sk.use(second):
            torch.add(x, 1, out=x)
    return [race.certain for race in report.races]


@pytest.mark.parametrize(
    "between",
    [
        lambda first, _: first.sync(),
        lambda first, _: first.record().sync(),
        lambda first, _: first.to("torch").synchronize(),
        lambda first, _: first.to("cupy").synchronize(),
        lambda *_: check(driver.cuCtxSynchronize()),
        lambda first, second: second.to("torch").wait_stream(first.to("torch")),
        lambda first, second: second.to("cupy").wait_event(first.to("cupy").record()),
        lambda first, second: second.wait(first.record()),
    ],
)
def test_what_orders_is_known(libraries, between):
    assert verdicts(libraries, between) == []


@pytest.mark.parametrize(
    "between",
    [
        lambda *_: None,
        lambda first, second: first.wait(second),
        lambda _, second: second.sync(),
        lambda _, second: second.wait(second.record()),
    ],
)
def test_what_does_not_order_is_known(libraries, between):
    assert verdicts(libraries, between) == [True]


def test_slices_that_share_nothing_are_not_accused(libraries):
    cupy, s, t = libraries.cupy, sk.new_stream(), sk.new_stream()
    array = cupy.zeros(100, "f4")
    with sk.races() as report:
        with sk.use(s):
            cupy.add(array[:50], cupy.float32(1), out=array[:50])
        with sk.use(t):
            cupy.add(array[50:], cupy.float32(1), out=array[50:])
    assert report.certain == (), report
    with sk.races() as report:
        with sk.use(s):
            cupy.add(array[:51], cupy.float32(1), out=array[:51])
        with sk.use(t):
            cupy.add(array[50:], cupy.float32(1), out=array[50:])
    assert len(report.certain) == 1, report


@pytest.mark.parametrize("is_kept", [False, True])
def test_memory_that_a_pool_gives_again_too_early_is_a_race(libraries, is_kept):
    torch = libraries.torch
    work = sk.new_stream()
    side = work.to("torch")
    torch.empty(1 << 20, device="cuda").fill_(1)  # a block that the pool can give
    check(driver.cuCtxSynchronize())
    with sk.races() as report, sk.use(sk.new_stream(nonblocking=True), libraries=["torch"]) as main:
        first = torch.empty(1 << 20, device="cuda")
        first.fill_(1)
        address = first.data_ptr()
        work.wait(main)
        with torch.cuda.stream(side):
            first.add_(1)
        if is_kept:
            first.record_stream(side)
        del first
        second = torch.empty(1 << 20, device="cuda")
        second.fill_(3)
        was_given_again = second.data_ptr() == address
    assert was_given_again or is_kept
    assert bool(report.certain) is not is_kept, report


def test_what_a_capture_holds_does_not_run(libraries):
    x = libraries.x
    s, t = sk.new_stream(), sk.new_stream()
    with sk.races() as report:
        with sk.use(s):
            x.fill_(1)
        with sk.capture() as graph:
            x.add_(1)
    assert report.races == (), report
    with sk.races() as report:
        graph.launch(s)
        graph.launch(t)
    assert report.coverage.missed == ("a CUDA graph",)


def test_threads_are_told_apart_and_none_is_stopped(libraries):
    x = libraries.x

    def work(stream):
        with sk.use(stream, libraries=["torch"]):
            for _ in range(50):
                x.fill_(1)

    streams = [sk.new_stream(name=f"s{number}") for number in range(4)]
    with sk.races() as report:
        together(4, lambda number: work(streams[number]))
    queues = {frozenset((one.first.queue.name, one.second.queue.name)) for one in report.certain}
    assert len(queues) == 1  # all at one pair of lines
    assert report.coverage.total == 200


# -- what is told -------------------------------------------------------------------------------


def test_a_race_tells_lines_and_names(libraries):
    torch, weights = libraries.torch, libraries.x
    loader, work = torch.cuda.Stream(), sk.new_stream(name="work")
    with sk.races() as report:
        with torch.cuda.stream(loader):
            weights.fill_(1)
        with sk.use(work):
            torch.add(weights, 1, out=weights)
    (race,) = report.certain
    assert {race.first.file, race.second.file} == {__file__}
    assert race.second.line == race.first.line + 2
    assert race.first.library == race.second.library == "torch"
    assert race.array.name == "weights"
    assert race.fix.endswith(f" first, add work.wait(loader) before line {race.second.line}")
    with pytest.raises(sk.errors.RaceError, match="weights"):
        report.assert_none()


# -- what is left ---------------------------------------------------------------------------------


def calls_after_the_block(libraries):
    before = subscription._number("count").value
    libraries.x.fill_(1)
    return subscription._number("count").value - before


def test_nothing_is_left_behind(libraries):
    with sk.races() as outer:
        with sk.races() as inner:
            libraries.x.fill_(1)
        libraries.x.fill_(1)
    assert (inner.coverage.total, outer.coverage.total) == (1, 2)
    assert calls_after_the_block(libraries) == 0
    with sk.races() as again:  # CUPTI serves one at a time: the first one is gone
        libraries.x.fill_(1)
    assert again.coverage.total == 1


def test_an_error_leaves_nothing_behind_and_the_report(libraries):
    def fail():
        with sk.races() as report:
            reports.append(report)
            libraries.x.fill_(1)
            raise ValueError

    reports = []
    with pytest.raises(ValueError, match=r"^$"):
        fail()
    assert reports[0].coverage.total == 1
    assert calls_after_the_block(libraries) == 0


def test_an_audit_runs_beside_it(libraries):
    with sk.audit() as audit, sk.races() as races:
        run(libraries, "torch", "torch", wait=False)
    assert len(audit.work) == races.coverage.total == 2
    assert len(races.races) >= 1


# -- memory, devices, graphs and other processes ---------------------------------------------------


def fill(stream, address, count=16):
    check(driver.cuMemsetD8Async(address, 0, count, stream.handle))


@pytest.mark.parametrize("wait", [False, True])
@pytest.mark.parametrize("in_order", [False, True])
def test_memory_that_is_freed_inside_races_as_any_other(in_order, wait):
    a, b = sk.new_stream(name="a"), sk.new_stream(name="b")
    with sk.races() as report:
        make = driver.cuMemAllocAsync(64, a.handle) if in_order else driver.cuMemAlloc(64)
        memory = check(make)
        a.sync()
        fill(a, memory)
        if wait:
            b.wait(a)
        fill(b, memory)
        a.sync(), b.sync()
        check(driver.cuMemFreeAsync(memory, a.handle) if in_order else driver.cuMemFree(memory))
        a.sync()
    assert [race.certain for race in report.races] == ([] if wait else [True]), report
    assert str(report.coverage) == "2 of 2 operations understood."


def test_memory_that_the_pool_of_cuda_gives_again_is_other_memory():
    a, b = sk.new_stream(), sk.new_stream(nonblocking=True)
    with sk.races() as report:
        first = check(driver.cuMemAllocAsync(1 << 20, a.handle))
        fill(a, first)
        check(driver.cuMemFreeAsync(first, a.handle))
        a.sync()
        second = check(driver.cuMemAllocAsync(1 << 20, b.handle))
        fill(b, second)
        check(driver.cuMemFreeAsync(second, b.handle))
    assert int(first) == int(second)  # else this shows nothing
    assert report.races == (), report


@pytest.mark.skipif(cuda_devices() < 2, reason="one CUDA device")
@pytest.mark.parametrize("waits", [False, True])
def test_a_queue_is_one_of_its_own_device_whichever_is_current(waits):
    here, there = sk.new_stream(0), sk.new_stream(1)
    free, other = (sk.new_stream(1, nonblocking=True) for _ in "fo")
    with on_device(1):
        memory = check(driver.cuMemAlloc(64))

    def races_with(first, second, *, synchronised):
        with sk.races() as report:
            if waits:  # while device 0 is current
                there.wait(here), free.wait(here)
            with on_device(1):
                fill(first, memory)
            if synchronised is not None:
                with on_device(synchronised):
                    check(driver.cuCtxSynchronize())
            with on_device(1):
                fill(second, memory)
        return [race.certain for race in report.races]

    legacy = SimpleNamespace(handle=1)
    assert races_with(there, legacy, synchronised=None) == []
    assert races_with(legacy, there, synchronised=None) == []
    assert races_with(free, legacy, synchronised=None) == [True]
    assert races_with(free, other, synchronised=1) == []
    assert races_with(free, other, synchronised=0) == [True]
    with on_device(1):
        check(driver.cuCtxSynchronize())
        check(driver.cuMemFree(memory))


def graph_of(work):
    """Return what a stream of its own captures."""
    with sk.capture(sk.new_stream(nonblocking=True)) as graph:
        work(graph.stream)
    return graph


@pytest.mark.parametrize("when", ["before the block", "inside"])
def test_an_event_that_a_graph_records_or_awaits_orders_perhaps(cells, when):
    a, b = (sk.new_stream(name=name, nonblocking=True) for name in "ab")
    memory, event = cells(0).pointer, sk.new_event()
    graphs = []

    def capture():
        graphs.append(graph_of(lambda s: s.record(event, external=True)))
        graphs.append(graph_of(lambda s: s.wait(event, external=True)))

    def make_here(place):
        if when == place:
            capture()

    make_here("before the block")
    with sk.races() as report:
        make_here("inside")
        fill(a, memory, 4)
        graphs[0].launch(a)
        b.wait(event)
        fill(b, memory, 4)
    assert [race.certain for race in report.races] == [False], report
    with sk.races() as report:
        fill(b, memory, 4)
        b.record(event)
        graphs[1].launch(a)
        fill(a, memory, 4)
    assert [race.certain for race in report.races] == [False], report
    with sk.races() as report:  # the control: nothing between them
        fill(a, memory, 4)
        fill(b, memory, 4)
    assert [race.certain for race in report.races] == [True], report


PEER = """
import sys
import streamkit as sk
event = sk.new_event(interprocess=True)
sk.new_stream().record(event)
sys.stdout.buffer.write(bytes(event.export()).hex().encode() + b"\\n")
sys.stdout.flush()
sys.stdin.readline()
"""


def test_an_event_of_another_process_hides_no_later_race(cells):
    a, b = (sk.new_stream(name=name, nonblocking=True) for name in "ab")
    memory = cells(0).pointer
    command = [sys.executable, "-c", PEER]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment(), text=True
    ) as peer:
        try:
            token = sk.processes.token_from_bytes(bytes.fromhex(peer.stdout.readline()))
            with sk.races() as report:
                a.wait(sk.processes.open_event(token))
                fill(a, memory, 4)
                fill(b, memory, 4)
            assert [race.certain for race in report.races] == [True], report
        finally:
            peer.stdin.write("end\n")
            peer.stdin.close()


# -- copies to the host ----------------------------------------------------------------------------


WAITS = {
    "sync": lambda s: s.sync(),
    "done": lambda s: until(lambda: s.done),
    "event": lambda s: s.record().sync(),
    "then": lambda s: s.then(lambda: None).result(10),
    "device": lambda _: check(driver.cuCtxSynchronize()),
    "torch": lambda s: s.to("torch").synchronize(),
    "await": lambda s: asyncio.run(awaited(s)),
}


async def awaited(stream):
    await stream


@pytest.mark.parametrize("wait", WAITS)
def test_a_copy_to_the_host_that_it_has_not_waited_for_is_a_finding(libraries, wait):
    torch, x = libraries.torch, libraries.x
    s, pinned = sk.new_stream(name="work"), torch.empty(COUNT, pin_memory=True)

    def found(*waits):
        with sk.races() as report:
            with sk.use(s, libraries=["torch"]):
                pinned.copy_(x, non_blocking=True)
            for one in waits:
                one(s)
        s.sync()
        return report

    report = found()
    (race,) = report.races
    assert (race.certain, race.first.queue.name, race.second.name) == (False, "work", "the host")
    assert race.array.name == "pinned", report
    report.assert_none()
    assert found(WAITS[wait]).races == (), report


@pytest.mark.parametrize("wait", [*WAITS, "nothing"])
def test_pinned_memory_is_filled_again_after_a_wait_for_its_upload(libraries, wait):
    """As of the staging buffers of inference servers: vllm issues 25279, 31841 and 36942."""
    torch = libraries.torch
    s, staging = sk.new_stream(name="work"), torch.zeros(COUNT, pin_memory=True)
    batches = [torch.zeros(COUNT, device="cuda") for _ in range(3)]
    torch.cuda.synchronize()
    with sk.races() as report, sk.use(s, libraries=["torch"]):
        torch.cuda._sleep(200_000_000)  # holds the copies
        for number, batch in enumerate(batches, 1):
            staging.fill_(number)
            batch.copy_(staging, non_blocking=True)
            WAITS.get(wait, lambda _: None)(s)
        staging.fill_(4)
        s.sync()
    is_right = wait != "nothing"
    assert [int(batch[0]) for batch in batches] == ([1, 2, 3] if is_right else [4, 4, 4])
    told = [
        (race.certain, race.array.name, race.first.queue.name, race.second.mode, race.count)
        for race in report.races
    ]
    assert told == ([] if is_right else [(True, "staging", "work", "write", 3)]), report


def test_a_copy_that_the_host_reads_at_once_is_named(libraries):
    """As of pytorch/pytorch issue 86264: torch makes the memory of this copy itself, pinned."""
    x = libraries.x
    x.fill_(7)
    with sk.races() as report:
        host = x.to("cpu", non_blocking=True)
        host.clone()
    assert len(report.races) == host.is_pinned(), report
    with sk.races() as report:
        x.to("cpu")
    assert report.races == (), report
