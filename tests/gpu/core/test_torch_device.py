"""torch's current device, which is not always the context's, is the same after a scope.

torch gives no context to a device that it only puts back: it remembers it. So each case is a
program of its own, in which device 0 has no context yet.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from support.libraries import cuda_devices, need
from support.programs import run_program

TESTS = str(Path(__file__).parents[2])

pytestmark = pytest.mark.skipif(cuda_devices() < 2, reason="one CUDA device")

START = """
import contextlib, threading
import torch, streamkit as sk
from cuda.bindings import driver

def has_context(device):
    return bool(driver.cuDevicePrimaryCtxGetState(device)[2])

def place():
    found = torch.cuda.current_device(), torch.ones(1, device="cuda").device.index
    assert found[0] == found[1], found
    return found[0]

class Stop(Exception):
    pass
"""

BEFORE = {
    "a tensor of device 1": 'x = torch.ones(3, device="cuda:1")',
    "a stream of device 1": "torch.cuda.Stream(1)",
    "a block on device 1": 'with torch.cuda.device(1): torch.ones(3, device="cuda")',
    "device 1 set": "torch.cuda.set_device(1)",
}
SCOPES = {
    "with": """
with sk.wrap(torch.cuda.Stream(1)):
    assert torch.cuda.current_device() == 1
""",
    "our stream": """
with sk.new_stream(1):
    assert torch.ones(1, device="cuda").device.index == 1
""",
    "ordered": """
with sk.use(torch.cuda.Stream(1), ordered=True):
    pass
""",
    "an error": """
with contextlib.suppress(Stop), sk.wrap(torch.cuda.Stream(1)):
    raise Stop
""",
    "an interrupt": """
with contextlib.suppress(KeyboardInterrupt), sk.wrap(torch.cuda.Stream(1)):
    raise KeyboardInterrupt
""",
    "nested": """
s = sk.wrap(torch.cuda.Stream(1))
with s, s, sk.use(s), sk.new_stream(1), s:
    pass
""",
    "out of order": """
outer, inner = (sk.use(torch.cuda.Stream(1)) for _ in range(2))
outer.__enter__()
inner.__enter__()
with contextlib.suppress(sk.errors.ScopeError):
    outer.__exit__(None, None, None)
""",
    "refused": """
import cupy
real, cupy.cuda.Stream.__enter__ = cupy.cuda.Stream.__enter__, None
try:
    with sk.new_stream(1):
        raise AssertionError("it was entered")
except TypeError:
    cupy.cuda.Stream.__enter__ = real
""",
    "work on device 0 inside": """
with sk.wrap(torch.cuda.Stream(1)):
    torch.ones(3, device="cuda:0")
""",
    "work on the current device of a scope on device 0": """
with sk.new_stream(0):
    torch.ones(3, device="cuda")
""",
    "other libraries": """
import cupy
with sk.use(torch.cuda.Stream(1), libraries=["cupy"]):
    torch.ones(3, device="cuda")
""",
    "a graph": """
with sk.capture(sk.new_stream(1)) as graph:
    torch.ones(3, device="cuda:1").add_(1)
graph.launch(sk.new_stream(1))
graph.launch()
graph.stream.sync()
""",
}


@pytest.mark.parametrize("before", BEFORE)
def test_torchs_current_device_is_the_same_after_a_scope(before):
    need("torch", "cupy")

    def said(scope):
        done = run_program(f"""{START}
{BEFORE[before]}
first = torch.cuda.current_device()
{SCOPES[scope]}
assert torch.cuda.current_device() == first, (first, torch.cuda.current_device())
assert place() == first
""")
        return done.returncode, done.stderr

    with ThreadPoolExecutor(4) as threads:  # each program has contexts on both devices
        found = dict(zip(SCOPES, threads.map(said, SCOPES), strict=True))
    assert found == dict.fromkeys(SCOPES, (0, ""))


@pytest.mark.parametrize("run", ["work()", "threading.Thread(target=work).start()"])
def test_device_0_is_given_no_context_by_a_scope_on_device_1(run):
    """The thread has none of device 1 either."""
    need("torch")
    done = run_program(f"""{START}
x, stream = torch.ones(3, device="cuda:1"), sk.wrap(torch.cuda.Stream(1))

def where():
    return int(driver.cuCtxGetCurrent()[1]), torch.cuda.current_device(), has_context(0)

def work():
    before = where()
    assert before == (stream.context if {run!r} == "work()" else 0, 0, False), before
    with stream:
        x.add_(1)
    after = where()
    assert after == before, (before, after)
    assert place() == 0
    assert has_context(0)

{run}
""")
    assert (done.returncode, done.stderr) == (0, "")


def test_control_torchs_device_is_not_the_contexts():
    """Without this the tests above could not fail."""
    need("torch")
    done = run_program(f"""{START}
x = torch.ones(3, device="cuda:1")
assert torch.cuda.current_device() == 0
assert int(driver.cuCtxGetDevice()[1]) == 1
assert not has_context(0)
stream = torch.cuda.Stream(1)
torch._C._cuda_setStream(stream.stream_id, stream.device_index, stream.device_type)
assert torch.cuda.current_device() == 1  # what a scope calls
""")
    assert (done.returncode, done.stderr) == (0, "")


def test_an_interrupt_at_any_call_of_entering_a_scope_moves_nothing():
    """As ``tests/emulated/core/test_interrupts.py`` for Warp, here for torch, CuPy and Warp."""
    need("torch", "cupy", "warp")
    done = run_program(f"""{START}
import sys
sys.path.insert(0, {TESTS!r})
import cupy, warp
warp.config.quiet = True
warp.init()
from support.interrupts import count, do_not_count, interrupt_everywhere

stream, other = sk.new_stream(1), sk.new_stream(1)
with stream, other:
    pass
seen = []

def state():
    with torch.cuda.device(1), cupy.cuda.Device(1):
        found = cupy.cuda.get_current_stream()
        with cupy.cuda.Stream():
            pass
        below = cupy.cuda.get_current_stream()  # what CuPy's stack has on top
        found.use()
    return (torch.cuda.current_device(), torch.cuda.current_stream(1), found.ptr, below.ptr,
            warp.get_stream("cuda:1").cuda_stream, str(warp.get_device()))

def enter(outer):
    do_not_count()
    with outer or contextlib.nullcontext():
        before = state()
        try:
            count()
            with stream:
                do_not_count()
        finally:
            do_not_count()
            seen.append((before, state()))

for outer in (None, other):
    for nth in interrupt_everywhere(lambda: enter(outer)):
        assert seen[-1][0] == seen[-1][1], (nth, seen[-1])
    assert nth > 10, nth
""")
    assert (done.returncode, done.stderr) == (0, "")


def test_torch_follows_to_the_device_though_its_stream_there_is_current_already():
    """Its own device is another one: on that its work would go elsewhere."""
    need("torch", "cupy")
    done = run_program(f"""{START}
import cupy
x = torch.ones(3, device="cuda:1")
assert (torch.cuda.current_device(), cupy.cuda.Device().id) == (0, 1)
scope = sk.follow("cupy", libraries=["torch"])
for _ in range(2):
    with scope as followed:
        assert followed.device_id == 1
        assert torch.ones(1, device="cuda").device.index == 1
    assert torch.cuda.current_device() == 0
assert place() == 0
""")
    assert (done.returncode, done.stderr) == (0, "")
