"""Events and arrays of another process on the same GPU."""

from __future__ import annotations

import contextlib
import gc
import pickle
import random
import threading
import time
import weakref

import numpy as np
import pytest

import streamkit as sk
from streamkit.processes import driver as sharing  # a step of `share` is made to fail
from streamkit.processes import (
    mappings,  # what is open of other processes
    open_event,
    token_from_bytes,
)
from support.gpu.peer import LONG, Peer, until
from support.gpu.raw import Gate, on_device
from support.libraries import cuda_devices, need

cupy, _ = need("cupy", "cuda")  # cuda.core here, not where a thread of a test first needs it


@pytest.fixture(scope="module")
def shared_peer(primary_context):
    peer = Peer("cupy")
    yield peer
    peer.end()


@pytest.fixture
def peer(shared_peer):
    return shared_peer


@pytest.fixture
def new_peer():
    made = []

    def make(*libraries, **environment):
        made.append(Peer(*(libraries or ("cupy",)), **environment))
        return made[-1]

    yield make
    for one in made:
        one.end()


@pytest.fixture
def s():
    return sk.new_stream(nonblocking=True)


def filled(s, value, size=1000):
    with s:
        array = cupy.empty(size, "f4")
        array.fill(value)
    return array


# -- events ---------------------------------------------------------------------------------------


def test_an_open_that_fails_in_the_senders_process_leaves_the_lease_to_others(s):
    array = filled(s, 7)
    lease = sk.share(array, after=s)
    with pytest.raises(sk.errors.UnsupportedStreamError):
        lease.token.open(s, library="cuda.core")
    del array
    sk.new_event(interprocess=True)  # a call of StreamKit: it looks at the leases
    assert not until(lambda: lease.closed, 0.3)
    lease.close()


@pytest.mark.parametrize("ordered", [True, False])
def test_a_message_beside_an_event_is_in_order_and_without_it_stale(gate, peer, s, ordered):
    array = filled(s, 0)
    lease = sk.share(array, after=s)
    peer.open("x", lease.token)
    peer.copy("x"), peer.copied("x")  # its kernel is loaded
    event = sk.new_event(interprocess=True)
    peer.open_event("e", event.export())
    with s:
        array += 0  # so is this one
    s.sync()
    gate.hold(s.handle)
    with s:
        array += 7
    s.record(event)
    if ordered:
        peer.wait("e")
    assert peer.copy("x") is ordered
    if not ordered:
        assert peer.copied("x")[0] == 0
    assert gate.closed
    gate.open()
    if ordered:
        assert peer.copied("x")[0] == 7
    s.sync()
    peer.drop("x")
    assert until(lambda: peer.look() or lease.closed)


def test_a_wait_that_is_queued_before_the_record_holds_for_the_one_before(gate, peer, s):
    event = s.record(sk.new_event(interprocess=True))
    s.sync()
    peer.open_event("old", event.export())
    peer.wait("old")  # before the message that it was recorded again
    lease = sk.share(filled(s, 1), after=s)
    peer.open("x", lease.token)
    gate.hold(s.handle)
    s.record(event)
    assert not peer.copy("x")
    assert gate.closed
    gate.open()
    peer.copied("x"), peer.drop("x")


def test_any_librarys_stream_waits_for_it_and_the_opener_can_record_it(peer, s):
    torch, warp = need("torch", "warp")
    warp.init()
    event = sk.new_event(interprocess=True)
    token = pickle.loads(pickle.dumps(event.export()))  # noqa: S301 - its own
    assert open_event(token) is event
    peer.open_event("e", token_from_bytes(bytes(token)))
    peer.record("e")
    for stream in (torch.cuda.Stream(), warp.Stream("cuda:0"), cupy.cuda.Stream(), s):
        sk.wrap(stream).wait(event)
        sk.wrap(stream).sync(10)
    assert event.done


@pytest.fixture
def gate_on():
    """Make a gate that holds streams of a device."""
    with contextlib.ExitStack() as stack:

        def make(device):
            stack.enter_context(on_device(device))  # whose end may free the gate's memory
            gate = Gate()
            stack.callback(gate.free)
            return gate

        yield make


