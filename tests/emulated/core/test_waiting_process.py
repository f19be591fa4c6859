"""Waiting at the edges of a process: Ctrl-C, forks and the end, each in one of its own."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest


def run(program, *options):
    prelude = f"""
import sys
sys.path[:0] = [{str(Path(__file__).parents[2])!r}]
import streamkit as sk
from support.gpu.raw import Gate, check, driver
check(driver.cuInit(0))
check(driver.cuCtxSetCurrent(check(driver.cuDevicePrimaryCtxRetain(0))))
gate = Gate()

def hold():
    stream = sk.new_stream(nonblocking=True)
    gate.hold(stream.handle)
    return stream
"""
    return subprocess.run(
        [sys.executable, *options, "-c", prelude + textwrap.dedent(program)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_waits_that_are_short_start_no_thread():
    done = run("""
        import asyncio, threading
        stream = sk.new_stream()
        stream.sync()
        async def main():
            await stream
        asyncio.run(main())
        event = sk.new_event()
        event.sync()
        names = [thread.name for thread in threading.enumerate() if "streamkit" in thread.name]
        print(names, "streamkit._queues.dispatcher" in sys.modules)
    """)
    assert (done.stdout, done.stderr) == ("[] False\n", "")


@pytest.mark.parametrize("waits", ["then", "await in a thread", "sync in a thread"])
def test_the_process_ends_with_work_pending(waits):
    done = run(f"""
        import asyncio, threading, time
        waits = {waits!r}
        stream = hold()
        if waits == "then":
            future = stream.then(print, "called")
        else:
            async def main():
                await stream
            work = stream.sync if waits.startswith("sync") else lambda: asyncio.run(main())
            threading.Thread(target=work, daemon=True).start()
            time.sleep(0.1)
        gate._watchdog.cancel()
        print("end", flush=True)
    """)
    assert (done.stdout, done.returncode) == ("end\n", 0)
    dropped = "the program ended before this had run: print, submitted in" in done.stderr
    assert dropped if waits == "then" else done.stderr == ""


def test_the_process_ends_when_functions_whose_work_has_run_have_been_called():
    done = run("""
        import time
        sk.new_stream().then(lambda: (time.sleep(1.5), print("called")))  # longer than the patience
        print("end", flush=True)
    """)
    assert (done.stdout, done.stderr, done.returncode) == ("end\ncalled\n", "", 0)


def test_the_process_ends_when_functions_wait_for_one_that_is_dropped():
    done = run("""
        held, *others = hold(), *(sk.new_stream(nonblocking=True) for _ in range(6))
        future = held.then(print, "never")
        waiting = [stream.then(future.result) for stream in others]
        gate._watchdog.cancel()
        print("end", flush=True)
    """)
    assert (done.stdout, done.returncode) == ("end\n", 0)


def test_the_end_waits_for_the_gpu_a_second_for_all_streams_together():
    done = run("""
        import atexit, time
        atexit.register(lambda: print(time.monotonic() - end))
        streams = [hold() for _ in range(8)]
        for stream in streams:
            stream.then(print, "never")
        gate._watchdog.cancel()
        end = time.monotonic()
    """)
    assert 1 <= float(done.stdout) < 4, done.stderr
    assert done.stderr.count("print, submitted in") == 8


def test_the_error_of_a_dropped_future_is_reported_with_its_place():
    done = run("""
        sk.new_stream().then(int, "x")
    """)
    assert (done.stdout, done.returncode) == ("", 0)
    assert 'that no call waited for, of int, submitted in "<string>", line' in done.stderr
    assert done.stderr.count("ValueError: invalid literal") == 1


def test_at_the_end_what_is_pending_is_cancelled_and_sync_still_works():
    done = run("""
        import atexit

        def last():
            print(future.cancelled())
            try:
                stream.sync(timeout=0.01)
            except TimeoutError as error:
                print("TimeoutError")
            try:
                stream.then(int)
            except RuntimeError as error:
                print("sync()" in str(error))
            gate.open()
            stream.sync()

        atexit.register(last)  # before StreamKit's own, so it runs after that
        stream = hold()
        future = stream.then(print, "called")
    """)
    assert done.stdout == "True\nTimeoutError\nTrue\n"
    assert "the program ended before this had run: print, submitted in" in done.stderr


@pytest.mark.parametrize("before", ["", "gate.open(); time.sleep(0.05); gate = Gate()"])
def test_after_the_end_of_the_thread_that_would_notice_a_wait_is_refused(before):
    """Also where that thread has nothing to notice any more, and sleeps until a point comes."""
    done = run(f"""
        import asyncio, atexit, threading, time

        async def wait():
            await stream

        def last():
            try:
                asyncio.run(asyncio.wait_for(wait(), 10))
            except RuntimeError as error:
                print("sync()" in str(error))
            gate.open()
            stream.sync()

        atexit.register(last)  # before StreamKit's own, so it runs after that
        stream = hold()
        try:
            asyncio.run(asyncio.wait_for(wait(), 0.2))
        except TimeoutError:
            print(*(one.name for one in threading.enumerate() if "streamkit" in one.name))
        {before}
        gate.hold(stream.handle)
    """)
    assert (done.stdout, done.stderr) == ("streamkit-dispatcher\nTrue\n", "")


def test_no_wait_imports_a_library():
    """It would stop an event loop for a third of a second, and an import swallows a Ctrl-C."""
    done = run("""
        import asyncio, threading
        stream = hold()

        async def main():
            threading.Timer(0.1, gate.open).start()
            await stream

        asyncio.run(main())
        stream.sync()
        stream.then(int).result(10)
        print("cuda.core" in sys.modules)
    """)
    assert (done.stdout, done.stderr) == ("False\n", "")
