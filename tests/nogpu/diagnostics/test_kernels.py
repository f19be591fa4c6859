"""What the adapters know of their libraries' kernels, from parameters as real launches had them."""

from __future__ import annotations

import struct

import pytest

from streamkit._queues import registry  # the public calls need a device
from streamkit.diagnostics.races.memory_use import named_memory  # the same
from streamkit.diagnostics.recording.kernel_names import (
    readable,  # the names that adapters are given
)
from streamkit.protocols import Diagnosis, Memory
from streamkit.protocols.adapters import offered  # which functions an adapter has
from support.libraries import need

pytestmark = pytest.mark.versions

X, Y, Z = 0x7F0000000000, 0x7F0000100000, 0x7F0000200000

FILL = (
    "at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>, "
    "std::array<char*, 1ul> >"
)
ADD = (
    "_ZN2at6native29vectorized_elementwise_kernelILi4ENS0_15CUDAFunctor_addIfEE"
    "St5arrayIPcLm3EEEEviT0_T1_"
)
GREATER = (
    "at::native::vectorized_elementwise_kernel<4, at::native::(anonymous namespace)::"
    "CompareFunctor<float>, std::array<char*, 3ul> >"
)
WHERE = (
    "at::native::vectorized_elementwise_kernel<4, at::native::(anonymous namespace)::"
    "where_kernel_impl(at::TensorIterator&)::{lambda()#1}::operator()() const::{lambda()#11}::"
    "operator()() const::{lambda(bool, float, float)#1}, std::array<char*, 4ul> >"
)
FREXP = (  # as torch's Loops.cuh declares it
    "at::native::unrolled_elementwise_kernel_for_multi_outputs<2, "
    "at::native::frexp_kernel_cuda(at::TensorIteratorBase&)::{lambda()#1}::operator()() const::"
    "{lambda()#2}::operator()() const::{lambda(float)#1}, std::array<char*, 3ul>, "
    "TrivialOffsetCalculator<1, unsigned int>, TrivialOffsetCalculator<2, unsigned int> >"
)
MIXED = (
    "at::native::unrolled_elementwise_kernel<at::native::CUDAFunctor_add<float>, "
    "std::array<char*, 3ul>, 4, TrivialOffsetCalculator<2, unsigned int>, "
    "TrivialOffsetCalculator<1, unsigned int>, at::native::memory::LoadWithCast<2>, "
    "at::native::memory::StoreWithCast<1> >"
)
STRIDED = (
    "at::native::elementwise_kernel<128, 2, at::native::gpu_kernel_impl_nocast<"
    "at::native::CUDAFunctor_add<float> >(at::TensorIteratorBase&, "
    "at::native::CUDAFunctor_add<float> const&)::{lambda(int)#1}>"
)
SUM = (
    "at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::func_wrapper_t<"
    "float, at::native::sum_functor<float, float, float>::operator()(at::TensorIterator&)::"
    "{lambda(float, float)#1}>, unsigned int, float, 4, 4> >"
)


def explained(library, name, *parameters):
    """What the adapter says, without what cannot be an address."""
    need(library)
    found = registry.adapter(library).explain_kernel(readable(name), parameters)
    return None if found is None else [tuple(use) for use in found if use.address >= X]


def count(number):
    return struct.pack("<i", number)


def addresses(*values):
    return struct.pack(f"<{len(values)}Q", *values)


def whole(address, mode, number, size):
    return (address, mode, (number,), (size,), size, True)


def test_torchs_elementwise_kernels_write_their_first_array():
    assert explained("torch", ADD, count(1000), b"\0" * 4, addresses(X, Y, Z)) == [
        whole(X, "write", 1000, 4), whole(Y, "read", 1000, 4), whole(Z, "read", 1000, 4)
    ]  # fmt: skip
    assert explained("torch", FILL, count(10), b"\0" * 4, addresses(X)) == [
        whole(X, "write", 10, 4)
    ]