@pytest.mark.skipif(cuda_devices() < 2, reason="one CUDA device")
@pytest.mark.parametrize("recorded_on", [0, 1])
def test_streams_of_every_device_wait_for_it(gate_on, new_peer, recorded_on):
    """Where it is opened on one device alone, a wait of the other one's stream ends the process."""
    receiver, gate = new_peer(), gate_on(recorded_on)
    source = sk.new_stream(recorded_on, nonblocking=True)
    event = sk.new_event(interprocess=True, device=recorded_on)
    receiver.open_event("e", event.export())
    waiting = [receiver.new_stream(device) for device in (0, 1)]
    for stream in waiting:
        assert receiver.wait("e", stream) is None
        # the control: it was never recorded
        assert until(lambda stream=stream: receiver.is_done(stream))
    gate.hold(source.handle)
    source.record(event)
    for stream in reversed(waiting):
        receiver.wait("e", stream)
    assert not any(receiver.is_done(stream) for stream in waiting)
    assert gate.closed
    gate.open()
    assert until(lambda: all(receiver.is_done(stream) for stream in waiting))
    here = sk.new_stream(1 - recorded_on)  # in its own process CUDA has no way
    with pytest.raises(sk.errors.DeviceMismatchError, match="only streams of its own device"):
        here.wait(event)
    source.wait(event)
    here.wait(source)
    here.sync(LONG)


@pytest.mark.parametrize("byte", [0, 8, 18, 40])
def test_a_handle_that_was_changed_is_not_opened(peer, byte):
    """If byte 18 was, CUDA opens it, and crashes as soon as it is asked."""
    event = sk.new_event(interprocess=True)
    token = event.export()
    handle = bytearray(token.handle)
    handle[byte] ^= 4
    changed = type(token)(token.process, token.uuid, bytes(handle))
    changed._seal = token._seal
    with pytest.raises(ValueError, match="was not made by the process"):
        peer.open_event("e", changed)


@pytest.mark.parametrize("size", [1, 3, 128, 1 << 16, (1 << 20) + 1])
def test_an_array_that_fills_its_allocation_arrives(all_peer, s, size):
    """CUDA divides a block among small ones; what it opens has to be as large as the token says."""
    own = lambda size: cupy.cuda.MemoryPointer(cupy.cuda.Memory(size), 0)  # noqa: E731
    with s, cupy.cuda.using_allocator(own):
        array = cupy.full(size, 5, "i1")
    lease = sk.share(array, after=s)
    all_peer.open("x", lease.token)
    assert all_peer.values("x") == [5] * size
    all_peer.drop("x")
    assert until(lambda: all_peer.look() or lease.closed)


def test_a_receiver_that_fails_does_not_end_the_lease_of_another(new_peer, s):
    lease, first, failed = sk.share(filled(s, 7), after=s), new_peer(), new_peer()
    first.open("x", lease.token)
    with pytest.raises(sk.errors.UnsupportedStreamError):
        failed.open("y", lease.token, "cuda.core")
    failed.kill()
    assert not until(lambda: lease.closed, 0.3)
    assert first.values("x")[-1] == 7
    first.drop("x")
    assert until(lambda: first.look() or lease.closed)


def test_processes_whose_files_are_in_other_folders_share(new_peer, s, tmp_path):
    other = new_peer(STREAMKIT_RUNTIME_DIR=str(tmp_path))
    back = other.share("x", 4).open(s)
    assert back[-1].item() == 4
    lease = sk.share(filled(s, 6), after=s)
    other.open("y", lease.token)
    assert other.values("y")[-1] == 6
    other.drop("y")
    assert until(lambda: other.look() or lease.closed)


def test_the_source_of_a_copy_is_kept_until_the_copy_has_run(gate, s, monkeypatch):
    """Also if a later step of ``share`` fails; the control is a second array of the pool's."""
    pool = cupy.cuda.MemoryPool()
    with s, cupy.cuda.using_allocator(pool.malloc):
        array = cupy.full(1000, 3, "f4")
    s.sync()
    address, kept_alive = array.data.ptr, weakref.ref(array)

    def fail(*_, **__):
        raise MemoryError

    gate.hold(s.handle)
    monkeypatch.setattr(sharing, "range_of", fail)
    with pytest.raises(MemoryError):
        sk.share(array, after=s, copy=True)
    monkeypatch.undo()
    del array
    gc.collect()
    assert kept_alive() is not None
    with s, cupy.cuda.using_allocator(pool.malloc):
        assert cupy.empty(1000, "f4").data.ptr != address
    assert gate.closed
    gate.open()
    s.sync()
    gc.collect()
    assert until(lambda: s.sync() or kept_alive() is None)


