"""The page of a report, opened in a real Chromium without a network: drawn, zoomed, pointed at."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess

import pytest

from streamkit.diagnostics.pictures.page import block_data, of_block  # reports are made up here
from streamkit.diagnostics.pictures.styles import STYLES  # reports are made up here
from streamkit.diagnostics.races.report import Coverage, RaceReport  # reports are made up here
from streamkit.diagnostics.recording.operations import AuditedQueue, Operation, Operations
from support.libraries import lane
from support.reports import LEGACY, TORCH, WARP, before, small

pytestmark = pytest.mark.once

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
OPTIONS = (
    "--headless", "--no-sandbox", "--use-angle=swiftshader", "--enable-unsafe-swiftshader",
    "--host-resolver-rules=MAP * ~NOTFOUND", "--virtual-time-budget=20000",
)  # fmt: skip


def missing(what):
    if "browser" in lane():
        pytest.fail(f"the lane needs {what}")
    pytest.skip(f"no {what} here")


@pytest.fixture
def opened(tmp_path):
    """Open a report's page, run a script when it is drawn, and return what that returned."""
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        missing("Chromium")

    def opened(made, script, size="1200,600", *, dark=False):
        page = made.to_html(tmp_path / "page.html")
        assert page == tmp_path / "page.html"
        source = page.read_text(encoding="utf-8")
        errors = "<script>window.problems = []; window.onerror = (e) => problems.push(e);</script>"
        page.write_text(
            source.replace("<head>", f"<head>{errors}")
            + f"""<pre id="answer"></pre><script>
            const wait = setInterval(async () => {{
              if (!document.body.dataset.drawn) return;
              clearInterval(wait);
              const answer = await (async () => {{ {script} }})();
              const loaded = performance.getEntriesByType("resource").map((one) => one.name);
              document.getElementById("answer").textContent =
                JSON.stringify({{answer, problems, loaded}});
            }}, 20);</script>""",
            encoding="utf-8",
        )
        done = subprocess.run(
            [browser, *OPTIONS, *(["--blink-settings=preferredColorScheme=0"] if dark else []),
             f"--user-data-dir={tmp_path / 'profile'}",
             f"--window-size={size}", "--dump-dom", page.as_uri()],
            capture_output=True, text=True, timeout=100, check=False,
        )  # fmt: skip
        found = re.search(r'<pre id="answer">(.+?)</pre>', done.stdout)
        assert found, done.stdout[-2000:] + done.stderr[-2000:]
        said = json.loads(html.unescape(found[1]))
        assert said["problems"] == []
        assert said["loaded"] == []  # nothing comes from anywhere else
        return said["answer"]

    return opened


def many(count):
    """Operations in turn on three queues, each tenth followed by a wait."""
    queues, libraries = (TORCH, LEGACY, WARP), ("torch", "cupy", "warp")
    operations = []
    for n in range(count):
        place = n % 3
        operations.append(
            Operation("kernel", f"kernel_{n}", queues[place], libraries[place], place=n)
        )
        if n % 10 == 0:
            operations.append(
                Operation("wait", "wait", queues[(place + 1) % 3], after=queues[place],
                          place=n + 1, since=n + 1)
            )  # fmt: skip
    return small(*operations)


def test_the_page_holds_every_operation_once_and_each_name_once():
    data = block_data(many(300))
    assert len(data["work"]) == 300
    assert len(data["waits"]) == 30
    assert data["rows"] == [str(TORCH), str(LEGACY), str(WARP)]
    assert [label for label, *_ in data["libraries"]] == ["torch", "CuPy", "Warp"]
    assert sorted(data["names"]) == sorted({f"kernel_{n}" for n in range(300)})


def test_the_page_is_small():
    assert len(of_block(before())) < 30_000


def test_the_verdict_comes_first_then_the_legend_and_a_list_of_all(opened):
    answer = opened(
        before(),
        """const texts = (what) =>
             [...document.querySelectorAll(what)].map((one) => one.textContent);
           return {verdict: texts("h1"), legend: texts("#legend label"),
                   labels: texts("#labels div"), listed: texts("tbody td:nth-child(2) button")};""",
    )
    assert answer["verdict"] == ["3 queues were given work, and none was told to wait for another."]
    assert answer["legend"] == ["torch (4)", "CuPy (1)", "Warp (1)"]
    assert answer["labels"] == [str(TORCH), str(LEGACY), str(WARP)]
    assert sorted(answer["listed"]) == ["add_one", "fill", "multiply", "sin", "sin", "sin"]


PIXEL = """
    const pixel = (one, width = 2) => [...paint.getImageData(
      Math.round((x(one.start) + width)), tops[one.row] + 2, 1, 1).data];
"""


@pytest.mark.parametrize("dark", [False, True])
def test_each_librarys_bars_have_its_colour_in_light_and_dark(opened, dark):
    libraries = enumerate([*STYLES, None])
    made = small(*(Operation("kernel", "k", TORCH, one, place=n) for n, one in libraries))
    answer = opened(
        made,
        PIXEL
        + """const paper = getComputedStyle(document.body).backgroundColor;
           return [work.map((one) => pixel(one).slice(0, 3)), paper];""",
        dark=dark,
    )
    colours = [
        [int(style.colour[place : place + 2], 16) for place in (1, 3, 5)]
        for style in STYLES.values()
    ]
    assert answer == [[*colours, colours[-1]], "rgb(20, 24, 28)" if dark else "rgb(255, 255, 255)"]


