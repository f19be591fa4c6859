"""What a scope of one stream calls, prepared once: each library's ways in and out.

Scopes are entered in inner loops, so what can be known before is looked up here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

from streamkit import _driver, _library, _movers

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

Libraries: TypeAlias = "frozenset[str] | None"  # those to move; None for all


class Plan:
    """The ways of one stream in and out of the chosen libraries."""

    def __init__(self, view: Callable[[str], Any], context: int, libraries: Libraries) -> None:
        """``view`` gives a library's own object on the stream, whose context is ``context``."""
        self.context = context
        self.known = _movers.movers()
        self.movers = [m for m in self.known if libraries is None or m.name in libraries]
        ways = [mover.bind(view(mover.name)) for mover in self.movers]
        self.enters = [way.enter for way in ways]
        self.leaves = [way.leave for way in reversed(ways)]
        self.count = len(ways)
        self.keeps_device = all(way.keeps_device for way in ways)
        # the cheapest question for the current context, and its answer while it is this one
        told = [mover.context for mover in self.known if mover.context is not None]
        self.where: Callable[[], object] = told[0] if told else _library.cu.cuCtxGetCurrent
        self.here: object = context if told else _driver.context_answer(context)
        self.is_there = _all([way.is_current for way in ways], self.where, self.here)
        """Whether every library, and the context, is where a scope puts it."""
        self._back = [way.set_current for way in ways]

    def stay(self) -> list[str]:
        """Put every library, and the context, back there; name what could not."""
        lost: list[str] = []
        try:
            _driver.set_context(self.context)
        except Exception as error:  # noqa: BLE001 - the libraries must be restored all the same
            lost.append(f"the device ({error})")
        for mover, set_current in zip(self.movers, self._back, strict=True):
            try:
                set_current()
            except Exception as error:  # noqa: BLE001 - the others must be restored all the same
                lost.append(f"{mover.name} ({type(error).__name__}: {error})")
        return lost


def _all(
    looks: Sequence[Callable[[], bool]], where: Callable[[], object], here: object
) -> Callable[[], bool]:
    """Return what asks all of them; three are written out, for a loop costs as much as they do."""
    one, two, three, *others = (*looks, _yes, _yes, _yes)
    if len(looks) > 3:  # noqa: PLR2004 - those written out
        three = _all(others[:-3], three, True)  # noqa: FBT003 - what ``three`` answers

    def are_there() -> bool:
        try:
            return not _library.is_forked and one() and two() and three() and where() == here
        except Exception:  # noqa: BLE001 - a library's own: it cannot tell
            return False

    return are_there


def _yes() -> bool:
    return True
