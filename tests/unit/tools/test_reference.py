"""The reference documents every public name, and nothing that is not public."""

from __future__ import annotations

import functools
import importlib
import inspect
import re

import pytest

import streamkit as sk
from streamkit import processes, types
from streamkit._cli import cli  # its commands
from streamkit._queues import registry  # its rows have the versions
from streamkit.protocols import adapters  # the contract, whose top speaks for all of it
from streamkit.types import CudaEvent, CudaGraph, CudaStream, HostEvent, HostStream
from support.documents import ROOT, blocks
from support.site import extension

pytestmark = pytest.mark.once

REFERENCE = ROOT / "docs" / "reference"
MODULES = ("errors", "processes", "types", "protocols", "testing")
HOMES = ("streamkit", *(f"streamkit.{name}" for name in MODULES))
RETURNED = {  # what public functions return, and nobody makes
    ("streamkit.diagnostics.audit.audit", "AuditReport"),
    ("streamkit.diagnostics.recording.operations", "Operation"),
    ("streamkit.diagnostics.recording.operations", "AuditedQueue"),
    ("streamkit.diagnostics.races.report", "RaceReport"),
    ("streamkit.diagnostics.races.report", "Race"),
    ("streamkit.diagnostics.races.report", "RacedOperation"),
    ("streamkit.diagnostics.races.report", "Coverage"),
    ("streamkit.diagnostics.races.arrays", "RacedArray"),
    ("streamkit.diagnostics.doctor.report", "DoctorReport"),
    ("streamkit.diagnostics.doctor.report", "Driver"),
    ("streamkit.diagnostics.doctor.report", "LibraryReport"),
    ("streamkit.diagnostics.doctor.report", "Standing"),
}
PLUGIN = {"streamkit_seed", "streamkit_stream"}  # fixtures, which no module exports


def documented():
    """The names under an autodoc directive, each with the module that stands above it."""
    for path in sorted(REFERENCE.glob("*.md")):
        module = None
        for kind, name in re.findall(
            r"^\.\. (py:\w+|auto\w+):: ([\w.]+)", path.read_text(encoding="utf-8"), re.MULTILINE
        ):
            if kind in ("py:module", "py:currentmodule"):
                module = name
            else:
                yield module, name


def public():
    """Each public name with the first module that has it, which is where it is documented."""
    seen = set()
    for home in HOMES:
        for name in importlib.import_module(home).__all__:
            if name not in seen:
                seen.add(name)
                yield home, name


def test_every_public_name_is_documented_and_every_documented_name_public():
    found = sorted(documented())
    assert len(found) == len(set(found))
    fixtures = {("streamkit.testing", name) for name in PLUGIN}
    assert set(found) == set(public()) | fixtures | RETURNED


@pytest.mark.parametrize(("home", "name"), [*public(), *sorted(RETURNED)])
def test_a_public_name_has_a_docstring(home, name):
    if name in ("API", "ArrayLike", "EventLike", "ForeignStream", "StreamLike", "WorkLike"):
        pytest.skip("a value, documented beside it")
    assert getattr(importlib.import_module(home), name).__doc__


def test_each_public_name_has_an_example_on_the_pages_of_the_reference():
    pages = [path.read_text(encoding="utf-8") for path in REFERENCE.glob("*.md")]
    code = "".join(block.code for page in pages for block in blocks(page) if block.runs(99))
    assert not {name for name in sk.__all__ if not re.search(rf"\bsk\.{name}\b", code)}
    others = {*processes.__all__, *types.__all__, "accesses"} - set(sk.__all__)
    assert not {name for name in others if not re.search(rf"(?<!\.)\b{name}\b(?!,)", code)}


def members(kind):
    return {name for name in dir(kind) if not name.startswith("_")}


@pytest.mark.parametrize("kind", [CudaStream, HostStream, CudaEvent, HostEvent, CudaGraph])
def test_every_member_has_a_docstring_or_its_contract_has(kind):
    contract = next(one for one in (sk.Event, sk.Stream, sk.types.Graph) if one in kind.__mro__)
    assert members(kind)
    for name in members(kind):
        text = getattr(kind, name).__doc__ or getattr(contract, name).__doc__
        assert text, name


def test_the_commands_and_options_are_those_there_are():
    source = (ROOT / "streamkit" / "_cli/cli.py").read_text()
    page = (REFERENCE / "command.md").read_text()
    assert {*cli.COMMANDS, *cli.PROGRAMS} == set(re.findall(r"`streamkit (\w+)`", page))
    options = set(re.findall(r'"(--[a-z-]+)"', source)) - {"--help"}
    assert options == set(re.findall(r"--[a-z][a-z-]*", page))


# -- what docstrings tell of parameters --------------------------------------------------------

ELSEWHERE = re.compile(r"The arguments are those of ``([\w.]+)``")


