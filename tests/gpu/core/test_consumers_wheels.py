"""Libraries without an adapter, each given a stream as ``docs/parity/consumers.toml`` says.

Those that are not installed are skipped. docs/maintain/evidence.md says how to install them.
"""

from __future__ import annotations

import contextlib
import ctypes
import shutil
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest

import streamkit as sk
from support.gpu.raw import LEGACY, check, driver, held, sync
from support.libraries import need

pytestmark = pytest.mark.filterwarnings("ignore")  # the libraries' own, which they can mend

SIZE = 256


def consumer(module):
    """Import it, or skip the test for the reason by which evidence.py knows it."""
    return pytest.importorskip(module, reason=f"a consumer that is not installed: {module}")


@pytest.fixture
def stream(subjects):
    for name in ("torch", "cupy", "warp"):  # a scope moves all that are imported
        subjects(name)
    return sk.new_stream(nonblocking=True)  # which work on the legacy stream does not wait for


@pytest.fixture
def assert_waits(stream, gate, peek):
    """Have a library turn a target's 0 into 2, which waits for the stream if it was given that.

    The control is in a scope, which these libraries ignore, unless one has no scope.
    """

    def assert_waits(target, work, *, given, scope=True):
        assert peek(target) == 0
        gate.hold(stream.handle)
        with stream if scope and not given else contextlib.nullcontext():
            work()
        if not given:
            sync(LEGACY)
        assert held(stream.handle)
        assert (peek(target), gate.closed) == (0 if given else 2, True)
        gate.open()
        sync(stream.handle)
        assert peek(target) == 2

    return assert_waits


def loaded(work, target):
    """Run it once, for what it compiles or loads then would wait for the held stream."""
    work()
    check(driver.cuCtxSynchronize())
    assert target.read() == 2
    target.write(0)


@pytest.mark.parametrize("given", [True, False])
def test_rmm_copies_on_its_stream_made_of_ours(stream, cells, assert_waits, given):
    buffer, own = consumer("rmm").DeviceBuffer, consumer("rmm.pylibrmm.stream").Stream
    source, target = (buffer(ptr=cells(value).pointer, size=4) for value in (2, 0))
    work = partial(target.copy_from_device, source, *([own(stream)] if given else []))
    assert_waits(SimpleNamespace(pointer=target.ptr, device=0), work, given=given)


@pytest.mark.parametrize("library", ["torch", "cupy"])
@pytest.mark.parametrize("given", ["own", "handle", "scope", None])
def test_nvmath_works_on_the_stream_beside_its_operand(
    subjects, stream, assert_waits, library, given
):
    fft, first = consumer("nvmath.fft"), np.eye(1, SIZE, dtype="c8")[0] * 2  # its transform: 2s
    if library == "torch":
        operand = subjects("torch").torch.from_numpy(first).cuda()
        pointer = operand.data_ptr()
    else:
        operand = subjects("cupy").cupy.asarray(first)
        pointer = operand.data.ptr
    streams = {"own": stream.to(library), "handle": stream.handle}
    scope = stream if given == "scope" else contextlib.nullcontext()
    with fft.FFT(operand, options={"inplace": True}) as plan:
        plan.plan()
        plan.execute()  # loads its kernels
        operand[:], operand[0] = 0, 2
        check(driver.cuCtxSynchronize())

        def work():
            with scope:
                plan.execute(stream=streams.get(given))

        second = SimpleNamespace(pointer=pointer + operand.itemsize, device=0)
        assert_waits(second, work, given=given is not None, scope=False)


@pytest.mark.parametrize("given", [True, False])
def test_cuda_compute_works_on_the_stream_itself(subjects, stream, cells, assert_waits, given):
    compute, target = consumer("cuda.compute"), cells(0)
    source, out = (subjects("cupy").array(cell.pointer) for cell in (cells(1), target))

    def add(queue):
        compute.binary_transform(
            d_in1=source, d_in2=source, d_out=out,
            op=compute.OpKind.PLUS, num_items=1, stream=queue,
        )  # fmt: skip

    loaded(partial(add, None), target)
    assert_waits(target, partial(add, stream if given else None), given=given)


@pytest.fixture
def launch(subjects):
    """Have cuda.tile launch ``target = source + 1``."""
    tile, array = consumer("cuda.tile"), subjects("cupy").array
    if not shutil.which("tileiras"):
        pytest.skip("a consumer that is not installed: tileiras, the compiler of cuda.tile")
    from support.gpu.tile_kernel import add_one

    def launch(source, target, queue):
        tile.launch(queue, (1,), add_one, (array(source.pointer), array(target.pointer)))

    return launch


