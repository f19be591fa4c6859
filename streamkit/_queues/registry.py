"""The adapter of each object: the one table of library names.

A library's type is recognised by the root packages of its bases, without importing anything: if
the library is not in ``sys.modules``, no object can be its stream. Packages that are not in the
table come through the entry-point group ``streamkit.backends``, read only on a miss.
"""

from __future__ import annotations

import functools
import importlib
import sys
import warnings
import weakref
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from streamkit import errors
from streamkit._cuda import devices, loader
from streamkit._support import messages
from streamkit.backends import _cuda_python, _cupy, _numba, _rmm, _torch, _tvm_ffi, _warp
from streamkit.protocols import API, Adapter, CurrentStream, Events, Queue
from streamkit.protocols import libraries as library_rows
from streamkit.protocols.adapters import bind_by_steps, offered

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from importlib.metadata import EntryPoint

    Load = Callable[[EntryPoint], Adapter | None]

FoundT = TypeVar("FoundT")
CalledT = TypeVar("CalledT", bound="Callable[..., Any]")

ENTRY_POINTS = "streamkit.backends"
_ABSENT = object()
_CLOSE = 0.8  # the likeness of a misspelled library's name; "numpy" is not so like any

LIBRARIES = library_rows.LIBRARIES
LIBRARIES[:] = [
    _torch.LIBRARY,
    _cupy.LIBRARY,
    _warp.LIBRARY,
    _tvm_ffi.LIBRARY,
    _numba.LIBRARY,
    _numba.MLIR,
    _rmm.LIBRARY,
    _cuda_python.CORE,
    _cuda_python.BINDINGS,
]

_SERVED = {row.root for row in LIBRARIES}

BY_NAME = {name: row for row in LIBRARIES for name in (row.name, *row.aliases)}
"""Each library by each of its names."""


def uncompiled(called: CalledT) -> CalledT:
    """Have the libraries' compilers call a function, or what users call of a class, as it is.

    They would follow a call down to the driver, which takes seconds, and break off there with an
    error about an object that users never see.
    """
    given: Any = called
    members = vars(given) if isinstance(given, type) else {given.__name__: given}
    for name, member in members.items():
        is_called = name in ("__init__", "__enter__") or not name.startswith("_")
        if is_called and isinstance(member, FunctionType):
            for row in LIBRARIES:
                vars(member).update(row.uncompiled)
    return called


_BY_MODULE = {row.module: row for row in LIBRARIES}


class EventLibrary(NamedTuple):
    """The functions for a library's events that StreamKit calls, looked up once for each type."""

    adapter: Adapter
    handle: Callable[[Any], int]
    device: Callable[[Any], int | None] | None
    record: Callable[[Any, Any], None] | None


class Capability(Generic[FoundT]):
    """One kind of objects that libraries have, such as events, and the adapter of each type."""

    def __init__(self, read: Callable[[Adapter, Any], FoundT | None]) -> None:
        """``read(adapter, obj)`` returns the adapter's prepared functions for the object.

        For an object of another library it returns None or raises TypeError.
        """
        self.read = read
        self.types: dict[type, FoundT] = {}
        """The results of ``find`` by the type of the object; filled by ``remember``."""


stream_types: dict[type, Adapter] = {}
"""The adapters that have read streams, by the type of the stream; filled by ``remember``."""


class _WeakType(weakref.ref[type]):
    """A key that a lookup with the type itself finds, and that does not keep the type alive."""

    __slots__ = ()
    __hash__ = weakref.ref.__hash__

    def __eq__(self, other: object) -> bool:
        return self is other or self() is other


def remember(types: dict[type, FoundT], kind: type, found: FoundT, library: str) -> None:
    """Note the server of a type in a table, which keeps only the library's own types alive.

    A program may make its classes anew in each call, and their functions hold the call's objects.
    """
    root = _root(kind)
    if root in _SERVED or root == library:
        types[kind] = found  # a lookup by identity is quicker
    elif kind not in types:
        key: Any = _WeakType(kind, lambda key: types.pop(key, None))  # type: ignore[call-overload]
        types[key] = found


# -- by name ----------------------------------------------------------------------------------


