"""What is asked of the driver once for a process, with each of these calls failing.

python tests/support/emulated/first_calls.py

Each trial is a forked child of this process, which itself never touches CUDA. Prints what is
wrong, and at last how many trials there were.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import traceback
import warnings
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

import cuda.core  # noqa: F401 - so that the children need not

import emulator
import streamkit as sk
from support.emulated.faults import ACCEPTED, CODES, Accepted, error_of, faults, wrong_outcome
from support.emulated.operations import Foreign
from support.emulated.state_snapshot import contexts

FIRST = {
    "new_stream": sk.new_stream,
    "new_event": sk.new_event,
    "default_stream": sk.default_stream,
    "stream_of_a_named_device": lambda: sk.new_stream(1, nonblocking=True),
    "per_thread_stream_of_a_named_device": lambda: sk.default_stream(1, per_thread=True),
    "wrap_the_default_stream": lambda: sk.wrap(Foreign(1)),
    "from_handle": lambda: sk.from_handle(2, device=0),
    "to_cuda_core": lambda: sk.new_stream(0).to("cuda.core"),
    "wait": lambda: sk.new_stream(0).wait(sk.new_stream(1)),
}
EXCEPTED = [
    *ACCEPTED,
    Accepted(
        "new_.*|default_stream",
        "cuInit|cuDeviceGetCount",
        "without a device this is the host's",
        code=CODES.CUDA_ERROR_NO_DEVICE,
    ),
    Accepted(
        ".*",
        "cuInit|cuDeviceGetCount",
        "so the driver says that there is no device",
        sk.errors.NoDeviceError,
        CODES.CUDA_ERROR_NO_DEVICE,
    ),
    Accepted(
        "new_event|to_cuda_core|wait",
        "cuInit|cuDeviceGetCount|cuDevicePrimaryCtxRetain|cuDriverGetVersion",
        "cuda.core, which makes them for its first object, does not say which call failed",
        sk.errors.DriverError,
    ),
]


def in_a_child(work):
    """What ``work()`` returns in a forked child; it has to be JSON."""
    read, write = os.pipe()
    with warnings.catch_warnings():  # a thread of some library may just be ending
        warnings.filterwarnings("ignore", ".*fork", DeprecationWarning)
        child = os.fork()
    if not child:
        try:
            answer = work()
        except BaseException:  # noqa: BLE001 - it is told by the parent
            answer = [traceback.format_exc()]
        with os.fdopen(write, "w") as pipe:
            json.dump(answer, pipe)
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        text = pipe.read()
    os.waitpid(child, 0)
    return json.loads(text) if text else ["the process died"]


def alive():
    gc.collect()
    return [emulator.live(kind) for kind in ("streams", "events")]


def calls_of(call):
    """Only of these functions: what a second time asks less often."""
    counted = []
    for _ in range(2):
        emulator.reset_calls()
        call()
        counted.append(emulator.all_calls())
    first, second = counted
    once = {name: count for name, count in first.items() if count > second.get(name, 0)}
    return once, alive()


def try_one(name, call, fault, usual):
    emulator.fail(fault.function, fault.code, nth=fault.nth)
    error = error_of(call)
    problems = wrong_outcome(name, (fault,), error, EXCEPTED)
    if emulator.clear_faults():
        problems.append("the call was not made")
    if error := error_of(call):
        problems.append(f"then {error!r}")
    if alive() != usual and sk.new_event().device != "cpu":
        problems.append(f"left alive: {alive()} streams and events, usually {usual}")
    if fault.function != "cuInit" and contexts():
        problems.append("left a context current")
    return problems


def main():
    gc.freeze()
    trials = 0
    for name, call in FIRST.items():
        calls, usual = in_a_child(lambda: calls_of(call))  # noqa: B023 - called at once
        for fault in faults(calls):
            trials += 1
            for problem in in_a_child(lambda: try_one(name, call, fault, usual)):  # noqa: B023
                print(f"{name}: {fault}: {problem}")
    print(f"{trials} trials")


if __name__ == "__main__":
    main()
