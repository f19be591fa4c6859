"""What this site adds to Sphinx: pictures and generated tables, docstrings, and search entries.

``{picture} name`` with ``:alt:`` is ``docs/pictures/name.svg``. ``{generated} what`` is one of
``MAKERS``, which are made by modules that need no Sphinx, so that tests can look at them.
"""

from __future__ import annotations

import builtins
import re
import tomllib
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import architecture
import evidence
import messages
import parity
from docutils import nodes
from docutils.parsers.rst import directives
from sphinx import addnodes
from sphinx.errors import ExtensionError
from sphinx.ext.napoleon import Config, GoogleDocstring
from sphinx.transforms import SphinxTransform
from sphinx.util.docutils import SphinxDirective

import streamkit
from streamkit import errors, processes, protocols, testing, types
from streamkit.diagnostics.pictures.styles import STYLES

if TYPE_CHECKING:
    from collections.abc import Callable

    from sphinx.addnodes import pending_xref
    from sphinx.application import Sphinx
    from sphinx.environment import BuildEnvironment

DOCS = Path(__file__).parents[1]
SEARCHES = DOCS / "searches.toml"

# -- pictures and tables ----------------------------------------------------------------------

MAKERS: dict[str, Callable[[], str]] = {
    "versions": evidence.versions,
    "ranges": evidence.ranges,
    "gpu_share": evidence.gpu_share,
    "speed": evidence.speed,
    "counts": evidence.counts,
    "python_cost": evidence.python_cost,
    "lateness": evidence.lateness,
    "growth": evidence.growth,
    "a_step": evidence.a_step,
    "gains": evidence.gains,
    "plot_growth": evidence.plot_growth,
    "plot_gains": evidence.plot_gains,
    "plot_end_to_end": evidence.plot_end_to_end,
    "layers": architecture.listing,
    "porting": parity.porting,
    "consumers": parity.consumers_table,
    "consumers_evidence": parity.consumers_evidence,
}
MAKERS |= {name: lambda name=name: parity.as_table(parity.read(name)) for name in parity.classes()}
MAKERS |= {kind: lambda kind=kind: messages.listing(kind) for kind in messages.KINDS}
"""By name, what makes a table, a list or a plot in Markdown."""

KINDS = {name: name for name in ("versions", "ranges", "speed", "counts", "layers", "consumers")}
KINDS |= dict.fromkeys(("lateness", "growth", "a_step"), "speed")

SOURCES = (
    *(DOCS / "evidence").glob("*.json"),
    *(DOCS / "parity").glob("*.toml"),
    *architecture.PACKAGE.rglob("*.py"),
    *architecture.PACKAGE.rglob("names.txt"),
    architecture.TABLE,
)


class Picture(SphinxDirective):
    """An SVG inside the page: an image of its own would not follow the reader's colours."""

    required_arguments = 1
    option_spec: ClassVar[dict[str, Any]] = {"alt": directives.unchanged_required}

    def run(self) -> list[nodes.Node]:
        """Return it in a box that scrolls where the window is narrow."""
        path = DOCS / "pictures" / f"{self.arguments[0]}.svg"
        self.env.note_dependency(str(path))
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
        made = self.parse_text_to_nodes(MAKERS[name]())
        for table in made:
            if isinstance(table, nodes.table):
                table["classes"].append(f"of-{KINDS.get(name, 'parity')}")
        if name == "layers":
            html = f'<div class="picture">{architecture.drawing()}</div>'
            made.insert(0, nodes.raw("", html, format="html"))
        if name == "porting":
            made += [entry(call, "") for call in parity.calls()]
        return made


def write_colours(app: Sphinx) -> None:
    """Write the colour of each library's boxes, from the table that all pictures share."""
    path = Path(app.outdir) / "_static" / "libraries.css"
    path.parent.mkdir(parents=True, exist_ok=True)
    styles = (
        f".picture rect.{name} {{ fill: {style.colour}; }}\n"
        f".picture text.on-{name} {{ fill: {style.ink}; }}\n"
        for name, style in STYLES.items()
    )
    path.write_text("".join(styles), encoding="utf-8")


# -- the search -------------------------------------------------------------------------------


