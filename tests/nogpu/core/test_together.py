"""Several real libraries in one process, some of them missing, some of them half imported."""

from __future__ import annotations

import pytest

import streamkit as sk
from streamkit._cli import demo  # the command prints no objects
from streamkit._queues import registry  # the public calls need a device
from streamkit.types import HostStream
from support.libraries import LIBRARIES, installed, need
from support.programs import python

IMPORTS = {
    "cuda": "import cuda.core, cuda.bindings.driver",
    "cupy": "import cupy",
    "numba": "import numba.cuda",
    "torch": "import torch",
    "warp": "import warp",
    "tvm_ffi": "import tvm_ffi",
}
ADAPTERS = {
    library: tuple(row.name for row in registry.LIBRARIES if row.root == library)
    for library in LIBRARIES
}
# what is blocked: the adapters that must then say so, and the libraries that cannot live without it
BLOCKED = {
    "torch": (("torch",), ()),
    "cupy": (("cupy",), ()),
    "warp": (("warp",), ()),
    "tvm_ffi": (("tvm_ffi",), ()),
    "numba": (("numba",), ()),
    "cuda.core": (("cuda.core",), ("numba",)),
    "cuda.bindings": (("cuda.core", "cuda.bindings"), ("numba",)),
}
DISTRIBUTIONS = {
    "cuda.core": "cuda-core",
    "cuda.bindings": "cuda-bindings",
    "cupy": "cupy-cuda1",
    "warp": "warp-lang",
    "tvm_ffi": "apache-tvm-ffi",
    "numba": "numba-cuda",
    "torch": "torch",
}
# objects of each library that are or are not its streams, made without a driver
OBJECTS = {
    "cuda": "cuda.core.Stream.from_handle(64), cuda.bindings.driver.CUstream(64), cuda.core.Device",
    "cupy": "cupy.cuda.Stream.null, cupy.cuda.Device(0), cupy.ndarray",
    "numba": "numba.cuda.cudadrv.driver.Stream, numba.cuda.jit, numba.cuda.cudadrv.driver.Event",
    "torch": "torch.Stream('cpu'), torch.zeros(3), torch.device('cpu'), torch.cuda.Stream",
    "tvm_ffi": "tvm_ffi.use_raw_stream(tvm_ffi.device('cuda', 0), 64), tvm_ffi.device('cpu', 0)",
    "warp": "warp.Stream, warp.get_device('cpu'), warp.float32",
}


def present():
    return [library for library in LIBRARIES if installed(library)]


@pytest.mark.parametrize("blocked", BLOCKED)
def test_without_one_library_its_adapter_says_so_and_the_others_work(blocked):
    silent, dependent = BLOCKED[blocked]
    libraries = [
        library for library in present() if library not in dependent
        and not set(ADAPTERS[library]) & set(silent)
    ]  # fmt: skip
    others = [name for library in libraries for name in ADAPTERS[library]]
    lines = {name: f'pip install "{DISTRIBUTIONS[name]}' for name in silent}
    python(
        f"""
import streamkit as sk
from streamkit._queues import loaded_libraries  # the public calls need a device
from streamkit._queues import registry  # the public calls need a device
for name, line in {lines!r}.items():
    try:
        registry.adapter(name)
    except sk.errors.BackendNotInstalledError as error:
        assert error.name == name
        assert line in str(error), error
    else:
        raise AssertionError(f"{{name}} was not missed")
for name in {others!r}:
    assert registry.adapter(name).name == name
try:
    loaded_libraries.libraries()
except sk.errors.NoDeviceError:
    pass  # it asks the driver whether the loaded ones can use CUDA
s, seen = sk.new_stream("cpu"), []
with s:
    s.submit(seen.append, 1)
assert seen == [1]
""",
        blocked=[blocked],
    )


@pytest.mark.parametrize("library", IMPORTS)
def test_wrap_imports_no_library(library):
    need(library)
    python(
        f"""
import sys
import streamkit as sk
{IMPORTS[library]}
roots = ("torch", "cupy", "warp", "tvm_ffi", "numba", "cuda.core")
before = set(sys.modules)
class Protocol:
    def __cuda_stream__(self):
        return 0, 64
for obj in ({OBJECTS[library]}, Protocol(), object(), None, 5):
    for function in (sk.wrap, sk.wrap_event):
        try:
            function(obj)
        except (TypeError, sk.errors.NoDeviceError):
            pass
new = set(sys.modules) - before
for root in roots:
    if root not in before:
        assert not [name for name in new if name == root or name.startswith(root + ".")], root
"""
    )