@pytest.mark.parametrize("given", [True, False])
def test_cuda_tile_launches_on_the_handle(stream, cells, assert_waits, launch, given):
    source, target = cells(1), cells(0)
    loaded(partial(launch, source, target, LEGACY), target)
    work = partial(launch, source, target, stream.handle if given else LEGACY)
    assert_waits(target, work, given=given)


@pytest.fixture(scope="module")
def reduce(subjects):
    """Have NCCL reduce the one rank that it has."""
    nccl, array = consumer("nccl.core"), subjects("torch").array
    communicator = nccl.Communicator.init(1, 0, nccl.get_unique_id())

    def reduce(source, target, queue):
        arrays = array(source.pointer), array(target.pointer)
        communicator.allreduce(*arrays, nccl.SUM, stream=queue)

    yield reduce
    communicator.destroy()


@pytest.mark.parametrize("given", ["itself", "handle", None])
def test_nccl4py_reduces_on_the_stream_itself(stream, cells, assert_waits, reduce, given):
    source, target = cells(2), cells(0)
    loaded(partial(reduce, source, target, None), target)
    queue = {"itself": stream, "handle": stream.handle, None: None}[given]
    assert_waits(target, partial(reduce, source, target, queue), given=given is not None)


@pytest.mark.parametrize("given", ["itself", "handle", None])
def test_raft_works_on_the_stream_of_its_resources(subjects, stream, assert_waits, given):
    rmat = consumer("pylibraft.random").rmat
    resources = consumer("pylibraft.common").DeviceResources
    cupy = subjects("cupy").cupy
    edge = cupy.zeros((1, 2), "i4")
    # of 31 levels the last says 1 and the others 0: the node 1 << 30, which as a float is 2.0
    levels = cupy.asarray([1, 0, 0, 0] * 30 + [0, 0, 0, 1], "f4")
    target = SimpleNamespace(pointer=edge.data.ptr, device=0)
    rmat(edge, levels, 31, 31)  # loads its kernels
    assert edge.get().tolist() == [[1 << 30, 1 << 30]]
    edge[:] = 0
    check(driver.cuCtxSynchronize())
    queue = {"itself": stream, "handle": stream.handle}.get(given)
    handle = resources(queue) if given else None
    assert_waits(
        target, partial(rmat, edge, levels, 31, 31, handle=handle), given=given is not None
    )


@pytest.fixture
def doubling(subjects, cells):
    """Have CV-CUDA write ``source * 2`` into a target, of one pixel each."""
    cvcuda, array = consumer("cvcuda"), subjects("cupy").array
    target, source = cells(0), cells(1)
    images = (array(cell.pointer).reshape(1, 1, 1, 1) for cell in (target, source))
    double = partial(
        cvcuda.convertto_into, *(cvcuda.as_tensor(image, "NHWC") for image in images), scale=2
    )
    loaded(double, target)
    return double, target


@pytest.mark.parametrize("given", ["torch", "cupy", "handle", None])
def test_cvcuda_works_on_its_stream_made_of_ours(stream, assert_waits, doubling, given):
    double, target = doubling
    if given:
        theirs = stream.handle if given == "handle" else stream.to(given)
        double = partial(double, stream=consumer("cvcuda").as_stream(theirs))
    assert_waits(target, double, given=given is not None)


def test_cvcuda_works_on_the_stream_of_its_own_scope(stream, assert_waits, doubling):
    double, target = doubling
    own = consumer("cvcuda").as_stream(stream.to("torch"))

    def work():
        with own:
            double()

    assert_waits(target, work, given=True)


@pytest.fixture
def compiled(subjects, cells):
    """Have CuTe DSL compile ``target = source + 1``, for a stream or for none."""
    cute, array = consumer("cutlass.cute"), subjects("torch").array
    from support.gpu import cute_kernel

    def compiled(*, stream, ffi, follows=False):
        if ffi:
            need("tvm_ffi")
        source, target = cells(1), cells(0)
        arrays = (array(cell.pointer) for cell in (source, target))
        tensors = [cute.runtime.from_dlpack(each, enable_tvm_ffi=ffi) for each in arrays]
        queue = [cute.runtime.make_fake_stream(use_tvm_ffi_env_stream=follows)] if stream else []
        function = cute_kernel.add_one if stream else cute_kernel.add_one_without
        options = "--enable-tvm-ffi" if ffi else ""
        return target, partial(cute.compile(function, *tensors, *queue, options=options), *tensors)

    return compiled


