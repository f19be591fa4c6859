"""The subject of each check: one library's adapter, and how to use the library."""

from __future__ import annotations

import contextlib
import threading
import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from streamkit._cuda import graphs
from streamkit._queues import registry
from streamkit._support import messages
from streamkit.testing import _gate

if TYPE_CHECKING:
    from collections.abc import Callable, Generator


class NotApplicableError(Exception):
    """The check cannot be made of this library; the text says why."""


class Owner:
    """An owner of a handle: checks look whether it is kept alive, and released."""


def build_owned(build: Callable[[Owner], Any]) -> tuple[Any, Callable[[], Owner | None], str]:
    """Build an object for a new owner; return it, a weak reference to the owner, and a text."""
    owner = Owner()
    built = build(owner)
    return built, weakref.ref(owner), messages.describe(built)


@dataclass(frozen=True)
class Subject:
    """The library under test. Every error names it and says what to mend."""

    library: str
    adapter: Any
    make_stream: Callable[[], Any]
    make_event: Callable[[Any], Any] | None
    handle_of: Callable[[Any], int] | None
    device: int

    def require(self, holds: object, message: str) -> None:
        """Raise AssertionError with the adapter's name before the message unless it holds."""
        _gate.require(holds, f"adapter {self.library!r}: {message}")

    def fail(self, message: str) -> None:
        """Raise AssertionError with the adapter's name before the message."""
        self.require(holds=False, message=message)

    def handle(self, stream: object) -> int:
        """Return the handle that the library gives for its stream, 1 for the legacy stream."""
        if self.handle_of is not None:
            handle = self.handle_of(stream)
        elif registry.speaks_protocol(stream):
            handle = stream.__cuda_stream__()[1]  # type: ignore[attr-defined]  # the line above looked
        else:
            handle = self.adapter.extract(stream).handle
        return int(handle) or 1

    def streams(self, count: int) -> list[Any]:
        """Return that many streams of the library, on queues of their own."""
        made = [self.make_stream() for _ in range(count)]
        queues = {_gate.stream_id(self.handle(stream)) for stream in made}
        self.require(
            len(queues) == count, "make_stream() gave one queue twice: let it make new ones"
        )
        return made

    def event(self, stream: object) -> Any:
        """Return an event of the library, recorded on its stream."""
        if self.make_event is None:
            raise NotApplicableError("no make_event was given, which records the library's event")
        return self.make_event(stream)

    def current(self) -> Any:
        """Return the library's current stream, in this thread."""
        return self.adapter.current(self.device)

    def same(self, one: object, other: object) -> bool:
        """Whether two streams are one object, or equal values on one handle."""
        if one is other:
            return True
        return bool(one == other) and self.handle(one) == self.handle(other)

    def refuses(self, read: Callable[[Any], object], function: str, obj: object) -> None:
        """Require a TypeError of the function for objects of other libraries."""
        what = f"{function}({messages.describe(obj)})"
        try:
            read(obj)
        except TypeError:
            return
        except Exception as error:
            raise AssertionError(
                f"adapter {self.library!r}: {what} raised {type(error).__name__}: {error}. Let it "
                "raise streamkit.errors.UnsupportedStreamError, or another TypeError, so that the "
                "next adapter is asked."
            ) from error
        self.fail(
            f"{what} was taken. Test for the library's own class, and raise "
            "streamkit.errors.UnsupportedStreamError for anything else."
        )

    def require_order(self, first: object, later: object, order: Callable[[], object]) -> None:
        """Require that ``order()`` makes work on ``later`` run after that on ``first``.

        With a control arm: without it the work must run through, or nothing is proved.
        """
        handles = self.handle(first), self.handle(later)
        self.require(
            _gate.runs_beside(*handles),
            "the control arm hangs: work on one of its streams waits for another that is held, "
            "without any wait. Let make_stream() make streams that nothing orders; where they are "
            "many, CUDA_DEVICE_MAX_CONNECTIONS=32 gives each a hardware queue of its own.",
        )
        self.require(
            _gate.runs_after(*handles, order),
            f"work on {messages.describe(later)} ran before that on "
            f"{messages.describe(first)}, which it was told to wait for",
        )

    @contextlib.contextmanager
    def untouched(self, handle: int, call: str) -> Generator[None]:
        """Require that the block neither breaks a capture of the stream nor adds work to it."""
        remedy = "Read what the library itself knows, and leave the driver to StreamKit."
        graphs.begin(handle, "thread_local")
        try:
            failure = None
            try:
                yield
            except Exception as error:  # noqa: BLE001 - of the adapter, perhaps because of the capture
                failure = error
            found = graphs.captured(handle)
            is_whole = found is not None and found.is_valid
            self.require(
                is_whole and failure is None,
                f"{call} asks the driver about the stream, or waits, which breaks a capture of it"
                f"{'' if failure is None else f' ({type(failure).__name__}: {failure})'}. {remedy}",
            )
            self.require(
                found is None or not graphs.count(found.graph),
                f"{call} gives the stream work of its own. {remedy}",
            )
        finally:
            graphs.discard(handle)

    def in_thread(self, work: Callable[[], object]) -> None:
        """Run ``work`` in another thread with the device current; raise its error here."""
        failures: list[BaseException] = []

        def run() -> None:
            try:
                with _gate.on_device(self.device):
                    work()
            except BaseException as error:  # noqa: BLE001 - raised below, in the caller's thread
                failures.append(error)

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        thread.join(_gate.LIMIT)
        self.require(not thread.is_alive(), f"a call in another thread hangs: {work.__name__}")
        if failures:
            raise failures[0]
