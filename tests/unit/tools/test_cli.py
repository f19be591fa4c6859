"""The command line, as a user calls it: what it prints, and how it exits."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import streamkit
from support.command import COMMAND, OF_COMMANDS
from support.programs import BLOCKER, ROOTS, environment, forked, run_python, streamkit_

pytestmark = [pytest.mark.portable, pytest.mark.quick]

pytest.importorskip("numpy")


def test_demo_as_json():
    done = streamkit_("demo", "--json")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["ok"] is True
    assert [stage["library"] for stage in result["stages"]] == ["numpy"] * 3


@pytest.mark.parametrize("arguments", [("demo",), ("demo", "--json")])
def test_a_wrong_result_exits_1(monkeypatch, capsys, arguments):
    from streamkit._cli import cli, demo  # the command, in this process

    run = demo.run
    monkeypatch.setattr(demo, "run", lambda **options: run(libraries=(), **options))
    monkeypatch.setattr(demo, "TOLERANCE", 0)
    monkeypatch.setattr(sys, "argv", ["streamkit", *arguments])
    with pytest.raises(SystemExit) as exited:
        cli.main()
    assert exited.value.code == 1
    output = capsys.readouterr().out
    assert "WRONG: off by " in output or json.loads(output)["ok"] is False


COMMANDS = """
import sys
from streamkit.diagnostics.doctor import doctor  # it prints what is made up here
from streamkit._cli import cli, matrix  # the command, in this process

def told_by(command):
    def run(*, progress, load=False):
        progress(f"a step of {command}", 1, 3)
        sys.exit()
    return run

matrix.run, doctor.examine = map(told_by, ("matrix", "doctor"))
for command in ("demo", "matrix", "doctor"):
    print(f"== {command}", file=sys.stderr, flush=True)
    sys.argv = ["streamkit", command]
    try:
        cli.main()
    except SystemExit as done:
        assert not done.code, done