def adapter(library: str) -> Adapter:
    """Return the adapter of a library by name, importing the library.

    BackendNotInstalledError if it cannot be imported, UnsupportedStreamError for no such name.
    """
    row = BY_NAME.get(library) if isinstance(library, str) else None
    if row is not None:
        return _load_row(row.name)
    check_name(library)
    return next(_load_entry(entry) for entry in _entry_points() if entry.name == library)


def check_name(library: str) -> None:
    """Raise UnsupportedStreamError if no adapter has this name; imports nothing."""
    if isinstance(library, str) and (
        library in BY_NAME or any(entry.name == library for entry in _entry_points())
    ):
        return
    if devices.is_device(library):
        instead = ", which is a device"
    else:
        meant = _meant(library)
        instead = f": write {meant!r}" if meant else ""
    raise errors.UnsupportedStreamError(
        f"StreamKit has no adapter for {messages.describe(library)}{instead}. Known: "
        f"{', '.join(sorted(known()))}. Others come as packages with an entry point in the group "
        f"{ENTRY_POINTS!r}."
    )


def _meant(library: object) -> str | None:
    """Return the library that a misspelled name means, or the name of its distribution."""
    import difflib  # noqa: PLC0415 - slow to import, and for errors only

    names = {name.lower(): row.name for name, row in BY_NAME.items()}
    names |= {row.distribution: row.name for row in LIBRARIES}
    given = library.__name__ if isinstance(library, ModuleType) else str(library)
    close = difflib.get_close_matches(given.lower(), names, 1, _CLOSE)
    return names[close[0]] if close else None


def known() -> list[str]:
    """Return the names ``adapter`` takes, without importing a library."""
    return [row.name for row in LIBRARIES] + [entry.name for entry in _entry_points()]


@functools.cache
def _load_row(name: str) -> Adapter:
    row = BY_NAME[name]
    try:
        importlib.import_module(row.module)
        if row.stand_in is None:
            module: Any = importlib.import_module(f"streamkit.backends.{row.adapter}")
            return getattr(module, "adapter", module)  # type: ignore[no-any-return]  # as it says
    except ImportError as error:
        if row.stand_in is None:
            raise loader.not_installed(row.name, error) from error
    raise errors.BackendNotInstalledError(
        f"{row.label} cannot be used: {row.stand_in}. {row.stand_in_remedy}", name=row.name
    )


@functools.cache
def _entry_points() -> tuple[EntryPoint, ...]:
    from importlib.metadata import entry_points  # noqa: PLC0415 - a third of the import time

    return tuple(entry_points(group=ENTRY_POINTS))


@functools.cache
def _load_entry(entry: EntryPoint) -> Adapter:
    plugin = f"the plugin {entry.name!r} ({entry.value})"
    try:
        loaded = entry.load()
        has_steps = hasattr(loaded, "enter") and not hasattr(loaded, "bind")  # may raise anything
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # SystemExit too, which would end the program without a word
        message = f"{plugin} cannot be imported: {error!r}. Reinstall it, or uninstall it."
        raise errors.BackendNotInstalledError(message, name=entry.name) from error
    if not isinstance(loaded, Adapter) or isinstance(loaded, type):
        message = (
            f"{plugin} is not an adapter: it must be a module or an instance with name, api, "
            "extract(obj) and borrow(queue). Ask its author."
        )
    elif loaded.api != API:
        message = (
            f"{plugin} was written for adapter contract {loaded.api}, and this StreamKit speaks "
            f"{API}. Install matching versions of the two."
        )
    else:
        if has_steps:
            steps: Any = loaded
            steps.bind = bind_by_steps(steps.enter, steps.leave)
        return loaded
    raise errors.BackendNotInstalledError(message, name=entry.name)


_unusable: dict[EntryPoint, str] = {}


def _usable(entry: EntryPoint) -> Adapter | None:
    """Return a plugin's adapter; None if it cannot be used, after one warning that says why."""
    try:
        return None if entry in _unusable else _load_entry(entry)
    except errors.BackendNotInstalledError as error:
        text, roots = str(error), {name.partition(".")[0] for name in (entry.name, entry.module)}
        if any(library_rows.is_half_imported(sys.modules.get(root)) for root in roots):
            return None  # it can be used once its library is imported
        if _unusable.setdefault(entry, text) is text:  # else another thread has said it
            warnings.warn(text, RuntimeWarning, stacklevel=2)
        return None


