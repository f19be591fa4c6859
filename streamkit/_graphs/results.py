"""The result of a call of a graphed function: arguments of the call, and arrays without a past."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any, TypeVar

from streamkit._graphs.signatures import find, leaves, library_of, replaced
from streamkit._support import messages
from streamkit.protocols import Capture
from streamkit.protocols.adapters import offered

if TYPE_CHECKING:
    from collections.abc import Iterable

    from streamkit._graphs.signatures import FoundArray, Signature

T = TypeVar("T")


class _Argument(int):
    """The mark in a captured result for the array that was passed in this place."""


class _Weakly(weakref.ref[Any]):
    """The mark in a captured result for a passed object that the key holds weakly."""


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


def arrays(marked: Any) -> list[FoundArray]:
    """Return the arrays on a GPU of a result, each once and arguments left out, to be copied."""
    found = {id(leaf): find(leaf) for leaf in leaves(marked)}
    on_gpu = [one for one in found.values() if one is not None and one.device is not None]
    check_copied(on_gpu)
    return on_gpu


def check_copied(arrays: Iterable[FoundArray]) -> None:
    """Raise TypeError for an array that no adapter copies into a graph, or out of it."""
    for found in arrays:
        if found.library is None:
            raise TypeError(
                f"StreamKit cannot copy {messages.describe(found.array)}: no adapter copies its "
                "arrays. Use an array on the GPU of a library that has one."
            )


def filled(
    marked: Any, call: Signature, made: Iterable[FoundArray] = (), new: Iterable[Any] = ()
) -> Any:
    """Return the result of a call: its arguments instead of marks, ``new`` instead of ``made``."""
    given = call.arrays
    copies = {id(found.array): one for found, one in zip(made, new, strict=True)}

    def fill(leaf: Any) -> Any:
        if type(leaf) is _Argument:
            return given[leaf].array
        return leaf() if type(leaf) is _Weakly else copies.get(id(leaf), leaf)

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
