"""Broken copies of the plugin's adapter, and the checks of the conformance kit that find them.

Each copy is a toy library of its own with an entry point, so that one process can try them all.
"""

from __future__ import annotations

import json
from pathlib import Path

from support.programs import python

SOURCE = Path(__file__).parents[1] / "plugin/src"

# This replaces the plugin's ``bind``, and adds events and a setting, so that more can be wrong.
COMPLETE = """

import ctypes
import weakref
from cuda.bindings import driver
from streamkit.protocols import Settings


def settings():
    return Settings(("mode",), lambda: ("slow",))


def enter(stream):
    return toylib.set_current_stream(stream)


def leave(token):
    toylib.set_current_stream(token)


def bind(stream):
    return Binding(
        toylib.current_stream,
        lambda before: enter(stream),
        leave,
        lambda: toylib.current_stream() is stream,
        lambda: toylib.set_current_stream(stream),
        told_outside=True,
    )


class Event:
    def __init__(self, number, keeps):
        self.number = number
        self.keeps = keeps


class Raw:
    def __init__(self):
        code, self.event = driver.cuEventCreate(0)
        assert not code, code
        weakref.finalize(self, driver.cuEventDestroy, self.event).atexit = False


def record(stream):
    raw = Raw()
    (code,) = driver.cuEventRecord(raw.event, stream.number)
    assert not code, code
    return Event(int(raw.event), raw)


def event_handle(event):
    if not isinstance(event, Event):
        raise UnsupportedStreamError(f"{event!r} is no toylib event")
    return event.number


def borrow_event(handle, device, owner):
    return Event(handle, owner)


kept = []


def other_event():
    kept.append(Raw())
    return int(kept[-1].event)


def work(stream):
    function = driver.CUhostFn(ctypes.cast(ctypes.CDLL(None).getpid, ctypes.c_void_p).value)
    (code,) = driver.cuLaunchHostFunc(stream, function, 0)
    assert not code, code


def order(first, later):
    (code,) = driver.cuEventRecord(event := other_event(), first.number)
    assert not code, code
    (code,) = driver.cuStreamWaitEvent(later.number, event, 0)
    assert not code, code
"""

READ = "    return Queue(obj.number, None, obj)"
CHECK = 'if not isinstance(obj, getattr(toylib, "Stream", ())):'
REFUSE = 'raise UnsupportedStreamError(f"{obj!r} is no toylib stream")'
BUILD = "    return toylib.Stream(queue.handle, keeps=queue)"
ENTER = "    return toylib.set_current_stream(stream)"
LEAVE = "    toylib.set_current_stream(token)"
BOUND = """        lambda before: enter(stream),
        leave,
        lambda: toylib.current_stream() is stream,
        lambda: toylib.set_current_stream(stream),
"""
BOUND_SAVE = "        toylib.current_stream,\n" + BOUND
READ_EVENT = "    return event.number"
SETTINGS = '    return Settings(("mode",), lambda: ("slow",))'
BUILD_EVENT = "    return Event(handle, owner)"

OWN_DEVICE = """kept = []
def own_device():
    from streamkit.protocols import OwnDevice
    return OwnDevice(lambda: 0, {restore})
"""

