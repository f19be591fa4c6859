"""The dispatcher: one thread that learns when points of CUDA queues are reached, and tells.

It asks for the first point of each queue, and naps between two looks: for less than a hundredth of
the time since the youngest of these points is waited for, or its queue has moved, so that it tells
soon what is soon reached. It also naps twenty times as long as a look takes, so it takes at most
about a twentieth of a core, for any number of queues. No stream waits for another, so a queue that
stands still holds up nobody.
"""

from __future__ import annotations

import atexit
import math
import queue
import threading
import time
from collections import deque
from typing import TYPE_CHECKING

from streamkit import errors
from streamkit._base.locks import new_lock
from streamkit._cuda import driver, events

if TYPE_CHECKING:
    from streamkit._waiting.points import Point, Tell

_AGES = 128  # a nap is this part of the youngest point's age
_SHORTEST, _LONGEST = 100e-6, 10e-3  # seconds of a nap
_RESTS = 20  # and at least so many times what the last looks took
_MANY = 64
_PATIENCE = 1.0  # seconds that the end of the interpreter waits for the thread


class _Track:
    """The points of one queue, or one of an unknown queue."""

    __slots__ = ("limit", "moved", "points")

    def __init__(self) -> None:
        self.points: deque[Point] = deque()
        self.moved = 0.0  # when one was reached
        self.limit = _MANY  # points, until those that were dropped are taken out


class _Dispatcher:
    def __init__(self) -> None:
        self.thread = threading.Thread(target=self._run, name="streamkit-dispatcher", daemon=True)
        self.new: queue.SimpleQueue[Point | None] = queue.SimpleQueue()  # destructors may put
        self._tracks: dict[object, _Track] = {}
        self._next = math.inf  # when it looks
        self._earliest = 0.0  # when it may
        self._used = 0.0  # seconds that the last look took of a core

    def join(self) -> None:
        self.new.put(None)
        self.thread.join(_PATIENCE)

    # -- in its thread ------------------------------------------------------------------------

    def _run(self) -> None:
        while True:
            self._nap()
            if _is_over:
                return
            if time.monotonic() < self._next:
                continue
            try:
                self._look()
            except Exception as error:  # noqa: BLE001 - no waiter may hang, whatever fails
                self._fail(error)

    def _nap(self) -> None:
        """Sleep until the next look, or a new point, which is listed."""
        seconds = None if self._next == math.inf else max(0, self._next - time.monotonic())
        try:
            point = self.new.get(timeout=seconds)
        except queue.Empty:
            return
        if point is None:
            return
        key = point if point.queue is None else point.queue
        track = self._tracks.get(key)
        if track is None:
            track = self._tracks[key] = _Track()
            soon = time.monotonic() + _SHORTEST
            self._next = max(self._earliest, min(self._next, soon))
        track.points.append(point)

    def _look(self) -> None:
        """Finish every point that is reached, and set the time of the next look."""
        began, youngest = time.thread_time(), 0.0
        with driver.beside_captures():
            for key, track in list(self._tracks.items()):
                self._advance(track)
                if track.points:
                    youngest = max(youngest, track.moved, track.points[0].since)
                else:
                    del self._tracks[key]
        now, before = time.monotonic(), self._used
        self._used = time.thread_time() - began
        nap = min(max((now - youngest) / _AGES, _SHORTEST), _LONGEST)
        # one slow look does not count: a collection of garbage may have run in it, or the system
        # counts a thread's time in steps
        self._earliest = now + _RESTS * min(self._used, before)
        self._next = max(self._earliest, now + nap) if self._tracks else math.inf

    def _advance(self, track: _Track) -> None:
        points = track.points
        while points:
            point, error = points[0], None
            if not point.is_dropped:
                try:
                    if not events.query(point.event):
                        break
                except errors.DriverError as failed:
                    error = failed.with_traceback(None)  # which would hold this frame
                else:
                    track.moved = time.monotonic()
            points.popleft()
            point.finish(error)
        if len(points) > track.limit:  # or waits that timed out would pile up
            first = points.popleft()
            track.points = deque([first, *(point for point in points if not point.is_dropped)])
            track.limit = 2 * len(track.points) + _MANY

    def _fail(self, error: Exception) -> None:
        tracks, self._tracks, self._next = self._tracks, {}, math.inf
        for track in tracks.values():
            for point in track.points:
                point.finish(error)


_dispatcher: _Dispatcher | None = None
_is_over = False
_lock = new_lock()


def watch(point: Point, tell: Tell) -> bool:
    """Have ``tell`` called, once, when the point is reached; False if there is no thread for that.

    It is given the error of the queue, if there is one. It is called in the dispatcher's thread,
    must not block, and runs no code of the user.

    There is no thread at the end of the interpreter, nor if none can be started, nor for the thread
    itself, in which the garbage collector may run any destructor.
    """
    found = _dispatcher
    if found is None or not found.thread.is_alive():
        found = _start()
    if found is None or found.thread.ident == threading.get_ident():
        return False
    point.begin(tell)
    found.new.put(point)
    return True


def _start() -> _Dispatcher | None:
    global _dispatcher  # noqa: PLW0603 - one for the process
    with _lock:
        if _is_over:
            return None
        if _dispatcher is None or not _dispatcher.thread.is_alive():
            _dispatcher = _Dispatcher()
            try:
                _dispatcher.thread.start()
            except RuntimeError:  # no thread can be started
                return None
        return _dispatcher


@atexit.register
def _end() -> None:
    global _is_over  # noqa: PLW0603 - one interpreter
    with _lock:
        _is_over = True
    if _dispatcher is not None and _dispatcher.thread.is_alive():
        _dispatcher.join()
