"""The arrays of the libraries, as their adapters see and lend them, without a driver."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest

import streamkit as sk
from streamkit._graphs.signatures import find  # what a graph knows an array by
from streamkit._queues import registry  # the public calls need a device
from streamkit.backends._managed_tensor import DescribedMemory, layout_of  # of `share`
from streamkit.protocols import Memory
from streamkit.protocols.adapters import offered  # which functions an adapter has
from support.libraries import need

ADDRESS = 4096


class Owner:
    """What an array is lent with."""


def adapter(name):
    need(name)
    return registry.adapter(name)


def cupy_array(kind=None, owner=None):
    cupy = need("cupy")
    memory = cupy.cuda.UnownedMemory(ADDRESS, 64, owner, 1)
    array = cupy.ndarray((4, 4), "f4", cupy.cuda.MemoryPointer(memory, 0))
    return array if kind is None else array.view(kind)


@pytest.mark.parametrize("name", ["torch", "cupy", "warp", "numba"])
def test_the_adapters_lend_and_copy_arrays_and_refuse_what_is_none(name):
    served = adapter(name)
    assert isinstance(served, Memory)
    for copies in (Memory.array_layout, Memory.array_like, Memory.copy_array):
        assert offered(served, copies)
    for wrong in (None, 5, [1.0], Owner()):
        with pytest.raises(TypeError):
            served.array_device(wrong)


# -- on the host ------------------------------------------------------------------------------


def torch_tensor():
    return need("torch").ones(4)


def warp_array():
    return need("warp").ones(4, dtype=float, device="cpu")


@pytest.mark.parametrize(("name", "make"), [("torch", torch_tensor), ("warp", warp_array)])
def test_an_array_of_the_host_is_on_no_cuda_device_and_handed_to_a_host_stream(name, make):
    one, other = sk.new_stream("cpu"), sk.new_stream("cpu")
    array = make()
    assert adapter(name).array_device(array) is None
    assert sk.handoff(array, one, after=other) is array
    with pytest.raises(TypeError, match=r"after=\.\.\."):
        sk.handoff(array, one)


def test_tensors_of_other_devices_are_refused():
    tensor = need("torch").ones(4, device="meta")
    with pytest.raises(TypeError, match="is not an array that can be handed over"):
        sk.handoff(tensor, sk.new_stream("cpu"), after=sk.new_stream("cpu"))


def test_an_annotation_of_warp_is_no_array():
    warp = need("warp")
    with pytest.raises(TypeError):
        adapter("warp").array_device(warp.array(dtype=float))


def test_a_tensor_that_needs_a_gradient_is_not_lent():
    tensor = need("torch").ones(4, requires_grad=True)
    with pytest.raises(TypeError, match="it has a gradient"):
        adapter("torch").lend(tensor, Owner())


@pytest.mark.parametrize("kind", ["float32", "bool", "bfloat16", "complex64", "float8_e4m3fn"])
def test_a_lent_tensor_is_the_same_on_the_same_memory_and_its_views_hold_the_owner(kind):
    torch, served = need("torch"), adapter("torch")
    tensor = torch.zeros(4, 6).to(getattr(torch, kind))[:, ::2]
    owner = Owner()
    gone = weakref.ref(owner)
    lent = served.lend(tensor, owner)
    del owner
    assert (lent.dtype, lent.shape, lent.stride(), lent.data_ptr()) == (
        tensor.dtype, tensor.shape, tensor.stride(), tensor.data_ptr(),
    )  # fmt: skip
    view = lent[1:]
    del lent
    gc.collect()
    assert served.lent_by(view) is gone() is not None
    bits = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    taken = torch.from_dlpack(torch.utils.dlpack.to_dlpack(view.view(bits[view.element_size()])))
    del view
    gc.collect()
    assert gone() is not None
    del taken
    gc.collect()
    assert gone() is None


def test_a_subclass_of_a_tensor_stays_one():
    class Mine(need("torch").Tensor):
        pass

    served, owner = adapter("torch"), Owner()
    lent = served.lend(need("torch").zeros(4).as_subclass(Mine), owner)
    assert type(lent) is Mine
    assert served.lent_by(lent[1:]) is owner


def test_a_sparse_tensor_is_not_lent_nor_its_memory_counted():
    """It has the memory of several tensors."""
    tensor = need("torch").eye(3).to_sparse()
    with pytest.raises(TypeError, match="sparse_coo"):
        adapter("torch").record_stream(tensor, None)
    with pytest.raises(TypeError, match="sparse_coo"):
        adapter("torch").storage_of(tensor)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_a_nested_tensor_is_not_lent():
    torch = need("torch")
    tensor = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])
    with pytest.raises(TypeError, match="nested"):
        adapter("torch").record_stream(tensor, None)


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor")
def test_a_quantized_tensor_is_not_lent():
    """Its scale would be lost."""
    torch = need("torch")
    tensor = torch.quantize_per_tensor(torch.ones(4), 0.1, 0, torch.qint8)
    with pytest.raises(TypeError, match="a scale"):
        adapter("torch").lend(tensor, Owner())


@pytest.mark.parametrize(
    "hold",
    [
        lambda tensor: tensor,
        lambda tensor: tensor[1:],
        lambda tensor: tensor.numpy(),
        lambda tensor: tensor.__dlpack__(),
        lambda tensor: tensor.clone().requires_grad_() * tensor,  # for the gradient of the other
    ],
)
def test_torchs_memory_is_held_as_long_as_anything_uses_it(hold):
    served, tensor = adapter("torch"), need("torch").ones(4)
    memory, left = tensor.untyped_storage(), hold(tensor)
    assert served.storage_of(tensor).whole is memory
    assert tensor[2:].untyped_storage() is memory
    del tensor
    gc.collect()
    assert served._is_held(memory)
    del left
    gc.collect()
    assert not served._is_held(memory)


# -- CuPy's, on memory that nobody touches ----------------------------------------------------


def test_the_device_of_a_cupy_array():
    assert adapter("cupy").array_device(cupy_array()) == 1


def test_a_lent_cupy_array_is_the_same_on_the_same_memory():
    lend = adapter("cupy").lend
    record = cupy_array().view(np.dtype([("x", "f4"), ("y", "i4")]))
    whole = cupy_array()
    for array in (whole, whole[1:, ::-2], whole.T, whole[4:], whole[0, 0], record):
        lent = lend(array, Owner())
        assert (lent.shape, lent.strides, lent.dtype) == (array.shape, array.strides, array.dtype)
        assert lent.data.ptr == array.data.ptr
        assert lent.data.device_id == 1
        assert lent.flags.c_contiguous == array.flags.c_contiguous


def test_a_subclass_stays_one():
    class Mine(need("cupy").ndarray):
        pass

    lent = adapter("cupy").lend(cupy_array(Mine), Owner())
    assert type(lent) is Mine


@pytest.mark.parametrize("view", [lambda a: a, lambda a: a[1:], lambda a: a[1:].reshape(12)])
def test_it_holds_its_owner_as_long_as_a_view_lives(view):
    owner = Owner()
    seen = weakref.ref(owner)
    kept = view(adapter("cupy").lend(cupy_array(), owner))
    assert adapter("cupy").lent_by(kept) is owner
    del owner
    gc.collect()
    assert seen() is not None
    del kept
    assert seen() is None


def test_it_does_not_hold_the_array_it_is_of():
    owner = Owner()
    array = cupy_array(owner=owner)
    seen = weakref.ref(owner)
    lent = adapter("cupy").lend(array, Owner())
    del owner, array
    assert seen() is None
    assert lent.size == 16


# -- how an array lies in memory ----------------------------------------------------------------


def test_the_layout_of_a_tensor_tells_all_that_a_graph_depends_on():
    torch, served = need("torch"), adapter("torch")
    whole = torch.arange(12.0).reshape(3, 4)
    layout = served.array_layout(whole)
    assert (layout.address, layout.shape) == (whole.data_ptr(), (3, 4))
    assert (layout.strides, layout.itemsize) == ((16, 4), 4)
    assert served.array_layout(whole.view(3, 4)) == layout
    for other in (whole.T, whole[1:], whole.view(torch.int32), whole.reshape(4, 3)):
        assert served.array_layout(other) != layout
    number = torch.zeros(2, dtype=torch.complex64)
    assert served.array_layout(number.conj()) != served.array_layout(number)


def test_a_tensor_that_a_graph_cannot_have_is_refused():
    torch = need("torch")
    with pytest.raises(ValueError, match=r"requires a gradient, .* Pass array.detach\(\)"):
        find(torch.ones(2, requires_grad=True))
    with pytest.raises(TypeError, match="sparse_coo, of several tensors"):
        find(torch.eye(2).to_sparse())


def test_a_tensor_that_only_holds_others_has_no_memory_that_a_graph_could_know():
    torch = need("torch")

    class Holder(torch.Tensor):
        """Made by ``_make_wrapper_subclass``, as classes of tensors that hold others are."""

        @classmethod
        def __torch_dispatch__(cls, *_):
            raise AssertionError("a graph only looks at it")

    holder = torch.Tensor._make_wrapper_subclass(Holder, (3,))
    with pytest.raises(TypeError, match=r"no memory of its own.*Pass the arrays that it holds"):
        find(holder)
    assert find(torch.empty(0)).layout.shape == (0,)


def test_the_layout_of_a_cupy_array():
    array, served = cupy_array(), adapter("cupy")
    assert served.array_layout(array) == (ADDRESS, (4, 4), (16, 4), np.dtype("f4"), 4, False)
    assert served.array_layout(array.T).strides == (4, 16)


def test_the_layout_of_a_warp_array():
    warp, served = need("warp"), adapter("warp")
    array = warp.zeros((2, 3), dtype=warp.vec3, device="cpu")
    assert served.array_layout(array) == (array.ptr, (2, 3), (36, 12), warp.vec3, 12, False)
    assert served.array_layout(warp.zeros(0, dtype=float, device="cpu")).shape == (0,)
    with pytest.raises(ValueError, match="requires a gradient"):
        find(warp.zeros(2, dtype=float, device="cpu", requires_grad=True))


@pytest.mark.parametrize("name", ["torch", "cupy", "warp", "numba", "tvm_ffi"])
def test_the_adapters_make_arrays_of_memory_that_others_hold(name):
    need(name)
    assert offered(adapter(name), Memory.adopt)


# -- what another process is told of an array -----------------------------------------------------


def test_the_layout_that_dlpack_tells():
    torch, warp = need("torch", "warp")
    numbers = torch.zeros(4, 6, dtype=torch.bfloat16)[1:, ::2]
    told = layout_of(numbers)
    assert told == (numbers.data_ptr(), (3, 3), (6, 2), (4, 16, 1))
    assert told.itemsize == 2
    assert told.reach() == (numbers.data_ptr(), numbers.data_ptr() + 2 * (2 * 6 + 2 * 2) + 2)
    assert told.moved(-8).address == told.address - 8
    vectors = warp.zeros(5, dtype=warp.vec3, device="cpu")
    assert layout_of(vectors) == (vectors.ptr, (5, 3), (3, 1), (2, 32, 1))
    scalar = torch.tensor(1, dtype=torch.int64)
    assert layout_of(scalar) == (scalar.data_ptr(), (), (), (0, 64, 1))


def test_the_layout_that_the_array_interface_tells_goes_backwards_too():
    class Told:
        __cuda_array_interface__ = {  # noqa: RUF012 - as libraries have it
            "data": (1000, False), "shape": (3, 4), "strides": (-32, 8), "typestr": "<f8",
        }  # fmt: skip

    told = layout_of(Told())
    assert told == (1000, (3, 4), (-4, 1), (2, 64, 1))
    assert told.reach() == (1000 - 64, 1000 + 24 + 8)
    again = DescribedMemory(told, 1, "owner")
    assert again.__dlpack_device__() == (2, 1)
    assert again.__cuda_array_interface__["strides"] == (-32, 8)
    assert again.__cuda_array_interface__["typestr"] == "<f8"
    with pytest.raises(TypeError, match="NumPy has no type"):
        _ = DescribedMemory(told._replace(element=(4, 16, 1)), 1, "owner").__cuda_array_interface__
