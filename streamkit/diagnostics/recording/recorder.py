"""The driver calls of all threads, which a recorder in C notes while there is a listener.

CUPTI calls it at the beginning and at the end of each call of the driver. No Python runs there: a
function of Python's would take the GIL, for which a thread with a lock of CUDA's could wait for
ever, and lose the exception that passes when a destructor calls the driver.
"""

from __future__ import annotations

import atexit
import ctypes
import functools
import itertools
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
_LAUNCH, _LAUNCH_WITH, _TARGET, _FREED, _MEMORY_MADE, _MEMORY_MAPPED = range(1, 7)
_UPLOAD, _UPLOADED, _NAME = range(7, 10)
_LAUNCHES, _UPLOADS = (_LAUNCH, _LAUNCH_WITH), (_UPLOAD, _UPLOADED)
_OF_CONFIGURATION, _NULL_STREAM, _NO_STREAM = 32, 254, 255
_PER_THREAD = 1
_FLAGS = {"code unloaded": 2, "wait": 4, "begin of capture": 4, "allocation": 4,
          "stream destroyed": 8, "not followed": 8, "stream made": 16}  # fmt: skip
_MORE = {
    "launch": _LAUNCH, "launch with more": _LAUNCH_WITH, "free": _FREED, "free and wait": _FREED,
    "memory gone": _FREED, "allocation": _MEMORY_MADE, "memory made": _MEMORY_MADE,
    "memory mapped": _MEMORY_MAPPED, "event done": _UPLOADED, "stream done": _UPLOADED,
    "device done": _UPLOADED, "copy and wait": _UPLOADED,
}  # fmt: skip
_FROM_PINNED = {"cuMemcpyHtoDAsync", "cuMemcpyAsync"}
"""The calls that can copy from pinned memory of the host, and return before they have read it."""
_TARGETS = {"copy of rows": 128, "graph node": 24, "stream made": 8, "event made": 8,
            "foreign event": 8}  # fmt: skip
"""The bytes to which a field points, by the kinds of calls that have them noted."""
_WHEN = {"copy and wait": _AT_BEGINNING | _AT_END} | dict.fromkeys((
    "free and wait", "memory gone", "event done", "stream done", "device done", "begin of capture",
    "stream made", "event made", "foreign event", "allocation", "memory made", "memory mapped",
    "memory unmapped"), _AT_END)  # fmt: skip
"""The kinds of calls whose end counts too, or alone."""

# What it notes.
_CHUNK = struct.Struct("<QQ8x")  # the one before it, bytes
_HEAD = struct.Struct("<IHBBIIQQQqQ")
_OF_LAUNCH = struct.Struct("<QQ")  # the kernel, whether the parameters are known
_KERNEL = struct.Struct("<16xQi8x")  # its symbol, the number of its parameters
_MEMORY = struct.Struct("<QQi4xQ")
_CONTENT = struct.Struct("<QQQ")
_HOST_MEMORY = 1
_FAILED, _CAPTURED = 1, 2

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
    chunk: int | None
    """The newest chunk of the facts before it, so that a block reads its own facts alone."""
    notice: Callable[[], object] | None


class Subscription:
    """The one subscription of the process to CUPTI, which all listeners share."""

    def __init__(self) -> None:
        self._lock = new_lock()
        self._listeners: list[Listener] = []
        self._cupti: Any = None
        self._handle = ctypes.c_void_p()
        self._recorder: Any = None
        self._files: tuple[object, ...] = ()  # which the recorder reads

    @property
    def count(self) -> int:
        """The number of facts so far."""
        return self._number("count").value if self._listeners else 0

    def open(self, notice: Callable[[], object] | None = None) -> Listener:
        """Note calls from now on, until ``close``, with their lines.

        The main thread calls ``notice`` soon after a call that comes from a line which was not met
        before. Launches have lines, and uploads digests of pinned memory, only if some listener has
        a ``notice``. NoCallbacksError if there is no recorder or no CUPTI, or CUPTI serves another
        tool.
        """
        with self._lock:
            if not self._listeners:
                self._begin(_find(), load())
            begin, chunk = self._end()
            found = Listener(begin, chunk, notice)
            self._listeners.append(found)
            self._tell_of_races()
            return found

    def close(self, listener: Listener) -> tuple[list[Fact], int]:
        """Return what was noted for a listener, and how many calls could not be noted.

        The last listener that closes ends the subscription.
        """
        with self._lock:
            end, lost = self.count, self._number("lost").value
            self._listeners = [one for one in self._listeners if one is not listener]
            self._tell_of_races()
            is_last = not self._listeners
            if is_last and not loader.is_forked:  # CUPTI is the parent's
                for number in _WATCHED:
                    self._cupti.cuptiEnableCallback(0, self._handle, _DRIVER_API, number)
                self._cupti.cuptiUnsubscribe(self._handle)
            facts = [*_facts(self._recorder, listener, end)]
            if is_last:
                self._cupti = None
                self._recorder.recorder_note(0)
            return facts, lost

    def _end(self) -> tuple[int, int | None]:
        """Return how many facts there are, and the newest chunk, which gets no more of them."""
        while True:
            count, chunk = self._number("count").value, self._recorder.recorder_read()
            if count == self._number("count").value:  # no thread has noted one meanwhile
                return count, chunk

    def _number(self, name: str, kind: Any = ctypes.c_uint64) -> Any:
        return kind.in_dll(self._recorder, f"recorder_{name}")

    def _tell_of_races(self) -> None:
        count = sum(one.notice is not None for one in self._listeners)
        self._number("of_races", ctypes.c_int).value = count

    def _begin(self, cupti: Any, recorder: Any) -> None:
        self._recorder, self._handle = recorder, ctypes.c_void_p()
        functions = [_address(one) for one in driver_functions()]
        self._number("driver", ctypes.c_void_p * len(functions))[:] = functions
        if has_lines():
            files = places.files_of_libraries()
            texts = (ctypes.c_void_p * (len(files) + 1))(*map(id, files))  # the last one is NULL
            self._number("python", ctypes.c_void_p * 6)[5] = id(self)
            recorder.recorder_have_lines(texts)
            self._files = files, texts  # the recorder reads the older ones no more
        code = cupti.cuptiSubscribe(ctypes.byref(self._handle), recorder.recorder_call, None)
        if code == _TAKEN:
            raise RefusedError(
                "another tool has CUPTI, which serves one at a time. A profiler that has run "
                "keeps it until the process ends"
            )
        if code:
            raise RefusedError(f"CUPTI answers {code}, because it does not fit this driver")
        self._cupti = cupti
        self._number("notice", ctypes.c_int).value = 0
        recorder.recorder_note(1)
        for number in _WATCHED:  # an older CUPTI does not know the newest calls
            cupti.cuptiEnableCallback(1, self._handle, _DRIVER_API, number)

    def __bool__(self) -> bool:
        """Tell the listeners of new lines; a callback of ctypes would swallow what they raise."""
        self._number("notice", ctypes.c_int).value = 0
        for notice in [one.notice for one in self._listeners if one.notice is not None]:
            notice()
        return False


