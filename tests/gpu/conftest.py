"""A CUDA context, a gate, cells of device memory, and the subjects, made once."""

from __future__ import annotations

import gc

import pytest


def pytest_configure(config):
    """Register a marker that a page's tests have, where StreamKit's plugin is not installed."""
    config.addinivalue_line("markers", "streamkit_gpu: as in the plugin")


@pytest.fixture(scope="session", autouse=True)
def primary_context():
    from support.gpu.raw import check, driver

    check(driver.cuInit(0))
    context = check(driver.cuDevicePrimaryCtxRetain(0))
    check(driver.cuCtxSetCurrent(context))
    gc.collect()
    gc.freeze()  # the imported libraries: each test ends with a collection, which leaves them out
    return int(context)


@pytest.fixture(autouse=True)
def in_primary_context(primary_context):
    from support.gpu.raw import check, driver

    check(driver.cuCtxSetCurrent(primary_context))
    yield
    gc.collect()
    check(driver.cuCtxSetCurrent(primary_context))
    check(driver.cuCtxSynchronize())  # a capture that goes on fails its own test, not a later one


@pytest.fixture
def gate():
    from support.gpu.raw import Gate

    gate = Gate()
    yield gate
    gate.free()


@pytest.fixture
def cells(gate):
    """Make device floats that live as long as the test; before a queue is held, for this waits."""
    from support.gpu.raw import Cell, check, driver

    made = []

    def make(value: float) -> Cell:
        made.append(Cell(value))
        return made[-1]

    yield make
    gate.open()
    check(driver.cuCtxSynchronize())
    for cell in made:
        cell.free()


@pytest.fixture
def device():
    """The device on which a test works; a file that tries each has its own ``device``."""
    return 0


@pytest.fixture(params=[0, 1])
def each_device(request, three):
    """The device on which the three work, their kernels loaded; device 0 stays the current one."""
    from support.gpu.raw import Cell, check, driver, on_device
    from support.libraries import cuda_devices

    if request.param >= cuda_devices():
        pytest.skip("one CUDA device")
    three["warp"].device = f"cuda:{request.param}"
    with on_device(request.param):
        src, dst = Cell(1), Cell(0)
        for subject in three.values():
            subject.add_one(subject.new_stream(), src.pointer, dst.pointer)
        check(driver.cuCtxSynchronize())
        src.free(), dst.free()
    yield request.param
    three["warp"].device = "cuda:0"


@pytest.fixture
def peek(device, gate):
    """Read cells of the device while queues are held."""
    from support.gpu.raw import Peek

    peek = Peek(device)
    yield peek
    gate.open()
    peek.free()


@pytest.fixture
def three(subjects):
    """The subjects whose libraries have a current stream."""
    from support.gpu.library_subjects import WITH_CURRENT

    return {name: subjects(name) for name in WITH_CURRENT}


@pytest.fixture(scope="session")
def subjects(primary_context):
    """Give each library's subject, warmed up: compiling inside a test could wait for the device."""
    from support.gpu.library_subjects import SUBJECTS
    from support.gpu.raw import Cell, check, driver

    made = {}

    def get(name: str):
        if name not in made:
            subject = SUBJECTS[name]()
            check(driver.cuCtxSetCurrent(primary_context))
            src, dst = Cell(1), Cell(0)
            subject.add_one(subject.new_stream(), src.pointer, dst.pointer)
            check(driver.cuCtxSynchronize())
            assert dst.read() == 2
            made[name] = subject
        return made[name]

    return get


@pytest.fixture(scope="session")
def workload(primary_context):
    from support.gpu.workload import Workload

    return Workload()


@pytest.fixture
def libraries_as_before(subjects):
    """Have every library with a current stream, which is afterwards as before."""
    import streamkit as sk
    from support.gpu.library_subjects import WITH_CURRENT

    for name in WITH_CURRENT:
        subjects(name)
    before = {name: stream.handle for name, stream in sk.current_streams().items()}
    assert gc.isenabled()
    yield
    assert {name: stream.handle for name, stream in sk.current_streams().items()} == before
    assert gc.isenabled()


@pytest.fixture
def program(subjects, cells):
    """Let torch, CuPy and Warp each run one kernel on its current stream."""
    from support.gpu.raw import check, driver

    libraries = [subjects(name) for name in ("torch", "cupy", "warp")]
    places = [cells(0.0) for _ in range(4)]

    def run():
        for subject, src, dst in zip(libraries, places, places[1:], strict=False):
            subject.add_one_current(src.pointer, dst.pointer)

    run()
    check(driver.cuCtxSynchronize())
    return run
