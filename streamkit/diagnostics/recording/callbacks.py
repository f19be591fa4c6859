"""The driver calls of all threads, noted by CUPTI's callbacks while there is a listener.

A callback costs the caller time at each launch, so it stores the arguments of the call and nothing
more. It asks the driver once for the sizes of each kernel's parameters, and about memory or a
stream that is made or ends, because nobody can tell that afterwards.
"""

from __future__ import annotations

import _thread
import ctypes
import functools
import struct
import sys
import threading
from typing import TYPE_CHECKING, Any, NamedTuple

from streamkit._cuda import loader, memory_pools
from streamkit._support.locks import new_lock
from streamkit.diagnostics.doctor import toolkit
from streamkit.diagnostics.recording.calls import CALLS, UNKNOWN
from streamkit.protocols.libraries import NEWEST, OLDEST

if TYPE_CHECKING:
    from collections.abc import Callable

_DRIVER_API = 1  # CUPTI's domain of these callbacks
_TAKEN = 39  # another tool has subscribed
_MEMORY: Any = (ctypes.c_char * sys.maxsize).from_address(0)
"""The memory of this process: to read it so takes half as long as by other objects of ctypes."""
_CALLBACK = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int, ctypes.c_uint32, ctypes.c_void_p)
_DATA = struct.Struct("<i12xQQQQ")  # site, parameters, result, symbol, context
_BEGIN = b"\0"  # the site where a call begins
_NAME = 8  # where the call's name is in the data
_WORD = struct.Struct("<Q")
_DATA_OF_LAUNCH = struct.Struct("<16xQ16xQ")  # parameters, context
_LAUNCH = struct.Struct("<Q32xQQ")  # function, stream, pointers to the kernel's parameters
_LAUNCH_WITH_MORE = struct.Struct("<QQQ")  # configuration, function, these pointers
_STREAM_OF_CONFIGURATION = 32
_ROWS = 128  # bytes of CUDA_MEMCPY2D
_NODE = 24  # bytes of CUgraphNodeParams: the sort of node, and the event of a node that has one
_NO_MORE = 1  # the answer for a parameter that the kernel does not have
_BUFFER, _SIZE = 1, 2  # keys in ``extra`` of a launch
_NONBLOCKING = 1  # the flag of a stream


class _Here(threading.local):
    """Keeps the system's number of a thread, because each call needs it."""

    def __init__(self) -> None:
        self.thread: int = _thread.get_native_id()


here: _Here = _Here()
"""``here.thread`` tells threads apart that follow one another, which Python's idents do not."""


class Fact(NamedTuple):
    """One call of the driver; noted as a plain tuple, which is faster."""

    call: int
    """The number of the call in ``CALLS``."""
    thread: int
    """The caller's ``here.thread``."""
    context: int
    """The CUcontext that was current."""
    fields: bytes
    """The arguments; empty for the launch of a kernel, the name of an unknown call."""
    place: Any
    """The answer of the listener's ``place`` during the call."""
    more: Any = None
    """The data to which the fields point, or the driver's answer about these."""
    since: int | None = None
    """For a call that has ended, how many facts there were when it began; else None."""


FAILED = object()
"""``more`` of a fact that says that the thread's latest call with this number has failed."""


class Kernel(NamedTuple):
    """A launch: ``more`` of its fact, noted as a plain tuple."""

    symbol: str
    stream: int
    parameters: tuple[bytes, ...] | None
    """None if the parameters cannot be read."""


class NoCallbacksError(Exception):
    """There are no callbacks here; the text says why, and what to do."""


class RefusedError(NoCallbacksError):
    """CUPTI is here, and does not serve this process now."""


def _of_kind(*kinds: str) -> frozenset[int]:
    return frozenset(number for number, call in CALLS.items() if call.kind in kinds)