def test_events_that_cannot_be_opened_say_so(new_peer, s):
    for event in (sk.new_event(), s.record()):
        with pytest.raises(ValueError, match=r"new_event\(interprocess=True\)"):
            event.export()
    with pytest.raises(ValueError, match="leave out timing"):
        sk.new_event(interprocess=True, timing=True)
    event = sk.new_event(interprocess=True)
    token = event.export()
    event.close()
    with pytest.raises(sk.errors.StreamClosedError):
        open_event(token)
    other = new_peer()
    sent = other.export("e")  # as the first thing that this process does with the device
    assert open_event(sent).device == "cuda:0"
    lent = other.share("x", 1)
    other.kill()
    with pytest.raises(sk.errors.StreamClosedError, match="gone"):
        open_event(sent)
    with pytest.raises(sk.errors.StreamClosedError, match="gone"):
        lent.open(s)
    blind = new_peer(CUDA_VISIBLE_DEVICES="")
    with pytest.raises(sk.StreamKitError):
        blind.open_event("e", sk.new_event(interprocess=True).export())


def test_an_event_of_torch_is_exported_too(peer, s):
    torch = need("torch")
    event = torch.cuda.Event(interprocess=True)
    with pytest.raises(ValueError, match="recorded first"):
        sk.wrap_event(event).export()
    event.record(s.to("torch"))
    peer.open_event("t", sk.wrap_event(event).export())
    peer.wait("t")
    with pytest.raises(ValueError, match="cannot be opened"):
        sk.wrap_event(torch.cuda.Event()).export()


# -- arrays ---------------------------------------------------------------------------------------


def made_by(library, s):
    """Ten numbers in an array of the library, and in the second half of another one."""
    numbers = list(range(10))
    if library == "torch":
        torch = need("torch")
        with s:
            return torch.arange(20, device="cuda", dtype=torch.float32)[10:] - 10
    if library == "cupy":
        with s:
            return cupy.arange(20, dtype="f4").reshape(10, 2)[:, 0] / 2
    if library == "warp":
        warp = need("warp")
        before = warp.is_mempool_enabled("cuda:0")
        warp.set_mempool_enabled("cuda:0", False)
        try:
            return warp.array(numbers, dtype=warp.float32, device="cuda:0")
        finally:
            warp.set_mempool_enabled("cuda:0", before)
            warp.synchronize()
    need("numba")
    from numba import cuda

    return cuda.to_device(np.arange(10, dtype="f4"))


LIBRARIES = ["torch", "cupy", "warp", "numba"]


@pytest.fixture(scope="module")
def all_peer(primary_context):
    need(*LIBRARIES)
    peer = Peer("torch", "cupy", "warp", "numba.cuda")
    yield peer
    peer.end()


@pytest.mark.parametrize("receiver", [None, *LIBRARIES])
@pytest.mark.parametrize("sender", LIBRARIES)
def test_an_array_of_each_library_arrives_as_one_of_each(all_peer, s, sender, receiver):
    array = made_by(sender, s)
    lease = sk.share(array, after=s)
    assert len(pickle.dumps(lease.token)) < 1000
    assert all_peer.open("x", lease.token, receiver) == (receiver or sender)
    assert all_peer.values("x") == list(range(10))
    assert not lease.closed
    all_peer.drop("x")
    assert until(lambda: all_peer.look() or lease.closed)
    with pytest.raises(sk.errors.StreamClosedError, match="gone"):
        all_peer.open("x", lease.token)


