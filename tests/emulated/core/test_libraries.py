"""Which libraries a scope moves, and the current stream of each."""

from __future__ import annotations

import pytest

import streamkit as sk
from support.emulated.toys import WITHOUT_CUDA, program
from support.libraries import need

pytestmark = pytest.mark.versions

__all__ = ["program"]  # the fixture


# -- which libraries --------------------------------------------------------------------------


ALONE = "sk._queues.loaded_libraries.not_loaded = lambda: ('toyb',)"  # as if all others were loaded


@pytest.mark.parametrize("missing", ["", ALONE])
def test_a_library_loaded_later_is_moved_by_the_next_scope(program, missing):
    program(
        missing
        + """
import toya
stream = sk.new_stream()
with stream:
    import toyb
    assert current_handles(toya, toyb) == [stream.handle, 0]
    [sk.assert_one_queue(libraries=[one]) for one in ("toya", "toyb")]
    with stream:
        sk.assert_one_queue()
        assert current_handles(toya, toyb) == [stream.handle] * 2
with stream:
    assert current_handles(toya, toyb) == [stream.handle] * 2
assert current_handles(toya, toyb) == [0, 0]
"""
    )


def test_a_library_loaded_inside_is_noticed_though_it_is_alone(program):
    program(
        """
stream, other = sk.new_stream(), sk.new_stream(1)
with stream:
    sk.assert_one_queue()
    import toyb
    error = error_of(sk.errors.OneQueueError, sk.assert_one_queue)
    assert f"; the scope on {stream!r}" in str(error)
    with other:
        sk.assert_one_queue()
    with stream:
        sk.assert_one_queue()
with sk.new_stream("cpu"):
    sk.assert_one_queue()
"""
    )


def test_a_library_loaded_inside_a_scope_is_moved_by_the_next_one_of_that_stream(program):
    """Warp tells that it is there already, so the next scope need not move it."""
    need("warp")
    program(
        """
import warp
warp.config.log_level = warp.LOG_WARNING
stream = sk.new_stream()
with stream:
    with stream:
        import toya
    assert current_handles(toya) == [0]
    with stream:
        assert current_handles(toya) == [stream.handle]
    assert current_handles(toya) == [0]
"""
    )


def test_a_library_that_is_being_imported_is_left_alone(program, tmp_path):
    program(
        """
import toya
stream = sk.new_stream()
import importlib.abc, importlib.machinery

class Loader(importlib.abc.SourceLoader):
    def get_filename(self, name):
        return name
    def get_data(self, path):
        return b"import __main__; __main__.meanwhile()"

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "toyb":
            return importlib.machinery.ModuleSpec(name, Loader())

def meanwhile():
    import toyc
    assert list(sk.current_streams()) == ["toya", "toyc"]
    with stream:
        assert current_handles(toya, toyc) == [stream.handle] * 2

sys.meta_path.insert(0, Finder())
import toyb
""",
        toya="",
        toyb="",
        toyc="",
    )


def test_a_library_without_cuda_is_left_alone(program):
    program(
        """
import toya, toyb
stream = sk.new_stream()
with stream:
    assert current_handles(toya, toyb) == [stream.handle, 0]
    assert list(sk.current_streams()) == ["toya"]
""",
        toya="",
        toyb=WITHOUT_CUDA,
    )


def test_libraries_are_in_table_order(program):
    need("warp")
    program(
        """
import toya
assert list(sk.current_streams()) == ["toya"]
import warp
warp.config.log_level = warp.LOG_WARNING
assert list(sk.current_streams()) == ["warp", "toya"]
"""
    )


def test_an_adapter_of_another_contract_is_refused(program):
    program(
        """
import toya
error = error_of(sk.errors.BackendNotInstalledError, sk.wrap, toya.Stream(64))
assert "contract 99" in str(error)
""",
        toya="\napi = 99\n",
    )


# -- current streams --------------------------------------------------------------------------


def test_libraries_on_two_queues_are_told(program):
    program(
        """
import toya, toyb
sk.assert_one_queue()
assert sk.current_stream() == sk.default_stream()
toyb.set_current_stream(sk.new_stream().to("toyb"))
for ask, error in ((sk.assert_one_queue, "OneQueueError"), (sk.current_stream, "ScopeError")):
    told = str(error_of(getattr(sk.errors, error), ask))
    assert "toya" in told and "toyb" in told
sk.assert_one_queue(libraries=["toyb"])
with sk.new_stream() as stream:
    sk.assert_one_queue()
    assert sk.current_stream() is stream
""",
        toya="",
        toyb="",
    )


def test_of_the_named_libraries_alone_it_is_told(program):
    program(
        """
import toya, toyb, toyc
toyb.set_current_stream(sk.new_stream().to("toyb"))
told = str(error_of(sk.errors.OneQueueError, sk.assert_one_queue, libraries=["toya", "toyb"]))
assert "toya" in told and "toyb" in told and "toyc" not in told
sk.assert_one_queue(libraries=["toya", "toyc"])
""",
        toya="",
        toyb="",
        toyc="",
    )


def test_a_librarys_default_stream_is_that_of_the_device_asked_for(program):
    program(
        """
import toya
with sk.use(sk.new_stream(0), libraries=[]):
    for device in range(2):
        assert sk.current_stream("toya", device=device) == sk.default_stream(device)
        assert sk.current_streams(device=device) == {"toya": sk.default_stream(device)}
""",
        toya="",
    )


def test_the_current_stream_of_another_device_is_not_the_scopes():
    with sk.new_stream(0) as stream:
        assert sk.current_stream(device=0) is stream
        assert sk.current_stream(device=1).device == "cuda:1"


def test_what_only_has_the_name_of_a_library_breaks_no_scope(program):
    program(
        """
import types, unittest.mock
import toya
sys.modules["rmm"] = types.ModuleType("rmm")
sys.modules["cupy"] = unittest.mock.MagicMock()
sys.modules["warp"] = types.SimpleNamespace()
stream = sk.new_stream()
with stream:
    assert sk.current_streams() == {"toya": stream}
    sk.assert_one_queue()
""",
        toya="",
    )
