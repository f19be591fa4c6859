"""Memory that is used on another queue than its own: kept, handed over, and corrupted without."""

from __future__ import annotations

import ctypes
import gc
import os
import weakref
from types import SimpleNamespace

import numpy as np
import pytest

import streamkit as sk
from support.gpu.raw import Gate, busy, check, driver, idle, make_stream, sync
from support.keepalive import resident_bytes
from support.libraries import need

SIZE = 4096
ROUNDS = 200


class Torch:
    def __init__(self, subjects):
        self.module = subjects("torch").torch

    def full(self, value):
        return self.module.full((SIZE,), value, device="cuda", dtype=self.module.float32)

    def pointer(self, array):
        return array.data_ptr()


class TorchOfCupy(Torch):
    """Tensors on memory that CuPy's pool owns."""

    def __init__(self, subjects):
        super().__init__(subjects)
        self.cupy = Cupy(subjects)

    def full(self, value):
        return self.module.from_dlpack(self.cupy.full(value))


class Cupy:
    def __init__(self, subjects):
        self.module = subjects("cupy").cupy

    def full(self, value):
        return self.module.full(SIZE, value, dtype="f4")

    def pointer(self, array):
        return array.data.ptr


class CupyAsync(Cupy):
    def full(self, value):
        pool = self.module.cuda.MemoryAsyncPool()
        with self.module.cuda.using_allocator(pool.malloc):
            return super().full(value)


class Warp:
    def __init__(self, subjects):
        self.module = subjects("warp").warp

    def full(self, value):
        return self.module.full(SIZE, value, dtype=float, device="cuda:0")

    def pointer(self, array):
        return array.ptr


LIBRARIES = (Torch, TorchOfCupy, Cupy, CupyAsync, Warp)
each = pytest.mark.parametrize("kind", LIBRARIES)


def streams():
    """A blocking one, which Warp needs for its own memory, and another that does not wait."""
    return sk.new_stream(), sk.new_stream(nonblocking=True)


# -- handoff ----------------------------------------------------------------------------------


def corrupted(library, gate, rounds, hand_over):
    """In how many rounds an array was overwritten before its use on the other stream."""
    found = 0
    source, target = streams()
    out = check(driver.cuMemAlloc(4 * SIZE))
    read = np.empty(SIZE, "f4")
    for _ in range(rounds):
        with source:
            array = library.full(7)
            used = hand_over(array, target)
        target.wait(source)
        gate.hold(target.handle)
        check(driver.cuMemcpyDtoDAsync(out, library.pointer(used), 4 * SIZE, target.handle))
        del array, used
        with source:
            pressure = [library.full(9) for _ in range(4)]
        source.sync()
        gate.open()
        sync(target.handle)
        gate._view.value = 0
        check(driver.cuMemcpyDtoH(read.ctypes.data, out, 4 * SIZE))
        found += not (read == 7).all()
        del pressure
    check(driver.cuMemFree(out))
    return found


@each
def test_control_without_handoff_the_array_is_overwritten(subjects, gate, kind):
    library = kind(subjects)
    assert corrupted(library, gate, 20, lambda array, _: array) > 10


@each
def test_an_array_that_was_handed_over_is_never_overwritten(subjects, gate, kind):
    library = kind(subjects)
    assert corrupted(library, gate, ROUNDS, sk.handoff) == 0


@each
@pytest.mark.parametrize("handed", [True, False])
def test_the_stream_waits_for_the_librarys_current_one(subjects, gate, kind, handed):
    library = kind(subjects)
    source, target = streams()
    with source:
        array = library.full(7)
        gate.hold(source.handle)
        if handed:
            array = sk.handoff(array, target)
    target.record()
    assert busy(target.handle) if handed else idle(target.handle)
    gate.open()
    sync(target.handle)
    assert type(array) is type(library.full(7))


def test_a_tensor_of_torchs_comes_back_as_itself_with_its_gradient(subjects):
    torch = subjects("torch").torch
    source, target = streams()
    tensor = torch.ones(4, device="cuda", requires_grad=True)
    assert sk.handoff(tensor, target) is tensor
    assert tensor.requires_grad
    product = tensor * 2
    assert sk.handoff(product, target, after=source) is product


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "int8", "bool", "complex64"])
def test_a_tensor_on_foreign_memory_keeps_what_it_is(subjects, dtype):
    torch, cupy = subjects("torch").torch, subjects("cupy").cupy
    source, target = streams()
    base = torch.from_dlpack(cupy.arange(64, dtype="u1").reshape(4, 16) % 2)
    tensor = base.view(getattr(torch, dtype))[1:, ::2]
    lent = sk.handoff(tensor, target, after=source)
    assert lent is not tensor
    assert (lent.dtype, lent.shape, lent.stride()) == (tensor.dtype, tensor.shape, tensor.stride())
    assert lent.data_ptr() == tensor.data_ptr()
    sk.default_stream().sync()
    assert torch.equal(lent, tensor)


