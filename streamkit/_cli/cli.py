"""The command ``streamkit``: results go to stdout, what went wrong to stderr.

Only ``demo`` needs something beside StreamKit, which is NumPy. With ``--json`` stdout is one JSON
object whatever happens; after an error it has the key ``error``. Around a program stdout and the
exit status are the program's, and the report goes to stderr.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import importlib
import io
import json
import os
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, TextIO

import streamkit
from streamkit._cli.machine import CannotRunError
from streamkit.errors import StreamKitError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from streamkit._support.refusals import Block


class _CommandError(Exception):
    """A command that cannot be run as written, or on this machine: the exit status is 2."""


class _Parser(argparse.ArgumentParser):
    """A parser that raises its errors, which ``_exit`` prints."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(allow_abbrev=False, add_help=False, **settings)
        self.add_argument("-h", "--help", action="help", help="Show this help.")

    def add(self, command: Command) -> None:
        """Let the parser run a command, with its options."""
        self.set_defaults(run=command.run, command=self.prog)
        for name, settings in command.options.items():
            self.add_argument(name, **settings)

    def error(self, message: str) -> NoReturn:
        raise _CommandError(f"{self.format_usage()}{message}")


def main() -> NoReturn:
    """Run the command line and exit: with 1 for a bad result, with 2 if it cannot be run so."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed before Python began
            setattr(sys, name, io.StringIO())
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
                sys.stdout.write(_as_json({"error": text}))
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
    for name, command in {**COMMANDS, **PROGRAMS}.items():
        first = command.text.partition("\n")[0]
        commands.add_parser(name, help=first, description=command.text).add(command)
    return parser


# -- the commands -----------------------------------------------------------------------------


def _demo(options: argparse.Namespace) -> int:
    _need("streamkit demo", "numpy")
    from streamkit._cli import demo

    return _report(options, demo.run, dict, demo.show)


def _matrix(options: argparse.Namespace) -> int:
    from streamkit._cli import matrix

    return _report(options, matrix.run, matrix.as_data, matrix.show)


def _doctor(options: argparse.Namespace) -> int:
    from streamkit.diagnostics.doctor import doctor, report

    run = functools.partial(doctor.examine, load=options.load)
    return _report(options, run, report.as_data, report.DoctorReport.show)


# -- a program under a tool -------------------------------------------------------------------


def _races(options: argparse.Namespace) -> int:
    from streamkit.diagnostics.races.races import program_races

    status, report = _program(options, program_races)
    if report is None or options.fail is None:
        return status
    return 3 if (report.races if options.fail == "possible" else report.certain) else status


def _audit(options: argparse.Namespace) -> int:
    from streamkit.diagnostics.audit.audit import program_audit

    return _program(options, program_audit)[0]


def _program(options: argparse.Namespace, tool: Callable[[], Block[Any]]) -> tuple[int, Any]:
    """Run a program under a tool, show and write its report; return its exit status and report.

    The report is None where it could not be made, and in a process that the program has forked.
    """
    from streamkit._cli import programs
    from streamkit.diagnostics.pictures import terminal

    stderr: TextIO = sys.stderr
    files, words = _files(options), [options.program, *options.arguments]
    try:
        ended = programs.run(words, tool(), is_module=options.is_module)
    except CannotRunError as error:
        raise _CommandError(str(error)) from error
    status, report = ended.status, None
    if not ended.is_child:
        with contextlib.suppress(OSError, ValueError, AttributeError):  # the program has closed it
            sys.stdout.flush()
        if stderr.closed:  # by the program
            stderr = io.StringIO()
        stderr.write(f"\n--- {options.command} ---\n")
        try:
            if ended.failure is not None:
                raise ended.failure
            report = ended.report
            terminal.show(str(report), stderr)
            if ended.threads:
                stderr.write(f"{', '.join(ended.threads)}: still running, unseen from here on.\n")
            for kind, path in files.items():
                _write(report, kind, path)
                stderr.write(f"Written: {path}\n")
        except (StreamKitError, OSError) as error:
            stderr.write(f"{type(error).__name__}: {error}\n")
            status = status or 1
    if ended.interrupt is not None:
        raise ended.interrupt
    return status, report


def _files(options: argparse.Namespace) -> dict[str, Path]:
    """Return where the reports will be, by the kind of each."""
    given = {"page": options.html, "data": options.json}
    files = {kind: _file(path) for kind, path in given.items() if path is not None}
    taken = [*files.values(), *([] if options.is_module else [Path(options.program)])]
    if len({path.resolve() for path in taken}) < len(taken):
        raise _CommandError("cannot write over the program, or two reports into one file.")
    return files


def _write(report: Any, kind: str, path: Path) -> None:
    if kind == "page":
        report.to_html(path)
    else:
        path.write_text(_as_json(report.as_data()), encoding="utf-8")


# -- what they share --------------------------------------------------------------------------


def _need(command: str, name: str) -> None:
    """Refuse to run a command without this module."""
    try:
        importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name:
            raise
        raise _CommandError(f"{command} needs {name}. Install it: pip install {name}") from error


def _report(
    options: argparse.Namespace,
    run: Callable[..., Any],
    as_data: Callable[[Any], dict[str, Any]],
    show: Callable[[Any], object],
) -> int:
    """Run a tool, print its result and write the file; return the exit status."""
    output: Path | None = getattr(options, "output", None)
    if output is not None:
        output = _file(output)
    try:
        with contextlib.redirect_stdout(io.StringIO()):  # libraries print at their first use
            result = run(progress=_progress)
    finally:
        _progress("", 1, 1)
    data = as_data(result)
    if not options.as_json:
        show(result)
    if output is not None:
        output.write_text(_as_json(data), encoding="utf-8")
        sys.stderr.write(f"Written: {output}\n")
    if options.as_json:
        sys.stdout.write(_as_json(data))
    return 0 if data.get("ok", True) else 1


def _as_json(data: dict[str, Any]) -> str:
    return json.dumps(data, indent=2) + "\n"


def _progress(what: str, done: int, steps: int) -> None:
    """Show the present step in a line of stderr, if that is a terminal; the end removes it."""
    if sys.stderr.isatty():
        sys.stderr.write("\r\x1b[K" + (f"{what} ({done} of {steps})" if done < steps else ""))
        sys.stderr.flush()


def _file(path: Path) -> Path:
    """Return the path for a result; refuse a path that would only fail after a long run."""
    folder = path.parent
    if path.is_dir():
        raise _CommandError(f"cannot write {str(path)!r}, which is a folder.")
    if not folder.is_dir():
        raise _CommandError(
            f"cannot write {str(path)!r}: there is no folder {str(folder)!r}. Make it first."
        )
    if not os.access(path if path.exists() else folder, os.W_OK):
        raise _CommandError(f"cannot write {str(path)!r}, for which you have no permission.")
    return path.absolute()


# -- the tables -------------------------------------------------------------------------------


class Command(NamedTuple):
    """One command. Its text is no docstring, which ``python -OO`` leaves out."""

    run: Callable[[argparse.Namespace], int]
    text: str  # of --help; the list of the commands has the first line
    options: dict[str, dict[str, Any]]  # the arguments of ``add_argument``, by the option


_KIND = {"action": "store_const", "dest": "fail"}
_FLAG, _FILE = {"action": "store_true"}, {"type": Path, "metavar": "FILE"}
JSON: dict[str, dict[str, Any]] = {
    "--json": {"dest": "as_json", "help": "Print the result as JSON.", **_FLAG},
}
OUTPUT: dict[str, dict[str, Any]] = {
    "--output": {"help": "Write the data to this file, as JSON.", **_FILE},
}
PROGRAM: dict[str, dict[str, Any]] = {
    "--html": {"help": "Write the report as a page.", **_FILE},
    "--json": {"help": "Write the report as JSON.", **_FILE},
    "-m": {"dest": "is_module", "help": "PROGRAM is a module.", **_FLAG},
    "program": {"metavar": "PROGRAM", "help": "The program: a file of Python."},
    "arguments": {"metavar": "...", "nargs": argparse.REMAINDER, "help": "Its arguments."},
}

COMMANDS = {
    "demo": Command(
        _demo,
        "Let torch, CuPy and Warp work on one array, on one stream.\n\n"
        "Where there is no GPU that is a host stream. NumPy checks the result, and the exit status "
        "is 1 if it is wrong.",
        JSON,
    ),
    "matrix": Command(
        _matrix,
        "Try every pair of libraries here on one queue.\n\n"
        "Is it one queue, is its owner kept alive, and does one library wait for the other? It "
        "needs a CUDA GPU. The exit status is 1 if a pair fails.",
        JSON | OUTPUT,
    ),
    "doctor": Command(
        _doctor,
        "Find what is wrong with CUDA and the libraries here.\n\n"
        "The exit status is 1 if there is a finding; a machine without a GPU is none.",
        JSON | {"--load": {"help": "Import the installed libraries, and ask them too.", **_FLAG}},
    ),
}

PROGRAMS = {
    "races": Command(
        _races,
        "Run a program, and find the waits that are missing in it.",
        {
            "--fail": {"help": "Exit with 3 if a race is certain.", "const": "certain", **_KIND},
            # a name of its own, because a value would take the program
            "--fail=possible": {"help": "If one is possible too.", "const": "possible", **_KIND},
            **PROGRAM,
        },
    ),
    "audit": Command(
        _audit,
        "Run a program, and show on which queue its work ran.",
        PROGRAM,
    ),
}


if __name__ == "__main__":
    main()
