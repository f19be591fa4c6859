"""The package's files import in one direction, and name libraries in few places."""

from __future__ import annotations

import ast
import re
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import streamkit
from streamkit._queues import registry  # its rows name the libraries
from support.site import extension

pytestmark = pytest.mark.once

ROOT = Path(streamkit.__file__).parent

LAYERS = (
    "errors",
    "_support",
    "protocols",
    "_cuda",
    "backends",
    "_queues",
    "_streams",
    "_graphs",
    "processes",
    "diagnostics",
    "types",
    "__init__",
    "testing",
    "_cli",
    "__main__",
)
"""The folders and the public modules: each imports only from those before it."""

# It compares and shows libraries by name.
TOOLS = ("_cli",)

FILES = sorted(ROOT.rglob("*.py"))
# "cuda" is also the name of the platform, so only the other roots tell a library.
ROOTS = "|".join(sorted({row.root for row in registry.LIBRARIES} - {"cuda"}))
LIBRARY = re.compile(rf"(?<![A-Za-z])({ROOTS})(?![A-Za-z])", re.IGNORECASE)


architecture = extension("architecture")
GRAPH = architecture.graph()
folder = architecture.folder


def folder_of(path):
    """The folder or top-level module that a file is in."""
    return folder(architecture.module_name(path, ROOT))


def names_of_libraries(source):
    """The lines on which code, not documentation, names a library."""
    tree = ast.parse(source)
    documentation = {
        id(node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    for node in ast.walk(tree):
        if id(node) in documentation:
            continue
        texts = [value for _, value in ast.iter_fields(node) if isinstance(value, str)]
        if any(LIBRARY.search(text) for text in texts):
            yield getattr(node, "lineno", 0)


DOORS = {
    ("_graphs.graph", "diagnostics.pictures.graph_picture"),  # CudaGraph.to_svg
    ("_graphs.graph", "diagnostics.races.graph_nodes"),  # CudaGraph.races
    ("_graphs.graph", "diagnostics.races.report"),  # the same
    ("streamkit", "testing"),  # for type checkers
}
"""The imports that go up: the methods load what they need when they are called."""

BESIDE = {"_graphs", "processes", "diagnostics"}
"""These folders stand on the same layer and do not know each other."""


def rises(own, other):
    """Whether an import between two folders goes to a later one, or to one beside it."""
    is_beside = own != other and {own, other} <= BESIDE
    return is_beside or LAYERS.index(other) > LAYERS.index(own)


def test_a_folder_imports_only_from_those_before_it():
    rising = {
        (one.removeprefix("streamkit."), other.removeprefix("streamkit."))
        for one, found in GRAPH.items()
        for other in found
        if rises(folder(one), folder(other))
    }
    assert rising == DOORS


SEAM = {
    "_cuda": {
        "driver", "graphs.Node", "graphs.NodeWork", "graphs.Section", "loader", "memory_pools",
        "memory_pools.Allocation",
    },
    "_queues": {"arrays.ARRAYS", "identity", "open_scopes", "ordering", "registry", "trace"},
    "_streams": {
        "host_queue.wait_for_all", "host_stream", "host_stream.HostStream", "stream.CudaStream",
        "stream.wrap",
    },
}  # fmt: skip
"""What ``diagnostics``, which only looks, takes from the folders that act.

What it may rely on of a step and of a queue is in ``protocols/watching.py``.
"""


def test_what_only_looks_takes_no_more_from_what_acts_than_the_seam():
    taken = {name: set() for name in ("_cuda", "backends", "_queues", "_streams")}
    for path in ROOT.glob("diagnostics/**/*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and folder(node.module) in taken:
                inside = node.module.removeprefix(f"streamkit.{folder(node.module)}").lstrip(".")
                taken[folder(node.module)] |= {
                    f"{inside}.{alias.name}".lstrip(".") for alias in node.names
                }
    assert taken == {"backends": set(), **SEAM}


def test_no_modules_import_each_other():
    without = {"streamkit": GRAPH["streamkit"] - {"streamkit.testing"}}  # one of DOORS
    assert list(TopologicalSorter(GRAPH | without).static_order())


def test_the_top_level_holds_public_modules_and_folders_only():
    modules = {path.stem for path in ROOT.glob("*.py")}
    assert modules == {"__init__", "__main__", "errors", "types"}
    folders = {path.parent.name for path in ROOT.glob("*/*.py")}
    assert modules | folders == set(LAYERS)


def assigned_elsewhere(source):
    """The lines on which a module sets an attribute of another module of the package."""
    tree = ast.parse(source)
    modules = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("streamkit"):
            for alias in node.names:
                if f"{node.module}.{alias.name}" in GRAPH:
                    modules.add(alias.asname or alias.name)
    for node in ast.walk(tree):
        is_set = isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
        if is_set and isinstance(node.value, ast.Name) and node.value.id in modules:
            yield node.lineno


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_no_module_patches_another(path):
    assert list(assigned_elsewhere(path.read_text())) == []


def test_the_search_for_patches_finds_them():
    source = "from streamkit._queues import identity\nidentity.x = 1\nother.y = 2\n"
    assert list(assigned_elsewhere(source)) == [2]


@pytest.mark.parametrize(
    "path",
    [path for path in FILES if path.name != "registry.py" and folder_of(path) not in TOOLS],
    ids=lambda path: path.relative_to(ROOT).as_posix(),
)
def test_a_library_is_named_in_its_adapter_and_its_row_only(path):
    name = path.relative_to(ROOT).as_posix()
    own = re.fullmatch(rf"backends/_({ROOTS})/\w+\.py", name)
    source = path.read_text()
    if own:
        source = re.sub(own[1], "mine", source, flags=re.IGNORECASE)
    assert not list(names_of_libraries(source))


def test_the_search_for_names_finds_code_and_not_documentation():
    source = '"""torch."""\nimport torch\nx = a.cupy\ny = "a warp"\n# numba\nwarped = 1\n'
    assert set(names_of_libraries(source)) == {2, 3, 4}


def test_the_search_for_imports_sees_through_every_form():
    known = {"streamkit", *(f"streamkit.{name}" for name in ("a", "b.c", "b", "d", "errors"))}
    source = """
import streamkit.a
from streamkit.b import c, errors as e
from streamkit import errors
if TYPE_CHECKING:
    from streamkit.d import x
def f():
    from streamkit import wrap
"""
    assert set(architecture.imports(source, known)) == {
        "streamkit", "streamkit.a", "streamkit.b", "streamkit.b.c", "streamkit.d",
        "streamkit.errors",
    }  # fmt: skip
    with pytest.raises(ValueError, match="relative"):
        list(architecture.imports("from . import a", known))
