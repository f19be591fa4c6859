"""The commands: results go to stdout, what went wrong to stderr.

``cli`` imports this where numpy, rich and typer are installed. typer reads the annotations, so they
are evaluated.
"""

import contextlib
import functools
import io
import json
import sys
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import Progress

from streamkit._doctor import doctor
from streamkit._doctor import report as doctor_report
from streamkit._tools import bench, demo, matrix, terminal
from streamkit._tools.machine import CannotRunError
from streamkit.errors import StreamKitError

_Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
_Data = Annotated[Path | None, typer.Option(metavar="FILE", help="Write the data, as JSON.")]

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)


@app.callback()
def _streamkit(
    *, version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False
) -> None:
    """One ordered CUDA queue for PyTorch, CuPy, Warp and CUDA Python."""
    if version:  # pragma: no cover - cli.main has answered it, this is for --help
        raise typer.Exit


@app.command("demo")
def _demo(
    *,
    output: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the image made, as PGM.")
    ] = None,
    as_json: _Json = False,
) -> None:
    """Run an image pipeline over torch, CuPy and Warp on one stream, checked by NumPy.

    Without a GPU it runs on a host queue. Exits with 1 if the result is wrong.
    """
    result = _run(
        demo.run,
        demo.as_data,
        terminal.show_demo,
        output,
        write=lambda result, path: demo.write_image(result.image, path),
        as_json=as_json,
    )
    raise typer.Exit(0 if result.ok else 1)


@app.command("bench")
def _bench(*, output: _Data = None, as_json: _Json = False) -> None:
    """Time StreamKit's operations against the libraries' own calls, in this process.

    Needs a GPU, torch, CuPy and Warp, and half a minute. Exits with 1 if it cannot run
    or the file not be written, whatever the numbers are.
    """
    _run(bench.run, bench.as_data, terminal.show_bench, output, as_json=as_json)


@app.command("matrix")
def _matrix(*, output: _Data = None, as_json: _Json = False) -> None:
    """Try every ordered pair of the libraries here: one queue, kept alive, in order.

    Needs a GPU, or says that there is none. Exits with 1 if a pair fails.
    """
    report = _run(matrix.run, matrix.as_data, terminal.show_matrix, output, as_json=as_json)
    raise typer.Exit(0 if report.ok else 1)


@app.command("doctor")
def _doctor(
    *,
    load: Annotated[
        bool, typer.Option("--load", help="Import each installed library, and ask it too.")
    ] = False,
    as_json: _Json = False,
) -> None:
    """Look for what is wrong with CUDA and the libraries here, and say what to do.

    Exits with 1 if something is.
    """
    examine = functools.partial(doctor.examine, load=load)
    report = _run(examine, doctor_report.as_data, terminal.show_doctor, as_json=as_json)
    raise typer.Exit(0 if report.ok else 1)


def _run(  # noqa: PLR0913 - the parts of a command
    run: Callable[..., Any],
    as_data: Callable[[Any], object],
    show: Callable[[Any], None],
    output: Path | None = None,
    *,
    write: Callable[[Any, Path], object] | None = None,
    as_json: bool,
) -> Any:
    """Run a tool and print its report; exit with 1 if it cannot run, or the file not be written.

    ``write`` writes something else than the data to the file.
    """
    try:
        # Libraries print at their first use.
        with _progress() as progress, contextlib.redirect_stdout(io.StringIO()):
            report = run(progress=progress)
        text = json.dumps(as_data(report), indent=2)
        if as_json:
            typer.echo(text)
        else:
            show(report)
        if output is not None:
            if write is None:
                output.write_text(text + "\n", encoding="utf-8")
            else:
                write(report, output)
            if not as_json:
                typer.echo(f"Written: {output}")
    except (CannotRunError, StreamKitError, OSError) as error:
        name = "" if isinstance(error, CannotRunError) else f"{type(error).__name__}: "
        typer.echo(f"{name}{error}", err=True)
        raise typer.Exit(1) from error
    return report


@contextlib.contextmanager
def _progress() -> Generator[Callable[[str, int, int], None]]:
    """Show a bar on stderr while it is a terminal."""
    # A refreshing thread of rich would take the GIL from what is timed. rich must not take stdout
    # either, where the libraries print.
    with Progress(
        console=Console(stderr=True),
        auto_refresh=False,
        transient=True,
        redirect_stdout=False,
        disable=not sys.stderr.isatty(),
    ) as bar:
        task = bar.add_task("")

        def progress(what: str, done: int, steps: int) -> None:
            bar.update(task, description=what, completed=done, total=steps, refresh=True)

        yield progress
