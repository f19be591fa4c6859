"""The settings of torch, in this thread, that change the results of a graph."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import torch
from torch.autograd import forward_ad

from streamkit.protocols import Settings
from streamkit.protocols.adapters import NeedsFunction

if TYPE_CHECKING:
    from collections.abc import Hashable

_NAMES = (
    "grad mode",
    "inference mode",
    "autocast",
    "default dtype",
    "default device",
    "use_deterministic_algorithms",
    "warn_only",
    "cudnn.deterministic",
    "precision of float32 in products",
    "precision of float32 in convolutions",
    "forward-mode differentiation",
)


def settings() -> Settings:
    return Settings(_NAMES, _read, weights_of)


def _public_precision(_backend: str, operation: str) -> str:
    conv, product = torch.backends.cudnn.conv, torch.backends.cuda.matmul
    return str((conv if operation == "conv" else product).fp32_precision)


def _read() -> tuple[Hashable, ...]:
    return (
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        _autocast() if _has_autocast() else (),
        torch.get_default_dtype(),
        torch.get_default_device() if _has_modes() else None,  # set by a mode, and slow to read
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
        _is_cudnn_deterministic(),
        _precision("cuda", "matmul"),
        _precision("cuda", "conv"),
        # how many levels of forward-mode differentiation are open, less one
        NeedsFunction() if getattr(forward_ad, "_current_level", -1) >= 0 else None,
    )


def _autocast() -> tuple[Hashable, ...]:
    """Return the kinds of devices for which autocast is on, each with its type."""
    kinds = [kind for kind in ("cuda", "cpu") if torch.is_autocast_enabled(kind)]
    return tuple([(kind, torch.get_autocast_dtype(kind)) for kind in kinds])


def _private_call(name: str, public: Any, *arguments: str) -> Any:
    """Return torch's private function of this name if it answers as ``public`` does now."""
    private: Any = getattr(torch._C, name, public)  # noqa: SLF001 - as torch's own functions do
    with contextlib.suppress(Exception):  # another torch may refuse the arguments in any way
        if private(*arguments) == public(*arguments):
            return private
    return public


_has_autocast: Any = _private_call("_is_any_autocast_enabled", lambda: bool(_autocast()))
_is_cudnn_deterministic: Any = _private_call(
    "_get_cudnn_deterministic", lambda: torch.backends.cudnn.deterministic
)
_precision: Any = _private_call("_get_fp32_precision_getter", _public_precision, "cuda", "matmul")
with torch.device("cpu"):  # a mode, which has to be counted
    _has_modes: Any = _private_call("_len_torch_function_stack", lambda: True)


def weights_of(model: Any) -> tuple[int, ...] | None:
    if not isinstance(model, torch.nn.Module):
        return None
    return tuple([array.data_ptr() for array in (*model.parameters(), *model.buffers())])
