"""An asyncio service: many requests, a few queues, and no thread that waits for one of them."""

import asyncio
import sys

import numpy as np

import streamkit as sk

streams = [sk.new_stream(name=f"worker {number}", nonblocking=True) for number in range(4)]
if streams[0].device == "cpu":
    xp = np
else:
    import cupy as xp


async def answer(request: int) -> float:
    """Queue one request's work, let the others go on meanwhile, and return its result."""
    stream, found = streams[request % len(streams)], []

    def work() -> None:
        data = xp.full(1000, float(request)) * 2
        found.append(data.sum())

    stream.submit(work)
    await stream  # not a scope: none may span an await
    return float(found[0])


async def main() -> list[float]:
    """Answer a hundred requests, in thirty seconds at most, and log once the queues have run."""
    async with asyncio.timeout(30):
        answers = await asyncio.gather(*(answer(request) for request in range(100)))
    logged = [stream.then(str, stream) for stream in streams]  # in a thread of StreamKit's
    lines = await asyncio.gather(*map(asyncio.wrap_future, logged))
    print(f"{len(answers)} requests, on {len(lines)} queues such as {lines[0]}")
    return answers


sys.exit(asyncio.run(main()) != [request * 2000.0 for request in range(100)])
