"""The report of the doctor, as data and as text, and how a check becomes a part of it."""

from __future__ import annotations

import html
import sys
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from streamkit._support import messages
from streamkit.diagnostics.pictures import terminal
from streamkit.diagnostics.pictures.timeline import counted
from streamkit.errors import StreamKitError
from streamkit.protocols import Finding

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence


@dataclass(frozen=True)
class Driver:
    """The CUDA driver of this machine."""

    cuda: str
    """The newest CUDA that it serves, as "13.0"."""
    release: str | None
    """The driver's own version, as "580.159.04", where the system tells."""
    devices: list[str]
    """The driver's names of the devices that this process sees."""


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
class LibraryReport:
    """One library that is installed or loaded."""

    name: str
    version: str | None
    """None if no metadata is installed for it."""
    cuda: str | None
    """The CUDA it is built for; "cpu" for no CUDA, None if the metadata do not say."""
    loaded: bool
    handle_0: str
    """The default stream that handle 0 means to the library: "legacy" or "per-thread"."""
    current: Standing | None
    """None if the library is not loaded, or has no current stream or no CUDA."""


@dataclass(frozen=True, repr=False)
class DoctorReport:
    """The installation and its faults; ``print`` and notebooks show the report as text."""

    python: str
    streamkit: str
    driver: Driver | None
    context: int
    """The CUcontext that is current in this thread, 0 for none."""
    libraries: list[LibraryReport]
    missing: list[str]
    """The libraries that StreamKit knows and that are neither installed nor loaded."""
    environment: dict[str, str]
    """The variables that CUDA or a library reads here, as far as they are set."""
    findings: list[Finding]

    @property
    def ok(self) -> bool:
        """Whether nothing was found."""
        return not self.findings

    def show(self) -> None:
        """Print the report."""
        terminal.show(str(self))

    def __str__(self) -> str:
        return terminal.writable("\n".join(_lines(self)))

    def __repr__(self) -> str:
        return f"<streamkit doctor report: {counted(len(self.findings), 'finding')}>"

    def _repr_html_(self) -> str:
        return f'<pre style="white-space: pre-wrap">{html.escape(str(self))}</pre>'


def as_data(report: DoctorReport) -> dict[str, Any]:
    """Return the report as JSON has it."""
    findings = [finding._asdict() for finding in report.findings]
    return asdict(report) | {"findings": findings, "ok": report.ok}


def run_check(
    what: str, look: Callable[[], Iterable[Finding]], library: str | None = None
) -> list[Finding]:
    """Return the findings of a check; its own failure is one of them."""
    found: list[Finding] = []
    try:
        found.extend(look())
    except Exception as error:  # noqa: BLE001 - a broken library must not stop the other checks
        remedy = "Mend the other findings first, and look at the last error of earlier GPU work."
        if isinstance(error, StreamKitError):
            remedy = "Do what this error says."
        text = f"{what} cannot be examined: {type(error).__name__}: {error}"
        found.append(Finding("cannot-be-asked", text, remedy, library))
    return found


# -- as plain text, whose lines can be copied --------------------------------------------------


def _lines(report: DoctorReport) -> Iterator[str]:
    """Yield the driver, the libraries, their current streams, the findings, and the verdict."""
    yield f"StreamKit {report.streamkit}, Python {report.python}"
    yield _driver(report)
    for name, value in report.environment.items():
        yield f"{name}={value}"
    libraries = [
        (one.name, one.version or "?", one.cuda or "", "yes" if one.loaded else "no", one.handle_0)
        for one in report.libraries
    ]
    yield from _table(("library", "version", "CUDA", "loaded", "handle 0"), libraries)
    streams = [(one.name, *_cells(one.current)) for one in report.libraries if one.current]
    yield from _table(("current stream", "device", "id", "handle", "context", "kind"), streams)
    if report.missing:
        yield f"Not installed: {', '.join(report.missing)}"
    for number, finding in enumerate(report.findings, 1):
        yield ""
        yield f"{number}. {finding.code}: {finding.what}"
        yield f"   {finding.remedy}"
    yield ""
    count = len(report.findings)
    yield counted(count, "finding") if count else "OK: nothing wrong was found"


def _table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yield the lines of a table between empty ones; none if the table has no rows."""
    if not rows:
        return
    widths = [max(map(len, column)) for column in zip(headings, *rows, strict=True)]
    yield ""
    for row in (headings, ["-" * width for width in widths], *rows):
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        yield "  ".join(cells).rstrip()
    yield ""


def _driver(report: DoctorReport) -> str:
    driver = report.driver
    if driver is None and report.findings:
        return "No CUDA driver"
    if driver is None:
        why = messages.NO_CUDA if sys.platform == "darwin" else "An NVIDIA GPU needs one."
        return f"No CUDA driver, so programs run on host streams. {why}"
    release = f" {driver.release}" if driver.release else ""
    devices = ", ".join(f"cuda:{index} {name}" for index, name in enumerate(driver.devices))
    return f"Driver{release}, CUDA {driver.cuda}; {devices or 'no device'}"


def _cells(stream: Standing) -> tuple[str, ...]:
    return (
        stream.device,
        "?" if stream.id is None else str(stream.id),
        f"{stream.handle:#x}",
        "primary" if stream.primary else f"{stream.context:#x}",
        f"{stream.kind}, captures" if stream.capturing else stream.kind,
    )
