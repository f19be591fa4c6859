"""Whatever is no stream is refused by name, and nothing is taken for a default stream by accident.

Each refusal is a TypeError or a ValueError. What is valid gives NoDeviceError here, where there is
no driver: it would have gone on.
"""

from __future__ import annotations

import enum
from concurrent.futures import Future

import numpy as np
import pytest

import streamkit as sk
from streamkit.types import CudaEvent, HostEvent, HostStream


class Protocol:
    """Answers the protocol with what it is given."""

    def __init__(self, answer):
        self._answer = answer

    def __cuda_stream__(self):
        if isinstance(self._answer, BaseException):
            raise self._answer
        return self._answer


class Property:
    @property
    def __cuda_stream__(self):
        return 0, 64


class Attribute:
    __cuda_stream__ = (0, 64)


class InstanceAttribute:
    def __init__(self):
        self.__cuda_stream__ = (0, 64)


class Switched:
    __cuda_stream__ = None


class Slot:
    __slots__ = ("__cuda_stream__",)

    def __init__(self):
        self.__cuda_stream__ = lambda: (0, 64)


class NeedsArgument:
    def __cuda_stream__(self, version):
        return 0, 64


class Generator:
    def __cuda_stream__(self):
        yield 0
        yield 64


class Meta(type):
    def __cuda_stream__(cls):
        return 0, 64


class OnItsClassOnly(metaclass=Meta):
    pass


class Nothing:
    pass


class AnswersEverything:
    def __getattr__(self, name):
        return lambda: (0, 64)


class Unprintable:
    def __repr__(self):
        raise AssertionError("the repr of a foreign object can wait for the device")


class StaticMethod:
    @staticmethod
    def __cuda_stream__():
        return 0, 64


class ClassMethod:
    @classmethod
    def __cuda_stream__(cls):
        return 0, 64


class Handle(enum.IntEnum):
    LEGACY = 1


NO_STREAMS = {
    "False": False,
    "int64": np.int64(5),
    "IntEnum": Handle.LEGACY,
    "tuple": (0, 64),
    "object": object(),
    "array": np.zeros(3),
    "lambda": lambda: (0, 64),
    "module": np,
    "int class": int,
    "class with the protocol": Protocol,
    "class with a metaclass protocol": OnItsClassOnly,
    "instance of such a class": OnItsClassOnly(),
    "answers everything": AnswersEverything(),
    "host event": sk.new_event(device="cpu"),
}


@pytest.mark.parametrize("obj", NO_STREAMS.values(), ids=NO_STREAMS)
def test_what_is_no_stream_is_refused(obj):
    with pytest.raises(sk.errors.UnsupportedStreamError):
        sk.wrap(obj)


@pytest.mark.parametrize(
    ("obj", "told"),
    [
        (5, r"cannot wrap 5.*streamkit\.from_handle"),
        (0, r"cannot wrap 0.*streamkit\.from_handle"),
        (None, r"cannot wrap None.*streamkit\.default_stream\(\)"),
        (HostStream, "class streamkit.*HostStream: pass an instance"),
        (Future(), r"future.add_done_callback\(launch"),
        (True, "True"),
        (3.5, "3.5"),
        ("x", "'x'"),
        (Nothing(), "Nothing object at"),
    ],
)
def test_the_refusal_names_what_it_got_and_what_to_write(obj, told):
    with pytest.raises(sk.errors.UnsupportedStreamError, match=told):
        sk.wrap(obj)


BAD_ANSWERS = {
    "None": None,
    "5": 5,
    "()": (),
    "(0, 64, 0)": (0, 64, 0),
    "(1, 64)": (1, 64),
    "(0, -1)": (0, -1),
    "(0, 2**64)": (0, 2**64),
    "(0, None)": (0, None),
    "(0, True)": (0, True),
    "(False, 64)": (False, 64),
    "(0.0, 64)": (0.0, 64),
    "(0, 64.0)": (0, 64.0),
    "(0, unprintable)": (0, Unprintable()),
    "(0, numpy bool)": (0, np.True_),
    "(0, array)": (0, np.array([1, 2])),
    "(array, 64)": (np.array([0, 0]), 64),
    "array": np.array([0, 64]),
    "str": "ab",
}


