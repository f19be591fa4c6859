"""What ``import streamkit`` does, and what it gives."""

from __future__ import annotations

from pathlib import Path

import pytest

import streamkit as sk
from streamkit.types import CudaStream, HostStream
from support.programs import ROOTS, python

pytestmark = [pytest.mark.portable, pytest.mark.quick]


def test_nothing_foreign_slow_or_of_later_use_is_imported_and_no_thread_is_started():
    """A slow one costs as much as all of StreamKit; who needs one imports it at its first use."""
    python("""
import sys, threading
before, threads = set(sys.modules), threading.enumerate()
import streamkit
assert threading.enumerate() == threads
new = set(sys.modules) - before
foreign = {name.partition(".")[0] for name in new} - {*sys.stdlib_module_names, "streamkit"}
assert not foreign, foreign
slow = {"asyncio", "concurrent", "ctypes", "dataclasses", "email", "importlib.metadata", "inspect",
        "json", "logging", "pathlib", "socket", "subprocess", "tempfile", "traceback", "urllib"}
assert not slow & new, slow & new
adapters = [name for name in new if name.startswith("streamkit.backends.")
            and (name.endswith("protocol") or name.count(".") > 2)]  # a row is the folder itself
assert not adapters, adapters
later = {"streamkit.processes", "streamkit.types", "streamkit.testing"}
assert not later & new, later & new
""")


def test_it_can_be_imported_at_the_end_of_the_interpreter():
    told = python("""
import atexit, threading

@atexit.register
def end():
    import streamkit as sk
    stream = sk.new_stream("cpu")
    stream.sync()
    print(stream.done)
""")
    assert told == "True\n"


def test_no_driver_library_is_loaded():
    try:
        Path("/proc/self/maps").read_bytes()
    except OSError:
        pytest.skip("this system has no /proc")
    python("""
import streamkit
with open("/proc/self/maps") as maps:
    assert "libcuda" not in maps.read()
""")


def test_making_and_using_a_host_stream_loads_no_driver_and_no_library():
    python(f"""
import sys
import streamkit as sk
s = sk.new_stream("cpu")
with s:
    s.record()
s.submit(int)
s.sync()
names = {{"numpy", "ctypes", "asyncio", "concurrent.futures", *{ROOTS}}}
loaded = {{*names, "streamkit._streams.then", "streamkit._queues.dispatcher"}} & set(sys.modules)
assert not loaded, loaded
""")


NAMES = (
    "Event Stream StreamKitError StreamLike assert_one_queue audit capture current_stream "
    "current_streams default_stream doctor follow from_handle graphed handoff is_available "
    "new_event new_stream races share use wrap wrap_event"
)
MODULES = ("errors", "processes", "protocols", "testing", "types")


def test_the_names_are_those_promised_and_are_listed_before_their_first_use():
    assert sk.__all__ == NAMES.split()
    python(f"""
import streamkit
assert set(dir(streamkit)) == {{*streamkit.__all__, *{MODULES}, "__version__"}}
assert "audit" not in vars(streamkit)
for name in {MODULES}:
    assert getattr(streamkit, name) is __import__(f"streamkit.{{name}}", fromlist=["*"])
""")


@pytest.mark.parametrize("home", ["errors", "processes", "testing", "types"])
def test_a_name_that_is_elsewhere_is_not_at_the_top_and_the_error_says_where(home):
    names = set(getattr(sk, home).__all__) - set(sk.__all__)
    assert len(names) >= 4
    for name in names:
        with pytest.raises(AttributeError, match=f": write 'streamkit.{home}.{name}' instead"):
            getattr(sk, name)


def test_from_handle_and_share_are_one_function_each():
    assert sk.Stream.from_handle is sk.from_handle
    assert sk.processes.share is sk.share


@pytest.mark.parametrize("kind", [CudaStream, HostStream])
def test_both_streams_have_the_same_public_names(kind):
    def public(kind):
        return {name for name in dir(kind) if not name.startswith("_")}

    wanted = {
        "handle", "device", "device_id", "id", "closed", "done", "record", "wait", "sync", "to",
        "close", "native", "name", "owned", "is_nonblocking", "priority", "is_default",
        "is_capturing", "context", "submit", "then", "from_handle", "keep",
        "dlpack_stream",
    }  # fmt: skip
    assert public(kind) == wanted
