"""The picture of a graph: nodes in layers, each node below those that it waits for."""

from __future__ import annotations

import html
from collections import defaultdict
from graphlib import TopologicalSorter
from typing import TYPE_CHECKING

from streamkit.diagnostics.pictures.styles import file, style_of
from streamkit.diagnostics.recording.kernel_names import (
    library_of_kernel,
    operation,
    readable,
    short,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from streamkit._cuda.graphs import Node

_BOX, _HEIGHT, _GAP_X, _GAP_Y, _LETTERS = 208, 44, 18, 40, 26

NAMES = {"memcpy": "copy", "memset": "fill", "mem free": "free", "host": "host function"}
"""The kinds of nodes that a report calls otherwise than CUDA."""


def svg(
    nodes: Sequence[Node],
    edges: Sequence[tuple[int, int]],
    missing: Sequence[tuple[int, int]] = (),
) -> str:
    """Return the picture; present and ``missing`` edges are pairs of places in ``nodes``."""
    where, style = _places(len(nodes), edges), file("graph.css")
    width = max((x for x, _ in where), default=0) + _BOX + 2 * _GAP_X
    height = max((y for _, y in where), default=0) + _HEIGHT + _GAP_X
    head = f'class="skg" viewBox="0 0 {width:g} {height:g}" width="{width:g}"'
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" {head} style="max-width: 100%">']
    parts.append(f"<style>{style}</style>")
    parts += [_arrow("edge", "tip", where[one], where[other]) for one, other in edges]
    for number, (node, (x, y)) in enumerate(zip(nodes, where, strict=True)):
        parts.append(_box(number, node, x, y))
    for one, other in missing:  # above the boxes, which may lie between the two
        parts.append(_arrow("edge missing", "missing-tip", where[one], where[other], _GAP_X))
    return "".join([*parts, "</svg>"])


def _arrow(
    kind: str, tip: str, one: tuple[float, float], other: tuple[float, float], shift: float = 0
) -> str:
    """Return an arrow from a box to another one, which is below, beside or above it."""
    (x, y), (to_x, to_y) = one, other
    x, to_x = x + _BOX / 2 + shift, to_x + _BOX / 2 + shift
    start = y + _HEIGHT if to_y >= y else y
    end, down = (to_y, 1) if to_y > y else (to_y + _HEIGHT, -1)
    bend = (start + end) / 2 if to_y != y else end + _GAP_Y / 2
    curve = f"C{x:g} {bend:g} {to_x:g} {bend:g} {to_x:g} {end - 7 * down:g}"
    return (
        f'<path class="{kind}" d="M{x:g} {start:g}{curve}"/>'
        f'<path class="{tip}" d="M{to_x:g} {end:g}l-4.5 {-8 * down:g}h9z"/>'
    )


def _places(count: int, edges: Sequence[tuple[int, int]]) -> list[tuple[float, float]]:
    """Return the place of each box: below the nodes that come before, near their middle."""
    before: defaultdict[int, list[int]] = defaultdict(list)
    for one, other in edges:
        before[other].append(one)
    depth: dict[int, int] = {}
    for node in TopologicalSorter({node: before[node] for node in range(count)}).static_order():
        depth[node] = max((depth[one] + 1 for one in before[node]), default=0)
    layers: defaultdict[int, list[int]] = defaultdict(list)
    for node in sorted(range(count), key=depth.__getitem__):
        layers[depth[node]].append(node)
    widest = max(map(len, layers.values()), default=0)
    column: dict[int, float] = {}
    for layer in layers.values():
        layer.sort(  # by the middle of the nodes before each
            key=lambda node: sum(column[one] for one in before[node]) / max(len(before[node]), 1)
        )
        first = (widest - len(layer)) / 2
        column.update((node, first + number) for number, node in enumerate(layer))
    return [
        (_GAP_X + column[node] * (_BOX + _GAP_X), _GAP_X + depth[node] * (_HEIGHT + _GAP_Y))
        for node in range(count)
    ]


def _box(number: int, node: Node, x: float, y: float) -> str:
    """Return the box of a node, with its operation and its library."""
    name = readable(node.symbol)
    kind, fill, ink = "other", "", ""
    text, below = NAMES.get(node.kind, node.kind), f"node {number}"
    if node.kind == "kernel":
        library = library_of_kernel(name)
        style = style_of(library)
        kind, fill, ink = "kernel", f' style="fill: {style.colour}"', f' style="fill: {style.ink}"'
        text, below = operation(name, library) or node.kind, f"{style.label}, {below}"
    if len(text) > _LETTERS:
        text = f"{text[: _LETTERS - 1]}\N{HORIZONTAL ELLIPSIS}"
    middle = x + _BOX / 2
    return (
        f'<g class="{kind}"><title>node {number}: {html.escape(short(name) or text)}</title>'
        f'<rect x="{x:g}" y="{y:g}" width="{_BOX}" height="{_HEIGHT}" rx="6"{fill}/>'
        f'<text x="{middle:g}" y="{y + 19:g}"{ink}>{html.escape(text)}</text>'
        f'<text x="{middle:g}" y="{y + 36:g}"{ink}>{html.escape(below)}</text></g>'
    )
