"""``share_pool``: one cache for the libraries, given back in order, and restored exactly."""

from __future__ import annotations

import contextlib
import gc
import warnings

import pytest

import streamkit as sk
from streamkit.backends import _frees  # the control arm frees without order
from support.gpu.raw import check, driver
from support.libraries import need

LIMIT = 1 << 30
MOST = int(0.9 * LIMIT)
FREE = 4 << 30  # what the tests leave free where the device's own memory is the limit
ROUNDS = 200
SIZE = 1 << 20
LONG = 20_000_000  # cycles: some 10 ms


@pytest.fixture
def libraries():
    torch, cupy, wp = need("torch"), need("cupy"), need("warp")
    wp.config.log_level = wp.LOG_WARNING
    wp.init()
    from support.gpu import pressure

    spare = wp.zeros(4, dtype=wp.int32, device="cuda:0")
    wp.launch(pressure.fill, 4, [spare, 0], device="cuda:0")
    wp.launch(pressure.copy, 4, [spare, spare], device="cuda:0")
    (cupy.full(4, 1, "i4").copy() != 1).any().get()
    (torch.full((4,), 1, device="cuda") != 1).any().item()
    del spare
    before = cupy.cuda.get_allocator(), wp.get_device_allocator("cuda:0")
    yield torch, cupy, wp
    assert (cupy.cuda.get_allocator(), wp.get_device_allocator("cuda:0")) == before


@pytest.fixture
def giver(request):
    """Name the library whose pool it is; RMM has one of its own in the test."""
    if request.param != "rmm":
        yield request.param
        return
    rmm = need("rmm")
    before = rmm.mr.get_per_device_resource(0)
    pool = rmm.mr.PoolMemoryResource(rmm.mr.CudaMemoryResource(), initial_pool_size=1 << 20)
    rmm.mr.set_per_device_resource(0, rmm.mr.StatisticsResourceAdaptor(pool))
    yield "rmm"
    gc.collect()
    left = used_of_rmm()
    rmm.mr.set_per_device_resource(0, before)
    assert left == 0


def used_of_rmm():
    return need("rmm").mr.get_per_device_resource(0).allocation_counts.current_bytes


@pytest.fixture
def empty(libraries):
    """Have no library hold memory that it does not use."""
    torch, cupy, _ = libraries

    def empty():
        gc.collect()
        check(driver.cuCtxSynchronize())
        torch.cuda.empty_cache()
        cupy.get_default_memory_pool().free_all_blocks()
        check(driver.cuMemPoolTrimTo(check(driver.cuDeviceGetMemPool(0)), 0))

    empty()
    yield empty
    empty()


def in_turn(torch, cupy, wp):
    """Let each library use most of the limit, one after the other, twice; return what they hold."""
    for _ in range(2):
        torch.empty(MOST, dtype=torch.uint8, device="cuda").fill_(1)
        cupy.empty(MOST, "u1").fill(2)
        wp.empty(MOST, dtype=wp.uint8, device="cuda:0").fill_(3)
    pool = check(driver.cuDeviceGetMemPool(0))
    reserved = driver.CUmemPool_attribute.CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT
    native = int(check(driver.cuMemPoolGetAttribute(pool, reserved)))
    held = torch.cuda.memory_reserved() + cupy.get_default_memory_pool().total_bytes() + native
    print(f"each in turn uses {MOST / 1e9:.2f} GB; together they hold {held / 1e9:.2f} GB")
    return held


@pytest.mark.parametrize("is_shared", [True, False])
def test_each_in_turn_needs_the_memory_once(libraries, empty, is_shared):
    torch = libraries[0]
    torch.cuda.set_per_process_memory_fraction(
        LIMIT * 1.01 / torch.cuda.get_device_properties(0).total_memory
    )
    try:
        if is_shared:
            with sk.share_pool("torch", libraries=["cupy", "warp"]):
                assert in_turn(*libraries) <= LIMIT
                empty()
        else:
            assert in_turn(*libraries) > 2 * LIMIT
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)


@pytest.fixture
def little(empty):
    """Have so little memory left that no library can keep what another one needs."""
    free, _ = check(driver.cuMemGetInfo())
    block = check(driver.cuMemAlloc(free - FREE))
    yield FREE * 9 // 10
    empty()
    check(driver.cuMemFree(block))