@pytest.mark.parametrize("answer", BAD_ANSWERS.values(), ids=BAD_ANSWERS)
def test_a_bad_answer_to_the_protocol_is_refused_and_names_the_class(answer):
    told = r"\.__cuda_stream__ returned " + (
        r"\(0, -1\)" if answer is BAD_ANSWERS["(0, -1)"] else ""
    )
    with pytest.raises(sk.errors.UnsupportedStreamError, match=rf"{told}.*\(0, handle\)"):
        sk.wrap(Protocol(answer))


@pytest.mark.parametrize(
    "error", [kind("why") for kind in (RuntimeError, AttributeError, KeyError, RecursionError)]
)
def test_a_protocol_method_that_raises_is_refused_and_its_error_chained(error):
    with pytest.raises(sk.errors.UnsupportedStreamError, match=type(error).__name__) as raised:
        sk.wrap(Protocol(error))
    assert raised.value.__cause__ is error


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt(), SystemExit()])
def test_an_interrupt_passes_through(interrupt):
    with pytest.raises(type(interrupt)):
        sk.wrap(Protocol(interrupt))


@pytest.mark.parametrize(
    "kind", [Property, Attribute, InstanceAttribute, Switched, Slot, NeedsArgument, Generator]
)
def test_what_is_not_a_method_of_the_protocol_is_refused(kind):
    with pytest.raises(sk.errors.UnsupportedStreamError, match=rf"{kind.__name__}.__cuda_stream__"):
        sk.wrap(kind())


GOOD = {
    "0": Protocol((0, 0)),
    "64": Protocol((0, 64)),
    "largest": Protocol((0, 2**64 - 1)),
    "list": Protocol([0, 64]),
    "IntEnum": Protocol((0, Handle.LEGACY)),
    "numpy int": Protocol((np.int32(0), np.uint64(64))),
    "static": StaticMethod(),
    "class method": ClassMethod(),
}


@pytest.mark.parametrize("obj", GOOD.values(), ids=GOOD)
def test_what_answers_the_protocol_fails_for_want_of_a_device_only(obj, no_driver):
    with pytest.raises(sk.errors.NoDeviceError):
        sk.wrap(obj)


BAD_HANDLES = {
    "None": None,
    "True": True,
    "str": "x",
    "float": 1.0,
    "numpy int": np.int64(5),
    "protocol": Protocol((0, 64)),
    "object": object(),
}


@pytest.mark.parametrize("handle", BAD_HANDLES.values(), ids=BAD_HANDLES)
def test_a_handle_of_another_type_is_a_type_error(handle):
    with pytest.raises(sk.errors.UnsupportedStreamError, match=r"handle is an int.*write int\(x"):
        sk.from_handle(handle)


@pytest.mark.parametrize("handle", [-1, 2**64, -(2**64), 2**200])
def test_a_handle_out_of_range_is_a_value_error_that_names_it(handle):
    with pytest.raises(ValueError, match=str(handle)):
        sk.from_handle(handle)


@pytest.mark.parametrize("handle", [0, 1, 2, 64, 2**64 - 1])
def test_a_good_handle_fails_for_want_of_a_device_only(handle, no_driver):
    with pytest.raises(sk.errors.NoDeviceError):
        sk.from_handle(handle, owner=object())


BAD_DEVICES = {
    "gpu": "gpu",
    "CUDA": "CUDA:0",
    "colon": "cuda:",
    "negative": "cuda:-1",
    "newline": "cuda:0\n",
    "cpu:0": "cpu:1x",
    "bytes": b"cuda:0",
    "-1": -1,
    "True": True,
    "class": int,
    "array": np.zeros(2),
    "stream": sk.new_stream("cpu"),
}
TAKES_DEVICE = {
    "new_stream": sk.new_stream,
    "new_event": lambda device: sk.new_event(device=device),
    "default_stream": sk.default_stream,
    "per_thread": lambda device: sk.default_stream(device, per_thread=True),
    "current_stream": lambda device: sk.current_stream(device=device),
    "current_streams": lambda device: sk.current_streams(device=device),
    "from_handle": lambda device: sk.from_handle(64, device=device),
    "wrap": lambda device: sk.wrap(Protocol((0, 64)), device=device),
}