@pytest.mark.parametrize("dtype", ["bfloat16", "bool", "float8_e4m3fn", "complex64", "int64"])
def test_types_of_torch_arrive(all_peer, s, dtype):
    torch = need("torch")
    with s:
        array = torch.tensor([0, 1, 1], device="cuda").to(getattr(torch, dtype))
    lease = sk.share(array, after=s)
    all_peer.open("x", lease.token)
    assert all_peer.values("x") == array.cpu().tolist()
    all_peer.drop("x")


def of_pool(s):
    pool = cupy.cuda.MemoryAsyncPool()
    with s, cupy.cuda.using_allocator(pool.malloc):
        return cupy.full(10, 3, "f4")


def managed(s):
    with s, cupy.cuda.using_allocator(cupy.cuda.malloc_managed):
        return cupy.full(10, 3, "f4")


def of_warps_pool(s):
    warp = need("warp")
    array = warp.full(10, 3.0, dtype=warp.float32, device="cuda:0")
    warp.synchronize()
    return array


@pytest.mark.parametrize(
    ("make", "why"),
    [(of_pool, "memory pools"), (managed, "managed"), (of_warps_pool, "memory pools")],
)
def test_memory_that_cuda_cannot_share_is_refused_and_copied(all_peer, s, make, why):
    array = make(s)
    with pytest.raises(TypeError, match=f"{why}.*copy=True"):
        sk.share(array, after=s)
    lease = sk.share(array, after=s, copy=True)
    del array
    all_peer.open("x", lease.token)
    assert all_peer.values("x") == [3.0] * 10
    all_peer.drop("x")
    assert until(lambda: all_peer.look() or lease.closed)


def test_an_array_of_another_process_is_passed_on_as_a_copy(peer, s):
    lease = sk.share(filled(s, 6), after=s)
    peer.open("x", lease.token)
    with pytest.raises(TypeError, match=r"belongs to another process.*copy=True"):
        peer.pass_on("x", False)
    back = peer.pass_on("x", True).open(s)
    assert back[-1].item() == 6
    del back
    peer.drop("x")
    assert until(lambda: peer.look() or lease.closed)


def test_expandable_segments_of_torch_are_refused_and_copied(new_peer, s):
    need("torch")
    other = new_peer("torch", "cupy", PYTORCH_CUDA_ALLOC_CONF="expandable_segments:True")
    with pytest.raises(TypeError, match=r"expandable segments.*copy=True"):
        other.share_tensor("x", 3.0, False)
    array = other.share_tensor("x", 3.0, True).open(s, "cupy")
    assert array[0].item() == 3
    del array


def test_what_is_no_array_to_share_says_so(s):
    with pytest.raises(TypeError, match="send it as it is"):
        sk.share(np.zeros(3), after=s)
    with pytest.raises(ValueError, match="no elements"):
        sk.share(cupy.zeros(0), after=s)
    with pytest.raises(sk.errors.DeviceMismatchError):
        sk.share(cupy.zeros(3), after=sk.new_stream("cpu"))
    with pytest.raises(TypeError, match=r"lease\.token"):
        pickle.dumps(sk.share(filled(s, 1), after=s))


def test_the_array_is_opened_once_it_is_written(gate, peer, s):
    array = filled(s, 0)
    with s:
        array += 0
    s.sync()
    early = sk.share(array, after=s)
    peer.open("early", early.token)  # the control: the memory, without the order
    gate.hold(s.handle)
    with s:
        array += 5
    lease = sk.share(array, after=s)
    assert peer.values("early")[0] == 0
    peer.ask("open", "x", lease.token)
    assert not peer.has_answered()
    assert gate.closed
    gate.open()
    peer.answer()
    assert peer.values("x")[0] == 5
    peer.drop("x"), peer.drop("early"), peer.look()


def test_the_lease_lasts_until_the_receivers_stream_has_passed(peer, s):
    lease = sk.share(filled(s, 1), after=s)
    peer.open("x", lease.token)
    peer.hold()
    peer.drop("x")
    assert not until(lambda: lease.closed, 0.3)
    peer.release()
    assert until(lambda: peer.look() or lease.closed)


def test_both_write_the_same_memory(peer, s):
    array = filled(s, 1)
    lease = sk.share(array, after=s)
    peer.open("x", lease.token)
    peer.add("x", 4)
    assert array[0].item() == 5
    peer.drop("x")


