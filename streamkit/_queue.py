"""The record of one CUDA queue, as it travels between StreamKit and an adapter."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

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


_here = _Here()


def this_thread() -> ThreadToken:
    """Return the token of the calling thread."""
    return _here.token


class Queue:
    """One CUDA queue: its handle, its device, and what keeps the handle valid.

    An adapter makes one in ``extract`` from the handle, the device if the object names it (else
    None), and the owner: the object with which the handle dies, or None where nothing destroys
    it. StreamKit asks the driver for the rest. ``borrow`` gets a complete one, and the object it
    returns must hold that Queue alive.
    """

    __slots__ = (
        "__weakref__",
        "also",  # a second Queue that must live as long: this one's elder, of another owner
        "capture",  # the capture id under which it was first seen, while ``id`` is unknown
        "context",  # the CUcontext; 0 until the driver was asked
        "core",  # the object through which it records and waits, made at the first use
        "device",  # CUDA ordinal; None until the driver was asked
        "handle",  # what the driver is given: 1 for the legacy stream, 2 for the per-thread one
        "id",  # cuStreamGetId; None while unknown because the stream captures
        "latest",  # the last StreamKit stream of a permanent queue, kept for the next ``wrap``
        "nonblocking",  # without the implicit order with the legacy stream; None while unknown
        "owner",  # kept alive, because the handle dies with it
        "permanent",  # whether it lives as long as the process, as torch's pool streams do
        "primary",  # whether the context is the device's primary one
        "shown",  # whether code outside StreamKit may have its handle
        "thread",  # the thread a per-thread default stream belongs to
        "views",  # library -> a reference to its object on this queue, called to get it
        "wait_event",  # the event reused whenever another queue waits for this one
    )

    def __init__(self, handle: int, device: int | None = None, owner: object = None) -> None:
        self.handle: int = handle
        self.device: int | None = device
        self.owner: object = owner
        self.id: int | None = None
        self.nonblocking: bool | None = None
        self.thread: ThreadToken | None = None
        self.capture: int | None = None
        self.context: int = 0
        self.permanent: bool = False
        self.shown: bool = True
        self.core: Any = None
        self.latest: Any = None
        self.primary: bool = True
        self.also: Queue | None = None
        self.views: dict[str, Callable[[], Any]] = {}
        self.wait_event: Any = None

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

    def __repr__(self) -> str:
        return f"<Queue handle={self.handle:#x} device={self.device} id={self.id}>"