class Entries(SphinxTransform):
    """Make phrases of ``docs/searches.toml`` entries of the index, which lead to their answers.

    The search alone finds only pages that have all words of a phrase, and leads to a page.
    """

    default_priority = 800  # before 850, at which Sphinx collects the entries of a page

    def apply(self, **_: Any) -> None:
        """Add them to the sections of the page, or to the page."""
        self.env.note_dependency(str(SEARCHES))
        found = list(self.document.findall(nodes.section))
        sections = {anchor: section for section in found for anchor in section["ids"]}
        searches = tomllib.loads(SEARCHES.read_text(encoding="utf-8"))
        for phrase, answer in searches["indexed"].items():
            page, _, anchor = answer.partition("#")
            if page == self.env.docname:
                if anchor and anchor not in sections:
                    raise ExtensionError(f"{SEARCHES.name}: {page} has no section {anchor}")
                (sections[anchor] if anchor else found[0]).append(entry(phrase, anchor))


def entry(phrase: str, anchor: str) -> nodes.Node:
    """Return an entry of the index that leads to an anchor, as a main one."""
    return addnodes.index(entries=[("single", phrase, anchor, "main", None)])


# -- docstrings -------------------------------------------------------------------------------

# the first in which a name is public is where it is documented
HOMES = (streamkit, errors, processes, types, protocols, testing)


def public_name(target: str) -> str | None:
    """Return the documented name of an object that is referred to by any of its names."""
    name = target.rpartition(".")[2]
    home = next((home for home in HOMES if name in home.__all__), None)
    return None if home is None else f"{home.__name__}.{name}"


def resolve(
    app: Sphinx, env: BuildEnvironment, node: pending_xref, content: nodes.TextElement
) -> nodes.Element | None:
    """Find a public class where users import it: annotations name the module that defines it."""
    public = public_name(node["reftarget"]) if node.get("refdomain") == "py" else None
    if public is None or public == node["reftarget"]:
        return None
    domain: Any = env.domains["py"]
    return domain.resolve_xref(env, node["refdoc"], app.builder, "obj", public, node, content)


def as_users_write_it(*arguments: Any) -> tuple[str | None, ...]:
    """Show an alias of ``autodoc_type_aliases`` in a union by its name (Sphinx 9 shows a repr)."""
    *_, signature, returns = arguments
    return tuple(text and _ALIAS.sub(r"\1", text) for text in (signature, returns))


def prepare(*arguments: Any) -> None:
    """Link the public names in a docstring, and make fields of ``Args:`` and other sections.

    Napoleon as an extension reads no sections of a property, and takes what its text has before a
    colon for its type.
    """
    lines: list[str] = arguments[-1]
    linked = [_NAME.sub(_as_name, _ERROR.sub(_as_link, line)) for line in lines]
    lines[:] = GoogleDocstring(linked, Config()).lines()


def hide_abstract(*arguments: Any) -> None:
    """Leave out that a method is abstract: a reader calls it, and implements none."""
    for mark in list(arguments[-1].parent.findall(addnodes.desc_annotation)):
        if mark.astext().strip().startswith("abstract"):
            mark.parent.remove(mark)


def _as_link(found: re.Match[str]) -> str:
    name = found[0]
    if name in errors.__all__:
        return f":class:`~{public_name(name)}`"
    return f":class:`{name}`" if hasattr(builtins, name) else name


def _as_name(found: re.Match[str]) -> str:
    name, root = found.groups()
    home = public_name(root) if found[0] != f"``{name}``" or root in streamkit.__all__ else None
    return f":obj:`{name} <{home}{name.removeprefix(root)}>`" if home else found[0]


_NAME = re.compile(
    r"``(?:streamkit\.)?(?:(?:errors|processes|testing|types)\.)?((\w+)(?:\.\w+)?)``"
)
_ERROR = re.compile(r"(?<![\w`.~])[A-Z]\w+Error\b(?!`)")
_ALIAS = re.compile(r"TypeAliasForwardRef\('([\w.]+)'\)")


def setup(app: Sphinx) -> dict[str, Any]:
    """Register all of it."""
    app.add_directive("picture", Picture)
    app.add_directive("generated", Generated)
    app.add_transform(Entries)
    app.connect("builder-inited", write_colours)
    app.connect("missing-reference", resolve)
    app.connect("autodoc-process-signature", as_users_write_it)
    app.connect("autodoc-process-docstring", prepare)
    app.connect("object-description-transform", hide_abstract)
    return {"parallel_read_safe": True}