def test_in_the_process_of_the_sender_it_is_the_array(gate, s):
    torch = need("torch")
    t = sk.new_stream(nonblocking=True)
    with s:
        array = torch.zeros(1000, device="cuda")
        array += 0
    with t:  # a kernel that is loaded later would wait for the held stream
        (array * 2).cpu()
    s.sync(), t.sync()
    gate.hold(s.handle)
    with s:
        array += 2
    lease = sk.share(array, after=s)
    here = lease.token.open(t)
    assert here is array
    as_cupy = lease.token.open(t, "cupy")
    with t:
        doubled = here * 2
    assert gate.closed  # nothing has waited
    gate.open()
    t.sync()
    assert (doubled[0].item(), as_cupy[0].item()) == (4, 2)
    lease.close()
    assert lease.closed
    with pytest.raises(sk.errors.StreamClosedError):
        lease.token.open(t)


def test_the_memory_is_not_used_again_while_the_lease_lasts(peer, s):
    """The control: once it has ended, the sender's next array is in the same memory."""
    pool = cupy.cuda.MemoryPool()

    def new(value):
        with cupy.cuda.using_allocator(pool.malloc):
            return filled(s, value)

    array = new(7)
    lease, address = sk.share(array, after=s), array.data.ptr
    peer.open("x", lease.token)
    del array
    other = new(9)
    s.sync()
    assert other.data.ptr != address
    assert peer.values("x")[0] == 7
    lease.close()
    again = new(9)
    s.sync()
    assert again.data.ptr == address
    assert peer.values("x")[0] == 9
    peer.drop("x"), peer.look()


def test_a_lease_that_only_its_own_process_has_opened_ends_with_the_array(s):
    array = filled(s, 1)
    lease = sk.share(array, after=s)
    opened = lease.token.open(s)
    assert not lease.closed
    del array, opened
    assert until(lambda: s.done and lease.closed)


def test_torch_multiprocessing_sends_no_order(gate, all_peer, s):
    """What is shown in the guide: a tensor that the receiver still has arrives as it was."""
    torch = need("torch")
    import torch.multiprocessing  # noqa: F811 - so that pipes take tensors

    with s:
        tensor = torch.full((1000,), 7.0, device="cuda")
        tensor += 0
    s.sync()
    all_peer.take("x", tensor)
    gate.hold(s.handle)
    with s:
        tensor += 1
    all_peer.take("x", tensor)
    assert all_peer.values("x")[0] == 7
    lease = sk.share(tensor, after=s)
    all_peer.ask("open", "x", lease.token)
    assert not all_peer.has_answered()
    assert gate.closed
    gate.open()
    all_peer.answer()
    assert all_peer.values("x")[0] == 8
    all_peer.drop("x"), all_peer.look()


def test_a_lease_that_was_closed_cannot_be_opened(peer, s):
    lease = sk.share(filled(s, 1), after=s)
    lease.close()
    with pytest.raises(sk.errors.StreamClosedError, match="gone"):
        peer.open("x", lease.token)


def test_an_array_is_opened_beside_a_capture_of_the_same_thread(peer, s):
    token = peer.share("x", 1)
    with sk.capture(sk.new_stream()):
        cupy.zeros(3)
        opened = token.open(s)
    assert opened[-1].item() == 1


def test_a_device_that_is_not_visible_there_and_a_stream_that_captures(new_peer, s):
    lease = sk.share(filled(s, 1), after=s)
    with pytest.raises(sk.StreamKitError):
        new_peer(CUDA_VISIBLE_DEVICES="").open("x", lease.token)
    with pytest.raises(sk.errors.CaptureError), sk.capture(s):
        sk.share(cupy.zeros(3), after=s)
    with pytest.raises(sk.errors.DeviceMismatchError):
        lease.token.open(sk.new_stream("cpu"))
    lease.close()


