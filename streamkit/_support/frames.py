"""The variables of a running function, read without keeping what they hold alive."""

from __future__ import annotations

import inspect
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from types import FrameType

_ITS_OWN = 3
"""References to what ``f_locals`` gives: of the frame, of a variable, of the argument that asks."""


def local_variables(frame: FrameType) -> dict[str, Any]:
    """Return a frame's local variables by their names, of which the frame itself keeps no copy.

    Up to Python 3.12 a function's frame keeps what ``f_locals`` gives until the function ends.
    """
    found = frame.f_locals
    is_kept = sys.version_info < (3, 13) and frame.f_code.co_flags & inspect.CO_OPTIMIZED
    # the program may hold it too, as it is what ``locals()`` gives
    is_ours = is_kept and sys.getrefcount(found) == _ITS_OWN
    copy = dict(found)
    if is_ours:  # but for what exec has added, which the next exec finds nowhere else
        code = frame.f_code
        for name in (*code.co_varnames, *code.co_cellvars, *code.co_freevars):
            found.pop(name, None)
    return copy
