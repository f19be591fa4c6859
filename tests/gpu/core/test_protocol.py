"""Objects of the CUDA stream protocol: every wrong answer is refused, none becomes a default."""

from __future__ import annotations

import numpy as np
import pytest

import streamkit as sk
from support.gpu.raw import held, make_stream, stream_id


def protocol(answer):
    class Someone:
        def __cuda_stream__(self):
            return answer() if callable(answer) else answer

    return Someone()


def recurse():
    return recurse()


def fail():
    raise AttributeError("inside the foreign method")


WRONG = [None, 5, (0,), (1, 64), (0, -1), (0, 2**64), (0, "h"), (0, None), (0, True), (0, 1.0),
         (0, 1, 2), ("0", 1), recurse, fail]  # fmt: skip


@pytest.mark.parametrize(
    "answer", WRONG, ids=lambda answer: getattr(answer, "__name__", str(answer))
)
def test_wrong_answers_are_refused(answer):
    with pytest.raises((TypeError, ValueError), match=r"Someone\.__cuda_stream__"):
        sk.wrap(protocol(answer))


def test_a_property_and_an_attribute_are_refused():
    class Property:
        @property
        def __cuda_stream__(self):
            return 0, 0

    class Attribute:
        __cuda_stream__ = (0, 0)

    for wrong in (Property(), Attribute()):
        with pytest.raises(sk.errors.UnsupportedStreamError, match="not a method"):
            sk.wrap(wrong)


def test_right_answers_are_the_stream_they_name():
    raw = make_stream()
    for answer in ((0, raw), [0, raw], (np.int64(0), np.uint64(raw))):
        stream = sk.wrap(protocol(lambda answer=answer: answer))
        assert stream.handle == raw
        assert type(stream.handle) is int
        assert stream.id == stream_id(raw)


def test_our_own_protocol_serves_others(subjects, gate):
    stream = sk.new_stream(nonblocking=True)
    cupy, core = subjects("cupy").cupy, subjects("cuda.core").core
    gate.hold(stream.handle)
    assert cupy.cuda.Stream.from_external(stream).ptr == stream.handle
    native = subjects("cuda.core").new_stream()
    native.wait(stream)
    assert held(int(native.handle))
    assert core.Stream.from_handle(int(stream)).handle
    gate.open()


def test_isinstance_asks_the_driver_nothing(monkeypatch):
    from streamkit._cuda import loader as seam  # the driver's calls are refused

    streams = [sk.new_stream(), sk.new_stream(), sk.default_stream()]
    streams[1].close()

    class Refuse:
        def __getattr__(self, name):
            raise AssertionError(f"a driver call: {name}")

    with monkeypatch.context() as patch:
        patch.setattr(seam, "cu", Refuse())
        assert all(isinstance(stream, sk.Stream) for stream in streams)
        assert not isinstance(object(), sk.Stream)
        for stream in streams:
            repr(stream)
