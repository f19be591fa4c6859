"""The command ``streamkit``: results go to stdout, what went wrong to stderr.

typer reads the annotations, and typer is a local name here, so they are evaluated.
"""

import contextlib
import importlib
import io
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import streamkit
from streamkit._base.messages import DISTRIBUTION
from streamkit._tools.machine import CannotRunError
from streamkit.errors import StreamKitError

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

_EXTRA = ("numpy", "rich", "typer")


def main() -> None:
    """Run the command line; without the extra ``cli`` exit 2 with the line that installs it."""
    if sys.argv[1:] == ["--version"]:  # the one thing that needs no extra
        _say(streamkit.__version__)
        return
    try:
        app = _app()
    except ModuleNotFoundError as error:
        if error.name not in _EXTRA:
            raise
        _complain(
            f"The streamkit command needs {', '.join(_EXTRA)}, and {error.name} is not installed. "
            f"Install them with: pip install '{DISTRIBUTION}[cli]'"
        )
        sys.exit(2)
    app()


def _app() -> Any:
    for name in _EXTRA:  # what is missing is missed here, before anything has run
        importlib.import_module(name)
    import typer

    app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)

    @app.callback()
    def streamkit_(
        *,
        version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
    ) -> None:
        """One ordered CUDA queue for PyTorch, CuPy, Warp and CUDA Python."""
        if version:  # pragma: no cover - main has answered it, this is for --help
            raise typer.Exit

    @app.command()
    def demo(
        *,
        output: Annotated[
            Path | None, typer.Option(metavar="FILE", help="Write the image made, as PGM.")
        ] = None,
        as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    ) -> None:
        """Run an image pipeline over torch, CuPy and Warp on one stream, checked by NumPy.

        Without a GPU it runs on a host queue. Exits with 1 if the result is wrong.
        """
        raise typer.Exit(_demo(output, as_json=as_json))

    @app.command()
    def bench(
        *,
        output: Annotated[
            Path | None, typer.Option(metavar="FILE", help="Write the numbers, as JSON.")
        ] = None,
        as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    ) -> None:
        """Time StreamKit's operations against the libraries' own calls, in this process.

        Needs a GPU, torch, CuPy and Warp, and half a minute. Exits with 1 if it cannot run
        or the file not be written, whatever the numbers are.
        """
        raise typer.Exit(_bench(output, as_json=as_json))

    @app.command()
    def matrix(
        *,
        output: Annotated[
            Path | None, typer.Option(metavar="FILE", help="Write what was found, as JSON.")
        ] = None,
        as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    ) -> None:
        """Try every ordered pair of the libraries here: one queue, kept alive, in order.

        Needs a GPU, or says that there is none. Exits with 1 if a pair fails.
        """
        raise typer.Exit(_matrix(output, as_json=as_json))

    @app.command()
    def doctor(
        *,
        load: Annotated[
            bool, typer.Option("--load", help="Import each installed library, and ask it too.")
        ] = False,
        as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    ) -> None:
        """Look for what is wrong with CUDA and the libraries here, and say what to do.

        Exits with 1 if something is.
        """
        raise typer.Exit(_doctor(load=load, as_json=as_json))

    return app


def _demo(output: Path | None, *, as_json: bool) -> int:
    from streamkit._tools import demo, terminal

    try:
        with _progress() as progress, _silence():
            result = demo.run(progress=progress)
        if output is not None:
            demo.write_image(result.image, output)
    except (StreamKitError, OSError) as error:
        _complain(f"{type(error).__name__}: {error}")
        return 1
    if as_json:
        data = asdict(result)
        del data["image"]
        _say(json.dumps(data, indent=2))
    else:
        terminal.show_demo(result)
        if output is not None:
            _say(f"Written: {output}")
    return 0 if result.ok else 1


def _bench(output: Path | None, *, as_json: bool) -> int:
    from streamkit._tools import bench, terminal

    report = _run(bench.run, bench.as_data, terminal.show_bench, output, as_json=as_json)
    return 1 if report is None else 0


def _matrix(output: Path | None, *, as_json: bool) -> int:
    from streamkit._tools import matrix, terminal

    report = _run(matrix.run, matrix.as_data, terminal.show_matrix, output, as_json=as_json)
    return 0 if report is not None and report.ok else 1


def _doctor(*, load: bool, as_json: bool) -> int:
    from streamkit._doctor import doctor
    from streamkit._doctor.report import as_data
    from streamkit._tools import terminal

    with _progress() as progress, _silence():
        report = doctor.examine(load=load, progress=progress)
    if as_json:
        _say(json.dumps(as_data(report), indent=2))
    else:
        terminal.show_doctor(report)
    return 0 if report.ok else 1


def _run(
    run: "Callable[..., Any]",
    as_data: "Callable[[Any], object]",
    show: "Callable[[Any], None]",
    output: Path | None,
    *,
    as_json: bool,
) -> Any | None:
    """Run a tool and print its report; None if it cannot run, or the file not be written."""
    try:
        with _progress() as progress, _silence():
            report = run(progress=progress)
        text = json.dumps(as_data(report), indent=2)
        if as_json:
            _say(text)
        else:
            show(report)
        if output is not None:
            output.write_text(text + "\n", encoding="utf-8")
            if not as_json:
                _say(f"Written: {output}")
    except CannotRunError as error:
        _complain(str(error))
        return None
    except (StreamKitError, OSError) as error:
        _complain(f"{type(error).__name__}: {error}")
        return None
    return report


def _silence() -> contextlib.AbstractContextManager[object]:
    """Drop what libraries print at their first use."""
    return contextlib.redirect_stdout(io.StringIO())


@contextlib.contextmanager
def _progress() -> "Generator[Callable[[str, int, int], None]]":
    """Show a bar on stderr while it is a terminal."""
    from rich.console import Console
    from rich.progress import Progress

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


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")


def _complain(text: str) -> None:
    sys.stderr.write(text + "\n")


if __name__ == "__main__":
    main()
