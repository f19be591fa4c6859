"""A plugin for pytest under coverage: what a test runs, in its children too, has its name."""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path

import coverage
import pytest

from mutations.reach import OUTCOMES, TEST

_seconds: dict[str, float] = {}
_others: set[str] = set()  # those that failed or were skipped
_fixtures: dict[str, list[str]] = {}


def _name_context():
    coverage.Coverage.current().switch_context(os.environ.get(TEST, ""))


os.register_at_fork(after_in_child=_name_context)  # where coverage has begun anew


@contextlib.contextmanager
def _context(name):
    before = os.environ.get(TEST, "")
    os.environ[TEST] = name  # the context of a child that is started: see reach.py
    _name_context()
    try:
        yield
    finally:
        os.environ[TEST] = before
        _name_context()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item):
    file = item.nodeid.partition("::")[0]
    _fixtures[item.nodeid] = [f"{file}::{name}" for name in item.fixturenames]
    with _context(item.nodeid):
        return (yield)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_fixture_setup(fixturedef, request):
    """What a module's fixture runs for the first of its tests counts for each of them."""
    if fixturedef.scope != "module":
        return (yield)
    with _context(f"{request.node.nodeid}::{fixturedef.argname}"):
        return (yield)


def pytest_runtest_logreport(report):
    _seconds[report.nodeid] = _seconds.get(report.nodeid, 0) + report.duration
    if report.outcome != "passed":
        _others.add(report.nodeid)


def pytest_sessionfinish():
    passed = {
        test: (seconds, _fixtures[test])
        for test, seconds in _seconds.items()
        if test not in _others
    }
    Path(os.environ[OUTCOMES]).write_text(json.dumps(passed))
