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
    copy = dict(found) if can_be_read(frame) else {}
    if is_ours:  # empty it, except for names that exec added: the next exec finds them only here
        code = frame.f_code
        for name in (*code.co_varnames, *code.co_cellvars, *code.co_freevars):
            found.pop(name, None)
    return copy


def can_be_read(frame: FrameType) -> bool:
    """Whether the variables are no mapping of the program's, as exec takes, which runs its code."""
    is_function = frame.f_code.co_flags & inspect.CO_OPTIMIZED
    return bool(is_function) or issubclass(type(frame.f_locals), dict)