# what is wrong -> (old code, new code, the checks that must find it)
MUTANTS = {
    "another name": ('name = "toylib"', 'name = "toy"', ["contract"]),
    "half of what goes together": (
        "kept = []", "kept = []\ndef copy_array(to, source, stream):\n    pass", ["contract"]),
    "a misspelled function": (
        "kept = []", "kept = []\ndef current_hear():\n    return 0", ["contract"]),
    "reads what merely looks like its own": (
        CHECK, "if not hasattr(obj, '__cuda_stream__') and not hasattr(obj, 'number'):",
        ["refuses_strangers"],
    ),
    "reads any stream of the protocol": (
        CHECK,
        (
            "known = 'number' if isinstance(obj, toylib.Stream) else '__cuda_stream__'\n"
            "    if isinstance(obj, type) or not hasattr(obj, known):"
        ),
        ["refuses_strangers"],
    ),
    "takes any stranger": (REFUSE, "return Queue(1, None, obj)", ["refuses_strangers"]),
    "refuses with another error": (REFUSE, "raise ValueError(obj)", ["refuses_strangers"]),
    "wrong handle": (
        READ, "    return Queue(1, None, obj)",
        ["extract_reads_handle", "round_trip", "borrow_is_genuine", "wait_orders"],
    ),
    "handle is no int": (READ, "    return Queue(float(obj.number), None, obj)",
        ["extract_reads_handle"]),
    "wrong device": (READ, "    return Queue(obj.number, 1, obj)", ["extract_reads_handle"]),
    "forgets the owner": (READ, "    return Queue(obj.number)", ["extract_keeps_alive"]),
    "remembers what it read": (READ, "    kept.append(obj)\n" + READ, ["extract_lets_go"]),
    "remembers the first time that it reads a stream": (
        READ, "    if obj not in kept:\n        kept.append(obj)\n" + READ, ["extract_lets_go"],
    ),
    "asks the driver for the stream's id": (
        READ, "    driver.cuStreamGetId(obj.number)\n" + READ, ["extract_touches_no_queue"]),
    "asks the driver for the flags of what it builds on": (
        BUILD, "    driver.cuStreamGetFlags(queue.handle)\n" + BUILD,
        ["borrow_touches_no_queue"],
    ),
    "asks whether the stream is idle": (
        READ, "    driver.cuStreamQuery(obj.number)\n" + READ, ["extract_touches_no_queue"]),
    "waits for the device when it reads": (
        READ, "    driver.cuCtxSynchronize()\n" + READ, ["extract_touches_no_queue"]),
    "gives work to what it reads": (
        READ, "    work(obj.number)\n" + READ,
        ["extract_touches_no_queue"],
    ),
    "gives work to what it builds on": (
        BUILD, "    work(queue.handle)\n" + BUILD,
        ["borrow_touches_no_queue"],
    ),
    "blocks until the queue that it builds on is idle": (
        BUILD, "    driver.cuStreamSynchronize(queue.handle)\n" + BUILD,
        ["borrow_touches_no_queue", "borrow_does_not_block"],
    ),
    "blocks until the device is idle": (
        BUILD,
        (
            "    mode = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED\n"
            "    _, mode = driver.cuThreadExchangeStreamCaptureMode(mode)\n"
            "    if not int(driver.cuStreamIsCapturing(queue.handle)[1]):\n"
            "        driver.cuCtxSynchronize()\n"
            "    driver.cuThreadExchangeStreamCaptureMode(mode)\n" + BUILD
        ),
        ["borrow_does_not_block"],
    ),
    "refuses derived classes": (
        CHECK, 'if type(obj) is not getattr(toylib, "Stream", ()):', ["extract_accepts_subclasses"],
    ),
    "says that all streams are of the first device": (
        READ, "    return Queue(obj.number, 0, obj)", ["other_device"]),
    "has one current stream for all devices": (
        "    return toylib.current_stream()\n",
        (
            "    if device:\n"
            "        driver.cuCtxPushCurrent(driver.cuDevicePrimaryCtxRetain(0)[1])\n"
            "        kept.append(toylib.Stream(int(driver.cuStreamCreate(1)[1])))\n"
            "        driver.cuCtxPopCurrent()\n"
            "        return kept[-1]\n"
            "    return toylib.current_stream()\n"
        ),
        ["other_device"],
    ),
    "builds another class": (
        BUILD, "    return type('Imitation', (), vars(toylib.Stream(queue.handle, queue)))()",
        ["borrow_is_genuine"],
    ),
    "builds on another queue": (BUILD, "    return toylib.Stream(1, keeps=queue)",
        ["borrow_is_genuine"]),
    "what it builds keeps nothing": (BUILD, "    return toylib.Stream(queue.handle)",
        ["borrow_keeps_owner"]),
    "remembers what it built": (BUILD, "    kept.append(queue)\n" + BUILD, ["borrow_lets_go"]),
    "what it builds destroys the stream": (
        BUILD,
        (
            "    stream = toylib.Stream(queue.handle, keeps=queue)\n"
            "    weakref.finalize(stream, driver.cuStreamDestroy, queue.handle)\n"
            "    return stream"
        ),
        ["borrow_lets_go"],
    ),
    "mistakes the default streams": (
        BUILD, "    return toylib.Stream({1: 2, 2: 1}.get(queue.handle, queue.handle), queue)",
        ["borrow_default_streams"],
    ),
    "refuses the legacy default stream": (
        BUILD, "    if queue.handle == 1:\n        raise UnsupportedStreamError('no')\n" + BUILD,
        ["borrow_default_streams"],
    ),
    "shows a handle for a stream": (
        "    return toylib.current_stream()\n", "    return toylib.current_stream().number\n",
        ["current_is_its_own"],
    ),
    "does not move": (ENTER, "    return toylib.current_stream()",
        ["enter_moves_and_leave_restores", "scope_restores_after_an_error"]),
    "restores the default stream": (LEAVE, "    toylib.set_current_stream(toylib.Stream(0))",
        ["enter_moves_and_leave_restores", "scope_restores_after_an_error"]),
    "restores an imitation": (
        LEAVE, "    toylib.set_current_stream(toylib.Stream(token.number, token.keeps))",
        ["enter_moves_and_leave_restores"],
    ),
    "remembers only the first": (
        BOUND_SAVE, "        lambda: kept.append(toylib.current_stream()) or kept[0],\n" + BOUND,
        ["enter_moves_and_leave_restores"],
    ),
    "does not enter what it built": (
        ENTER,
        "    if isinstance(stream.keeps, Queue):\n        return toylib.current_stream()\n" + ENTER,
        ["enter_takes_borrowed_streams"],
    ),
    "leaves what was current for the default stream": (
        BOUND,
        BOUND.replace(
            "leave,", "lambda token: leave(toylib.Stream(0) if token is stream else token),"
        ),
        ["enter_moves_and_leave_restores"],
    ),
    "moves all threads": (
        "kept = []",
        (
            "kept = []\n"
            "toylib._current = type('Current', (), {'stream': toylib.current_stream()})()"
        ),
        ["threads_keep_their_stream"],
    ),
    "enter orders": (ENTER, "    order(toylib.current_stream(), stream)\n" + ENTER,
        ["enter_adds_no_wait"]),
    "leave orders": (LEAVE, "    order(toylib.current_stream(), token)\n" + LEAVE,
        ["enter_adds_no_wait"]),
    "keeps what it has entered": (
        ENTER, "    kept.append(stream)\n" + ENTER, ["enter_lets_go"]),
    "keeps what it has prepared": (
        "def bind(stream):\n    return Binding(",
        "def bind(stream):\n    kept.append(stream)\n    return Binding(", ["enter_lets_go"],
    ),
    "blocks the host when it enters a stream for the first time": (
        ENTER,
        (
            "    if stream not in kept:\n"
            "        kept.append(stream)\n"
            "        driver.cuStreamSynchronize(toylib.current_stream().number)\n" + ENTER
        ),
        ["enter_adds_no_wait"],
    ),
    "blocks the host when it prepares a stream": (
        "def bind(stream):\n    return Binding(",
        (
            "def bind(stream):\n    driver.cuStreamSynchronize(toylib.current_stream().number)\n"
            "    return Binding("
        ),
        ["enter_adds_no_wait"],
    ),
    "enter blocks the host": (
        ENTER, "    driver.cuStreamSynchronize(toylib.current_stream().number)\n" + ENTER,
        ["enter_adds_no_wait"],
    ),
    "leave blocks the host": (
        LEAVE, "    driver.cuStreamSynchronize(toylib.current_stream().number)\n" + LEAVE,
        ["enter_adds_no_wait"],
    ),
    "another current stream here": (
        "kept = []", "kept = []\ndef current_here():\n    return toylib.Stream(2)",
        ["current_is_its_own"],
    ),
    "moves to a device of its own": (
        "kept = []",
        OWN_DEVICE.format(restore="driver.cuCtxSetCurrent"),
        ["current_is_its_own"],
    ),
    "another current context": (
        "kept = []", "kept = []\ndef current_context():\n    return 7", ["current_is_its_own"],
    ),
    "bind without current": ("def current(", "def currently(", ["contract"]),
    "traits of its own": ("kept = []", "kept = []\ntraits = {}", ["contract"]),
    "what bind prepared does not move": (
        BOUND, BOUND.replace("enter(stream)", "toylib.current_stream()"),
        ["enter_moves_and_leave_restores"],
    ),
    "what bind prepared orders": (
        BOUND, BOUND.replace("enter(", "order(toylib.current_stream(), stream) or enter("),
        ["enter_adds_no_wait"],
    ),
    "is always current": (
        BOUND, BOUND.replace("toylib.current_stream() is stream", "True"),
        ["bound_is_current_agrees"],
    ),
    "is never current": (
        BOUND, BOUND.replace("toylib.current_stream() is stream", "False"),
        ["bound_is_current_agrees"],
    ),
    "tells outside what it does not know": (
        BOUND,
        (
            "        lambda before: kept.append(stream) or enter(stream),\n"
            "        lambda token: leave(token) or (kept and kept.pop()),\n"
            "        lambda: kept[-1:] == [stream],\n"
            "        lambda: toylib.set_current_stream(stream),\n"
        ),
        ["bound_told_outside_is_the_threads"],
    ),
    "save moves": (
        BOUND_SAVE, "        lambda: enter(stream),\n" + BOUND,
        ["bound_leave_restores_at_any_moment"],
    ),
    "leaves once": (
        BOUND,
        BOUND.replace(
            "leave,",
            "lambda token: leave(stream if token in kept else kept.append(token) or token),",
        ),
        ["bound_leave_restores_at_any_moment"],
    ),
    "loses the device": (
        BOUND, BOUND.replace("enter(", "driver.cuCtxSetCurrent(0) and enter("),
        ["bound_keeps_device"],
    ),
    "loses the device when it moves back": (
        BOUND,
        BOUND.replace(
            "toylib.set_current_stream(stream)",
            "driver.cuCtxSetCurrent(0) and toylib.set_current_stream(stream)",
        ),
        ["bound_keeps_device"],
    ),
    "does not move back": (
        BOUND, BOUND.replace("toylib.set_current_stream(stream)", "None"),
        ["bound_set_current_remembers_nothing"],
    ),
    "remembers moving back": (
        BOUND,
        BOUND.replace(
            "leave", "lambda token: toylib.set_current_stream(*kept[-1:] or [token])"
        ).replace(
            "toylib.set_current_stream(stream)", "kept.append(toylib.set_current_stream(stream))"
        ),
        ["bound_set_current_remembers_nothing"],
    ),
    "no event handle": (READ_EVENT, "    return 0", ["event_handle_is_live"]),
    "another event": (READ_EVENT, "    return other_event()",
        ["event_handle_is_live", "event_orders"]),
    "wrong event device": (
        "kept = []", "kept = []\ndef event_device(event):\n    return 1", ["event_handle_is_live"]),
    "reads what is no event": ("if not isinstance(event, Event):", "if event is None:",
        ["event_handle_refuses_strangers"]),
    "what it builds keeps no event": (BUILD_EVENT, "    return Event(handle, None)",
        ["borrowed_event_keeps_owner"]),
    "remembers the events it built": (BUILD_EVENT, "    kept.append(owner)\n" + BUILD_EVENT,
        ["borrowed_event_lets_go"]),
    "what it builds destroys the event": (
        BUILD_EVENT,
        (
            "    event = Event(handle, owner)\n"
            "    weakref.finalize(event, driver.cuEventDestroy, handle)\n"
            "    return event"
        ),
        ["borrowed_event_lets_go"],
    ),
    "settings without a name": (SETTINGS, "    return Settings((), lambda: ())",
        ["settings_are_read"]),
    "more settings than names": (
        SETTINGS, '    return Settings(("mode",), lambda: ("slow", 2))', ["settings_are_read"]),
    "settings that cannot be hashed": (
        SETTINGS, '    return Settings(("mode",), lambda: (["slow"],))', ["settings_are_read"]),
    "a setting that is never the same": (
        SETTINGS, '    return Settings(("mode",), lambda: (object(),))', ["settings_are_read"]),
    "settings that are read with a wait": (
        SETTINGS,
        '    return Settings(("mode",), lambda: (int(driver.cuCtxSynchronize()[0]) and "slow",))',
        ["settings_touch_no_queue"],
    ),
    "settings without names for them": (
        SETTINGS, '    return (("mode",), lambda: ("slow",))',
        ["settings_are_read", "settings_touch_no_queue"],
    ),
    "builds on another event": (BUILD_EVENT, "    return Event(other_event(), owner)",
        ["borrowed_event_lets_go"]),
}  # fmt: skip

