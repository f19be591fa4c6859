"""What the doctor reports, as data, and how a check comes to be a part of it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from streamkit.errors import StreamKitError
from streamkit.protocols import Finding

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


@dataclass(frozen=True)
class Driver:
    """The CUDA driver of this machine."""

    cuda: str
    """The newest CUDA that it serves, as "13.0"."""
    release: str | None
    """Its own version, as "580.159.04", where it tells."""
    devices: list[str]
    """What it calls the devices that this process sees."""


@dataclass(frozen=True)
class Standing:
    """The stream on which a library's next work in this thread would run."""

    device: str
    handle: int
    id: int | None
    """The driver's id; None while unknown because the stream captures."""
    kind: str
    """"legacy default", "per-thread default", "blocking", "nonblocking", or "unknown"."""
    capturing: bool
    context: int
    primary: bool
    """Whether the context is the device's primary one."""


@dataclass(frozen=True)
class Library:
    """One library that is installed or loaded."""

    name: str
    version: str | None
    """None if no metadata is installed for it."""
    cuda: str | None
    """The CUDA it is built for; "cpu" if for none, None if it does not say."""
    loaded: bool
    handle_0: str
    """Which default stream handle 0 is for it: "legacy" or "per-thread"."""
    current: Standing | None
    """Its current stream; None if it is not loaded, or has no current stream or no CUDA."""


@dataclass(frozen=True)
class DoctorReport:
    """What is here, and what is wrong with it."""

    python: str
    streamkit: str
    driver: Driver | None
    context: int
    """The CUcontext that is current in this thread, 0 for none."""
    libraries: list[Library]
    missing: list[str]
    """Those StreamKit knows that are neither installed nor loaded."""
    environment: dict[str, str]
    """The variables that CUDA or a library reads here, as far as they are set."""
    findings: list[Finding]

    @property
    def ok(self) -> bool:
        """Whether nothing was found."""
        return not self.findings


def as_data(report: DoctorReport) -> dict[str, Any]:
    """Return the report in JSON's types, with its verdict."""
    data = asdict(report)
    data["findings"] = [finding._asdict() for finding in report.findings]
    data["ok"] = report.ok
    return data


def run_check(
    what: str, look: Callable[[], Iterable[Finding]], library: str | None = None
) -> list[Finding]:
    """Return what a check finds; that it failed, if it does."""
    found: list[Finding] = []
    try:
        found.extend(look())
    except Exception as error:  # noqa: BLE001 - what is broken must not stop the other checks
        remedy = "Mend the other findings first, and look at the last error of earlier GPU work."
        if isinstance(error, StreamKitError):
            remedy = "Do what this error says."
        text = f"{what} cannot be examined: {type(error).__name__}: {error}"
        found.append(Finding("cannot-be-asked", text, remedy, library))
    return found
