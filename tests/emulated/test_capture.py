"""Beside a capture that somebody else began: what looks harmless and breaks it on hardware."""

from __future__ import annotations

import contextlib

import pytest
from _raw import check, destroy_stream, driver, make_stream

import streamkit as sk

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
