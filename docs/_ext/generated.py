"""The directives of this site: pictures drawn into the page, tables and plots made from data.

``{picture} name`` with ``:alt:`` is ``docs/pictures/name.svg``. ``{generated} what`` is one of
``MAKERS``. What they are made of belongs to modules that need no Sphinx, so that tests can look.
"""

from __future__ import annotations

from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import architecture
import evidence
import messages
import parity
import plots
import porting
from docutils import nodes
from docutils.parsers.rst import directives
from sphinx.util.docutils import SphinxDirective

from streamkit.diagnostics.pictures.styles import STYLES

if TYPE_CHECKING:
    from collections.abc import Callable

    from sphinx.application import Sphinx

DOCS = Path(__file__).parents[1]
PICTURES = DOCS / "pictures"

MAKERS: dict[str, Callable[[], str]] = {
    "versions": evidence.versions,
    "ranges": evidence.ranges,
    "gpu_share": evidence.gpu_share,
    "speed": evidence.speed,
    "counts": evidence.counts,
    "python_cost": evidence.python_cost,
    "lateness": evidence.lateness,
    "growth": evidence.growth,
    "end_to_end": evidence.end_to_end,
    "memory": evidence.memory,
    "a_step": evidence.a_step,
    "gains": evidence.gains,
    "plot_speed": plots.bars,
    "plot_lateness": plots.late,
    "plot_growth": plots.panels,
    "plot_gains": plots.gains,
    "plot_end_to_end": plots.whole,
    "layers": architecture.listing,
    "porting": porting.table,
    "consumers": parity.consumers_table,
    "consumers_evidence": parity.consumers_evidence,
}
MAKERS |= {name: lambda name=name: parity.as_table(parity.read(name)) for name in parity.classes()}
MAKERS |= {kind: lambda kind=kind: messages.listing(kind) for kind in messages.KINDS}
"""By name, what makes a table, a list or a plot in Markdown."""

KINDS = {name: name for name in ("versions", "ranges", "speed", "counts", "layers", "consumers")}
KINDS |= dict.fromkeys(("lateness", "growth", "end_to_end", "memory", "a_step"), "speed")

SOURCES = (
    *(DOCS / "evidence").glob("*.json"),
    *(DOCS / "parity").glob("*.toml"),
    *architecture.PACKAGE.rglob("*.py"),
    architecture.TABLE,
)


class Picture(SphinxDirective):
    """An SVG inside the page: an image of its own would not follow the reader's colours."""

    required_arguments = 1
    option_spec: ClassVar[dict[str, Any]] = {"alt": directives.unchanged_required}

    def run(self) -> list[nodes.Node]:
        """Return it in a box that scrolls where the window is narrow."""
        path = PICTURES / f"{self.arguments[0]}.svg"
        self.env.note_dependency(str(path))
        if "alt" not in self.options:
            raise self.error(f"the picture {self.arguments[0]} needs :alt:, what it shows in words")
        label = escape(self.options["alt"], quote=True)
        svg = path.read_text(encoding="utf-8")
        html = f'<div class="picture" role="img" aria-label="{label}" tabindex="0">{svg}</div>'
        return [nodes.raw("", html, format="html")]


class Generated(SphinxDirective):
    """A table or a plot made from data."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """Return it, a table below its drawing if it has one."""
        for path in SOURCES:
            self.env.note_dependency(str(path))
        name = self.arguments[0]
        if name not in MAKERS:
            raise self.error(f"there is no {name}, but {', '.join(MAKERS)}")
        made = self.parse_text_to_nodes(MAKERS[name]())
        for table in made:
            if isinstance(table, nodes.table):
                table["classes"].append(f"of-{KINDS.get(name, 'parity')}")
        if name == "layers":
            made.insert(
                0,
                nodes.raw(
                    "", f'<div class="picture">{architecture.drawing()}</div>', format="html"
                ),
            )
        return made


def library_colours() -> str:
    """Return the style of each library's boxes, from the table that all pictures share."""
    return "".join(
        f".picture rect.{name} {{ fill: {style.colour}; }}\n"
        f".picture text.on-{name} {{ fill: {style.ink}; }}\n"
        for name, style in STYLES.items()
    )


def write_colours(app: Sphinx) -> None:
    """Write the colours beside the style of the site."""
    path = Path(app.outdir) / "_static" / "libraries.css"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(library_colours(), encoding="utf-8")


def setup(app: Sphinx) -> dict[str, Any]:
    """Register both directives and the colours."""
    app.connect("builder-inited", write_colours)
    app.add_directive("picture", Picture)
    app.add_directive("generated", Generated)
    return {"parallel_read_safe": True}
