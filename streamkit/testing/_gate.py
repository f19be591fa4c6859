"""The driver's own answers on raw handles, and a gate that holds queues.

The checks compare adapters with these, so nothing here calls an adapter. The work is writes of
values into pinned memory. They need no kernel, so that an emulated driver can do them too.
"""

from __future__ import annotations

import contextlib
import ctypes
import threading
import time
from typing import TYPE_CHECKING

from streamkit._cuda import driver, loader
from streamkit._cuda.driver import ask

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from typing import Self

LIMIT = 20.0
"""Seconds after which a gate opens by itself, so that a call that waits for it does not hang."""

_WORDS = 64
_ROUNDS = 20
_NOT_READY = 600
_NONBLOCKING = 1
_NO_TIMING = 2
_AT_LEAST = 0  # CU_STREAM_WAIT_VALUE_GEQ
_DEVICE_MAP = 2  # CU_MEMHOSTALLOC_DEVICEMAP

# -- contexts ---------------------------------------------------------------------------------


@contextlib.contextmanager
def on_device(device: int) -> Generator[None]:
    """Make the device's primary context current in the block, and the former one afterwards."""
    context = driver.primary_context(device)
    former = driver.current_context()
    ask("cuCtxSetCurrent", context)
    try:
        yield
    finally:
        ask("cuCtxSetCurrent", former)  # no pop: an adapter may have changed the stack


# -- streams ----------------------------------------------------------------------------------


@contextlib.contextmanager
def raw_stream() -> Generator[int]:
    """Lend a non-blocking stream of the current context that no library has seen."""
    stream = int(ask("cuStreamCreate", _NONBLOCKING))
    number = stream_id(stream)
    try:
        yield stream
    finally:
        if is_alive(stream, number):  # an adapter may have destroyed it: a check says so
            ask("cuStreamDestroy", stream)


def stream_id(stream: int) -> int:
    """Return the id, by which two queues differ even if one got the other's handle."""
    return int(ask("cuStreamGetId", stream))


def stream_device(stream: int) -> int:
    found = ask("cuStreamGetCtx", stream)  # some bindings return the green context too
    ask("cuCtxPushCurrent", found[0] if isinstance(found, tuple) else found)
    try:
        return int(ask("cuCtxGetDevice"))
    finally:
        ask("cuCtxPopCurrent")


def is_alive(stream: int, number: int) -> bool:
    """Whether the handle still is the stream of this id."""
    code, found = loader.cu.cuStreamGetId(stream)
    return not code and int(found) == number


def sync(stream: int) -> None:
    ask("cuStreamSynchronize", stream)


# -- events -----------------------------------------------------------------------------------


@contextlib.contextmanager
def raw_event() -> Generator[int]:
    """Lend an event of the current context that no library has seen."""
    event = ask("cuEventCreate", _NO_TIMING)
    try:
        yield int(event)
    finally:
        loader.cu.cuEventDestroy(event)  # if an adapter has destroyed it, the driver refuses


def is_pending(event: int) -> bool:
    """Whether the event's last recorded point was not reached yet."""
    (code,) = loader.cu.cuEventQuery(event)
    if code and code != _NOT_READY:
        raise driver.error("cuEventQuery", code)
    return bool(code)


# -- order ------------------------------------------------------------------------------------


class Gate:
    """Holds queues of the current context until it is opened or the ``with`` block ends."""

    def __init__(self) -> None:
        self._context = driver.current_context()
        # before any queue is held, because allocating pinned memory may wait for the device
        self._memory = ask("cuMemHostAlloc", 4 * _WORDS, _DEVICE_MAP)
        self._words = (ctypes.c_uint32 * _WORDS).from_address(int(self._memory))
        ctypes.memset(self._words, 0, 4 * _WORDS)
        self._address = int(ask("cuMemHostGetDevicePointer", self._memory, 0))
        self._free = ask("cuStreamCreate", _NONBLOCKING)
        self._used = 1
        self._watchdog = threading.Timer(LIMIT, self.open)
        self._watchdog.daemon = True
        self._watchdog.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.open()
        self._watchdog.cancel()
        # The queues may be gone, and the block may have left their context: the memory for which
        # the queues wait is freed when their waits have ended.
        driver.sync_context(self._context)
        ask("cuStreamDestroy", self._free)
        ask("cuMemFreeHost", self._memory)

    def hold(self, stream: int) -> None:
        """Let the queue's later work run after the gate has opened."""
        ask("cuStreamWaitValue32", stream, self._address, 1, _AT_LEAST)

    def mark(self, stream: int) -> Callable[[], bool]:
        """Queue a piece of work; return a function that tells whether it has run."""
        place = self._used
        self._used += 1
        ask("cuStreamWriteValue32", stream, self._address + 4 * place, 1, 0)
        return lambda: self._words[place] == 1

    @property
    def closed(self) -> bool:
        """Whether the held queues are still held."""
        return self._words[0] == 0

    def open(self) -> None:
        self._words[0] = 1

    def lets_through(self, stream: int) -> bool:
        """Whether work on this queue runs through while the gate is closed."""
        reached = self.mark(stream)
        sync(stream)
        return self.closed and reached()

    def holds_back(self, reached: Callable[[], bool]) -> bool:
        """Whether marked work stays undone while a free stream runs work submitted after it."""
        last = 4 * (_WORDS - 1)
        for _ in range(_ROUNDS):
            ask("cuStreamWriteValue32", self._free, self._address + last, 1, 0)
            sync(int(self._free))
            time.sleep(0.0005)  # an emulated queue is a thread, which needs time
            if reached():
                return False
        return self.closed


def runs_beside(held: int, other: int) -> bool:
    """Whether work on ``other`` runs through while ``held`` is held, as in a control arm."""
    with Gate() as gate:
        gate.hold(held)
        return gate.lets_through(other)


def runs_after(first: int, later: int, order: Callable[[], object]) -> bool:
    """Whether, after ``order()``, work on ``later`` runs after that on ``first``.

    AssertionError if ``order()`` itself waited for ``first``.
    """
    with Gate() as gate:
        gate.hold(first)
        before = gate.mark(first)
        order()
        require(gate.closed, "the call blocked the host until the first queue had run")
        after = gate.mark(later)
        if not gate.holds_back(after):
            return False
        gate.open()
        sync(later)
        return before() and after()


def require(holds: object, message: str) -> None:
    """Raise AssertionError unless the condition holds, also under ``python -O``."""
    if not holds:
        raise AssertionError(message)
