"""Which queue it is, and who is kept alive for it, on handles that come back at once."""

from __future__ import annotations

import contextlib
import functools
import gc
import weakref
from pathlib import Path

import pytest

import emulator
import streamkit as sk
from streamkit._queues import identity, registry  # what they keep must not grow, or stay
from streamkit.protocols import Queue
from support.emulated.processes import run
from support.emulated.toys import program
from support.gpu.raw import (
    Foreign,
    Gate,
    another_context,
    check,
    current_context,
    destroy_stream,
    driver,
    held,
    make_stream,
    on_device,
    stream_id,
)
from support.libraries import need
from support.queues import within

__all__ = ["program"]  # the fixture

pytestmark = pytest.mark.usefixtures("handles")


class Owner(Foreign):
    """Somebody's stream, destroyed with this object."""

    def __init__(self):
        super().__init__(make_stream())
        weakref.finalize(self, destroy_stream, self.handle).atexit = False


# -- which queue ------------------------------------------------------------------------------


def test_a_bare_handle_that_outlived_its_stream_is_the_next_ones():
    first = make_stream()
    native = driver.CUstream(first)
    old = sk.wrap(native)
    number = old.id
    destroy_stream(first)
    second = make_stream()
    if second == first:
        assert sk.wrap(native).id == stream_id(second) != number
    destroy_stream(second)


def test_a_recycled_handle_that_captures_is_another_queue():
    first = make_stream()
    old = sk.from_handle(first)
    number = old.id
    destroy_stream(first)
    second = make_stream()
    check(driver.cuStreamBeginCapture(second, driver.CUstreamCaptureMode(1)))
    stream = sk.from_handle(second)
    assert stream.id != number
    check(driver.cuGraphDestroy(check(driver.cuStreamEndCapture(second))))
    assert stream.id == stream_id(second) != number
    assert stream != old
    destroy_stream(second)


def test_per_thread_streams_of_two_devices_that_capture_differ():
    """Neither may be asked for its id, and both have the handle 2."""
    streams = []
    with contextlib.ExitStack() as captures:
        for device in range(2):
            check(driver.cuCtxSetCurrent(check(driver.cuDevicePrimaryCtxRetain(device))))
            check(driver.cuStreamBeginCapture(2, driver.CUstreamCaptureMode(1)))
            captures.callback(end_capture_of_this_thread, current_context())
            streams.append(sk.default_stream(per_thread=True))
        zero, one = streams
        assert zero == sk.default_stream(0, per_thread=True)
        assert zero != one


def end_capture_of_this_thread(context):
    check(driver.cuCtxSetCurrent(context))
    check(driver.cuGraphDestroy(check(driver.cuStreamEndCapture(2))))


def test_a_per_thread_stream_first_seen_while_it_captures_is_that_of_its_device():
    """The handle 2 means another stream where another context is current."""
    check(driver.cuCtxSetCurrent(check(driver.cuDevicePrimaryCtxRetain(1))))
    number = stream_id(2)
    check(driver.cuStreamBeginCapture(2, driver.CUstreamCaptureMode(1)))
    stream = sk.default_stream(per_thread=True)
    with on_device(0):
        assert stream.id != number, "it captures still"
    end_capture_of_this_thread(current_context())
    with on_device(0):
        assert stream.id == number != stream_id(2)


def test_a_handle_0_that_comes_first_is_the_legacy_stream_all_the_same():
    """cuda.bindings then gives the driver's per-thread variants, for which 0 is another queue."""
    program = """
        from cuda.bindings import driver
        import streamkit as sk

        driver.cuInit(0)
        driver.cuCtxSetCurrent(driver.cuDevicePrimaryCtxRetain(0)[1])
        zero = sk.from_handle(0)
        print(zero.id == int(driver.cuStreamGetId(1)[1]) != int(driver.cuStreamGetId(0)[1]))
        print(zero == sk.from_handle(1) != sk.default_stream(per_thread=True))
    """
    assert run(program, CUDA_PYTHON_CUDA_PER_THREAD_DEFAULT_STREAM="1") == ["True", "True"]


def test_the_per_thread_stream_is_a_default_stream():
    assert sk.default_stream(per_thread=True).is_default
    assert not sk.new_stream().is_default


def test_a_kept_view_of_a_per_thread_stream_is_refused_elsewhere():
    mine = sk.default_stream(per_thread=True)
    assert int(mine.to("cuda.bindings")) == 2
    with pytest.raises(sk.errors.ScopeError):
        within(lambda: mine.to("cuda.bindings"))


