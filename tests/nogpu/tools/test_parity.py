"""The parity tables have a row for each public member of the real classes, and none of another."""

from __future__ import annotations

import ast
import inspect
import textwrap
from pathlib import Path

import pytest

from support.libraries import lane, need
from support.site import extension

pytestmark = pytest.mark.versions

parity = extension("parity")

# what every class has, or what has to do with how it is built; not for users
MACHINERY = {
    *("__dict__", "__module__", "__weakref__", "__doc__", "__annotations__", "__del__", "__new__"),
    *("__repr__", "__pyx_vtable__", "__firstlineno__", "__static_attributes__"),
}
OWN = {"__init__"}  # inherited from object or not: how one is made


def is_public(name):
    return not name.startswith("_") or name.endswith("_")


def members(kind):
    """The public members of a class, and the special methods that it defines itself."""
    return OWN | {
        name
        for name in dir(kind)
        if is_public(name)
        and name not in MACHINERY
        and getattr(kind, name, None) is not getattr(object, name, None)
        and name not in ("__init_subclass__", "__subclasshook__", "__ge__", "__gt__", "__le__")
    }


def listed(name):
    table = parity.read(name)
    own = {member for row in table.rows for member in row.members}
    return own if table.inherits is None else own | listed(table.inherits)


def attributes_set_by(kind):
    """What a class written in Python stores on its instances."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(kind)))
    return {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and isinstance(node.ctx, ast.Store)
        and ast.unparse(node.value) == "self"
        and is_public(node.attr)
    }


def same(found, rows):
    """The newest version has exactly the members of the rows; an older one may lack some."""
    return found <= rows if "oldest" in lane() else found == rows


def declared(stub, name):
    """The members that a class has in a stub, for a build that lacks the class."""
    node = next(
        node
        for node in ast.walk(ast.parse(stub))
        if isinstance(node, ast.ClassDef) and node.name == name
    )
    return {
        member
        for item in node.body
        if is_public(member := item.target.id if isinstance(item, ast.AnnAssign) else item.name)
    } - {"__new__"}


def torch_members(torch, kind):
    """torch's build without CUDA has an empty base in the place of the real one: read its stub."""
    stub = Path(torch.__file__).with_name("_C") / "__init__.pyi"
    in_stub = declared(stub.read_text(encoding="utf-8"), "_CudaStreamBase")
    return members(kind) | members(torch.Stream) | in_stub


def test_torch():
    torch = need("torch")
    assert same(torch_members(torch, torch.cuda.Stream), listed("torch-stream"))


def test_torch_external():
    torch = need("torch")
    assert same(torch_members(torch, torch.cuda.ExternalStream), listed("torch-external"))


def test_cuda_core():
    core = need("cuda")
    assert same(members(core.Stream), listed("cuda-core"))


def test_cupy():
    cupy = need("cupy")

    class Foreign:
        def __cuda_stream__(self):
            return 0, 64

    made = cupy.cuda.Stream.from_external(Foreign())
    stored = {name for name in vars(made) if is_public(name)}
    assert stored == {"ptr", "device_id"}
    assert same(members(cupy.cuda.Stream) | stored, listed("cupy"))


def test_warp():
    wp = need("warp")
    stored = attributes_set_by(wp.Stream)
    assert "cuda_stream" in stored
    assert same(members(wp.Stream) | stored, listed("warp"))
