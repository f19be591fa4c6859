"""Tools for testing: adapters against their contract, and programs against missing waits."""

from streamkit.testing._conformance import Check, Report, check_adapter, checks
from streamkit.testing._scheduler import adversarial, for_seeds

__all__ = ["Check", "Report", "adversarial", "check_adapter", "checks", "for_seeds"]