def test_a_per_thread_stream_is_waited_for_where_no_context_is_current(gate):
    """It is that of device 0 then."""
    target = sk.new_stream(0)
    gate.hold(2)
    check(driver.cuCtxSetCurrent(0))
    target.wait(driver.CUstream(2))
    assert held(target.handle)
    check(driver.cuCtxSetCurrent(target.context))
    gate.open()
    target.sync()


def test_a_device_that_disagrees_with_the_object_is_refused(warp):
    raw = make_stream()
    for native in (Foreign(raw), warp.Stream("cuda:0")):  # one that names its device, and not
        with pytest.raises(sk.errors.DeviceMismatchError):
            sk.wrap(native, device=1)
    assert sk.wrap(Foreign(raw), device=0).device == "cuda:0"
    destroy_stream(raw)


@pytest.mark.parametrize("library", ["cupy", "numba", "warp"])
def test_of_a_librarys_stream_the_driver_is_asked_once(library):
    """Programs wrap the same object in their inner loops."""
    need(library)
    raw = make_stream()
    native = sk.from_handle(raw).to(library)
    stream = sk.wrap(native)
    assert stream.handle == raw
    emulator.reset_calls()
    assert sk.wrap(native) is stream
    assert emulator.all_calls() == {}
    del native, stream
    destroy_stream(raw)


# -- contexts ---------------------------------------------------------------------------------


def test_a_stream_of_another_context_is_not_converted(warp):
    with another_context() as context:
        raw = make_stream()
        stream = sk.from_handle(raw)
        assert stream.context == context
        with pytest.raises(sk.errors.UnsupportedStreamError, match="context"):
            stream.to("warp")
        destroy_stream(raw)


def test_the_default_stream_of_another_context_is_not_the_primary_ones(warp):
    primary = sk.default_stream(0)
    with another_context() as context:
        stream = sk.default_stream()
        assert stream.context == context != primary.context
        assert stream != primary
        with pytest.raises(sk.errors.UnsupportedStreamError, match="context"):
            stream.to("warp")


@pytest.mark.parametrize("library", ["cuda.core", "warp", "numba"])
def test_converting_leaves_the_current_device(library):
    need({"cuda.core": "cuda"}.get(library, library))
    before, stream = current_context(), sk.new_stream(1)
    assert sk.wrap(stream.to(library)) == stream
    assert current_context() == before


# -- owners -----------------------------------------------------------------------------------


@pytest.mark.parametrize("library", ["cuda.core", "warp", "numba"])
def test_a_view_keeps_what_destroys_its_stream(library):
    need({"cuda.core": "cuda"}.get(library, library))
    owner = Owner()
    raw, number, alive = owner.handle, stream_id(owner.handle), weakref.ref(owner)
    view = sk.wrap(owner).to(library)
    del owner
    gc.collect()
    assert alive() is not None
    assert stream_id(raw) == number
    del view
    gc.collect()
    assert alive() is None


def test_of_two_owners_each_is_kept_by_its_own_views():
    raw = make_stream()
    one, two = Foreign(raw), Foreign(raw)
    first, second = sk.wrap(one).to("cuda.core"), sk.wrap(two).to("cuda.core")
    alive = weakref.ref(one), weakref.ref(two)
    del one, two
    gc.collect()
    assert all(reference() is not None for reference in alive)
    del first
    gc.collect()
    assert alive[0]() is not None, "it may be what destroys the handle of the other view"
    del second
    gc.collect()
    assert not any(reference() is not None for reference in alive)
    destroy_stream(raw)


def test_two_owners_of_the_per_thread_stream_have_that_of_the_thread_that_asks():
    one, two, mine = Foreign(2), Foreign(2), sk.default_stream(per_thread=True)
    assert sk.wrap(one) == sk.wrap(two) == mine
    number, own, found = within(
        lambda: (
            sk.default_stream(per_thread=True).id,
            sk.default_stream(per_thread=True) == sk.wrap(one) == sk.wrap(two),
            sk.wrap(two) == mine,
        )
    )
    assert (own, found) == (True, False)
    assert sk.wrap(one).id == sk.wrap(two).id == mine.id != number


def test_a_class_of_the_protocol_is_recognised_once():
    """But of a library that may be imported in part by now, one object after the other."""
    later = type("Stream", (Foreign,), {"__module__": "torch.of_a_later_version"})
    raw = make_stream()
    for kind in (Foreign, later):
        assert sk.wrap(kind(raw)).handle == raw
    assert Foreign in registry.stream_types
    assert later not in registry.stream_types
    destroy_stream(raw)


