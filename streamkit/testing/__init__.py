"""Tools for testing: adapters against their contract, programs and functions on their streams."""

from streamkit.testing._conformance import Check, Report, check_adapter, checks
from streamkit.testing._follows import assert_follows
from streamkit.testing._scheduler import adversarial, for_seeds

__all__ = [
    "Check",
    "Report",
    "adversarial",
    "assert_follows",
    "check_adapter",
    "checks",
    "for_seeds",
]