_MEMORY_ENDS = _of_kind("free and wait", "memory gone")
_ENDING = _MEMORY_ENDS | _of_kind(
    "event done", "stream done", "device done", "copy and wait", "begin of capture",
    "stream made", "event made", "foreign event",
    "allocation", "memory made", "memory mapped", "memory unmapped",
)  # fmt: skip
"""The calls whose end counts too, or alone."""
_BEGINNING = (CALLS.keys() - _ENDING) | _of_kind("copy and wait")
_WITH_MORE = _of_kind("launch with more")
_LAUNCHES = {
    number: (2 if CALLS[number].is_per_thread else 1, number in _WITH_MORE)
    for number in _of_kind("launch") | _WITH_MORE
}
"""For each launch, what the null stream is, and whether a configuration comes first."""
_UNLOADING = _of_kind("code unloaded")
_WATCHED = [*CALLS, *UNKNOWN]


class Subscription:
    """The one subscription of the process to CUPTI, which all listeners share."""

    def __init__(self) -> None:
        self._lock = new_lock()
        self._open = 0
        self._library: Any = None
        self._handle = ctypes.c_void_p()
        self._callback: Any = None
        self._calls: Any = None
        self._places: list[tuple[Callable[[], Any], bool]] = []
        self.noted_by: Any = None
        """The function that CUPTI calls."""
        self.facts: list[Any] = []
        """The fields of a ``Fact`` for each call, in the order of the calls."""
        self._lost: list[int] = []

    @property
    def lost(self) -> int:
        """The number of calls that could not be read."""
        return len(self._lost)

    def open(
        self, place: Callable[[], Any] | None = None, *, of_launches: bool = True
    ) -> list[Any]:
        """Note calls from now on, until ``close``; return the list to which they are added.

        The callback calls ``place`` in the thread that called the driver, for launches only if
        ``of_launches``. The first listener's is called, or the first that is for launches too if
        there is one. NoCallbacksError if CUPTI is missing, or serves another tool.
        """
        with self._lock:
            if not self._open:
                library = _find()
                self.facts, self._lost = [], []
                self._calls, self._places = _CallReader(self.facts), []
                self.noted_by = self._reader(self._calls)
                self._callback = _CALLBACK(self.noted_by)
                self._begin(library)
            self._open += 1
            if place is not None:
                self._places.append((place, of_launches))
                self._take_places()
            return self.facts

    def close(self, place: Callable[[], Any] | None = None) -> None:
        """Stop when the last listener closes; each gives the ``place`` that it opened with."""
        with self._lock:
            self._open -= 1
            if place is not None:
                self._places.remove(next(one for one in self._places if one[0] == place))
                self._take_places()
            if not self._open:
                self._end()

    def _take_places(self) -> None:
        of_launches = [place for place, is_for_launches in self._places if is_for_launches]
        calls, every = self._calls, [*of_launches, *(place for place, _ in self._places)]
        calls.place = every[0] if every else _nowhere
        calls.place_of_launch = of_launches[0] if of_launches else _nowhere

    def _begin(self, library: Any) -> None:
        self._handle = ctypes.c_void_p()
        code = library.cuptiSubscribe(ctypes.byref(self._handle), self._callback, None)
        if code:
            why = f"CUPTI answers {code}, because it does not fit this driver"
            if code == _TAKEN:
                why = (
                    "another tool has CUPTI, which serves one at a time. A profiler that has run "
                    "keeps it until the process ends"
                )
            raise RefusedError(why)
        self._library = library
        for number in _WATCHED:  # an older CUPTI does not know the newest calls
            library.cuptiEnableCallback(1, self._handle, _DRIVER_API, number)

    def _end(self) -> None:
        self.facts = []  # the listeners have the old list
        library, self._library = self._library, None
        if not loader.is_forked:  # CUPTI is the parent's
            for number in _WATCHED:
                library.cuptiEnableCallback(0, self._handle, _DRIVER_API, number)
            library.cuptiUnsubscribe(self._handle)

    def _reader(self, reader: _CallReader) -> Callable[[Any, int, int, int], None]:
        """Return the callback, which runs at the beginning and at the end of each call."""
        launches, launch, other = _LAUNCHES, reader.launch, reader.other

        def callback(_user: object, _domain: int, call: int, data: int) -> None:
            try:
                if call in launches:
                    if _MEMORY[data] == _BEGIN:
                        launch(call, data)
                else:
                    (reader.unknown if call in UNKNOWN else other)(call, data)
            except KeyboardInterrupt:  # ctypes would swallow it
                _thread.start_new_thread(_thread.interrupt_main, ())  # raised after the call
            except BaseException:  # noqa: BLE001 - the caller is a C function
                self._lost.append(call)  # not a count, which two threads could raise by one

        return callback


