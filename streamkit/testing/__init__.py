"""Tools for testing: adapters against their contract, programs and functions on their streams.

``accesses`` tells ``streamkit.races`` what a function does with its arrays.
"""

from streamkit._races.calls import accesses
from streamkit.testing._conformance import Check, Report, check_adapter, checks
from streamkit.testing._follows import assert_follows
from streamkit.testing._scheduler import adversarial, for_seeds

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
