"""Memory dropped while its work is pending, and others that want memory: who writes into whose.

Each round holds a queue by a spinning kernel, lets work wait there on a temporary, drops that, and
lets another stream allocate and fill memory of the same size. In the control arms the libraries are
alone.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import warnings

import numpy as np
import pytest

import streamkit as sk
from support.gpu.raw import check, destroy_stream, driver, make_stream, sync
from support.libraries import need

ROUNDS = 200
LONG = 90_000_000  # cycles: some 45 ms, for many allocations
SIZE = 1 << 16
SMALL = 4096  # bytes: of these there are many to choose from
SIZES = (512, 4096, *(1 << n for n in range(14, 21)))  # those of the temporaries below, too


@pytest.fixture(scope="module")
def warp():
    warp = need("warp")
    warp.config.log_level = warp.LOG_WARNING
    warp.init()
    from support.gpu import pressure

    spare = warp.zeros(SIZE, dtype=warp.int32, device="cuda:0")
    warp.launch(pressure.fill, SIZE, [spare, 0], device="cuda:0")
    warp.launch(pressure.copy, SIZE, [spare, spare], device="cuda:0")
    warp.synchronize()
    return warp


@pytest.fixture(scope="module")
def torch():
    torch = need("torch")
    (torch.ones(4, dtype=torch.int32, device="cuda") + 0 != 1).any().item()
    torch.full((4,), 99, dtype=torch.int32, device="cuda")
    return torch


@pytest.fixture(scope="module")
def cupy():
    cupy = need("cupy")
    (cupy.full(4, 1, dtype="i4") + 0 != 1).any().get()  # compiling would outlast the hold
    return cupy


class NotHeldError(Exception):
    """The queue was not held until the end of the round, which says nothing then."""


def rounds(count, once):
    """How many of so many rounds, each held, were corrupted."""
    results = []
    for _ in range(2 * count):
        with contextlib.suppress(NotHeldError):
            results.append(bool(once()))
        if len(results) == count:
            return sum(results)
    pytest.fail(f"only {len(results)} of {2 * count} rounds were held: the host is too slow")


def wrong(warp, result):
    return bool((result.numpy() != 1).any())


class ByWarp:
    """Warp's arrays, and another stream of Warp's that wants memory."""

    def __init__(self, warp, stream):
        from support.gpu import pressure

        self.warp, self.kernels, self.scope = warp, pressure, stream
        self.other = warp.Stream("cuda:0")
        self.result = warp.zeros(SIZE, dtype=warp.int32, device="cuda:0")
        warp.synchronize()

    def corrupted(self, handle, hold, before=None, dropping=contextlib.nullcontext):
        warp, launch = self.warp, self.warp.launch
        gate = None
        with self.scope():
            temporary = before or warp.empty(SIZE, dtype=warp.int32, device="cuda:0")
            launch(self.kernels.fill, SIZE, [temporary, 1], device="cuda:0")
            gate = hold(handle)
            gate.__enter__()
            launch(self.kernels.copy, SIZE, [temporary, self.result], device="cuda:0")
        with dropping():
            before = None
            del temporary
        with warp.ScopedStream(self.other, sync_enter=False):
            others = [warp.empty(SIZE, dtype=warp.int32, device="cuda:0") for _ in range(3)]
            for other in others:
                launch(self.kernels.fill, SIZE, [other, 99], device="cuda:0")
        try:
            gate.check()
        finally:
            gate.__exit__(None, None, None)
        return wrong(warp, self.result)


@pytest.fixture
def spin(torch):
    """Hold a queue for some milliseconds, in which the host goes on."""

    class Spin:
        def __init__(self, handle, cycles=5_000_000):
            self.cycles = cycles
            self.stream = torch.cuda.get_stream_from_external(handle, 0)
            self.passed = torch.cuda.Event()

        def __enter__(self):
            with torch.cuda.stream(self.stream):
                torch.cuda._sleep(self.cycles)
                self.passed.record()
            return self

        def check(self):
            if self.passed.query():  # a busy host was too slow
                raise NotHeldError

        def __exit__(self, *_):
            torch.cuda.synchronize()

    return Spin


def streams_of(kind, torch):
    """A non-blocking stream, what StreamKit makes of it, and what ends it."""
    if kind == "torch":
        stream = torch.cuda.Stream()
        return stream.cuda_stream, sk.wrap(stream)
    if kind == "owned":
        stream = sk.new_stream(nonblocking=True)
        return stream.handle, stream
    core = need("cuda").Device(0)
    core.set_current()
    native = core.create_stream()
    return int(native.handle), sk.wrap(native)


@pytest.fixture
def unwatched(warp):
    """Warp's frees wait for no queue that was lent before: torch's 32 streams come again."""
    from streamkit.backends._warp import memory  # the control takes the guard away

    memory.watched.clear()


@pytest.mark.usefixtures("unwatched")
def test_control_warp_alone_corrupts(warp, torch, spin):
    stream = torch.cuda.Stream()
    view = warp.Stream("cuda:0", cuda_stream=stream.cuda_stream)
    arm = ByWarp(warp, lambda: warp.ScopedStream(view, sync_enter=False))
    assert rounds(20, lambda: arm.corrupted(stream.cuda_stream, spin)) > 5


@pytest.mark.parametrize("kind", ["torch", "owned", "cuda.core"])
def test_arrays_of_warp(warp, torch, spin, kind):
    handle, stream = streams_of(kind, torch)
    arm = ByWarp(warp, lambda: stream)
    assert rounds(ROUNDS, lambda: arm.corrupted(handle, spin)) == 0


def test_arrays_of_warp_made_before_the_scope(warp, torch, spin):
    handle, stream = streams_of("torch", torch)
    arm = ByWarp(warp, lambda: stream)

    def once():
        held = [warp.empty(SIZE, dtype=warp.int32, device="cuda:0")]
        return arm.corrupted(handle, spin, held.pop())

    assert rounds(ROUNDS, once) == 0


@contextlib.contextmanager
def told_late(warp, handle, view):
    """A capture begun by others, of which the user tells Warp."""
    check(driver.cuStreamBeginCapture(handle, driver.CUstreamCaptureMode(1)))
    warp.capture_begin(stream=view, external=True)
    yield
    warp.capture_end(stream=view)
    check(driver.cuGraphDestroy(check(driver.cuStreamEndCapture(handle))))
    warp.capture_begin("cuda:0")  # with the end of one of its own Warp frees what it has put off
    warp.capture_end("cuda:0")


@pytest.mark.usefixtures("unwatched")
@pytest.mark.parametrize("alone", [True, False])
def test_arrays_dropped_in_a_capture_that_warp_is_told_of_late(warp, torch, spin, alone):
    """Their work is from before the capture; the control arm is Warp alone."""
    # of a torch stream another view may have died, and then Warp's native part knows none
    handle, stream = streams_of("torch" if alone else "owned", torch)
    view = warp.Stream("cuda:0", cuda_stream=handle) if alone else stream.to("warp")
    arm = ByWarp(warp, lambda: warp.ScopedStream(view, sync_enter=False) if alone else stream)
    dropping = functools.partial(told_late, warp, handle, view)
    corrupted = rounds(20, lambda: arm.corrupted(handle, spin, dropping=dropping))
    assert corrupted > 5 if alone else corrupted == 0


# -- native functions -------------------------------------------------------------------------


# Each of these gives the work, and what tells whether its result is right, where that is cheap.


def unseen():
    return True


def scan(warp):
    count = 1 << 20
    numbers = warp.ones(count, dtype=warp.int32, device="cuda:0")
    sums = warp.zeros(count, dtype=warp.int32, device="cuda:0")
    expected = np.arange(1, count + 1)
    return (
        lambda: warp.utils.array_scan(numbers, sums, inclusive=True),
        lambda: np.array_equal(sums.numpy(), expected),
    )


def reduce(warp):
    floats = warp.ones(1 << 20, dtype=warp.float32, device="cuda:0")
    total = warp.zeros(1, dtype=warp.float32, device="cuda:0")
    return (
        lambda: warp.utils.array_sum(floats, out=total),
        lambda: total.numpy()[0] == 1 << 20,
    )


def sort(warp):
    """Of three lengths, each of which outgrows the buffer that Warp keeps for a stream."""
    random, sorts = np.random.default_rng(0), []
    for count in (1 << 12, 1 << 15, 1 << 17):
        numbers = random.integers(1 << 30, size=count, dtype="i4")
        keys, values = (warp.zeros(2 * count, dtype=warp.int32, device="cuda:0") for _ in range(2))
        unsorted = warp.array(numbers, dtype=warp.int32, device="cuda:0")
        sorts.append((keys, values, unsorted, np.sort(numbers)))

    def work():
        for keys, values, unsorted, _ in sorts:
            warp.copy(keys, unsorted, count=unsorted.size)
            warp.utils.radix_sort_pairs(keys, values, unsorted.size)

    def right():
        return all(
            np.array_equal(keys.numpy()[: expected.size], expected)
            for keys, _, _, expected in sorts
        )

    return work, right


def run_length(warp):
    count = 1 << 18
    values = warp.zeros(count, dtype=warp.int32, device="cuda:0")
    numbers, lengths = (warp.zeros(count, dtype=warp.int32, device="cuda:0") for _ in range(2))
    runs = warp.zeros(1, dtype=warp.int32, device="cuda:0")
    return (
        lambda: warp.utils.runlength_encode(values, numbers, lengths, run_count=runs),
        lambda: (runs.numpy()[0], lengths.numpy()[0]) == (1, count),
    )


def sparse(warp):
    from warp import sparse

    rows = warp.zeros(1 << 15, dtype=warp.int32, device="cuda:0")
    matrix = sparse.bsr_zeros(1 << 10, 1 << 10, warp.float32, device="cuda:0")
    values = warp.ones(rows.size, dtype=warp.float32, device="cuda:0")
    return (
        lambda: sparse.bsr_set_from_triplets(matrix, rows, rows, values),
        lambda: matrix.values.numpy()[0] == rows.size,
    )


def hash_grid(warp):
    points = warp.zeros(1 << 12, dtype=warp.vec3, device="cuda:0")
    grid = warp.HashGrid(32, 32, 32, device="cuda:0")
    return lambda: grid.build(points, 1.0), unseen


def corners(warp, count):
    random = np.random.default_rng(0).random((count, 3), dtype="f4")
    return warp.array(random, dtype=warp.vec3, device="cuda:0")


def triangles(warp):
    points = corners(warp, 3 << 14)
    return points, warp.array(np.arange(3 << 14, dtype="i4"), dtype=warp.int32, device="cuda:0")


def mesh(warp):
    """Made and dropped, so that what it keeps goes too."""
    points, indices = triangles(warp)
    return lambda: warp.Mesh(points, indices).id, unseen


def refit(warp):
    made = warp.Mesh(*triangles(warp))
    return made.refit, unseen


def tree(warp):
    made = warp.Bvh(corners(warp, 1 << 14), corners(warp, 1 << 14))
    return made.rebuild, unseen


def volume(warp):
    points = warp.array(np.arange(3 << 12, dtype="i4").reshape(-1, 3), dtype=warp.vec3i)
    points = points.to("cuda:0")
    made = warp.Volume.allocate_by_voxels(points, voxel_size=1.0, rebuildable=True)
    return lambda: made.rebuild(points), unseen


NATIVES = [scan, reduce, sort, run_length, sparse, hash_grid, mesh, refit, tree, volume]


def intruded(warp, other, scope, native, held):
    """Whether a native function's temporary lay in memory that another stream was given."""
    work, is_right = native
    with scope, held as hold:
        work()
        with warp.ScopedStream(other, sync_enter=False):
            arrays = [
                warp.empty(size // 4, dtype=warp.int32, device="cuda:0")
                for size in SIZES
                for _ in range(64 if size <= SMALL else 16)
            ]
            for array in arrays:
                array.fill_(1)
        hold.check()
        sync(other.cuda_stream)
    return not is_right() or any(wrong(warp, array) for array in arrays)


@pytest.fixture
def native(warp, request):
    """A native function that has run once: to load a kernel can wait for the device."""
    work, is_right = request.param(warp)
    work()
    warp.synchronize()
    assert is_right()
    return work, is_right


# without sort, whose buffer is the stream's own: it goes only where a longer sort outgrows it
@pytest.mark.usefixtures("unwatched")
@pytest.mark.parametrize("native", [scan, reduce, sparse, mesh, volume], indirect=True)
def test_control_native_functions_of_warp_alone_write_into_the_memory_of_others(
    warp, torch, spin, native
):
    stream, other = torch.cuda.Stream(), warp.Stream("cuda:0")
    view = warp.Stream("cuda:0", cuda_stream=stream.cuda_stream)

    def once():
        scope = warp.ScopedStream(view, sync_enter=False)
        return intruded(warp, other, scope, native, spin(stream.cuda_stream, LONG))

    assert rounds(5, once)


@pytest.mark.parametrize("native", NATIVES, indirect=True)
def test_native_functions_of_warp(warp, torch, spin, native):
    other, pool = warp.Stream("cuda:0"), int(check(driver.cuDeviceGetMemPool(0)))

    def once():
        handle, stream = streams_of("torch", torch)
        return intruded(warp, other, stream, native, spin(handle, LONG))

    assert rounds(20, once) == 0
    assert int(check(driver.cuDeviceGetMemPool(0))) == pool


def test_a_native_function_beside_a_capture_of_this_thread_leaves_it_valid(warp, torch):
    from streamkit.backends._warp import memory  # the control takes the guard away

    _, stream = streams_of("owned", torch)
    with stream:
        call = memory._in_own_pools(lambda: int(check(driver.cuDeviceGetMemPool(0))))
        own = call()
        assert own != int(check(driver.cuDeviceGetMemPool(0)))
        for mode in (0, 1):
            capturing = make_stream()
            check(driver.cuStreamBeginCapture(capturing, driver.CUstreamCaptureMode(mode)))
            assert call() == own
            check(driver.cuGraphDestroy(check(driver.cuStreamEndCapture(capturing))))
            destroy_stream(capturing)


# -- what is not covered ----------------------------------------------------------------------


class Own:
    """An allocator of the user's."""

    def __init__(self):
        self.made, self.freed = [], []

    def allocate(self, size_in_bytes):
        self.made.append(int(check(driver.cuMemAlloc(size_in_bytes))))
        return self.made[-1]

    def deallocate(self, ptr, size_in_bytes):
        check(driver.cuMemFree(ptr))
        self.freed.append(ptr)


def test_a_users_allocator_is_left_alone_and_told_of_once(warp, torch):
    (_, stream), own = streams_of("torch", torch), Own()
    usual = warp.get_device_allocator("cuda:0")
    warp.set_device_allocator("cuda:0", own)
    try:
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            for _ in range(3):
                with stream:
                    array = warp.ones(SIZE, dtype=warp.int32, device="cuda:0")
                assert array.ptr == own.made[-1]
                assert warp.get_device_allocator("cuda:0") is own
            stream.sync()
            assert not wrong(warp, array)
            del array
    finally:
        warp.set_device_allocator("cuda:0", None)
    assert ["Own" in str(one.message) for one in told if "s.keep" in str(one.message)] == [True]
    assert len(own.made) == 3
    assert sorted(own.freed) == sorted(own.made)
    assert warp.get_device_allocator("cuda:0") is usual


# -- CuPy -------------------------------------------------------------------------------------


@pytest.fixture(params=["default", "async"])
def pool(cupy, request):
    made = cupy.cuda.MemoryPool() if request.param == "default" else cupy.cuda.MemoryAsyncPool()
    before = cupy.cuda.get_allocator()
    cupy.cuda.set_allocator(made.malloc)
    yield request.param
    gc.collect()
    cupy.cuda.Device(0).synchronize()
    cupy.cuda.set_allocator(before)


def is_corrupt(result, others):
    """Whether the work found other values than its own, or wrote its own over those of others."""
    return bool((result != 1).any()) or any(bool((other != 99).any()) for other in others)


def cupy_corrupts(cupy, use_in, held, other, *, make_in=None, keep=None, end=None):
    """Drop an array after its scope, when another stream is current."""
    with make_in or use_in():
        temporary = cupy.full(SIZE, 1, dtype="i4")
    cupy.cuda.Device(0).synchronize()
    with held:
        with use_in():
            result = temporary + 0
        if keep:
            keep(temporary)
        if end:
            end()
        with other:
            del temporary
            others = [cupy.full(SIZE, 99, dtype="i4") for _ in range(3)]
        held.check()
    return is_corrupt(result, others)


def test_control_cupy_alone_corrupts(cupy, torch, spin, pool):
    """An array of one stream used on another; of stream-ordered memory, a wrapper that is gone."""
    other = cupy.cuda.Stream(non_blocking=True)

    def once():
        stream = torch.cuda.Stream()
        held, make_in = spin(stream.cuda_stream), other if pool == "default" else None
        use_in = functools.partial(cupy.cuda.Stream.from_external, stream)
        return cupy_corrupts(cupy, use_in, held, other, make_in=make_in)

    assert rounds(20, once) > 5


@pytest.mark.parametrize("kind", ["torch", "owned", "cuda.core"])
def test_arrays_of_cupy(cupy, torch, spin, pool, kind):
    """As the control arm has them; an array of another stream is kept for the one that uses it."""
    other = cupy.cuda.Stream(non_blocking=True)

    def once():
        handle, stream = streams_of(kind, torch)
        streams = [stream]
        del stream

        def keep(array):  # not the bound method, which would keep the stream
            streams[0].keep(array)

        options = {"make_in": other, "keep": keep} if pool == "default" else {}
        use_in = functools.partial(streams.__getitem__, 0)
        return cupy_corrupts(cupy, use_in, spin(handle), other, end=streams.clear, **options)

    assert rounds(ROUNDS, once) == 0
    gc.collect()
    from streamkit.backends._cupy import adapter as memory  # no public name tells what is kept

    memory.release()
    assert not memory._kept, "their memory is gone"


# -- torch ------------------------------------------------------------------------------------


def torch_corrupts(torch, held, make_in, use_in, keep=None):
    """Drop a tensor of one stream that is used on another."""
    with make_in:
        temporary = torch.ones(SIZE, dtype=torch.int32, device="cuda")
    torch.cuda.synchronize()
    with held:
        with use_in:
            result = temporary + 0
        if keep:
            keep(temporary)
        del temporary
        with make_in:
            others = [torch.full((SIZE,), 99, dtype=torch.int32, device="cuda") for _ in range(3)]
        held.check()
    return is_corrupt(result, others)


def test_control_torch_alone_corrupts(torch, spin):
    stream, other = torch.cuda.Stream(), torch.cuda.Stream()
    make_in, use_in = torch.cuda.stream(other), torch.cuda.stream(stream)

    def once():
        return torch_corrupts(torch, spin(stream.cuda_stream), make_in, use_in)

    assert rounds(20, once) > 5


@pytest.mark.parametrize("kind", ["torch", "owned", "cuda.core"])
def test_tensors_of_torch(torch, spin, kind):
    handle, stream = streams_of(kind, torch)
    make_in = torch.cuda.stream(torch.cuda.Stream())

    def once():
        return torch_corrupts(torch, spin(handle), make_in, stream, stream.keep)

    assert rounds(ROUNDS, once) == 0