@pytest.mark.parametrize("part", range(4))
def test_thousands_of_sends_on_four_streams_are_never_stale(peer, part):
    """10,000 in all. Each stream of the sender writes, shares, and goes on with other memory."""
    streams = [sk.new_stream(nonblocking=True) for _ in range(4)]
    count, batch = 2500, 100
    for first in range(part * count, (part + 1) * count, batch):
        values = range(first, first + batch)
        leases = []
        for value in values:
            s = streams[value % 4]
            leases.append(sk.share(filled(s, value, 1 << 14), after=s))
        found = peer.ends([lease.token for lease in leases])
        assert found == [(float(value), float(value)) for value in values]
        assert until(lambda: peer.look() or all(lease.closed for lease in leases))  # noqa: B023 - called here


# -- a process that is killed ---------------------------------------------------------------------


def is_all_closed(s):
    """Whether no memory of another process is open here, so that it has returned."""
    gc.collect()
    s.sync(LONG)
    return not mappings._opened


ARRAYS, LATEST = 20, 0.015  # seconds: in which one process opens that many arrays, about


@pytest.mark.parametrize("seed", range(5))
def test_a_receiver_that_is_killed_at_any_point_has_dropped(new_peer, s, seed):
    """25 of them: some while they open an array, some with arrays that they have opened."""
    chance, pool = random.Random(seed), cupy.get_default_memory_pool()  # noqa: S311 - no secret
    others = [new_peer() for _ in range(5)]
    for other in others:
        other.ends([sk.share(filled(s, 1), after=s).token])  # its kernels are loaded
    gc.collect()
    before = pool.used_bytes()
    for other in others:
        leases = [sk.share(filled(s, value), after=s) for value in range(ARRAYS)]
        other.open("x", leases[0].token)
        other.ask("ends", [lease.token for lease in leases])
        time.sleep(chance.uniform(0, LATEST))
        other.kill()
        assert until(lambda: leases[0].closed)  # noqa: B023 - called here
        for lease in leases:  # those that nobody has opened
            lease.close()
    assert until(lambda: s.done and pool.used_bytes() <= before)


@pytest.mark.parametrize("seed", range(5))
def test_a_sender_that_is_killed_at_any_point_is_told(new_peer, s, seed):
    """25 of them: what they had not yet written by then is an error, and no wait for ever."""
    chance = random.Random(seed)  # noqa: S311 - no secret
    others = [new_peer() for _ in range(5)]
    for other in others:
        other.begin()
    for number, other in enumerate(others):
        held = ARRAYS // 2 if number % 2 else ARRAYS
        tokens, found = other.shares(ARRAYS, held), []

        def read():
            for token in tokens:  # noqa: B023 - called here
                try:
                    array = token.open(s)
                except sk.errors.StreamClosedError:
                    found.append("gone")  # noqa: B023 - called here
                    continue
                with s:
                    first = array[:1].copy()
                del array
                found.append(first.get(stream=s.to("cupy")).item())  # noqa: B023 - called here

        reader = threading.Thread(target=read)
        reader.start()
        time.sleep(chance.uniform(0, LATEST))
        other.kill()
        reader.join(LONG)
        assert not reader.is_alive()
        read_ones = [value for value in found if value != "gone"]
        assert read_ones == list(range(len(read_ones)))
        assert len(read_ones) <= held
        assert found[len(read_ones) :] == ["gone"] * (ARRAYS - len(read_ones))
    assert until(lambda: is_all_closed(s))


@pytest.mark.parametrize("written", [True, False])
def test_a_sender_that_is_killed_is_told_and_its_memory_returns(new_peer, s, written):
    other = new_peer()
    first = other.share("first", 1)
    kept = first.open(s)
    s.sync()
    if not written:
        other.hold()
    token = other.share("second", 2)
    other.kill()
    with pytest.raises(sk.errors.StreamClosedError, match="gone"):
        token.open(s)
    with s:
        assert kept[-1].item() == 1  # what was opened goes on
    del kept
    assert until(lambda: is_all_closed(s))


def test_a_sender_that_is_killed_meanwhile_ends_the_wait(new_peer):
    sender, receiver = new_peer(), new_peer()
    sender.share("before", 1)  # its kernels are loaded
    sender.hold()
    token = sender.share("x", 1)
    receiver.ask("open", "x", token)
    assert not receiver.has_answered()
    sender.kill()
    with pytest.raises(sk.errors.StreamClosedError, match="gone"):
        receiver.answer(10)
    receiver.look()
