"""Run programs, each in a fork of a process that has imported what they all need.

    python tests/support/fork_server.py FOLDER MODULE ...

Each line of the input is a job in JSON: [[program, ...], how many at a time]. A program has its
"code" and may have "arguments", a "path" to search first, a "folder" and an "environment". For a
job the exit status, standard output and standard error of each program are printed. No process has
touched a device before its program does, and each ends as any interpreter does.
"""

import contextlib
import importlib
import json
import os
import signal
import sys
import types
from pathlib import Path

LIMIT = 100
"""Seconds after which a program that hangs is killed."""

OF_ANY_MAIN = {"__annotations__", "__builtins__", "__doc__", "__name__"}
place, *modules = sys.argv[1:]
if not sys.flags.safe_path:
    del sys.path[0]  # the folder of this file
for module in modules:
    with contextlib.suppress(ModuleNotFoundError):  # the programs say so where they need it
        importlib.import_module(module)
running, outcomes, program = {}, {}, None


def reap():
    pid, status = os.wait()
    number = running.pop(pid)
    texts = [Path(place, f"{number}.{fd}").read_text("utf-8") for fd in (1, 2)]
    outcomes[number] = [os.waitstatus_to_exitcode(status), *texts]


def report(kind, error, trace, file=__file__, tell=sys.__excepthook__):
    """Report an error without the frames of this file."""
    while trace is not None and trace.tb_frame.f_code.co_filename == file:
        error = error.with_traceback(trace := trace.tb_next)
    tell(kind, error, trace)


def become(program, number):
    """Have what a new interpreter would have; return the code to run."""
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for fd in (1, 2):
        os.dup2(os.open(Path(place, f"{number}.{fd}"), os.O_CREAT | os.O_WRONLY | os.O_TRUNC), fd)
    signal.alarm(LIMIT)
    if "environment" in program:
        os.environ.clear()
        os.environ.update(program["environment"])
    os.chdir(program.get("folder", "."))
    sys.path[0:0] = program.get("path", [])
    if not sys.flags.safe_path:
        sys.path.insert(0, "")
    sys.argv[:] = ["-c", *program.get("arguments", [])]
    # with names of its own, or those of the program would live as long as the hook
    sys.excepthook = types.FunctionType(
        report.__code__, {"__builtins__": __builtins__}, argdefs=report.__defaults__
    )
    code = compile(program["code"], "<string>", "exec")
    for name in set(globals()) - OF_ANY_MAIN:
        del globals()[name]
    globals()["__doc__"] = None
    return code


for line in sys.stdin:
    programs, at_once = json.loads(line)
    outcomes.clear()
    for number, one in enumerate(programs):
        if len(running) >= at_once:
            reap()
        pid = os.fork()
        if not pid:
            program = one
            break
        running[pid] = number
    if program is not None:
        break
    while running:
        reap()
    print(json.dumps([outcomes[number] for number in range(len(programs))]), flush=True)

if program is not None:
    # not in a function, so that the program is the main module, and ends as that does
    exec(become(program, number))  # noqa: S102
