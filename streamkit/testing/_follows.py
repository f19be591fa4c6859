"""``assert_follows``: all work of a function waits on the stream that the function is given.

A capture holds that stream: work given to it is recorded and does not run, so work that does run
has not waited for it. No queue is stopped for this, so none can stay held.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import re
import traceback
from typing import TYPE_CHECKING, Any, NoReturn

from streamkit._cuda import devices, driver, graphs
from streamkit._graphs.capture import capture_on
from streamkit._queues import registry
from streamkit._streams.current import use
from streamkit._streams.factories import new_stream
from streamkit._support.messages import describe, in_one_line
from streamkit.diagnostics.audit.audit import audit
from streamkit.diagnostics.recording.kernel_names import readable
from streamkit.diagnostics.recording.operations import listed
from streamkit.errors import BackendNotInstalledError, CaptureError, NoDeviceError, ScopeError

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable

    from streamkit.diagnostics.audit.audit import AuditReport

_PACKAGE = __name__.partition(".")[0]
_ON_LEGACY = re.compile(r"legacy stream|capture_?implicit", re.IGNORECASE)
_ILLEGAL = "it waits for the GPU, or cannot be captured for another reason"
_ADVICE = (
    "Give all work to that stream, end the work of a side stream with stream.wait(side), and leave "
    "it to the caller to wait for the GPU."
)


def assert_follows(fn: Callable[..., object], *args: Any, library: str | None = None) -> None:
    """Check that all GPU work of a function waits on the stream that the function is given.

    The stream is a new nonblocking one of the current device. If ``fn`` has a parameter ``stream``,
    it is passed there as a StreamKit stream; else it is current in all loaded libraries.

    ``fn`` runs up to three times. The first run warms up. The second one is in an ``audit``, where
    there is CUPTI. Unless that has shown that all is well, the third one is in a ``capture`` of the
    stream: work that waits for the stream does not run then, so what runs has not waited. The third
    run computes no results, and what ``fn`` returns is dropped.

    An audit sees all work and all waits of the host, such as a copy of pageable memory, also those
    of other threads, which should therefore be idle. Without CUPTI there is the capture alone. It
    sees whether a side stream is joined, and work on the default stream and waits of the host are
    errors of the calls that ask for them. But if some work does wait for the stream, it does not
    see other work that waits for nothing, on a stream of the function's own. It also fails what
    cannot be captured, such as memory that CUDA itself allocates.

    Args:
        fn: The function to check. If it uses side streams, it must be right in a capture.
        args: Passed to it each time.
        library: Check that it follows this library's current stream. In the other libraries another
            stream is current, and ``stream`` is not passed.

    Raises:
        AssertionError: Some work does not wait for the stream, or goes on when the stream is done;
            the host waits for the GPU; or there is no work. The message says which.
        NoDeviceError: There is no CUDA here. It is a ``unittest.SkipTest`` too, so that pytest and
            unittest skip the test and show the reason.
        UnsupportedStreamError: The library has no current stream.
    """
    try:
        trial = _Trial(fn, args, library)
    except NoDeviceError as error:
        raise _skip()(f"assert_follows needs a CUDA device: {error}") from error
    with contextlib.closing(trial):
        trial.check()


@functools.cache
def _skip() -> type[NoDeviceError]:
    """Return the error that pytest and unittest take for a skip of the test."""
    from unittest import SkipTest  # noqa: PLC0415 - slow to import, and not needed with a GPU

    return type(
        "NoDeviceError", (NoDeviceError, SkipTest), {"__module__": NoDeviceError.__module__}
    )


class _Trial:
    """One function, the stream that it has to follow, and another stream that it must not use."""

    def __init__(
        self, fn: Callable[..., object], args: tuple[Any, ...], library: str | None
    ) -> None:
        name = in_one_line(getattr(fn, "__qualname__", None) or describe(fn))
        self._library = None if library is None else registry.with_current_named(library)
        passes = library is None and "stream" in _parameters(fn)
        device = devices.ordinal_or_current(None)
        self._stream: Any = new_stream(device, nonblocking=True, name=f"stream for {name}")
        # This one is blocking, so that work on the default stream is an error while it captures.
        self._other: Any = new_stream(device, name=f"another stream beside {name}")
        self._fn = functools.partial(fn, *args, **({"stream": self._stream} if passes else {}))
        self._passes = passes
        where = "that it was passed" if passes else f"current in {library or 'the libraries'}"
        self._title = f"{name} does not follow the stream {where}"

    def close(self) -> None:
        self._stream.close()
        self._other.close()

    def check(self) -> None:
        # before each run, because any stream may still work on the arguments
        driver.sync_context(self._stream.context)
        self._run()
        driver.sync_context(self._stream.context)
        with _audited() as seen:
            if seen is not None:
                self._run()
        if seen is not None:
            # before the waits, because work on the default stream gives wrong results, where a wait
            # is only slow; and a capture of it could leave a library with an error of its own
            if seen.legacy_work:
                self._fail("this ran on the default stream", listed(seen.legacy_work))
            if seen.synchronisations:
                self._fail("the host waits for the GPU", listed(seen.synchronisations))
            if not seen.work:
                self._fail("there is no GPU work")
            if not seen.off_queue(self._stream):
                return
        with _audited() as ran:
            problem, cause = self._capture()
        # work of a library on the stream itself meanwhile is its preparation of the capture
        astray = [] if ran is None else ran.off_queue(self._stream)
        if astray:
            self._fail("this did not wait", listed(astray))
        if problem is not None:
            elsewhere = [] if seen is None else listed(seen.off_queue(self._stream))
            self._fail(problem, elsewhere, cause)

    def _run(self) -> None:
        """Call the function with its stream passed or current, and the other one elsewhere."""
        with contextlib.ExitStack() as scopes:
            if self._passes or self._library:
                scopes.enter_context(use(self._other))
            if not self._passes:
                libraries = (self._library,) if self._library else None
                scopes.enter_context(use(self._stream, libraries=libraries))
            self._fn()

    def _capture(self) -> tuple[str | None, CaptureError | None]:
        """Call the function while the stream captures; return the problem, and its error if any."""
        problem = None
        try:
            with capture_on(self._stream, is_private=True) as graph:
                self._other.wait(self._stream)
                self._run()
                problem = self._left_over()
                self._stream.wait(self._other)
        except CaptureError as error:
            return problem or _told(error), error
        graph.close()
        return problem, None

    def _left_over(self) -> str | None:
        """Return the problem of the captured work; a broken capture raises its own error."""
        own = graphs.captured(self._stream.handle)
        other = graphs.captured(self._other.handle)
        if own is None or other is None or not own.is_valid:
            return None
        if other.frontier:
            return f"{_names(other.frontier)} was given to another current stream"
        loose = graphs.ends(own.graph) - own.frontier
        if loose:
            return f"{_names(loose)} goes on when the stream is done"
        return None if graphs.count(own.graph) else "there is no GPU work on it"

    def _fail(
        self, what: str, lines: Iterable[str] = (), cause: BaseException | None = None
    ) -> NoReturn:
        shown = "".join(f"\n{line}" for line in lines)
        message = f"{self._title}: {what}{':' if shown else '.'}{shown}\n{_ADVICE}"
        raise AssertionError(message) from cause


def _parameters(fn: Callable[..., object]) -> Iterable[str]:
    try:
        return inspect.signature(fn).parameters
    except (TypeError, ValueError):  # as of an extension module, whose functions need not have one
        return ()


@contextlib.contextmanager
def _audited() -> Generator[AuditReport | None]:
    """Audit the block; None without CUPTI, or while another tool uses it."""
    with contextlib.ExitStack() as recording:
        try:
            report = recording.enter_context(audit())
        except (BackendNotInstalledError, ScopeError):
            report = None
        yield report


def _names(nodes: Iterable[int]) -> str:
    found = [graphs.node(handle) for handle in sorted(nodes)]
    return ", ".join(readable(one.symbol) if one.symbol else f"a {one.kind}" for one in found)


def _told(error: CaptureError) -> str:
    """Say why the function cannot be held: its first error, and the line that raised it."""
    cause = error.__cause__
    if cause is None:
        return str(error)
    said = f"{type(cause).__name__}: {str(cause).partition(chr(10))[0]}"
    for frame, line in traceback.walk_tb(cause.__traceback__):
        if not str(frame.f_globals.get("__name__")).startswith((_PACKAGE, "contextlib")):
            said += f", at {in_one_line(frame.f_code.co_filename)}:{line}"
            break
    on_legacy = _ON_LEGACY.search(said)
    what = "it works on the default stream" if on_legacy else _ILLEGAL
    return f"{what} ({said})"
