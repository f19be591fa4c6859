"""The picture of a graph: its boxes, their colours, and where they lie."""

from __future__ import annotations

import re
from xml.etree import ElementTree as ET

import pytest

from streamkit._cuda.graphs import Node  # graphs are made up here
from streamkit.diagnostics.pictures import graph_picture  # graphs are made up here
from streamkit.diagnostics.pictures.styles import STYLES, UNKNOWN  # graphs are made up here

SVG = "{http://www.w3.org/2000/svg}"
MULTIPLY = Node("kernel", "cupy_multiply__float32_float_float32")
ADD = Node("kernel", "add_one_b5b6dbb2_cuda_kernel_forward")
COPY = Node("memcpy", "")


def boxes(svg):
    """What each box says, its colour, and where it is."""
    found = []
    for group in ET.fromstring(svg).iter(f"{SVG}g"):  # noqa: S314 - made here
        rect = group.find(f"{SVG}rect")
        texts = [one.text for one in group.iter(f"{SVG}text") if one.text]
        colour = re.search(r"#\w+", rect.get("style", ""))
        place = float(rect.get("x")), float(rect.get("y"))
        found.append((texts, colour and colour[0], place))
    return found


def test_a_box_says_what_a_node_does_and_whose_it_is_in_its_colour():
    found = boxes(graph_picture.svg([MULTIPLY, ADD, COPY, Node("kernel", "mine")], []))
    assert [(texts, colour) for texts, colour, _ in found] == [
        (["multiply", f"{STYLES['cupy'].label}, node 0"], STYLES["cupy"].colour),
        (["add_one", f"{STYLES['warp'].label}, node 1"], STYLES["warp"].colour),
        (["copy", "node 2"], None),
        (["mine", f"{STYLES[UNKNOWN].label}, node 3"], STYLES[UNKNOWN].colour),
    ]


def test_a_node_is_below_all_that_it_waits_for_and_no_box_is_on_another():
    nodes = [Node(f"kind {number}", "") for number in range(7)]
    edges = [(6, 0), (6, 1), (6, 2), (0, 3), (1, 3), (3, 4), (6, 4), (2, 5)]
    svg = graph_picture.svg(nodes, edges)
    found = boxes(svg)
    assert [texts for texts, *_ in found] == [[f"kind {n}", f"node {n}"] for n in range(7)]
    places = [place for *_, place in found]
    assert all(places[one][1] < places[other][1] for one, other in edges)
    for number, (x, y) in enumerate(places):
        for other_x, other_y in places[number + 1 :]:
            assert (
                abs(x - other_x) >= graph_picture._BOX or abs(y - other_y) >= graph_picture._HEIGHT
            )
    curves = re.findall(r'class="edge" d="M\S+ (\S+)C\S+ (\S+) \S+ (\S+) \S+ (\S+)"', svg)
    for (one, other), curve in zip(edges, curves, strict=True):
        top, bottom = places[one][1] + graph_picture._HEIGHT, places[other][1]
        assert all(top <= float(y) <= bottom for y in curve)
    assert svg.count('class="edge"') == svg.count('class="tip"') == len(edges)


@pytest.mark.parametrize(
    ("one", "other", "side"),
    [(0, 1, "below"), (1, 0, "below"), (0, 3, "above"), (3, 0, "below"), (2, 0, "below")],
)
def test_an_order_that_is_missing_ends_at_its_box_over_all_boxes(one, other, side):
    svg = graph_picture.svg([COPY] * 4, [(0, 2), (1, 3)], [(one, other)])
    x, y = boxes(svg)[other][-1]
    (tip,) = re.findall(r'class="missing-tip" d="M([\d.]+) ([\d.]+)l', svg)
    assert x < float(tip[0]) < x + graph_picture._BOX
    assert float(tip[1]) == (y if side == "above" else y + graph_picture._HEIGHT)
    assert svg.count('class="edge missing"') == 1
    assert svg.index('class="edge missing"') > svg.rindex("<rect")


@pytest.mark.parametrize("name", ["</title><script>alert(1)</script>", "a\x1b[2J\n<b>", "k" * 500])
def test_a_kernel_may_have_any_name(name):
    svg = graph_picture.svg([Node("kernel", name)], [])
    ((texts, _, _),) = boxes(svg)
    assert len(texts[0]) <= graph_picture._LETTERS
    assert "<script" not in svg
    assert "\x1b" not in svg


def test_of_a_kernel_without_a_name_its_kind_is_told():
    assert boxes(graph_picture.svg([Node("kernel", "")], []))[0][0][0] == "kernel"


def test_an_empty_graph_is_a_picture_too():
    assert boxes(graph_picture.svg([], [])) == []


def test_it_follows_light_and_dark():
    assert "@media (prefers-color-scheme: dark)" in graph_picture.svg([COPY], [])
