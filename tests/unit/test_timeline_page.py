"""The page of a report, opened in a real Chromium without a network: drawn, zoomed, pointed at."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess

import pytest

from streamkit._audit.operations import AuditedQueue, Operation  # reports are made up here
from streamkit._audit.page import page_data  # reports are made up here
from streamkit._audit.report import AuditReport  # reports are made up here
from streamkit._audit.timeline import STYLES  # reports are made up here
from support.libraries import lane
from support.recorded import LEGACY, TORCH, WARP, report

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
    try:
        import plotly as _  # noqa: F401 - whether it is there
    except ImportError:
        missing("plotly")

    def opened(made, script, size="1200,600"):
        page = tmp_path / "page.html"
        made.to_html(page)
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
            [browser, *OPTIONS, f"--user-data-dir={tmp_path / 'profile'}", f"--window-size={size}",
             "--dump-dom", page.as_uri()],
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
    made, operations = AuditReport(), []
    for n in range(count):
        place = n % 3
        operations.append(
            Operation("kernel", f"kernel_{n}", queues[place], n * 1000, n * 1000 + 900,
                      libraries[place])
        )  # fmt: skip
        if n % 10 == 0:
            operations.append(
                Operation("wait", "wait", queues[(place + 1) % 3], n * 1000 + 900, n * 1000 + 1000,
                          after=queues[place])
            )  # fmt: skip
    made.complete(operations)
    return made


def test_the_page_holds_every_operation_once_and_each_name_once():
    data = page_data(many(300))
    assert len(data["work"]) == 300
    assert len(data["waits"]) == 30
    assert data["rows"] == [str(TORCH), str(LEGACY), str(WARP)]
    assert [label for label, _ in data["libraries"]] == ["torch", "CuPy", "Warp"]
    assert len(page_data(report("before"))["names"]) == 4


def test_it_draws_a_bar_for_each_operation_and_a_row_for_each_queue(opened):
    answer = opened(
        report("before"),
        """return {bars: chart.data.slice(0, DATA.libraries.length).map((one) => [one.name,
             one.x.length / 3]),
           labels: [...document.querySelectorAll(".annotation-text")].map((one) =>
             one.textContent)};""",
    )
    assert answer["bars"] == [["torch", 4], ["CuPy", 1], ["Warp", 1]]
    assert set(answer["labels"]) >= {str(TORCH), str(LEGACY), str(WARP)}


def test_each_librarys_bars_and_ticks_have_its_colour(opened):
    made = AuditReport()
    made.complete(
        Operation("kernel", "k", TORCH, n * 1000, n * 1000 + 900, library)
        for n, library in enumerate([*STYLES, None])
    )
    drawn = opened(
        made,
        """const drawn = chart.data.slice(0, DATA.libraries.length);
           return drawn.map((one) => [one.name, one.line.color, one.marker.line.color]);""",
    )
    assert drawn == [[style.label, style.colour, style.colour] for style in STYLES.values()]


def test_ten_thousand_operations_can_be_zoomed_and_pointed_at(opened):
    answer = opened(
        many(10_000),
        """const far = {names: chart.layout.annotations.length, arrows: chart.data.at(-2).x.length};
           await Plotly.relayout(chart, {"xaxis.range": [5, 5.01]});
           await new Promise((done) => setTimeout(done, 200));
           const box = chart.getBoundingClientRect(), {xaxis, yaxis} = chart._fullLayout;
           const bar = byRow[2].find((one) => one[3] >= 5);
           chart.dispatchEvent(new MouseEvent("mousemove", {
             clientX: box.left + xaxis._offset + xaxis.d2p(bar[3] + bar[4] / 2),
             clientY: box.top + yaxis._offset + yaxis.d2p(2)}));
           return {far, names: chart.layout.annotations.slice(3).map((one) => one.text),
                   arrows: chart.data.at(-2).x.length, tip: tip.textContent, hidden: tip.hidden,
                   expected: DATA.names[bar[2]]};""",
    )
    assert answer["far"] == {"names": 3, "arrows": 0}  # too many to be read
    assert f"kernel_{5000}" in answer["names"]
    assert answer["arrows"] >= 3
    assert answer["hidden"] is False
    assert answer["tip"].splitlines()[:3] == [answer["expected"], "Warp", str(WARP)]


POINT = """
    const box = chart.getBoundingClientRect(), {xaxis, yaxis} = chart._fullLayout;
    const at = (ms) => {
      chart.dispatchEvent(new MouseEvent("mousemove", {
        clientX: box.left + xaxis._offset + xaxis.d2p(ms),
        clientY: box.top + yaxis._offset + yaxis.d2p(0)}));
      return tip.hidden ? null : tip.textContent.split("\\n")[0];
    };
"""


def test_a_long_bar_under_many_short_ones_is_found_and_so_are_they(opened):
    made, ms = AuditReport(), 10**6
    short = [
        Operation("kernel", f"short_{n}", TORCH, n * 50 * ms, n * 50 * ms + 20 * ms, "torch")
        for n in range(1, 15)
    ]
    made.complete([Operation("kernel", "long", TORCH, 0, 1000 * ms, "torch"), *short])
    answer = opened(
        made,
        POINT
        + """const found = [25, 510, 535, 990, 1100].map(at);
             await Plotly.relayout(chart, {"xaxis.range": [800, 900]});
             await new Promise((done) => setTimeout(done, 200));
             return [found, chart.layout.annotations.slice(1).map((one) => one.text)];""",
    )
    assert answer == [["long", "short_10", "long", "long", None], ["long"]]


def test_in_a_narrow_window_the_chart_is_not_wider_than_the_page(opened):
    answer = opened(
        many(30),
        """return [chart.getBoundingClientRect().width, document.documentElement.clientWidth,
                   document.documentElement.scrollWidth];""",
        size="500,600",
    )
    assert answer[0] <= answer[1] == answer[2]


def test_names_are_text_and_not_markup(opened):
    made = AuditReport()
    name = "</script><!--<script><img src=x onerror=problems.push(1)><b>&amp;"
    queue = AuditedQueue("cuda:0", name, 1)
    made.complete([Operation("kernel", name, queue, 0, 10**6, None)])
    answer = opened(
        made,
        """return [DATA.names[0], document.querySelectorAll("#chart img, #chart b").length,
                   document.querySelector(".annotation-text").textContent];""",
    )
    assert answer == [name, 0, str(queue)]


def test_an_empty_report_is_drawn(opened):
    made = AuditReport()
    made.complete([])
    assert opened(made, "return DATA.work.length;") == 0