def test_the_list_is_searched_and_filtered_and_the_bars_with_it(opened):
    answer = opened(
        before(),
        PIXEL
        + """const shown = () => document.querySelectorAll("tbody tr").length;
           const all = shown(), fill = work.find((one) => one.name === "fill");
           const before = pixel(fill, 0.5);
           byId("search").value = "MULTI";
           byId("search").oninput();
           const found = [shown(), byId("found").textContent];
           byId("search").value = "";
           byId("queue").value = "0";
           byId("queue").onchange();
           const ofQueue = shown();
           document.querySelector("#legend input").click();
           return {all, found, ofQueue, without: shown()};""",
    )
    assert answer == {"all": 6, "found": [1, "1 of 6"], "ofQueue": 4, "without": 0}


def test_ten_thousand_operations_can_be_zoomed_and_pointed_at(opened):
    answer = opened(
        many(10_000),
        """const far = {listed: document.querySelectorAll("tbody tr").length,
                        arrows: inView(DATA.waits).length};
           look(5000, 5010);
           const box = canvas.getBoundingClientRect();
           const one = byRow[2].find((one) => one.start >= 5000);
           canvas.dispatchEvent(new PointerEvent("pointermove", {
             clientX: box.left + x(one.start + 0.5),
             clientY: box.top + tops[2] + 5}));
           return {far, names: [...seen(0), ...seen(1), ...seen(2)].map((one) => one.name),
                   arrows: inView(DATA.waits).length, tip: tip.textContent, hidden: tip.hidden,
                   expected: one.name};""",
    )
    assert answer["far"] == {"listed": 100, "arrows": 0}  # more cannot be read
    assert "kernel_5000" in answer["names"]
    assert len(answer["names"]) < 15
    assert answer["arrows"] >= 1
    assert answer["hidden"] is False
    assert answer["tip"].splitlines()[:3] == [answer["expected"], "Warp", str(WARP)]


def test_a_part_is_dragged_over_to_see_it_and_all_is_shown_again(opened):
    answer = opened(
        many(30),
        """const box = canvas.getBoundingClientRect();
           const at = (type, part) => canvas.dispatchEvent(new PointerEvent(type, {
             clientX: box.left + box.width * part, clientY: box.top + 40}));
           at("pointerdown", 0.25); at("pointermove", 0.5); at("pointerup", 0.5);
           const part = (view[1] - view[0]) / (whole[1] - whole[0]);
           byId("all").click();
           return [part, view[0] === whole[0] && view[1] === whole[1]];""",
    )
    assert answer == [pytest.approx(0.25, abs=0.01), True]


def test_a_chosen_line_of_the_list_is_shown_in_the_chart(opened):
    answer = opened(
        many(3000),
        """document.querySelectorAll("tbody button")[50].click();
           return [chosen.name, view[0] < chosen.start && chosen.end < view[1],
                   view[1] - view[0] < 20, document.querySelectorAll("tr.chosen").length];""",
    )
    assert answer == ["kernel_50", True, True, 1]


def test_in_a_narrow_window_nothing_is_wider_than_the_page(opened):
    queue = AuditedQueue("cuda:0", "q" * 80, 1)
    made = small(Operation("kernel", "k" * 300, queue))
    answer = opened(
        made,
        """return [document.documentElement.clientWidth, document.documentElement.scrollWidth];""",
        size="500,600",
    )
    assert answer[0] == answer[1]


def test_names_are_text_and_not_markup(opened):
    name = "</script><!--<script><img src=x onerror=problems.push(1)><b>&amp;"
    queue = AuditedQueue("cuda:0", name, 1)
    made = small(Operation("kernel", name, queue))
    answer = opened(
        made,
        """choose(work[0]);
           return [work[0].name, document.querySelectorAll("img, b").length,
                   byId("labels").textContent, document.querySelector("h1").textContent];""",
    )
    assert answer == [name, 0, str(queue), f"All work ran on {queue}."]


def test_a_name_does_not_end_the_script_of_the_page():
    name = "</script><!--"
    made = small(Operation("kernel", name, AuditedQueue("cuda:0", name, 1)))
    assert name not in of_block(made)
    assert name not in of_block(made, heading=name)


def test_the_page_of_races_numbers_what_was_given_and_lists_them(opened):
    operations, made = Operations(), RaceReport()
    operations.complete(Operation("kernel", "k", TORCH, "torch", place=n) for n in range(2))
    texts = ["race on <b>x</b>:\n  one\n  other\n  other.wait(one)"]
    made.complete(
        (), Coverage(2, 2, ()), lambda head: of_block(operations, heading=head, races=texts)
    )
    answer = opened(
        made,
        """const box = canvas.getBoundingClientRect();
           canvas.dispatchEvent(new PointerEvent("pointermove", {
             clientX: box.left + x(1.5), clientY: box.top + tops[0] + 5}));
           const texts = (what) =>
             [...document.querySelectorAll(what)].map((one) => one.textContent);
           return [texts("th"), texts("tbody td:nth-child(1)"), texts("ol li *"),
                   tip.textContent.split("\\n")[3]];""",
    )
    assert answer == [
        ["number", "what", "library", "queue"],
        ["1", "2"],
        ["race on <b>x</b>:", "one", "other", "other.wait(one)"],
        "number 2 in the order",
    ]


def test_an_empty_report_is_drawn(opened):
    assert opened(small(), "return DATA.work.length;") == 0
