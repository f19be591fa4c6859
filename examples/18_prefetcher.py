"""A prefetcher takes memory again while it is still in use: `sk.races` names the missing wait.

Prefetchers of timm and PyG had this race on a GPU, where an allocator gives the memory again. The
two streams here are host streams, so the program runs everywhere.
"""

import sys
from collections.abc import Iterator

try:
    import numpy as np
except ModuleNotFoundError:
    sys.exit("This example needs NumPy. Install it with: pip install numpy")

import streamkit as sk

load = sk.new_stream("cpu", name="load")
train = sk.new_stream("cpu", name="train")


def prefetched(batches: np.ndarray, *, is_careful: bool) -> Iterator[np.ndarray]:
    """Yield each batch to the work on `train`, while `load` copies the next one."""
    memory, batch = np.zeros((2, 1000)), None
    for number, source in enumerate(batches):
        coming = memory[number % 2]  # as an allocator gives it again: the batch before last
        if is_careful:
            load.wait(train)  # so that nothing reads that batch any more
        load.submit(np.copyto, coming, source)
        if batch is not None:
            yield batch
        train.wait(load)  # so that the next batch is there
        batch = coming
    yield batch


def run(*, is_careful: bool) -> tuple[np.ndarray, object]:
    """Work on five batches; return the results, and the report of the missing waits."""
    batches = np.repeat(np.arange(5.0), 1000).reshape(5, 1000)
    results = np.zeros((5, 1000))
    with sk.races() as report:
        for batch, result in zip(prefetched(batches, is_careful=is_careful), results, strict=True):
            train.submit(np.multiply, batch, 2, result)
    train.sync()
    return results, report


_, careless = run(is_careful=False)
results, careful = run(is_careful=True)
print(careless)
print(f"\nWith the wait: {careful}")
print(f"The results are {', '.join(f'{result[0]:g}' for result in results)}.")

found = [(race.first.queue.name, race.second.queue.name) for race in careless.certain]
is_right = bool(np.all(results == 2 * np.arange(5.0)[:, None]))
sys.exit(found != [("train", "load")] or bool(careful.races) or not is_right)
