"""``streamkit races PROGRAM`` and ``streamkit audit PROGRAM``: the program runs as under Python."""

from __future__ import annotations

import json
import os
import py_compile
import signal
import sys

import pytest

from support.command import COMMAND, OF_COMMANDS
from support.programs import forked, needs_fork, run_python

pytest.importorskip("numpy")

TOOLS = pytest.mark.parametrize("tool", ["races", "audit"])
RACE = """
import sys
import numpy as np
import streamkit as sk

a, b = sk.new_stream("cpu", name="load"), sk.new_stream("cpu", name="work")
x, y = np.zeros(9), np.zeros(9)
a.submit(np.copyto, x, 7)
b.submit(np.multiply, x, 2, y)
print("of the program")
import time
while not (a._work.idle and b._work.idle):  # no wait for them, which a report would have
    time.sleep(0.001)
"""
FOUND = {
    "races": ("1 race found.", "to run NumPy's copyto first, add b.wait(a) before line 9"),
    "audit": ("2 operations on 2 queues", "load (cpu): copyto [NumPy]"),
}
STANDS = """
import builtins, pickle, sys
from pathlib import Path

class Mine:
    pass

def evaluated(x: 1 + 1):
    pass

main = sys.modules["__main__"]
print([*sys.argv], sys.path[0], __name__, __file__, __package__, __cached__, __doc__)
print(__spec__ and (__spec__.name, __spec__.origin), type(__loader__).__name__)
print(vars(main) is globals(), __builtins__ is builtins, type(pickle.loads(pickle.dumps(Mine()))))
print(evaluated.__annotations__, sys._getframe().f_code.co_filename, sys._getframe().f_code.co_name)
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An empty folder, in which programs are written and run."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PYTHONSAFEPATH", raising=False)  # of the lanes; then -m finds nothing here
    return tmp_path


def write(folder, text, name="program.py"):
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def under(tool, *words):
    """Run ``streamkit TOOL WORDS``; return how it ended."""
    return forked(COMMAND, tool, *words, loaded=OF_COMMANDS, options=(), COLUMNS="100")


# -- the program runs as under Python -------------------------------------------------------------


@TOOLS
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("program.py", ["program.py", "a", "-b", "--json", "-h", "--", "-m", "x"]),
        ("deep/program.py", ["deep/program.py"]),
        ("program.py", ["-m", "program", "--html", "x"]),
        ("package/program.py", ["-m", "package.program", "a"]),
        ("package/__main__.py", ["-m", "package", "-m", "a"]),
    ],
)
def test_a_program_finds_all_as_under_python(folder, tool, name, words):
    write(folder, STANDS, name)
    own, ours = run_python(*words), under(tool, *words)
    assert own.returncode == ours.returncode == 0, own.stderr + ours.stderr
    assert ours.stdout == own.stdout
    assert len(own.stdout.splitlines()) == 4


@TOOLS
@pytest.mark.parametrize(
    ("end", "status"),
    [
        ("", 0),
        ("sys.exit()", 0),
        ("sys.exit(5)", 5),
        ("sys.exit('its message')", 1),
        ("sys.path.pop().fail", 1),
        ("raise BaseException('of no kind')", 1),
        ("sys.excepthook = lambda *what: print('caught', what[0]); 1 / 0", 1),
        ("raise ValueError from KeyError()", 1),
        ("sys.excepthook = lambda *what: sys.exit(7); 1 / 0", 7),
        ("sys.exit(2.5)", 1),
        ("1 +", 1),
    ],
)
def test_a_program_ends_as_under_python_and_is_reported(folder, tool, end, status):
    write(folder, f"{RACE}{end}\n")
    own, ours = run_python("program.py"), under(tool, "program.py")
    assert own.returncode == ours.returncode == status
    assert ours.stdout == own.stdout
    before, header, report = ours.stderr.partition(f"\n--- streamkit {tool} ---\n")
    assert header
    assert before == own.stderr
    if end == "1 +":  # nothing ran
        assert FOUND[tool][0] not in report
    else:
        assert all(text in report for text in FOUND[tool])


@TOOLS
@pytest.mark.skipif(sys.platform == "win32", reason="no signal of Windows interrupts so")
def test_an_interrupt_ends_the_program_as_under_python_and_is_reported(folder, tool):
    interrupt = "import os, signal, time\nos.kill(os.getpid(), signal.SIGINT)\ntime.sleep(60)\n"
    write(folder, RACE + interrupt)
    own, ours = run_python("program.py"), under(tool, "program.py")
    assert own.returncode == ours.returncode == -signal.SIGINT
    trace = "Traceback (most recent call last):"
    report, _, told = ours.stderr.partition(trace)
    assert trace + told == own.stderr
    assert FOUND[tool][0] in report


@TOOLS
def test_what_runs_at_exit_runs_after_the_report_and_finds_the_program(folder, tool):
    text = "import atexit\natexit.register(lambda: print(y.size, sys.modules['__main__'].y is y))\n"
    write(folder, RACE + text)
    done = under(tool, "program.py")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["of the program", "9 True"]


@TOOLS
def test_a_process_that_the_program_starts_can_import_it(folder, tool):
    text = """
