"""What is published: its page on an index, and what is in the archive of the source."""

from __future__ import annotations

import re
import shutil
import subprocess
import tomllib

import pytest

from support.documents import ROOT

pytestmark = pytest.mark.once

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
HATCH = PROJECT["tool"]["hatch"]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def index_page():
    """README.md as the build makes it for an index."""
    page = README
    for one in HATCH["metadata"]["hooks"]["fancy-pypi-readme"]["substitutions"]:
        page = re.sub(one["pattern"], one["replacement"], page)
    return page


def words(page):
    return re.findall(r"[A-Za-z]\w*", re.sub(r"\]\([^)]*\)", "", page))


def test_the_page_on_an_index_has_no_link_into_a_folder():
    links = re.compile(r"\]\((?!https:|#)([^)]+)\)")
    assert len(links.findall(README)) > 5, "a control: README.md has such links"
    assert links.findall(index_page()) == []
    assert "![" not in index_page()
    assert "<img" not in README


def test_the_page_on_an_index_says_all_that_the_readme_says():
    assert words(index_page()) == words(README)


def test_the_archive_of_the_source_has_all_that_its_tests_read():
    listed = set(HATCH["build"]["targets"]["sdist"]["only-include"])
    assert all((ROOT / name).exists() for name in listed)
    source = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("*.py"))
    read = {name.partition("/")[0] for name in re.findall(r'\bROOT / "([^"]+)"', source)}
    assert {".ci", "docs", "examples"} <= read
    # a README that is made for an index is not brought by hatchling itself
    assert "README.md" in listed
    assert read <= listed | {"LICENSE", "pyproject.toml"}


def test_the_licence_is_named_as_an_index_asks_and_its_file_is_there():
    project = PROJECT["project"]
    assert re.fullmatch(r"[\w.-]+", project["license"])
    assert project["license-files"]
    assert all((ROOT / name).is_file() for name in project["license-files"])
    assert not [one for one in project["classifiers"] if one.startswith("License ::")]


@pytest.mark.parametrize("script", ["run", "release"])
def test_the_scripts_are_read_by_bash(script):
    command = [str(shutil.which("bash")), "-n", ROOT / ".ci" / script]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
