"""``isinstance(x, Stream)`` looks at names and evaluates nothing."""

from __future__ import annotations

import inspect
import types

import pytest

import streamkit as sk
from streamkit import protocols
from streamkit.protocols import adapters as contract  # which function is in which group
from streamkit.protocols.adapters import GROUPS, functions, offered  # the same
from streamkit.types import CudaEvent, CudaStream, HostEvent, HostStream

pytestmark = pytest.mark.quick

STREAM_NAMES = {
    "handle", "device", "device_id", "id", "closed", "done", "record", "wait", "sync", "to",
    "submit", "then", "keep", "close", "__enter__", "__exit__", "__await__",
}  # fmt: skip
EVENT_NAMES = {"handle", "device", "done", "sync", "to", "close", "__sub__", "__await__"}


def explode(self, *arguments):
    raise AssertionError("something was evaluated")


def exploding(names):
    """A class with these names, all properties that must not be read."""
    body = dict.fromkeys(names, property(explode))
    return type("Exploding", (), {**body, "__getattr__": explode, "__bool__": explode})


LOOKED_AT = [(sk.Stream, STREAM_NAMES), (sk.Event, EVENT_NAMES)]


@pytest.mark.parametrize(("protocol", "names"), LOOKED_AT)
def test_a_third_partys_is_one_without_being_read(protocol, names):
    assert isinstance(exploding(names)(), protocol)


@pytest.mark.parametrize(
    ("protocol", "names", "missing"),
    [(protocol, names, one) for protocol, names in LOOKED_AT for one in sorted(names)],
)
def test_an_object_that_lacks_one_name_is_none(protocol, names, missing):
    assert not isinstance(exploding(names - {missing})(), protocol)


@pytest.mark.parametrize("protocol", [sk.Stream, sk.Event])
def test_a_class_is_no_instance(protocol):
    for kind in (HostStream, CudaStream, HostEvent, CudaEvent, sk.Stream, sk.Event):
        assert not isinstance(kind, protocol)
    assert not isinstance(exploding(STREAM_NAMES | EVENT_NAMES), protocol)


@pytest.mark.parametrize("protocol", [sk.Stream, sk.Event])
@pytest.mark.parametrize("obj", [None, 5, "x", object(), (0, 64), {}])
def test_anything_else_is_no_instance(obj, protocol):
    assert not isinstance(obj, protocol)


def test_names_of_the_instance_count_too():
    obj = type("Bag", (), {"__enter__": explode, "__exit__": explode})()
    assert not isinstance(obj, sk.Stream)
    vars(obj).update(dict.fromkeys(STREAM_NAMES))
    assert isinstance(obj, sk.Stream)


def test_an_object_that_answers_every_name_is_no_stream():
    answers = type("Answers", (), {"__getattr__": lambda self, name: None})()
    assert not isinstance(answers, sk.Stream)


@pytest.mark.parametrize("of", [lambda s: s, lambda s: s.record()], ids=["stream", "event"])
def test_a_host_stream_and_its_event_are_one_of_both_before_and_after_close(stream, of):
    one = of(stream)
    kind, other = (sk.Stream, sk.Event) if one is stream else (sk.Event, sk.Stream)
    assert isinstance(one, kind)
    assert not isinstance(one, other)
    one.close()
    assert isinstance(one, kind)


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
    for protocol in (sk.Stream, sk.Event, protocols.Adapter, *GROUPS):
        names = {*protocol.__abstractmethods__, *functions(protocol)}
        assert names, protocol
        for name in names:
            assert inspect.getdoc(getattr(protocol, name)), f"{protocol.__name__}.{name}"


# -- groups of functions of adapters -----------------------------------------------------------

REQUIRED = [group for group in GROUPS if group.__abstractmethods__]
OPTIONAL = [
    getattr(group, name)
    for group in GROUPS
    for name in functions(group)
    if name not in group.__abstractmethods__
]


@pytest.mark.parametrize("group", REQUIRED, ids=lambda group: group.__name__)
def test_a_module_with_the_required_functions_belongs_to_a_group(group):
    adapter = types.ModuleType("adapter")
    for name in group.__abstractmethods__:
        assert not isinstance(adapter, group)
        setattr(adapter, name, print)
    assert isinstance(adapter, group)
    assert [kind for kind in GROUPS if isinstance(adapter, kind)] == [group]
    setattr(adapter, name, None)  # as where this version of the library has no such call
    assert not isinstance(adapter, group)


@pytest.mark.parametrize("method", OPTIONAL, ids=lambda method: method.__qualname__)
def test_an_optional_function_is_offered_by_whom_has_it(method):
    adapter = types.ModuleType("adapter")
    assert offered(adapter, method) is None
    setattr(adapter, method.__name__, print)
    assert offered(adapter, method) is print
    assert contract.all_offered([adapter, object(), adapter], method) == [print, print]
    group = getattr(protocols, method.__qualname__.partition(".")[0])
    assert isinstance(adapter, group) == (group not in REQUIRED)
    setattr(adapter, method.__name__, None)
    assert offered(adapter, method) is None
    assert not isinstance(adapter, group)


def test_each_function_is_in_one_group_and_those_that_go_together_in_the_same():
    names = [name for group in GROUPS for name in functions(group)]
    assert len(names) == len(set(names)) <= 30, "what serves one library is that library's business"
    for together in contract.TOGETHER:
        assert any(set(together) <= set(functions(group)) for group in GROUPS)


def test_an_adapter_whose_class_is_derived_from_a_group_offers_only_what_it_has():
    class Mine(protocols.CurrentStream):
        def current(self, device): ...

        def bind(self, stream): ...

        def current_here(self):
            return 7

    class Other:
        def current(self, device): ...

        def bind(self, stream): ...

    adapter = Mine()
    assert isinstance(adapter, protocols.CurrentStream)
    assert offered(adapter, protocols.CurrentStream.current_here)() == 7
    assert offered(adapter, protocols.CurrentStream.current_context) is None
    assert isinstance(Other(), protocols.CurrentStream)
    assert isinstance(adapter, Mine)
    assert not isinstance(Other(), Mine)
