"""Docstrings as Sphinx wants them, and references that it cannot resolve by itself.

A public class is documented under the name that users import, but annotations name the module that
defines it. A name of the standard library is a link if ``docs/inventories.toml`` has it, and is
shown without one otherwise. Whatever else is unknown stays a warning, which fails the build.
"""

from __future__ import annotations

import builtins
import importlib
import re
from typing import TYPE_CHECKING, Any

from sphinx import addnodes
from sphinx.ext.napoleon import Config, GoogleDocstring

import streamkit
from streamkit import processes, protocols, testing, types

if TYPE_CHECKING:
    from docutils import nodes
    from sphinx.addnodes import pending_xref
    from sphinx.application import Sphinx
    from sphinx.environment import BuildEnvironment

# the first in which a name is public is where it is documented
HOMES = (streamkit, protocols, processes, types, testing)
STANDARD = (
    "asyncio",
    "typing",
    "collections.abc",
    "types",
    "contextlib",
    "concurrent.futures",
    "os",
    "pathlib",
)
TYPE_VARIABLES = ("ArrayT", "ForeignT", "FunctionT", "NativeT", "P", "P.args", "P.kwargs", "T")
PRIVATE = ("QueueRecord",)  # shown in an annotation, and nothing to users


def public_name(target: str) -> str | None:
    """Return the documented name of an object that is referred to by any of its names."""
    name = target.rpartition(".")[2]
    home = next((home for home in HOMES if name in home.__all__), None)
    return None if home is None else f"{home.__name__}.{name}"


def is_standard(target: str) -> bool:
    """Tell whether the name is of the standard library, or of nothing to read about."""
    module, _, name = target.rpartition(".")
    if {name, target} & {*TYPE_VARIABLES, *PRIVATE} or hasattr(builtins, target):
        return True
    if module:
        return module in STANDARD and hasattr(importlib.import_module(module), name)
    return any(hasattr(importlib.import_module(home), name) for home in STANDARD)


def resolve(
    app: Sphinx, env: BuildEnvironment, node: pending_xref, content: nodes.TextElement
) -> nodes.Element | None:
    """Answer Sphinx's ``missing-reference`` for what is known here."""
    if node.get("refdomain") != "py":
        return None
    target = node["reftarget"]
    public = public_name(target)
    if public is not None and public != target:
        domain: Any = env.domains["py"]
        return domain.resolve_xref(env, node["refdoc"], app.builder, "obj", public, node, content)
    return content if is_standard(target) else None


def as_users_write_it(*arguments: Any) -> tuple[str | None, ...]:
    """Show a signature without what accepts nothing, which is there to answer wrong calls.

    An alias of ``autodoc_type_aliases`` in a union is shown by its name (Sphinx 9 shows a repr).
    """
    *_, signature, returns = arguments
    signature, returns = (text and _ALIAS.sub(r"\1", text) for text in (signature, returns))
    if signature is not None:
        signature = re.sub(r"\*_?misplaced: \S*Never", "*", signature)
        signature = re.sub(
            r", (\*\*_misspelled: \S*Never|enable_timing: None = None)", "", signature
        )
    return signature, returns


def prepare(*arguments: Any) -> None:
    """Link the public names in a docstring, and make fields of ``Args:`` and other sections.

    Napoleon as an extension reads no sections of a property, and takes what its text has before a
    colon for its type.
    """
    lines: list[str] = arguments[-1]
    linked = [_NAME.sub(_as_name, _ERROR.sub(_as_link, line)) for line in lines]
    lines[:] = GoogleDocstring(linked, Config()).lines()


def hide_abstract(
    app: Sphinx,  # noqa: ARG001 - what Sphinx gives
    domain: str,  # noqa: ARG001 - the same
    kind: str,  # noqa: ARG001 - the same
    content: nodes.Element,
) -> None:
    """Leave out that a method is abstract: a reader calls it, and implements none."""
    for mark in list(content.parent.findall(addnodes.desc_annotation)):
        if mark.astext().strip().startswith("abstract"):
            mark.parent.remove(mark)


def _as_link(found: re.Match[str]) -> str:
    name = found[0]
    if name in streamkit.__all__:
        return f":class:`~streamkit.{name}`"
    return f":class:`{name}`" if hasattr(builtins, name) else name


def _as_name(found: re.Match[str]) -> str:
    name, root = found.groups()
    home = public_name(root) if found[0] != f"``{name}``" or root in streamkit.__all__ else None
    return f":obj:`{name} <{home}{name.removeprefix(root)}>`" if home else found[0]


_NAME = re.compile(r"``(?:streamkit\.)?(?:(?:processes|testing|types)\.)?((\w+)(?:\.\w+)?)``")
_ERROR = re.compile(r"(?<![\w`.~])[A-Z]\w+Error\b(?!`)")
_ALIAS = re.compile(r"TypeAliasForwardRef\('([\w.]+)'\)")


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the handlers."""
    app.connect("missing-reference", resolve)
    app.connect("autodoc-process-signature", as_users_write_it)
    app.connect("autodoc-process-docstring", prepare)
    app.connect("object-description-transform", hide_abstract)
    return {"parallel_read_safe": True}
