"""Workers of Dask with streams of their own: the example, and what happens without its wait."""

from __future__ import annotations

import re
import textwrap

from support.documents import ROOT
from support.engines import need_engine, run_with_children

need_engine("distributed", "dask")

EXAMPLE = ROOT / "examples" / "13_dask.py"

HELD = """
import threading
import numpy as np
from distributed import Client, LocalCluster, get_worker
import streamkit as sk

def prepare(dask_worker):
    dask_worker.s, dask_worker.gate = sk.new_stream("cpu"), threading.Event()

def step(waits):
    worker, x = get_worker(), np.zeros(3)
    worker.s.submit(worker.gate.wait, 60)  # the queue is held
    worker.s.submit(np.copyto, x, 7)
    if waits:
        worker.s.sync()
    return x

def is_idle(dask_worker):
    dask_worker.gate.set()
    dask_worker.s.sync()

if __name__ == "__main__":
    with (
        LocalCluster(n_workers=1, threads_per_worker=2, dashboard_address=None) as cluster,
        Client(cluster) as client,
    ):
        for waits in (True, False):
            client.run(prepare)
            array = client.submit(step, waits)
            if waits:
                try:
                    array.result(timeout=0.1)
                except TimeoutError:
                    client.run(is_idle)
            print(array.result().tolist())
            client.run(is_idle)
"""


def test_the_workers_pass_arrays_on():
    done = run_with_children(EXAMPLE, CUDA_VISIBLE_DEVICES="-1")
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"on <streamkit.HostStream .*>\.\nThe totals are right\.", done.stdout)


def test_without_the_sync_an_array_leaves_before_it_is_written(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(textwrap.dedent(HELD), encoding="utf-8")
    done = run_with_children(program, CUDA_VISIBLE_DEVICES="-1")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout == "[7.0, 7.0, 7.0]\n[0.0, 0.0, 0.0]\n"