"""


@pytest.mark.parametrize("terminal", ["stderr", "stdout", None])
def test_a_command_shows_its_progress_on_a_terminal_and_is_quiet_elsewhere(terminal):
    pty = pytest.importorskip("pty")
    ours, theirs = pty.openpty()
    both = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    running = subprocess.Popen(
        [sys.executable, "-P", "-c", BLOCKER.format(blocked=ROOTS) + COMMANDS],
        env={
            **{name: value for name, value in os.environ.items() if name != "NO_COLOR"},
            "PYTHONPATH": str(Path(streamkit.__file__).parents[1]),
            "CUDA_VISIBLE_DEVICES": "-1",
            "TERM": "xterm",
            "COLUMNS": "100",
        },
        encoding="utf-8",
        **{**both, **({terminal: theirs} if terminal else {})},
    )
    os.close(theirs)
    shown = []

    def read():
        with contextlib.suppress(OSError):  # its other end was closed
            while part := os.read(ours, 4096):
                shown.append(part)

    reader = threading.Thread(target=read)
    reader.start()
    output, complaints = running.communicate(timeout=100)
    reader.join()
    os.close(ours)
    assert running.returncode == 0, (complaints, shown)
    quiet = "".join(f"== {command}\n" for command in ("demo", "matrix", "doctor"))
    if terminal != "stderr":
        assert complaints == quiet
        assert "run the stages" not in (output or b"".join(shown).decode())
        return
    assert output.splitlines()[-1].startswith("OK: off by ")
    assert "\x1b" not in output
    _, *parts = b"".join(shown).decode().split("== ")
    steps = ("run the stages", "a step of matrix", "a step of doctor")
    assert [step in part for step, part in zip(steps, parts, strict=True)] == [True] * 3


@pytest.mark.parametrize("more", [(), ("--json",)])
def test_without_what_it_needs_a_command_exits_2_with_the_line_that_installs_it(more):
    done = streamkit_("demo", *more, blocked=("numpy",))
    assert done.returncode == 2
    said = "streamkit demo needs numpy. Install it: pip install numpy"
    assert done.stderr == f"{said}\n"
    assert (json.loads(done.stdout) == {"error": said}) if more else not done.stdout


def test_a_package_that_is_broken_is_not_called_missing(tmp_path):
    (tmp_path / "numpy.py").write_text("import its_own_needs\n")
    code = f"import sys\nsys.path.insert(0, {str(tmp_path)!r})\n" + COMMAND
    done = run_python("-P", "-c", code, "demo")
    assert done.returncode == 1
    assert "No module named 'its_own_needs'" in done.stderr
    assert "pip install" not in done.stderr


@pytest.mark.parametrize("arguments", [("--version",), ("--help",), (), ("doctor", "--help")])
def test_what_needs_no_package(arguments):
    done = streamkit_(*arguments, blocked=("numpy",))
    assert (done.returncode, done.stderr) == (0, "")
    expected = f"{streamkit.__version__}\n" if arguments == ("--version",) else "usage: streamkit"
    assert done.stdout.startswith(expected)


def test_the_doctor_needs_no_package_and_prints_the_same_without_them():
    done = streamkit_("doctor", blocked=(*ROOTS, "numpy"))
    assert done.stdout == streamkit_("doctor", blocked=ROOTS).stdout
    as_json = streamkit_("doctor", "--json", blocked=(*ROOTS, "numpy"))
    found = json.loads(as_json.stdout)
    assert found["ok"] is (found["findings"] == [])
    for one in (done, as_json):
        assert (one.returncode, one.stderr) == (0 if found["ok"] else 1, "")


def test_python_m_streamkit_is_the_command():
    done = run_python("-P", "-m", "streamkit", "--version")
    assert (done.returncode, done.stdout) == (0, f"{streamkit.__version__}\n")
    done = run_python("-P", "-m", "streamkit", "dance")
    assert done.returncode == 2
    assert done.stderr.startswith("usage: streamkit ")


# -- JSON, whatever happens --------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments",
    [
        ("--json",),
        ("dance", "--json"),
        ("matrix", "--json", "--dance"),
        ("matrix", "--json", "--output"),
        ("doctor", "--json", "--output", "x"),
        ("demo", "--json", "--load"),
        ("demo", "--json", "--outp", "x"),
    ],
)
def test_a_command_that_is_written_wrongly_prints_an_error_as_json(arguments):
    done = streamkit_(*arguments)
    assert done.returncode == 2
    assert json.loads(done.stdout) == {"error": done.stderr.rstrip("\n")}
    assert "usage: streamkit" in done.stderr


FAILS = """
import sys
import streamkit as sk
from streamkit.diagnostics.doctor import doctor  # it is made to fail here
from streamkit._cli import cli, demo, matrix  # the command, in this process

def fail(**_):
    print("a library talks")
    raise {error}

