"""Tools for testing: adapters against their contract, programs and functions on their streams.

``accesses`` tells ``streamkit.races`` what a function does with its arrays.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from streamkit.diagnostics.races.calls import accesses
    from streamkit.testing._conformance import Check, Report, check_adapter, checks
    from streamkit.testing._follows import assert_follows
    from streamkit.testing._scheduler import adversarial, for_seeds

_PLACES = {  # loaded at first use, because pytest loads the plugin of this folder in each run
    "streamkit.diagnostics.races.calls": ("accesses",),
    "streamkit.testing._conformance": ("Check", "Report", "check_adapter", "checks"),
    "streamkit.testing._follows": ("assert_follows",),
    "streamkit.testing._scheduler": ("adversarial", "for_seeds"),
}

__all__ = [
    "Check",
    "Report",
    "accesses",
    "adversarial",
    "assert_follows",
    "check_adapter",
    "checks",
    "for_seeds",
]


if not TYPE_CHECKING:  # to type checkers every name would be there

    def __getattr__(name: str) -> Any:
        for place, names in _PLACES.items():
            if name in names:
                found = globals()[name] = getattr(importlib.import_module(place), name)
                return found
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