# -- by object --------------------------------------------------------------------------------


def extract(obj: object) -> tuple[Queue, Adapter]:
    """Return the queue that the adapter of the object's library reads from it, and the adapter.

    UnsupportedStreamError if it is not a library's stream.
    """
    adapter = stream_types.get(type(obj))
    return recognise(obj) if adapter is None else (adapter.extract(obj), adapter)


def _check(queue: Any, adapter: Adapter, obj: object) -> None:
    """Refuse what an adapter has read from the first object of a type, if it is no queue."""
    is_queue = isinstance(queue, Queue)
    read: Any = queue.handle if is_queue else queue
    is_int = is_queue and isinstance(read, int) and not isinstance(read, bool)
    if not is_int or not 0 <= read < 2**64:
        raise TypeError(
            f"the adapter {adapter.name!r} read {messages.describe(read)} from "
            f"{messages.describe(obj)}, and not a streamkit.protocols.Queue whose handle is an int "
            "from 0 to 2**64 - 1. Ask its author."
        )


def recognise(obj: object) -> tuple[Queue, Adapter]:
    """``extract`` for an object of a type not seen before."""
    kind = type(obj)
    if obj is None or isinstance(obj, (type, bool, int, float, str)):
        raise messages.not_a_stream(obj)
    refusal: TypeError | None = None
    for candidate in candidates(kind, _load_entry):
        try:
            queue = candidate.extract(obj)
        except TypeError as error:  # not its stream: perhaps the next one's
            refusal = refusal or error
        else:
            _check(queue, candidate, obj)
            remember(stream_types, kind, candidate, candidate.name)
            return queue, candidate
    if speaks_protocol(obj):
        protocol: Any = importlib.import_module("streamkit.backends._protocol")
        queue = protocol.extract(obj)
        # not for a method beside the class, for a library that is imported only in part by now,
        # and for StreamKit's own streams, which ``wrap`` knows
        if hasattr(kind, "__cuda_stream__") and _roots(kind).isdisjoint({*_SERVED, "streamkit"}):
            remember(stream_types, kind, protocol, protocol.name)
        return queue, protocol
    for row in LIBRARIES:
        if row.root in _roots(kind) and row.stand_in is not None:
            raise errors.UnsupportedStreamError(
                f"cannot wrap {messages.describe(obj)}: {row.stand_in}. {row.stand_in_remedy}"
            )
    raise refusal or messages.not_a_stream(obj)


def find(obj: object, capability: Capability[FoundT]) -> FoundT | None:
    """Return the server of an object, or None if no adapter with this capability knows it.

    The first adapter that accepts the object serves all objects of its type from then on.
    """
    kind = type(obj)
    found = capability.types.get(kind)
    if found is not None:
        return found
    for candidate in candidates(kind):
        try:
            found = capability.read(candidate, obj)
        except TypeError:  # the object is not of this library, but perhaps of the next one
            continue
        if found is not None:
            remember(capability.types, kind, found, candidate.name)
            return found
    return None


def _read_event(adapter: Adapter, obj: Any) -> EventLibrary | None:
    if not isinstance(adapter, Events):
        return None
    adapter.event_handle(obj)  # raises TypeError if the object is not an event of the library
    return EventLibrary(
        adapter,
        adapter.event_handle,
        offered(adapter, Events.event_device),
        offered(adapter, Events.record_event),
    )


def _read_work(adapter: Any, obj: object) -> Any:
    work_of = offered(adapter, CurrentStream.work_of)
    if work_of is None:
        return None
    work_of(obj)  # raises TypeError if the object is no work of the library
    return adapter


_EVENTS = Capability(_read_event)
_WORK: Capability[Any] = Capability(_read_work)
_event_types = _EVENTS.types  # so that a wait for an event looks into the table at once


