"""``follow``: the other libraries on one library's current stream, found anew at each entry."""

from __future__ import annotations

import functools
import sys
from typing import TYPE_CHECKING, Any, TypeVar

from streamkit._cuda import driver
from streamkit._queues import open_scopes, registry
from streamkit._queues.scope import choose, nested
from streamkit._streams import host_stream
from streamkit._streams.current import current_stream, named
from streamkit._support import refusals
from streamkit._support.messages import describe
from streamkit.errors import ScopeError
from streamkit.protocols import Stream
from streamkit.protocols.queues import here

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import ParamSpec

    from streamkit._streams.host_stream import HostStream
    from streamkit._streams.stream import CudaStream

    P = ParamSpec("P")

T = TypeVar("T")


class follow:  # noqa: N801 - used as a function
    """Make the other libraries follow one library's current stream, found anew at each entry.

    A decorator of functions, and a context manager: the block is in the scope
    ``use(current_stream(library), libraries=...)``, and what that raises passes. Where all of them
    are on that queue, entering moves nothing. One object can be entered again, and from several
    threads at once.

    Where the library has no CUDA, or the machine has none, nothing is moved. ``with`` gives the
    stream then too: that of the scope around it, or the host's default stream.

    Args:
        library: The name of the one that is followed.
        libraries: Which others follow; None for all that are loaded. Warp has one current stream
            for the process: name the others to leave it out.

    Raises:
        UnsupportedStreamError: The library has no current stream; raised when it is made.
        ScopeError: The library is not imported; raised at the entry.
        TypeError: It decorates a generator or async function, which would hold the scope across its
            ``yield`` or ``await``.
    """

    __slots__ = "_is_unused", "_libraries", "_library"

    def __init__(self, library: str, *, libraries: Iterable[str] | None = None) -> None:
        self._is_unused = False  # if an argument is refused
        if isinstance(library, Stream) or callable(library):
            example = next(row.name for row in registry.LIBRARIES if row.has_current)
            instead = f"Write '@streamkit.follow({example!r})' above the function."
            if isinstance(library, Stream):
                instead = "To work on a stream, write 'with streamkit.use(stream):'."
            raise TypeError(
                "streamkit.follow takes the name of the library that is followed, not "
                f"{describe(library)}. {instead}"
            )
        self._library = registry.with_current_named(library)
        others = named(libraries)
        self._libraries = None if others is None else others | {self._library}
        self._is_unused = True

    def __enter__(self) -> CudaStream[Any] | HostStream:
        self._is_unused = False
        scopes = here.scopes
        library, libraries = self._library, self._libraries
        choice = choose(libraries) if driver.is_present() else None
        if choice is None or library not in choice.names:
            row = registry.BY_NAME.get(library)
            if row is not None and not registry.is_loaded(row.module):
                raise ScopeError(
                    f"there is no current stream of {row.label} to follow, because {row.module} is "
                    "not imported. Import it before the block."
                )
            scopes.innermost = _UnmovedScope(self)
            return scopes.innermost.stream or host_stream.default_stream
        stream: Any
        if (outer := scopes.innermost) is not None:
            plan, stream = outer.plan, outer.stream
            if (
                plan is not None
                and plan.choice.loaded is choice.loaded
                and plan.choice.names == choice.names
                and plan.is_current()
            ):
                scopes.innermost = nested(stream, self, plan)
                return stream  # type: ignore[no-any-return]  # a scope's stream
        stream = current_stream(library)
        plan = stream._plans.get(libraries)  # noqa: SLF001 - no attribute for users
        if plan is None or plan.choice is not choice:
            plan = stream._plan_now(libraries)  # noqa: SLF001 - no method for users
        if plan.told_outside and plan.is_current():
            scopes.innermost = nested(stream, self, plan)
        else:
            stream.__enter__(self, libraries)
        return stream  # type: ignore[no-any-return]  # a library's own is a CudaStream

    if TYPE_CHECKING:  # a type checker finds no type in the assignment

        def __exit__(self, kind: object, error: object, trace: object) -> None:
            """Restore what ``__enter__`` changed."""
    else:
        __exit__ = open_scopes.leave  # the scope that was entered under this key

    def __call__(self, fn: Callable[P, T]) -> Callable[P, T]:
        """Return the function with each of its calls in a scope of its own."""
        self._is_unused = False
        if not callable(fn) or isinstance(fn, (type, staticmethod, classmethod)):
            raise TypeError(
                f"{self!r} cannot decorate {describe(fn)}, which is not a function: decorate the "
                "functions of a class, below @staticmethod or @classmethod."
            )
        kind = refusals.kind_of(fn)
        if kind is not None:
            raise TypeError(
                f"{self!r} cannot decorate {refusals.name_of(fn)}, which is {kind.name}: whatever "
                f"runs in this thread at its {kind.pause} would be on the followed stream. Enter "
                f"'with {self!r}:' inside it, around what has no {kind.pause}."
            )

        @functools.wraps(fn)
        def following(*args: P.args, **kwargs: P.kwargs) -> T:
            with self:
                return fn(*args, **kwargs)

        return following

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        # ``_is_unused`` is unset where ``__init__`` was called wrongly
        if getattr(self, "_is_unused", False) and not is_finalizing():
            refusals.warn_unentered(f"{self!r}", f"{self!r}")

    def __repr__(self) -> str:
        if self._libraries is None:
            return f"streamkit.follow({self._library!r})"
        return f"streamkit.follow({self._library!r}, libraries={sorted(self._libraries)})"


class _UnmovedScope:
    """The scope of a library without CUDA, which only has its place in the order of scopes."""

    __slots__ = "key", "outer", "stream"

    plan = None
    open = 0

    def __init__(self, key: object) -> None:
        self.key, self.outer = key, here.scopes.innermost
        self.stream = open_scopes.innermost()  # the scope does not change it

    def leave(self) -> list[str]:
        return []
