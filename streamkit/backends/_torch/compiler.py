"""torch's compiler leaves StreamKit's own files alone, as it does those of NumPy or pandas.

Code that it cannot compile runs as ever, but it tries to compile what is called from there. So each
scope in such code would have it look at all functions behind the scope.
"""

from __future__ import annotations

import contextlib
import sys
from typing import Any

from streamkit.protocols.libraries import is_half_imported

_RULES = "torch._dynamo.trace_rules"


def leave_streamkit_alone() -> None:
    """Tell the compiler, at once or when it has been imported, which would take seconds now."""
    if not _tell():
        sys.meta_path.insert(0, _Watch())


def _tell() -> bool:
    """Tell the compiler; return False if it is not imported yet."""
    rules: Any = sys.modules.get(_RULES)
    if rules is None or is_half_imported(rules):
        return False
    with contextlib.suppress(Exception):  # a private function: without the rule only time is lost
        rules.add("streamkit")
    return True


class _Watch:
    """A finder that finds nothing, because it is only there to be asked before each import.

    The finder stays in the list: to leave while Python walks through would hide the next one.
    """

    _waits = True

    def find_spec(self, *_: object) -> None:
        if self._waits and _tell():
            self._waits = False
