"""The forked child of a process in which another library had initialised CUDA."""

from __future__ import annotations

import pytest

from support.emulated.processes import run

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
    assert found == "0 None ['forked'] (2, (), ('int',))"


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
