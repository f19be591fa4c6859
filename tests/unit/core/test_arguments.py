"""What is misspelled or mistaken is refused where it is written, with what to write instead."""

from __future__ import annotations

import collections
import copy
import gc
import inspect
import pickle
import re
import threading
import types
import weakref
from decimal import Decimal

import numpy as np
import pytest

import streamkit as sk
from streamkit.backends import names  # the one table of them
from streamkit.errors import UnsupportedStreamError
from streamkit.testing import adversarial, for_seeds
from streamkit.types import CudaEvent, CudaStream, HostEvent, HostStream
from support.later_functions import RUN_NOTHING, returns_a_coroutine
from support.programs import run_python

pytestmark = pytest.mark.quick

BAD_TYPES = ["a", b"1", True, [], object()]
BAD_VALUES = [-1, -0.5, float("nan"), float("-inf"), np.float64("nan"), Decimal("nan")]
LONG_ENOUGH = [None, 60, 60.0, float("inf"), np.float32(60), np.int64(60), 10**400]


def waits(stream):
    """Each call that takes a timeout, and what it names."""
    event, future = stream.record(), stream.then(int)
    return {
        "HostStream": stream.sync,
        "HostEvent": event.sync,
        "Outcome": future.result,
        "Outcome at": future.exception,
    }


@pytest.fixture(params=["HostStream", "HostEvent", "Outcome", "Outcome at"])
def wait(request, stream):
    return request.param.removesuffix(" at"), waits(stream)[request.param]


@pytest.mark.parametrize("timeout", BAD_TYPES, ids=lambda bad: type(bad).__name__)
def test_a_timeout_of_a_wrong_type_is_refused_at_the_call(wait, timeout):
    named, wait = wait
    with pytest.raises(TypeError, match=rf"{named}.* a timeout is .*seconds.*None"):
        wait(timeout=timeout)


@pytest.mark.parametrize("timeout", BAD_VALUES, ids=repr)
def test_a_negative_timeout_and_nan_are_refused_at_the_call(wait, timeout):
    named, wait = wait
    with pytest.raises(ValueError, match=rf"{named}.* a timeout is .*seconds.*None"):
        wait(timeout=timeout)


@pytest.mark.parametrize("timeout", LONG_ENOUGH, ids=lambda value: str(value)[:9])
@pytest.mark.parametrize("name", ["HostStream", "HostEvent", "Outcome", "Outcome at"])
def test_any_other_number_of_seconds_is_taken_while_busy(stream, hold, name, timeout):
    gate = hold(stream)
    wait, opener = waits(stream)[name], threading.Timer(0.02, gate.open)
    opener.start()
    wait(timeout=timeout)
    opener.join()
    stream.sync()


def test_a_future_of_an_engine_refuses_a_bad_timeout_too():
    with adversarial(1):
        future = sk.new_stream("cpu").then(int)
        for wait in (future.result, future.exception):
            with pytest.raises(ValueError, match="a timeout is"):
                wait(-1)
        assert future.result(5) == 0


@pytest.mark.parametrize("fn", [5, None, "print", []], ids=repr)
@pytest.mark.parametrize("method", ["submit", "then"])
def test_what_cannot_be_called_is_refused_at_the_call(stream, method, fn):
    match = rf"^{method} of .*HostStream 's' .*needs a function.*given .*s\.{method}\(fn, x\)"
    with pytest.raises(TypeError, match=match):
        getattr(stream, method)(fn)
    stream.sync()  # nothing was queued


def test_a_program_for_all_seeds_is_something_to_call():
    match = r"for_seeds needs a function, .* given 5.*for_seeds\(program"
    with pytest.raises(TypeError, match=match):
        for_seeds(5)


