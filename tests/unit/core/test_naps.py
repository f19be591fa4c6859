"""How a thread waits: a look, then naps that grow with the wait. Time passes as the test has it."""

from __future__ import annotations

import math

import pytest

from streamkit._queues import waits  # which asks and naps

pytestmark = pytest.mark.portable

ASKING = 2e-6  # seconds


class Clock:
    """The naps that were taken, and the time."""

    def __init__(self, monkeypatch):
        self.now, self.naps = 0.0, []
        monkeypatch.setattr(waits, "monotonic", lambda: self.now)
        monkeypatch.setattr(waits, "sleep", self.sleep)

    def sleep(self, seconds):
        self.naps.append(seconds)
        self.now += seconds

    def wait(self, seconds, timeout=None, look=waits.LOOK):
        """Wait for what is so far away; return the answer, and how late it came."""
        end = self.now + seconds

        def done():
            self.now += ASKING
            return self.now >= end

        return waits.ask(done, timeout, look), self.now - end


@pytest.fixture
def clock(monkeypatch):
    return Clock(monkeypatch)


@pytest.mark.parametrize("seconds", [0, 20e-6, 0.001])
def test_a_wait_of_a_millisecond_is_spent_asking(clock, seconds):
    reached, late = clock.wait(seconds)
    assert reached
    assert late <= ASKING * 1.01
    assert clock.naps == []


@pytest.mark.parametrize("seconds", [0.002, 0.01, 0.05, 1, 100])
def test_a_longer_one_is_late_by_less_than_a_hundredth_and_leaves_the_processor(clock, seconds):
    reached, late = clock.wait(seconds)
    assert reached
    assert late < max(seconds / 100, 160e-6)
    assert late < 0.0101
    assert min(clock.naps) >= 150e-6
    assert max(clock.naps) <= 0.01
    assert sum(clock.naps) > 0.9 * (seconds - waits.LOOK)


@pytest.mark.parametrize("timeout", [0, 1e-5, 0.0123, 1.5])
@pytest.mark.parametrize("look", [waits.LOOK, math.inf])
def test_a_timeout_is_exact(clock, timeout, look):
    began = clock.now
    reached, _ = clock.wait(100, timeout, look)
    assert not reached
    assert timeout <= clock.now - began <= timeout + 3 * ASKING


def test_one_that_spins_never_naps(clock):
    assert clock.wait(0.1, None, math.inf)[0]
    assert clock.naps == []