def _nowhere() -> None:
    """Return no place, for listeners that do not ask for places."""


def _word(address: int) -> int:
    return _WORD.unpack_from(_MEMORY, address)[0]  # type: ignore[no-any-return]  # an int


def _failed(result: int) -> bool:
    """Whether a call has returned another code than 0."""
    return any(_MEMORY[result : result + ctypes.sizeof(ctypes.c_int)])


class _CallReader:
    """Reads calls at their beginning and at their end, and remembers kernels."""

    def __init__(self, facts: list[Any]) -> None:
        self._facts = facts
        self.place: Callable[[], Any] = _nowhere
        self.place_of_launch: Callable[[], Any] = _nowhere
        self._begun: dict[int, tuple[int, Any]] = {}  # by threads
        self._kernels: dict[int, tuple[str, _Layout | None]] = {}

    def launch(self, call: int, data: int) -> None:
        fields, context = _DATA_OF_LAUNCH.unpack_from(_MEMORY, data)
        default, has_configuration = _LAUNCHES[call]
        if has_configuration:
            configuration, function, pointers = _LAUNCH_WITH_MORE.unpack_from(_MEMORY, fields)
            stream = _word(configuration + _STREAM_OF_CONFIGURATION)
        else:
            function, stream, pointers = _LAUNCH.unpack_from(_MEMORY, fields)
        known = self._kernels.get(function)
        if known is None:
            symbol = _DATA.unpack_from(_MEMORY, data)[3]
            name = ctypes.string_at(symbol).decode(errors="replace") if symbol else "a kernel"
            known = self._kernels[function] = name, _layout(function)
        name, layout = known
        parameters: Any = None
        if layout is not None and pointers:
            pairs = zip(layout.pointers(_MEMORY, pointers), layout.sizes)  # noqa: B905 - as many
            parameters = tuple([_MEMORY[one : one + size] for one, size in pairs])
        elif layout is not None:
            *_, extra = CALLS[call].fields.unpack_from(_MEMORY, fields)
            parameters = _packed(extra, layout)
        kernel = name, stream or default, parameters
        place = self.place_of_launch()
        self._facts.append((call, here.thread, context, b"", place, kernel, None))

    def other(self, call: int, data: int) -> None:
        is_end, fields, result, _, context = _DATA.unpack_from(_MEMORY, data)
        thread, since, more = here.thread, None, None
        if is_end:
            if call in _ENDING:
                since, more = self._begun.pop(thread, (len(self._facts), None))
            if _failed(result):  # the call failed, or a query found work that has not ended
                if call in _BEGINNING:
                    self._facts.append((call, thread, context, b"", None, FAILED, None))
                return
            if call not in _ENDING:
                return
        elif call in _ENDING:
            self._begun[thread] = (
                len(self._facts),
                _memory(fields) if call in _MEMORY_ENDS else None,
            )
            if call not in _BEGINNING:
                return
        given = _MEMORY[fields : fields + CALLS[call].fields.size]
        read = (_MORE_AT_END if is_end else _MORE_AT_BEGINNING).get(call)
        if read is not None:
            more = read(fields)
        if call in _UNLOADING:
            self._kernels.clear()  # new kernels can get the handles
        self._facts.append((call, thread, context, given, self.place(), more, since))

    def unknown(self, call: int, data: int) -> None:
        """Note a call that is not in the table by its name."""
        if _MEMORY[data] == _BEGIN:
            name, thread = ctypes.string_at(_word(data + _NAME)), here.thread
            context = _DATA.unpack_from(_MEMORY, data)[4]
            self._facts.append((call, thread, context, name, self.place(), None, None))


# -- data that the fields do not hold, read or asked for at the call ------------------------------


def _made(fields: int) -> int:
    """Return the handle or address that a call has written where its first field points."""
    return _word(_word(fields))


def _stream_made(fields: int) -> tuple[int, int | None]:
    handle = _made(fields)
    return handle, _stream(handle)[0]


