"""The doctor's look at the driver: is there one, does it start, is it new enough."""

from __future__ import annotations

import contextlib
import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from streamkit import errors
from streamkit._base import installed
from streamkit._cuda import driver, loader
from streamkit._doctor.report import Driver
from streamkit.protocols import Finding

if TYPE_CHECKING:
    from collections.abc import Iterator

_ABOUT = Path("/proc/driver/nvidia/version")
_TOO_OLD = 35

# What to do about an error with which the driver or a device does not start, by CUDA's number.
_REMEDIES = {
    2: "End other processes that use the GPU, or choose another with CUDA_VISIBLE_DEVICES.",
    3: "If this process was forked from one that had used CUDA, start it with multiprocessing's "
    "'spawn' or 'forkserver' method.",
    46: "Another process may have the GPU to itself: see its compute mode in nvidia-smi.",
    802: "Start the NVIDIA Fabric Manager, and wait until it is ready.",
    803: "The driver's library and its kernel module are of two versions: restart the machine, or "
    "load the module again.",
    804: "Remove the CUDA compatibility package, or update the driver: this GPU cannot use it.",
}
_RESTART = "Run nvidia-smi: if it fails too, load the driver's kernel module again or restart."


def look(findings: list[Finding]) -> Driver | None:
    """Return the driver, None if there is none or it may not be called; note what is wrong."""
    if loader.is_forked:
        findings.append(
            Finding(
                "forked",
                "this process was forked after CUDA was initialised, and CUDA does not survive it",
                "Start workers with multiprocessing's 'spawn' or 'forkserver' method.",
            )
        )
        return None
    version = loader.driver_version()
    devices: list[str] = []
    findings += _start(version, devices)
    if not version and not devices:
        return None
    return Driver(f"{version // 1000}.{version % 1000 // 10}", _release(), devices)


def _start(version: int, devices: list[str]) -> Iterator[Finding]:
    try:
        devices += [driver.device_name(index) for index in range(driver.device_count())]
        if devices:
            driver.primary_context(driver.current_device())  # can anything run on it?
    except errors.BackendNotInstalledError:
        line = installed.install_line("cuda.bindings", version // 1000)
        yield Finding(
            "no-cuda-python",
            "there is a CUDA driver, and cuda.bindings, which calls it, cannot be imported",
            f"Install it: {line}",
            "cuda.bindings",
        )
    except errors.NoDeviceError:
        yield _no_device(version)
    except errors.DriverError as error:
        if error.code == _TOO_OLD:
            yield Finding(
                "old-driver",
                "the driver is from before CUDA 12, and StreamKit needs one of CUDA 12 or newer",
                "Update the NVIDIA driver.",
            )
        else:
            yield Finding(
                "driver-fails",
                f"CUDA does not start: {error.call} failed with {error.name} ({error.code})",
                _REMEDIES.get(error.code, _RESTART),
            )
    except Exception as error:  # noqa: BLE001 - the bindings', which read switches of their own
        yield Finding(
            "driver-fails",
            f"CUDA does not start: cuda.bindings raised {type(error).__name__}: {error}",
            "See the findings about cuda.bindings and its switches; or install it again.",
            "cuda.bindings",
        )
    else:
        if not devices:
            yield _no_device(version)


def _no_device(version: int) -> Finding:
    if sys.platform == "darwin":
        return Finding(
            "no-driver",
            "there is no CUDA driver: CUDA does not exist on macOS",
            "Nothing: host streams run the same program. For a GPU, use Linux.",
        )
    if not version:
        return Finding(
            "no-driver",
            "there is no CUDA driver: its library cannot be loaded",
            "Install NVIDIA's driver; start a container with --gpus all. Without a GPU, host "
            "streams run the same program.",
        )
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return Finding(
            "no-device",
            f"the driver shows no device, and CUDA_VISIBLE_DEVICES={visible!r} can hide them",
            "Unset CUDA_VISIBLE_DEVICES before Python starts, or name the devices to use: 0,1.",
        )
    return Finding(
        "no-device",
        "there is a CUDA driver, and it reports no device",
        "Run nvidia-smi. Start a container with --gpus all, and its process as a user who may "
        "open /dev/nvidia*.",
    )


def _release() -> str | None:
    with contextlib.suppress(OSError):
        found = re.search(r"Kernel Module.*?\s(\d+\.[\d.]+)", _ABOUT.read_text(encoding="utf-8"))
        return found and found[1]
    return None
