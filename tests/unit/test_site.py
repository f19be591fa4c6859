"""The check of the built site can fail; the lane ``docs`` runs it on the real one."""

from __future__ import annotations

import re

import pytest

from support.documents import ROOT
from support.site import extension

check_site = extension("check_site", "docs")

MADE = "before-and-after"  # from a record, as docs/evidence/bench.svg: it has colours of its own

HOME = '<h1 id="top">a</h1><a href="sub/two.html#there">b</a><a href="#top">c</a>'
TWO = '<p id="there"><a href="../index.html">d</a><a href="https://example.org/x#y">e</a>'


@pytest.fixture
def site(tmp_path):
    def make(home=HOME, two=TWO):
        (tmp_path / "sub").mkdir(exist_ok=True)
        (tmp_path / "index.html").write_text(home)
        (tmp_path / "sub" / "two.html").write_text(two)
        return check_site.problems(tmp_path)

    return make


def test_a_whole_site_has_no_problem(site):
    assert site() == []


@pytest.mark.parametrize(
    ("home", "problem"),
    [
        (HOME.replace("two.html", "three.html"), "index.html: sub/three.html#there is not there"),
        (HOME.replace("#there", "#where"), "index.html: sub/two.html#where has no such anchor"),
        (HOME.replace('"#top"', '"#bottom"'), "index.html: #bottom has no such anchor"),
        (HOME + '<img src="a.png">', "index.html: a.png is not there"),
        (HOME + '<link rel="stylesheet" href="a.css">', "index.html: a.css is not there"),
        (
            HOME + '<script src="https://example.org/a.js"></script>',
            "index.html loads https://example.org/a.js",
        ),
    ],
)
def test_a_problem_is_named(site, home, problem):
    assert site(home) == [problem]


def test_a_name_that_is_missing_is_told(tmp_path):
    (tmp_path / "reference").mkdir()
    anchors = [f"streamkit.CudaStream.{name}" for name in check_site.members("CudaStream")]
    page = tmp_path / "reference" / "streams.html"
    page.write_text("".join(f'<p id="{name}">' for name in anchors))
    missing = check_site.undocumented(tmp_path)
    assert "streamkit.wrap is not documented" in missing
    assert not any("CudaStream." in line for line in missing)
    page.write_text("".join(f'<p id="{name}">' for name in anchors if not name.endswith(".wait")))
    assert "streamkit.CudaStream.wait is not documented" in check_site.undocumented(tmp_path)


def test_every_page_is_in_a_table_of_contents():
    docs = ROOT / "docs"
    listed = set(re.findall(r"^([a-z/-]+)$", (docs / "index.md").read_text(), re.MULTILINE))
    pages = {path.relative_to(docs).with_suffix("").as_posix() for path in docs.rglob("*.md")}
    assert pages - {"index"} == listed


def test_every_picture_is_used_and_is_plain():
    docs = ROOT / "docs"
    text = "".join(path.read_text() for path in docs.rglob("*.md"))
    used = set(re.findall(r"\{picture\} (\w+)", text))
    drawn = [path for path in (docs / "pictures").glob("*.svg") if path.stem != MADE]
    assert used == {path.stem for path in drawn}
    for path in drawn:
        svg = path.read_text()
        assert "fill=" not in svg, "colours are the page's, from streamkit.css"
        assert "<style" not in svg
