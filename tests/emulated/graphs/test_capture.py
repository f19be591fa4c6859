"""Beside a capture that somebody else began: what looks harmless and breaks it on hardware."""

from __future__ import annotations

import contextlib
import gc
import weakref

import pytest

import streamkit as sk
from support.gpu.raw import check, destroy_stream, driver, make_stream
from support.programs import run_program
from support.queues import within

pytestmark = pytest.mark.usefixtures("handles")

ACTIVE = 1
LOOKS = {
    "repr": repr,
    "hash": hash,
    "id": lambda stream: stream.id,
    "handle": lambda stream: stream.handle,
    "device": lambda stream: stream.device,
    "context": lambda stream: stream.context,
    "priority": lambda stream: stream.priority,
    "is_nonblocking": lambda stream: stream.is_nonblocking,
    "is_capturing": lambda stream: stream.is_capturing,
    "is_default": lambda stream: stream.is_default,
    "==": lambda stream: stream == sk.from_handle(1),
    "done": lambda stream: stream.done,
    "sync": lambda stream: stream.sync(),
    "sync with a timeout": lambda stream: stream.sync(timeout=1),
    "to cuda.core": lambda stream: stream.to("cuda.core"),
    "to cuda.bindings": lambda stream: stream.to("cuda.bindings"),
    "to warp": lambda stream: stream.to("warp"),
    "wrap": sk.wrap,
    "from_handle": lambda stream: sk.from_handle(stream.handle),
}


MODES = pytest.mark.parametrize("mode", [0, 1, 2], ids=["global", "thread_local", "relaxed"])


def is_whole_after(look, handle, mode):
    """Whether a capture on this stream is still valid after a look, allowed or refused."""
    check(driver.cuStreamBeginCapture(handle, driver.CUstreamCaptureMode(mode)))
    with contextlib.suppress(sk.StreamKitError):
        look()
    status = int(check(driver.cuStreamIsCapturing(handle)))
    code, graph = driver.cuStreamEndCapture(handle)
    if not code:
        check(driver.cuGraphDestroy(graph))
    return status == ACTIVE


@MODES
@pytest.mark.parametrize("known", [True, False], ids=["known", "unknown"])
def test_looking_at_the_legacy_stream_does_not_break_a_blocking_streams_capture(mode, known):
    """Its context, device and priority too are questions that end such a capture."""
    raw, broken = make_stream(nonblocking=False), []
    for name, look in LOOKS.items():
        legacy = sk.default_stream(0)
        if known:
            with contextlib.suppress(sk.StreamKitError):
                look(legacy)
        if not is_whole_after(lambda look=look, legacy=legacy: look(legacy), raw, mode):
            broken.append(name)
    assert broken == []
    destroy_stream(raw)


@MODES
@pytest.mark.parametrize("nonblocking", [True, False])
def test_looking_at_a_stream_does_not_break_its_capture(mode, nonblocking):
    broken = []
    for name, look in LOOKS.items():
        raw = make_stream(nonblocking=nonblocking)
        if not is_whole_after(lambda look=look, raw=raw: look(sk.from_handle(raw)), raw, mode):
            broken.append(name)
        destroy_stream(raw)
    assert broken == []


@pytest.mark.parametrize("nonblocking", [True, False])
def test_control_the_drivers_own_questions_break_it(nonblocking):
    raw = make_stream(nonblocking=nonblocking)
    asked = raw if nonblocking else 1
    assert not is_whole_after(lambda: driver.cuStreamGetId(asked), raw, 1)
    assert is_whole_after(lambda: driver.cuStreamIsCapturing(asked), raw, 1)
    destroy_stream(raw)


def test_the_life_of_others_goes_on_beside_a_capture():
    """What is made, ordered, asked and dropped beside it is no part of it and does not end it."""
    raw = make_stream()
    first, second = sk.new_stream(nonblocking=True), sk.new_stream(nonblocking=True)

    def live():
        second.wait(first)
        event = first.record(timing=True)
        assert event.done in (True, False)
        event.sync()
        second.sync()
        sk.new_stream(nonblocking=True).close()
        sk.new_event().close()
        assert first.done
        assert not first.is_capturing

    assert is_whole_after(live, raw, 1)
    destroy_stream(raw)


# -- events that are part of it ---------------------------------------------------------------

FIRST = {
    "made": lambda stream, event: stream.record(),
    "given": lambda stream, event: stream.record(event),
    "again": lambda stream, event: stream.record(stream.record(event)),
}
ASKS = {
    "done": lambda event: event.done,
    "sync": lambda event: event.sync(),
    "sync with a timeout": lambda event: event.sync(1),
    "await": lambda event: next(event.__await__(), None),
}


