"""The command ``streamkit``: results go to stdout, what went wrong to stderr.

``doctor`` and ``--version`` need nothing but StreamKit. What another command needs is imported when
it runs. With ``--json`` stdout is one JSON object whatever happens; after an error it has the key
``error``. Around a program stdout and the exit status are the program's, and the report goes to
stderr.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import importlib
import io
import json
import os
import re
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import streamkit
from streamkit._cli.machine import CannotRunError
from streamkit.errors import StreamKitError

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence

    from streamkit._support.refusals import Block


class _CommandError(Exception):
    """The command cannot be run as it was written, or here: it exits with 2."""


class _Parser(argparse.ArgumentParser):
    """It raises its errors, which ``_exit`` prints."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(allow_abbrev=False, add_help=False, **settings)
        self.add_argument("-h", "--help", action="help", help="Show this help.")

    def add_report(self, run: Callable[[argparse.Namespace], int], output: str | None) -> None:
        """Let it run a tool, with ``--json``, and with ``--output`` which writes this."""
        self.set_defaults(run=run)
        self.add_argument(
            "--json", dest="as_json", action="store_true", help="Print the result as JSON."
        )
        if output is not None:
            self.add_argument("--output", type=Path, metavar="FILE", help=output)

    def add_program(self, run: Callable[[argparse.Namespace], int]) -> None:
        """Let it run a program under a tool; the options end where the program is named."""
        self.set_defaults(run=run, command=self.prog, as_json=False)
        self.add_argument("--html", type=Path, metavar="FILE", help="Write the report as a page.")
        self.add_argument("--json", type=Path, metavar="FILE", help="Write the report as JSON.")
        self.add_argument("-m", dest="is_module", action="store_true", help="PROGRAM is a module.")
        self.add_argument("program", metavar="PROGRAM", help="The program: a file of Python.")
        self.add_argument(
            "arguments", nargs=argparse.REMAINDER, metavar="...", help="Arguments of the program."
        )

    if not TYPE_CHECKING:  # which knows the overloads of argparse

        def parse_known_args(self, *arguments: Any, **named: Any) -> Any:
            """Refuse here what is unknown, so that the usage is that of the command."""
            options, unknown = super().parse_known_args(*arguments, **named)
            if unknown:
                self.error(f"unrecognized arguments: {' '.join(unknown)}")
            return options, unknown

    def error(self, message: str) -> NoReturn:
        for theirs, ours in _CLEARER.items():
            message = re.sub(theirs, ours, message)
        raise _CommandError(f"{self.format_usage()}{message}")


_CLEARER = {  # what argparse writes, and what says more
    ".*choice: 'bench'.*": "the bench is not in the package: run tox -e bench in a clone",
    r".*choice: ('.*') \(choose from (.*)\)": r"there is no command \1. There are \2.",
    r".* required: PROGRAM\b.*": "the PROGRAM is missing: name a file, or a module after -m.",
    ".* required: COMMAND": "the COMMAND is missing: 'streamkit --help' lists them.",
}


