"""Where the emulated driver differs from hardware on purpose: section, observation, reason.

An observation may be a pattern. One that no longer differs fails the test.
"""

from __future__ import annotations

ACCEPTED: list[tuple[str, str, str]] = []