@pytest.mark.parametrize("name", ["jax", "", 5, None, ["torch"]], ids=repr)
def test_an_unknown_library_is_named_on_a_host_stream_too_and_not_guessed_at(stream, name):
    for to in (stream.to, stream.record().to):
        with pytest.raises(UnsupportedStreamError, match=r"no adapter for[^:]*\. Known: .*torch"):
            to(name)


def test_a_library_that_is_known_is_none_for_the_host(stream):
    for to in (stream.to, stream.record().to):
        for name in ("torch", "cupy", "warp", "cuda.core"):
            with pytest.raises(UnsupportedStreamError, match="lives on the host"):
                to(name)


# -- the names of other libraries -----------------------------------------------------------------

PROMISED = {
    "synchronize": "s.sync()",
    "query": "s.done",
    "wait_stream": "s.wait(t)",
    "record_event": "s.record(e)",
    "ptr": "s.handle",
    "cuda_stream": "s.handle",
}
EVENT_NAMES, PACKAGE_NAMES = names.answers("event"), names.answers("package")
NAMES = [
    (kind, *pair) for kind in (HostStream, CudaStream) for pair in names.answers("stream").items()
]
NAMES += [(kind, *pair) for kind in (HostEvent, CudaEvent) for pair in EVENT_NAMES.items()]


def test_the_names_that_are_promised_are_answered():
    assert names.answers("stream").items() >= PROMISED.items()
    assert EVENT_NAMES["elapsed_time"] == "end - start"
    assert PACKAGE_NAMES["CUDAGraph"] == "with sk.capture() as g:"


def test_no_name_has_two_answers():
    answers = collections.defaultdict(set)
    for row in names.rows():
        for name in row.answered.split():
            answers[name].add(row.ours)
    assert {name: lines for name, lines in answers.items() if len(lines) > 1} == {}
    assert len(answers) > 50


@pytest.mark.parametrize(("kind", "theirs", "line"), NAMES)
def test_another_librarys_name_is_answered_with_the_line_and_not_found(kind, theirs, line):
    one = kind.__new__(kind)  # without a device
    with pytest.raises(AttributeError) as raised:
        getattr(one, theirs)
    assert f"{kind.__name__!r} object has no attribute {theirs!r}" in str(raised.value)
    assert f"write '{line}' instead" in str(raised.value)
    with pytest.raises(AttributeError, match=kind.__name__):
        getattr(kind, theirs)
    assert theirs not in dir(one)
    assert theirs not in dir(kind)


@pytest.mark.parametrize("theirs", PACKAGE_NAMES)
def test_the_package_answers_another_librarys_name_with_the_line(theirs):
    with pytest.raises(AttributeError) as raised:
        getattr(sk, theirs)
    assert f"'streamkit' has no attribute {theirs!r}" in str(raised.value)
    assert f"write '{PACKAGE_NAMES[theirs]}' instead" in str(raised.value)
    assert not hasattr(sk, theirs)
    assert theirs not in dir(sk)


def test_the_package_answers_no_name_that_it_has():
    assert names.answers("package").keys().isdisjoint(sk.__all__)


@pytest.mark.parametrize(
    ("interface", "instead"),
    [
        (sk.Stream, r"streamkit\.new_stream\(\).*streamkit\.wrap\(obj\)"),
        (sk.Event, r"streamkit\.new_event\(\).*streamkit\.wrap_event\(obj\)"),
        (sk.types.Graph, r"with streamkit\.capture\(\) as graph:"),
    ],
)
@pytest.mark.parametrize("arguments", [{}, {"priority": -1}])
def test_an_interface_that_is_called_says_what_makes_such_an_object(interface, instead, arguments):
    with pytest.raises(TypeError, match=rf"streamkit\.{interface.__name__} is .*{instead}"):
        interface(**arguments)


def test_a_class_that_implements_an_interface_is_made_as_any_other():
    body = dict.fromkeys(sk.Stream.__abstractmethods__, lambda self: None)
    kind = type(sk.Stream)("Mine", (sk.Stream,), body)
    assert isinstance(kind(), sk.Stream)