def test_a_class_that_a_call_makes_goes_with_what_its_functions_hold():
    raw, alive = make_stream(), []
    for _ in range(3):
        held = Foreign(raw)

        class Made:
            def __cuda_stream__(self, held=held):
                return held.__cuda_stream__()

        made = Made()
        assert sk.wrap(made).handle == raw
        assert Made in registry.stream_types
        assert registry.stream_types[Made].name == "protocol"
        alive += [weakref.ref(Made), weakref.ref(held)]
    before = len(registry.stream_types)
    del Made, made, held
    gc.collect()
    assert not any(reference() for reference in alive)
    assert len(registry.stream_types) == before - 3
    destroy_stream(raw)


def test_a_librarys_own_class_is_found_by_identity():
    """That is the quick way: a weak key compares by a call."""
    sk.wrap(need("numba").stream())
    assert any(type(key) is type for key in registry.stream_types)


@pytest.mark.parametrize("error", [AttributeError, TypeError, ValueError])
def test_an_owner_that_refuses_attributes_is_wrapped(error):
    from numba.cuda.cudadrv import driver as numba_driver

    class Frozen(numba_driver.Stream):
        def __setattr__(self, name, value):
            if name.startswith("_streamkit"):
                raise error("frozen")
            super().__setattr__(name, value)

    owner = need("numba").stream()
    native = Frozen(owner.handle)
    assert sk.wrap(native).handle == int(native.handle)
    sk.new_stream().wait(native)


def test_a_librarys_event_is_recognised_once(monkeypatch):
    stream, native = sk.new_stream(), need("numba").event()
    stream.wait(native)
    monkeypatch.setattr(registry, "candidates", lambda kind: ())  # no adapter is asked
    stream.wait(native)


def test_a_stream_of_streamkits_that_owns_a_handle_is_recognised_as_itself():
    """It has the stream protocol too, by which it is asked whether it has let go of the handle."""
    owner, event = sk.new_stream(), sk.new_event()
    bare = sk.from_handle(owner.handle, owner=owner)
    assert identity.owns(owner, bare._queue)
    assert sk.wrap(owner) is owner
    assert type(owner) not in registry.stream_types
    bare.record(event)
    assert sk.wrap(owner) is owner


@pytest.mark.parametrize("use", [sk.wrap, lambda native: sk.new_stream().wait(native)])
def test_what_was_learned_of_a_stream_keeps_it_from_no_end(use, warp):
    for make in (Owner, functools.partial(warp.Stream, "cuda:0")):
        native = make()
        alive = weakref.ref(native)
        for _ in range(2):
            use(native)
        del native
        assert alive() is None


def test_a_stream_that_came_with_an_old_handle_is_learned_anew():
    """The object stays, as an external one does; the stream is one of the other device by now."""
    sk.default_stream(1)  # or the context of the device would go with the block below
    target, native = sk.new_stream(), Foreign(make_stream())
    raw, number = native.handle, sk.wrap(native).id
    target.wait(native)
    destroy_stream(raw)
    with on_device(1):
        again = [make_stream()]
        while again[-1] != raw and len(again) < 8:
            again.append(make_stream())
        gate = Gate()
        gate.hold(again[-1])
    native.handle = again[-1]
    target.wait(native)
    assert held(target.handle)
    with on_device(1):
        gate.free()
    target.sync()
    assert sk.wrap(native).id == stream_id(again[-1]) != number
    for one in again:
        destroy_stream(one)


def test_little_is_kept_of_streams_that_nobody_holds():
    target, streams = sk.new_stream(), [make_stream() for _ in range(identity._MOST_LEARNED + 10)]
    for raw in streams:
        target.wait(Foreign(raw))
    assert len(identity._learned) == identity._MOST_LEARNED
    identity._learned.clear()  # else the next test's streams end these
    for raw in streams:
        destroy_stream(raw)


def test_a_bare_handle_of_streamkits_keeps_its_stream():
    stream = sk.new_stream(nonblocking=True)
    handle = stream.handle
    borrowed = sk.from_handle(handle)
    del stream
    gc.collect()
    others = [sk.new_stream(nonblocking=True) for _ in range(4)]
    assert handle not in [other.handle for other in others]
    assert borrowed.id == stream_id(handle)


def test_an_owner_that_comes_after_the_handle_is_kept():
    owner = Owner()
    raw, number = owner.handle, stream_id(owner.handle)
    bare = sk.from_handle(raw)
    view = sk.wrap(owner).to("cuda.core")
    del owner, bare
    gc.collect()
    assert stream_id(raw) == number
    del view