def test_what_cannot_be_lent_says_so(subjects):
    torch, cupy = subjects("torch").torch, subjects("cupy").cupy
    tensor = torch.from_dlpack(cupy.ones(4, "f4")).requires_grad_()
    for wrong in (tensor, torch.eye(3, device="cuda").to_sparse()):
        with pytest.raises(TypeError, match="cannot be handed over"):
            sk.handoff(wrong, sk.new_stream())


def of_cupy(subjects):
    return subjects("cupy").cupy.cuda.Stream(non_blocking=True)


def of_cuda_core(subjects):
    return subjects("cuda.core").new_stream()


FOREIGN = pytest.mark.parametrize("make", [of_cupy, of_cuda_core])


@FOREIGN
def test_a_tensor_for_a_foreign_stream_comes_back_as_itself(subjects, make):
    torch = subjects("torch").torch
    tensor = torch.ones(4, device="cuda", requires_grad=True)
    for handed in (tensor, tensor * 2, tensor.detach()[1:]):
        assert sk.handoff(handed, make(subjects)) is handed
    foreign = torch.from_dlpack(subjects("cupy").cupy.ones(4))  # which torch cannot count
    assert sk.handoff(foreign, make(subjects)) is not foreign


@FOREIGN
@pytest.mark.parametrize("handed", [True, False])
def test_a_tensor_handed_to_a_foreign_stream_is_not_overwritten(subjects, gate, make, handed):
    torch = subjects("torch").torch
    native = make(subjects)
    target = sk.wrap(native)
    out = check(driver.cuMemAlloc(4 * SIZE))
    tensor = torch.full((SIZE,), 7.0, device="cuda")
    torch.cuda.synchronize()
    if handed:
        tensor = sk.handoff(tensor, target)
    gate.hold(target.handle)
    check(driver.cuMemcpyDtoDAsync(out, tensor.data_ptr(), 4 * SIZE, target.handle))
    del tensor
    sk.new_stream()  # lets go of what it can
    gc.collect()
    pressure = [torch.full((SIZE,), 9.0, device="cuda") for _ in range(4)]
    torch.cuda.current_stream().synchronize()
    gate.open()
    target.sync()
    read = np.empty(SIZE, "f4")
    check(driver.cuMemcpyDtoH(read.ctypes.data, out, 4 * SIZE))
    check(driver.cuMemFree(out))
    del pressure
    assert bool((read == 7).all()) is handed


@FOREIGN
def test_a_stream_a_request_leaves_no_owner_and_no_memory(subjects, make):
    torch = subjects("torch").torch
    base = torch.cuda.memory_allocated()
    owners = []
    for _ in range(50):
        native = make(subjects)
        owners.append(weakref.ref(native))
        tensor = sk.handoff(torch.ones(SIZE, device="cuda"), native)
        del native
        assert owners[-1]() is not None
        del tensor
    torch.cuda.synchronize()
    for _ in range(2):  # the first marks the queues' ends
        gc.collect()
        torch.cuda.synchronize()
    assert [ref for ref in owners if ref() is not None] == []
    assert torch.cuda.memory_allocated() == base


# -- keep -------------------------------------------------------------------------------------


def a_tensor(subjects):
    made = Torch(subjects).full(1)
    return made, weakref.ref(made)


def a_cupy_array(subjects):
    made = Cupy(subjects).full(1)
    return made, weakref.ref(made)


def a_warp_array(subjects):
    made = Warp(subjects).full(1)
    return made, weakref.ref(made)


def a_numba_array(subjects):
    made = subjects("numba").cuda.device_array(4)
    return made, weakref.ref(made)


def a_capsule(subjects):
    made = Torch(subjects).full(1)
    storage = weakref.ref(made)
    return made.__dlpack__(), storage


def a_numpy_array(subjects):
    made = np.ones(4).view()
    return made, weakref.ref(made)


MADE = [a_tensor, a_cupy_array, a_warp_array, a_capsule, a_numpy_array]


@pytest.mark.parametrize(
    ("make", "kept"),
    # control arms without numba's, whose free may wait for the device
    [(a_numba_array, True), *((make, kept) for make in MADE for kept in (True, False))],
)
def test_what_is_kept_lives_until_the_work_before_has_run(subjects, gate, make, kept):
    stream = sk.wrap(subjects("torch").new_stream())
    stream.keep()
    thing, seen = make(subjects)
    check(driver.cuCtxSynchronize())
    gate.hold(stream.handle)
    if kept:
        stream.keep(thing)
    del thing
    gc.collect()
    assert (seen() is not None) is kept
    gate.open()
    stream.sync()
    assert seen() is None


def pinned_torch(subjects, count):
    made = subjects("torch").torch.empty(count, pin_memory=True)
    return made, made.data_ptr()


def pinned_cupy(subjects, count):
    subjects("cupy")
    import cupyx

    made = cupyx.empty_pinned(count, "f4")
    return made, made.ctypes.data


