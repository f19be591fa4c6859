"""Programs in several processes that are the ranks of one group."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import streamkit

START = """
import datetime, sys
import torch, torch.distributed as dist
import streamkit as sk

rank, count, file = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
store = dist.FileStore(file, count)
limit = datetime.timedelta(seconds=60)
dist.init_process_group(BACKEND, store=store, rank=rank, world_size=count, timeout=limit)
"""

END = """
store.set(f"end of {rank}", "")
store.wait([f"end of {other}" for other in range(count)])  # whoever leaves first breaks the others
dist.destroy_process_group()
"""


def run_ranks(program, folder, *, backend="gloo", end=END):
    """Run a program, indented as in a test, in each of two ranks; return what each printed.

    It knows ``rank``, ``count``, ``dist`` and the ``store`` of the group. What one raises fails the
    test, and ends the others. They meet in a file of the folder, and talk over the loopback.
    """
    __tracebackhide__ = True
    count, start = 2, START.replace("BACKEND", repr(backend))
    code = start + textwrap.dedent(program) + end
    path = os.pathsep.join(
        filter(None, [str(Path(streamkit.__file__).parents[1]), os.environ.get("PYTHONPATH")])
    )
    loopback = {"GLOO_SOCKET_IFNAME": "lo"} if sys.platform == "linux" else {}
    command = [sys.executable, "-P", "-W", "ignore", "-c", code]
    ranks = [
        subprocess.Popen(
            [*command, str(rank), str(count), folder / "meet"],
            env={**os.environ, "PYTHONPATH": path, **loopback},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(count)
    ]
    try:
        said = [rank.communicate(timeout=90) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    assert not any(rank.returncode for rank in ranks), "\n".join(error for _, error in said)
    return [out for out, _ in said]
