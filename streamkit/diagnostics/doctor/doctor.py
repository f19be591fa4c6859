"""``streamkit.doctor()``: faults of this installation and of this process.

Installed libraries are known by their metadata, without an import; loaded libraries answer for
themselves. A check that fails is a finding like any other.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from streamkit import errors
from streamkit._cuda import driver, loader
from streamkit._queues import identity, open_scopes, ordering, registry
from streamkit._streams.stream import CudaStream, wrap
from streamkit._support import living_processes
from streamkit.diagnostics.doctor.installed import Installed
from streamkit.diagnostics.doctor.report import DoctorReport, Driver, Standing, run_check
from streamkit.protocols import CurrentStream, Diagnosis, Finding
from streamkit.protocols.adapters import offered, traits_of
from streamkit.protocols.installed import CPU, install_line
from streamkit.protocols.queues import LEGACY, PER_THREAD

if TYPE_CHECKING:
    from collections.abc import Iterator

    from streamkit.diagnostics.doctor.installed import Progress
    from streamkit.protocols import Traits


def doctor(*, load: bool = False) -> DoctorReport:
    """Look for what is wrong with CUDA and the libraries here; each finding says what to do.

    Loaded libraries are asked for their current stream in this thread on the current device and on
    the others in use, which initialises them there, as ``current_streams`` does. Raises nothing for
    what it finds: a broken library is a finding too. Safe from any thread.

    Args:
        load: Import the installed libraries too, and look at them.
    """
    return examine(load=load)


def examine(*, load: bool = False, progress: Progress = lambda *_: None) -> DoctorReport:
    """Examine as ``doctor`` does; ``progress`` gets each next step, and how much is done.

    The findings are in order: the driver, the installed libraries, then the loaded ones.
    """
    installed = Installed.read()
    findings: list[Finding] = []
    served = look_at_driver(findings)
    usable = None if findings else served
    broken = list(installed.load(served, progress)) if load else []
    installed.ask_loaded()
    findings += run_check("what is installed", lambda: installed.check(served))
    findings += run_check("the folder of what processes share", look_at_folder)
    findings += broken
    process = _Process()
    if usable is not None:
        findings += run_check("this process", lambda: process.check(installed, usable))
    return DoctorReport(
        python=sys.version.partition(" ")[0],
        streamkit=str(sys.modules["streamkit"].__version__),
        driver=served,
        context=process.context,
        libraries=installed.libraries(
            {name: current.standing for name, current in process.current.items()}, all_loaded=load
        ),
        missing=installed.missing,
        environment=installed.environment,
        findings=list(dict.fromkeys(findings)),
    )


# -- the driver: is there one, does it start, is it new enough -------------------------------------

_ABOUT = Path("/proc/driver/nvidia/version")  # exists where the driver's kernel module is loaded
_MAPS = Path("/proc/self/maps")
_WSL = Path("/usr/lib/wsl/lib")
_TOO_OLD = 35

# The remedies for errors with which the driver or a device does not start, by CUDA's numbers.
_REMEDIES = {
    2: "End other processes that use the GPU, or choose another with CUDA_VISIBLE_DEVICES.",
    3: "If this process was forked from one that had used CUDA, start it with multiprocessing's "
    "'spawn' or 'forkserver' method.",
    34: "Take the folder of the stub, as cuda/lib64/stubs, off LD_LIBRARY_PATH, so that NVIDIA's "
    "own library is found. A container that is started with --gpus all has it.",
    46: "Another process may have the GPU to itself: see its compute mode in nvidia-smi.",
    802: "Start the NVIDIA Fabric Manager, and wait until it is ready.",
    803: "The driver's library and its kernel module are of two versions: restart the machine, or "
    "load the module again.",
    804: "Remove the CUDA compatibility package, or update the driver: this GPU cannot use it.",
}
_RESTART = "Run nvidia-smi: if it fails too, load the driver's kernel module again or restart."


def look_at_driver(findings: list[Finding]) -> Driver | None:
    """Return the driver, None if there is none or it may not be called; note its faults."""
    version = 0
    devices: list[str] = []
    if not loader.is_forked:
        version = loader.driver_version()
        findings += _start(version, devices)
    if loader.is_forked:  # the first call above may have found that out
        findings.append(
            Finding(
                "forked",
                "this process was forked after CUDA was initialised, and CUDA does not survive it",
                "Start workers with multiprocessing's 'spawn' or 'forkserver' method.",
            )
        )
        return None
    if not version and not devices:
        return None
    return Driver(f"{version // 1000}.{version % 1000 // 10}", _release(), devices)


def _start(version: int, devices: list[str]) -> Iterator[Finding]:
    try:
        devices += [driver.device_name(index) for index in range(driver.device_count())]
        if devices:
            driver.primary_context(driver.current_device())  # fails if nothing can run there
        else:
            yield from _no_device(version)
    except errors.BackendNotInstalledError as error:
        if not version:  # the library that is loaded as the driver is none
            yield from _look_at_library()
        else:
            yield Finding(
                "no-cuda-python",
                "there is a CUDA driver, and cuda.bindings, which calls it, cannot be imported: "
                f"{error.__cause__}",
                f"Install it: {install_line('cuda.bindings', version // 1000)}",
                "cuda.bindings",
            )
    except errors.ForkedProcessError:
        pass  # ``look_at_driver`` says it
    except errors.NoDeviceError:
        yield from _no_device(version)
    except errors.DriverError as error:
        if error.code == _TOO_OLD:
            yield Finding(
                "old-driver",
                "the driver is from before CUDA 12, and StreamKit needs one of CUDA 12 or newer",
                "Update the NVIDIA driver.",
            )
        else:
            yield Finding(
                "driver-fails",
                f"CUDA does not start: {error.call} of {_loaded_from()} failed with "
                f"{error.name} ({error.code})",
                _REMEDIES.get(error.code, _RESTART),
            )
    except Exception as error:  # noqa: BLE001 - the bindings', which read switches of their own
        yield Finding(
            "driver-fails",
            f"CUDA does not start: cuda.bindings raised {type(error).__name__}: {error}",
            "Unset CUDA_PYTHON_CUDA_PER_THREAD_DEFAULT_STREAM if it is set; or install it again.",
            "cuda.bindings",
        )


def _no_device(version: int) -> Iterator[Finding]:
    visible = os.environ.get(loader.VISIBLE)
    if not version:
        yield from _look_at_library()
    elif visible is not None:
        yield Finding(
            "no-device",
            f"the driver shows no device, and {loader.VISIBLE}={visible!r} can hide them",
            f"Unset {loader.VISIBLE} before Python starts, or name the devices to use: 0,1.",
        )
    else:
        yield Finding(
            "no-device",
            "there is a CUDA driver, and it reports no device",
            "Run nvidia-smi. Start a container with --gpus all, and its process as a user who may "
            "open /dev/nvidia*.",
        )


def _release() -> str | None:
    with contextlib.suppress(OSError):
        found = re.search(r"Kernel Module.*?\s(\d+\.[\d.]+)", _ABOUT.read_text(encoding="utf-8"))
        return found and found[1]
    return None


def _loaded_from() -> str:
    """Return the file that is loaded as the driver's library, or its name if none tells."""
    with contextlib.suppress(OSError):
        for line in _MAPS.read_text(encoding="utf-8", errors="replace").splitlines():
            if "/libcuda.so" in line:
                return line[line.index("/") :]
    return loader.LIBRARY