def test_the_owner_that_an_adapter_names_is_kept_also_of_a_queue_that_is_known(program):
    """It need not be the library's stream, nor be held by that."""
    program(
        f"""
import gc, weakref
import toya
sys.path[:0] = [{str(Path(__file__).parents[2])!r}]
from support.gpu.raw import make_stream

class Memory: pass

driver.cuCtxSetCurrent(sk.new_stream().context)
native, owner = toya.Stream(make_stream()), Memory()
native.owner = alive = weakref.ref(owner)
bare = sk.from_handle(native.number)
stream = sk.wrap(native)
del owner
gc.collect()
assert alive() is not None
del bare, stream
gc.collect()
assert alive() is None
""",
        toya=VALUES.replace("streams_are_values=True", "").replace("DEVICE", "0, obj.owner()"),
    )


@pytest.mark.parametrize(("make_owner", "make"), [(lambda: Foreign(0), int), (Owner, make_stream)])
def test_an_owner_of_a_default_or_another_stream_is_kept_and_not_taken_for_closed(
    warp, make_owner, make
):
    owner, raw = make_owner(), make()
    alive, stream = weakref.ref(owner), sk.from_handle(raw, owner=owner)
    del owner
    before = warp.Stream("cuda:0")
    with warp.ScopedStream(before, sync_enter=False), sk.use(stream, ordered=True):
        gc.collect()
    assert alive() is not None
    del stream
    gc.collect()
    assert alive() is None
    if raw:
        destroy_stream(raw)


# -- the library's own object -----------------------------------------------------------------


def test_the_users_own_object_is_the_view_of_its_queue():
    device = need("cuda").Device(0)
    device.set_current()
    native = device.create_stream()
    stream = sk.wrap(native)
    assert sk.from_handle(int(native.handle)).to("cuda.core") is native
    assert stream.to("cuda.core") is native
    native.close()


def test_one_view_for_warp_through_each_of_two_owners(warp):
    raw = make_stream()
    one, two = sk.wrap(Foreign(raw)), sk.wrap(Foreign(raw))
    assert one.to("warp") is two.to("warp")
    del one, two
    gc.collect()
    destroy_stream(raw)


def test_a_stream_that_warp_has_already_is_not_wrapped_again(warp):
    native = warp.Stream("cuda:0")
    raw, number = native.cuda_stream, stream_id(native.cuda_stream)
    stream = sk.from_handle(raw)
    assert stream.to("warp") is native
    view = stream.to("cuda.core")
    del native, stream
    gc.collect()
    assert stream_id(raw) == number, "what was found on the handle is what destroys it"
    del view


def test_the_collector_is_asked_only_about_handles_that_warp_has(warp, monkeypatch):
    """It takes tens of milliseconds in a large program."""
    asked, ask = [], gc.get_referrers

    def referrers(*objects):
        asked.append(objects)
        return ask(*objects)

    def asks(raw):
        asked.clear()
        found = sk.from_handle(raw).to("warp")
        return found, bool(asked)

    monkeypatch.setattr(gc, "get_referrers", referrers)
    raw = make_stream()
    asks(raw)  # perhaps the first, which asks for what was made before
    view, asked_again = asks(raw)
    assert not asked_again, "the first view has ended"
    assert asks(raw) == (view, False), "it is StreamKit's own"
    del view
    native = warp.Stream("cuda:0", cuda_stream=raw)
    assert asks(raw) == (native, True)
    assert asks(raw) == (native, False), "it was found before"
    del native
    assert not asks(raw)[1]
    destroy_stream(raw)
    own = warp.Stream("cuda:0")
    assert asks(own.cuda_stream) == (own, True)


# -- of the same kind: whoever is asked is alive, and is of that device --------------------------


@pytest.mark.parametrize("closed_first", [True, False])
def test_an_event_does_not_ask_a_handle_of_which_one_of_two_owners_has_closed(closed_first):
    """The other knows nothing of that, and says the handle still; "handles" sees who uses it."""

    class Closes(Foreign):
        def __cuda_stream__(self):
            if not self.handle:
                raise ValueError("closed")
            return 0, self.handle

    raw = make_stream()
    owner = Closes(raw)
    owners = [owner, Foreign(raw)]
    streams = [sk.wrap(one) for one in (owners if closed_first else reversed(owners))]
    event = sk.new_event()
    for _ in range(3):  # the quick way too
        streams[-1].record(event)
    check(driver.cuCtxSynchronize())
    owner.handle = 0
    destroy_stream(raw)
    assert event.done


