"""Dask workers that mix libraries on streams of their own and pass arrays on to each other.

Dask knows no streams: a task is done when its function returns. So the function waits for its own
stream, and for nothing else, before the array leaves it.
"""

import sys
from importlib import import_module
from itertools import pairwise

try:
    import numpy as np
    from distributed import Client, LocalCluster, get_worker
except ModuleNotFoundError:
    sys.exit("This example needs Dask and NumPy. Install them with: pip install distributed numpy")

import streamkit as sk

PARTS, SIZE = 8, 100_000


def own_stream() -> sk.Stream:
    """Return the stream of the worker that runs this task."""
    worker = get_worker()
    if not hasattr(worker, "stream"):
        worker.stream = sk.new_stream(name=str(worker.name))
    return worker.stream


def load(part: int) -> object:
    """Write an array: with CuPy, or with NumPy where there is no GPU."""
    s = own_stream()
    xp = import_module("cupy") if sk.is_available() else np
    with sk.use(s):
        numbers = xp.empty(SIZE)
    s.submit(xp.copyto, numbers, part)
    s.sync()  # now Dask may send it, from a thread of its own
    return numbers


def total(*parts: object) -> tuple[float, str]:
    """Add arrays of other tasks, and perhaps of other workers: with torch, or with NumPy."""
    s = own_stream()
    with sk.use(s, ordered=True):  # Dask has brought them on the default stream
        if not sk.is_available():
            added = sum(parts).sum()
        else:
            added = sum(map(import_module("torch").from_dlpack, parts)).sum()
    s.sync()
    return float(added), str(s)


if __name__ == "__main__":  # the workers import this file
    with (
        LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster,
        Client(cluster) as client,
    ):
        parts = client.map(load, range(PARTS))
        pairs = [client.submit(total, one, two) for one, two in pairwise(parts)]
        totals, streams = zip(*client.gather(pairs), strict=True)
    for stream in sorted(set(streams)):
        print(f"{streams.count(stream)} pairs of arrays were added on {stream}.")
    expected = [SIZE * (2 * part + 1.0) for part in range(PARTS - 1)]
    right = np.allclose(totals, expected)
    print(f"The totals are {'right' if right else 'wrong'}. No task waited for a whole device.")
    sys.exit(not right)
