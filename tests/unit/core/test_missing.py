"""Without a library, without a driver: the rest works, and the error says what to install."""

from __future__ import annotations

import functools

import pytest

import streamkit as sk
from streamkit._queues import registry  # the public calls need a device
from streamkit.types import HostEvent, HostStream
from support import programs
from support.programs import LOOK, ROOTS

pytestmark = pytest.mark.quick

LIBRARIES = [row.name for row in registry.LIBRARIES]
BLOCKED = {row.name: [row.module.partition(".")[0]] for row in registry.LIBRARIES} | {
    "numba": ["numba", "numba_cuda"],
    "cuda.core": ["cuda.core"],
    "cuda.bindings": ["cuda.bindings"],
}
python = functools.partial(programs.python, loaded=("streamkit.diagnostics.doctor.doctor",))


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_missing_library_is_named_with_the_line_that_installs_it(library):
    row = registry.BY_NAME[library]
    requirements = [*row.requirements.values()]
    python(
        LOOK
        + f"""
for name in {row.aliases}:
    assert raised(sk.errors.BackendNotInstalledError, registry.adapter, name).name == {library!r}
error = raised(sk.errors.BackendNotInstalledError, registry.adapter, {library!r})
assert isinstance(error, ImportError)
assert error.name == {library!r}, error.name
assert {library!r} in str(error), error
assert any(f"pip install {{one}}" in str(error) for one in {requirements}), error
assert "streamkit-cuda" not in str(error), error  # it may have come from no index
""",
        blocked=BLOCKED[library],
    )


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("how", ["blocked", "None"])
def test_without_one_library_recognition_and_the_host_stream_work(library, how):
    block = "".join(f"sys.modules[{name!r}] = None\n" for name in BLOCKED[library])
    python(
        LOOK
        + (block if how == "None" else "")
        + f"""
imitation = type("Imitation", (), {{"__module__": {library + ".sub"!r}}})
raised(sk.errors.UnsupportedStreamError, registry.extract, imitation())
assert loaded_libraries.libraries() == ()
s, seen = sk.new_stream("cpu"), []
s.submit(seen.append, 1)
with sk.use(s, ordered=True):
    seen.append(2)
    assert sk.current_stream() is s
s.sync()
assert seen == [1, 2], seen
""",
        blocked=BLOCKED[library] if how == "blocked" else (),
    )


def test_a_class_that_pretends_to_be_of_a_library_imports_none():
    python(
        LOOK
        + f"""
for root in {ROOTS}:
    imitation = type("Stream", (), {{"__module__": root + ".streams"}})
    raised(TypeError, sk.wrap, imitation())
    assert root not in sys.modules, root
"""
    )


def test_asking_for_the_known_names_or_naming_libraries_in_a_scope_imports_none():
    python(
        LOOK
        + f"""
assert set(registry.known()) >= set({LIBRARIES})
assert not set({ROOTS}) & set(sys.modules)
with sk.use(sk.new_stream("cpu"), libraries=["torch", "warp"]):
    pass
assert not set({ROOTS}) & set(sys.modules)
"""
    )


def test_a_failed_import_is_tried_again_the_next_time():
    python(
        LOOK
        + """
import types
for _ in range(2):
    raised(sk.errors.BackendNotInstalledError, registry.adapter, "cupy")
sys.meta_path.pop(0)
import importlib.util
if importlib.util.find_spec("cupy"):
    assert registry.adapter("cupy").name == "cupy"
""",
        blocked=["cupy"],
    )


# -- without a driver -------------------------------------------------------------------------


def test_a_new_stream_and_event_and_the_default_streams_are_on_the_host(no_driver):
    assert isinstance(sk.new_event(), HostEvent)
    assert isinstance(sk.new_stream(), HostStream)
    assert (sk.new_stream().device, sk.is_available()) == ("cpu", False)
    for mine in (False, True):
        assert sk.default_stream(per_thread=mine) is sk.default_stream("cpu", per_thread=mine)


@pytest.mark.parametrize("device", ["cuda", "cuda:0", "cuda:7", 0, 7])
@pytest.mark.parametrize(
    "function",
    [
        sk.new_stream, sk.default_stream, lambda d: sk.default_stream(d, per_thread=True),
        lambda d: sk.new_event(device=d),
    ],
)  # fmt: skip
def test_a_cuda_device_is_never_replaced_by_the_host(function, device, no_driver):
    for _ in range(2):  # the driver is asked again after it was missing
        with pytest.raises(sk.errors.NoDeviceError, match="new_stream"):
            function(device)


