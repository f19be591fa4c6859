"""The dispatcher: one thread that learns when points of CUDA queues are reached, and tells.

It blocks in a semaphore that the driver posts when a queue gets to its first awaited point, and
then asks all such points. It also asks by the clock: seldom, because after an error on a queue the
driver posts nothing, and more often while there are more queues than side streams. The side streams
of a device are made while it moves: once its first points have been reached and none is pending, or
many were reached and none is pending for long.
"""

from __future__ import annotations

import atexit
import contextlib
import threading
import time
from collections import deque
from typing import TYPE_CHECKING

from streamkit import errors
from streamkit._base.locks import new_lock
from streamkit._cuda import driver, events
from streamkit._waiting.side_streams import FOR_STREAMS, SideStreams, new_semaphore

if TYPE_CHECKING:
    from collections.abc import Callable

    Tell = Callable[[Exception | None], object]

_SELDOM = 0.05  # seconds: how late an error may be told
_OFTEN = 0.001
_AGES = 8  # a point without a side stream is asked for at every eighth of its age
_MANY = 64
_LATELY = 0.1  # seconds within which each queue was reached, or first waited for, if all move
_PATIENCE = 1.0  # seconds that the end of the interpreter waits for the thread


class Point:
    """An event that is waited for. ``tell`` is called once, with the error if there is one.

    It is called in the dispatcher's thread, must not block, and runs no code of the user. Points
    of one ``queue`` are reached in the order in which they are watched; None if it is not known.
    """

    __slots__ = ("device", "event", "keeps", "queue", "since", "tell")

    def __init__(self, event: int, keeps: object, queue: object, device: int, tell: Tell) -> None:
        self.event, self.keeps, self.queue, self.device = event, keeps, queue, device
        self.tell: Tell | None = tell
        self.since = time.monotonic()

    def drop(self) -> None:
        """Forget whom to tell."""
        self.tell = None

    def finish(self, error: Exception | None) -> None:
        """Tell that it is reached, or the error."""
        tell, self.tell = self.tell, None
        if tell is not None:
            tell(error)


class _Track:
    """The points of one queue, or one of an unknown queue; a side stream may serve the first."""

    __slots__ = ("limit", "moved", "points", "stream")

    def __init__(self) -> None:
        self.points: deque[Point] = deque()
        self.stream = 0  # the side stream that serves the first
        self.moved = 0.0  # when one was reached
        self.limit = _MANY  # points, until those that were dropped are taken out


class _Dispatcher:
    def __init__(self) -> None:
        self.thread = threading.Thread(target=self._run, name="streamkit-dispatcher", daemon=True)
        self._semaphore = new_semaphore()
        self._side_streams = SideStreams(self._semaphore)
        self._new: deque[Point] = deque()
        self._tracks: dict[object, _Track] = {}
        self._reached = 0  # points on devices without side streams; negative if one was given up
        self._given_up: dict[int, tuple[int, object]] = {}  # of these, events of queues

    def add(self, point: Point) -> None:
        self._new.append(point)
        self._semaphore.post()

    def join(self) -> None:
        self._semaphore.post()
        self.thread.join(_PATIENCE)

    # -- in its thread ------------------------------------------------------------------------

    def _run(self) -> None:
        pause: float | None = None
        while True:
            self._semaphore.wait(pause)
            if _is_over:
                return
            self._take()
            try:
                pause = self._look()
            except Exception as error:  # noqa: BLE001 - no waiter may hang, whatever fails
                self._fail(error)
                pause = None

    def _take(self) -> None:
        while self._new:
            point = self._new.popleft()
            key = point if point.queue is None else point.queue
            self._tracks.setdefault(key, _Track()).points.append(point)

    def _look(self) -> float | None:
        """Finish every point that is reached, arm the next ones; return how long to wait then."""
        if not self._tracks:
            return None
        youngest: float | None = None
        with driver.beside_captures():
            self._side_streams.recover()
            for queue, track in list(self._tracks.items()):
                self._advance(track)
                if not track.points:
                    del self._tracks[queue]
                    continue
                point = track.points[0]
                if not track.stream:
                    spare = FOR_STREAMS if point.queue is None else 0
                    track.stream = self._side_streams.arm(point.event, point.device, spare)
                if not track.stream:
                    youngest = max(youngest or 0, point.since)
            if self._side_streams.wanted and self._all_move():
                self._side_streams.make()
                self._reached = 0
            if not self._tracks:
                return None
        if youngest is None:
            return _SELDOM
        return min(max((time.monotonic() - youngest) / _AGES, _OFTEN), _SELDOM)

    def _all_move(self) -> bool:
        """Whether every queue that is or was waited for seems to move."""
        for key, (event, _) in [*self._given_up.items()]:
            with contextlib.suppress(errors.DriverError):  # nothing waits for what has failed
                if not events.query(event):
                    return False
            del self._given_up[key]
        if not self._tracks:
            return self._reached >= 0
        late = time.monotonic() - _LATELY
        tracks = self._tracks.values()
        return self._reached >= _MANY and all(
            max(track.moved, track.points[0].since) > late for track in tracks
        )

    def _doubt(self, point: Point) -> None:
        """Note a dropped point, whose queue may be stuck."""
        if point.queue is None:  # not asked later: a capture may have the event then
            self._reached = -_MANY
        elif len(self._given_up) < _MANY:
            self._given_up[id(point.queue)] = point.event, point.keeps

    def _advance(self, track: _Track) -> None:
        points = track.points
        while points:
            point, error = points[0], None
            if track.stream or point.tell is not None:  # a side stream serves until reached
                try:
                    if not events.query(point.event):
                        break
                except errors.DriverError as failed:
                    error = failed.with_traceback(None)  # which would hold this frame
                else:
                    track.moved = time.monotonic()
                    self._reached += point.device in self._side_streams.wanted
            elif not self._side_streams.has(point.device):
                self._doubt(point)
            points.popleft()
            if track.stream:
                streams = self._side_streams
                give_back = streams.release if error is None else streams.put_aside
                give_back(track.stream, point.device)
                track.stream = 0
            point.finish(error)
        if len(points) > track.limit:  # or waits that timed out would pile up
            first = points.popleft()
            track.points = deque([first, *(point for point in points if point.tell is not None)])
            track.limit = 2 * len(track.points) + _MANY

    def _fail(self, error: Exception) -> None:
        tracks, self._tracks = self._tracks, {}
        for track in tracks.values():
            if track.stream:
                self._side_streams.put_aside(track.stream, track.points[0].device)
            for point in track.points:
                point.finish(error)


_dispatcher: _Dispatcher | None = None
_is_over = False
_lock = new_lock()


def watch(point: Point) -> bool:
    """Have the point told when it is reached; False if there is no thread for that.

    There is none at the end of the interpreter, nor if none can be started, nor for the thread
    itself, in which the garbage collector may run any destructor.
    """
    found = _dispatcher
    if found is None or not found.thread.is_alive():
        found = _start()
    if found is None or found.thread.ident == threading.get_ident():
        return False
    found.add(point)
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