def event_library(obj: object) -> EventLibrary | None:
    """Return the functions that read an event of this object's library; None for no event."""
    library = _event_types.get(type(obj))
    return find(obj, _EVENTS) if library is None else library


def work_library(obj: object) -> Any:
    """Return the adapter whose ``work_of`` reads the object; None for an object that is no work."""
    return find(obj, _WORK)


def speaks_protocol(obj: object) -> bool:
    """Whether an object that is no class has ``__cuda_stream__``, without a call of it."""
    import inspect  # noqa: PLC0415 - slow to import, and seldom needed

    found = inspect.getattr_static(obj, "__cuda_stream__", _ABSENT)
    return found is not _ABSENT and not isinstance(obj, type)


def is_foreign(obj: object) -> bool:
    """Whether an object is some library's stream or event."""
    if speaks_protocol(obj):
        return True
    try:
        extract(obj)
    except TypeError:  # no library's stream
        return event_library(obj) is not None
    return True


def is_loaded(module: str) -> bool:
    """Whether a library is imported completely: before that it has no streams.

    A module that only has the name of the library's module does not count.
    """
    found = sys.modules.get(module)
    if found is None:  # not imported, or an import that is forbidden
        return False
    row = _BY_MODULE.get(module)
    is_own = library_rows.is_module(found) if row is None else row.is_module(found)
    if not is_own or library_rows.is_half_imported(found):
        return False
    parent, _, child = module.rpartition(".")
    return not parent or hasattr(sys.modules.get(parent), child)  # bound when it is complete


def candidates(kind: type, load: Load = _usable) -> Iterator[Adapter]:
    """Return the adapters whose library may have made this type; ``load`` loads a plugin's."""
    roots = _roots(kind)
    for row in LIBRARIES:
        if row.root in roots and is_loaded(row.module):
            yield _load_row(row.name)
    for entry in _entry_points():
        is_of = entry.name in roots or entry.value.partition(".")[0].partition(":")[0] in roots
        if is_of and (found := load(entry)) is not None:
            yield found


def _roots(kind: type) -> set[str]:
    """Return the root packages of the type's bases."""
    return {_root(base) for base in kind.__mro__}


def _root(kind: type) -> str:
    return str(kind.__module__).partition(".")[0]


# -- with a current stream --------------------------------------------------------------------


def loaders_with_current() -> Mapping[str, Callable[[], Adapter | None]]:
    """Return, by the module to watch, the loader of each adapter that may have a current stream."""
    rows = [row for row in LIBRARIES if row.has_current]
    own = {row.module: functools.partial(_load_row, row.name) for row in rows}
    return own | {entry.name: functools.partial(_usable, entry) for entry in _entry_points()}


def loaded() -> Mapping[str, Callable[[], Adapter | None]]:
    """Return, by name, the loader of the adapter of each library that is loaded."""
    rows = [row for row in LIBRARIES if is_loaded(row.module)]
    plugins = [entry for entry in _entry_points() if is_loaded(entry.name)]
    own = {row.name: functools.partial(_load_row, row.name) for row in rows}
    return own | {entry.name: functools.partial(_usable, entry) for entry in plugins}


def rank(library: str) -> int:
    """Return the library's place in the table; plugins come last."""
    names = [row.name for row in LIBRARIES]
    return names.index(library) if library in names else len(names)


def current_of(served: Adapter) -> CurrentStream:
    """Return the adapter if its library has a current stream, or raise UnsupportedStreamError."""
    if not isinstance(served, CurrentStream):
        raise no_current_stream(served.name)
    return served


def with_current_named(library: str) -> str:
    """Return the one name of a library with a current stream, without importing the library."""
    row = BY_NAME.get(library) if isinstance(library, str) else None
    if row is not None and not row.has_current:
        raise no_current_stream(row.name)
    if row is None or row.module in sys.modules:
        served = adapter(library)
        current_of(served)
        return served.name
    return row.name


def no_current_stream(library: str) -> errors.UnsupportedStreamError:
    """Return the error for a library, by name, that has no current stream."""
    return errors.UnsupportedStreamError(
        f"{library} has no current stream: it takes a stream with each call. Pass it "
        f"s.to({library!r})."
    )