def _look_at_library() -> Iterator[Finding]:
    """Yield why the driver's library cannot be used; nothing where there is no sign of a GPU."""
    why = loader.why_not_loaded()
    if not why:
        yield Finding(
            "driver-fails",
            f"{_loaded_from()} is loaded as the CUDA driver, and does not answer like one",
            "Take its folder off LD_LIBRARY_PATH, or remove the file, so that the library of "
            "NVIDIA's driver is found. A container that is started with --gpus all has it.",
        )
    elif sys.platform != "linux":
        return  # only Linux has other places for the library
    elif "/" in why.partition(":")[0]:  # a path: the loader found the file
        yield Finding(
            "driver-fails",
            f"the driver's library is there and cannot be loaded: {why}",
            "Remove that file unless NVIDIA's driver installed it: some images have an empty one. "
            "Start a container with --gpus all, which brings the driver's library.",
        )
    elif _WSL.is_dir():
        yield Finding(
            "wsl-library",
            f"this is Linux inside Windows (WSL), and {loader.LIBRARY} cannot be found although "
            f"{_WSL} is there, where Windows puts it",
            f"Let programs look there: export LD_LIBRARY_PATH={_WSL}:$LD_LIBRARY_PATH. Install no "
            "NVIDIA driver inside WSL, because that of Windows serves both.",
        )
    elif _ABOUT.exists():
        yield Finding(
            "no-driver",
            f"NVIDIA's kernel module is loaded, and its library {loader.LIBRARY} cannot be found",
            "Start a container with --gpus all. Outside of one, install the same version of the "
            "driver's libraries, or name their folder in LD_LIBRARY_PATH.",
        )


