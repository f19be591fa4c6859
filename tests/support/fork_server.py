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


def report(kind, error, trace):
    """Report an error without the frame of this file."""
    if trace is not None and trace.tb_frame.f_code.co_filename == __file__:
        error = error.with_traceback(trace := trace.tb_next)
    sys.__excepthook__(kind, error, trace)


def become(program, number):
    """Have what a new interpreter would have."""
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
    sys.modules["__main__"] = types.ModuleType("__main__")
    sys.excepthook = report


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
        become(program, number)
        break
    while running:
        reap()
    print(json.dumps([outcomes[number] for number in range(len(programs))]), flush=True)

if program is not None:
    # not in a function, so that the program ends as a main module does
    exec(compile(program["code"], "<string>", "exec"), vars(sys.modules["__main__"]))  # noqa: S102
