"""What the doctor reports, as tables and a list on the terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.table import Table

    from streamkit._doctor.report import Driver, Report, Standing


def show(report: Report) -> None:
    """Print the driver, the libraries, where they stand, the findings, and the verdict."""
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False)  # not soft_wrap: the tables must fit

    def line(text: Text | str) -> None:  # only the terminal may break it, so that it can be copied
        console.print(text, markup=False, soft_wrap=True)

    line(f"StreamKit {report.streamkit}, Python {report.python}")
    line(_driver(report.driver))
    for name, value in report.environment.items():
        line(f"{name}={value}")
    for table in _tables(report):
        console.print(table)
    if report.missing:
        line(f"Not installed: {', '.join(report.missing)}")
    for number, finding in enumerate(report.findings, 1):
        line(Text.assemble("\n", (f"{number}. {finding.code}", "bold red"), f": {finding.what}"))
        line(f"   {finding.remedy}")
    count = len(report.findings)
    if count:
        verdict = Text.assemble("\n", (f"{count} finding{'s' if count > 1 else ''}", "bold red"))
    else:
        verdict = Text.assemble("\n", ("OK", "green"), ": nothing wrong was found")
    line(verdict)


def _tables(report: Report) -> Iterator[Table]:
    """Yield the libraries, and where those stand that have a current stream."""
    from rich.text import Text

    if report.libraries:
        table = _table("library", "version", "CUDA", "loaded", "handle 0")
        for library in report.libraries:
            loaded = "yes" if library.loaded else "no"
            table.add_row(
                *(Text(cell or "?") for cell in (library.name, library.version)),
                library.cuda or "",
                loaded,
                library.handle_0,
            )
        yield table
    standing = [(one.name, one.current) for one in report.libraries if one.current is not None]
    if standing:
        table = _table("current stream", "device", "id", "handle", "kind", "context")
        for name, current in standing:
            table.add_row(Text(name), *_cells(current))
        yield table


def _table(*headings: str) -> Table:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for heading in headings:  # in a narrow terminal words go to the next line, but no number does
        table.add_column(heading, no_wrap=heading in {"device", "id", "handle", "context"})
    return table


def _driver(driver: Driver | None) -> str:
    if driver is None:
        return "No CUDA driver"
    release = f" {driver.release}" if driver.release else ""
    devices = ", ".join(f"cuda:{index} {name}" for index, name in enumerate(driver.devices))
    return f"Driver{release}, CUDA {driver.cuda}; {devices or 'no device'}"


def _cells(current: Standing) -> Iterator[str]:
    yield current.device
    yield "?" if current.id is None else str(current.id)
    yield f"{current.handle:#x}"
    yield f"{current.kind}, captures" if current.capturing else current.kind
    yield "primary" if current.primary else f"{current.context:#x}"
