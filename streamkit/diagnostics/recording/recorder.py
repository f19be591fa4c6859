"""The driver calls of all threads, which a recorder in C notes while there is a listener.

CUPTI calls it at the beginning and at the end of each call of the driver. No Python runs there: a
function of Python's would take the GIL, for which a thread with a lock of CUDA's could wait for
ever, and lose the exception that passes when a destructor calls the driver.
"""

from __future__ import annotations

import _thread
import atexit
import ctypes
import functools
import struct
import sys
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from streamkit._cuda import loader
from streamkit._cuda.memory_pools import Allocation
from streamkit._support.locks import new_lock
from streamkit.diagnostics.doctor import toolkit
from streamkit.diagnostics.recording import frames, places
from streamkit.diagnostics.recording.calls import CALLS, FAILED, UNKNOWN, Fact, Kernel
from streamkit.diagnostics.recording.steps import WORK
from streamkit.protocols.libraries import NEWEST, OLDEST

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_SOURCE = Path(__file__).with_name("recorder.c")
_FILE = Path(__file__).with_name("librecorder.so")
_DRIVER_API = 1  # CUPTI's domain of these callbacks
_TAKEN = 39  # another tool has subscribed
_WATCHED = [*filter(None, CALLS), *UNKNOWN]

# What ``recorder.c`` calls a plan.
_PLAN = struct.Struct("<HBBBBBB")
_AT_BEGINNING, _AT_END = 1, 2
_LAUNCH, _LAUNCH_WITH, _TARGET, _FREED, _GONE, _MEMORY_MADE, _MEMORY_MAPPED, _NAME = range(1, 9)
_LAUNCHES = _LAUNCH, _LAUNCH_WITH
_NULL_STREAM, _NO_STREAM = 254, 255
_PER_THREAD = 1
_FLAGS = {"code unloaded": 2, "end of capture": 4, "stream destroyed": 8, "not followed": 16,
          "stream made": 32}  # fmt: skip
_MORE = {
    "launch": _LAUNCH, "launch with more": _LAUNCH_WITH, "free": _FREED, "free and wait": _GONE,
    "memory gone": _GONE, "allocation": _MEMORY_MADE, "memory made": _MEMORY_MADE,
    "memory mapped": _MEMORY_MAPPED,
}  # fmt: skip
_TARGETS = {"copy of rows": 128, "graph node": 24, "stream made": 8, "event made": 8,
            "foreign event": 8}  # fmt: skip
"""The bytes to which a field points, by the kinds of calls that have them noted."""
_WHEN = {"copy and wait": _AT_BEGINNING | _AT_END} | dict.fromkeys((
    "free and wait", "memory gone", "event done", "stream done", "device done", "begin of capture",
    "stream made", "event made", "foreign event", "allocation", "memory made", "memory mapped",
    "memory unmapped"), _AT_END)  # fmt: skip
"""The kinds of calls whose end counts too, or alone."""

# What it notes.
_CHUNK = struct.Struct("<QQQQ")  # the next one, the number of the first fact, bytes
_HEAD = struct.Struct("<IHBBIIQQqQ")
_OF_LAUNCH = struct.Struct("<QQQ")  # the kernel, the stream, whether the parameters are known
_KERNEL = struct.Struct("<16xQi8x")  # its symbol, the number of its parameters
_MEMORY = struct.Struct("<QQi4xQ")
_HOST_MEMORY = 1

# The functions of the driver that it calls, in its order.
_FUNCTIONS = ("cuStreamGetCtx", "cuStreamIsCapturing", "cuStreamGetFlags", "cuStreamGetId",
              "cuCtxGetDevice", "cuPointerGetAttributes", "cuFuncGetParamInfo",
              "cuKernelGetParamInfo")  # fmt: skip


class NoCallbacksError(Exception):
    """There is no recorder or no CUPTI here; the text says why, and what to do."""


class RefusedError(NoCallbacksError):
    """CUPTI is here, and does not serve this process now."""


class Listener(NamedTuple):
    """A part of the program during which calls are noted."""

    begin: int
    of_launches: bool
    notice: Callable[[], object] | None


