"""Two host streams: the interface of CUDA streams where there is no GPU, for tests and laptops."""

import sys
import time

try:
    import numpy as np
except ModuleNotFoundError:
    sys.exit("This example needs NumPy. Install it with: pip install numpy")

import streamkit as sk

loader = sk.new_stream("cpu", name="loader")
worker = sk.new_stream("cpu", name="worker")

batch = np.zeros(4)
result = np.zeros(4)


def load() -> None:
    """Fill the batch."""
    time.sleep(0.05)  # a slow disk
    batch[:] = [1, 2, 3, 4]


start = loader.record(timing=True)
loader.submit(load)  # returns at once
loaded = loader.record(timing=True)

worker.wait(loaded)  # an event; `worker.wait(loader)` would wait for all it was given
worker.submit(np.multiply, batch, 10, out=result)
worker.sync(timeout=5)  # the only line that blocks

print(f"The loader took {loaded - start:.0f} ms; the worker waited for it.")
print(f"The worker multiplied what was loaded by ten: {result.tolist()}.")
sys.exit(result.tolist() != [10, 20, 30, 40])
