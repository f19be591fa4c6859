"""The check of the built site can fail; the lane ``docs`` runs it on the real one."""

from __future__ import annotations

import ast
import importlib
import pickle
import re
import tomllib
import zlib
from html.parser import HTMLParser

import pytest

import streamkit
from streamkit._queues import registry  # the one table of names
from streamkit.diagnostics.pictures.styles import STYLES  # the colours that pictures share
from support.documents import ROOT
from support.site import extension

pytestmark = pytest.mark.once

check_site = extension("check_site", "docs")
extension("evidence")
plots = extension("plots")

MADE = "before-and-after"  # from a record, for the README too: it has colours of its own

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
    anchors = [f"streamkit.types.CudaStream.{name}" for name in check_site.members("CudaStream")]
    page = tmp_path / "reference" / "streams.html"
    page.write_text("".join(f'<p id="{name}">' for name in anchors))
    missing = check_site.undocumented(tmp_path)
    assert "streamkit.wrap is not documented" in missing
    assert not any("CudaStream." in line for line in missing)
    page.write_text("".join(f'<p id="{name}">' for name in anchors if not name.endswith(".wait")))
    assert "streamkit.types.CudaStream.wait is not documented" in check_site.undocumented(tmp_path)


def test_every_page_is_in_a_table_of_contents():
    docs = ROOT / "docs"
    listed = set(re.findall(r"^([a-z/-]+)$", (docs / "index.md").read_text(), re.MULTILINE))
    pages = {path.relative_to(docs).with_suffix("").as_posix() for path in docs.rglob("*.md")}
    assert pages - {"index"} == listed


def test_every_picture_is_used_and_is_plain():
    docs = ROOT / "docs"
    text = "".join(path.read_text() for path in docs.rglob("*.md"))
    used = set(re.findall(r"\{picture\} ([\w-]+)", text))
    drawn = {path.stem: path.read_text() for path in (docs / "pictures").glob("*.svg")}
    assert used == set(drawn)
    made = drawn.pop(MADE)
    for svg in drawn.values():
        assert "fill=" not in svg, "colours are the page's, from streamkit.css"
        assert "<style" not in svg
    assert "prefers-color-scheme: dark" in made
    assert all(style.colour in made for name, style in STYLES.items() if name in MIXED)


MIXED = ("torch", "cupy", "warp")


def test_a_box_that_names_a_library_has_its_colour():
    docs, known = ROOT / "docs", {style.label.lower(): name for name, style in STYLES.items()}
    found = set()
    for path in (docs / "pictures").glob("*.svg"):
        for kind, text in re.findall(r'class="mid[^"]* on-(\w+)"[^>]*>([^<]*)', path.read_text()):
            owner = re.match(r"(\w+)'s ", text)
            if owner and owner[1].lower() in known:
                assert kind == known[owner[1].lower()], (path.name, text)
                found.add(kind)
    assert found
    css = (docs / "_static" / "streamkit.css").read_text()
    assert not [style.colour for style in STYLES.values() if style.colour.lower() in css.lower()]


# -- the plots of the bench --------------------------------------------------------------------


