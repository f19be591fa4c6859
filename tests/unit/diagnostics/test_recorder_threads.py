"""The recorder in C beside the GIL: no exception is lost, no thread hangs, each line is right."""

from __future__ import annotations

import ctypes
import functools
import inspect
import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from emulator import build
from streamkit.diagnostics.recording import frames, places, recorder  # what is tested
from support import driver_calls
from support.driver_calls import DESTROY, RECORD
from support.queues import eventually, within

RECORDS = int(os.environ.get("STREAMKIT_RECORDS", "100000"))
TESTS = str(build.SOURCES.parents[1])


def play(scene, **environment):
    """Run a scene in a process of its own, with a limit; return what it printed."""
    command = [sys.executable, "-X", "faulthandler", driver_calls.__file__, scene]
    path = os.pathsep.join(filter(None, (TESTS, os.environ.get("PYTHONPATH"))))
    env = {**os.environ, "PYTHONPATH": path, **environment}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


# -- exceptions, locks, the end -------------------------------------------------------------------


def test_an_exception_that_passes_a_destructor_stays_and_the_call_is_noted(calls, noted):
    make = ctypes.pythonapi.PyCapsule_New
    make.restype, make.argtypes = ctypes.py_object, [ctypes.c_void_p] * 3
    destroy = ctypes.cast(calls.held.destroy, ctypes.c_void_p)
    with pytest.raises(TypeError, match="not 'PyCapsule'"):
        int(make(1, None, destroy))
    assert [fact.call for fact in noted()] == [DESTROY]


def test_a_thread_with_the_gil_and_one_with_a_lock_of_cudas_do_not_wait_for_each_other(calls):
    assert play("two_threads") == "4000 0\n"


def test_threads_may_be_in_calls_when_the_interpreter_ends(calls):
    assert play("late_threads", MALLOC_PERTURB_="165") == "the end\n"


def test_a_thread_of_which_python_knows_nothing_has_no_line(calls, noted):
    calls.free.call_in_thread(calls.fields)
    (fact,) = noted()
    assert (fact.place, fact.thread == threading.get_native_id()) == (None, False)


# -- lines ----------------------------------------------------------------------------------------

lines = pytest.mark.skipif(bool(sys.abiflags), reason="only a usual build shows its frames")


class Check:
    """Compares the frames that the recorder finds with those that Python shows."""

    def __init__(self, library):
        self.find = library.recorder_frames
        self.count = self.wrong = 0
        self._line = functools.cache(frames.place_at)

    def __call__(self):
        found = (ctypes.c_void_p * frames._MOST)()
        count, wanted = self.find(found, frames._MOST), frames.shown(sys._getframe())
        seen = [self._line(one) for one in found[:count]]
        self.count += 1
        self.wrong += seen != wanted
        return self

    def __enter__(self):
        return self()

    def __exit__(self, *_):
        self()

    def __add__(self, other):
        return self()


def shapes(check, depth=3):
    """Call it from each kind of frame."""
    check()
    [check() for _ in "a"]
    next(check() for _ in "a")
    with check:
        check + check
    sorted([2, 1], key=lambda _: check().count)
    exec("check()\n\ncheck()", {"check": check})  # noqa: S102 - code without a file
    with pytest.raises(StopIteration):
        wait(check).send(None)

    class Body:
        check()

    if depth:
        shapes(check, depth - 1)


async def wait(check):
    check()


# from Python 3.14 on frames have a tag in the address of a code that is never freed
getattr(ctypes.pythonapi, "_Py_SetImmortal", id)(ctypes.py_object(shapes.__code__))


@pytest.fixture
def library(calls, noted):
    """The recorder, as each thread calls it: it lets other threads run meanwhile."""
    yield recorder.load()
    noted()


@lines
def test_the_frames_of_threads_are_right_beside_a_busy_gil(library):
    checks, stop = [Check(library) for _ in range(4)], threading.Event()

    def work(check):
        while check.count < RECORDS // len(checks):
            shapes(check)

    def busy():
        while not stop.is_set():
            sum(range(200))
            [*sys._current_frames().values()]

    interval = sys.getswitchinterval()
    sys.setswitchinterval(2e-5)
    with ThreadPoolExecutor(5) as pool:
        pool.submit(busy)
        [*pool.map(work, checks)]
        stop.set()
    sys.setswitchinterval(interval)
    assert sum(check.wrong for check in checks) == 0
    assert sum(check.count for check in checks) >= RECORDS


@lines
def test_a_function_that_has_the_address_of_a_dead_one_has_its_own_line(library):
    check, addresses = Check(library), set()
    for turn in range(3000):
        names = {"check": check}
        text = "\n" * (turn % 7) + f"def f{turn % 11}():\n    check()\n"
        exec(compile(text, f"<{'é→'[turn % 2]}{turn % 5}>", "exec"), names)  # noqa: S102
        function = names[f"f{turn % 11}"]
        addresses.add(id(function.__code__))
        function()
        del function, names
    assert check.wrong == 0
    assert len(addresses) < check.count  # so they came back


@lines
def test_a_call_has_the_line_of_the_user_and_not_of_a_library(calls, monkeypatch):
    class Name(str):  # as a path that runpy is given may be
        __slots__ = ()

    places_of_calls = []
    call = compile(f"call({RECORD}, 5, 16)", Name("a file"), "exec")
    for is_users in (True, False):
        monkeypatch.setitem(places._is_users, driver_calls.__name__, is_users)
        listener = recorder.subscription.open()
        calls.call(RECORD, 5, 16)
        facts, _ = recorder.subscription.close(listener)
        places_of_calls.append(facts[-1].place.file)
    listener = recorder.subscription.open()
    exec(call, {"call": calls.call})  # noqa: S102 - its file is no str itself
    facts, _ = recorder.subscription.close(listener)
    assert [*places_of_calls, *facts[-1].place] == [driver_calls.__file__, __file__, "", 1]


@lines
def test_the_stack_is_as_deep_as_without_a_listener(calls):
    def deep(depth, call):
        return deep(depth - 1, call) if depth else call()

    def results():
        names = {"free": calls.free, "fields": calls.fields, "int": int}
        code = f"def call():\n free.call({RECORD}, fields, 0)\n for _ in range(9): int()"
        for depth in range(20, 70):
            exec(code, names)  # noqa: S102 - a new line each time
            try:
                yield deep(depth, names["call"])
            except RecursionError:
                yield depth

    limit, told, found = sys.getrecursionlimit(), [], []
    for notice in (None, lambda: told.append(deep(9, int))):
        listener = recorder.subscription.open(notice)
        sys.setrecursionlimit(len(inspect.stack()) + 60)
        try:
            found.append([*results()])
        finally:
            sys.setrecursionlimit(limit)
            recorder.subscription.close(listener)
    assert found[1] == found[0]
    assert {None, 69} <= {*found[0]}
    assert told


@lines
def test_the_main_thread_is_told_of_each_new_line_once(calls):
    told, (fields, free) = [], (calls.fields, calls.free)
    listener = recorder.subscription.open(lambda: told.append(threading.current_thread()))
    for _ in range(5):
        free.call(RECORD, fields, 0)
        assert told == [threading.main_thread()]
    within(lambda: free.call(RECORD, fields, 0))
    assert eventually(lambda: len(told) == 2)
    recorder.subscription.close(listener)
    free.call(RECORD, fields, 0)
    assert told == [threading.main_thread()] * 2