class Subscription:
    """The one subscription of the process to CUPTI, which all listeners share."""

    def __init__(self) -> None:
        self._lock = new_lock()
        self._listeners: list[Listener] = []
        self._cupti: Any = None
        self._handle = ctypes.c_void_p()
        self._recorder: Any = None
        self._files = b""  # which the recorder reads
        self._notice = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(self._noticed)

    @property
    def count(self) -> int:
        """The number of facts so far."""
        return self._number("count").value if self._listeners else 0

    def open(
        self, notice: Callable[[], object] | None = None, *, of_launches: bool = True
    ) -> Listener:
        """Note calls from now on, until ``close``, with their lines.

        Without ``of_launches`` launches have no lines, unless another listener wants them. The main
        thread calls ``notice`` soon after a call that comes from a line which was not met before.
        NoCallbacksError if there is no recorder or no CUPTI, or CUPTI serves another tool.
        """
        with self._lock:
            if not self._listeners:
                self._begin(_find(), load())
            found = Listener(self.count, of_launches, notice)
            self._listeners.append(found)
            self._tell_of_wishes()
            return found

    def close(self, listener: Listener) -> tuple[list[Fact], int]:
        """Return what was noted for a listener, and how many calls could not be noted.

        The last listener that closes ends the subscription.
        """
        with self._lock:
            end, lost = self.count, self._number("lost").value
            self._listeners = [one for one in self._listeners if one is not listener]
            self._tell_of_wishes()
            is_last = not self._listeners
            if is_last and not loader.is_forked:  # CUPTI is the parent's
                for number in _WATCHED:
                    self._cupti.cuptiEnableCallback(0, self._handle, _DRIVER_API, number)
                self._cupti.cuptiUnsubscribe(self._handle)
            facts = [*_facts(self._recorder, listener.begin, end)]
            if is_last:
                self._cupti = None
                self._recorder.recorder_note(0)
            return facts, lost

    def _number(self, name: str, kind: Any = ctypes.c_uint64) -> Any:
        return kind.in_dll(self._recorder, f"recorder_{name}")

    def _tell_of_wishes(self) -> None:
        wishes = [(True, one.of_launches, one.notice is not None) for one in self._listeners]
        for place, name in enumerate(("lines", "launch_lines", "notices")):
            self._number(name, ctypes.c_int).value = sum(wish[place] for wish in wishes)

    def _begin(self, cupti: Any, recorder: Any) -> None:
        self._recorder, self._handle = recorder, ctypes.c_void_p()
        functions = [_address(one) for one in driver_functions()]
        self._number("driver", ctypes.c_void_p * len(functions))[:] = functions
        if has_lines():
            files = places.files_of_libraries()
            self._number("python", ctypes.c_void_p * 3)[2] = _address(self._notice)
            recorder.recorder_have_lines(files)
            self._files = files  # the recorder reads the older ones no more
        code = cupti.cuptiSubscribe(ctypes.byref(self._handle), recorder.recorder_call, None)
        if code:
            why = f"CUPTI answers {code}, because it does not fit this driver"
            if code == _TAKEN:
                why = (
                    "another tool has CUPTI, which serves one at a time. A profiler that has run "
                    "keeps it until the process ends"
                )
            raise RefusedError(why)
        self._cupti = cupti
        self._number("is_noticing", ctypes.c_int).value = 0
        recorder.recorder_note(1)
        for number in _WATCHED:  # an older CUPTI does not know the newest calls
            cupti.cuptiEnableCallback(1, self._handle, _DRIVER_API, number)

    def _noticed(self, _: object) -> int:
        """Tell the listeners of new lines: in the main thread, between two of its instructions."""
        self._number("is_noticing", ctypes.c_int).value = 0
        try:
            for notice in [one.notice for one in self._listeners if one.notice is not None]:
                notice()
        except KeyboardInterrupt:  # ctypes would swallow it
            _thread.interrupt_main()
        return 0


subscription: Subscription = Subscription()


# -- what is noted ---------------------------------------------------------------------------------


