"""Objects whose end must not come, not even with the interpreter's."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Generator


def never_end(*objects: object) -> None:
    """Give each object a reference that nobody gives up."""
    import ctypes  # noqa: PLC0415 - slow to import

    for one in objects:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(one))


@contextlib.contextmanager
def unless_whole(one: object) -> Generator[None]:
    """Let an object never end, unless the block ends well."""
    import ctypes  # noqa: PLC0415 - the same

    never_end(one)  # first, for an interrupt can come at any moment
    yield
    ctypes.pythonapi.Py_DecRef(ctypes.py_object(one))
