"""A program inside a block of a tool, run as ``python PROGRAM`` or ``python -m MODULE`` runs it."""

from __future__ import annotations

import builtins
import contextlib
import importlib.util
import io
import os
import sys
import threading
import types
from importlib.machinery import SourceFileLoader
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from streamkit._cli.machine import CannotRunError
from streamkit.errors import ScopeError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import AbstractContextManager
    from importlib.machinery import ModuleSpec
    from types import CodeType, TracebackType


class Ended(NamedTuple):
    """How a program ended under a tool."""

    report: Any
    failure: Exception | None  # why there is no report
    status: int
    is_child: bool  # whether the program has forked this process: the parent has the report
    threads: list[str]  # of the program, which go on
    interrupt: KeyboardInterrupt | None  # that ended the program, to be raised at last


def run(words: Sequence[str], tool: AbstractContextManager[Any], *, is_module: bool) -> Ended:
    """Run a program inside a tool's block, and print the error that ends it, if one does.

    ``words``: the program or module, and what it finds in ``sys.argv`` after its name.
    CannotRunError if there is no such program.
    """
    before, process = set(threading.enumerate()), os.getpid()
    error: BaseException | None = None
    made = tool.__enter__()
    try:
        _execute(words, is_module=is_module)
    except BaseException as raised:  # noqa: BLE001 - it is the program's
        error = raised
    is_child = os.getpid() != process
    failure = None if is_child else _end(tool, error)
    going = sorted(one.name for one in {*threading.enumerate()} - before if not one.daemon)
    interrupt = error if isinstance(error, KeyboardInterrupt) else None
    return Ended(made, failure, _status(error), is_child, going, interrupt)


def _end(tool: AbstractContextManager[Any], error: BaseException | None) -> Exception | None:
    """End the block, which waits for nothing after an error; return why there is no report."""
    raised: Any = None, None, None
    if error is not None and not isinstance(error, SystemExit):
        raised = type(error), error, error.__traceback__
    notes = len(getattr(error, "__notes__", ()))
    try:
        tool.__exit__(*raised)
    except Exception as failure:  # noqa: BLE001 - whatever it is, the program has ended
        return failure
    if len(getattr(error, "__notes__", ())) > notes:
        return ScopeError("there is no report, and the note at the program's error says why.")
    return None


def _execute(words: Sequence[str], *, is_module: bool) -> None:
    sys.argv[:] = ["-m", *words[1:]] if is_module else words
    if not sys.flags.safe_path:
        sys.path[0] = str(Path.cwd() if is_module else Path(words[0]).resolve().parent)
    if is_module:
        code, spec = _found(words[0])
        file, loader = spec.origin, spec.loader
        sys.argv[0] = file or words[0]
    else:
        spec, file = None, str(Path.cwd() / words[0])
        code, loader = _read(file, words[0]), SourceFileLoader("__main__", file)
    main = types.ModuleType("__main__")
    vars(main).update(__file__=file, __loader__=loader, __builtins__=builtins, __spec__=spec)
    vars(main).update(__package__=spec and spec.parent, __cached__=spec and spec.cached)
    sys.modules["__main__"] = main
    exec(code, vars(main))  # noqa: S102 - as Python does


def _read(file: str, named: str) -> CodeType:
    try:
        with io.open_code(file) as source:
            text = source.read()
    except OSError as error:
        why = error.strerror
        if Path(file).is_dir():
            why = "it is a folder; write -m before the name of a package"
        raise CannotRunError(f"cannot run {named!r}: {why}.") from error
    if b"\0" in text:  # as in a .pyc, or in the archive of a zipapp
        raise CannotRunError(f"cannot run {named!r}: it is not a file of Python source.")
    return compile(text, file, "exec", dont_inherit=True)


def _found(name: str) -> tuple[CodeType, ModuleSpec]:
    """Return the code of a module, or of the ``__main__`` of a package."""
    spec = _spec(name)
    if spec is None:
        raise CannotRunError(f"cannot run the module {name!r}: there is no module of this name.")
    if spec.submodule_search_locations is not None:
        package, name = name, f"{name}.__main__"
        spec = _spec(name)
        if spec is None:
            raise CannotRunError(f"cannot run {package!r}: it is a package without a __main__.py.")
    loader: Any = spec.loader  # of a package without a file it is None
    code = loader.get_code(name) if hasattr(loader, "get_code") else None
    if code is None:
        raise CannotRunError(f"cannot run the module {name!r}: it is not written in Python.")
    return code, spec


def _spec(name: str) -> ModuleSpec | None:
    try:
        return importlib.util.find_spec(name)
    except ModuleNotFoundError as error:
        if error.name is not None and f"{name}.".startswith(f"{error.name}."):
            return None
        raise  # of a module that its package imports


def _status(error: BaseException | None) -> int:
    """Return the exit status, after printing the error that ends a program as Python does."""
    if isinstance(error, CannotRunError):
        raise error
    if error is None:
        return 0
    if isinstance(error, SystemExit):
        return _exited(error)
    trace = _of_program(error.__traceback__)
    error.with_traceback(trace)
    with contextlib.suppress(OSError, ValueError, AttributeError):  # stdout is closed
        sys.stdout.flush()
    shown = sys.excepthook
    if isinstance(error, KeyboardInterrupt):  # Python prints the error, and ends by the signal
        sys.excepthook = lambda kind, raised, _: shown(kind, raised.with_traceback(trace), trace)
        return 1
    try:
        shown(type(error), error, trace)
    except SystemExit as left:
        return _exited(left)
    except BaseException as failure:  # noqa: BLE001 - it is the program's
        for one in (failure, error):
            sys.__excepthook__(type(one), one, one.__traceback__)
    return 1


def _exited(error: SystemExit) -> int:
    if error.code is None or isinstance(error.code, int):
        return error.code or 0
    with contextlib.suppress(OSError, ValueError):  # stderr is closed
        print(error.code, file=sys.stderr or sys.__stderr__)
    return 1


def _of_program(trace: TracebackType | None) -> TracebackType | None:
    """Return a traceback without the first frames, which are of this file."""
    while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next
    return trace
