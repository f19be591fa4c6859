"""Calls of a played driver, with the recorder in C behind them."""

from __future__ import annotations

import pytest

from streamkit.diagnostics.recording.recorder import Subscription  # its driver is played
from support import driver_calls


@pytest.fixture(scope="module")
def all_calls(tmp_path_factory):
    return driver_calls.made(tmp_path_factory.mktemp("calls"))


@pytest.fixture
def calls(all_calls, monkeypatch):
    all_calls.connect(monkeypatch.setattr)
    return all_calls


@pytest.fixture
def noted(calls):
    """The facts so far, which ends the recording."""
    return driver_calls.Noted(Subscription())
