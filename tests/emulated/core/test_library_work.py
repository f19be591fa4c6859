"""A CUDA stream that waits for a library's own work, as collective operations are."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.emulated.toys import program

__all__ = ["program"]  # the fixture

WORKS = """

class Work:
    "Work of the library: what it does to the current stream is told."
    error, memory, hold = None, (), id

waits = []

def work_of(work):
    from streamkit.protocols import LibraryWork
    if not isinstance(work, Work):
        raise TypeError(work)
    def wait():
        if work.error is not None:
            raise work.error
        waits.append(toylib.current_stream().number)
        work.hold(waits[-1])
        return work.memory
    def finish():
        raise AssertionError("a CUDA stream blocks no thread")
    return LibraryWork(wait, finish)
"""

START = f"""
import gc, weakref
import toya, streamkit_toya
sys.path[:0] = [{str(Path(__file__).parents[2])!r}]
from support.gpu.raw import Gate

def work():
    made = streamkit_toya.Work()
    return made, weakref.ref(made)

waits, current = streamkit_toya.waits, toya.current_stream()
s = sk.new_stream(nonblocking=True)
driver.cuCtxSetCurrent(s.context)
"""

LIVES_UNTIL_THE_STREAM_HAS_PASSED_IT = """
gate = Gate()
for stream in (s, sk.default_stream(), sk.wrap(toya.Stream(s.handle))):
    gate._view.value = 0
    gate.hold(int(stream))
    made, seen = work()
    other, dropped = work()
    stream.wait(made)
    assert waits[-1] == int(stream.to("toya").number)
    assert toya.current_stream() is current
    del made, other
    gc.collect()
    assert seen() is not None and dropped() is None, "the second is the control"
    gate.open()
    stream.sync()
    assert seen() is None
gate.free()
"""

A_STREAM_THAT_CAN_DIE = """
from streamkit.protocols import Storage
from support.gpu.raw import Foreign, destroy_stream, held, idle, make_stream
gate, owner, holders = Gate(), Foreign(make_stream()), [1]
stream, memory = sk.wrap(owner), type("Memory", (), {})()
made, seen = work()
made.memory = [Storage(memory, is_own=True, is_held=lambda _: holders != [])]
made.hold, kept = gate.hold, weakref.ref(memory)
stream.wait(made)
assert waits[-1] != owner.handle and held(stream.handle), "it waits for the one that was met"
del memory, made
holders.clear()
gc.collect()
assert kept() is not None, "the memory of the result is kept for the stream"
gate.open()
stream.sync()
sk.new_stream()
assert kept() is None
destroy_stream(vars(owner).pop("handle"))
del owner, stream
gc.collect()
assert idle(waits[-1]), "the emulated driver ends the process at the use of a dead stream"
gate.free()
"""

ERROR = """
made, seen = work()
made.error = LookupError("of the work")
assert error_of(LookupError, s.wait, made) is made.error
assert toya.current_stream() is current and not waits
assert error_of(sk.errors.UnsupportedStreamError, s.wait, object())
assert "leave out external" in str(error_of(ValueError, s.wait, work()[0], external=True))
assert not waits
"""

IN_A_CAPTURE = """
made, seen = work()
with sk.capture() as g:
    g.stream.wait(made)
    g.stream.record(external=True)  # a node, without which there is no graph
assert waits
del made
gc.collect()
assert seen() is not None
g.close()
gc.collect()
assert seen() is None
"""


CASES = {
    "life": LIVES_UNTIL_THE_STREAM_HAS_PASSED_IT,
    "stream that can die": A_STREAM_THAT_CAN_DIE,
    "error": ERROR,
    "capture": IN_A_CAPTURE,
}


@pytest.mark.parametrize("case", CASES)
def test_the_library_orders_it_on_the_stream_and_streamkit_keeps_it(program, case):
    program(START + CASES[case], toya=WORKS)