def _facts(recorder: Any, begin: int, end: int) -> Iterator[Fact]:
    """Yield the facts with numbers from ``begin`` to ``end``, which count from ``begin``."""
    place_at, kernel_at = functools.cache(frames.place_at), functools.cache(_kernel)
    chunk = recorder.recorder_read()
    while chunk:
        following, number, used, _ = _CHUNK.unpack(ctypes.string_at(chunk, _CHUNK.size))
        data = ctypes.string_at(chunk + _CHUNK.size, used) if number < end else b""
        at = 0
        while at < len(data) and number < end:
            size, call, has_failed, sort, thread, given, context, place, since, more = (
                _HEAD.unpack_from(data, at)
            )
            start = at + _HEAD.size
            fields = data[start : start + given]
            start += -(-given // 8) * 8
            beside: Any = data[start : start + more] if more else None
            at += size
            number += 1
            if number <= begin:
                continue
            if has_failed:
                beside = FAILED
            elif sort in _LAUNCHES:
                beside = _launch(kernel_at, beside)
            elif sort == _TARGET and since >= 0:
                beside = int.from_bytes(beside, "little")
            elif _FREED <= sort <= _MEMORY_MAPPED:
                first, length, kind, owner = _MEMORY.unpack(beside)
                beside = Allocation(first, length, kind == _HOST_MEMORY, owner) if length else None
            elif sort == _NAME:
                fields, beside = beside, None
            ended = None if since < 0 else since - begin
            yield Fact(call, thread, context, fields, place_at(place), beside, ended)
        chunk = following


def _launch(kernel_at: Callable[[int], tuple[str, struct.Struct]], beside: bytes) -> Kernel:
    kernel, stream, is_known = _OF_LAUNCH.unpack_from(beside)
    symbol, parameters = kernel_at(kernel)
    found = parameters.unpack_from(beside, _OF_LAUNCH.size) if is_known else None
    return Kernel(symbol, stream, found)


def _kernel(address: int) -> tuple[str, struct.Struct]:
    """Return a kernel's symbol, and the layout of its parameters."""
    symbol, count = _KERNEL.unpack(ctypes.string_at(address, _KERNEL.size))
    pairs = ctypes.string_at(address + _KERNEL.size, 8 * max(count, 0))
    sizes = "".join(f"{size}s" for _, size in struct.iter_unpack("<II", pairs))
    return ctypes.string_at(symbol).decode(errors="replace"), struct.Struct(sizes)


# -- the recorder ----------------------------------------------------------------------------------


def _address(function: Any) -> int | None:
    return ctypes.cast(function, ctypes.c_void_p).value if function else None


def driver_functions() -> list[Any]:
    """Return the functions that the recorder asks; None for those that this driver lacks."""
    library = ctypes.CDLL(loader.LIBRARY)
    return [getattr(library, name, None) for name in _FUNCTIONS]


@functools.cache
def load() -> Any:
    """Return the recorder; NoCallbacksError without it."""
    try:
        recorder = ctypes.CDLL(str(_FILE))
    except OSError as cause:
        raise NoCallbacksError(
            "the recorder in C is not in this installation. StreamKit's wheels for Linux have it, "
            f"and pip install builds it in a clone if there is a C compiler ({cause})"
        ) from cause
    source = zlib.crc32(_SOURCE.read_bytes())
    if ctypes.c_uint32.in_dll(recorder, "recorder_source").value != source:
        raise NoCallbacksError(
            f"{_FILE} was built from another recorder.c: run pip install -e . again"
        )
    recorder.recorder_read.restype = ctypes.c_void_p
    plans = b"".join(map(_plan, range(1024)))
    (ctypes.c_char * len(plans)).in_dll(recorder, "recorder_plans").raw = plans
    return recorder


@functools.cache
def has_lines() -> bool:
    """Whether the recorder finds the frames of this Python, whose places it is told of here."""
    recorder, offsets, api = load(), frames.layout(), ctypes.pythonapi
    if offsets is None:
        return False
    given = struct.pack(
        "<6Q16i",
        *map(_address, (api.PyGILState_GetThisThreadState, api.Py_AddPendingCall)),
        0,
        *map(id, (type(_plan.__code__), str, bytes)),
        *offsets,
    )
    (ctypes.c_char * len(given)).in_dll(recorder, "recorder_python").raw = given
    recorder.recorder_have_lines(bytes(4))
    found = frames.are_seen(recorder)
    recorder.recorder_note(0)
    recorder.recorder_have_lines(None)
    atexit.register(recorder.recorder_have_lines, None)
    return found


def _plan(number: int) -> bytes:
    """Return what the recorder notes of a call."""
    if number in UNKNOWN:
        return _PLAN.pack(0, _AT_BEGINNING, _NAME, 0, 0, _NO_STREAM, 0)
    call = CALLS.get(number)
    if not number or call is None:
        return bytes(_PLAN.size)
    kind, size, length = call.kind, call.fields.size, _TARGETS.get(call.kind, 0)
    at = size - 8 if kind == "graph node" else 0
    more = _TARGET if length else _MORE.get(kind, 0)
    stream = _NULL_STREAM if kind in WORK else _NO_STREAM
    stream = stream if call.stream is None else call.stream_at
    flags = _PER_THREAD * call.is_per_thread | _FLAGS.get(kind, 0)
    return _PLAN.pack(size, _WHEN.get(kind, _AT_BEGINNING), more, at, length, stream, flags)


# -- CUPTI -----------------------------------------------------------------------------------------


def _find() -> Any:
    """Return libcupti: the one that is loaded, else one that can be; NoCallbacksError."""
    if sys.platform != "linux":
        raise NoCallbacksError("CUPTI's callbacks are used on Linux only")
    library = toolkit.load("cupti", NEWEST, OLDEST)
    if library is None:
        served = min(max(loader.driver_version() // 1000, OLDEST), NEWEST)
        line = toolkit.install_line("cupti", served)
        raise NoCallbacksError(f"there is no libcupti: {line}")
    return library