# -- arguments that others would take -------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "instead"),
    [
        (lambda s: sk.follow(len), r"not .*function.*@streamkit\.follow\('torch'\)"),
        (lambda s: sk.share([1]), r"\[1\] is not an array, .* GPU.*pickle"),
        (lambda s: sk.share(np.ones(1)), r"is on the host: .*pickle"),
    ],
)
def test_a_guess_at_the_arguments_is_answered_with_the_line(stream, reported, call, instead):
    with pytest.raises(TypeError, match=instead):
        call(stream)
    gc.collect()
    assert reported == []  # what could not be made does not speak up when it goes


@pytest.mark.parametrize("call", [sk.use, sk.follow])
def test_a_call_without_arguments_is_pythons_own_error_alone(reported, call):
    with pytest.raises(TypeError, match="missing 1 required positional argument"):
        call()
    gc.collect()
    assert reported == []


def test_an_async_function_is_refused_by_graphed_with_what_to_write():
    async def step(x):
        return x

    match = r"graphed cannot capture .*step, which is an async function.*@streamkit\.graphed"
    with pytest.raises(TypeError, match=match):
        sk.graphed(step)


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("pytorch", "torch"), ("PyTorch", "torch"), ("Torch", "torch"), ("cuppy", "cupy"),
        ("warp-lang", "warp"), ("apache-tvm-ffi", "tvm_ffi"), ("numba_cuda", "numba"),
        ("cuda_core", "cuda.core"),
    ],
)  # fmt: skip
def test_the_library_that_is_meant_is_named(stream, name, meant):
    with pytest.raises(UnsupportedStreamError, match=rf"adapter for {name!r}: write '{meant}'"):
        stream.to(name)


def test_the_names_and_attributes_stay_usable_for_a_class_that_derives():
    class Mine(HostStream):
        def synchronize(self):
            self.sync()

    mine = Mine()
    mine.synchronize()
    mine.foo = 1
    assert mine.foo == 1
    assert "synchronize" in dir(Mine)
    assert "synchronize" in dir(Mine())
    assert "query" not in dir(Mine())


# -- attributes -----------------------------------------------------------------------------------

KINDS = [HostStream, CudaStream, HostEvent, CudaEvent]


@pytest.mark.parametrize("kind", KINDS)
def test_no_attribute_can_be_set(kind):
    one = kind.__new__(kind)  # without a device
    for name in ("foo", "handle", "sync", "synchronize"):
        with pytest.raises(AttributeError, match=name):
            setattr(one, name, 1)
        with pytest.raises(AttributeError):
            delattr(one, name)
    assert not hasattr(one, "__dict__")
    assert weakref.ref(one)() is one


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, pickle.dumps])
def test_a_copy_is_refused_as_before(stream, copied):
    for one in (stream, stream.record()):
        with pytest.raises(TypeError, match="cannot be copied or pickled"):
            copied(one)


@RUN_NOTHING
@pytest.mark.parametrize("method", ["submit", "then"])
def test_a_function_whose_call_runs_nothing_is_refused_at_the_call(stream, method, fn, kind):
    with pytest.raises(TypeError, match=rf"^{method} of .*HostStream.* is {kind}: .*await s"):
        getattr(stream, method)(fn)


def test_a_coroutine_that_a_submitted_function_returns_is_its_error(stream):
    stream.submit(returns_a_coroutine)
    with pytest.raises(TypeError, match=r"^returns_a_.* returned .*, asynchronous, .*awaited"):
        stream.sync()


# -- what users of other libraries write first -----------------------------------------------------

