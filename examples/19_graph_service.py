"""A service that shares one graphed function: threads and tasks, each with a result of its own.

Without a GPU the same program calls the function each time.
"""

import asyncio
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

try:
    import numpy as np
except ModuleNotFoundError:
    sys.exit("This example needs NumPy. Install it with: pip install numpy")

import streamkit as sk

REQUESTS, WORKERS, SIZE = 100, 4, 1000

on_gpu = sk.is_available()
if on_gpu:
    import torch


def new_input(request: int) -> Any:
    """Make the input of a request, in memory of its own."""
    if on_gpu:
        return torch.full((SIZE,), float(request), device="cuda")
    return np.full(SIZE, float(request))


@sk.graphed(copy=True)
def model(x: Any) -> Any:
    """Apply many small kernels, which a launch of the graph replaces."""
    for _ in range(8):
        x = x * 0.5 + 1
    return x


# -- a plain handler, which the framework calls in a thread of its pool ---------------------------

of_thread = threading.local()


def answer(request: int) -> float:
    """Answer a request on the stream of this thread, and wait for that stream alone."""
    if not hasattr(of_thread, "stream"):
        of_thread.stream = sk.new_stream(nonblocking=True)
    with sk.use(of_thread.stream):
        result = model(new_input(request))
    of_thread.stream.sync()
    return float(result[0])


# -- an async handler, of which many run in one thread --------------------------------------------

streams = [sk.new_stream(nonblocking=True) for _ in range(WORKERS)]


async def answer_async(request: int) -> float:
    """Answer a request on one of a few streams, and let others go on while it runs."""
    stream = streams[request % WORKERS]
    with sk.use(stream):  # the scope ends before the await
        result = model(new_input(request))
    await stream
    return float(result[0])


async def all_async() -> list[float]:
    """Answer all requests in one thread."""
    return await asyncio.gather(*map(answer_async, range(REQUESTS)))


with ThreadPoolExecutor(WORKERS) as pool:
    answers = {"threads": list(pool.map(answer, range(REQUESTS)))}
answers["tasks"] = asyncio.run(all_async())
expected = [2 + (request - 2) / 256 for request in range(REQUESTS)]
all_right = True
for who, given in answers.items():
    right = sum(one == other for one, other in zip(given, expected, strict=True))
    all_right = all_right and right == REQUESTS
    print(f"{right} of {REQUESTS} answers of {who} are right.")
if on_gpu:
    counted = f"{model.captures} graph was captured, and {model.hits} calls launched it"
    print(f"{counted}, on {streams[0].device}.")
else:
    print("Without a GPU each call ran the function, on the cpu.")
sys.exit(not all_right)