@pytest.mark.parametrize("device", BAD_DEVICES.values(), ids=BAD_DEVICES)
@pytest.mark.parametrize("function", TAKES_DEVICE.values(), ids=TAKES_DEVICE)
def test_a_bad_device_is_a_value_error_that_names_it(function, device):
    with pytest.raises(ValueError, match="is not a device") as raised:
        function(device)
    named = device.__name__ if isinstance(device, type) else type(device).__name__
    assert named in str(raised.value) or repr(device) in str(raised.value)


def test_a_bad_device_is_noticed_inside_a_scope_too(stream):
    with stream, pytest.raises(ValueError, match="is not a device"):
        sk.current_stream(device="gpu")


@pytest.mark.parametrize("function", ["from_handle", "wrap"])
def test_refusing_the_host_for_a_cuda_stream_does_not_advise_it(function):
    with pytest.raises(ValueError, match="cpu") as raised:
        TAKES_DEVICE[function]("cpu")
    assert "use None, 'cpu'" not in str(raised.value)


@pytest.mark.parametrize("device", ["cuda", "cuda:0", 0, "cuda:1"])
def test_a_host_stream_is_of_no_cuda_device(stream, device):
    with pytest.raises(sk.errors.DeviceMismatchError, match="'s'"):
        sk.wrap(stream, device=device)


@pytest.mark.parametrize("device", [None, "cpu"])
def test_a_host_stream_comes_back_as_itself(stream, device):
    assert sk.wrap(stream, device=device) is stream


BAD_EVENTS = {
    "None": None,
    "str": "x",
    "object": object(),
    "array": np.zeros(3),
    "stream": sk.new_stream("cpu"),
    "protocol": Protocol((0, 64)),
}


@pytest.mark.parametrize("obj", BAD_EVENTS.values(), ids=BAD_EVENTS)
def test_what_is_no_event_is_refused(obj):
    with pytest.raises(sk.errors.UnsupportedStreamError, match="not an event"):
        sk.wrap_event(obj)


@pytest.mark.parametrize("kind", [HostEvent, CudaEvent, Protocol, int])
def test_a_class_is_no_event_and_is_named(kind):
    with pytest.raises(sk.errors.UnsupportedStreamError, match=rf"\b{kind.__name__}\b"):
        sk.wrap_event(kind)


def test_of_the_host_an_event_comes_back_as_itself_and_what_is_closed_is_refused(stream):
    event = stream.record()
    assert sk.wrap_event(event) is event
    event.close()
    stream.close()
    with pytest.raises(sk.errors.StreamClosedError):
        sk.wrap_event(event)
    with pytest.raises(sk.errors.StreamClosedError, match="'s'"):
        sk.wrap(stream)


@pytest.mark.parametrize("name", ["jax", "", "Torch"])
def test_an_unknown_library_is_refused_with_the_known_ones(name):
    with pytest.raises(sk.errors.UnsupportedStreamError, match=r"cuda\.core"):
        sk.current_stream(name)


@pytest.mark.parametrize("obj", [None, 5, "x", HostStream, Protocol((0, -1))])
def test_a_scope_refuses_what_wrap_refuses(obj):
    with pytest.raises(sk.errors.UnsupportedStreamError):
        sk.use(obj)


@pytest.mark.parametrize("priority", ["medium", True, 1.0, "", "HIGH", b"high"])
def test_a_bad_priority_is_a_value_error_that_names_it(priority):
    with pytest.raises(ValueError, match=repr(priority)):
        sk.new_stream("cpu", priority=priority)
