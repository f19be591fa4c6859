"""What a review found, and stays mended."""

from __future__ import annotations

import pytest

import emulator
import streamkit as sk
from support.emulated.toys import program
from support.libraries import need
from support.programs import python
from support.queues import within

pytestmark = pytest.mark.versions

__all__ = ["program"]  # the fixture


# -- scopes -----------------------------------------------------------------------------------


@pytest.mark.parametrize("nth", [1, 2])
def test_a_driver_that_refuses_while_scopes_end_out_of_order(warp_state, nth):
    first, second = sk.new_stream(0), sk.new_stream(1)
    with first, second:
        pass
    before = warp_state()[:3]  # all but the context: a thread has its own

    def leave():
        outer, inner = sk.use(first), sk.use(second)
        outer.__enter__()
        inner.__enter__()
        emulator.fail("cuCtxSetCurrent", 201, nth=nth)
        with pytest.raises(sk.errors.ScopeError, match=r"Not restored: the device.*201") as caught:
            outer.__exit__(None, None, None)
        assert repr(second) in str(caught.value)
        with pytest.raises(sk.errors.ScopeError, match="not open"):
            inner.__exit__(None, None, None)
        assert warp_state()[:3] == before
        with second, first:
            assert sk.current_stream() is first
        assert warp_state()[:3] == before

    within(leave)  # in a thread of its own: nothing is current there


def test_the_last_living_thread_of_a_shared_move_undoes_it(warp_state):
    stream = sk.new_stream()
    with stream:
        pass
    before, scopes = warp_state(), []

    def end_inside():
        scopes.append(sk.use(stream))
        scopes[0].__enter__()

    with stream:
        within(end_inside)
    assert warp_state() == before


def test_what_hides_its_owner_from_the_garbage_collector_is_not_held(program):
    program(
        """
import gc, weakref
import hides, shows

class Owner:
    pass

def cycle(library):
    owner = Owner()
    stream = owner.stream = sk.from_handle(raw, owner=owner)
    with sk.use(stream, libraries=[library]):
        pass
    stream.to(library)
    return weakref.ref(owner)

driver.cuCtxSetCurrent(sk.new_stream().context)
raw = int(driver.cuStreamCreate(0)[1])
kept, gone = cycle("shows"), cycle("hides")
gc.collect()
assert kept() is not None, "the control: what is held and hides its owner stays for ever"
assert gone() is None
""",
        shows=HIDDEN,
        hides=HIDDEN + "\nfrom streamkit.protocols import Traits\n"
        "traits = Traits(hides_owners=True)\n",
    )


HIDDEN = """

import weakref

def borrow(queue):
    stream = toylib.Stream(queue.handle)
    weakref.finalize(stream, id, queue)  # holds it, and the garbage collector cannot know
    return stream
"""


# -- streams ----------------------------------------------------------------------------------


def test_warps_null_stream_on_a_device_that_it_has_not_touched():
    need("warp")
    python("""
import warp
import streamkit as sk
warp.config.log_level = warp.LOG_WARNING
view = sk.default_stream(1).to("warp")
assert isinstance(view, warp.Stream), view
assert view is warp.get_cuda_device(1).null_stream
""")


@pytest.mark.parametrize("name", ["fn", "self", "args", "libraries"])
def test_a_submitted_function_gets_every_argument(name):
    calls = []
    sk.new_stream().submit(lambda *args, **options: calls.append((args, options)), 1, **{name: 2})
    assert calls == [((1,), {name: 2})]


def test_an_external_record_of_an_event_that_its_library_records_is_refused(program):
    program(
        """
import toya
event, stream = toya.Array(), sk.new_stream()
stream.record(event)
assert event.recorded_on.number == stream.handle
del event.recorded_on
told = str(error_of(ValueError, stream.record, event, external=True))
assert "toya" in told and "external" in told, told
assert not hasattr(event, "recorded_on")
""",
        toya="""

def event_handle(event):
    if not isinstance(event, toylib.Array):
        raise TypeError(event)
    return 0

def borrow_event(handle, device, owner):
    raise NotImplementedError

def record_event(event, stream):
    event.recorded_on = stream
""",
    )


# -- forks ------------------------------------------------------------------------------------

FORK = """
child = os.fork()
if child == 0:
    signal.alarm(10)  # ends it if it hangs
    status = 0
    for work in works:
        try:
            work()
        except (sk.errors.ForkedProcessError, sk.errors.ScopeError) as error:
            if "spawn" in str(error):  # as it says, also where a scope names what it lost
                continue
            print(error, flush=True)
        status = 1
    os._exit(status)
status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
print("the child:", status, flush=True)
os._exit(status != 0)
"""


def test_a_child_forked_while_every_lock_is_held_does_not_hang():
    need("warp")
    python(
        f"""
import os, signal, sys, threading
import warp
import streamkit as sk
warp.config.log_level = warp.LOG_WARNING
stream = sk.new_stream()
with stream:
    pass
stream.wait(sk.new_stream())
locks = [
    value
    for name, module in list(sys.modules.items()) if name.startswith("streamkit.")
    for value in vars(module).values() if isinstance(value, type(threading.RLock()))
]
assert len(locks) > 4
held = threading.Event()

def hold():
    for lock in locks:
        lock.acquire()
    held.set()
    threading.Event().wait()

other, scope = sk.new_stream(), sk.use(stream)
scope.__enter__()
threading.Thread(target=hold, daemon=True).start()
held.wait()
works = [
    stream.__enter__, lambda: other.to("warp"), lambda: sk.from_handle(stream.handle),
    lambda: sk.new_stream(0), lambda: stream.wait(other), sk.current_streams,
    lambda: scope.__exit__(None, None, None),
]
{FORK}""",
        options=["-W", "ignore"],
    )


def test_a_child_forked_while_the_driver_is_being_initialised_does_not_hang():
    python(
        f"""
import os, signal, threading
from cuda.bindings import driver
import streamkit as sk
initialising, real = threading.Event(), driver.cuInit

def never(flags):
    real(flags)
    initialising.set()
    threading.Event().wait()

driver.cuInit = never
threading.Thread(target=sk.new_stream, daemon=True).start()
initialising.wait()
works = [lambda: sk.new_stream(0)]
{FORK}""",
        options=["-W", "ignore"],
    )
