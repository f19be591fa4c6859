"""What people type into the search, and the section that answers them: ``docs/searches.toml``.

Each phrase becomes an entry of the index, because the search alone finds only pages that have all
of its words, and leads to a page rather than to a section. The calls of other libraries in the
first column of the porting page become entries as well. ``docs/check_search.py`` asks the built
site.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from docutils import nodes
from sphinx import addnodes
from sphinx.errors import ExtensionError
from sphinx.transforms import SphinxTransform

if TYPE_CHECKING:
    from sphinx.application import Sphinx

SEARCHES = Path(__file__).parents[1] / "searches.toml"
SCORER = Path(__file__).parent / "scorer.js"
PORTING = "guides/porting"
OWN_NAMES = re.compile(r"^(?:s|e|g|c|start|tensor|device|kernel)\.")  # which a reader chooses


class Entries(SphinxTransform):
    """Add the entries to the sections of the page."""

    default_priority = 800  # before 850, at which Sphinx collects the entries of a page

    def apply(self, **_: Any) -> None:
        """Add them."""
        page = self.env.docname
        self.env.note_dependency(str(SEARCHES))
        found = list(self.document.findall(nodes.section))
        sections = {anchor: section for section in found for anchor in section["ids"]}
        for phrase, answer in searches()["indexed"].items():
            home, _, anchor = answer.partition("#")
            if home == page:
                if anchor not in sections:
                    raise ExtensionError(f"{SEARCHES.name}: {home} has no section {anchor}")
                sections[anchor] += entry(phrase, anchor)
        if page == PORTING:
            self.document += [entry(name, "") for name in sorted(calls(self.document))]


def searches() -> dict[str, Any]:
    """Return what the file says."""
    return tomllib.loads(SEARCHES.read_text(encoding="utf-8"))


def entry(phrase: str, anchor: str) -> nodes.Node:
    """Return an entry of the index that leads to an anchor, as a main one."""
    return addnodes.index(entries=[("single", phrase, anchor, "main", None)])


def calls(document: nodes.document) -> set[str]:
    """Return what stands for a call or a member in the first column of a page's tables."""
    found: set[str] = set()
    for row in document.findall(nodes.row):
        code = " ".join(one.astext() for one in row.children[0].findall(nodes.literal))
        found |= {OWN_NAMES.sub("", name) for name in re.findall(r"\w+(?:\.\w+)+", code)}
    return found


def write_scorer(app: Sphinx) -> None:
    """Give Sphinx the scorer with the pages that come last."""
    path = Path(app.doctreedir) / SCORER.name
    text = SCORER.read_text(encoding="utf-8").replace("last: LAST", f"last: {searches()['last']}")
    path.write_text(text, encoding="utf-8")
    app.config.html_search_scorer = str(path)


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the transform and the scorer."""
    app.add_transform(Entries)
    app.connect("builder-inited", write_scorer)
    return {"parallel_read_safe": True}