@pytest.fixture
def use(libraries, little):
    """Let one library use nine tenths of what is left, and drop it."""
    torch, cupy, wp = libraries
    uses = {
        "torch": lambda: torch.empty(little, dtype=torch.uint8, device="cuda").fill_(1),
        "cupy": lambda: cupy.empty(little, "u1").fill(2),
        "warp": lambda: wp.empty(little // 4, dtype=wp.int32, device="cuda:0").fill_(3),
        "rmm": lambda: need("rmm").DeviceBuffer(size=little),
    }

    def use(name):
        uses[name]()
        check(driver.cuCtxSynchronize())

    return use


@pytest.mark.alone  # for the device's free memory is that of all processes
@pytest.mark.parametrize("scope", [True, False])
@pytest.mark.parametrize(
    ("giver", "takers"),
    [
        ("torch", ["cupy", "warp"]),
        ("torch", ["cupy"]),
        ("cupy", ["warp"]),
        ("rmm", ["cupy", "warp"]),
    ],
    indirect=["giver"],
)
def test_nine_tenths_of_the_memory_serve_each_in_turn(use, giver, takers, scope):
    with sk.share_pool(giver, libraries=takers):
        for name in [giver, *takers] * 2:
            with sk.new_stream(nonblocking=True) if scope else contextlib.nullcontext():
                use(name)


@pytest.mark.alone
def test_control_without_a_shared_pool_they_run_out_of_memory(libraries, use, empty):
    cupy = libraries[1]
    for first, second, error in (
        ("torch", "cupy", cupy.cuda.memory.OutOfMemoryError),
        ("torch", "warp", RuntimeError),
        ("cupy", "warp", RuntimeError),
        ("cupy", "torch", RuntimeError),
    ):
        use(first)
        with pytest.raises(error, match=r"(?i)memory|allocate"):
            use(second)
        empty()
        use(second)  # it is what the other keeps that was missing
        empty()


class ByWarp:
    """An array of Warp's stream that a scope's stream uses, and that is dropped after the scope."""

    def __init__(self, wp, cupy):
        from support.gpu import pressure

        self.wp, self.kernels = wp, pressure
        self.result = wp.zeros(SIZE, dtype=wp.int32, device="cuda:0")

    def once(self, stream, sleep):
        wp, kernels = self.wp, self.kernels
        a = wp.empty(SIZE, dtype=wp.int32, device="cuda:0")
        with sk.use(stream):
            wp.launch(kernels.fill, SIZE, [a, 1], device="cuda:0")
            sleep()  # while it sleeps, others must not write
            wp.launch(kernels.copy, SIZE, [a, self.result], device="cuda:0")
        del a
        b = wp.empty(SIZE, dtype=wp.int32, device="cuda:0")
        wp.launch(kernels.fill, SIZE, [b, 99], device="cuda:0")
        check(driver.cuCtxSynchronize())
        return bool((self.result.numpy() != 1).any())


class ByCupy:
    """An array of the default stream that a scope's stream uses, and that is dropped inside."""

    def __init__(self, wp, cupy):
        self.cupy, self.stream = cupy, cupy.cuda.Stream(non_blocking=True)

    def once(self, stream, sleep):
        cupy = self.cupy
        with self.stream:
            a = cupy.empty(SIZE, "i4")
        with sk.use(stream):
            a.fill(1)
            sleep()
            result = a.copy()
            del a
        with self.stream:
            b = cupy.empty(SIZE, "i4")
            b.fill(99)
        check(driver.cuCtxSynchronize())
        return bool((result != 1).any())


@pytest.mark.parametrize(
    ("kind", "giver"),
    [
        (ByWarp, "torch"),
        (ByCupy, "torch"),
        (ByWarp, "cupy"),
        (ByWarp, "rmm"),
        (ByCupy, "rmm"),
    ],
    indirect=["giver"],
)
@pytest.mark.parametrize("nonblocking", [True, False])
@pytest.mark.parametrize("is_ordered", [True, False])
def test_memory_goes_back_after_the_work_of_the_last_stream(  # noqa: PLR0917 - the cases
    libraries, empty, monkeypatch, kind, giver, nonblocking, is_ordered
):
    torch, cupy, wp = libraries
    stream = sk.new_stream(nonblocking=nonblocking)
    if not is_ordered:
        monkeypatch.setattr(_frees, "_has_order", lambda *_: True)
    with sk.share_pool(giver, libraries={"cupy", "warp"} - {giver}):
        subject = kind(wp, cupy)
        subject.once(stream, lambda: None)
        rounds = ROUNDS if is_ordered else 20
        cycles = LONG if is_ordered else 10 * LONG  # the control needs the others' write meanwhile
        sleep = lambda: torch.cuda._sleep(cycles)  # noqa: E731
        wrong = sum(subject.once(stream, sleep) for _ in range(rounds))
        del subject
    print(kind.__name__, giver, nonblocking, is_ordered, wrong)
    assert (wrong == 0) is is_ordered


@pytest.mark.parametrize("giver", ["torch", "cupy", "rmm"], indirect=True)
def test_inside_a_capture_memory_is_the_graphs(libraries, empty, giver):
    torch, cupy, wp = libraries
    from support.gpu import pressure

    def work():
        a = wp.empty(SIZE, dtype=wp.int32, device="cuda:0")
        wp.launch(pressure.fill, SIZE, [a, 7], device="cuda:0")
        b = wp.empty(SIZE, dtype=wp.int32, device="cuda:0")
        wp.launch(pressure.copy, SIZE, [a, b], device="cuda:0")
        c = cupy.full(SIZE, 3, "i4") + 1
        return b, c

    with sk.share_pool(giver, libraries={"cupy", "warp"} - {giver}):
        with sk.new_stream(nonblocking=True):
            work()
        with sk.capture() as g:
            b, c = work()
        others = [torch.full((SIZE,), 99, dtype=torch.int32, device="cuda") for _ in range(8)]
        others += [cupy.full(SIZE, 99, "i4") for _ in range(8)]
        g.launch()
        g.launch()
        g.stream.sync()
        assert (b.numpy() == 7).all()
        assert bool((c == 4).all())
        assert all(bool((x == 99).all()) for x in others)
        del b, c
        g.close()


def test_where_cupy_has_no_memory_its_current_stream_comes_back(libraries, empty):
    _, cupy, wp = libraries
    pool, before = cupy.get_default_memory_pool(), cupy.cuda.get_current_stream().ptr
    with sk.share_pool("cupy", libraries="warp"):
        pool.set_limit(size=max(1, pool.total_bytes()))
        try:
            with pytest.raises((RuntimeError, MemoryError), match=r"(?i)memory|allocate"):
                wp.empty(SIZE, dtype=wp.int32, device="cuda:0")
        finally:
            pool.set_limit(size=0)
        assert cupy.cuda.get_current_stream().ptr == before


def test_arrays_stay_in_their_pool_and_all_is_restored(libraries, empty):
    torch, cupy, wp = libraries
    own, pool = cupy.full(SIZE, 1, "i4"), cupy.get_default_memory_pool()
    used = pool.used_bytes()
    cupy.full(SIZE, 1, "i4")  # CuPy keeps its memory
    assert pool.free_bytes() >= 4 * SIZE
    base = torch.cuda.memory_allocated()
    shared = sk.share_pool("torch", libraries=["cupy", "warp"])
    assert shared.libraries == ("cupy", "warp")
    assert pool.free_bytes() == 0
    theirs = cupy.full(SIZE, 2, "i4"), wp.full(SIZE, 3, dtype=wp.int32, device="cuda:0")
    assert pool.used_bytes() == used
    assert torch.cuda.memory_allocated() - base == 8 * SIZE
    shared.close()
    shared.close()
    assert torch.cuda.memory_allocated() - base == 8 * SIZE
    assert (int(own.sum()), int(theirs[0].sum())) == (SIZE, 2 * SIZE)
    assert (theirs[1].numpy() == 3).all()
    del theirs
    assert torch.cuda.memory_allocated() == base
    assert pool.used_bytes() >= used


@pytest.mark.filterwarnings("ignore:numba cannot allocate:RuntimeWarning")  # where it is loaded
@pytest.mark.parametrize("giver", ["rmm"], indirect=True)
def test_rmm_has_the_memory_and_torch_keeps_its_own(libraries, empty, giver):
    torch, cupy, wp = libraries
    base = torch.cuda.memory_allocated()
    with pytest.warns(RuntimeWarning, match="torch cannot allocate from the pool of rmm"):
        shared = sk.share_pool("rmm")
    theirs = cupy.full(SIZE, 2, "i4"), wp.full(SIZE, 3, dtype=wp.int32, device="cuda:0")
    own = torch.full((SIZE,), 1, dtype=torch.int32, device="cuda")
    assert used_of_rmm() == 8 * SIZE
    shared.close()
    assert (int(theirs[0].sum()), int(own.sum())) == (2 * SIZE, SIZE)
    assert (theirs[1].numpy() == 3).all()
    assert torch.cuda.memory_allocated() - base == 4 * SIZE
    del theirs
    assert used_of_rmm() == 0


@pytest.mark.parametrize("giver", ["rmm"], indirect=True)
def test_rmm_never_sees_a_stream_that_captures(libraries, empty, giver):
    _, cupy, _ = libraries
    stream = cupy.cuda.Stream(non_blocking=True)
    with sk.share_pool("rmm", libraries="cupy"), stream:
        before = cupy.full(SIZE, 1, "i4")
        stream.begin_capture()
        del before
        with pytest.raises(sk.CaptureError, match="RMM has no memory for a graph"):
            cupy.empty(SIZE, "i4")
        stream.end_capture()  # fails if that ended the capture
        assert used_of_rmm() == 4 * SIZE
        again = cupy.full(SIZE, 1, "i4")
        assert used_of_rmm() == 4 * SIZE, "the next allocation has freed what was left"
        del again


def test_who_cannot_change_is_left_out_with_a_warning(libraries):
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        with sk.share_pool("cupy") as shared:
            assert shared.libraries == ("warp",)
    left_out = {str(one.message).partition(" ")[0] for one in told}
    assert {"torch"} <= left_out <= {"torch", "numba"}, "numba may be loaded by other tests"
    with pytest.raises(sk.UnsupportedStreamError, match="torch cannot allocate"):
        sk.share_pool("cupy", libraries=["warp", "torch"])


def test_cupys_pool_serves_warp_on_its_stream(libraries, empty):
    _, cupy, wp = libraries
    pool = cupy.get_default_memory_pool()
    before, current = pool.used_bytes(), cupy.cuda.get_current_stream()
    with sk.share_pool("cupy", libraries="warp"):
        stream = sk.new_stream(nonblocking=True)
        with sk.use(stream, libraries=["warp"]):
            theirs = wp.full(SIZE, 3, dtype=wp.int32, device="cuda:0")
        assert cupy.cuda.get_current_stream() is current
        assert pool.used_bytes() - before == 4 * SIZE
    stream.sync()  # Warp's copy to the host does not wait for it
    assert (theirs.numpy() == 3).all()
    del theirs
    assert pool.used_bytes() == before


def test_an_allocator_that_was_changed_meanwhile_is_left_alone(libraries):
    _, cupy, _ = libraries
    before = cupy.cuda.get_allocator()
    shared = sk.share_pool("torch", libraries="cupy")
    cupy.cuda.set_allocator(None)
    changed = cupy.cuda.get_allocator()
    with pytest.warns(RuntimeWarning, match="was changed while the pool of torch was shared"):
        shared.close()
    assert cupy.cuda.get_allocator() == changed
    cupy.cuda.set_allocator(before)


def test_what_cannot_be_is_refused(libraries):
    _, cupy, _ = libraries
    for arguments in (("warp",), ("torch", ["torch"]), ("torch", ["cuda.core"]), ("cupy", "torch")):
        with pytest.raises((sk.UnsupportedStreamError, ValueError)):
            sk.share_pool(arguments[0], libraries=arguments[1] if arguments[1:] else None)
    with sk.capture() as g:
        cupy.full(4, 1, "i4")
        with pytest.raises(sk.CaptureError, match="share it before"):
            sk.share_pool("torch", libraries="cupy")
        assert g.stream.is_capturing
    g.close()
    with cupy.cuda.using_allocator(None), pytest.raises(ValueError, match="using_allocator"):
        sk.share_pool("torch", libraries="cupy")