@pytest.mark.parametrize(
    ("ffi", "given"),
    [(False, "own"), (False, None), (True, "itself"), (True, "handle"), (True, None)],
)
def test_cute_dsl_launches_on_its_functions_argument(stream, assert_waits, compiled, ffi, given):
    queues = {"own": stream.to("cuda.bindings"), "itself": stream, "handle": stream.handle}
    target, add = compiled(stream=given is not None, ffi=ffi)
    work = partial(add, *([queues[given]] if given else []))
    loaded(work, target)
    assert_waits(target, work, given=given is not None)


@pytest.mark.parametrize("given", [True, False])
def test_cute_dsl_launches_on_the_stream_of_tvm_ffi(stream, assert_waits, compiled, given):
    target, add = compiled(stream=True, ffi=True, follows=True)

    def work():
        with stream if given else contextlib.nullcontext():
            add()

    loaded(work, target)
    assert_waits(target, work, given=given, scope=False)


@pytest.mark.parametrize("given", ["itself", "rmm", None])
def test_pylibcudf_copies_on_the_stream_itself(subjects, stream, cells, assert_waits, given):
    cudf, array, target = consumer("pylibcudf"), subjects("cupy").array, cells(0)
    columns = [cudf.Column.from_array(array(cell.pointer)) for cell in (cells(2), target)]
    copy = partial(cudf.copying.copy_range_in_place, *columns, 0, 1, 0)
    loaded(copy, target)
    queue = {"itself": stream, "rmm": stream.to("rmm"), None: None}[given]
    assert_waits(target, partial(copy, stream=queue), given=given is not None)


@pytest.mark.parametrize("given", ["itself", "handle", "torch", "cupy", None])
def test_dali_copies_on_the_stream_of_its_context(subjects, stream, cells, assert_waits, given):
    dali, source, copies = consumer("nvidia.dali.experimental.dynamic"), cells(0), []
    queues = {"itself": stream, "handle": stream.handle, None: None}
    queue = queues[given] if given in queues else stream.to(given)
    with dali.EvalContext(cuda_stream=queue):
        tensor = dali.as_tensor(subjects("cupy").array(source.pointer))

        def copy():
            copies.append(dali.copy(tensor).evaluate())

        def place():
            return copies.pop().__cuda_array_interface__["data"][0]

        copy()
        place()  # its pool takes the copy back, and gives the next one the same memory
        copy()
        target = SimpleNamespace(pointer=place(), device=0)
        check(driver.cuCtxSynchronize())
        source.write(2)
        assert_waits(target, copy, given=given is not None)
        assert place() == target.pointer


@pytest.fixture
def codec():
    for library in ("libnvcuvid.so.1", "libnvidia-encode.so.1"):  # not in every container
        try:
            ctypes.CDLL(library)
        except OSError:
            pytest.skip(f"a consumer that is not installed: {library}, which is the driver's")
    return consumer("PyNvVideoCodec")


# 64 x 64 twice, luma 0 in the first 16 columns and 64 in the others; ffmpeg with libx264 made it of
# -f lavfi -i "color=s=64x64:r=1,format=yuv420p,geq=lum='64*gte(X,16)':cb=128:cr=128" -frames:v 2
# with -profile:v baseline -g 1 -qp 4 -x264-params no-deblock=1 -bsf:v filter_units=remove_types=6
PARAMETERS = "000000016742c00adc426c044000000300400000030083c489e00000000168ce016cb2"
PICTURES = (
    "0000016588843affffc3d1400056c7c98a000370527275d75d75d75d75d75d78",
    "0000016588820ebffff0f4500015b1f2628000dc149c9d75d75d75d75d75d75e",
)


@pytest.mark.parametrize("given", [True, False])
def test_pynvvideocodec_writes_frames_on_the_handle(stream, peek, assert_waits, codec, given):
    decoder = codec.CreateDecoder(
        usedevicememory=True,
        latency=codec.DisplayDecodeLatencyType.ZERO,
        **({"cudastream": stream.handle} if given else {}),
    )
    data = [np.frombuffer(bytes.fromhex(PARAMETERS + each), "u1") for each in PICTURES]

    def decode(picture):
        packet = codec.PacketData()
        packet.bsl_data, packet.bsl = picture.ctypes.data, picture.size
        packet.decode_flag = codec.VideoPacketFlag.ENDOFPICTURE
        (frame,) = decoder.Decode(packet)
        return frame.GetPtrToPlane(0) + 13  # luma 0, 0, 0, 64, which as a float is 2.0

    target = SimpleNamespace(pointer=decode(data[0]), device=0)
    check(driver.cuCtxSynchronize())
    assert peek(target) == 2
    check(driver.cuMemsetD8(target.pointer, 0, 4))
    sync(LEGACY)
    places = []
    assert_waits(target, lambda: places.append(decode(data[1])), given=given)
    assert places == [target.pointer]
