"""What a library provides to take part: an adapter, and the capabilities it may add.

A module with these names is one. Users of the contract import it from ``streamkit.protocols``.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    from streamkit._queue import Queue

API = 1
"""The version of the adapter contract; an adapter states the one it was written for."""


@runtime_checkable
class Adapter(Protocol):
    """One library's streams: recognise, extract, build. A module with these names is one.

    ``name`` is what users write in ``to(name)`` and the root package of the library's types;
    register it as an entry point of that name in the group ``streamkit.backends``.
    """

    name: str
    api: int

    @abstractmethod
    def extract(self, obj: Any) -> Queue:
        """Return the queue of this library's stream ``obj``.

        Raises UnsupportedStreamError (or any TypeError) if ``obj`` is not one; StreamKit then
        asks the next adapter and at last the CUDA stream protocol.
        """

    @abstractmethod
    def borrow(self, queue: Queue) -> Any:
        """Return the library's genuine stream object on this queue, which keeps it alive.

        Called with the queue's context current; what it makes current instead is undone.
        """


@runtime_checkable
class CurrentStream(Protocol):
    """Capability: the library has a current stream.

    Called with the stream's device current. ``current`` may initialise the library's CUDA state
    and raises NoDeviceError where this build of the library has none.
    """

    @abstractmethod
    def current(self, device: int) -> Any:
        """Return the library's current stream object of that device, in this thread."""

    @abstractmethod
    def enter(self, stream: Any) -> Any:
        """Make the library's own ``stream`` current, without a wait; return what undoes it."""

    @abstractmethod
    def leave(self, token: Any) -> None:
        """Restore exactly what was current before the ``enter`` that returned ``token``."""


@runtime_checkable
class NestedCurrent(Protocol):
    """Capability beside ``CurrentStream``: nesting scopes of one stream costs only a look."""

    @abstractmethod
    def is_current(self, stream: Any) -> bool:
        """Whether an ``enter`` of this thread has ``stream``, this object, current now."""

    @abstractmethod
    def set_current(self, stream: Any) -> None:
        """Make ``stream`` current again inside such an ``enter``, remembering nothing."""


@runtime_checkable
class Events(Protocol):
    """Capability: the library's events can be read and built.

    Optional beside these: ``event_device(event)``, its CUDA ordinal or None; ``record_event(event,
    stream)``, where the library must record its events itself.
    """

    @abstractmethod
    def event_handle(self, event: Any) -> int:
        """Return the ``cudaEvent_t``, 0 if the library has not created it yet.

        Raises UnsupportedStreamError (or any TypeError) if ``event`` is not one of its events.
        """

    @abstractmethod
    def borrow_event(self, handle: int, device: int, owner: object) -> Any:
        """Return the library's event object on ``handle``, keeping ``owner`` alive.

        Raises UnsupportedStreamError where the library cannot wrap an event.
        """