def look_at_folder() -> Iterator[Finding]:
    """Yield faults that keep this process from sharing events and arrays with others."""
    try:
        living_processes.folder()
    except errors.UnsupportedStreamError:
        pass  # no program shares anything on this system
    except OSError as error:
        yield Finding(
            "runtime-folder",
            "this process cannot share events and arrays with others, because the folder for its "
            f"files cannot be made: {error}",
            f"Name a folder in which this user can write: {living_processes.SETTING}=FOLDER.",
        )


# -- this process: the libraries' current streams, and what is left behind -------------------------


class _Process:
    """The use of CUDA in this process: its context, and the libraries' current streams."""

    def __init__(self) -> None:
        self.context = 0
        self.current: dict[str, _Current] = {}  # on the current device

    def check(self, installed: Installed, served: Driver) -> Iterator[Finding]:
        self.context = driver.current_context()
        device = driver.current_device()
        primary = driver.primary_context(device)
        if self.context not in (0, primary):
            yield Finding(
                "other-context",
                f"the current context of this thread, {self.context:#x}, is not the primary one of "
                f"cuda:{device}, where the libraries' memory and streams are",
                "Pop it (cuCtxPopCurrent). With PyCUDA import pycuda.autoprimaryctx, not autoinit.",
            )
        yield from _OnDevice(device, installed, served, self.current).check()
        for other in range(driver.device_count()):
            if other != device and driver.primary_is_active(other):
                yield from _OnDevice(other, installed, served, {}).check()


class _Current(NamedTuple):
    stream: CudaStream[Any]
    standing: Standing
    starts_on_default: bool


