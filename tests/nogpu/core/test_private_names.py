"""A private name of a library that has gone: another way is taken, with the same result."""

from __future__ import annotations

import pytest

from support.libraries import need
from support.programs import python

pytestmark = pytest.mark.versions

GONE = """
import sys
import {library}

def delete(path):
    *owners, name = path.split(".")
    found = {library}
    for owner in owners:
        found = getattr(found, owner)
    assert hasattr(found, name), path  # else this version has it not: look for its new name
    value = getattr(found, name)
    delattr(found, name)
    return value

first, *_ = [delete(path) for path in {names!r}]
from streamkit.backends._{library} import adapter  # it chooses its ways as it is imported
"""


def without(library, *names, then):
    """Run a program in a Python whose library has lost these names before StreamKit looks."""
    need(library)
    return python(GONE.format(library=library, names=names) + then, options=("-W", "ignore"))


def test_torch_has_the_private_calls_that_are_tried_on_a_gpu():
    """What is done where one has gone or changed is in tests/gpu/core/test_scope.py."""
    torch = need("torch")
    from streamkit.backends._torch import adapter  # it imports torch

    if not torch.version.cuda:
        pytest.skip("this build has no CUDA")
    missing = [name for name in adapter._PRIVATE if not hasattr(torch._C, name)]
    assert missing == [], "look for the new names"


def test_torchs_memory_is_lent_where_its_holders_cannot_be_counted():
    then = """
tensor = torch.ones(3)
torch._C._has_Standard_Deleter = lambda _: True  # as of memory of a GPU
print(*adapter.storage_of(tensor)[1:])
delete("_C._has_Standard_Deleter")
print(adapter._own_storage(tensor), adapter.record_stream(tensor, None))
"""
    said = without("torch", "_C._storage_Use_Count", then=then).split()
    assert said == ["True", "None", "None", "False"]


def test_cupys_streams_are_known_without_their_private_base():
    then = """
from streamkit._queues import registry  # the public calls need a device

cupy.cuda.stream._BaseStream = first  # which CuPy's own functions use

class Handle:
    def __cuda_stream__(self):
        return 0, 64

class Mine(cupy.cuda.Stream):
    pass

for stream in (
    cupy.cuda.Stream.from_external(Handle()), Mine.from_external(Handle()), cupy.cuda.Stream.null
):
    queue, found = registry.extract(stream)
    print(found.name, queue.handle)
print(adapter.current_context)
"""
    lost = ("cuda.stream._BaseStream", "cuda.driver.ctxGetCurrent")  # the first is put back
    found = without("cupy", *lost, then=then).splitlines()
    assert found == ["cupy 64", "cupy 64", "cupy 0", "None"]


def test_cupys_older_class_may_go_too():
    then = """
try:
    adapter.extract(cupy)
except Exception as error:
    print(type(error).__name__)
"""
    assert without("cupy", "cuda.ExternalStream", then=then) == "UnsupportedStreamError\n"


def test_control_a_name_that_a_library_never_had_fails():
    need("cupy")
    with pytest.raises(AssertionError, match="AssertionError: never_there"):
        without("cupy", "never_there", then="")
