"""Actors of Ray with a stream of their own: the example, and what happens without its wait."""

from __future__ import annotations

import re
import textwrap

from support.documents import ROOT
from support.engines import need_engine, run_with_children

need_engine("ray", "ray")

EXAMPLE = ROOT / "examples" / "12_ray.py"
ALONE = {"CUDA_VISIBLE_DEVICES": "-1", "RAY_USAGE_STATS_ENABLED": "0"}

HELD = """
import threading
import numpy as np
import ray
import streamkit as sk

@ray.remote(max_concurrency=2)
class Actor:
    def __init__(self):
        self.s, self.gate = sk.new_stream("cpu"), threading.Event()

    def step(self, waits):
        x = np.zeros(3)
        self.s.submit(self.gate.wait, 60)  # the queue is held
        self.s.submit(np.copyto, x, 7)
        if waits:
            self.s.sync()
        return x

    def open(self):
        self.gate.set()

ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
for waits in (True, False):
    actor = Actor.remote()
    array = actor.step.remote(waits)
    if waits:
        assert ray.wait([array], timeout=0.1) == ([], [array])
        ray.get(actor.open.remote())
    print(ray.get(array).tolist())
    ray.get(actor.open.remote())
ray.shutdown()
"""


def test_the_actors_pass_arrays_on():
    done = run_with_children(EXAMPLE, **ALONE)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"on <streamkit.HostStream 'model' .*>\.\nThe sums are right\.", done.stdout)


def test_without_the_sync_an_array_leaves_before_it_is_written(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(textwrap.dedent(HELD), encoding="utf-8")
    done = run_with_children(program, **ALONE)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout == "[7.0, 7.0, 7.0]\n[0.0, 0.0, 0.0]\n"
