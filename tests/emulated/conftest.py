"""The emulated tier: its driver is built and loaded before anything can look for a real one.

It has a process of its own (``pytest tests/emulated``): loaded beside the other tiers, it would
give tests that describe life without a driver one. There its tests are skipped.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import sys
import tempfile
from pathlib import Path

import pytest

from support.libraries import lane, missing, need

HERE = Path(__file__).parent
GPU = HERE.parent / "gpu"
import emulator  # noqa: E402 - the same
from emulator import build  # noqa: E402 - found through the line above

unavailable = pytest.StashKey[str]()


def is_alone(config):
    """Whether this session was asked for nothing but this folder."""
    asked = [Path(config.invocation_params.dir, name.partition("::")[0]) for name in config.args]
    return all(path.resolve().is_relative_to(HERE) for path in asked)


def prepare(config):
    """Build and load the driver; a reason if that cannot be."""
    if not is_alone(config):
        return "the emulated driver needs a process of its own: pytest tests/emulated"
    if absent := missing({"cuda"}):
        return f"not installed: {absent}"
    sanitizer = os.environ.get("STREAMKIT_SANITIZER", "")
    folder = tempfile.TemporaryDirectory(prefix="streamkit-emulated-")
    config.add_cleanup(folder.cleanup)
    try:
        library = build.build(Path(folder.name), sanitizer)
        if sanitizer and str(build.runtime(sanitizer)) not in os.environ.get("LD_PRELOAD", ""):
            return f"{sanitizer} needs its runtime: run tests/emulator/sanitized.py {sanitizer}"
    except build.CannotBuildError as error:
        return str(error)
    os.environ.pop("CUDA_VISIBLE_DEVICES", None)  # a lane with nogpu too hides the real ones
    before = os.environ.get("LD_LIBRARY_PATH")  # where child processes look
    os.environ["LD_LIBRARY_PATH"] = os.pathsep.join(filter(None, (folder.name, before)))
    emulator.load(library)
    return None


def pytest_configure(config):
    reason = prepare(config)
    if reason is None:
        return
    if "emulated" in lane():
        pytest.exit(f"the lane {'-'.join(lane())} needs the emulated driver: {reason}", 1)
    config.stash[unavailable] = reason


class Unavailable(pytest.Module):
    """A file that is not even imported, for it would look for the driver."""

    def collect(self):
        pytest.skip(self.config.stash[unavailable], allow_module_level=True)


def pytest_pycollect_makemodule(module_path, parent):
    if unavailable in parent.config.stash:
        return Unavailable.from_parent(parent, path=module_path)
    return None


def _fixtures_of_the_gpu_tier():
    """A context, a gate and cells of memory: the same code on the emulated driver."""
    spec = importlib.util.spec_from_file_location("gpu_conftest", GPU / "conftest.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


_gpu = _fixtures_of_the_gpu_tier()
primary_context, in_primary_context = _gpu.primary_context, _gpu.in_primary_context
gate, cells = _gpu.gate, _gpu.cells


@pytest.fixture(autouse=True)
def idle(in_primary_context, primary_context):
    """Start with one context, as numba's first use leaves one below, and nothing to do."""
    from support.emulated.state_snapshot import set_contexts
    from support.gpu.raw import check, driver

    set_contexts([primary_context])
    check(driver.cuCtxSynchronize())  # queues free what the test before has dropped


@pytest.fixture(autouse=True)
def one_queue():
    """Have tvm-ffi, once a test has loaded it, where Warp is: on one queue outside of all scopes.

    A file about tvm-ffi has a fixture of this name, which leaves it alone.
    """
    warp, tvm_ffi = map(sys.modules.get, ("warp", "tvm_ffi"))
    with contextlib.ExitStack() as blocks:
        if warp is not None and tvm_ffi is not None and warp.is_cuda_available():
            for index in range(2):
                handle = warp.get_stream(f"cuda:{index}").cuda_stream
                blocks.enter_context(tvm_ffi.use_raw_stream(tvm_ffi.device("cuda", index), handle))
        yield


@pytest.fixture(autouse=True)
def no_fault_left():
    """Start without a fault, and end with none that did not come."""
    emulator.clear_faults()
    yield
    assert emulator.clear_faults() == 0, "a fault that was set never came"


@pytest.fixture(autouse=True)
def no_capture_left():
    """End with no stream that captures: each call that a capture forbids would fail from then."""
    yield
    assert emulator.end_captures() == 0, "a stream was left capturing"


@pytest.fixture(params=["recycled", "fresh"])
def handles(request):
    """Handles that come back at once break what is kept by handle; fresh ones tell dead ones."""
    emulator.recycle(request.param == "recycled")
    yield
    emulator.recycle(False)


@pytest.fixture
def warp():
    """Warp, whose current streams are as before after the test."""
    warp = need("warp")
    warp.config.log_level = warp.LOG_WARNING
    warp.init()
    before = warp.get_stream("cuda:0"), warp.get_stream("cuda:1"), str(warp.get_device())
    yield warp
    assert (warp.get_stream("cuda:0"), warp.get_stream("cuda:1"), str(warp.get_device())) == before


@pytest.fixture
def cuda():
    return need("numba")


@pytest.fixture
def array(cuda):
    """Make a device array of numba-cuda with four equal numbers."""
    import numpy as np  # where numba is

    def array(value=0.0):
        return cuda.to_device(np.full(4, value, np.float32))

    with cuda.defer_cleanup():  # numba frees with a wait, which a gate would hold
        yield array


@pytest.fixture
def warp_state(warp):
    """Warp's current streams on both devices, in Python and natively; after the test as before."""
    from support.gpu.raw import current_context

    native = warp._src.context.runtime.core.wp_cuda_context_get_stream
    devices = [warp.get_cuda_device(index) for index in range(2)]

    def warp_state():
        return (
            [warp.get_stream(device) for device in devices],
            [native(device.context) for device in devices],
            str(warp.get_device()),
            current_context(),
        )

    before = warp_state()
    yield warp_state
    assert warp_state() == before


@pytest.fixture
def held(gate):
    """Make streams whose work waits for the gate; what waits for them is over after the test."""
    import streamkit as sk
    from streamkit._queues import dispatcher  # it tells when nobody waits
    from support.queues import eventually

    def make(device=None):
        stream = sk.new_stream(device, nonblocking=True)
        gate.hold(stream.handle)
        return stream

    yield make
    emulator.break_down(0)
    gate.open()
    found = dispatcher._dispatcher
    assert found is None or eventually(lambda: not found.tracks and not found.new)
