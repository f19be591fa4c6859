"""A program that is forked from a Python with imports runs and ends as in a Python of its own."""

from __future__ import annotations

import os

import pytest

from support.programs import forked, needs_fork, python, run_python

pytestmark = needs_fork

SAYS = """
import os, sys
print([name for name in globals() if name[:2] != "__"], __name__, sys.argv, sys.path[:2])
print(os.environ["ASKED"], os.getcwd(), sys.flags.safe_path, sys.stdin.read(), flush=True)
print("an error", file=sys.stderr)
"""


@pytest.mark.parametrize("options", [(), ("-P",), ("-P", "-W", "error")])
@pytest.mark.parametrize(
    "end",
    [
        "",
        "sys.exit(7)",
        "sys.exit('words')",
        "raise KeyError('mine')",
        "def inner():\n    raise ValueError from KeyError('mine')\ninner()",
        "import atexit; atexit.register(print, 'at exit')",
        "import signal; os.kill(os.getpid(), signal.SIGINT)",
        "os._exit(3)",
        "1 +",
    ],
)
def test_it_says_and_ends_the_same(tmp_path, monkeypatch, options, end):
    monkeypatch.delenv("PYTHONSAFEPATH", raising=False)
    code, words = f"{SAYS}{end}\n", ("a", "-b")
    path, folder = [tmp_path / "first"], tmp_path
    own = run_python(*options, "-c", code, *words, path=path, folder=folder, ASKED="yes")
    ours = forked(
        code, *words, loaded=("colorsys",), path=path, folder=folder, options=options, ASKED="yes"
    )
    assert ours.returncode == own.returncode
    assert ours.stdout == own.stdout
    assert ours.stderr.splitlines()[-1:] == own.stderr.splitlines()[-1:]
    assert "fork_server" not in ours.stderr


def test_nothing_of_a_program_is_left_to_the_next():
    set_all = "import sys, os; sys.left = os.environ['LEFT'] = 'x'; sys.modules['left'] = sys"
    look = "import os, sys\nprint('LEFT' in os.environ, 'left' in dir(sys), 'left' in sys.modules)"
    assert python(set_all, loaded=("colorsys",)) == ""
    assert python(look, loaded=("colorsys",)) == "False False False\n"


def test_what_is_blocked_is_not_loaded_before():
    code = "import colorsys\n"
    assert forked(code, loaded=("colorsys",), blocked=("colorsys",)).returncode == 1
    assert forked(code, loaded=("colorsys",)).returncode == 0


def test_an_error_of_a_program_fails_its_test():
    with pytest.raises(AssertionError, match="ZeroDivisionError"):
        python("1 / 0", loaded=("colorsys",))
    assert os.environ.get("ASKED") is None
