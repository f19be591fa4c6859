"""The values of ``device``: None, "cpu", "cuda", "cuda:N", an ordinal or a library's device."""

from __future__ import annotations

import functools
import re

from streamkit._cuda import driver
from streamkit._support import messages

_CUDA_DEVICE = re.compile(r"cuda(?::(\d+))?")


def parse(device: object) -> int | str | None:
    """Return the ordinal, "cpu", or None for the current device; ValueError for anything else."""
    if device is None:
        return None
    if isinstance(device, int) and not isinstance(device, bool) and device >= 0:
        return device
    # compared as text, because Warp's "==" asks CUDA and that of arrays returns an array; only a
    # device's text, in this form for torch and Warp: that of a CUDA tensor would wait for its work
    is_text = isinstance(device, str) or type(device).__name__.lower() == "device"
    text = str(device) if is_text else ""
    match = _CUDA_DEVICE.fullmatch(text)
    if text == "cpu":
        return "cpu"
    if match is None:
        raise ValueError(
            f"{messages.describe(device)} is not a device: use None, 'cpu', 'cuda', 'cuda:N' or an "
            "int ordinal; write int(x) for another library's integer."
        )
    return int(match[1]) if match[1] else None


def is_device(obj: object) -> bool:
    """Whether an object given in another argument's place names a device."""
    try:
        return parse(obj) is not None or obj == "cuda"
    except ValueError:
        return False


def on_host(device: object) -> bool:
    """Whether a new or default stream is the host's: named "cpu", or there is no CUDA device."""
    return parse(device) == "cpu" or (device is None and not driver.is_present())


def ordinal_of(device: object) -> int | None:
    """Return the CUDA ordinal, None for the current device; ValueError for the host."""
    parsed = parse(device)
    if parsed == "cpu":
        raise ValueError(
            "device='cpu' has no CUDA stream: use None, 'cuda', 'cuda:N' or an ordinal."
        )
    return parsed if isinstance(parsed, int) else None


def ordinal_or_current(device: object) -> int:
    """Return the CUDA ordinal, of the current device if none is named."""
    ordinal = ordinal_of(device)
    return driver.current_device() if ordinal is None else ordinal


@functools.cache
def uuid_of(device: int) -> str:
    """Return the device's UUID, as CUDA_VISIBLE_DEVICES takes it."""
    text = bytes(driver.ask("cuDeviceGetUuid", device).bytes).hex()
    parts = text[:8], text[8:12], text[12:16], text[16:20], text[20:]
    return "GPU-" + "-".join(parts)
