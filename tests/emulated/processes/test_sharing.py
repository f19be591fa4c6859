"""Memory for copies that other processes can open, and what they cannot open."""

from __future__ import annotations

import gc
import subprocess
import sys
import weakref

import pytest

import emulator
import streamkit as sk
from streamkit._cuda import devices  # it names a device as tokens do
from streamkit._cuda import events as cuda_events  # of its calls two are made up here
from streamkit._cuda.driver import primary_context as primary_of  # where events are opened
from streamkit._support.tokens import EventToken  # as `event.export()` makes it
from streamkit.backends._managed_tensor import Layout  # what a token holds
from streamkit.processes import driver as process_driver  # the same
from streamkit.processes import (  # what an owner keeps, and what `share` asks
    kept,
    leases,
    open_event,
    token_from_bytes,
)
from streamkit.processes.array_token import adapt  # what makes the array of `token.open()`
from streamkit.processes.kept import Copy  # what `share(copy=True)` keeps
from support.emulated.toys import program
from support.gpu.raw import check, driver, on_device
from support.programs import environment

__all__ = ["program"]  # the fixture

SENDER = """
from streamkit._support import living_processes  # who lives, which `open_event` asks
print(living_processes.own_name(), flush=True)
input()
"""


@pytest.fixture
def sender():
    """The name of another process, which lives."""
    with subprocess.Popen(
        [sys.executable, "-c", SENDER],
        env=environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        encoding="utf-8",
    ) as process:
        yield process.stdout.readline().strip()
        process.communicate("\n")


@pytest.fixture
def token(sender):
    """Return the token of an event of the other process, which is on that device."""

    def token(device):
        return EventToken(sender, devices.uuid_of(device), bytes(64)).sealed()

    return token


def test_an_event_that_its_process_has_not_exported_is_not_opened(sender):
    """CUDA's driver crashes with some handles that were made up."""
    with pytest.raises(ValueError, match="was not made by the process"):
        open_event(EventToken(sender, devices.uuid_of(0), bytes(64)))
    assert emulator.calls("cuIpcOpenEventHandle") == 0


def test_an_event_that_its_process_has_closed_is_gone(token):
    emulator.fail("cuIpcOpenEventHandle", driver.CUresult.CUDA_ERROR_INVALID_HANDLE)
    with pytest.raises(sk.errors.StreamClosedError, match="gone"):
        open_event(token(0))


def test_an_event_of_another_process_serves_the_streams_of_its_device(token, monkeypatch):
    """The emulated driver opens none, so one of this process stands in."""
    stream = sk.new_stream(1)  # which keeps the device's context
    with on_device(1):
        opened = int(check(driver.cuEventCreate(0)))
    monkeypatch.setattr(process_driver, "open_event", lambda context, handle: opened)
    event = open_event(token(1))
    assert (event.device_id, event.handle) == (1, opened)
    stream.record(event)
    stream.wait(event)
    stream.sync()


@pytest.mark.parametrize("waits", [(0,), (1,), (0, 1, 1, 0)])
@pytest.mark.parametrize("of", [0, 1])
def test_a_stream_waits_for_an_event_that_is_opened_on_its_device(
    token, monkeypatch, gate, of, waits
):
    """A wait by a stream of another device crashes CUDA's driver, whose device recorded it or not.

    The emulated driver opens none, so one of each device stands in for the one of the sender.
    """
    handles, opened = {}, []
    for device in (0, 1):
        with on_device(device):
            handles[primary_of(device)] = int(check(driver.cuEventCreate(0)))

    def open_event_on(context, handle):
        opened.append(context)
        return handles[context]

    monkeypatch.setattr(process_driver, "open_event", open_event_on)
    event = open_event(token(of))
    held = sk.new_stream(waits[0], nonblocking=True)
    with on_device(waits[0]):
        gate.hold(held.handle)
        check(driver.cuEventRecord(handles[primary_of(waits[0])], held.handle))
    for device in waits:
        stream = sk.new_stream(device, nonblocking=True)
        stream.wait(event)
        assert stream.done is (device != waits[0])  # the other one was not recorded
    gate.open()
    assert opened == [primary_of(device) for device in dict.fromkeys((of, *waits))]
    del event
    assert emulator.calls("cuEventDestroy_v2") >= len(opened)


def test_in_its_own_process_an_interprocess_event_serves_streams_of_its_device_only():
    """On hardware a wait by another device's stream ends the process, in the driver."""
    event = sk.new_event(device=0, interprocess=True)
    near, far = sk.new_stream(0), sk.new_stream(1)
    near.record(event)
    near.wait(event)
    with pytest.raises(sk.errors.DeviceMismatchError, match="only streams of its own device"):
        far.wait(event)


