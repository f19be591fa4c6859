"""The end of the interpreter, on the emulated driver with real Warp and numba-cuda."""

from __future__ import annotations

import pytest

from support.exit_states import State, states, wrong
from support.libraries import need
from support.programs import python

LIBRARIES = """
import warp, numba.cuda
import streamkit as sk
from support.gpu.raw import Gate, check, driver

warp.config.log_level = warp.LOG_WARNING
warp.init()
check(driver.cuCtxSetCurrent(check(driver.cuDevicePrimaryCtxRetain(0))))
LIBRARIES = "warp", "numba", "cuda.core", "cuda.bindings"

def native_stream():
    return warp.Stream("cuda:0")

def arrays():
    return [
        warp.array(ptr=4096, dtype=float, shape=4, device="cuda:0"),
        numba.cuda.device_array(4),
    ]

def hold(stream):
    Gate().hold(stream.handle)
"""
MODULES = ["warp", "numba.cuda", "streamkit", "support.gpu.raw"]
LACKS = "Warp CUDA error 801"  # what the emulated driver has not got


def test_the_states_are_32_and_each_two_properties_meet():
    found = states()
    assert len(set(found)) == 32
    for one in range(4):
        for other in range(one):
            values = [{state[n] for state in found} for n in (one, other)]
            pairs = {(state[one], state[other]) for state in found}
            assert len(pairs) == len(values[0]) * len(values[1])


# some seconds: 32 interpreters end, each with Warp and numba loaded, forked from one that has them
@pytest.mark.timeout(300)
def test_nothing_is_said_at_the_end_of_the_interpreter():
    need("warp", "numba")
    assert wrong(states(), LIBRARIES, MODULES, apart_from=LACKS) == []


def test_control_what_is_said_is_found():
    need("warp", "numba")
    loud = LIBRARIES + "\nimport atexit\natexit.register(print, 'gone', file=sys.stderr)\n"
    wanted = [State("owned", False, "kept objects", end) for end in ("normal", "exception")]
    found = wrong(wanted, loud, MODULES, apart_from=LACKS)
    assert ["gone" in said for said in found] == [True, True]


def test_control_what_is_dropped_too_early_is_found():
    need("warp", "numba")
    careless = (
        LIBRARIES
        + "\nfrom streamkit._queues import keepalive  # the control breaks it\n"
        + "keepalive._prepare = lambda: None\n"
    )
    wanted = [State("owned", True, "kept objects", "normal")]
    (said,) = wrong(wanted, careless, MODULES, apart_from=LACKS)
    assert "too early" in said


def test_what_is_kept_stays_to_the_very_end():
    need("warp", "numba")
    wanted = [State(stream, True, "kept objects", "normal") for stream in ("owned", "wrapped")]
    assert wrong(wanted, LIBRARIES, MODULES, apart_from=LACKS) == []


def test_a_destructor_at_the_very_end_records_and_waits():
    """As one does that frees memory; cuda.core has no handle of its events any more."""
    program = """
import builtins, os
import streamkit as sk

s, t = sk.new_stream(), sk.new_stream(nonblocking=True)
s.record().sync()

class Frees:
    def __del__(self, write=os.write):
        t.wait(s.record())
        t.sync()
        write(1, b"freed")

builtins.frees = Frees()
"""
    assert python(program) == "freed"