def main() -> NoReturn:
    """Run the command line and exit: with 1 for a bad result, with 2 if it cannot be run so."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # it was closed before Python began
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115 - to the end
    try:
        try:
            _exit(_parser(), sys.argv[1:] or ["--help"])
        finally:
            with contextlib.suppress(ValueError, AttributeError):  # a program has closed it
                sys.stdout.flush()
    except OSError as error:  # of stdout, where whoever read it has ended, or the disk is full
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for the flush at the end
        if not isinstance(error, BrokenPipeError):
            sys.stderr.write(f"{type(error).__name__}: {error}\n")
        sys.exit(1)


def _exit(parser: _Parser, words: Sequence[str]) -> NoReturn:
    as_json = "--json" in words and words[0] not in PROGRAMS
    try:
        options = parser.parse_args(words)
        status: int = options.run(options)
    except BrokenPipeError:
        raise
    except Exception as error:
        is_ours = isinstance(error, (_CommandError, CannotRunError))
        if not is_ours and not isinstance(error, (StreamKitError, OSError)):
            if not as_json:
                raise
            traceback.print_exc()
        text = str(error) if is_ours else f"{type(error).__name__}: {error}"
        sys.stderr.write(f"{text}\n")
        if as_json:
            with contextlib.suppress(OSError):  # stdout itself is what failed
                _print_json({"error": text})
        status = 2 if isinstance(error, _CommandError) else 1
    sys.exit(status)


def _parser() -> _Parser:
    parser = _Parser(
        prog="streamkit",
        description="One ordered CUDA queue for PyTorch, CuPy, Warp and CUDA Python.",
    )
    parser.add_argument(
        "--version", action="version", version=streamkit.__version__, help="Print the version."
    )
    commands = parser.add_subparsers(metavar="COMMAND", required=True, title="commands")
    for name, (run, text, output) in COMMANDS.items():
        command = _added(commands, name, text)
        command.add_report(run, output)
        if output is None:
            command.add_argument(
                "--load",
                action="store_true",
                help="Import the installed libraries, and ask them too.",
            )
    for name, (run, text, fail) in PROGRAMS.items():
        command = _added(commands, name, text)
        if fail:
            command.add_argument("--fail", action="store_true", help=fail)
        command.add_program(run)
    return parser


def _added(commands: Any, name: str, text: str) -> _Parser:
    command: _Parser = commands.add_parser(name, help=text.partition("\n")[0], description=text)
    return command


# -- the commands -----------------------------------------------------------------------------


def _demo(options: argparse.Namespace) -> int:
    from streamkit._cli import demo

    output: Path | None = options.output
    if output is not None and output.suffix.lower() not in demo.FORMATS:
        raise _CommandError(
            f"streamkit demo cannot write {output.name!r}: it writes "
            f"{' and '.join(demo.FORMATS)}. Name the file picture.png, for example."
        )
    _need("streamkit demo", options, "numpy")
    return _report(
        options,
        demo.run,
        demo.as_data,
        demo.show,
        write=lambda result, path: demo.write_image(result.image, path),
    )


def _matrix(options: argparse.Namespace) -> int:
    from streamkit._cli import matrix

    _need("streamkit matrix", options)
    return _report(options, matrix.run, matrix.as_data, matrix.show)


def _doctor(options: argparse.Namespace) -> int:
    from streamkit.diagnostics.doctor import doctor, report

    run = functools.partial(doctor.examine, load=options.load)
    return _report(options, run, report.as_data, report.DoctorReport.show)


class Command(NamedTuple):
    """One command. Its text is no docstring, which ``python -OO`` leaves out."""

    run: Callable[[argparse.Namespace], int]
    text: str
    """What ``--help`` says; its first line stands in the list of the commands."""
    output: str | None
    """What ``--output`` writes; None if there is no such option."""


COMMANDS = {
    "demo": Command(
        _demo,
        "Run a small image pipeline over torch, CuPy and Warp.\n\n"
        "It runs on one stream, or on a host stream where there is no GPU, and NumPy checks the "
        "result. The exit status is 1 if the result is wrong.",
        "Write the image to this .png or .pgm file.",
    ),
    "matrix": Command(
        _matrix,
        "Try every pair of libraries here on one queue.\n\n"
        "It tries both orders of each pair: is it one queue, is its owner kept alive, and does one "
        "library wait for the other? It needs a CUDA GPU. The exit status is 1 if a pair fails.",
        "Write the data to this file, as JSON.",
    ),
    "doctor": Command(
        _doctor,
        "Find what is wrong with CUDA and the libraries here.\n\n"
        "It says what to do about each finding. The exit status is 1 if there is one, but a "
        "machine without a GPU is no finding.",
        None,
    ),
}


# -- a program under a tool -------------------------------------------------------------------

_RACED = 3


def _races(options: argparse.Namespace) -> int:
    from streamkit.diagnostics.races.races import program_races

    status, report = _program(options, program_races)
    return _RACED if options.fail and report is not None and report.certain else status


def _audit(options: argparse.Namespace) -> int:
    from streamkit.diagnostics.audit.audit import program_audit

    return _program(options, program_audit)[0]


def _program(options: argparse.Namespace, tool: Callable[[], Block[Any]]) -> tuple[int, Any]:
    """Run a program under a tool, show and write its report; return its exit status and report.

    The report is None where it could not be made, and in a process that the program has forked.
    """
    from streamkit._cli import programs
    from streamkit.diagnostics.pictures import terminal

    stderr, words = sys.stderr, [options.program, *options.arguments]
    files = [(options.html, _write_html), (options.json, _write_json)]
    given = [(_file(path), write) for path, write in files if path is not None]
    _refuse_to_replace([] if options.is_module else [Path(options.program)], given)
    try:
        ended = programs.run(words, tool(), is_module=options.is_module)
    except CannotRunError as error:
        raise _CommandError(str(error)) from error
    status, report = ended.status, None
    if not ended.is_child:
        with contextlib.suppress(OSError, ValueError, AttributeError):  # the program has closed it
            sys.stdout.flush()
        if stderr.closed:  # by the program: there is the file still
            stderr = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115 - to the end
        stderr.write(f"\n--- {options.command} ---\n")
        try:
            report = ended.report()
            terminal.show(str(report), stderr)
            if ended.threads:
                stderr.write(f"{', '.join(ended.threads)}: {_GO_ON}\n")
            for path, write in given:
                write(report, path)
                stderr.write(f"Written: {path}\n")
        except (StreamKitError, OSError) as error:
            stderr.write(f"{type(error).__name__}: {error}\n")
            status = status or 1
    if ended.interrupt is not None:
        raise ended.interrupt
    return status, report


def _file(path: Path) -> Path:
    """Return where a result will be; refuse what could only fail after a long run."""
    if path.is_dir():
        raise _CommandError(f"cannot write {str(path)!r}, which is a folder.")
    if not path.parent.is_dir():
        raise _CommandError(
            f"cannot write {str(path)!r}: there is no folder {str(path.parent)!r}. Make it first."
        )
    if path.is_file() or not path.exists():  # to open a pipe would wait for its reader
        _try_to_write(path)
    return path.absolute()


def _refuse_to_replace(taken: list[Path], given: list[tuple[Path, Any]]) -> None:
    """Refuse a result where the program is, or another result."""
    for path, _ in given:
        if path.resolve() in (one.resolve() for one in taken):
            raise _CommandError(
                f"cannot write {str(path)!r}, which is the program, or the file of another option."
            )
        if path.is_file() or not path.exists():  # and no pipe or device
            taken.append(path)


def _try_to_write(path: Path) -> None:
    is_new = not path.exists()
    try:
        path.open("ab").close()
    except OSError as error:
        raise _CommandError(f"cannot write {str(path)!r}: {error.strerror}.") from error
    if is_new:
        path.resolve().unlink()  # what a link names, not the link


_GO_ON = "still running, and what these threads do from now on is not in the report."


def _write_html(report: Any, path: Path) -> None:
    report.to_html(path)


def _write_json(report: Any, path: Path) -> None:
    path.write_text(json.dumps(report.as_data(), indent=2) + "\n", encoding="utf-8")


class Program(NamedTuple):
    """One command that runs a program under a tool."""

    run: Callable[[argparse.Namespace], int]
    text: str
    """As that of a ``Command``."""
    fail: str = ""
    """What its option ``--fail`` does; empty if it has none."""


PROGRAMS = {
    "races": Program(
        _races,
        "Run a program, and find the waits that are missing in it.\n\n"
        "Options of streamkit come before the program, as in: "
        "streamkit races --html races.html train.py --epochs 3",
        "Exit with 3 if a race is certain.",
    ),
    "audit": Program(
        _audit,
        "Run a program, and show on which queue its work ran.\n\n"
        "Options of streamkit come before the program, as in: "
        "streamkit audit --html audit.html train.py --epochs 3",
    ),
}


# -- what they share --------------------------------------------------------------------------


def _need(command: str, options: argparse.Namespace, *names: str) -> None:
    """Refuse to run without these modules, and without the one that prints tables."""
    needed = names if options.as_json else (*names, "rich")
    missing: list[str] = []
    for name in needed:
        try:
            importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name != name:
                raise
            missing.append(name)
    if missing:
        raise _CommandError(
            f"{command} needs {' and '.join(missing)}, not installed here. Install with: "
            f"pip install {' '.join(missing)}"
        )


def _report(
    options: argparse.Namespace,
    run: Callable[..., Any],
    as_data: Callable[[Any], dict[str, Any]],
    show: Callable[[Any], object],
    *,
    write: Callable[[Any, Path], object] | None = None,
) -> int:
    """Run a tool, print its report and write the file; return the exit status.

    ``write`` writes something else than the data to the file.
    """
    output: Path | None = getattr(options, "output", None)
    if output is not None:
        output = _file(output)
    # Libraries print at their first use.
    with _progress() as progress, contextlib.redirect_stdout(io.StringIO()):
        report = run(progress=progress)
    data = as_data(report)
    if not options.as_json:
        show(report)
    failed = ""
    if output is not None:
        try:
            if write is None:
                output.write_text(json.dumps(data, indent=2) + "\n", encoding="utf-8")
            else:
                write(report, output)
        except OSError as error:
            failed = f"{type(error).__name__}: {error}"
            sys.stderr.write(f"{failed}\n")
    if options.as_json:
        _print_json({"error": failed, **data} if failed else data)
    elif output is not None and not failed:
        path = str(output).encode(errors="backslashreplace").decode()
        sys.stdout.write(f"Written: {path}\n")
    return 0 if getattr(report, "ok", True) and not failed else 1


def _print_json(data: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(data, indent=2) + "\n")


@contextlib.contextmanager
def _progress() -> Generator[Callable[[str, int, int], object]]:
    """Show a bar on stderr while it is a terminal, and rich is installed."""
    try:
        from rich.console import Console
        from rich.progress import Progress
    except Exception:  # noqa: BLE001 - a broken rich is no reason for the doctor to fail
        yield lambda *_: None
        return
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


if __name__ == "__main__":
    main()
