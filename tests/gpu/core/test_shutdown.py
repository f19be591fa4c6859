"""The end of the interpreter with torch, CuPy and Warp."""

from __future__ import annotations

import pytest

from support.exit_states import State, states, wrong
from support.libraries import need

LIBRARIES = """
import cupy, torch, warp
import streamkit as sk

warp.config.log_level = warp.LOG_WARNING
LIBRARIES = "torch", "cupy", "warp", "cuda.core"

def native_stream():
    return cupy.cuda.Stream(non_blocking=True)

MADE = [torch.ones(8, device="cuda"), torch.from_dlpack(cupy.ones(8)), cupy.ones(8), warp.ones(8)]

def arrays():
    while MADE:
        yield MADE.pop()

def hold(stream):
    with torch.cuda.stream(stream.to("torch")):
        torch.cuda._sleep(2_000_000_000)  # about a second: longer than what follows
"""
MODULES = ["torch", "cupy", "warp", "streamkit"]


@pytest.mark.timeout(200)
def test_nothing_is_said_at_the_end_of_the_interpreter():
    need("torch", "cupy", "warp")
    assert wrong(states(), LIBRARIES, MODULES) == []


def test_control_what_is_said_is_found():
    need("torch", "cupy", "warp")
    loud = LIBRARIES + "\nimport atexit\natexit.register(print, 'gone', file=sys.stderr)\n"
    (said,) = wrong([State("owned", False, "kept objects", "normal")], loud, MODULES)
    assert "gone" in said
