"""The end of a program: what was submitted runs before it, and what cannot is reported."""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap

import pytest

from streamkit._support import reports  # the end of a program is played
from support.programs import needs_fork, run_program

pytestmark = pytest.mark.portable

START = """
import atexit, os, signal, sys, threading, time, traceback
import streamkit as sk
from streamkit._support import reports  # the end of a program, which is shortened
reports.PATIENCE = 0.25
s, other = sk.new_stream("cpu", name="s"), sk.new_stream("cpu", name="other")

def fail():
    raise RuntimeError("mine")

def wait_for_the_end():
    main = threading.main_thread().ident
    while "<module>" in traceback.format_stack(sys._current_frames()[main])[0]:
        time.sleep(0.01)
    time.sleep(0.2)  # now it waits for what was submitted
"""


def run(program):
    done = run_program(START + textwrap.dedent(program))
    return done.returncode, done.stdout, done.stderr


def test_what_was_submitted_runs_before_a_normal_end():
    program = """
        s.submit(time.sleep, 0.2)
        s.submit(print, "x")
        s.then(lambda: (time.sleep(1), print("z")))  # longer than the end waits for what it drops
        s.then(print, "last")
        other.wait(s)
        other.submit(print, "y")
    """
    assert run(program) == (0, "x\ny\nz\nlast\n", "")


@pytest.mark.parametrize(
    ("end", "status"), [("sys.exit(3)", 3), ("raise KeyError('mine')", 1), ("", 0)]
)
def test_the_exit_status_stays_the_programs(end, status):
    returned, out, err = run(f"""
        s.submit(time.sleep, 0.1)
        s.submit(print, "x")
        s.submit(fail)
        s.submit(print, "dropped")
        {end}
    """)
    assert (returned, out) == (status, "x\n")
    assert "RuntimeError: mine" in err


@pytest.mark.parametrize("how", ["", "s.close()", "del s", "s.then(int); s.close()"])
@pytest.mark.parametrize("when", ["", "time.sleep(0.1)"])
def test_an_error_that_nobody_waited_for_is_reported_once(how, when):
    returned, out, err = run(f"""
        s.submit(fail)
        {when}
        {how}
    """)
    assert (returned, out) == (0, "")
    assert err.count("RuntimeError: mine") == 1
    assert err.count('no call waited for, of fail, submitted in "<string>", line') == 1


def test_the_error_of_a_dropped_future_is_reported_at_the_end():
    returned, out, err = run("""
        s.then(fail)
        future = other.then(fail)  # and of one that is still there
    """)
    assert (returned, out) == (0, "")
    assert err.count("an error that no call waited for, of fail, submitted in") == 2


def test_what_an_exit_function_collects_is_not_reported():
    assert run("""
        def collect():
            try:
                s.sync()
            except RuntimeError as error:
                print(error)

        atexit.register(collect)
        s.submit(fail)
    """) == (0, "mine\n", "")


def test_what_another_thread_submits_after_the_end_of_the_main_one_runs():
    assert run("""
        s.submit(time.sleep, 0.5)  # has a worker, for from 3.12 on no thread begins any more

        def later():
            time.sleep(0.1)
            s.submit(print, "x")

        threading.Thread(target=later).start()
    """) == (0, "x\n", "")


def test_a_scope_that_the_main_thread_left_open_ends_with_the_program():
    assert run("""
        s.__enter__()
        thread = threading.Thread(target=lambda: s.submit(print, "x"))
        thread.start()
        thread.join()
    """) == (0, "x\n", "")


def test_what_a_thread_holds_that_ends_with_the_program_is_reported_and_dropped():
    returned, out, err = run("""
        entered = threading.Event()

        def hold():
            with s:
                entered.set()
                threading.Event().wait()

        threading.Thread(target=hold, daemon=True).start()
        entered.wait()
        s.submit(print, "x")
        other.wait(s)
        other.submit(print, "y")
        s.then(print, "z")
        sk.new_stream("cpu").submit(print, "free")
    """)
    assert (returned, out) == (0, "free\n")
    assert err.count("the program ended before this had run: print, submitted in") == 3


PENDING = {
    "a future": "future = concurrent.futures.Future()",
    "of a loop that does not run": "future = asyncio.new_event_loop().create_future()",
}


@pytest.mark.parametrize("pending", PENDING)
def test_a_wait_for_a_future_that_nothing_finishes_is_reported_and_dropped(pending):
    future = textwrap.dedent(PENDING[pending])
    returned, out, err = run(
        "import asyncio, concurrent.futures\n"
        + future
        + textwrap.dedent("""
            from streamkit._streams.host_queue import QueueEnd  # its waits are counted
            late, wait = [], QueueEnd.wait
            QueueEnd.wait = lambda mark, *t: wait(mark, *t) or late.append(mark._queue)
            held = s._work, other._work, other._after
            reports.drops.append(lambda: print(sum(one in held for one in late) < 3))
            s.wait(future)
            s.submit(print, "x")
            other.wait(s)
            other.submit(print, "y")
            other.then(print, "z")
            sk.new_stream("cpu").submit(print, "free")
        """)
    )
    assert (returned, out) == (0, "free\nTrue\n")  # one wait, or two: a thread begins late
    assert 'the wait for Future, submitted in "<string>", line' in err
    assert err.count("print, submitted in") == 3


