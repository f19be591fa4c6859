"""The first use of a library, by several threads at once, each in a process of its own.

The first thread is stopped in the middle of its first use; what another one then gets is whole, or
it waits.
"""

from __future__ import annotations

import pytest

from support.emulated.toys import program
from support.libraries import need
from support.programs import python

pytestmark = pytest.mark.versions

__all__ = ["program"]  # the fixture

START = """
import sys, threading
import streamkit as sk

errors = []

def attempt(work):
    try:
        work()
    except BaseException as error:
        errors.append(repr(error))

def meanwhile(work, seconds):
    "Let another thread do it, or try to while this one is in its way: then it takes the seconds."
    thread = threading.Thread(target=attempt, args=(work,), daemon=True)
    thread.start()
    thread.join(seconds)
    others.append(thread)

others = []
"""

END = """
for thread in others:
    thread.join(20)
    assert not thread.is_alive()
assert others
assert not errors, errors[0]
"""


def test_the_first_edges():
    python(f"""{START}
class Finder:
    "Sees each import that the first thread causes, and finds nothing."

    def find_spec(self, name, path=None, target=None):
        if name.startswith("cuda.core") and threading.current_thread() is threading.main_thread():
            meanwhile(lambda: first.wait(second), 0.02)

first, second = sk.new_stream(), sk.new_stream()
sys.meta_path.insert(0, Finder())
first.wait(second)
{END}""")


@pytest.mark.parametrize("work", ["second.to('warp')", "sk.current_stream('warp', device=1)"])
def test_the_first_conversion_to_warp_on_a_device(work):
    need("warp")
    python(f"""{START}
import warp
warp.config.log_level = warp.LOG_WARNING
warp.init()
first, second = sk.new_stream(1), sk.new_stream(1)
make = warp.Stream.__init__

def slow(stream, *args, **kwargs):
    if threading.current_thread() is threading.main_thread():
        meanwhile(lambda: {work}, 0.2)
    make(stream, *args, **kwargs)

warp.Stream.__init__ = slow
assert isinstance(first.to("warp"), warp.Stream)
{END}""")


def test_the_first_scopes_move_each_library_once(program):
    program("""
import importlib.metadata, threading
import toya

second_is_here, first_is_done, asked = threading.Event(), threading.Event(), []
real = importlib.metadata.entry_points

def entry_points(**options):
    asked.append(1)
    if len(asked) == 1:
        second.start()
        second_is_here.wait(0.5)
    else:
        second_is_here.set()
        assert first_is_done.wait(20)
    return real(**options)

def enter():
    with stream:
        pass

stream = sk.new_stream()
second = threading.Thread(target=enter)
importlib.metadata.entry_points = entry_points
enter()
first_is_done.set()
second.join()
moves, move = [], toya.set_current_stream
toya.set_current_stream = lambda stream: moves.append(stream.number) or move(stream)
other = sk.new_stream()
with other:
    pass
assert moves == [other.handle, 0], moves
""")


def test_the_first_conversions_by_several_threads_are_one_object(program):
    """To the same object, although each of them had begun to make one."""
    program(
        """
import threading
import toya

stream, made = sk.new_stream(), []
threads = [threading.Thread(target=lambda: made.append(stream.to("toya"))) for _ in range(2)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
assert len(made) == 2
assert made[0] is made[1] is stream.to("toya")
""",
        toya="""

import threading
both = threading.Barrier(2)
make = borrow

def borrow(queue):
    try:
        both.wait(0.5)
    except threading.BrokenBarrierError:
        pass  # the other thread waits for this one
    return make(queue)
""",
    )