class Text(HTMLParser):
    """The text of a page's part, and its tags, each of which has to be closed."""

    def __init__(self, html):
        super().__init__()
        self.open, self.text, self.tags = [], "", []
        self.feed(html)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if not (self.get_starttag_text() or "").endswith("/>"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        if self.open and self.open[-1] == tag:
            self.open.pop()

    def handle_data(self, data):
        self.text += data


@pytest.fixture
def drawn(monkeypatch):
    """Draw a plot of a record."""

    def drawn(what, **record):
        monkeypatch.setattr(plots.evidence, "read", lambda _: record)
        html = getattr(plots, what)()
        assert "\n\n" not in html, "Markdown would end the block of HTML"
        return Text(html)

    return drawn


ROW = {
    "name": "b.wait(<a>)", "against": "theirs", "ratio": 0.5, "ratio_low": 0.4, "ratio_high": 0.6,
    "at_most": 1.2, "aim": 0.3, "met": True,
}  # fmt: skip


def test_a_bar_is_as_long_as_its_ratio_and_says_whether_it_is_within_its_bound(drawn):
    made = drawn("bars", rows=[ROW, {**ROW, "ratio": 2.0, "ratio_high": 2.2, "met": False}])
    assert "b.wait(<a>) against theirs" in made.text
    assert "0.50" in made.text
    bars = [
        (found["class"], float(re.search(r"width: ([\d.]+)%", found["style"])[1]))
        for _, found in made.tags
        if found.get("class") in ("met", "missed") and "style" in found
    ]
    assert [kind for kind, _ in bars] == ["met", "missed"]
    (at_one,) = {found["style"] for _, found in made.tags if found.get("class") == "one"}
    one = float(re.search(r"[\d.]+", at_one)[0])
    assert bars[0][1] < one < bars[1][1]
    assert one - bars[0][1] == pytest.approx(bars[1][1] - one, abs=0.2)  # half and double


def test_a_panel_has_both_sides_and_their_counts(drawn):
    points = [{"count": count, "ours_ns": 1e4, "theirs_ns": 2e4} for count in (1, 1000)]
    curve = {"name": "keep", "against": "by hand", "over": "kept objects", "points": points}
    made = drawn("panels", curves=[curve])
    assert "keep against by hand" in made.text
    assert "1,000" in made.text
    assert "kept objects" in made.text
    lines = {found["class"]: found["points"] for tag, found in made.tags if tag == "polyline"}
    heights = {
        name: {place.split(",")[1] for place in text.split()} for name, text in lines.items()
    }
    assert len(heights["ours"]) == len(heights["theirs"]) == 1
    assert float(*heights["theirs"]) < float(*heights["ours"]), "more is higher, so further up"


def test_of_each_way_of_waiting_there_is_one_panel(drawn):
    late = {"against": "theirs", "ours_us": 9.0, "theirs_us": -1.0}
    rows = [
        {"name": f"lateness of {way} after {ms} ms of work", "work_ms": ms, **late}
        for way, ms in (("sync", 0.02), ("sync", 5), ("await", 1))
    ]
    made = drawn("late", lateness=rows)
    assert made.text.count("lateness of") == 2
    assert "0.02" in made.text
    assert "ms of work" in made.text


def test_a_record_without_a_part_says_so(drawn):
    assert plots.evidence.OLDER in {
        drawn(what).text.strip() for what in ("panels", "late", "whole")
    }
    way = {"name": "one graph", "ms": 0.46, "ms_low": 0.4, "ms_high": 0.5}
    assert "0.46 ms" in drawn("whole", end_to_end=[way]).text


def test_a_step_adds_up_what_it_calls(monkeypatch):
    """Of rows that the record at hand has: their names are the bench's."""
    named = {row["name"] for row in plots.evidence.read("bench.json")["rows"]}
    assert set(plots.evidence.STEP) <= named
    rows = [{"name": name, "ours_ns": 2000.0} for name in plots.evidence.STEP]
    monkeypatch.setattr(plots.evidence, "read", lambda _: {"rows": rows})
    assert "| together |  |  | **10.00 µs** |" in plots.evidence.a_step()


def test_what_a_user_gains_is_of_the_record_at_hand():
    ways = {way["name"]: way["ms"] for way in plots.evidence.read("bench.json")["end_to_end"]}
    lines = plots.evidence.gains().splitlines()
    assert len(lines) == 3
    assert f"takes {ways['a scope a step']:.1f} ms" in lines[0]
    assert f"{ways['nested managers a step'] / ways['one scope']:.1f} times" in lines[1]
    made = Text(plots.gains())
    drawn_once = [made.text.count(f"{name}, against") == 1 for name in plots.GAINED.values()]
    assert len(drawn_once) >= 3
    assert all(drawn_once)


def test_a_record_without_whole_programs_has_no_gains(monkeypatch):
    monkeypatch.setattr(plots.evidence, "read", lambda _: {})
    assert plots.evidence.gains() == plots.evidence.OLDER


# -- the search --------------------------------------------------------------------------------

check_search = extension("check_search", "docs")
SEARCHES = {
    "last": ["changelog"],
    "indexed": {"prefetch": "cookbook#prefetch"},
    "words": {"ahead": "cookbook"},
    "first": {"wait_stream": "porting"},
}
ANSWERS = {
    "prefetch": ["a", "b", "cookbook#prefetch", "changelog"],
    "ahead": ["cookbook", "changelog"],
    "wait_stream": ["porting", "a"],
}


def test_a_search_that_finds_its_page_is_no_problem():
    assert check_search.problems(SEARCHES, ANSWERS) == []


@pytest.mark.parametrize(
    ("phrase", "found", "problem"),
    [
        ("prefetch", ["a", "b", "c", "cookbook#prefetch"], "'prefetch' should find cookbook#pre"),
        ("prefetch", ["cookbook"], "finds cookbook"),
        ("ahead", [], "'ahead' should find cookbook, and finds nothing"),
        ("wait_stream", ["a", "porting"], "'wait_stream' should find porting first"),
        ("ahead", ["cookbook", "changelog#x", "a"], "'ahead' finds a page that should come last"),
    ],
)
def test_a_search_that_does_not_find_its_page_is_named(phrase, found, problem):
    (wrong,) = check_search.problems(SEARCHES, {**ANSWERS, phrase: found})
    assert problem in wrong


def test_each_search_of_the_list_names_a_page_that_there_is():
    text = (ROOT / "docs" / "searches.toml").read_text(encoding="utf-8")
    searches = tomllib.loads(text)
    answers = [
        *searches["last"],
        *(page for kind in ("indexed", "words", "first") for page in searches[kind].values()),
    ]
    assert {"changelog", "maintain/evidence"} <= set(searches["last"])
    assert len(searches["indexed"]) >= 18
    assert not [
        page for page in answers if not (ROOT / "docs" / f"{page.partition('#')[0]}.md").exists()
    ]


# -- links to other projects -------------------------------------------------------------------

inventories = extension("inventories")


def test_an_inventory_is_what_intersphinx_reads():
    made = inventories.inventory("other", {"url": "https://x/", "class": {"a.B": "a.html#$"}})
    head, _, packed = made.partition(b"zlib.\n")
    assert head.startswith(b"# Sphinx inventory version 2\n# Project: other\n# Version: \n")
    assert zlib.decompress(packed) == b"a.B py:class 1 a.html#$ -\n"


def test_each_name_of_python_that_pages_may_link_to_is_there():
    named = tomllib.loads(inventories.NAMES.read_text(encoding="utf-8"))
    found = [name for kind, names in named["python"].items() if kind != "url" for name in names]
    assert len(found) > 10
    for name in found:
        module, _, last = name.rpartition(".")
        assert hasattr(importlib.import_module(module or "builtins"), last), name


# -- the messages ------------------------------------------------------------------------------

messages = extension("messages")


def test_every_error_that_says_something_has_its_place_among_the_messages():
    page = (ROOT / "docs" / "reference" / "messages.md").read_text(encoding="utf-8")
    told = {kind for kind, texts in messages.messages().items() if texts}
    assert set(re.findall(r"\{generated\} (\w+)", page)) == told
    assert set(re.findall(r"^## (\w+)$", page, re.MULTILINE)) == told


def raised(fn, *args):
    try:
        fn(*args)
    except Exception as error:  # noqa: BLE001 - which it is, the caller compares
        return type(error).__name__, " ".join(str(error).split())
    return None


@pytest.mark.parametrize(
    "fn",
    [
        lambda: streamkit.wrap(None),
        lambda: streamkit.wrap(7),
        lambda: streamkit.wrap("x"),
        lambda: streamkit.from_handle("x"),
        lambda: streamkit.new_stream("gpu"),
        lambda: streamkit.current_stream("numpy"),
        lambda: streamkit.new_stream("cpu").to("torch"),
        lambda: streamkit.capture(streamkit.new_stream("cpu")).__enter__(),
        lambda: streamkit.new_stream("cpu").synchronize(),
        lambda: pickle.dumps(streamkit.new_stream("cpu")),
        lambda: streamkit.handoff(object(), streamkit.new_stream("cpu")),
    ],
)
def test_what_an_error_says_is_found_among_the_messages(fn):
    kind, text = raised(fn)
    patterns = [
        ".*".join(re.escape(part) for part in one.split("...")) for one in messages.messages()[kind]
    ]
    assert [one for one in patterns if re.fullmatch(one, text)], text
    assert not [one for one in patterns if re.fullmatch(one, "anything else")]


def test_a_message_is_read_from_all_that_it_is_made_of():
    source = """
def check(x):
    why = "it is too old"
    if x:
        why = f"{x} is missing"
    raise ValueError(f"cannot go on: {why}. Ask " + "again.")

def other(x):
    raise messages.closed(x)
"""
    shared = {"closed": ast.parse(
        "def closed(obj):\n    return StreamClosedError(f'{obj} is closed.')"
    ).body[0]}  # fmt: skip
    assert set(messages.of(ast.parse(source), {}, shared)) == {
        ("ValueError", "cannot go on: it is too old. Ask again."),
        ("ValueError", "cannot go on: ... is missing. Ask again."),
        ("StreamClosedError", "... is closed."),
    }


# -- the porting page ---------------------------------------------------------------------------

porting = extension("porting")
OTHER_NAMES = [row for library in registry.LIBRARIES for row in library.names]


def test_the_porting_page_has_every_row_of_the_table_that_objects_answer_from():
    assert "{generated} porting" in (ROOT / "docs/guides/porting.md").read_text(encoding="utf-8")
    lines = porting.table().splitlines()
    for row in OTHER_NAMES:
        here = [line for line in lines if f"| `{row.ours}`{row.more} |" in line]
        assert any(row.written in line for line in here) == bool(row.section), row
    assert len(OTHER_NAMES) > 60


def test_what_the_porting_page_says_to_write_is_python():
    for row in OTHER_NAMES:
        line = f"{row.ours} pass" if row.ours.endswith(":") else row.ours
        line = f"{line}\ndef f(): pass" if line.startswith("@") else line
        compile(line, row.ours, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