def _memory(fields: int) -> memory_pools.Allocation | None:
    """Return the memory whose address is the first field."""
    return memory_pools.allocation(_word(fields))


def _memory_made(fields: int, call: int) -> memory_pools.Allocation:
    """Return new or mapped memory as the driver has it, else as the call asked for it."""
    address = (_word if CALLS[call].kind == "memory mapped" else _made)(fields)
    has_size = CALLS[call].fields.size > _WORD.size
    size = _word(fields + _WORD.size) if has_size else 1
    asked_for = memory_pools.Allocation(address, size, is_host=False, context=0)
    return memory_pools.allocation(address) or asked_for


def _target(fields: int, place: int, size: int) -> Any:
    """Return the first bytes to which a field points."""
    address = _word(fields + place)
    return _MEMORY[address : address + size]


_MORE_AT_BEGINNING: dict[int, Callable[[int], Any]] = {
    **dict.fromkeys(_of_kind("copy of rows"), functools.partial(_target, place=0, size=_ROWS)),
    **{
        number: functools.partial(_target, place=CALLS[number].fields.size - _WORD.size, size=_NODE)
        for number in _of_kind("graph node")
    },
    **dict.fromkeys(_of_kind("stream destroyed"), lambda fields: _stream(_word(fields))),
    **dict.fromkeys(_of_kind("free"), _memory),
}
_MORE_AT_END: dict[int, Callable[[int], Any]] = {
    **dict.fromkeys(_of_kind("stream made"), _stream_made),
    **dict.fromkeys(_of_kind("event made", "foreign event"), _made),
    **{
        number: functools.partial(_memory_made, call=number)
        for number in _of_kind("allocation", "memory made", "memory mapped")
    },
}


class _Layout:
    """The parameters of a kernel."""

    def __init__(self, parameters: list[tuple[int, int]]) -> None:
        self.parameters = parameters
        """The offset and size of each."""
        self.pointers = struct.Struct(f"<{len(parameters)}Q").unpack_from
        self.sizes = [size for _, size in parameters]


def _stream(handle: int) -> tuple[int | None, bool | None]:
    """Return the context of a stream, and whether it is blocking; None where that is not known.

    A capturing stream is not asked for its flags, because that would break the capture.
    """
    stream, context = ctypes.c_void_p(handle), ctypes.c_void_p()
    if loader.with_gil("cuStreamGetCtx")(stream, ctypes.byref(context)):
        return None, None
    is_capturing, flags = ctypes.c_int(), ctypes.c_uint()
    code = loader.with_gil("cuStreamIsCapturing")(stream, ctypes.byref(is_capturing))
    if code or is_capturing.value:
        return context.value, None
    code = loader.with_gil("cuStreamGetFlags")(stream, ctypes.byref(flags))
    return context.value, None if code else not flags.value & _NONBLOCKING


def _layout(function: int) -> _Layout | None:
    """Return the parameters of a kernel, None if the driver does not tell."""
    offset, size = ctypes.c_size_t(), ctypes.c_size_t()
    where = ctypes.byref(offset), ctypes.byref(size)
    for call in ("cuFuncGetParamInfo", "cuKernelGetParamInfo"):  # a CUkernel can be launched too
        try:
            ask = loader.with_gil(call)
        except AttributeError:  # a driver of CUDA 12.3 or older
            return None
        found: list[tuple[int, int]] = []
        while not (code := ask(ctypes.c_void_p(function), ctypes.c_size_t(len(found)), *where)):
            found.append((offset.value, size.value))
        if code == _NO_MORE:
            return _Layout(found)
    return None


def _packed(extra: int, layout: _Layout) -> tuple[bytes, ...] | None:
    """Return the parameters that are given in one buffer."""
    found = {}
    while extra and (what := _word(extra)):
        found[what] = _word(extra + 8)
        extra += 16
    if _BUFFER not in found or _SIZE not in found:
        return None if layout.parameters else ()
    data = ctypes.string_at(found[_BUFFER], _word(found[_SIZE]))
    return tuple(data[offset : offset + size] for offset, size in layout.parameters)


# -- the library ------------------------------------------------------------------------------


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


subscription: Subscription = Subscription()