@pytest.mark.parametrize(("name", "inputs"), [(GREATER, (4, 4)), (WHERE, (1, 4, 4))])
def test_a_result_whose_type_is_not_told_has_at_least_a_byte_an_element(name, inputs):
    places = [X + 0x100000 * place for place in range(len(inputs) + 1)]
    result, most, *read = explained("torch", name, count(100), b"\0" * 4, addresses(*places))
    assert result == (X, "write", (100,), (1,), 1, True)
    assert most == (X, "write", (400,), (1,), 1, False)
    assert read == [
        whole(place, "read", 100, size) for place, size in zip(places[1:], inputs, strict=True)
    ]


def test_torchs_kernels_of_several_results_write_all_of_them():
    given = count(100), b"\0" * 4, addresses(X, Y, Z), b"\0", b"\0"
    found = explained("torch", FREXP, *given)
    assert [(use[0], use[1]) for use in found if use[-1]] == [
        (X, "write"), (Y, "write"), (Z, "read")
    ]  # fmt: skip


def test_an_array_whose_type_is_unknown_may_end_anywhere():
    unknown = FILL.replace("at::native::FillFunctor<float>", "(anonymous namespace)::Its")
    assert explained("torch", unknown, count(10), b"\0" * 4, addresses(X, Y)) == [
        (X, "write", (10,), (1,), 1, True), (X, "write", None, (1,), 1, False),
        (Y, "read", (10,), (1,), 1, True), (Y, "read", None, (1,), 1, False),
    ]  # fmt: skip


def test_torchs_casts_tell_the_sizes():
    loads, stores = bytes.fromhex("060500000400000002000000"), bytes.fromhex("0628284804000000")
    given = count(1000), b"\0" * 4, addresses(X, Y, Z), b"\0", b"\0", loads, stores
    assert explained("torch", MIXED, *given) == [
        whole(X, "write", 1000, 4), whole(Y, "read", 1000, 4), whole(Z, "read", 1000, 2)
    ]  # fmt: skip


def strided(shape, *strides, values=(X, Y, Z), size=648):
    """The offsets of three arrays: the lengths of the axes with two numbers each, the strides."""
    held = bytearray(b"\xff" * size)  # what is not used has any value
    struct.pack_into("<i", held, 0, len(shape))
    for axis, length in enumerate(shape):
        struct.pack_into("<I", held, 4 + 12 * axis, length)
        struct.pack_into("<3I", held, 304 + 12 * axis, *(one[axis] for one in strides))
    struct.pack_into("<3Q", held, 608, *values)
    return bytes(held)


def test_torchs_strided_kernels_tell_shape_and_strides():
    held = strided((40, 30), (4, 160), (8, 320), (0, 4))
    assert explained("torch", STRIDED, count(1200), held) == [
        (X, "write", (40, 30), (4, 160), 4, True),
        (Y, "read", (40, 30), (8, 320), 4, True),
        (Z, "read", (40, 30), (0, 4), 4, True),
    ]
    assert explained("torch", STRIDED, count(1201), held) is None  # another torch's
    cast = STRIDED.replace("_nocast", "")
    sure, possible, *_ = explained("torch", cast, count(1200), held)
    assert sure == (X, "write", (40, 30), (4, 160), 1, True)
    assert possible == (X, "write", (40, 30), (4, 160), 4, False)


def test_torchs_reductions_read_their_source_and_write_the_rest():
    held = bytes(984) + addresses(X, Y, 0, 0, Z, Z + 512, 0, 0)
    found = explained("torch", SUM, held)
    assert found[:2] == [(X, "read", (1,), (1,), 1, True), (X, "read", None, (), 1, False)]
    assert {(use[0], use[1]) for use in found[2:]} == {(one, "write") for one in (Y, Z, Z + 512)}


def test_kernels_that_tell_nothing_are_left_to_the_search_for_addresses():
    assert explained("torch", "cutlass::Kernel2<cutlass_80_simt_sgemm>", bytes(360)) is None
    assert explained("torch", "at::native::index_elementwise_kernel<128>", bytes(8)) is None
    assert explained("torch", SUM.replace("reduce", "xreduce"), bytes(1048)) is None
    assert explained("torch", ADD, b"") is None  # another torch's
    assert explained("cupy", "cupy_anything", bytes(8)) is None