@dataclass(frozen=True)
class _OnDevice:
    """The current streams of the loaded libraries on one device, and the faults of these."""

    device: int
    installed: Installed
    served: Driver
    current: dict[str, _Current]

    def check(self) -> Iterator[Finding]:
        """Ask each loaded library, with the device's primary context current."""
        with driver.in_context(driver.primary_context(self.device)):
            for name in registry.loaded():
                yield from run_check(name, functools.partial(self._ask, name), name)
            for look in (self._captures, self._apart, self._frees_on_legacy):
                yield from run_check("the current streams", look)

    def _ask(self, name: str) -> Iterator[Finding]:
        adapter = registry.adapter(name)
        if isinstance(adapter, CurrentStream):
            try:
                stream = wrap(adapter.current(self.device))
                self.current[name] = _describe(stream, traits_of(adapter))
            except errors.CaptureError:
                pass  # its stream is the legacy one, and the capture is a finding of its own
            except errors.NoDeviceError as error:
                package = self.installed.packages.get(name)
                if package is None or package.cuda != CPU:  # else a finding says it already
                    yield self._no_cuda(name, error)
        diagnose = offered(adapter, Diagnosis.diagnose)
        yield from diagnose() if diagnose else ()

    def _no_cuda(self, name: str, error: errors.NoDeviceError) -> Finding:
        reason = f": {error.__cause__}" if error.__cause__ else ""
        count = len(self.served.devices)
        return Finding(
            "no-cuda",
            f"{name} cannot use CUDA, and the driver has {count} device(s){reason}",
            "CUDA_VISIBLE_DEVICES can be the reason, if it was set after Python had started. "
            "Otherwise install a build for this driver: "
            f"{self.installed.replacement(name, self.served)}",
            name,
        )

    def _captures(self) -> Iterator[Finding]:
        """Yield the captures that are open on queues which are surely alive."""
        open_on = {
            current.standing.handle: repr(current.stream)
            for current in self.current.values()
            if current.standing.capturing
        }
        for queue in identity.living():
            is_here = queue.device == self.device and queue.handle != LEGACY
            if is_here and identity.is_alive(queue) and ordering.capture_of(queue) is not None:
                open_on.setdefault(queue.handle, repr(CudaStream(queue, None)))
        if not open_on and driver.capture_id(LEGACY) is not None:
            open_on[LEGACY] = "a blocking stream of this process"
        for stream in open_on.values():
            yield Finding(
                "open-capture",
                f"a graph is being captured on {stream}: work goes into it and does not run",
                "End the capture where it was begun, even if its block raises.",
            )

    def _apart(self) -> Iterator[Finding]:
        """Yield the libraries on a stream that no scope set, or that has another context."""
        for name, (stream, standing, starts_on_default) in self.current.items():
            wanted = _scope_of(name, stream.device)
            if wanted is not None and stream != wanted:
                yield Finding(
                    "outside-the-scope",
                    f"the current stream of {name} is {stream!r}, inside the scope of {wanted!r}",
                    "Import it before the scope is entered, and leave what moved it away.",
                    name,
                )
            moved = starts_on_default and not stream.is_default
            if wanted is None and moved and not standing.capturing:
                yield Finding(
                    "left-redirected",
                    f"the current stream of {name} is {stream!r}, and no scope of this thread "
                    "made it so",
                    "Leave the block, or undo the call, that moved it; or enter 'with "
                    "streamkit.use(stream):', so that the other libraries follow.",
                    name,
                )
            if not standing.primary:
                yield Finding(
                    "other-context",
                    f"the current stream of {name} is {stream!r} of the context "
                    f"{stream.context:#x}, which is not the primary one of {stream.device}",
                    "Give it a stream of the primary context, and order the two: t.wait(s).",
                    name,
                )

    def _frees_on_legacy(self) -> Iterator[Finding]:
        """Yield libraries whose frees do not wait for their work."""
        for row in registry.LIBRARIES:
            current = self.current.get(row.name) if row.frees_on_legacy else None
            if current is None or current.standing.kind != "nonblocking":
                continue
            device = current.standing.device
            if _scope_of(row.name, device) is None:
                yield Finding(
                    "blocking-mixture",
                    f"the current stream of {row.label} is a nonblocking one of {device}, and "
                    f"{row.label} frees its memory on the legacy default one, which does not wait "
                    "for it: an array that is dropped early is overwritten",
                    "Work in 'with streamkit.use(stream):', or use a blocking stream, or keep the "
                    "arrays until their work has run.",
                    row.name,
                )


def _describe(stream: CudaStream[Any], traits: Traits) -> _Current:
    queue = stream._live()  # ``handle`` would note that others may have it now
    defaults = {LEGACY: "legacy default", PER_THREAD: "per-thread default"}
    flags = {True: "nonblocking", False: "blocking", None: "unknown"}
    standing = Standing(
        device=stream.device,
        handle=queue.handle,
        id=queue.id,
        kind=defaults.get(queue.handle, flags[queue.nonblocking]),
        capturing=stream.is_capturing,
        context=queue.context,
        primary=queue.primary,
    )
    return _Current(stream, standing, traits.starts_on_default)


def _scope_of(library: str, device: str) -> CudaStream[Any] | None:
    """Return the stream that this thread's scopes made current in the library, None if none."""
    for scope in open_scopes.of_thread():
        plan = getattr(scope, "plan", None)
        if plan is None or scope.stream.device != device:  # a host stream moves no library
            continue
        if library in plan.choice.names or library not in {one.name for one in plan.choice.loaded}:
            stream: CudaStream[Any] = scope.stream
            return stream
    return None