doctor.examine = matrix.run = demo.run = fail
cli.main()
"""


@pytest.mark.parametrize(
    ("command", "error", "text"),
    [
        *(
            (command, "sk.errors.NoDeviceError('no device: why')", "NoDeviceError: no device: why")
            for command in ("demo", "matrix", "doctor")
        ),
        ("matrix", "sk.errors.UnsupportedStreamError('why')", "UnsupportedStreamError: why"),
        ("matrix", "ZeroDivisionError('a bug')", "ZeroDivisionError: a bug"),
    ],
)
def test_an_error_is_json_and_exits_1(command, error, text):
    done = forked(FAILS.format(error=error), command, "--json", loaded=OF_COMMANDS)
    assert done.returncode == 1
    assert json.loads(done.stdout) == {"error": text}
    assert done.stderr.rstrip("\n").endswith(text)
    assert ("Traceback" in done.stderr) is ("a bug" in text)


def test_without_json_a_bug_shows_its_traceback_alone():
    code = FAILS.format(error="ZeroDivisionError('a bug')")
    done = forked(code, "matrix", loaded=OF_COMMANDS)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.count("ZeroDivisionError: a bug") == 1


def test_a_result_that_is_no_number_is_json_too(monkeypatch, capsys):
    from streamkit._cli import cli, demo  # the command, in this process

    run, reference = demo.run, demo.reference
    monkeypatch.setattr(demo, "run", lambda **options: run(libraries=(), **options))
    monkeypatch.setattr(demo, "reference", lambda: reference() * float("nan"))
    monkeypatch.setattr(sys, "argv", ["streamkit", "demo", "--json"])
    with pytest.raises(SystemExit) as exited:
        cli.main()
    assert exited.value.code == 1

    def refuse(name):
        raise AssertionError(f"{name} is no JSON")

    data = json.loads(capsys.readouterr().out, parse_constant=refuse)
    assert (data["ok"], data["max_error"]) == (False, None)


# -- help -------------------------------------------------------------------------------------

NAMES = ["demo", "matrix", "doctor", "races", "audit"]


@pytest.mark.parametrize("command", [None, *NAMES])
def test_each_option_and_command_has_help_of_one_line(command):
    arguments = ("--help",) if command is None else (command, "--help")
    done = forked(COMMAND, *arguments, loaded=OF_COMMANDS, COLUMNS="80")
    listed = done.stdout.partition("options:")[2].replace("  COMMAND\n", "")
    lines = [line for line in listed.splitlines() if line.startswith("  ")]
    assert len(lines) >= (2 if command else 5)
    for line in lines:
        assert re.match(r" {2,4}(-h, )?[\w=-]+( FILE)? +[A-Z][^<>]*\.$", line), line
    assert command or [line.split()[0] for line in lines if line[2:4] == "  "] == NAMES


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["dance"], "invalid choice: 'dance'"),
        (["-V"], "required: COMMAND"),
        (["doctor", "--output", "x"], "unrecognized arguments: --output x"),
        (["races", "--load", "x.py"], "unrecognized arguments: --load"),
    ],
)
def test_what_is_no_command_or_option_exits_2_with_the_usage(arguments, told):
    done = streamkit_(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("usage: streamkit ")
    assert told in done.stderr


# -- into what is closed, and without docstrings ---------------------------------------------------


on_posix = pytest.mark.skipif(sys.platform == "win32", reason="this system closes files otherwise")


@on_posix
@pytest.mark.parametrize("arguments", ["doctor", "doctor --json", "demo --json", "--help"])
def test_a_reader_that_has_ended_gets_no_traceback(arguments):
    """As in ``streamkit doctor --json | head -0``."""
    reading, writing = os.pipe()
    os.close(reading)
    code = BLOCKER.format(blocked=ROOTS) + COMMAND
    command = [sys.executable, "-P", "-c", code, *arguments.split()]
    buffered = environment(PYTHONUNBUFFERED="")  # as it is for users
    with subprocess.Popen(
        command, stdout=writing, stderr=subprocess.PIPE, env=buffered, text=True
    ) as running:
        os.close(writing)
        _, errors = running.communicate(timeout=100)
    assert (running.returncode, errors) == (1, "")


def _in_shell(line):
    """Run the command in a shell, which redirects what it prints."""
    code = BLOCKER.format(blocked=ROOTS) + COMMAND
    return subprocess.run(  # noqa: S602 - what is run is ours
        f'"$PYTHON" -P -c "$CODE" {line}',
        shell=True,
        env=environment(PYTHON=sys.executable, CODE=code, CUDA_VISIBLE_DEVICES="-1"),
        capture_output=True,
        encoding="utf-8",
        timeout=100,
        check=False,
    )


@on_posix
@pytest.mark.parametrize("closed", [">&-", "2>&-"])
@pytest.mark.parametrize("arguments", ["doctor --json", "doctor", "demo --json"])
def test_an_output_that_was_closed_before_the_start_is_no_error(arguments, closed):
    done = _in_shell(f"{arguments} {closed}")
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.skipif(sys.platform != "linux", reason="this system has no /dev/full")
@pytest.mark.parametrize("arguments", ["doctor --json", "doctor"])
def test_a_full_disk_is_named_once(arguments):
    done = _in_shell(f"{arguments} >/dev/full")
    assert done.returncode == 1
    assert re.fullmatch(r"OSError: \[Errno 28\] [^\n]*\n", done.stderr)


HELP = """
import sys
from streamkit._cli import cli  # the command, in this process

for command in ([], ["doctor"], ["matrix"], ["demo"]):
    sys.argv = ["streamkit", *command, "--help"]
    try:
        cli.main()
    except SystemExit as done:
        assert not done.code, done
"""


def test_help_is_the_same_without_docstrings():
    with_them, without = (
        run_python(*options, "-P", "-c", HELP, COLUMNS="100").stdout for options in ((), ("-OO",))
    )
    assert with_them == without
    assert with_them.count("usage: streamkit") == 4
    assert "None" not in with_them
