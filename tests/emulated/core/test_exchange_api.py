"""Arrays of libraries that StreamKit does not know, which have DLPack's exchange API."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest

import streamkit as sk
from support.emulated.memory import Memory
from support.exchange_toy import Library
from support.gpu.raw import busy, idle
from support.keepalive import stays_until
from support.libraries import need

pytestmark = [pytest.mark.usefixtures("handles"), pytest.mark.versions]


@pytest.fixture
def toy():
    library = Library()
    yield library
    gc.collect()
    assert not library.exported, "memory that was lent was never given back"


# -- the current stream -----------------------------------------------------------------------


@pytest.mark.parametrize("device", [0, 1])
def test_the_current_stream_of_its_library_is_told(toy, device):
    one, two, array = sk.new_stream(device), sk.new_stream(device), toy.Array(0, device)
    for stream in (one, two, one):
        toy.current[device] = stream.handle
        assert sk.current_stream(of=array) == stream
    toy.current[device] = 0
    assert sk.current_stream(of=array) == sk.default_stream(device)


@pytest.mark.parametrize("options", [{"major": 2}, {"place": 13}, {"place": 2}], ids=str)
def test_a_newer_table_leads_to_the_known_one_and_managed_memory_is_on_its_device_too(options):
    library, stream = Library(**options), sk.new_stream()
    library.current[0] = stream.handle
    assert sk.current_stream(of=library.Array(0)) == stream


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"place": 10}, "not an array that can be handed over"),
        ({"functions": ()}, "not an array that can be handed over"),
        ({"functions": ("from_object", "to_object")}, "not an array that can be handed over"),
    ],
    ids=["another GPU", "an empty table", "no current stream"],
)
def test_what_tells_no_stream_of_cuda_is_refused(options, why):
    with pytest.raises(TypeError, match=why):
        sk.current_stream(of=Library(**options).Array(0))


def test_a_class_whose_attribute_is_no_table_is_refused(toy):
    class Array(toy.Array):
        __dlpack_c_exchange_api__ = 5

    with pytest.raises(TypeError, match="not an array"):
        sk.current_stream(of=Array(0))


def test_a_function_that_fails_without_a_reason_names_its_class(toy):
    sk.new_stream().wait(sk.new_stream())  # imports what it needs
    toy.fails = True
    for ask in (
        lambda: sk.current_stream(of=toy.Array(0)),
        lambda: sk.handoff(toy.Array(0), sk.new_stream(), after=sk.new_stream()),
    ):
        with pytest.raises(RuntimeError, match=r"exchange API of support\.exchange_toy.*Array"):
            ask()


def test_an_array_names_library_and_device_alone(toy):
    for options in ({"library": "warp"}, {"device": 0}):
        with pytest.raises(TypeError, match="leave the others out"):
            sk.current_stream(of=toy.Array(0), **options)


def test_of_a_library_with_an_adapter_it_is_that_ones(warp):
    other = warp.Stream("cuda:0")
    array = warp.array(ptr=8, shape=1, dtype=float, device="cuda:0")
    with warp.ScopedStream(other, sync_enter=False):
        assert sk.current_stream(of=array) == sk.wrap(other)


def test_of_an_array_on_the_host_it_is_what_is_current_without_a_name(warp):
    for array in (warp.zeros(1, device="cpu"), np.zeros(1), Library(place=1).Array(0)):
        assert sk.current_stream(of=array) == sk.current_stream()
        for stream in (sk.new_stream(), sk.new_stream("cpu")):
            with stream:
                assert sk.current_stream(of=array) == stream


def test_a_library_without_a_current_stream_is_named():
    array = need("numba").device_array(1)
    with pytest.raises(sk.errors.UnsupportedStreamError, match="numba has no current stream"):
        sk.current_stream(of=array)


# -- handed over ------------------------------------------------------------------------------


@pytest.mark.parametrize("on_the_current_stream", [True, False])
def test_the_target_waits_for_the_librarys_current_stream(toy, gate, on_the_current_stream):
    producer, other = sk.new_stream(nonblocking=True), sk.new_stream(nonblocking=True)
    target = sk.new_stream(nonblocking=True)
    toy.current[0] = (producer if on_the_current_stream else other).handle
    gate.hold(producer.handle)
    lent = sk.handoff(toy.Array(Memory().pointer), target)
    assert busy(target.handle) if on_the_current_stream else idle(target.handle)
    gate.open()
    target.sync()
    del lent


def test_what_comes_back_is_another_of_the_class_on_the_same_memory(toy):
    array = toy.Array(Memory().pointer, keeps="something")
    lent = sk.handoff(array, sk.new_stream(), after=sk.new_stream())
    assert type(lent) is toy.Array
    assert lent is not array
    assert (lent.pointer, lent.device) == (array.pointer, 0)
    stream = sk.new_stream()
    toy.current[0] = stream.handle
    assert sk.handoff(array, stream) is array, "it is on that queue already"


class Kept:
    """What an array holds."""


@pytest.mark.parametrize("left", ["array", "view"])
def test_the_memory_lives_until_the_targets_work_has_run(toy, gate, left):
    memory, target = Memory(), sk.new_stream(nonblocking=True)
    keeps = Kept()
    keeps_is_gone = weakref.ref(keeps)
    lent = sk.handoff(toy.Array(memory.pointer, keeps=keeps), target, after=sk.new_stream())
    del keeps
    if left == "view":
        lent = lent[:]
    gc.collect()
    assert keeps_is_gone() is not None, "while an array on it lives"
    gate.hold(target.handle)
    del lent
    stays_until(gate, target.sync, lambda: keeps_is_gone() is None)


def test_memory_that_could_not_be_lent_is_given_back(toy):
    toy.makes_none = True
    first, second = sk.new_stream(), sk.new_stream()
    second.wait(first)  # imports what it needs
    array = toy.Array(Memory().pointer)
    kept = weakref.ref(array)
    with pytest.raises(RuntimeError, match="without a reason"):
        sk.handoff(array, second, after=first)
    del array
    second.sync()
    gc.collect()
    assert kept() is None


# -- tvm-ffi, whose tensors have no such table (0.1.15) -------------------------------------------


@pytest.fixture
def tensor():
    """A tensor of tvm-ffi on Warp's memory, and whether nothing uses that any more."""
    tvm_ffi, warp = need("tvm_ffi", "warp")
    memory = Memory()
    array = warp.array(
        ptr=memory.pointer, shape=4, dtype=float, device="cuda:0", deleter=memory.free
    )
    return tvm_ffi.from_dlpack(array), memory.freed.is_set


def test_the_current_stream_of_a_tensor_is_tvm_ffis(tensor):
    tvm_ffi, stream = need("tvm_ffi"), sk.new_stream()
    with tvm_ffi.use_raw_stream(tvm_ffi.device("cuda", 0), stream.handle):
        assert sk.current_stream(of=tensor[0]) == stream
    with stream:
        assert sk.current_stream(of=tensor[0]) == stream


@pytest.mark.parametrize("on_the_current_stream", [True, False])
def test_the_target_waits_for_tvm_ffis_current_stream(tensor, gate, on_the_current_stream):
    producer, other = sk.new_stream(nonblocking=True), sk.new_stream(nonblocking=True)
    target = sk.new_stream(nonblocking=True)
    gate.hold(producer.handle)
    with sk.use(producer if on_the_current_stream else other, libraries=["tvm_ffi"]):
        lent = sk.handoff(tensor[0], target)
    assert busy(target.handle) if on_the_current_stream else idle(target.handle)
    gate.open()
    target.sync()
    assert type(lent) is type(tensor[0])
    one, other = map(need("warp").from_dlpack, (lent, tensor[0]))  # 0.1.6 tells no address
    assert one.ptr == other.ptr