def carray(address, shape, strides):
    size = 1
    for length in shape:
        size *= length
    return struct.pack(f"<QQ{2 * len(shape)}q", address, size, *shape, *strides)


def test_cupys_ufuncs_write_their_last_arrays():
    given = carray(X, (30, 40), (320, 8)), bytes(4), carray(Y, (30, 40), (160, 4)), bytes(40)
    assert explained("cupy", "cupy_multiply__float32_float_float32", *given) == [
        (X, "read", (30, 40), (320, 8), 4, True),
        (Y, "write", (30, 40), (160, 4), 4, True),
    ]
    one = [carray(place, (7,), (4,)) for place in (X, Y, Z, Z + 4096)]
    found = explained("cupy", "cupy_divmod__float32_float32_float32_float32", *one, bytes(24))
    assert [use[1] for use in found] == ["read", "read", "write", "write"]
    found = explained("cupy", "cupy_where__bool_float32_float32_float32", *one, bytes(24))
    assert {use[-1] for use in found} == {False}  # it may leave an element alone


def test_of_cupys_other_kernels_only_the_arrays_are_known():
    given = carray(X, (7,), (4,)), carray(Y, (7,), (8,)), bytes(24)
    assert explained("cupy", "cupy_take", *given) == [
        (X, "unknown", (7,), (4,), 4, False), (Y, "unknown", (7,), (8,), 8, False)
    ]  # fmt: skip
    column = carray(X, (7, 1), (24, 1))  # the stride of an axis of one element has no meaning
    assert explained("cupy", "cupy_take", column) == [
        (X, "unknown", (7, 1), (24, 1), 24, False)
    ]  # fmt: skip
    found = explained("cupy", "cupy_sum", *given, bytes(24), bytes(4))
    assert [use[1] for use in found if use[-1]] == ["read", "write"]
    (sure, _) = explained("cupy", "cupy_fill", bytes(4), carray(X, (7,), (4,)), bytes(24))
    assert sure == (X, "write", (7,), (4,), 1, True)


def warp_array(address, shape, strides, gradient=0):
    shape, strides = ((*one, 0, 0, 0, 0)[:4] for one in (shape, strides))
    dims = sum(map(bool, shape))
    return struct.pack("<QQ4i4iHHi", address, gradient, *shape, *strides, dims, 0, 0)


def test_the_arrays_of_warps_kernels_are_found_in_structures_too():
    held = struct.pack("<fi", 2.0, 0) + warp_array(Y, (20, 30), (360, 12), gradient=Z)
    name = "wk_d9bf7c7a_cuda_kernel_forward"
    assert explained("warp", name, bytes(24), warp_array(X, (5,), (8,)), held) == [
        (X, "unknown", (5,), (8,), 8, False),
        (Y, "unknown", (20, 30), (360, 12), 12, False),
        (Z, "unknown", (20, 30), (360, 12), 12, False),
    ]
    word = struct.pack("<QQ", X, 3)
    assert explained("warp", name, bytes(24), word) == [(X, "unknown", None, (), 1, False)]


@pytest.mark.parametrize("name", ["torch", "cupy", "warp"])
def test_the_adapters_explain_kernels(name):
    need(name)
    assert offered(registry.adapter(name), Diagnosis.explain_kernel)


def test_torch_tells_its_memory_also_of_what_needs_a_gradient():
    torch, served = need("torch"), registry.adapter("torch")
    assert isinstance(served, Memory)
    array = torch.ones(3, 4, requires_grad=True)
    assert served.array_layout(array)[:3] == (array.data_ptr(), (3, 4), (16, 4))
    told = named_memory("weight", array).array
    assert (told.name, told.shape, told.address) == ("weight", (3, 4), array.data_ptr())
    assert list(served.pieces_of_memory()) == []  # torch has none on a GPU
    with pytest.raises(TypeError, match="of several tensors"):
        served.array_layout(torch.eye(3).to_sparse())