def owned():
    return sk.new_stream(nonblocking=True)


@MODES
@pytest.mark.parametrize("asks", ASKS)
@pytest.mark.parametrize("how", FIRST)
@pytest.mark.parametrize("forks", [True, False])
def test_an_event_of_somebodys_capture_is_not_asked(mode, asks, how, forks):
    """In the thread of the capture as in another; and after it, recorded again, it is as any."""
    origin, side, event = owned(), owned(), sk.new_event()
    origin.record().sync()
    check(driver.cuStreamBeginCapture(origin.handle, driver.CUstreamCaptureMode(mode)))
    if forks:
        side.wait(origin)
    event = FIRST[how](side if forks else origin, event)
    for run in (within, lambda ask: ask()):
        with pytest.raises(sk.errors.CaptureError, match="was last recorded on"):
            run(lambda: ASKS[asks](event))
    check(driver.cuGraphDestroy(check(driver.cuStreamEndCapture(origin.handle))))
    for again in (origin, side):
        again.record(event)
        again.sync()
        ASKS[asks](event)


def test_an_event_of_a_capture_on_a_bare_handle_is_not_asked_and_the_handle_may_go():
    raw, event = make_stream(), sk.new_event()
    stream = sk.from_handle(raw)
    check(driver.cuStreamBeginCapture(raw, driver.CUstreamCaptureMode(1)))
    inside = stream.record()
    with pytest.raises(sk.errors.CaptureError, match="was last recorded on"):
        inside.sync()
    check(driver.cuGraphDestroy(check(driver.cuStreamEndCapture(raw))))
    for _ in range(3):
        stream.record(event)
    event.sync()
    destroy_stream(raw)
    assert event.done


def test_an_event_recorded_before_the_capture_or_outside_the_graph_can_be_asked():
    stream = owned()
    before = stream.record()
    before.sync()
    check(driver.cuStreamBeginCapture(stream.handle, driver.CUstreamCaptureMode(1)))
    external = stream.record(sk.new_event(), external=True)
    assert before.done
    assert external.done
    check(driver.cuGraphDestroy(check(driver.cuStreamEndCapture(stream.handle))))


def test_an_event_recorded_in_turns_is_asked_only_where_its_last_record_allows():
    """Also by the quick records, which ask nothing themselves."""
    origin, free, event = owned(), owned(), sk.new_event()
    for stream in (origin, free) * 2:
        stream.record(event)
    check(driver.cuStreamBeginCapture(origin.handle, driver.CUstreamCaptureMode(1)))
    for _ in range(2):
        free.record(event)
        event.sync()
        origin.record(event)
        with pytest.raises(sk.errors.CaptureError, match="was last recorded on"):
            event.sync()
    check(driver.cuGraphDestroy(check(driver.cuStreamEndCapture(origin.handle))))


def test_an_external_record_leaves_the_event_a_part_of_the_capture():
    """Only a launch of the graph makes that record."""
    stream, event = owned(), sk.new_event()
    check(driver.cuStreamBeginCapture(stream.handle, driver.CUstreamCaptureMode(1)))
    stream.record(event)
    stream.record(event, external=True)
    with pytest.raises(sk.errors.CaptureError, match="was last recorded on"):
        event.sync()
    check(driver.cuGraphDestroy(check(driver.cuStreamEndCapture(stream.handle))))


def test_an_event_does_not_keep_its_stream():
    stream, event = owned(), sk.new_event()
    for _ in range(3):
        stream.record(event)
    seen = weakref.ref(stream._queue)
    del stream
    gc.collect()
    assert seen() is None
    event.sync()


@pytest.mark.parametrize("end", ["pass", "block.__exit__(KeyError, KeyError(), None)"])
def test_the_end_of_a_program_inside_a_capture_leaves_it_alone(end):
    """torch ends the process if its capture ends by then. A block that is left ends its own."""
    done = run_program(
        f"""
        import contextlib, functools, sys
        import streamkit as sk
        from streamkit._cuda import graphs  # the end of a capture is watched

        # no function of this program, which would hold its variables to the last
        graphs.discard = functools.partial(print, "ended", file=sys.stdout, flush=True)
        block = sk.capture()
        block.__enter__()
        with contextlib.suppress(KeyError):
            {end}
        """
    )
    assert (done.returncode, done.stdout[:5]) == (0, "" if end == "pass" else "ended"), done.stderr
