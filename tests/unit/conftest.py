"""What the tests without any library share."""

from __future__ import annotations

import ctypes
import gc
import sys
import threading
import time

import pytest

import streamkit as sk
from support.queues import Gate


@pytest.fixture
def no_driver():
    """Skip on a machine that has a CUDA driver: these tests say what happens without one."""
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return
    pytest.skip("there is a CUDA driver library")


@pytest.fixture
def stream():
    return sk.new_stream("cpu", name="s")


@pytest.fixture
def other():
    return sk.new_stream("cpu", name="other")


@pytest.fixture
def hold():
    """Hold queues until the test opens their gates, or ends."""
    gates = []

    def hold(stream):
        gates.append(Gate(stream))
        return gates[-1]

    yield hold
    for gate in gates:
        gate.open()


@pytest.fixture
def slow_workers():
    """Let every thread started meanwhile nap at each call and return, to show its races."""
    threading.setprofile(lambda *_: time.sleep(0.002))
    yield
    threading.setprofile(None)


@pytest.fixture
def eager_switching():
    """Have Python switch to another thread as often as it can."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(interval)


@pytest.fixture
def reported(monkeypatch):
    """What is given to ``sys.unraisablehook``: each error, and the text that tells whose it is."""
    seen = []

    def hook(args):
        # from Python 3.14 on the object is in the message alone
        seen.append((args.exc_value, f"{args.err_msg} {args.object!r}"))

    monkeypatch.setattr(sys, "unraisablehook", hook)
    yield seen
    gc.collect()  # or what the test left is reported in a later one