GUESSES = {
    "sk.wrap('cuda:0')": "which is a name and no stream. streamkit.new_stream(device) makes",
    "sk.use('torch')": "streamkit.current_stream(library) gives that of a library",
    "sk.use(s, libraries=pickle)": "no adapter for the module pickle",
    "sk.current_stream(torchlike)": "no adapter for the module torch: write 'torch'",
    "sk.follow(s)": "To work on a stream, write 'with streamkit.use(stream):'",
    "sk.use(s)(len)": "streamkit.use is not a decorator: write 'with streamkit.use(stream):'",
    "sk.wrap(x)": "streamkit.current_stream(of=x) gives the stream of its library",
    "sk.handoff(s, x)": "an array comes before its stream in streamkit.handoff(x, stream)",
    "sk.current_stream(x)": "write streamkit.current_stream(of=...)",
    "sk.record()": "has no attribute 'record': a stream has it, as in 's.record'.",
    "sk.sync": "a stream has it, as in 's.sync'.",
    "sk.current_stream(0)": "0 needs the name of its argument: write streamkit.current_stream(",
    "sk.current_stream('cuda:0')": "write streamkit.current_stream(device=...).",
    "s.to('cuda:0')": "no adapter for 'cuda:0', which is a device. Known: ",
    "s.record(t)": "takes an event, not <streamkit.HostStream 't'",
    "s.record(x)": "is neither a host stream nor an event of one",
    "s.context": "lives on the host and has no context, which only CUDA has.",
    "s.handle": "lives on the host and has no handle, which only CUDA has.",
}


@pytest.mark.parametrize("line", GUESSES)
def test_a_guess_is_answered_with_what_to_write(line):
    torchlike = types.ModuleType("torch")
    names = {"sk": sk, "pickle": pickle, "torchlike": torchlike, "x": np.zeros(3)}
    names |= {"s": sk.new_stream("cpu"), "t": sk.new_stream("cpu", name="t")}
    with pytest.raises((TypeError, AttributeError)) as raised:
        eval(line, names)  # noqa: S307 - ours
    assert GUESSES[line] in str(raised.value)


def test_a_signature_shows_only_what_a_user_may_write():
    calls = [getattr(sk, name) for name in sk.__all__ if inspect.isfunction(getattr(sk, name))]
    calls += [sk.use, sk.follow, *map(HostStream.__dict__.get, ("record", "wait", "sync"))]
    texts = [f"{call.__name__}{inspect.signature(call)}" for call in calls]
    assert len(texts) > 20
    assert not [text for text in texts if re.search(r"Never|\*_|enable_timing|misplaced", text)]


def test_a_near_name_is_suggested_where_a_program_ends():
    ended = run_python("-c", "import streamkit\nstreamkit.new_Stream")
    assert "Did you mean: 'new_stream'?" in ended.stderr


def test_help_begins_with_the_purpose_and_the_functions():
    text = sk.__doc__.replace("\n", " ")
    functions = {name for name in sk.__all__ if not isinstance(getattr(sk, name), type)}
    assert functions - {"StreamLike"} | {"use", "follow"} <= set(text.split())
    assert "docs/index.md" in text


def test_a_name_that_nothing_has_is_plainly_absent(stream):
    with pytest.raises(AttributeError, match=r"no attribute 'foo'$"):
        _ = stream.foo
    for name in ("no_such_name", "__wrapped__", "_queue", "register", "mro"):
        with pytest.raises(
            AttributeError, match=rf"^module 'streamkit' has no attribute '{name}'$"
        ):
            getattr(sk, name)


def test_times_that_are_not_there_yet_name_the_call_that_is_missing(stream, hold):
    start, end = (sk.new_event(device="cpu", timing=True) for _ in range(2))
    stream.record(start).sync()
    for one, other in ((end, start), (start, end)):
        with pytest.raises(
            ValueError, match=r"unrecorded.*yet: record it, and call its sync\(\) first$"
        ):
            one - other
    gate = hold(stream)
    stream.record(end)
    with pytest.raises(ValueError, match=r"pending.*yet: call its sync\(\) first$"):
        end - start
    gate.open()
    end.sync()
    assert end - start >= 0
