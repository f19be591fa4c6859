"""Which settings of torch make a call of a graphed function another one."""

from __future__ import annotations

import contextlib

import pytest

from support.libraries import need
from support.programs import python

torch = need("torch")

from torch.autograd import forward_ad  # noqa: E402

from streamkit.backends._torch.settings import settings, weights_of  # it imports torch  # noqa: E402
from support.queues import within  # noqa: E402

pytestmark = pytest.mark.versions


def seen():
    """Each setting as it is now, by its name."""
    found = settings()
    return dict(zip(found.names, found.read(), strict=True))


@contextlib.contextmanager
def attribute(owner, name, value):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner, name, value)
        yield


@contextlib.contextmanager
def default_dtype(dtype):
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    yield
    torch.set_default_dtype(before)


@contextlib.contextmanager
def default_device():
    torch.set_default_device("cpu")
    yield
    torch.set_default_device(None)


@contextlib.contextmanager
def deterministic(*, warn_only):
    torch.use_deterministic_algorithms(True, warn_only=warn_only)
    yield
    torch.use_deterministic_algorithms(False)


@contextlib.contextmanager
def matmul_precision(value):
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(value)
    yield
    torch.set_float32_matmul_precision(before)


ON_CPU = "cpu", torch.bfloat16
ON_CUDA = "cuda", torch.float16
SET = {
    "no_grad": (torch.no_grad, {"grad mode": False}),
    "inference_mode": (torch.inference_mode, {"grad mode": False, "inference mode": True}),
    "autocast": (lambda: torch.autocast("cpu"), {"autocast": (ON_CPU,)}),
    "autocast to another type": (
        lambda: torch.autocast("cpu", dtype=torch.float16), {"autocast": (("cpu", torch.float16),)},
    ),
    "autocast on the GPU": (
        lambda: set_autocast("cuda"), {"autocast": (ON_CUDA,)},
    ),
    "default dtype": (lambda: default_dtype(torch.float64), {"default dtype": torch.float64}),
    "default device": (default_device, {"default device": torch.device("cpu")}),
    "a device in a block": (
        lambda: torch.device("cpu"), {"default device": torch.device("cpu")},
    ),
    "deterministic": (
        lambda: deterministic(warn_only=False), {"use_deterministic_algorithms": True},
    ),
    "deterministic, with warnings": (
        lambda: deterministic(warn_only=True),
        {"use_deterministic_algorithms": True, "warn_only": True},
    ),
    "cudnn": (
        lambda: attribute(torch.backends.cudnn, "deterministic", value=True),
        {"cudnn.deterministic": True},
    ),
    "tf32": (
        lambda: matmul_precision("high"), {"precision of float32 in products": "tf32"},
    ),
    "convolutions without tf32": (
        lambda: attribute(torch.backends.cudnn, "allow_tf32", value=False),
        {"precision of float32 in convolutions": "none"},
    ),
}  # fmt: skip


@contextlib.contextmanager
def set_autocast(kind):
    """As ``torch.autocast`` on a machine that has the device."""
    torch.set_autocast_enabled(kind, True)
    yield
    torch.set_autocast_enabled(kind, False)


def warm_up():
    """torch says "none" of a precision that was never set, and what is in force afterwards."""
    for value in ("high", "highest"):
        torch.set_float32_matmul_precision(value)


@pytest.mark.parametrize("name", SET)
def test_each_is_known_while_it_is_set(name):
    warm_up()
    block, expected = SET[name]
    before = seen()
    assert seen() == before
    hash(tuple(before.values()))
    with block():
        inside = seen()
    assert {key: value for key, value in inside.items() if before[key] != value} == expected
    hash(tuple(inside.values()))
    assert seen() == before


def test_under_forward_mode_differentiation_each_call_is_another_one():
    """A launch would lose the tangents."""
    name = "forward-mode differentiation"
    assert seen()[name] == seen()[name]
    with forward_ad.dual_level():
        one, other = seen()[name], seen()[name]
        assert one != other
    assert seen()[name] is None


def test_they_are_those_of_the_thread():
    found = []
    with torch.no_grad():
        within(lambda: found.append(seen()["grad mode"]))
        assert (found, seen()["grad mode"]) == ([True], False)


NAMES = (
    "_is_any_autocast_enabled",
    "_len_torch_function_stack",
    "_get_cudnn_deterministic",
    "_get_fp32_precision_getter",
)


@pytest.mark.parametrize("lies", [(), NAMES[:3]])
def test_torchs_private_calls_serve_any_version_as_long_as_the_public_ones_tell_the_same(lies):
    program = """
import torch

torch.__version__ = "2.16.0"
another = lambda *_: "another"
for name in LIES:
    assert hasattr(torch._C, name), name  # else this version has it not: look for its new name
    setattr(torch._C, name, another)
from streamkit.backends._torch import settings as own  # its calls are chosen as it is imported

calls = own._has_autocast, own._has_modes, own._is_cudnn_deterministic, own._precision
with torch.no_grad(), torch.autocast("cpu"), torch.device("cpu"):
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.deterministic = True
    torch.set_float32_matmul_precision("high")
    print([call is getattr(torch._C, name) for call, name in zip(calls, NAMES)])
    print(own.settings().read())
"""
    program = program.replace("LIES", repr(lies)).replace("NAMES", repr(NAMES))
    private, told = python(program, options=("-W", "ignore")).splitlines()
    assert private == f"{[not lies] * 3 + [True]}"
    assert told == (
        "(False, False, (('cpu', torch.bfloat16),), torch.float32, device(type='cpu'), "
        "True, False, True, 'tf32', 'tf32', None)"
    )


SWAPS = {
    "load": lambda model, new: model.load_state_dict({"0.weight": new}, assign=True, strict=False),
    "attribute": lambda model, new: setattr(model[0], "weight", torch.nn.Parameter(new)),
    "data": lambda model, new: setattr(model[0].weight, "data", new),
    "buffer": lambda model, new: setattr(model[1], "running_mean", new),
    "part": lambda model, new: model.append(torch.nn.Linear(4, 4)),
}


@pytest.mark.parametrize("way", SWAPS)
def test_swapped_weights_have_other_addresses(way):
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4))
    before, held = weights_of(model), model.state_dict()
    with torch.no_grad():
        model[0].weight.add_(1)  # in place
    assert weights_of(model) == before
    SWAPS[way](model, torch.ones_like(held["0.weight"]))
    assert weights_of(model) != before
    assert weights_of(held) is weights_of(model[0].weight) is None
