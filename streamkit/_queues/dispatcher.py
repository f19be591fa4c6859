"""The dispatcher: one thread that learns when points of CUDA queues are reached, and tells waiters.

The thread queries the first point of each queue and then naps. A nap is a small part of the time
since a queue last moved, or since a point of an idle queue came, so that a point that is reached
soon is noticed soon. It also lasts several times as long as a look, so that the thread takes at
most about a tenth of a core, for any number of queues. No wait for one queue comes before a look at
another, so a queue that stands still holds up no other.

After a nap the thread also wakes each event loop that waits, at most four times in a millisecond,
because a thread that sleeps for long wakes late: on an H200 by a tenth to a third of a millisecond.
Together this takes a quarter of a core while a wait is some milliseconds old, a fifth at 50 ms, a
fiftieth at a second, and less from then on.
"""

from __future__ import annotations

import atexit
import math
from collections import deque
from time import monotonic, thread_time
from typing import TYPE_CHECKING

from streamkit import errors
from streamkit._cuda import driver, events
from streamkit._support.locks import Bell, new_lock
from streamkit._support.workers import Thread

if TYPE_CHECKING:
    from streamkit._queues.points import Listener, Point, Reached

_AGES = 320  # a nap is this part of the youngest point's age
_SHORTEST, _LONGEST = 50e-6, 10e-3  # seconds of a nap
_RESTS = 8  # a nap lasts at least so many times as long as the last looks
_STIRS = 0.25e-3  # seconds after which a loop is woken again
_MANY = 64  # points of a queue before dropped ones are taken out
_PATIENCE = 1.0  # seconds that the end of the interpreter waits for the thread


class _Track:
    """The points of one queue, or a single point whose queue is unknown."""

    __slots__ = ("limit", "moved", "points")

    def __init__(self) -> None:
        self.points: deque[Point] = deque()
        self.moved = monotonic()  # when a point was last reached, or the first one came
        self.limit = _MANY  # with more points, dropped ones are taken out


class _Dispatcher:
    def __init__(self) -> None:
        self.thread = Thread(target=self._run, name="streamkit-dispatcher", daemon=True)
        self.thread.is_dispatcher = True
        self.new: deque[Point] = deque()
        self.tracks: dict[object, _Track] = {}
        self.is_asleep = False
        self.bell = Bell()
        self._next = math.inf  # when the next look is due
        self._earliest = 0.0  # when the next look may be due
        self._stirs = 0.0  # when the loops are woken again
        self._used = 0.0  # seconds of a core that the last look took

    def add(self, point: Point) -> None:
        """Take a point, from any thread; ring unless its queue has other points to wait for."""
        self.new.append(point)
        if self.is_asleep and point.queue not in self.tracks:
            self.bell.ring()

    # -- in its thread ------------------------------------------------------------------------

    def _run(self) -> None:
        while not is_over:
            try:
                self._wait()
                # around all looks, so that each look is short
                with driver.beside_captures():
                    while not is_over:
                        self._look()
                        self._wait()
            except Exception as error:  # noqa: BLE001 - no waiter may hang, whatever fails
                self._fail(error)

    def _wait(self) -> None:
        """Nap until the next look is due, and list the points that come meanwhile."""
        self._list()
        while monotonic() < self._next and not is_over:
            self._nap()
            self._list()

    def _list(self) -> None:
        """Put new points in the order of their queues; look soon at a queue that had none.

        A point can come after later ones, because some time passes before it is watched: an
        ``await`` looks for a moment first, and another thread can be faster.
        """
        while self.new:
            point = self.new.popleft()
            key = point if point.queue is None else point.queue
            track = self.tracks.get(key)
            if track is None:
                track = self.tracks[key] = _Track()
                self._next = max(self._earliest, min(self._next, track.moved + _SHORTEST))
            points, place = track.points, len(track.points)
            while place and points[place - 1].number > point.number:
                place -= 1
            points.insert(place, point)

    def _nap(self) -> None:
        """Sleep until the next look, or until a point of another queue comes."""
        self.is_asleep = True
        if not self.new:  # else a point has just come, perhaps without a ring
            seconds = self._next - monotonic()
            self.bell.wait(None if seconds == math.inf else seconds)
        self.is_asleep = False

    def _look(self) -> None:
        """Tell the listeners of every point that is reached, and set the time of the next look."""
        began, youngest = thread_time(), 0.0
        told: dict[Listener, Reached] = {}
        waiting: set[Listener | None] = set()
        try:
            for key, track in list(self.tracks.items()):
                _advance(track, told)
                if track.points:
                    youngest = max(youngest, track.moved)
                    waiting.add(track.points[0].listener)
                else:
                    del self.tracks[key]
        finally:
            for listener, reached in told.items():
                listener.tell(reached)
        now, before = monotonic(), self._used
        if now >= self._stirs:
            self._stirs = now + _STIRS
            for one in waiting:
                if one is not None:
                    one.stir()
        self._used = thread_time() - began
        nap = min(max((now - youngest) / _AGES, _SHORTEST), _LONGEST)
        # a single slow look does not count: a collection of garbage may have run in it, or the
        # system may count a thread's time in steps
        self._earliest = now + _RESTS * min(self._used, before)
        self._next = max(self._earliest, now + nap) if self.tracks else math.inf

    def _fail(self, error: Exception) -> None:
        self._list()
        tracks, self.tracks, self._next = self.tracks, {}, math.inf
        told: dict[Listener, Reached] = {}
        for track in tracks.values():
            for point in track.points:
                _finish(point, error, told)
        for listener, reached in told.items():
            listener.tell(reached)


def _advance(track: _Track, told: dict[Listener, Reached]) -> None:
    """Take the points that are reached from the track, and add them to what to tell listeners."""
    points = track.points
    while points:
        error: Exception | None = None
        try:
            if points[0].listener is not None and not events.query(points[0].event):
                break
        except errors.DriverError as failed:
            error = failed.with_traceback(None)  # a traceback would hold this frame
        track.moved = monotonic()
        _finish(points.popleft(), error, told)
    if len(points) > track.limit:  # or the points of waits that timed out would pile up
        first = points.popleft()
        track.points = deque([first, *(point for point in points if point.listener is not None)])
        track.limit = 2 * len(track.points) + _MANY


def _finish(point: Point, error: Exception | None, told: dict[Listener, Reached]) -> None:
    # first the waiter, because ``drop`` in another thread forgets the listener first
    waiter, listener = point.waiter, point.listener
    point.drop()
    if listener is not None:
        told.setdefault(listener, []).append((waiter, error))


_dispatcher: _Dispatcher | None = None
is_over = False  # whether the program has ended, so that nobody is told any more
_lock = new_lock()


def watch(point: Point, listener: Listener, waiter: object) -> bool:
    """Have the listener told once when the point is reached; False if no thread can do that.

    So it is at the end of the interpreter, or where no thread can be started.
    """
    found = _dispatcher
    if found is None or not found.thread.is_alive():
        found = _start()
    if found is None:
        return False
    point.listener, point.waiter = listener, waiter
    found.add(point)
    return True


def _start() -> _Dispatcher | None:
    global _dispatcher  # noqa: PLW0603 - one for the process
    with _lock:
        if is_over:
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
    global is_over  # noqa: PLW0603 - one interpreter
    with _lock:
        is_over = True
    if _dispatcher is not None and _dispatcher.thread.is_alive():
        _dispatcher.bell.ring()
        _dispatcher.thread.join(_PATIENCE)
