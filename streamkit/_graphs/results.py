"""What a call of a graphed function returns: its own arguments, and arrays without a past."""

from __future__ import annotations

import contextlib
import weakref
from typing import TYPE_CHECKING, Any, TypeVar

from streamkit._graphs.signatures import find, leaves, library_of, replaced
from streamkit.protocols import Capture
from streamkit.protocols.adapters import offered

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from streamkit._graphs.signatures import FoundArray, Signature

T = TypeVar("T")


class _Argument:
    """In a captured result: the array that was passed in this place."""

    def __init__(self, index: int) -> None:
        self.index = index


class _Weakly:
    """In a captured result: an object that was passed, and that the key holds weakly."""

    def __init__(self, value: Any) -> None:
        self.get = weakref.ref(value)


def template(result: Any, places: dict[int, int], objects: Iterable[object]) -> Any:
    """Return a result with marks instead of what the function was given.

    That is an ``_Argument`` for an array, and a ``_Weakly`` for an object that the key holds so.
    """
    known = set(map(id, objects))

    def mark(leaf: Any) -> Any:
        if id(leaf) in places:
            return _Argument(places[id(leaf)])
        return _Weakly(leaf) if id(leaf) in known else leaf

    return replaced(result, mark)


def arrays(marked: Any) -> Iterator[FoundArray]:
    """Yield the arrays of a captured result that are not arguments."""
    for leaf in leaves(marked):
        with contextlib.suppress(TypeError, ValueError):  # none whose memory can be told
            found = find(leaf)
            if found is not None:
                yield found


def filled(marked: Any, call: Signature) -> Any:
    """Return a result of this call, with what it was given instead of the marks."""
    given = call.arrays

    def fill(leaf: Any) -> Any:
        if type(leaf) is _Argument:
            return given[leaf.index].array
        return leaf.get() if type(leaf) is _Weakly else leaf

    return replaced(marked, fill)


def detached(result: T) -> T:
    """Return a result whose arrays remember nothing of how they were made; itself if none did."""
    if all(_detached(leaf) is leaf for leaf in leaves(result)):
        return result
    new: T = replaced(result, _detached)
    return new


def _detached(leaf: Any) -> Any:
    library = library_of(leaf)
    detach = None if library is None else offered(library.copies, Capture.detached)
    return leaf if detach is None else detach(leaf)
