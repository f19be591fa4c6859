"""A third party takes part: the toy plugin in tests/plugin, installed or put on the path."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from support.programs import LOOK, python

PROJECT = Path(__file__).parents[2] / "plugin"
START = f"{LOOK}\nfrom streamkit import protocols\n"


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    """The folders that must be on the path for the plugin to be installed: none in a lane."""
    if importlib.util.find_spec("toylib") is not None:
        return []
    target = tmp_path_factory.mktemp("plugin")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps"]
    done = subprocess.run(
        [*pip, "--target", str(target), str(PROJECT)], capture_output=True, text=True, check=False
    )
    if done.returncode:
        pytest.skip(f"the plugin is not installed here, and pip cannot: {done.stderr[-300:]}")
    return [target]


@pytest.fixture
def program(path):
    """Run a program that has the plugin installed."""

    def run(code, *, more=(), **options):
        return python(START + code, path=[*path, *more], loaded=("streamkit",), **options)

    return run


def test_its_stream_is_recognised_and_read_and_so_is_that_of_a_subclass(program):
    program("""
import toylib
stream = toylib.Stream(64)
queue, adapter = registry.extract(stream)
assert adapter.name == "toylib"
assert (queue.handle, queue.device) == (64, None)
assert queue.owner is stream
class Mine(toylib.Stream):
    pass
queue, adapter = registry.extract(Mine(64))
assert (adapter.name, queue.handle) == ("toylib", 64)
""")


def test_its_stream_goes_all_the_way_to_the_driver(program, no_driver):
    program("""
import streamkit_toylib, toylib
asked = []
extract = streamkit_toylib.extract
streamkit_toylib.extract = lambda obj: asked.append(obj) or extract(obj)
stream = toylib.Stream(64)
raised(sk.errors.NoDeviceError, sk.wrap, stream)
assert asked == [stream]
""")


def test_what_is_not_its_stream_is_refused(program):
    program("""
import toylib
for obj in (toylib.Array(), toylib.Stream, toylib):
    raised(sk.errors.UnsupportedStreamError, sk.wrap, obj)
""")


def test_another_class_of_the_library_may_speak_the_protocol(program):
    program("""
import toylib
class Speaks(toylib.Array):
    def __cuda_stream__(self):
        return 0, 64
queue, adapter = registry.extract(Speaks())
assert (adapter.name, queue.handle) == ("protocol", 64)
""")


def test_neither_it_nor_its_library_is_imported_before_it_is_needed(program):
    program("""
class Nothing:
    pass
for obj in (Nothing(), None, 5):
    raised(sk.errors.UnsupportedStreamError, sk.wrap, obj)
assert loaded_libraries.libraries() == ()
assert not {"toylib", "streamkit_toylib", "oldtoylib", "streamkit_oldtoylib"} & set(sys.modules)
""")


def test_it_is_found_by_name_and_builds_the_librarys_own_stream_which_keeps_the_queue(program):
    program("""
import gc, weakref
assert "toylib" in registry.known()
adapter = registry.adapter("toylib")
assert adapter.name == "toylib"
assert isinstance(adapter, protocols.CurrentStream)
assert not isinstance(adapter, protocols.Events)
import toylib
queue = protocols.Queue(64, 0)
stream = adapter.borrow(queue)
assert type(stream) is toylib.Stream
assert stream.number == 64
alive = weakref.ref(queue)
del queue
gc.collect()
assert alive() is not None
""")


def test_its_current_stream_is_moved_and_restored(program):
    program("""
import toylib
adapter = registry.adapter("toylib")
before, mine = toylib.current_stream(), toylib.Stream(64)
binding = adapter.bind(mine)
token = binding.save()
assert not binding.is_current()
binding.enter(token)
assert adapter.current(0) is toylib.current_stream() is mine
assert binding.is_current()
binding.leave(token)
assert toylib.current_stream() is before
binding.set_current()
assert toylib.current_stream() is mine
""")


def test_a_scope_on_the_host_leaves_it_alone(program):
    program("""
import toylib
mine = toylib.Stream(64)
toylib.set_current_stream(mine)
with sk.use(sk.new_stream("cpu"), libraries=["toylib"], ordered=True):
    assert toylib.current_stream() is mine
assert toylib.current_stream() is mine
""")


def test_a_plugin_for_another_contract_is_named_with_both_versions_and_disturbs_no_other(program):
    program("""
import oldtoylib, toylib
for call, what in ((registry.adapter, "oldtoylib"), (sk.wrap, oldtoylib.Stream())):
    error = raised(sk.StreamKitError, call, what)
    for part in ("'oldtoylib'", "streamkit_oldtoylib", "99", "1", "Install"):
        assert part in str(error), (part, error)
