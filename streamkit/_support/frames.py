"""The variables of a running function, read without keeping what they hold alive."""

from __future__ import annotations

import inspect
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from types import FrameType

_ITS_OWN = 3
"""References to the dict of ``f_locals``: the frame's, a variable's and ``getrefcount``'s own."""


def local_variables(frame: FrameType) -> dict[str, Any]:
    """Return a frame's local variables by their names, and leave no copy of them in the frame.

    Up to Python 3.12 a function's frame keeps the dict of ``f_locals`` until the function ends.
    """
    found = frame.f_locals
    is_function = frame.f_code.co_flags & inspect.CO_OPTIMIZED
    # the program may hold the dict too, because ``locals()`` returns it
    is_ours = is_function and sys.version_info < (3, 13) and sys.getrefcount(found) == _ITS_OWN
    # what else exec may be given would run the program's code
    copy = dict(found) if is_function or issubclass(type(found), dict) else {}
    if is_ours:  # empty it, except for names that exec added: the next exec finds them only here
        code = frame.f_code
        for name in (*code.co_varnames, *code.co_cellvars, *code.co_freevars):
            found.pop(name, None)
    return copy