RUN = """
import importlib, json, sys
from streamkit import testing
from streamkit.testing import _gate  # how long a gate waits in vain
from support.conformance_cases import RawStream

_gate.LIMIT = 2  # seconds, of which those that block the host need some
found = {}
for name, expected in NAMES.items():
    library, adapter = importlib.import_module(name), importlib.import_module("streamkit_" + name)

    def make_stream():
        raw = RawStream()
        return library.Stream(int(raw.stream), keeps=raw)

    found[name] = failed = {}
    for check in testing.checks(
        name, make_stream, make_event=adapter.record, handle_of=lambda stream: stream.number
    ):
        if expected and check.name not in expected:
            continue
        try:
            reason = check()
        except Exception as error:
            failed[check.name] = f"{type(error).__name__}: {error}"
        else:
            # a machine with one device has no other one
            skips = check.name == "other_device"
            assert reason is None or failed or skips, (check.name, reason)
    for module in (name, "streamkit_" + name):
        del sys.modules[module]
print(json.dumps(found))
"""


REFUSE_PER_THREAD = "    if queue.handle == 2:\n        raise UnsupportedStreamError('no')\n"
ENTERED = [
    "enter_moves_and_leave_restores",
    "enter_takes_borrowed_streams",
    "scope_restores_after_an_error",
    "threads_keep_their_stream",
    "enter_adds_no_wait",
    "bound_leave_restores_at_any_moment",
]
RIGHT = {
    "unchanged": (READ, READ, []),  # [] for every check
    "with enter and leave instead of bind": ("def bind(", "def _bind(", ENTERED),
    "with a current device of its own": (
        "kept = []", OWN_DEVICE.format(restore="bool"), ["current_is_its_own"],
    ),
    "without streams on the per-thread default queue": (
        BUILD, REFUSE_PER_THREAD + BUILD, ["borrow_default_streams"],
    ),
}  # fmt: skip
"""As ``MUTANTS``, adapters that must pass the checks."""


