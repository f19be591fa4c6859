"""The states in which an interpreter can end, as programs, which may print nothing at their end.

A tier gives what each library needs: see ``program``.
"""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import tempfile
from typing import NamedTuple

from support.programs import FORK_SERVER

THE_END = "KeyError: 'the end'"

STREAMS = {
    "owned": "s = sk.new_stream(nonblocking=True)",
    "wrapped": "s = sk.wrap(native_stream())",
}
HOLDINGS = {
    "views": "held = [s.to(name) for name in LIBRARIES]",
    "a scope": "scope = sk.use(s); scope.__enter__(); held = [scope]",
    "kept objects": """
things = [Silent(), bytearray(8)]
s.keep(*things)
held = [sk.handoff(one, s, after=sk.default_stream()) for one in arrays()]
del things
""",
    "an event": "t = sk.new_stream(); held = [t, s.record(), t.wait(s)]",
}
ENDINGS = {
    "normal": "",
    "exception": "raise KeyError('the end')",
    "thread": """
thread = threading.Thread(target=lambda: (s.keep(held), sys.exit(3)))
thread.start()
thread.join()
""",
    "cycle": "ring = [s, held]; ring.append(ring); del s, held",
}
START = """
import os, sys, threading

class Silent:
    def __del__(self, busy=BUSY, write=os.write):  # bound: at the end the names are gone
        if busy:
            write(1, b"too early")
"""


class State(NamedTuple):
    stream: str
    busy: bool
    holding: str
    ending: str

    def __str__(self) -> str:
        work = "busy" if self.busy else "idle"
        return f"{work} {self.stream} stream, {self.holding}, {self.ending}"


def states() -> list[State]:
    """Return 32 of the 64 states, in which any values of two properties meet."""
    every = itertools.product(enumerate(STREAMS), enumerate(HOLDINGS), enumerate(ENDINGS))
    return [
        State(stream, (i + j + k) % 2 == 0, holding, ending)
        for (i, stream), (j, holding), (k, ending) in every
    ]


def program(state: State, libraries: str) -> str:
    """Return the source of a program that ends in a state.

    ``libraries`` is source that defines LIBRARIES, native_stream, arrays and hold.
    """
    lines = [f"BUSY = {state.busy}", START, libraries, STREAMS[state.stream]]
    if state.busy:
        lines.append("hold(s)")
    return "\n".join([*lines, HOLDINGS[state.holding], ENDINGS[state.ending]])


def wrong(
    wanted: list[State], libraries: str, modules: list[str], *, apart_from: str = "\n"
) -> list[str]:
    """End a program in each state; return what went wrong, for each that did.

    Lines that begin with ``apart_from`` may be printed.
    """
    programs = [{"code": program(state, libraries)} for state in wanted]
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [sys.executable, "-W", "ignore", FORK_SERVER, folder, *modules],
            input=json.dumps([programs, os.cpu_count() or 1]),
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            capture_output=True,
            text=True,
            timeout=250,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    outcomes = json.loads(done.stdout.splitlines()[-1])
    return [
        f"{state}: {outcome}"
        for state, outcome in zip(wanted, outcomes, strict=True)
        if not _is_right(state, *outcome, apart_from)
    ]


def _is_right(state: State, code: int, out: str, err: str, apart_from: str) -> bool:
    said = [line for line in err.splitlines() if not line.startswith(apart_from)]
    if "too early" in out:  # Warp may say there that it has started
        return False
    if state.ending != "exception":
        return code == 0 and not said
    return code == 1 and len(said) <= 6 and said[0][:9] == "Traceback" and said[-1] == THE_END
