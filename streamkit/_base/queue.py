"""The record of one CUDA queue, as it travels between StreamKit and an adapter."""

from __future__ import annotations

import threading
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

LEGACY, PER_THREAD = 1, 2


class _Here(threading.local):
    """A token for each thread: a thread's ident is given again when it has ended."""

    def __init__(self) -> None:
        self.token = ThreadToken()


class ThreadToken:
    """One thread, for as long as anybody asks."""

    def __init__(self) -> None:
        self._thread = threading.current_thread()
        self._text = f"{self._thread.name} ({threading.get_ident()})"

    @property
    def is_alive(self) -> bool:
        """Whether the thread has not ended."""
        return self._thread.is_alive()

    def __str__(self) -> str:
        return self._text


here = _Here()
"""``here.token`` is ``this_thread()`` without the call."""


def this_thread() -> ThreadToken:
    """Return the token of the calling thread."""
    return here.token


class Queue:
    """One CUDA queue: its handle, its device, and what keeps the handle valid.

    An adapter makes one in ``extract`` from the handle, the device if the object names it (else
    None), and the owner: the object with which the handle dies, or None where nothing destroys
    it. StreamKit asks the driver for the rest. ``borrow`` gets a complete one, and the object it
    returns must hold that Queue alive.
    """

    # Those with a value here have it until it is set. The others are read in inner loops, where
    # Python 3.12 looks at length for what has a value in the class too.
    context: int
    """The CUcontext; 0 until the driver was asked."""
    id: int | None
    """What cuStreamGetId says; None while unknown because the stream captures."""
    nonblocking: bool | None = None
    """Without the implicit order with the legacy stream; None while unknown."""
    name: str | None = None
    """What its creator called it."""
    primary: bool = True
    """Whether the context is the device's primary one."""
    permanent: bool
    """Whether it lives as long as the process, as torch's pool streams do."""
    shown: bool = True
    """Whether code outside StreamKit may have its handle."""
    capture: int | None = None
    """The capture id under which it was first seen, while ``id`` is unknown."""
    thread: ThreadToken | None
    """The thread a per-thread default stream belongs to."""
    also: Queue | None = None
    """A second Queue that must live as long: this one's elder, of another owner."""
    views: Mapping[str, Callable[[], Any]] = MappingProxyType({})
    """By library, a reference to its object on this queue, called to get it."""
    core: Any
    """The object through which it records and waits, made at the first use."""
    seen_by_events: Callable[[], Queue | None] | None = None
    """What an event notes at its record: gives this queue while it can be asked. Made when used."""
    wait_event: Any
    """The event reused whenever another queue waits for this one."""
    kept: Any = None
    """The ledger of what must outlive its work, made at the first use."""
    calls: Any = None
    """What ``then`` was given to call on it, in order."""
    latest: Any
    """The last StreamKit stream of a permanent queue, kept for the next ``wrap``."""

    def __init__(self, handle: int, device: int | None = None, owner: object = None) -> None:
        self.handle = handle  # what the driver is given: 1 for legacy, 2 for the per-thread one
        self.device = device  # CUDA ordinal; None until the driver was asked
        self.owner = owner  # kept alive, because the handle dies with it
        self.context, self.permanent = 0, False
        self.id = self.thread = self.core = self.wait_event = self.latest = None

    @property
    def is_default(self) -> bool:
        """Whether this is the legacy or the per-thread default stream."""
        return self.handle <= PER_THREAD

    @property
    def is_owned(self) -> bool:
        """Whether StreamKit created the stream and destroys it."""
        return False

    def view(self, library: str) -> Any:
        """Return that library's object on this queue if one is alive, else None."""
        found = self.views.get(library)
        return None if found is None else found()

    def note_view(self, library: str, view: Callable[[], Any]) -> None:
        """Keep a reference to that library's object on this queue."""
        self.views = {**self.views, library: view}

    def __repr__(self) -> str:
        return f"<Queue handle={self.handle:#x} device={self.device} id={self.id}>"
