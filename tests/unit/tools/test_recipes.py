"""The recipes for thread pools, asyncio and worker processes, on host streams."""

from __future__ import annotations

import asyncio
import textwrap
from concurrent.futures import ThreadPoolExecutor

import pytest

import streamkit as sk
from support.documents import ROOT, blocks
from support.programs import run_python
from support.queues import LONG


def run_on(stream, fn, *args):
    """Run one function of a thread pool on a stream: the recipe."""
    with sk.use(stream):
        return fn(*args)


def test_a_thread_pool_enters_the_scope_in_what_its_workers_run():
    streams, seen = [sk.new_stream("cpu") for _ in range(4)], []

    def work(number):
        seen.append(sk.current_stream(device="cpu") == streams[number % 4])
        return number

    with ThreadPoolExecutor(4) as pool:
        futures = [pool.submit(run_on, streams[n % 4], work, n) for n in range(64)]
        assert [future.result(LONG) for future in futures] == list(range(64))
    assert all(seen)


def test_a_service_awaits_its_queues_with_a_time_limit():
    streams = [sk.new_stream("cpu") for _ in range(4)]

    async def answer(request):
        results = []
        streams[request % 4].submit(results.append, request * 2)
        async with asyncio.timeout(LONG):
            await streams[request % 4]
        return results

    async def main():
        return await asyncio.gather(*map(answer, range(100)))

    assert asyncio.run(main()) == [[request * 2] for request in range(100)]


def run(script):
    done = run_python("-W", "error", script)
    assert done.stderr == ""
    return done.stdout


def test_the_guides_program_with_worker_processes(tmp_path):
    """The page is no module that a spawned worker could import: the block is a file here."""
    pytest.importorskip("numpy")
    page = ROOT / "docs" / "guides" / "asyncio.md"
    (block,) = (one for one in blocks(page.read_text()) if "multiprocessing" in one.code)
    script = tmp_path / "service.py"
    script.write_text(block.code)
    assert run(script) == block.prints


def test_a_worker_process_is_sent_no_stream(tmp_path):
    """It is refused with the advice to make one there."""
    script = tmp_path / "service.py"
    script.write_text(
        textwrap.dedent("""
        import multiprocessing

        import streamkit as sk

        if __name__ == "__main__":
            spawn = multiprocessing.get_context("spawn")
            with spawn.Pool(1) as pool:
                try:
                    pool.apply(id, [sk.new_stream("cpu")])
                except TypeError as error:
                    print("Make a stream in each process" in str(error))
        """)
    )
    assert run(script) == "True\n"
