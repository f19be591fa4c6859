"""The libraries as the conformance kit wants them, for every tier that has a driver.

A case says how its library makes a stream and an event and gives a handle, in its own public way.
"""

from __future__ import annotations

import functools
import weakref
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

import streamkit as sk
from streamkit import testing
from streamkit._cuda import driver  # how many devices there are
from support.libraries import LIBRARIES, installed, need

if TYPE_CHECKING:
    from collections.abc import Callable

CURRENT = {
    "current_is_its_own",
    "enter_moves_and_leave_restores",
    "enter_takes_borrowed_streams",
    "scope_restores_after_an_error",
    "threads_keep_their_stream",
    "enter_adds_no_wait",
    "enter_lets_go",
}
CURRENT |= {
    "bound_is_current_agrees",
    "bound_told_outside_is_the_threads",
    "bound_set_current_remembers_nothing",
    "bound_leave_restores_at_any_moment",
    "bound_keeps_device",
}
NEVER_OF_CALLS = {"bound_told_outside_is_the_threads", "bound_keeps_device"}  # of Binding.of
DERIVED = {"extract_accepts_subclasses"}  # where the class is one of C
BORROWED_EVENT = {"borrowed_event_keeps_owner", "borrowed_event_lets_go"}
SETTINGS = {"settings_are_read", "settings_touch_no_queue"}
EVENTS = {"event_handle_is_live", "event_handle_refuses_strangers", "event_orders", *BORROWED_EVENT}


@dataclass
class Case:
    """One library, and exactly the checks that do not apply to it; None if any may not."""

    make_stream: Callable[[], Any]
    handle_of: Callable[[Any], int] | None = None
    make_event: Callable[[Any], Any] | None = None
    not_applicable: set[str] | None = field(default_factory=set)
    waive: dict[str, str] = field(default_factory=dict)


class RawStream:
    """A driver stream, destroyed with this object."""

    def __init__(self) -> None:
        from cuda.bindings import driver

        code, self.stream = driver.cuStreamCreate(driver.CUstream_flags.CU_STREAM_NON_BLOCKING)
        assert not code, code
        weakref.finalize(self, driver.cuStreamDestroy, self.stream).atexit = False


def torch():
    torch = need("torch")

    def make_event(stream):
        event = torch.cuda.Event()
        event.record(stream)
        return event

    return Case(
        torch.cuda.Stream,
        lambda stream: stream.cuda_stream,
        make_event,
        not_applicable=BORROWED_EVENT,
    )


def cupy():
    cupy = need("cupy")
    return Case(
        lambda: cupy.cuda.Stream(non_blocking=True),
        lambda stream: stream.ptr,
        lambda stream: stream.record(),
        not_applicable=SETTINGS,
    )


def warp():
    warp = need("warp")
    warp.config.log_level = warp.LOG_WARNING
    warp.init()
    return Case(
        lambda: warp.Stream("cuda:0"),
        lambda stream: stream.cuda_stream or 0,
        lambda stream: stream.record_event(),
        not_applicable={
            "bound_told_outside_is_the_threads",
        },
    )


def numba(name="numba"):
    cuda = need(name)

    def make_event(stream):
        event = cuda.event()
        event.record(stream)
        return event

    return Case(
        cuda.stream,
        lambda stream: int(stream.handle),
        make_event,
        not_applicable=CURRENT | SETTINGS,
    )


def cuda_core():
    core = need("cuda")

    def make_stream():
        device = core.Device(0)
        device.set_current()
        return device.create_stream()

    return Case(
        make_stream,
        make_event=lambda stream: stream.record(),
        not_applicable=CURRENT | DERIVED | BORROWED_EVENT | SETTINGS,
    )


def cuda_bindings():
    need("cuda")
    from cuda.bindings import driver

    owners = []  # of these streams, which own nothing themselves

    def make_stream():
        owners.append(RawStream())
        return owners[-1].stream

    def make_event(stream):
        code, event = driver.cuEventCreate(driver.CUevent_flags.CU_EVENT_DISABLE_TIMING)
        assert not code, code
        (code,) = driver.cuEventRecord(event, stream)
        assert not code, code
        return event

    bare = "a bare handle can hold nothing: keep the StreamKit object beside it"
    waive = {"borrow_keeps_owner": bare, "borrowed_event_keeps_owner": bare}
    not_applicable = CURRENT | DERIVED | SETTINGS | set(waive)
    return Case(make_stream, int, make_event, not_applicable, waive)


def tvm_ffi():
    tvm_ffi = need("tvm_ffi")
    owners = []  # of these streams, which own nothing themselves
    device = tvm_ffi.device("cuda", 0)

    def make_stream():
        owners.append(RawStream())
        return tvm_ffi.use_raw_stream(device, int(owners[-1].stream))

    def handle_of(stream):
        """Return what the library's functions would launch on."""
        with stream:
            return tvm_ffi.get_raw_stream(device)

    return Case(make_stream, handle_of, not_applicable=EVENTS | SETTINGS)


def toylib():
    need("cuda")
    toylib = pytest.importorskip("toylib")

    def make_stream():
        raw = RawStream()
        return toylib.Stream(int(raw.stream), keeps=raw)

    not_applicable = NEVER_OF_CALLS | EVENTS | SETTINGS
    return Case(make_stream, lambda stream: stream.number, not_applicable=not_applicable)


def other(library):
    """A library without a case of its own here: its streams are those that its adapter builds."""

    def case():
        need(library)

        def make_stream():
            raw = RawStream()
            return sk.from_handle(int(raw.stream), owner=raw).to(library)

        return Case(make_stream, not_applicable=None)

    return case


CASES = {name: other(name) for name in LIBRARIES if name != "cuda"} | {
    "torch": torch,
    "cupy": cupy,
    "warp": warp,
    "tvm_ffi": tvm_ffi,
    "numba": numba,
    **({"numba_mlir": functools.partial(numba, "numba_mlir")} if installed("numba_mlir") else {}),
    "cuda.core": cuda_core,
    "cuda.bindings": cuda_bindings,
    "toylib": toylib,
}
ON_AN_EMULATED_DRIVER = sorted(CASES.keys() - {"torch", "cupy"})


def check_library(library: str) -> None:
    """Run the kit on one library: every check has to pass, except those that the case names."""
    case = CASES[library]()
    report = testing.check_adapter(
        library,
        case.make_stream,
        make_event=case.make_event,
        handle_of=case.handle_of,
        waive=case.waive,
    )
    if case.not_applicable is not None:
        alone = {"other_device"} if driver.device_count() == 1 else set()
        assert set(report.not_applicable) == case.not_applicable | alone, report.not_applicable
    assert len(report.kept) >= 11, report.kept
