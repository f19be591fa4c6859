"""The errors: their tree, their words, and what they hold."""

from __future__ import annotations

import pickle
import re
import shlex

import pytest

import streamkit as sk
from streamkit import errors
from streamkit._cuda import devices, loader  # raised where no device is needed
from streamkit._queues import open_scopes, registry  # the same; each row has an install line
from streamkit._support import messages  # each message is looked at, however it is reached

TREE = {
    sk.errors.UnsupportedStreamError: TypeError,
    sk.errors.BackendNotInstalledError: ImportError,
    sk.errors.NoDeviceError: RuntimeError,
    sk.errors.DriverError: RuntimeError,
    sk.errors.StreamClosedError: ValueError,
    sk.errors.DeviceMismatchError: ValueError,
    sk.errors.ScopeError: RuntimeError,
    sk.errors.OneQueueError: AssertionError,
    sk.errors.RaceError: AssertionError,
    sk.errors.CaptureError: RuntimeError,
    sk.errors.ForkedProcessError: RuntimeError,
}


class Foreign:
    """Somebody's object, which must not be asked for its text."""

    def __repr__(self):
        raise AssertionError("the repr of a foreign object can wait for the device")


def raised(call, *arguments):
    """Return the error that a call raises."""
    with pytest.raises(Exception) as raised:  # noqa: PT011 - of any kind
        call(*arguments)
    return raised.value.with_traceback(None)


HOST = sk.new_stream("cpu", name="worker")
STRANGER = Foreign()  # one, whose address is in the messages: else their number is chance

# what each error must tell its reader to do, or with what it happened
OF_CAPTURES = {  # by CUDA's numbers, and of a handle
    400: "was destroyed",
    900: "do it before the capture",
    901: "has broken the capture",
    902: "cannot be joined",
    903: "on the stream on which it began",
    904: "has to be waited for by the one that began it",
    905: "work outside its capture",
    906: "legacy default stream",
    907: "was last recorded in a capture",
    908: "in the thread that began it",
}
WORDED = [
    (messages.not_a_stream(STRANGER), "__cuda_stream__"),
    (raised(sk.wrap_event, STRANGER), "new_event"),
    (raised(sk.from_handle, "x"), "wrap"),
    (raised(sk.from_handle, -1), "2**64"),
    (raised(devices.parse, "gpu"), "cuda:N"),
    (raised(registry.adapter, "jax"), "streamkit.backends"),
    (raised(lambda: sk.assert_one_queue(libraries=["numba"])), "s.to('numba')"),
    (messages.not_installed("lib", 'pip install "lib>=2"', "why"), 'pip install "lib>=2"'),
    (messages.no_device("why"), "new_stream(device='cpu')"),
    (errors.DriverError("cuInit", "CUDA_ERROR_UNKNOWN", 999), "CUDA_ERROR_UNKNOWN (999)"),
    *(
        (errors.DriverError("cuStreamEndCapture", "CUDA_ERROR_STREAM_CAPTURE", code), says)
        for code, says in OF_CAPTURES.items()
    ),
    (raised(loader._check_version, 11080), "CUDA 11.8"),
    (raised(loader._check_version, 11080), "update the NVIDIA driver"),
    (messages.forked(), "spawn"),
    (messages.of_parent(HOST), "worker"),
    (messages.of_parent(HOST), "spawn"),
    (messages.closed(HOST), "worker"),
    (messages.closed(HOST), "new one"),
    (messages.illegal_in_capture("a sync", HOST, "end it first."), "end it first."),
    (messages.device_mismatch(HOST, "cuda:1", "do this."), "do this."),
    (messages.wrong_thread(HOST, 11, 22), "default stream of thread 11; thread 22 has another"),
    (messages.wrong_thread(HOST, 11, 22), "default_stream(per_thread=True)"),
    (raised(open_scopes.leave, HOST), "reverse order"),
    (raised(open_scopes.leave, HOST), "worker"),
    (open_scopes._left_out_of_order("it was left", ["this", "that"]), "this; that"),
]
RAISED = list({str(error): error for error, _ in WORDED}.values())


@pytest.mark.parametrize(("error", "builtin"), TREE.items())
def test_each_error_is_ours_and_the_fitting_builtin(error, builtin):
    assert issubclass(error, sk.StreamKitError)
    assert issubclass(error, builtin)


def test_the_tree_has_no_other_members():
    assert set(sk.StreamKitError.__subclasses__()) == set(TREE)


@pytest.mark.parametrize(("error", "says"), WORDED)
def test_the_message_says_what_happened_and_what_to_do(error, says):
    assert says in str(error)


@pytest.mark.parametrize("error", RAISED, ids=lambda error: type(error).__name__)
def test_an_error_survives_pickling(error):
    copy = pickle.loads(pickle.dumps(error))  # noqa: S301 - our own bytes
    assert type(copy) is type(error)
    assert str(copy) == str(error)
    assert vars(copy) == vars(error)


def test_a_driver_error_carries_cudas_name_and_number():
    error = sk.errors.DriverError("cuInit", "CUDA_ERROR_UNKNOWN", 999)
    assert (error.call, error.name, error.code) == ("cuInit", "CUDA_ERROR_UNKNOWN", 999)


def test_a_missing_library_is_named_as_import_errors_name_it():
    assert messages.not_installed("lib", "pip install lib", "why").name == "lib"


@pytest.mark.parametrize("error", RAISED, ids=lambda error: type(error).__name__)
def test_an_error_holds_text_and_numbers_only(error):
    held = [*error.args, *vars(error).values()]
    assert held
    assert all(isinstance(value, (str, int)) for value in held)


def test_a_raised_error_keeps_no_stream_alive(stream):
    stream.close()
    with pytest.raises(sk.errors.StreamClosedError) as raised:
        stream.record()
    error = raised.value.with_traceback(None)
    held = [*error.args, *vars(error).values(), error.__cause__]
    assert not any(isinstance(value, sk.Stream) for value in held)


def test_a_bool_is_not_advised_to_be_a_handle():
    assert "from_handle" not in str(messages.not_a_stream(True))


@pytest.mark.parametrize(
    ("obj", "told"),
    [
        ((0, STRANGER), r"\(0, <.*Foreign object at .*>\)"),
        ((1, 2, 3, 4, "unseen"), r"\(1, 2, 3, 4\)"),
        ("x" * 118, "'x{118}'"),
        ("x" * 119, r"'x{116}\.\.\."),  # 120 characters
        (type("Nameless", (), {"__module__": None})(), ".*Nameless.*"),
    ],
)
def test_an_object_is_named_in_one_line_of_no_great_length(obj, told):
    assert re.fullmatch(told, messages.describe(obj))


def test_every_install_line_is_one_pip_understands():
    """And none needs StreamKit itself from an index."""
    assert registry.LIBRARIES
    for row in registry.LIBRARIES:
        for major in (12, 13):
            _, what, *options = shlex.split(row.install_line(major).removeprefix("pip "))
            assert re.fullmatch(r"[a-z0-9-]+(\[cu\d\d\])?([<>=]{2}[\d.]+(,<[\d.]+)?)?", what), what
            assert not what.startswith("streamkit")
            assert not options or options[0].startswith(("--index-url", "cuda-"))
