"""The oracle: the driver's own answers on raw handles, and a gate that holds a queue.

Nothing here goes through StreamKit.
"""

from __future__ import annotations

import contextlib
import ctypes
import threading
import time
from typing import TYPE_CHECKING, Any

from cuda.bindings import driver

if TYPE_CHECKING:
    from collections.abc import Iterator

NOT_READY = driver.CUresult.CUDA_ERROR_NOT_READY
LEGACY = int(driver.CU_STREAM_LEGACY)


def check(result: tuple[Any, ...]) -> Any:
    code, *answers = result
    assert not code, f"{code!r}"
    return answers[0] if len(answers) == 1 else answers


def busy(handle: int) -> bool:
    """Whether the queue still has work; an error on it fails the test."""
    (code,) = driver.cuStreamQuery(handle)
    assert code in (0, NOT_READY), f"{code!r}"
    return code == NOT_READY


def sync(handle: int) -> None:
    check(driver.cuStreamSynchronize(handle))


def stream_id(handle: int) -> int:
    return int(check(driver.cuStreamGetId(handle)))


def current_context() -> int:
    return int(check(driver.cuCtxGetCurrent()))


@contextlib.contextmanager
def on_device(device: int) -> Iterator[None]:
    """Have the device's primary context current for the block, then the one before."""
    context = check(driver.cuDevicePrimaryCtxRetain(device))
    before = check(driver.cuCtxGetCurrent())
    check(driver.cuCtxSetCurrent(context))
    try:
        yield
    finally:
        check(driver.cuCtxSetCurrent(before))  # not a pop: a library may have lost what was pushed
        check(driver.cuDevicePrimaryCtxRelease(device))


def held(handle: int) -> bool:
    """Whether the queue's work waits for a gate: what need not has most likely had time to run."""
    for _ in range(100):
        if not busy(handle):
            return False
        time.sleep(0.001)  # longer on a busy machine, where what runs needs longer too
    return True


def idle(handle: int) -> bool:
    """Whether the queue comes to its end, for which a slow machine has time; not what is held."""
    limit = time.monotonic() + 10  # a gate opens by itself later
    while busy(handle):
        if time.monotonic() > limit:
            return False
        time.sleep(0.001)
    return True


def make_stream(*, nonblocking: bool = True, priority: int = 0) -> int:
    return int(check(driver.cuStreamCreateWithPriority(int(nonblocking), priority)))


def destroy_stream(handle: int) -> None:
    check(driver.cuStreamDestroy(handle))


class Gate:
    """Holds queues until opened: a driver wait on a word of pinned host memory.

    Opens by itself after 20 s, so that a test that would hang fails instead.
    """

    def __init__(self) -> None:
        self._word = check(driver.cuMemHostAlloc(4, driver.CU_MEMHOSTALLOC_DEVICEMAP))
        self._view = ctypes.c_uint32.from_address(int(self._word))
        self._view.value = 0
        self._device_word = check(driver.cuMemHostGetDevicePointer(self._word, 0))
        self._held: list[int] = []
        self._watchdog = threading.Timer(20, self.open)
        self._watchdog.daemon = True
        self._watchdog.start()

    def hold(self, handle: int) -> None:
        check(driver.cuStreamWaitValue32(handle, self._device_word, 1, 0))
        self._held.append(handle)

    @property
    def closed(self) -> bool:
        return self._view.value == 0

    def open(self) -> None:
        self._view.value = 1

    def free(self) -> None:
        self.open()
        self._watchdog.cancel()
        check(driver.cuCtxSynchronize())
        self._view = ctypes.c_uint32(1)  # a timer of the test's may open it yet
        check(driver.cuMemFreeHost(self._word))


class Foreign:
    """Somebody's stream, which knows nothing but its handle."""

    def __init__(self, handle: int) -> None:
        self.handle = handle

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self.handle


class Cell:
    """One float32 on the device, read and written by synchronous copies."""

    def __init__(self, value: float) -> None:
        self.device = int(check(driver.cuCtxGetDevice()))
        self.pointer = int(check(driver.cuMemAlloc(4)))
        self.write(value)

    def write(self, value: float) -> None:
        host = ctypes.c_float(value)
        check(driver.cuMemcpyHtoD(self.pointer, ctypes.addressof(host), 4))
        sync(LEGACY)  # from pageable memory: the call returns before the device has the value

    def read(self) -> float:
        host = ctypes.c_float()
        check(driver.cuMemcpyDtoH(ctypes.addressof(host), self.pointer, 4))
        return host.value

    def free(self) -> None:
        check(driver.cuMemFree(self.pointer))


class Peek:
    """Reads cells of one device while queues are held: on a stream that waits for no other."""

    def __init__(self, device: int) -> None:
        self._device = device
        with on_device(device):
            self._stream = make_stream()
            self._word = check(driver.cuMemHostAlloc(4, driver.CU_MEMHOSTALLOC_PORTABLE))
        self._view = ctypes.c_float.from_address(int(self._word))

    def __call__(self, cell: Cell) -> float:
        assert cell.device == self._device
        with on_device(self._device):
            check(driver.cuMemcpyDtoHAsync(int(self._word), cell.pointer, 4, self._stream))
            sync(self._stream)
        return self._view.value

    def free(self) -> None:
        with on_device(self._device):
            destroy_stream(self._stream)
            check(driver.cuMemFreeHost(self._word))


@contextlib.contextmanager
def another_context():
    """Hold a context current that is no device's primary one."""
    device = check(driver.cuDeviceGet(0))
    arguments = (None, 0, device) if driver.CUDA_VERSION >= 13000 else (0, device)
    context = check(driver.cuCtxCreate(*arguments))
    yield int(context)
    check(driver.cuCtxPopCurrent())
    check(driver.cuCtxDestroy(context))
