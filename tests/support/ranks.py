"""Programs in several processes that are the ranks of one group."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import time

from support.programs import environment

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

    It has the names ``rank``, ``count``, ``dist`` and the group's ``store``. An error in one rank
    ends the others and fails the test. They meet in a file of the folder, and talk over the
    loopback.
    """
    __tracebackhide__ = True
    count, start = 2, START.replace("BACKEND", repr(backend))
    code = start + textwrap.dedent(program) + end
    loopback = {"GLOO_SOCKET_IFNAME": "lo"} if sys.platform == "linux" else {}
    command = [sys.executable, "-P", "-W", "ignore", "-c", code]
    said = [folder / f"rank {rank}" for rank in range(count)]
    ranks = []
    try:
        for rank, file in enumerate(said):
            with file.open("w") as out:
                started = subprocess.Popen(
                    [*command, str(rank), str(count), folder / "meet"],
                    env=environment(**loopback),
                    stdout=out,
                    stderr=subprocess.STDOUT,
                )
            ranks.append(started)
        limit = time.monotonic() + 110
        while any(rank.poll() is None for rank in ranks) and time.monotonic() < limit:
            if any(rank.poll() for rank in ranks):
                break
            time.sleep(0.05)
        ended = [rank.poll() for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    out = [file.read_text(encoding="utf-8") for file in said]
    assert ended == [0] * count, "\n".join(out)
    return out
