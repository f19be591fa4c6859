"""Run many programs, each in a fork of a process that has imported what they all need.

    python tests/support/fork_server.py FOLDER MODULE ... < JOB

JOB is in JSON: [[program, ...], how many at a time].

Prints the exit status, standard output and standard error of each. No process has touched a device
before its program does, and each ends as any interpreter does.
"""

import importlib
import json
import os
import signal
import sys
from pathlib import Path

LIMIT = 60
"""Seconds after which a program that hangs is killed."""

folder, *modules = sys.argv[1:]
for module in modules:
    importlib.import_module(module)
programs, at_once = json.load(sys.stdin)
running, outcomes, program = {}, {}, None


def reap():
    pid, status = os.wait()
    number = running.pop(pid)
    texts = [Path(folder, f"{number}.{fd}").read_text() for fd in (1, 2)]
    outcomes[number] = [os.waitstatus_to_exitcode(status), *texts]


for number, text in enumerate(programs):
    if len(running) >= at_once:
        reap()
    sys.stdout.flush()
    pid = os.fork()
    if not pid:
        program = text
        for fd in (1, 2):
            os.dup2(os.open(Path(folder, f"{number}.{fd}"), os.O_CREAT | os.O_WRONLY), fd)
        signal.alarm(LIMIT)
        break
    running[pid] = number
else:
    while running:
        reap()
    print(json.dumps([outcomes[number] for number in range(len(programs))]))

if program is not None:
    exec(program)  # noqa: S102 - not in a function, so that its names are those of a main module
