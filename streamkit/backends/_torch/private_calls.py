"""Functions that torch's public ones call, at a twentieth of the cost, where they are known."""

from __future__ import annotations

from typing import Any

import torch

_OLDEST, _NEWEST = (2, 11), (2, 15)  # the versions whose private calls are known


def private_call(name: str, public: Any) -> Any:
    """Return torch's private function of this name; ``public`` if this torch has none, or may."""
    version = tuple(map(int, torch.__version__.split(".")[:2]))
    return getattr(torch._C, name, public) if _OLDEST <= version <= _NEWEST else public  # noqa: SLF001