def told(text):
    """The parameters that a docstring tells, or the one to which it sends the reader."""
    found = re.search(r"^Args:\n((?: {4}.*\n|\n)*)", f"{text}\n", re.MULTILINE)
    names = re.findall(r"^ {4}\*{0,2}(\w+): \S", found[1] if found else "", re.MULTILINE)
    there = ELSEWHERE.search(text)
    return names + (told(texts()[there[1]]) if there else [])


def public_callables():
    """By name, each function and method that is public, and each class that users make."""
    pages = "".join(path.read_text(encoding="utf-8") for path in REFERENCE.glob("*.md"))
    made = [*re.findall(r"autoclass:: (\w+)$", pages, re.MULTILINE), "DriverError"]
    for home, name in [*public(), *sorted(RETURNED)]:
        value = getattr(importlib.import_module(home), name)
        if inspect.isfunction(value) or name in made:
            yield name, value
        if inspect.isclass(value):
            found = inspect.getmembers(
                value, lambda one: inspect.isfunction(one) or inspect.ismethod(one)
            )
            yield from (
                (f"{name}.{one}", method)
                for one, method in found
                if one[0] != "_" and method.__module__.startswith("streamkit")
            )


@functools.cache
def texts():
    return {name: inspect.getdoc(value) or "" for name, value in public_callables()}


def contract_text(name):
    """The docstring of the protocol's method, where that of the class adds to it."""
    kind, _, member = name.partition(".")
    bases = getattr(getattr(types, kind, getattr(sk, kind, None)), "__mro__", ())
    protocols = [base.__name__ for base in bases if base in (sk.Stream, sk.Event, sk.types.Graph)]
    return texts().get(f"{protocols[0]}.{member}", "") if protocols else ""


def told_below(value):
    """The fields of a class, each with a docstring of its own."""
    source = inspect.getsource(value) if inspect.isclass(value) else ""
    return re.findall(r'^    (\w+): .+\n    """', source, re.MULTILINE)


def told_in_prose(name, value):
    """Of the contract of adapters: in a function's sentences, or for all at the module's top."""
    is_contract = value.__module__ == adapters.__name__
    return re.findall(r"``(\w+)``", adapters.__doc__ + texts()[name]) if is_contract else []


@pytest.mark.parametrize(
    ("name", "value"), [pytest.param(*one, id=one[0]) for one in public_callables()]
)
def test_each_parameter_is_told_once_and_none_that_is_not_there(name, value):
    found = inspect.signature(value).parameters.items()
    # what takes nothing is there to answer wrong calls, and the pages do not show it
    parameters = {key for key, one in found if one.annotation not in ("Never", "None")} - {"self"}
    own, contract = told(texts()[name]), told(contract_text(name))
    assert len(own) == len(set(own))
    assert set(own) <= parameters
    assert parameters <= {*own, *contract, *told_below(value), *told_in_prose(name, value)}


# -- what is told about the libraries ----------------------------------------------------------

evidence = extension("evidence")


def test_the_readme_has_the_figures_of_the_record_and_is_short():
    table, readme = evidence.end_to_end(), (ROOT / "README.md").read_text(encoding="utf-8")
    assert table in readme, f"this belongs in README.md:\n{table}"
    words = " ".join(readme.split())
    assert [figure for figure in evidence.why_not() if figure not in words] == []
    assert len(readme.partition("## Is it for you?")[0].split()) <= 700


def test_the_newest_versions_of_a_library_are_those_of_its_row_and_of_the_records():
    rows = [line.strip("| ").split(" | ") for line in evidence.ranges().splitlines()[2:]]
    found = {name: [*map(evidence._numbers, versions)] for name, *versions in rows}
    assert found.keys() == {"Python", *(evidence.NAMES[row.name] for row in registry.LIBRARIES)}
    for oldest, newest, on_a_gpu in found.values():
        assert [] < oldest <= newest
        assert on_a_gpu == [] or oldest <= on_a_gpu[: len(oldest)]
        assert on_a_gpu[: len(newest)] <= newest


CALL = re.compile(r"`(cu[A-Z]\w+)`")


def test_the_page_of_the_native_calls_has_each_that_goes_through_ctypes():
    source = "".join(path.read_text("utf-8") for path in (ROOT / "streamkit").rglob("*.py"))
    asked = set(re.findall(r'with(?:out)?_gil\("(\w+)"', source))
    assert len(asked) >= 4
    page = (ROOT / "docs/concepts/native.md").read_text(encoding="utf-8")
    told = {name for row in page.splitlines() if "| ctypes" in row for name in CALL.findall(row)}
    assert told == asked | {"cuDriverGetVersion"}  # that of a driver which may not start


def test_what_the_gpu_tests_use_is_in_their_record_and_on_the_page():
    packages = set(evidence.suite()["PACKAGES"])
    asked = {
        name
        for path in (ROOT / "tests" / "gpu").rglob("*.py")
        for name in re.findall(r'importorskip\("(\w+)"\)', path.read_text(encoding="utf-8"))
    }
    assert {{"cupti": "cupti-python"}.get(name, name) for name in asked} <= packages
    assert packages - {"numpy", "pytest"} <= set(evidence.NAMES)
