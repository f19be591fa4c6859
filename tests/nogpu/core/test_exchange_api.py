"""DLPack's exchange API as real libraries offer it, without a driver."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest

import streamkit as sk
from streamkit._queues import registry  # the public calls need a device
from support.exchange_toy import Library
from support.libraries import need
from support.programs import run_python

pytestmark = pytest.mark.versions


def exchange_of(kind):
    from streamkit.backends import _managed_tensor  # the public calls need a device

    return _managed_tensor.exchange_of(kind)


class Owner:
    pass


def test_a_tensor_of_torch_is_lent_by_it():
    torch = need("torch")
    exchange = exchange_of(torch.Tensor)
    tensor, owner = torch.arange(6.0).reshape(2, 3).t(), Owner()
    alive = weakref.ref(owner)
    assert exchange.lent_by(tensor) is None
    lent = exchange.lend(tensor, owner)
    assert exchange.lent_by(lent) is exchange.lent_by(tensor) is owner  # on that memory
    assert type(lent) is torch.Tensor
    assert (lent.data_ptr(), lent.stride()) == (tensor.data_ptr(), tensor.stride())
    del owner
    view = lent[1:]
    del lent
    gc.collect()
    assert alive() is not None
    assert view.tolist() == tensor[1:].tolist()
    del view
    gc.collect()
    assert alive() is None
    assert exchange.lent_by(tensor) is None


def test_an_error_of_the_library_comes_through_and_keeps_nothing():
    torch = need("torch")
    owner = Owner()
    alive = weakref.ref(owner)
    with pytest.raises((BufferError, RuntimeError)):
        exchange_of(torch.Tensor).lend(torch.ones(2).to_sparse(), owner)
    del owner
    gc.collect()
    assert alive() is None


def test_another_class_than_that_of_the_array_is_refused():
    torch = need("torch")
    owner = Owner()
    alive = weakref.ref(owner)
    parameter = torch.nn.Parameter(torch.ones(2), requires_grad=False)
    with pytest.raises(TypeError, match="its library makes a Tensor of it"):
        exchange_of(torch.nn.Parameter).lend(parameter, owner)
    del owner
    gc.collect()
    assert alive() is None


def test_the_current_stream_is_what_the_table_says():
    """A class of tvm-ffi's has one, which tells the environment stream."""
    tvm_ffi = need("tvm_ffi")
    exchange = exchange_of(tvm_ffi.core.DLTensorTestWrapper)
    with tvm_ffi.use_raw_stream(tvm_ffi.device("cuda", 1), 2**40 + 8):
        assert (exchange.current(0), exchange.current(1)) == (0, 2**40 + 8)


@pytest.mark.parametrize("kind", [int, Owner, np.ndarray])
def test_a_class_without_a_table_offers_nothing(kind):
    assert exchange_of(kind) is None


def test_a_tensor_of_tvm_ffi_is_lent_by_itself():
    tvm_ffi = need("tvm_ffi")
    adapter = registry.adapter("tvm_ffi")
    tensor, owner = tvm_ffi.from_dlpack(np.arange(5.0)), Owner()
    alive = weakref.ref(owner)
    lent = adapter.lend(tensor, owner)
    assert type(lent) is type(tensor)
    assert adapter.lent_by(lent) is owner
    seen = np.from_dlpack(lent)
    assert seen.tolist() == list(range(5))
    del owner, lent
    gc.collect()
    assert alive() is not None, "another library holds it"
    del seen
    gc.collect()
    assert alive() is None


def test_what_is_lent_may_be_the_last_object_of_the_interpreter():
    """Its library gives it back when the modules have gone."""
    need("tvm_ffi")
    ended = run_python(
        "-c",
        """
import sys
import numpy as np, tvm_ffi
from streamkit.backends import _managed_tensor  # alone: more would keep its module

tensor = tvm_ffi.from_dlpack(np.arange(5.0))
described = _managed_tensor.DescribedMemory(_managed_tensor.layout_of(tensor), 0, tensor, 1)
sys.kept = described.adopted(tvm_ffi.from_dlpack)
""",
    )
    assert (ended.returncode, ended.stderr) == (0, "")


@pytest.mark.parametrize("library", ["tvm_ffi", "torch", "numpy"])
def test_an_array_of_the_host_has_the_stream_of_the_scope_around_the_call(library):
    tensor = (np if library == "numpy" else need(library)).from_dlpack(np.arange(5.0))
    one, other = sk.new_stream("cpu"), sk.new_stream("cpu")
    assert sk.current_stream(of=tensor) == sk.default_stream("cpu")
    with one:
        assert sk.current_stream(of=tensor) == one
    assert sk.handoff(tensor, one, after=other) is tensor


def test_a_library_that_is_known_to_have_no_current_stream_is_not_asked():
    """The table of cuda.core's views (1.2) says 0 for every device: none is meant."""
    need("cuda")
    library = Library()
    view = type("View", (library.Array,), {"__module__": "cuda.core.mine"})
    with pytest.raises(TypeError, match="not an array that can be handed over"):
        sk.current_stream(of=view(0))
