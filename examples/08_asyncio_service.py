"""An asyncio service: many requests, a few queues, and no thread that waits for one of them."""

import asyncio
import sys

try:
    import numpy as np
except ModuleNotFoundError:
    sys.exit("This example needs NumPy. Install it with: pip install numpy")

import streamkit as sk

REQUESTS = 100

streams = [sk.new_stream(name=f"worker {number}", nonblocking=True) for number in range(4)]
if sk.is_available():
    import cupy as xp
else:
    xp = np


async def answer(request: int) -> float:
    """Queue one request's work, let the others go on meanwhile, and return its result."""
    stream = streams[request % len(streams)]
    found = []

    def work() -> None:
        data = xp.full(1000, float(request)) * 2
        found.append(data.sum())

    stream.submit(work)
    await stream  # not a scope: none may span an await
    return float(found[0])


async def main() -> list[float]:
    """Answer all requests, in thirty seconds at most, and log once the queues have run."""
    async with asyncio.timeout(30):
        answers = await asyncio.gather(*(answer(request) for request in range(REQUESTS)))
    logged = [stream.then(str, stream) for stream in streams]  # in a thread of StreamKit's
    for line in await asyncio.gather(*map(asyncio.wrap_future, logged)):
        print(f"This queue has run all it was given: {line}.")
    return answers


answers = asyncio.run(main())
expected = [request * 2 * 1000.0 for request in range(REQUESTS)]
right = sum(one == other for one, other in zip(answers, expected, strict=True))
print(f"{right} of {REQUESTS} answers are right. No thread waited for a queue.")
sys.exit(answers != expected)
