"""What ``import streamkit`` does, and what it gives."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

import streamkit as sk
from streamkit import processes
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


def test_all_lists_the_names_in_their_order():
    """Which they are, and that each is documented, is in ``tests/unit/tools/test_reference.py``."""
    assert sk.__all__ == sorted(sk.__all__)
    assert len(sk.__all__) <= 37


def test_what_is_loaded_at_first_use_is_listed_before():
    python("""
import streamkit
assert set(dir(streamkit)) == {*streamkit.__all__, "__version__"}
assert "audit" not in vars(streamkit)
""")


def test_every_public_name_exists():
    assert sk.__all__
    assert [name for name in sk.__all__ if not hasattr(sk, name)] == []


ELSEWHERE = {
    "processes": ["ArrayToken", "EventToken", "Lease", "open_event", "token_from_bytes"],
    "testing": ["accesses", "adversarial", "assert_follows", "for_seeds"],
    "types": [
        "CudaEvent", "CudaGraph", "CudaStream", "GraphedFunction", "HostEvent", "HostStream",
    ],
}  # fmt: skip


@pytest.mark.parametrize(
    ("home", "name"), [(home, one) for home in ELSEWHERE for one in ELSEWHERE[home]]
)
def test_a_name_that_is_elsewhere_is_not_at_the_top_and_the_error_says_where(home, name):
    assert name in importlib.import_module(f"streamkit.{home}").__all__
    with pytest.raises(AttributeError) as raised:
        getattr(sk, name)
    home = f"streamkit.{home}"
    assert str(raised.value) == f"streamkit.{name} is in {home}: write 'from {home} import {name}'."


def test_share_is_also_beside_what_it_returns():
    assert processes.share is sk.share
    assert set(processes.__all__) == {*ELSEWHERE["processes"], "share"}


def test_from_handle_is_one_function():
    assert sk.Stream.from_handle is sk.from_handle


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
