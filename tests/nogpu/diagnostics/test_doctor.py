"""The doctor with the real libraries, without a driver."""

from __future__ import annotations

import json
import shutil
import subprocess

import pytest

from streamkit._queues import registry  # its rows name the libraries
from support.libraries import LIBRARIES, installed, need
from support.programs import python

pytestmark = pytest.mark.versions

NAMES = {
    library: {row.name for row in registry.LIBRARIES if row.root == library}
    for library in LIBRARIES
}
SHOW = """
import json, sys
import streamkit as sk
from streamkit.diagnostics.doctor import report  # the data that the command prints
print(json.dumps(report.as_data(sk.doctor({arguments}))))
"""


def look(start="", arguments="", **options):
    return json.loads(python(start + SHOW.format(arguments=arguments), **options).splitlines()[-1])


def test_what_is_installed_is_listed_and_not_imported():
    data = look()
    here = {name for library in LIBRARIES if installed(library) for name in NAMES[library]}
    assert {
        row["name"]
        for row in data["libraries"]
        if row["name"] not in ("toylib", "oldtoylib", "rmm")
    } == here
    assert not any(row["loaded"] for row in data["libraries"])
    assert data["driver"] is None
    assert not any(found["code"].startswith(("no-d", "driver")) for found in data["findings"])
    python("""
import sys
import streamkit as sk
sk.doctor()
imported = {"torch", "cupy", "warp", "tvm_ffi", "numba", "cuda.core"} & set(sys.modules)
assert not imported, imported
""")


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_loaded_library_is_listed_as_loaded(library):
    need(library)
    data = look(f"import {LIBRARIES[library][0]}\n")
    loaded = {row["name"] for row in data["libraries"] if row["loaded"]}
    assert NAMES[library] <= loaded
    assert all(row["current"] is None for row in data["libraries"])
    assert "cannot-be-asked" not in {found["code"] for found in data["findings"]}


def test_loading_all_of_them_leaves_none_out():
    data = look(arguments="load=True")
    broken = [found for found in data["findings"] if found["code"] == "cannot-be-imported"]
    assert broken == []
    assert all(row["loaded"] for row in data["libraries"] if row["name"] != "oldtoylib")


def test_a_cpu_build_of_torch_is_right_where_there_is_no_gpu():
    if need("torch").version.cuda is not None:
        pytest.skip("this build has CUDA")
    data = look()
    assert ("torch", "cpu") in {(row["name"], row["cuda"]) for row in data["libraries"]}
    assert "torch-cpu" not in {found["code"] for found in data["findings"]}


@pytest.mark.parametrize("library", ["torch", "cupy", "cuda"])
def test_the_cuda_that_a_library_is_built_for_is_what_it_says_itself(library):
    module = need(library)
    (row,) = [
        row
        for row in look()["libraries"]
        if row["name"] == {"cuda": "cuda.bindings"}.get(library, library)
    ]
    if library == "torch":
        assert row["cuda"] == (module.version.cuda or "cpu")
    elif library == "cupy":
        assert int(row["cuda"]) == module.cuda.runtime.runtimeGetVersion() // 1000
    else:
        from cuda.bindings import driver

        assert int(row["cuda"].partition(".")[0]) == driver.CUDA_VERSION // 1000


PLAIN = """
import functools, importlib.metadata
importlib.metadata.distributions = functools.partial(importlib.metadata.distributions, path=[{!r}])
"""


@pytest.mark.parametrize("how", ["loaded", "load=True", "not loaded"])
@pytest.mark.parametrize("fits", [True, False])
def test_a_cupy_whose_name_tells_no_cuda_is_asked_when_it_is_loaded(tmp_path, how, fits):
    own = need("cupy").cuda.runtime.runtimeGetVersion() // 1000
    other = own if fits else 25 - own
    for name, version in (("cupy", "14.2.0"), ("cuda_bindings", f"{other}.9")):  # as conda's
        folder = tmp_path / f"{name}-{version}.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(f"Name: {name}\nVersion: {version}\n")
    data = look(
        PLAIN.format(str(tmp_path)) + ("import cupy\n" if how == "loaded" else ""),
        how if how == "load=True" else "",
    )
    built = {row["name"]: row["cuda"] for row in data["libraries"]}
    assert built["cupy"] == (None if how == "not loaded" else str(own))
    told = [found["what"] for found in data["findings"] if found["code"] == "cuda-majors"]
    if fits or how == "not loaded":
        assert told == []
    else:
        assert f"cupy for {own}, cuda.bindings for {other}" in told[0]


def test_a_loaded_library_that_no_metadata_describes_is_listed():
    data = look(
        """
import importlib.metadata
importlib.metadata.distributions = lambda **_: iter(())
import cuda.core
"""
    )
    (row,) = [row for row in data["libraries"] if row["name"] == "cuda.core"]
    assert (row["version"], row["loaded"]) == (None, True)


@pytest.mark.skipif(shutil.which("gcc") is None, reason="gcc builds the library")
def test_of_two_libcuptis_the_one_that_is_loaded_is_used(tmp_path):
    """A second one would not know of the one that a profiler has loaded."""
    need("cuda")  # and cuda-pathfinder with it
    loaded = tmp_path / "libcupti.so.12"
    (tmp_path / "empty.c").write_text("")
    build = "-shared", f"-Wl,-soname,{loaded.name}", "-o", loaded, tmp_path / "empty.c"
    subprocess.run(["gcc", *build], check=True)  # noqa: S607 - as found
    printed = python(f"""
import ctypes
from streamkit.diagnostics.doctor import toolkit  # no public function asks for one library
ctypes.CDLL({str(loaded)!r})
print(toolkit.load("cupti", 13, 12)._name)
""")
    assert printed.splitlines()[-1:] == [str(loaded)]