FINISHED = {
    "an executor's": """
        from concurrent.futures import ThreadPoolExecutor
        s.wait(ThreadPoolExecutor(1).submit(time.sleep, 1))
    """,
    "of a loop that runs": """
        import asyncio

        async def main():
            future = asyncio.get_running_loop().create_future()
            s.wait(future)
            ready.set()
            await asyncio.sleep(1)
            future.set_result(None)

        ready = threading.Event()
        threading.Thread(target=asyncio.run, args=(main(),)).start()
        ready.wait()
    """,
    "of another stream's then": "s.wait(other.then(time.sleep, 1))",
    "of one daemon thread after another": """
        import concurrent.futures
        reports.PATIENCE = 1
        for after in (0.6, 1.2, 1.8):
            s.wait(future := concurrent.futures.Future())
            timer = threading.Timer(after, future.set_result, [None])
            timer.daemon = True
            timer.start()
    """,
    "of a daemon thread after a long function": """
        import concurrent.futures
        future, go, reports.PATIENCE = concurrent.futures.Future(), threading.Event(), 1
        finish = lambda: (go.wait(), time.sleep(0.3), future.set_result(None))
        threading.Thread(target=finish, daemon=True).start()
        s.wait(future)
        other.submit(lambda: (time.sleep(1.2), go.set())[1])
    """,
}


@pytest.mark.parametrize("future", FINISHED)
def test_the_end_waits_for_a_future_that_something_finishes(future):
    """Longer than it waits for what another thread holds."""
    program = textwrap.dedent(FINISHED[future]) + '\ns.submit(print, "x")\n'
    assert run(program) == (0, "x\n", "")


def test_after_a_caught_ctrl_c_what_is_submitted_later_runs():
    returned, out, err = interrupted("""
        go = threading.Event()
        try:
            s.submit(lambda: (os.write(1, b"now\\n"), go.wait()))
            with s:
                pass
        except KeyboardInterrupt:
            go.set()
        s.submit(lambda: (time.sleep(1), print("x", flush=True)))
    """)
    assert (returned, out, err) == (0, "x\n", "")


def interrupted(program, *, times=1):
    """Run a program, send it Ctrl-C once it says "now", and return how it ended.

    Its functions say so with ``os.write``: Python aborts if it ends while a thread is in ``print``.
    """
    process = subprocess.Popen(
        [sys.executable, "-c", START + textwrap.dedent(program)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout.readline() == "now\n"
        for _ in range(times):
            process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()
    return process.returncode, out, err


def test_ctrl_c_ends_the_wait_at_the_end():
    returned, out, err = interrupted("""
        s.submit(lambda: (wait_for_the_end(), os.write(1, b"now\\n"), threading.Event().wait()))
        s.submit(print, "never")
        s.then(print, "never")
    """)
    assert (returned, out) == (0, "")
    assert "the program ended before this had run: <lambda>, submitted in" in err
    assert err.count("print, submitted in") == 2


def test_a_program_that_ctrl_c_ends_waits_for_nothing():
    returned, out, err = interrupted("""
        s.submit(threading.Event().wait)
        s.submit(print, "never")
        print("now", flush=True)
        s.sync()
    """)
    assert returned == -signal.SIGINT
    assert out == ""
    assert "KeyboardInterrupt" in err
    assert "print, submitted in" in err


@needs_fork
def test_a_forked_child_reports_and_runs_its_own_only():
    returned, out, err = run("""
        s.submit(fail)
        future = sk.new_stream("cpu").then(fail)
        while s._work.idle is False or not future.done():
            pass
        other.submit(time.sleep, 0.3)
        other.submit(print, "parent", flush=True)
        child = os.fork()
        if child == 0:
            sk.new_stream("cpu").submit(print, "child", flush=True)
            del future
            sys.exit(0)
        os.waitpid(child, 0)
    """)
    assert (returned, out) == (0, "child\nparent\n")
    assert err.count("RuntimeError: mine") == 2


@pytest.mark.parametrize(("count", "rest"), [(4, ""), (5, "; and 1 more")])
def test_a_report_counts_what_it_does_not_show(monkeypatch, count, rest):
    told = []
    monkeypatch.setattr(sys, "unraisablehook", lambda report: told.append(str(report.exc_value)))
    reports.report_dropped(["print"] * count)
    assert told == [f"the program ended before this had run: print; print; print; print{rest}"]