subscription: Subscription = Subscription()


# -- what is noted ---------------------------------------------------------------------------------


def _facts(recorder: Any, listener: Listener, end: int) -> Iterator[Fact]:
    """Yield a listener's facts, as far as that of number ``end``; they count from its first."""
    place_at, kernel_at = functools.cache(frames.place_at), functools.cache(_kernel)
    begin = listener.begin
    for head, fields, noted in itertools.islice(_records(recorder, listener.chunk), end - begin):
        _, call, fate, sort, thread, _, context, stream, place, since, _ = head
        beside: Any = noted or None
        if fate == _FAILED:
            beside = FAILED
        elif sort in _LAUNCHES:
            kernel, is_known = _OF_LAUNCH.unpack_from(noted)
            symbol, layout = kernel_at(kernel)
            found = layout.unpack_from(noted, _OF_LAUNCH.size) if is_known else None
            beside = Kernel(symbol, found)
        elif sort == _TARGET and since >= 0:
            beside = int.from_bytes(noted, "little")
        elif _FREED <= sort <= _MEMORY_MAPPED:
            first, length, kind, owner = _MEMORY.unpack(noted)
            beside = Allocation(first, length, kind == _HOST_MEMORY, owner) if length else None
        elif sort in _UPLOADS:
            beside = tuple(_CONTENT.iter_unpack(noted))
        ended = None if since < 0 else since - begin
        captured = fate == _CAPTURED
        yield Fact(call, thread, context, fields, place_at(place), beside, ended, stream, captured)


def _records(recorder: Any, last: int | None) -> Iterator[tuple[tuple[int, ...], bytes, bytes]]:
    """Yield the head of each fact after a chunk, its parameters, and what was noted beside them."""
    chunks: list[tuple[int, int]] = []
    chunk = recorder.recorder_read()
    while chunk and chunk != last:
        before, used = _CHUNK.unpack(ctypes.string_at(chunk, _CHUNK.size))
        chunks.append((chunk + _CHUNK.size, used))
        chunk = before
    for chunk, used in reversed(chunks):
        data, at = ctypes.string_at(chunk, used), 0
        while at < used:
            head = _HEAD.unpack_from(data, at)
            start = at + _HEAD.size
            beside = start + -(-head[5] // 8) * 8
            yield head, data[start : start + head[5]], data[beside : beside + head[10]]
            at += head[0]


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
        "<10Q15i",
        *map(_address, (api.PyGILState_GetThisThreadState, api.Py_AddPendingCall)),
        *map(_address, (api.PyObject_IsTrue, api.PyErr_ExceptionMatches, api.PyErr_Clear)),
        0,
        *map(id, (RecursionError, type(_plan.__code__), str, bytes)),
        *offsets,
    )
    (ctypes.c_char * len(given)).in_dll(recorder, "recorder_python").raw = given
    no_files = ctypes.c_void_p()
    recorder.recorder_have_lines(ctypes.byref(no_files))
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
    if call.name in _FROM_PINNED:
        at, more = 8, _UPLOAD  # the byte of their source
    stream = _NULL_STREAM if kind in WORK else _NO_STREAM
    stream = _OF_CONFIGURATION if more == _LAUNCH_WITH else stream
    stream = stream if call.stream is None else call.stream
    flags = _PER_THREAD * call.is_per_thread | _FLAGS.get(kind, 0)
    return _PLAN.pack(size, _WHEN.get(kind, _AT_BEGINNING), more, at, length, stream, flags)


# -- CUPTI -----------------------------------------------------------------------------------------


def _find() -> Any:
    """Return libcupti: the one that is loaded, else one that can be; NoCallbacksError."""
    if sys.platform != "linux":
        raise NoCallbacksError("CUPTI's callbacks are used on Linux only")
    library = toolkit.load("cupti", NEWEST, OLDEST)
    if library is None:
        line = toolkit.install_line("cupti", loader.driver_version() // 1000)
        raise NoCallbacksError(f"there is no libcupti: {line}")
    return library
