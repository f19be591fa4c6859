"""The process: a fork, and the end of the interpreter."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from _libraries import need


def run(program):
    paths = [str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")]
    return subprocess.run(
        [sys.executable, "-W", "ignore", "-c", textwrap.dedent(program)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


def test_a_forked_child_is_told_and_the_parent_is_unharmed():
    done = run("""
        import gc, os
        import streamkit as sk

        stream, event = sk.new_stream(), sk.new_event()
        child = os.fork()
        if child == 0:
            told = 0
            for call in (sk.new_stream, stream.record, lambda: stream.record(event), stream.sync,
                         lambda: stream.wait(event), sk.default_stream, stream.__enter__):
                try:
                    call()
                except sk.ForkedProcessError as error:
                    told += "spawn" in str(error)
            repr(stream)
            del stream, event
            gc.collect()
            os._exit(0 if told == 7 else 1)
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status))
        stream.record(event)
        stream.sync()
        print("parent", stream.done)
    """)
    assert (done.stdout, done.stderr) == ("0\nparent True\n", "")


@pytest.mark.parametrize(
    "ending",
    ["pass", "raise SystemExit(0)", "scope.__enter__()", "s.close()", "del s", "ring.append(ring)"],
)
def test_nothing_is_said_at_the_end_of_the_interpreter(ending):
    need("torch", "cupy")
    done = run(f"""
        import cupy, torch
        import streamkit as sk

        s, t = sk.new_stream(), sk.wrap(torch.cuda.Stream())
        scope = sk.use(s)
        with t:
            x = torch.ones(10, device="cuda")
        views = [s.to("torch"), s.to("cupy"), t.to("cupy")]
        event = s.record()
        t.wait(s)
        ring = [s, event]
        {ending}
    """)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_importing_and_wrapping_touches_no_device():
    done = run("""
        import streamkit as sk
        import streamkit._library as seam

        assert not seam.is_loaded()
        for wrong in (None, 5, object()):
            try:
                sk.wrap(wrong)
            except TypeError:
                pass
        assert not seam.is_loaded()
    """)
    assert (done.returncode, done.stderr) == (0, "")