@pytest.mark.parametrize("make", [pinned_torch, pinned_cupy])
@pytest.mark.parametrize("kept", [True, False])
def test_pinned_memory_of_a_copy_is_not_used_again_before(subjects, gate, make, kept):
    cupy = subjects("cupy").cupy
    stream = sk.new_stream(nonblocking=True)
    target = cupy.zeros(SIZE, "f4")
    check(driver.cuCtxSynchronize())
    staging, pointer = make(subjects, SIZE)
    (ctypes.c_float * SIZE).from_address(pointer)[:] = [7.0] * SIZE
    gate.hold(stream.handle)
    target.data.copy_from_host_async(ctypes.c_void_p(pointer), 4 * SIZE, stream.to("cupy"))
    if kept:
        stream.keep(staging)
    del staging
    gc.collect()
    others = [make(subjects, SIZE) for _ in range(4)]  # of the same size: the next free ones
    for _, address in others:
        (ctypes.c_float * SIZE).from_address(address)[:] = [9.0] * SIZE
    gate.open()
    stream.sync()
    assert bool((target == 7).all()) is kept


def test_torchs_own_copy_on_the_stream(subjects, gate):
    torch = subjects("torch").torch
    stream = sk.new_stream(nonblocking=True)
    target = torch.zeros(SIZE, device="cuda")
    torch.cuda.synchronize()
    gate.hold(stream.handle)
    with stream:
        staging = torch.full((SIZE,), 7.0).pin_memory()
        target.copy_(staging, non_blocking=True)
    stream.keep(staging)
    seen = weakref.ref(staging)
    del staging
    assert seen() is not None
    gate.open()
    stream.sync()
    assert seen() is None
    assert bool((target == 7).all())


# -- what it leaves ---------------------------------------------------------------------------


CYCLES = int(os.environ.get("STREAMKIT_LEAK_CYCLES", "100000"))


def settled(action):
    """The memory before and after, once what is made once is made."""
    action(CYCLES)  # as often as below: the host may run ahead, and memory grows with that once
    gc.collect()
    before = used()
    action(CYCLES)
    gc.collect()
    return before, used()


def used():
    torch, cupy = need("torch", "cupy")
    torch.cuda.synchronize()
    sk.new_stream()
    return SimpleNamespace(
        objects=len(gc.get_objects()),
        resident=resident_bytes(),
        torch=torch.cuda.memory_allocated(),
        cupy=cupy.get_default_memory_pool().used_bytes(),
        free=check(driver.cuMemGetInfo())[0],
    )


def is_back(before, after):
    assert after.objects - before.objects < 50
    assert after.resident - before.resident < 2**20
    assert (after.torch, after.cupy) == (before.torch, before.cupy)


@pytest.mark.timeout(300)
def test_keep_leaves_nothing(subjects):
    torch, cupy = subjects("torch").torch, subjects("cupy").cupy
    streams = sk.new_stream(), sk.wrap(subjects("torch").new_stream())
    made = torch.ones(4, device="cuda"), cupy.ones(4)

    def cycle(count):
        for index in range(count):
            streams[index % 2].keep(made[index % 2][1:])
        for stream in streams:
            stream.sync()

    is_back(*settled(cycle))


@pytest.mark.alone  # for the device's free memory is that of all processes
@pytest.mark.timeout(300)
@each
def test_handoff_leaves_nothing(subjects, kind):
    """As many handoffs as cycles are asked for, those of all kinds together."""
    library = kind(subjects)
    one, other = streams()
    array = library.full(1)

    def cycle(count):
        for _ in range(count // (2 * len(LIBRARIES))):
            lent = sk.handoff(array, other, after=one)
            lent = sk.handoff(lent, one, after=other)
        del lent
        one.sync()
        other.sync()

    before, after = settled(cycle)
    is_back(before, after)
    assert before.free - after.free < 4 << 20


def test_who_is_given_the_integer_of_dlpack(subjects):
    torch, cupy = subjects("torch").torch, subjects("cupy").cupy
    tensor, array = torch.ones(4, device="cuda"), cupy.ones(4)
    for stream in (sk.new_stream(), sk.default_stream(), sk.from_handle(make_stream())):
        assert type(stream.dlpack_stream) is int
        for made in (tensor, array):
            assert made.__dlpack__(stream=stream.dlpack_stream) is not None


def test_an_array_on_a_blocking_stream_that_its_library_closed_lives_while_its_kernels_run():
    """The control is an array that nothing uses: it goes at once."""
    core = need("cuda")
    device = core.Device(0)
    device.set_current()
    gate = Gate()
    seen, busy_one = [], None
    for is_used in (False, True):
        native = device.create_stream(options=core.StreamOptions(nonblocking=False))
        array = need("cupy").zeros(1024)
        alive = weakref.ref(array)
        lent = sk.handoff(array, native, after=sk.default_stream(0))
        if is_used:
            gate.hold(int(native.handle))
            busy_one = alive
        else:
            native.sync()
        native.close()
        del array, lent, native
        for _ in range(3):
            sk.new_stream(0).sync()
            gc.collect()
        seen.append(alive() is not None)
    assert seen == [False, True]
    gate.open()
    need("cupy").cuda.runtime.deviceSynchronize()
    gc.collect()
    assert busy_one() is None