queue, adapter = registry.extract(toylib.Stream(64))
assert adapter.name == "toylib"
assert registry.adapter("toylib").api == 1
""")


def test_a_plugin_whose_library_is_missing_says_so(program):
    program(
        """
error = raised(sk.errors.BackendNotInstalledError, registry.adapter, "toylib")
assert "'toylib'" in str(error) and "blocked by the test" in str(error), error
assert error.name == "toylib"
""",
        blocked=["toylib"],
    )


def test_a_half_imported_library_does_not_break_recognition(program):
    program("""
import types
sys.modules["toylib"] = types.ModuleType("toylib")
stream = type("Stream", (), {"__module__": "toylib", "number": 64})()
for obj in (stream, object(), 5):
    raised(TypeError, sk.wrap, obj)
""")


def test_a_library_whose_module_no_finder_found_takes_part(program):
    program("""
import toylib
toylib.__spec__ = None  # as in a module that a program has made itself
assert "toylib" in registry.loaded()
""")


@pytest.fixture
def broken(program, tmp_path):
    """Run a program that has a plugin of this source installed, and its library imported."""

    def run(adapter, code):
        (tmp_path / "broken_adapter.py").write_text(adapter)
        (tmp_path / "broken.py").write_text("class Stream: pass\nStream.read = Stream()\n")
        about = tmp_path / "broken-1.dist-info"
        about.mkdir()
        (about / "METADATA").write_text("Metadata-Version: 2.1\nName: broken\nVersion: 1\n")
        (about / "entry_points.txt").write_text("[streamkit.backends]\nbroken = broken_adapter\n")
        program(code, more=[tmp_path])

    return run


ADAPTER = "name, api = 'broken', 1\ndef borrow(queue): pass\n"
READS = f"{ADAPTER}def extract(obj): return obj.read\n"
WRONG = {  # an adapter, and the words of the error
    "no adapter": (ADAPTER, ("extract", "borrow")),
    "fails at its import": ("raise RuntimeError('boom')\n", ("RuntimeError('boom')", "uninstall")),
    "ends the program": ("import sys\nsys.exit(3)\n", ("SystemExit(3)", "uninstall")),
    "answers nothing": (
        f"{READS}def __getattr__(name): raise RuntimeError(name)\n",
        ("RuntimeError(", "uninstall"),
    ),
}


@pytest.mark.parametrize("loaded", ["before", "inside"])
@pytest.mark.parametrize("what", WRONG)
def test_a_plugin_that_is_wrong_is_named_and_disturbs_nothing_else(broken, what, loaded):
    adapter, words = WRONG[what]
    broken(
        adapter,
        f"""
import warnings
stream, ran = sk.new_stream("cpu"), []
if {loaded!r} == "before":
    import broken
with warnings.catch_warnings(record=True) as warned, sk.races() as report:
    warnings.simplefilter("always")
    stream.submit(ran.append, 1)
    import broken
    stream.submit(ran.append, broken.Stream())
    for _ in range(2):  # a scope asks so
        assert loaded_libraries.libraries() == ()
    sk.doctor()
    stream.sync()
assert ["'broken'" in str(one.message) for one in warned] == [True], warned
assert (len(ran), report.coverage.total) == (2, 2)
for call, given in ((sk.wrap, broken.Stream()), (registry.adapter, "broken")):
    error = raised(sk.errors.BackendNotInstalledError, call, given)
    for part in ("'broken'", "broken_adapter", *{words}):
        assert part in str(error), (part, error)
""",
    )


def test_a_plugin_that_is_needed_while_its_library_is_imported_is_used_later(broken):
    broken(
        f"import broken\nbroken.late\n{READS}",
        """
import broken, warnings
warnings.simplefilter("error")
broken.__spec__._initializing = True
assert [*registry.candidates(broken.Stream)] == []
broken.late, broken.__spec__._initializing = 1, False
assert [one.name for one in registry.candidates(broken.Stream)] == ["broken"]
""",
    )


@pytest.mark.parametrize("speaks", [False, True], ids=["alone", "beside the protocol"])
@pytest.mark.parametrize("read", ["None", "64", "iter([])", *map("protocols.Queue({})".format, (
    "-1", "2**64", "None", "'5'", "64.0", "True",
))])  # fmt: skip
def test_what_a_plugin_reads_is_a_queue_with_the_handle_of_a_stream(broken, read, speaks):
    """A handle of -1 would be taken for the legacy default stream."""
    broken(
        READS,
        f"""
import broken
stream = broken.Stream()
if {speaks}:
    broken.Stream.__cuda_stream__ = lambda self: (0, 64)
stream.read = {read}
error = raised(TypeError, sk.wrap, stream)
for part in ("'broken'", "Queue", "2**64", "author"):
    assert part in str(error), (part, error)
""",
    )