def test_no_library_has_a_current_stream_and_none_are_on_one_queue(no_driver):
    assert sk.current_streams() == {}
    sk.assert_one_queue()


def test_without_driver_and_bindings_a_cuda_device_is_missing_not_the_bindings(no_driver):
    python(
        LOOK
        + """
assert sk.new_stream().device == "cpu"
error = raised(sk.errors.NoDeviceError, sk.new_stream, "cuda:0")
assert "driver" in str(error), error
""",
        blocked=["cuda"],
    )


def test_with_a_driver_and_without_bindings_the_bindings_are_missing():
    python(
        LOOK
        + """
from streamkit._cuda import loader  # a driver library is made up here
loader.why_not_loaded = lambda: ""
loader.driver_version = lambda: 12080
for device in (None, "cuda:0"):
    error = raised(sk.errors.BackendNotInstalledError, sk.new_stream, device)
    assert 'pip install "cuda-bindings>=1' in str(error), error
assert (sk.new_stream("cpu").device, sk.is_available()) == ("cpu", False)
""",
        blocked=["cuda"],
    )


def test_the_rows_have_distinct_names():
    names = [name for row in registry.LIBRARIES for name in (row.name, *row.aliases)]
    assert len(names) == len(set(names))


# -- what only has the name of a library ------------------------------------------------------

STAND_INS = {
    "a file": "import {library}",
    "a mock": "sys.modules[{library!r}] = unittest.mock.MagicMock()",
    "a mock of a module": "sys.modules[{library!r}] = unittest.mock.MagicMock(types.ModuleType)",
    "a namespace": "sys.modules[{library!r}] = types.SimpleNamespace()",
    "an empty module": "sys.modules[{library!r}] = types.ModuleType({library!r})",
    "a module with any name": "sys.modules[{library!r}] = type('M', (types.ModuleType,), "
    "{{'__getattr__': lambda self, name: self}})({library!r})",
}


@pytest.mark.parametrize("kind", STAND_INS)
@pytest.mark.parametrize("library", ["warp", "torch", "rmm", "cupy"])
def test_what_has_the_name_of_a_library_is_not_loaded_and_is_named(tmp_path, library, kind):
    (tmp_path / f"{library}.py").write_text("class Stream: pass\n")
    what = f"{tmp_path / library}.py" if kind == "a file" else f"the module {library!r} of this"
    python(
        LOOK
        + f"""
import types, unittest.mock
{STAND_INS[kind].format(library=library)}
assert loaded_libraries.libraries() == ()
assert sk.current_streams(device="cpu") == {{}}
assert registry.loaded() == {{}}
stream = type("Stream", (), {{"__module__": {library!r}}})()
for error, call, argument in (
    (sk.errors.BackendNotInstalledError, registry.adapter, {library!r}),
    (sk.errors.UnsupportedStreamError, sk.wrap, stream),
):
    told = raised(error, call, argument)
    assert {what!r} in str(told) and "sys.path" in str(told), told
(found,) = [one for one in sk.doctor().findings if one.code == "stand-in"]
assert found.library == {library!r} and {what!r} in found.what, found
""",
        path=[tmp_path],
    )


def test_a_package_of_the_same_name_is_not_the_library(tmp_path):
    (tmp_path / "warp").mkdir()
    (tmp_path / "warp/__init__.py").write_text("def image(): pass\n")
    python(
        LOOK
        + """
import warp
assert loaded_libraries.libraries() == ()
(found,) = [one for one in sk.doctor().findings if one.code == "stand-in"]
assert warp.__file__ in found.what, found
""",
        path=[tmp_path],
    )


@pytest.mark.parametrize(
    ("file", "libraries"),
    [("warp", ["warp"]), ("numba", ["numba"]), ("cuda", ["cuda.core", "cuda.bindings"])],
)
def test_the_doctor_names_a_file_that_an_import_would_find_first(tmp_path, file, libraries):
    (tmp_path / f"{file}.py").write_text("")
    for line in ("", f"import {file}"):
        python(
            f"""
import streamkit as sk
{line}
found = [one for one in sk.doctor().findings if one.code == "stand-in"]
assert [one.library for one in found] == {libraries}, found
assert all({f"{tmp_path / file}.py"!r} in one.what for one in found), found
""",
            path=[tmp_path],
        )
