"""The result of a call of a graphed function: arguments of the call, and arrays without a past."""

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
    """The mark in a captured result for the array that was passed in a place."""

    def __init__(self, index: int) -> None:
        self.index = index


class _Weakly:
    """The mark in a captured result for a passed object that the key holds weakly."""

    def __init__(self, value: Any) -> None:
        self.get = weakref.ref(value)


def template(result: Any, places: dict[int, int], objects: Iterable[object]) -> Any:
    """Return a result with marks in the place of the function's arguments.

    An array gets an ``_Argument``, and an object that the key holds weakly a ``_Weakly``.
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
        with contextlib.suppress(TypeError, ValueError):  # of an array whose memory is unknown
            found = find(leaf)
            if found is not None:
                yield found


def filled(marked: Any, call: Signature) -> Any:
    """Return the result of a call, with its arguments in the place of the marks."""
    given = call.arrays

    def fill(leaf: Any) -> Any:
        if type(leaf) is _Argument:
            return given[leaf.index].array
        return leaf.get() if type(leaf) is _Weakly else leaf

    return replaced(marked, fill)


def detached(result: T) -> T:
    """Return the result with arrays that have no autograd graph; itself if no array had one."""
    if all(_detached(leaf) is leaf for leaf in leaves(result)):
        return result
    new: T = replaced(result, _detached)
    return new


def _detached(leaf: Any) -> Any:
    library = library_of(leaf)
    detach = None if library is None else offered(library.copies, Capture.detached)
    return leaf if detach is None else detach(leaf)
