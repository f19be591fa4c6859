"""Ray actors that mix libraries on streams of their own and pass arrays on to each other.

Ray knows no streams: it takes what a method returns as soon as the method has returned. So the
method waits for its own stream, and for nothing else, before the array leaves it.
"""

import sys
from importlib import import_module

try:
    import numpy as np
    import ray
except ModuleNotFoundError:
    sys.exit("This example needs Ray and NumPy. Install them with: pip install ray numpy")

import streamkit as sk

STEPS, SIZE = 6, 100_000


@ray.remote
class Simulation:
    """Makes arrays: with CuPy, or with NumPy where there is no GPU."""

    def __init__(self) -> None:
        self.s = sk.new_stream(name="simulation")
        self.xp = import_module("cupy") if sk.is_available() else np

    def step(self, step: int) -> object:
        """Write the array of a step."""
        with sk.use(self.s):
            numbers = self.xp.empty(SIZE)
        self.s.submit(self.xp.copyto, numbers, step)
        self.s.sync()  # now Ray may take it
        return numbers


@ray.remote
class Model:
    """Adds up what it gets: with torch, or with NumPy where there is no GPU."""

    def __init__(self) -> None:
        self.s = sk.new_stream(name="model")
        self.seen = []

    def learn(self, numbers: object) -> None:
        """Queue the work on an array, and return: the next step goes on meanwhile."""
        if not sk.is_available():
            self.s.submit(lambda: self.seen.append(numbers.sum()))
            return
        torch = import_module("torch")
        with sk.use(self.s, ordered=True):  # Ray has brought it on the default stream
            self.seen.append(torch.from_dlpack(numbers).sum())

    def result(self) -> tuple[list[float], str]:
        """Return the sums, and the stream that they were made on."""
        self.s.sync()
        return [float(one) for one in self.seen], str(self.s)


ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
gpus = 0.5 if ray.cluster_resources().get("GPU") else 0  # else an actor sees none
simulation, model = (one.options(num_gpus=gpus).remote() for one in (Simulation, Model))
for step in range(STEPS):
    model.learn.remote(simulation.step.remote(step))
sums, stream = ray.get(model.result.remote())
ray.shutdown()
right = np.allclose(sums, [SIZE * step for step in range(STEPS)])
print(f"One actor made {STEPS} arrays, and another added up each of them on {stream}.")
print(f"The sums are {'right' if right else 'wrong'}. No method waited for a whole device.")
sys.exit(not right)