def run_kit(
    path: Path, mutants: dict[str, tuple[str, str, list[str]]]
) -> dict[str, dict[str, str]]:
    """Run the kit on the adapters that are right, and on each mutant the checks that must find it.

    Return what failed in each, with its message.
    """
    copies = RIGHT | mutants
    library = (SOURCE / "toylib.py").read_text()
    plugin = (SOURCE / "streamkit_toylib.py").read_text()
    complete = plugin.partition("\n\n\ndef bind(")[0] + COMPLETE
    names = {f"toy{number}": copy for number, copy in enumerate(copies)}
    for name, copy in names.items():
        old, new, _ = copies[copy]
        assert complete.count(old) == 1, f"{copy}: {old!r} is not in the plugin's adapter once"
        adapter = complete.replace(old, new)
        (path / f"{name}.py").write_text(library)
        (path / f"streamkit_{name}.py").write_text(adapter.replace("toylib", name))
    about = path / "toys-1.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: toys\nVersion: 1\n")
    entries = "\n".join(f"{name} = streamkit_{name}" for name in names)
    (about / "entry_points.txt").write_text(f"[streamkit.backends]\n{entries}\n")
    expected = {name: copies[copy][2] for name, copy in names.items()}
    output = python(f"NAMES = {expected!r}" + RUN, path=[path, Path(__file__).parents[1]])
    found = json.loads(output.splitlines()[-1])
    return {copy: found[name] for name, copy in names.items()}