import multiprocessing

def double(x):
    return 2 * x

if __name__ == "__main__":
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        print(pool.map(double, [1, 2]))
"""
    write(folder, text)
    done = under(tool, "program.py")
    assert done.stdout == "[2, 4]\n", done.stderr
    assert done.stderr.count("--- streamkit") == 1


@needs_fork
@TOOLS
@pytest.mark.parametrize("end", ["", "sys.exit(3)", "1 / 0"])
def test_the_report_is_one_of_the_process_that_was_started(folder, tool, end):
    fork = f"""
import os
sys.stdout.flush()
child = os.fork()
if not child:
    print("of the child", flush=True)
    {end or "pass"}
else:
    print("status", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    write(folder, RACE + fork)
    done = under(tool, "--json", "report.json", "program.py")
    assert done.returncode == 0, done.stderr
    status = {"": 0, "sys.exit(3)": 3, "1 / 0": 1}[end]
    assert f"status {status}" in done.stdout
    assert done.stderr.count(f"--- streamkit {tool} ---") == 1
    assert ("ZeroDivisionError" in done.stderr) is (end == "1 / 0")


# -- the report -----------------------------------------------------------------------------------


@TOOLS
@pytest.mark.parametrize("end", ["", "sys.exit(5)", "1 / 0"])
def test_it_is_written_where_it_was_asked_for_at_the_beginning(folder, tool, end):
    write(folder, f"{RACE}import os\nos.mkdir('sub')\nos.chdir('sub')\n{end}\n")
    done = under(tool, "--html", "report.html", "--json", "report.json", "program.py")
    assert done.returncode == {"": 0, "sys.exit(5)": 5, "1 / 0": 1}[end]
    assert "<canvas" in (folder / "report.html").read_text(encoding="utf-8")
    data = json.loads((folder / "report.json").read_text(encoding="utf-8"))
    if tool == "races":
        (race,) = data["races"]
        assert race["fix"] == FOUND[tool][1]
        assert (data["coverage"]["understood"], data["coverage"]["total"]) == (2, 2)
    else:
        assert sorted(one["name"] for one in data["operations"]) == ["copyto", "multiply"]
    for name in ("report.html", "report.json"):
        assert f"Written: {folder / name}" in done.stderr


@pytest.mark.parametrize(("end", "status"), [("", 1), ("sys.exit(5)", 5)])
def test_a_file_that_cannot_be_written_is_told_after_the_report(folder, end, status):
    write(folder, "import shutil\nshutil.rmtree('gone')\n" + RACE + end)
    (folder / "gone").mkdir()
    done = under("races", "--html", "gone/report.html", "program.py")
    assert done.returncode == status
    assert FOUND["races"][0] in done.stderr
    assert done.stderr.splitlines()[-1].startswith("FileNotFoundError: ")
    assert done.stdout == "of the program\n"


@pytest.mark.parametrize(
    ("file", "told"),
    [("none/report", "there is no folder 'none'. Make it first."), ("there", "which is a folder.")],
)
def test_a_file_that_cannot_be_there_is_refused_before_the_program_runs(folder, file, told):
    write(folder, RACE)
    (folder / "there").mkdir()
    done = under("races", "--html", file, "program.py")
    assert (done.returncode, done.stdout) == (2, "")
    assert len(done.stderr.splitlines()) == 1
    assert done.stderr.endswith(f"{told}\n")


@TOOLS
@pytest.mark.parametrize(
    "options",
    [("--html", "program.py"), ("--json", "../sub/program.py"), ("--html", "x", "--json", "./x")],
)
def test_neither_the_program_nor_another_result_is_replaced(folder, tool, options, monkeypatch):
    (folder / "sub").mkdir()
    write(folder / "sub", RACE)
    monkeypatch.chdir(folder / "sub")
    done = under(tool, *options, "program.py")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "cannot write over the program, or two reports into one file.\n"
    assert (folder / "sub" / "program.py").read_text() == RACE
    assert not (folder / "sub" / "x").exists()


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
@pytest.mark.parametrize("end", ["sys.{}.close()", "sys.{} = None; sys.exit('x')"])
def test_a_program_may_close_or_remove_what_it_prints_to(folder, stream, end):
    write(folder, RACE + end.format(stream))
    own, done = run_python("program.py"), under("races", "--json", "report.json", "program.py")
    assert (done.returncode, done.stdout) == (own.returncode, own.stdout)
    assert "Traceback" not in done.stderr
    assert (folder / "report.json").stat().st_size > 0


def test_a_program_that_gives_streams_nothing_hears_that(folder):
    write(folder, "print('x')")
    done = under("races", "program.py")
    assert "No operation was given to a stream, so there was nothing to look at." in done.stderr


@pytest.mark.parametrize("end", ["", "sys.exit(5)", "1 / 0", "sys.exit('its own')"])
def test_a_certain_race_is_status_3_if_that_is_asked_for(folder, end):
    write(folder, f"{RACE}{end}\n")
    done = under("races", "--fail", "program.py")
    assert done.returncode == 3
    assert done.stderr.partition("\n--- ")[0] == run_python("program.py").stderr
    fixed = RACE.replace("b.submit", "b.wait(a); b.submit")
    write(folder, f"{fixed}{end}\n")
    done = under("races", "--fail", "program.py")
    assert done.returncode == {"": 0, "sys.exit(5)": 5}.get(end, 1)
    assert "no race found in what was understood." in done.stderr


@pytest.mark.parametrize(("option", "status"), [("--fail", 0), ("--fail=possible", 3)])
def test_a_possible_race_is_a_reason_to_fail_if_that_is_asked_for(folder, option, status):
    unknown = RACE.replace("np.copyto, x, 7", "lambda z: z.fill(7), x")
    write(folder, unknown)
    done = under("races", option, "program.py")
    assert done.returncode == status
    assert "1 possible race found." in done.stderr
    write(folder, RACE)
    assert under("races", option, "program.py").returncode == 3


def test_a_hook_that_fails_costs_no_report(folder):
    write(folder, f"{RACE}sys.excepthook = lambda *what: 1 / 0\n[].of_the_program\n")
    done = under("races", "program.py")
    assert done.returncode == 1
    assert "ZeroDivisionError" in done.stderr
    assert "of_the_program" in done.stderr
    assert FOUND["races"][0] in done.stderr


def test_threads_that_go_on_are_named_because_the_report_is_without_them(folder):
    write(
        folder,
        "import threading\n"
        "go = threading.Event()\n"
        "threading.Thread(target=go.wait, name='late worker').start()\n"
        "threading.Thread(target=go.wait, name='quiet', daemon=True).start()\n"
        "import atexit\n"
        "threading._register_atexit(go.set)\n",
    )
    done = under("races", "program.py")
    assert done.returncode == 0
    assert "late worker: still running, unseen from here on." in done.stderr
    assert "quiet" not in done.stderr


def test_what_host_streams_have_still_to_run_is_waited_for(folder):
    late = "import time\na.submit(time.sleep, 0.2)\na.submit(np.copyto, x, 9)\n"
    write(folder, RACE + late)
    done = under("audit", "--json", "report.json", "program.py")
    assert done.returncode == 0, done.stderr
    assert len(json.loads((folder / "report.json").read_text())["operations"]) == 4


@TOOLS
@pytest.mark.parametrize(
    "stuck",
    [
        "from concurrent.futures import Future\na.wait(Future())\na.submit(int)\n",
        (
            "import threading\nheld = threading.Event()\n"
            "def hold():\n    with a:\n        held.set(); threading.Event().wait()\n"
            "threading.Thread(target=hold, daemon=True).start(); held.wait()\na.submit(int)\n"
        ),
    ],
    ids=["future", "daemon"],
)
def test_what_can_never_run_is_given_up_as_under_python(folder, tool, stuck):
    write(folder, RACE + stuck)
    done = under(tool, "program.py")
    assert done.returncode == 0, done.stderr
    assert FOUND[tool][0] in done.stderr
    assert "the program ended before this had run: " in done.stderr


# -- what cannot be run ---------------------------------------------------------------------------


@TOOLS
@pytest.mark.parametrize(
    ("words", "told"),
    [
        ([], "required: PROGRAM"),
        (["none.py"], "cannot run 'none.py': No such file or directory"),
        (["package"], "cannot run 'package': it is a folder; write -m before"),
        (["program.pyc"], "cannot run 'program.pyc': it is not a file of Python source."),
        (["-m", "none"], "cannot run the module 'none': there is no module of this name"),
        (["-m", "none.of_it"], "cannot run the module 'none.of_it': there is no module"),
        (["-m", "package"], "cannot run 'package': it is a package without a __main__.py."),
        (["--no-such", "program.py"], ""),
    ],
)
def test_what_cannot_be_run_exits_with_2_and_is_named(folder, tool, words, told):
    write(folder, RACE)
    write(folder, "", "package/__init__.py")
    py_compile.compile("program.py", "program.pyc")
    done = under(tool, *words)
    assert done.returncode == 2
    assert (done.stdout, "Traceback" in done.stderr) == ("", False)
    assert told in done.stderr
    if not done.stderr.startswith("cannot run"):
        assert done.stderr.startswith("usage: streamkit ")


def test_a_package_that_is_broken_is_an_error_of_its_own(folder):
    write(folder, "import no_such_library", "package/__init__.py")
    write(folder, "", "package/__main__.py")
    done = under("races", "-m", "package")
    assert done.returncode == 1
    assert "package/__init__.py" in done.stderr.replace(os.sep, "/")
    assert "ModuleNotFoundError: No module named 'no_such_library'" in done.stderr


def test_no_path_is_inserted_where_python_inserts_none(folder):
    write(folder, "import sys\nprint(sys.path)\n")
    done = run_python("-P", "-c", COMMAND, "races", "program.py")
    assert str(folder) not in done.stdout
