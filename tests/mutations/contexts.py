"""A plugin for pytest under coverage: what a test runs, in its children too, has its name."""

from __future__ import annotations

import json
import os
from pathlib import Path

import coverage
import pytest

from mutations.reach import OUTCOMES, TEST

_seconds: dict[str, float] = {}
_others: set[str] = set()  # those that failed or were skipped


def _name_context():
    coverage.Coverage.current().switch_context(os.environ.get(TEST, ""))


os.register_at_fork(after_in_child=_name_context)  # where coverage has begun anew


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item):
    os.environ[TEST] = item.nodeid  # the context of a child that is started: see reach.py
    _name_context()
    try:
        return (yield)
    finally:
        os.environ.pop(TEST, None)
        _name_context()


def pytest_runtest_logreport(report):
    _seconds[report.nodeid] = _seconds.get(report.nodeid, 0) + report.duration
    if report.outcome != "passed":
        _others.add(report.nodeid)


def pytest_sessionfinish():
    passed = {test: seconds for test, seconds in _seconds.items() if test not in _others}
    Path(os.environ[OUTCOMES]).write_text(json.dumps(passed))
