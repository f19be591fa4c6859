"""The package's files import in one direction, and name libraries in few places."""

from __future__ import annotations

import ast
import inspect
import re
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import streamkit
from _documents import ROOT as CHECKOUT
from _site import extension
from streamkit import _queue, protocols

ROOT = Path(streamkit.__file__).parent

LAYERS = (
    (
        "errors",
        "_refusals",
        "_refusals_arrays",
        "_refusals_audit",
        "_refusals_capture",
        "_refusals_waiting",
        "_locks",
        "_turns",
        "_queue",
        "_weak_table",
        "_adapter",
        "_static_protocol",
        "protocols",
        "_awaitable",
        "_semaphore",
        "_callbacks",
        "_captures",
        "_collection",
        "_immortal",
        "_host_error",
        "_host_engine",
    ),
    ("_library",),
    ("_driver",),
    ("_driver_events", "_driver_graphs", "_private_streams"),
    ("_edges", "_pools", "_graph_parts"),
    ("backends", "_device"),
    ("_lifetime", "_lanes", "_dispatch"),
    ("_identity",),
    ("_registry",),
    ("_open_scopes", "_order", "_owners", "_keep", "_movers", "_current_queues", "_plan", "_scope"),
    (
        "_waiting",
        "_host_queue",
        "_host_watch",
        "_host_waits",
        "_host_then",
        "_host_keep",
        "_host_scope",
    ),
    ("_event", "_stream_facts", "_stream_waits", "_stream", "_host_event", "_host"),
    ("_wrap",),
    ("_current", "_handoff"),
    ("_capture_checks", "_retired", "_graph", "_capture"),
    ("_timeline",),
    ("_report",),
    ("_audit",),
    ("__init__", "_bench", "_demo", "_doctor", "_matrix", "testing"),
    ("_cli", "_pytest_plugin"),
)
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}

# They compare and show libraries by name.
TOOLS = ("_audit", "_bench", "_demo", "_doctor", "_matrix", "_timeline", "_cli")

FILES = sorted(ROOT.rglob("*.py"))
LIBRARY = re.compile(r"(?<![A-Za-z])(torch|cupy|warp|numba)(?![A-Za-z])", re.IGNORECASE)


def layered(path):
    """The name under which a file stands in the table."""
    return in_the_table(path.relative_to(ROOT).with_suffix("").parts[0])


def in_the_table(module):
    """The name under which a module of the package stands in the table."""
    return next((known for known in TOOLS if module.startswith(known)), module)


def is_type_checking(node):
    return isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"


def running(tree):
    """Walk what runs: all nodes but those for the type checker."""
    for node in ast.iter_child_nodes(tree):
        if is_type_checking(node):
            for other in node.orelse:
                yield other
                yield from running(other)
        else:
            yield node
            yield from running(node)


def modules_imported(source):
    """The modules of the package that a file's code imports, as they stand in the table."""
    for node in running(ast.parse(source)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative imports hide where they go"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        for name in names:
            root, _, rest = name.partition(".")
            if root == "streamkit":
                module = in_the_table(rest.partition(".")[0])
                yield module if module in LEVEL else "__init__"


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


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_imports_go_upward_only(path):
    name = layered(path)
    assert name in LEVEL, f"{path.name} has no layer: give it one"
    below = {module for module in modules_imported(path.read_text()) if LEVEL[module] > LEVEL[name]}
    assert not below


def test_no_two_modules_import_each_other():
    graph = {}
    for path in FILES:
        name = layered(path)
        graph.setdefault(name, set()).update(set(modules_imported(path.read_text())) - {name})
    assert list(TopologicalSorter(graph).static_order())


@pytest.mark.parametrize(
    "path",
    [path for path in FILES if path.name != "_registry.py" and layered(path) not in TOOLS],
    ids=lambda path: path.relative_to(ROOT).as_posix(),
)
def test_a_library_is_named_in_its_adapter_and_its_row_only(path):
    name = path.relative_to(ROOT).as_posix()
    own = re.fullmatch(r"backends/_(torch|cupy|warp|numba)(_\w+)?\.py", name)
    source = path.read_text()
    if own:
        source = re.sub(own[1], "mine", source, flags=re.IGNORECASE)
    assert not list(names_of_libraries(source))


def test_the_search_for_names_finds_code_and_not_documentation():
    source = '"""torch."""\nimport torch\nx = a.cupy\ny = "a warp"\n# numba\nwarped = 1\n'
    assert set(names_of_libraries(source)) == {2, 3, 4}


def test_the_search_for_imports_sees_through_every_form():
    source = """
import streamkit._wrap
from streamkit import _host, errors as e
from streamkit.backends._cuda import x
def f():
    from streamkit._scope import leave
if TYPE_CHECKING:
    from streamkit._cli import main
"""
    assert set(modules_imported(source)) == {"_wrap", "_host", "errors", "backends", "_scope"}


# -- the page that shows this table ------------------------------------------------------------

architecture = extension("architecture")


def test_the_drawing_is_of_the_table_that_is_held_against_the_imports():
    assert architecture.layers() == LAYERS
    drawn = re.findall(r"<li[^>]*>(\w+)</li>", architecture.drawing())
    assert drawn == [name for names in reversed(LAYERS) for name in names]


def test_every_file_has_a_place_and_a_sentence():
    listing = architecture.listing()
    for name in {layered(path) for path in FILES}:
        assert re.search(rf"^\| \d+ \| `{name}` \| \S.*\. \|$", listing, re.MULTILINE), name


# -- the picture of the way from an object to a stream ------------------------------------------

FLOW = (CHECKOUT / "docs" / "pictures" / "flow.svg").read_text(encoding="utf-8")
BOXES = {  # what stands in a box, and the file that it is
    "registry": "_registry",
    "its adapter": "backends",
    "queue": "_queue",
    "CudaStream": "_stream",
    "their adapter": "backends",
    "driver": "_driver",
}


def line_below(title):
    """The line that stands below the name of a box."""
    found = re.search(rf">{title}</text>\n.*>(.*)</text>", FLOW)
    assert found, title
    return found[1]


def test_the_boxes_of_the_picture_are_files_and_outsiders():
    titles = set(re.findall(r"<rect.*\n.*>(.*)</text>", FLOW))
    assert titles == {*BOXES, "any stream", "a genuine stream"}
    assert set(BOXES.values()) <= set(LEVEL)


def test_the_picture_goes_down_the_layers():
    ways = (("_wrap", *list(BOXES.values())[:3]), ("_stream", "backends"), ("_stream", "_driver"))
    for way in ways:
        levels = [LEVEL[name] for name in way]
        assert levels == sorted(set(levels), reverse=True), way


def test_what_the_picture_says_of_a_box_is_there():
    calls = dict(re.findall(r">(sk?\.\w+)\((\w+)\)<", FLOW))
    assert calls["sk.wrap"] in inspect.signature(streamkit.wrap).parameters
    assert calls["s.to"] in inspect.signature(streamkit.CudaStream.to).parameters
    assert all(hasattr(streamkit.CudaStream, name) for name in line_below("CudaStream").split(", "))
    assert line_below("queue").split(", ") == list(inspect.signature(_queue.Queue).parameters)
    for title in ("its adapter", "their adapter"):
        name, _, argument = line_below(title).rstrip(")").partition("(")
        assert argument in inspect.signature(getattr(protocols.Adapter, name)).parameters
