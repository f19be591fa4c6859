"""Objects that do not end."""

from __future__ import annotations

import contextlib
import gc
import sys
import weakref

import pytest

from streamkit._support import garbage  # a public name would need a driver
from streamkit._support.frames import local_variables  # every public way looks at more than these
from streamkit.diagnostics.recording import places  # as above
from support.programs import python

pytestmark = pytest.mark.portable

ENDS = """
import os
from streamkit._support import garbage  # a public name would need a driver

class Ends:
    def __init__(self, name):
        self.name = name

    def __del__(self, tell=os.write):
        tell(1, self.name)

"""


class Thing:
    pass


def test_an_error_in_the_block_lets_collections_start():
    with pytest.raises(ZeroDivisionError), garbage.held_back():
        print(1 / gc.isenabled())
    assert gc.isenabled()


@pytest.mark.parametrize("last", [0, 1])
def test_the_last_of_two_blocks_to_end_lets_collections_start(last):
    blocks = [contextlib.ExitStack() for _ in range(2)]  # as two threads have them
    for one in blocks:
        one.enter_context(garbage.held_back())
    with blocks.pop(last):
        blocks.pop().close()
        assert not gc.isenabled()
    assert gc.isenabled()


def test_what_never_ends_outlives_the_interpreter():
    table = "table = [Ends(b'gone')]\n"
    assert python(ENDS + table) == "gone"  # the control
    assert python(ENDS + table + "garbage.keep_forever(table)") == ""


def test_what_fails_outlives_the_interpreter():
    fails = """
one = Ends(b"failed")
try:
    with garbage.kept_on_error(one):
        raise KeyboardInterrupt
except KeyboardInterrupt:
    del one
with garbage.kept_on_error(Ends(b"whole")):
    pass
"""
    assert python(ENDS + fails) == "whole"


def test_a_block_that_ends_well_keeps_nothing():
    thing = Thing()
    seen = weakref.ref(thing)
    with garbage.kept_on_error(thing):
        pass
    del thing
    gc.collect()
    assert seen() is None


def test_an_error_passes():
    with pytest.raises(ValueError, match="its own"), garbage.kept_on_error(Thing()):
        raise ValueError("its own")


def users_function(read):
    held = Thing()
    seen = weakref.ref(held)
    frame = sys._getframe()
    variables = read(frame)
    assert any(value is held for value in variables)
    del held, variables
    return seen()


@pytest.mark.parametrize(
    "read",
    [
        lambda frame: local_variables(frame).values(),
        lambda frame: [value for _, value in places.variables(frame)],
    ],
)
def test_a_function_keeps_nothing_for_having_been_read(read):
    """Up to Python 3.12 the frame would keep a copy of its variables until the function ends."""
    assert users_function(read) is None


def test_what_exec_has_made_in_a_function_stays():
    """From Python 3.13 on nothing of it is left for another call."""

    def left_after(read):
        exec("made = 5")  # noqa: S102 - what it makes is the subject
        read(sys._getframe())
        try:
            return eval("made")  # noqa: S307 - no other way finds that
        except NameError:
            return None

    assert left_after(local_variables) == left_after(id)


def test_the_dictionary_that_a_function_has_of_its_variables_stays():
    number = 5
    own = locals()
    assert local_variables(sys._getframe())["number"] == 5
    assert own["number"] == number