@pytest.mark.parametrize("library", IMPORTS)
def test_importing_streamkit_imports_no_library_that_is_installed(library):
    need(library)
    python(
        f"""
import sys
import streamkit as sk
with sk.new_stream("cpu") as s:
    s.record()
sk.wrap(s)
loaded = {list(LIBRARIES[library])!r}
assert not set(loaded) & set(sys.modules)
"""
    )


@pytest.mark.parametrize("library", ["cuda", "cupy", "numba", "torch", "tvm_ffi", "warp"])
def test_recognition_works_at_each_moment_of_the_import(library):
    """A library that is being imported asks for its own modules: each time, wrap is called."""
    need(library)
    root = LIBRARIES[library][0].partition(".")[0]
    asked = python(
        f"""
import sys
import streamkit as sk
from streamkit._queues import loaded_libraries  # the public calls need a device
from streamkit._queues import registry  # the public calls need a device

wrong, asked = [], []

class Look:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] != {root!r} or asked and asked[-1] == name:
            return
        asked.append(name)
        imitation = type("Stream", (), {{"__module__": name}})()
        speaks = type("Speaks", (), {{
            "__module__": name, "__cuda_stream__": lambda self: (0, 64)}})()
        sys.meta_path.remove(self)
        try:
            sk.wrap(imitation)
            wrong.append((name, "was taken"))
        except TypeError:
            pass
        except BaseException as error:
            wrong.append((name, repr(error)))
        try:
            assert registry.extract(speaks)[0].handle == 64
            loaded_libraries.libraries()
        except sk.errors.NoDeviceError:
            pass
        except BaseException as error:
            wrong.append((name, repr(error)))
        sys.meta_path.insert(0, self)

sys.meta_path.insert(0, Look())
{IMPORTS[library]}
assert not wrong, wrong[:3]
{IMPORTS[library]}
for adapter in {ADAPTERS[library]!r}:
    assert registry.adapter(adapter).name == adapter
print(len(asked))
"""
    )
    assert int(asked.split()[-1]) > 5


def test_a_new_stream_is_a_host_stream_with_every_library_loaded():
    for library in present():
        need(library)
    assert isinstance(sk.new_stream(), HostStream)
    assert sk.current_streams() == {}
    sk.assert_one_queue()
    assert sk.current_stream() is sk.default_stream()
    with pytest.raises(sk.errors.NoDeviceError):
        sk.new_stream("cuda:0")


def test_a_scope_on_the_host_works_with_every_library_loaded():
    for library in present():
        need(library)
    stream, seen = sk.new_stream(), []
    with sk.use(stream, ordered=True):
        assert sk.current_stream() is stream
        stream.submit(seen.append, 1)
    stream.sync()
    assert seen == [1]


@pytest.mark.parametrize("library", ["torch", "warp"])
def test_the_demo_computes_with_a_library_that_has_a_cpu_side(library):
    pytest.importorskip("numpy")
    need(library)
    result = demo.run(libraries=(library,))
    assert result["ok"], result
    assert [stage["library"] for stage in result["stages"]] == [library, "numpy", library]


@pytest.mark.parametrize("library", IMPORTS)
def test_the_adapter_keeps_the_contract(library):
    need(library)
    assert ADAPTERS[library]
    for name in ADAPTERS[library]:
        adapter = registry.adapter(name)
        assert isinstance(adapter, registry.Adapter)
        assert (adapter.name, adapter.api) == (name, 1)


@pytest.mark.parametrize("library", IMPORTS)
@pytest.mark.parametrize("obj", [object(), None, 5, "x", (0, 64), int], ids=repr)
def test_an_adapter_refuses_what_is_not_its_own_with_a_type_error(library, obj):
    need(library)
    assert ADAPTERS[library]
    for name in ADAPTERS[library]:
        adapter = registry.adapter(name)
        with pytest.raises(TypeError):
            adapter.extract(obj)
        if isinstance(adapter, registry.Events):
            with pytest.raises(TypeError):
                adapter.event_handle(obj)


def test_many_refusals_leave_a_process_that_ends_in_order():
    need("cuda")
    python(
        """
import cuda.core, streamkit as sk
for _ in range(200):
    try:
        sk.wrap(cuda.core.Stream.from_handle(123))
    except sk.errors.NoDeviceError:
        pass
"""
    )
