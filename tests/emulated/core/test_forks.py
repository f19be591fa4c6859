"""The forked child of a process where another library had initialised CUDA; handlers for forks."""

from __future__ import annotations

import asyncio
import gc

import pytest

import streamkit as sk
from streamkit.diagnostics.recording import recorder  # where CUPTI is found
from support.cupti import Cupti
from support.emulated.processes import run
from support.forks import handlers_registered
from support.gpu.raw import Cell, check, driver
from support.queues import LONG

PARENT = """
import asyncio, contextlib, gc, os, signal, sys
from cuda.core import Device

Device(0).set_current()
stream, own = Device(0).create_stream(), lambda: sk.new_stream("cpu")
event = stream.record()

async def wait_for(what):
    await what

def enter(scope):
    with scope:
        pass

def outcome(work):
    "What it comes to as the first that a forked child does with StreamKit."
    sys.stdout.flush()
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        signal.alarm(20)  # ends it if it hangs
        os.dup2(writing, 1)
        global sk
        import streamkit as sk
        told = []
        sys.unraisablehook = told.append
        try:
            print(work(), end="")
        except Exception as error:
            advises = "'spawn'" in str(error) and type(error) is sk.ForkedProcessError
            print("told" if advises else f"{type(error).__name__}: {error}", end="")
        gc.collect()
        sys.stdout.flush()
        os._exit(len(told))
    os.close(writing)
    with open(reading) as said:
        found = said.read()
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return found if not status else f"{found} and ends with {status}"
"""

REFUSED = """
refused = {
    "new_stream": lambda: sk.new_stream(),
    "new_event": lambda: sk.new_event(),
    "interprocess": lambda: sk.new_event(interprocess=True),
    "default": lambda: sk.default_stream(),
    "wrap": lambda: sk.wrap(stream),
    "wrap_event": lambda: sk.wrap_event(event).sync(),
    "await of an event": lambda: asyncio.run(wait_for(sk.wrap_event(event))),
    "from_handle": lambda: sk.from_handle(int(stream.handle), owner=stream),
    "use": lambda: enter(sk.use(stream)),
    "capture": lambda: enter(sk.capture(stream)),
    "graphed": lambda: sk.graphed(print)(),
    "current": lambda: sk.current_stream(),
    "host": lambda: own().wait(sk.wrap(stream)),
}
for name, work in refused.items():
    found = outcome(work)
    if found != "told":
        print(name, found)
print(len(refused))
"""

ALLOWED = """
def audited():
    with sk.audit() as report, sk.races() as races:
        h = own()
        h.submit(int)
        h.sync()
    return len(report.operations), races.races, races.coverage.missed

print(outcome(lambda: own().then(int).result(10)))
print(outcome(lambda: enter(sk.use(own()))))
print(outcome(lambda: [found.code for found in sk.doctor().findings][:1]))
print(outcome(audited))
"""

IMPORTED = pytest.mark.parametrize(
    "first", ["import streamkit as sk\n", ""], ids=["before", "in it"]
)


@IMPORTED
def test_it_is_told_what_to_do(first):
    assert run(first + PARENT + REFUSED, PYTHONWARNINGS="ignore") == ["13"]


@IMPORTED
def test_host_streams_doctor_and_what_records_work_there(first):
    found = " ".join(run(first + PARENT + ALLOWED, PYTHONWARNINGS="ignore"))
    not_seen = "what NumPy and Python do outside of streams"
    assert found == f"0 None ['forked'] (2, (), ('int', '{not_seen}'))"


def test_control_a_process_that_is_no_fork_has_the_drivers_error():
    program = """
        import streamkit as sk

        try:
            sk.new_stream()
        except sk.DriverError as error:
            print(error.name)
    """
    assert run(program, EMULATED_FAIL="cuInit:1:3") == ["CUDA_ERROR_NOT_INITIALIZED"]


def test_control_a_fork_whose_parent_had_none_has_cuda():
    program = """
        import os, sys

        if not os.fork():
            import streamkit as sk

            print(sk.new_stream().device)
            sys.exit()
        os.wait()
    """
    assert run(program) == ["cuda:0"]


# -- handlers for forks, which are never taken back -----------------------------------------------


async def wait_for(what):
    await what


def fill(cell, stream):
    check(driver.cuMemsetD32Async(cell.pointer, 1, 1, stream.handle))


def streams_and_events(cell):
    one, other = sk.new_stream(), sk.new_stream(nonblocking=True)
    with sk.use(one), sk.use(other):
        fill(cell, sk.current_stream())
    other.wait(one)
    event = other.record(timing=True)
    one.wait(event)
    one.keep(object())
    assert one.then(int).result(LONG) == 0
    asyncio.run(wait_for(one))
    asyncio.run(wait_for(event))
    event.sync()
    sk.new_event(interprocess=True).close()
    other.close()


def graphs(cell):
    stream = sk.new_stream(nonblocking=True)
    with sk.capture(stream) as graph:
        fill(cell, stream)
    graph.launch(stream)
    stream.sync()
    graph.close()
    function = sk.graphed(lambda: fill(cell, sk.current_stream()))
    with sk.use(stream):
        for _ in range(3):
            function()
    function.clear()


def audited(cell):
    with sk.audit():
        streams_and_events(cell)


def raced(cell):
    with sk.races():
        streams_and_events(cell)


@pytest.mark.parametrize("operation", [streams_and_events, graphs, audited, raced])
def test_no_operation_registers_a_handler_each_time(monkeypatch, warp, handles, operation):
    from streamkit.backends._warp import adapter as warp_adapter  # not above: it imports Warp

    monkeypatch.delattr(warp_adapter, "joins_capture")  # CUDA's runtime does not run here
    monkeypatch.setattr(recorder, "_find", Cupti)  # played
    cell = Cell(0)
    operation(cell)  # the first use may make what is the process's own
    with handlers_registered(monkeypatch) as registered:
        for _ in range(5):
            operation(cell)
    assert not registered
    gc.collect()
    cell.free()
