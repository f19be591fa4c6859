"""What a forked child does first; where no process can fork, as on Windows, there is none."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


def in_child(call: Callable[[], object]) -> None:
    """Have ``call`` called in each child that this process forks, before other code runs there."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=call)