def test_an_event_that_is_exported_is_itself_where_it_comes_back_to_its_process(monkeypatch):
    """The emulated driver has no handle for other processes, so one of the test's stands in."""
    monkeypatch.setattr(cuda_events, "exported", lambda context, event: event.to_bytes(64, "big"))
    event = sk.new_event(interprocess=True, device=1)
    token = token_from_bytes(bytes(event.export()))
    assert (token.uuid, token.handle) == (devices.uuid_of(1), event.handle.to_bytes(64, "big"))
    assert open_event(token) is event
    event.close()
    with pytest.raises(sk.errors.StreamClosedError, match="gone"):
        open_event(token)


def test_the_library_of_an_array_has_to_be_imported_unless_it_is_named(program):
    program(
        """
from streamkit._cuda import devices  # as above
from streamkit._support.tokens import EventToken  # as above
from streamkit.processes.array_token import ArrayToken, SharedMemory  # as `share` makes it
from streamkit.backends._managed_tensor import Layout  # what that holds
name = "/dev/shm/streamkit-shares-gone/0123456789abcdef"
event = EventToken(name, devices.uuid_of(0), bytes(64))
layout = Layout(0, (3,), (4,), (2, 32, 1))
token = ArrayToken(f"{name}.7", event, SharedMemory(9, bytes(64), 512), layout, "toya")
told = str(error_of(sk.errors.UnsupportedStreamError, token.open, sk.new_stream(0)))
assert "one of toya, which this process has not imported" in told, told
assert "toya" not in sys.modules
told = str(error_of(sk.errors.StreamClosedError, token.open, sk.new_stream(0), "toya"))
assert "gone" in told, told
""",
        toya="def adopt(memory): ...\n",
    )


def test_the_memory_of_a_copy_goes_to_the_next_of_its_size(primary_context):
    odd = Copy(primary_context, 3)  # frees what other tests have left
    before = emulator.calls("cuMemAlloc_v2")
    first = Copy(primary_context, 512)
    address = first.address
    other = Copy(primary_context, 512)
    assert other.address != address
    del first
    again = Copy(primary_context, 512)
    assert again.address == address
    assert emulator.calls("cuMemAlloc_v2") == before + 2
    del again, other
    freed = emulator.calls("cuMemFree_v2")
    larger = Copy(primary_context, 1024)
    assert emulator.calls("cuMemFree_v2") == freed + 2  # those of another size
    del larger, odd


def test_spare_memory_that_cannot_be_freed_now_is_freed_later(primary_context):
    spares = [Copy(primary_context, 512) for _ in range(3)]
    freed = emulator.calls("cuMemFree_v2")
    del spares
    emulator.fail("cuMemFree_v2", driver.CUresult.CUDA_ERROR_INVALID_VALUE, nth=2)
    with pytest.raises(sk.errors.DriverError):
        Copy(primary_context, 1024)
    Copy(primary_context, 1024)
    assert emulator.calls("cuMemFree_v2") == freed + 4  # one of them failed
    assert not [block for block in kept._spare if block[1] == 512]


def test_memory_that_a_library_refuses_is_kept_no_longer(primary_context):
    def refuse(memory):
        memory.__dlpack__()
        raise BufferError

    stream, memory = sk.new_stream(), Copy(primary_context, 512)
    gone = weakref.ref(memory)
    with pytest.raises(BufferError):
        adapt(refuse, Layout(memory.address, (128,), (1,), (2, 32, 1)), 0, memory, stream._queue)
    stream.sync()
    del memory
    gc.collect()
    sk.new_stream()  # lets go of what it can
    assert gone() is None


def test_an_array_of_which_no_token_could_be_made_is_not_kept(array, monkeypatch):
    """The emulated driver shares no memory: what it would answer is made up."""
    monkeypatch.setattr(leases.mappings, "why_not", lambda _: None)
    monkeypatch.setattr(leases.events, "exported", lambda *_: bytes(64))
    answers = {"range_of": (0, 1 << 40), "number_of": 1, "memory_handle": bytes(64)}
    for name, answer in answers.items():
        monkeypatch.setattr(leases.sharing, name, lambda *_, answer=answer: answer)

    def fail(*_):
        raise OSError("no space")

    monkeypatch.setattr(leases, "ArrayToken", fail)
    before = dict(kept._kept)
    with pytest.raises(OSError, match="no space"):
        sk.share(array(), after=sk.new_stream())
    assert kept._kept == before
