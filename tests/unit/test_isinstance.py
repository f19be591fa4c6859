"""``isinstance(x, Stream)`` looks at names and evaluates nothing."""

from __future__ import annotations

import inspect
import types

import pytest

import streamkit as sk
from streamkit import protocols
from streamkit.types import CudaEvent, CudaStream, HostEvent, HostStream

pytestmark = pytest.mark.quick

STREAM_NAMES = {
    "handle", "device", "device_id", "id", "closed", "done", "record", "wait", "sync", "to",
    "close", "__enter__", "__exit__", "__await__",
}  # fmt: skip
EVENT_NAMES = {"handle", "device", "done", "sync", "to", "close", "__sub__", "__await__"}


def explode(self, *arguments):
    raise AssertionError("something was evaluated")


def exploding(names):
    """A class with these names, all properties that must not be read."""
    body = dict.fromkeys(names, property(explode))
    return type("Exploding", (), {**body, "__getattr__": explode, "__bool__": explode})


def without(names, missing):
    return exploding(names - {missing})


def test_a_third_party_stream_is_one_without_being_read():
    assert isinstance(exploding(STREAM_NAMES)(), sk.Stream)


def test_a_third_party_event_is_one_without_being_read():
    assert isinstance(exploding(EVENT_NAMES)(), sk.Event)


@pytest.mark.parametrize("missing", sorted(STREAM_NAMES))
def test_an_object_that_lacks_one_name_is_no_stream(missing):
    assert not isinstance(without(STREAM_NAMES, missing)(), sk.Stream)


@pytest.mark.parametrize("missing", sorted(EVENT_NAMES))
def test_an_object_that_lacks_one_name_is_no_event(missing):
    assert not isinstance(without(EVENT_NAMES, missing)(), sk.Event)


@pytest.mark.parametrize("protocol", [sk.Stream, sk.Event])
def test_a_class_is_no_instance(protocol):
    for kind in (HostStream, CudaStream, HostEvent, CudaEvent, sk.Stream, sk.Event):
        assert not isinstance(kind, protocol)
    assert not isinstance(exploding(STREAM_NAMES | EVENT_NAMES), protocol)


@pytest.mark.parametrize("protocol", [sk.Stream, sk.Event])
@pytest.mark.parametrize("obj", [None, 5, "x", object(), (0, 64), {}])
def test_anything_else_is_no_instance(obj, protocol):
    assert not isinstance(obj, protocol)


def test_an_object_without_the_names_is_none_without_being_read():
    assert not isinstance(exploding({"x"})(), sk.Stream)
    assert not isinstance(exploding({"x"})(), sk.Event)


def test_names_of_the_instance_count_too():
    obj = type("Bag", (), {"__enter__": explode, "__exit__": explode})()
    assert not isinstance(obj, sk.Stream)
    vars(obj).update(dict.fromkeys(STREAM_NAMES))
    assert isinstance(obj, sk.Stream)


def test_an_object_that_answers_every_name_is_no_stream():
    answers = type("Answers", (), {"__getattr__": lambda self, name: None})()
    assert not isinstance(answers, sk.Stream)


def test_a_host_stream_is_one_before_and_after_close(stream):
    assert isinstance(stream, sk.Stream)
    stream.close()
    assert isinstance(stream, sk.Stream)


def test_a_host_event_is_one_before_and_after_close(stream):
    event = stream.record()
    assert isinstance(event, sk.Event)
    event.close()
    assert isinstance(event, sk.Event)


def test_a_stream_is_no_event_and_an_event_no_stream(stream):
    assert not isinstance(stream, sk.Event)
    assert not isinstance(stream.record(), sk.Stream)


def test_a_class_that_derives_from_stream_must_implement_every_member():
    class Incomplete(sk.Stream):
        pass

    with pytest.raises(TypeError, match="abstract"):
        Incomplete()


def test_of_a_class_that_derives_from_stream_nothing_else_is_an_instance(stream):
    class Other(sk.Stream):
        pass

    assert not isinstance(stream, Other)
    assert not isinstance(5, Other)


def test_the_names_that_are_looked_at_are_the_protocols_members():
    for protocol, names in ((sk.Stream, STREAM_NAMES), (sk.Event, EVENT_NAMES)):
        abstract = set(protocol.__abstractmethods__)
        assert abstract == names


def test_the_capabilities_are_checked_by_name(monkeypatch):
    class Partial:
        name, api = "x", 1

        def extract(self, obj): ...

    assert not isinstance(Partial(), protocols.Adapter)
    Partial.borrow = lambda self, queue: None
    assert isinstance(Partial(), protocols.Adapter)
    assert not isinstance(Partial(), protocols.CurrentStream)
    assert not isinstance(Partial(), protocols.Events)


def test_every_method_of_the_contract_is_documented():
    for protocol in (sk.Stream, sk.Event, protocols.Adapter, protocols.CurrentStream):
        for name in protocol.__abstractmethods__:
            assert inspect.getdoc(getattr(protocol, name)), f"{protocol.__name__}.{name}"


# -- capabilities of adapters -----------------------------------------------------------------

CAPABILITIES = [
    protocols.Arrays, protocols.BeginsCapture, protocols.BindsCurrent, protocols.CountsHolders,
    protocols.CurrentHere, protocols.CurrentStream, protocols.DefersFrees, protocols.Diagnoses,
    protocols.Events,
    protocols.ExplainsCapture, protocols.ExplainsKernels, protocols.GivesMemory,
    protocols.JoinsCapture, protocols.KnowsLoans,
    protocols.LocatesEvents, protocols.PoolsMemory, protocols.PreparesCapture,
    protocols.RecordsEvents, protocols.RecordsStreams, protocols.TakesMemory,
    protocols.TellsContext, protocols.TellsMemory,
]  # fmt: skip


@pytest.mark.parametrize("capability", CAPABILITIES, ids=lambda kind: kind.__name__)
def test_a_module_with_its_functions_has_a_capability(capability):
    adapter = types.ModuleType("adapter")
    for name in capability.__abstractmethods__:
        assert not isinstance(adapter, capability)
        setattr(adapter, name, print)
    assert isinstance(adapter, capability)
    assert [kind for kind in CAPABILITIES if isinstance(adapter, kind)] == [capability]
    setattr(adapter, name, None)  # as where this version of the library has no such call
    assert not isinstance(adapter, capability)