@pytest.mark.parametrize("wrap", [sk.from_handle, lambda raw, **at: sk.wrap(Foreign(raw), **at)])
def test_the_device_of_a_stream_first_seen_while_it_captures_is_checked(wrap):
    raw = make_stream()
    check(driver.cuStreamBeginCapture(raw, driver.CUstreamCaptureMode(1)))
    with pytest.raises(sk.errors.DeviceMismatchError, match="cuda:0"):
        wrap(raw, device=1)
    assert wrap(raw, device=0).device_id == 0
    check(driver.cuGraphDestroy(check(driver.cuStreamEndCapture(raw))))
    destroy_stream(raw)


def test_an_event_is_its_own_object_in_its_own_library_and_another_in_others():
    need("cuda", "numba")
    raw = driver.CUevent(int(check(driver.cuEventCreate(2))))
    event = sk.wrap_event(raw)
    assert event.to("cuda.bindings") is raw
    other = event.to("numba")
    assert sk.wrap_event(other).to("numba") is other
    assert int(other.handle) == int(raw) == event.handle
    check(driver.cuEventDestroy(raw))


# -- a stream that is a value, of a library that names its device --------------------------------

VALUES = """

from streamkit.protocols import Traits

traits = Traits(streams_are_fixed=True, streams_are_values=True)

def extract(obj):
    if not isinstance(obj, toylib.Stream):
        raise UnsupportedStreamError(f"{obj!r} is no toylib stream")
    return Queue(obj.number, DEVICE)
"""

QUESTIONS = f"""
import toya
sys.path[:0] = [{str(Path(__file__).parents[2])!r}]
import emulator
from support.gpu.raw import make_stream, stream_id

owned = sk.new_stream(nonblocking=True)
driver.cuCtxSetCurrent(owned.context)
handle = make_stream()
sk.wrap(toya.Stream(make_stream())).sync()  # the adapter is known

def asked():
    return [name for name in emulator.all_calls() if "Stream" in name]

emulator.reset_calls()
wrapped = sk.wrap(toya.Stream(handle))
"""


@pytest.mark.parametrize(
    "use",
    [
        "assert wrapped.id == stream_id(handle)",
        "assert wrapped == sk.from_handle(handle)",
        "assert len({wrapped, sk.from_handle(handle)}) == 1",
        "assert f'id={stream_id(handle)} nonblocking' in repr(wrapped)",
        "assert wrapped.device_id == 0",
        "assert wrapped.handle == handle",
        "owned.wait(wrapped)",
        "owned.wait(wrapped.native)",
        "wrapped.wait(owned)",
        "with wrapped: assert sk.current_stream() is wrapped",
        "wrapped.keep(1)",
        "wrapped.sync()\nassert sk.wrap(wrapped.native) is wrapped",
    ],
)
def test_a_value_is_identified_when_it_is_first_used(program, use):
    program(
        f"""
{QUESTIONS}
assert wrapped.native.number == handle
assert not wrapped.closed
assert not wrapped.owned
assert asked() == []
{use}
assert asked()
assert sk.wrap(wrapped.native) == wrapped
""",
        toya=VALUES.replace("DEVICE", "0"),
    )


@pytest.mark.parametrize(
    "may_die",
    [("DEVICE", "0, obj"), ("streams_are_values=True", "streams_are_values=False")],
    ids=["with its owner", "by itself"],
)
def test_control_a_stream_that_may_die_is_identified_at_once(program, may_die):
    program(
        f"{QUESTIONS}\nassert 'cuStreamGetId' in asked()",
        toya=VALUES.replace(*may_die).replace("DEVICE", "0"),
    )


def test_a_value_that_names_another_device_is_refused_when_it_is_first_used(program):
    program(
        f"""
{QUESTIONS}
for _ in range(2):
    error = error_of(sk.errors.DeviceMismatchError, wrapped.sync)
    assert "cuda:1" in str(error) and "cuda:0" in str(error), error
error_of(sk.errors.DeviceMismatchError, sk.wrap, wrapped.native, device=1)
text = "<streamkit.CudaStream cuda:1 handle=%#x unidentified, from toya>"
assert repr(wrapped) == text % handle
""",
        toya=VALUES.replace("DEVICE", "1 if obj.number == __import__('__main__').handle else 0"),
    )


def test_a_stream_that_its_handle_told_first_is_permanent_once_a_library_says_so():
    """Otherwise it counts as gone: no error names its work, and each scope records an event."""
    handle = make_stream(nonblocking=True)
    known = identity.identify(Queue(handle, 0))
    assert not identity.is_alive(known)
    found = Queue(handle, 0)
    found.permanent = True  # as torch's adapter says of the streams of its pool
    assert identity.identify(found) is known
    assert identity.is_alive(known)
    assert found.record is known
