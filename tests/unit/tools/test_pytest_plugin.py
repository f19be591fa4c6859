"""The pytest plugin, in a pytest of its own."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, distribution

import numpy  # noqa: F401, ICN001 - a pytest inside this one cannot import it a second time
import pytest

from streamkit import testing
from streamkit._cuda import driver  # there is no device
from streamkit.diagnostics.races.host_recorder import RaceRecorder  # made to fail here
from support.programs import python

pytest_plugins = ["pytester"]


@pytest.fixture
def run(pytester, monkeypatch):
    """Run pytest with this plugin alone on a test file, as if there was no GPU."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)
    monkeypatch.setattr(driver, "is_present", lambda: False)

    def run(tests, *options):
        pytester.makepyfile(tests)
        return pytester.runpytest_inprocess("-p", "streamkit.testing.pytest_plugin", *options)

    return run


def test_pytest_finds_it_where_streamkit_is_installed():
    try:
        points = distribution("streamkit-cuda").entry_points
    except PackageNotFoundError:
        pytest.skip("StreamKit runs from a checkout that is not installed")
    (point,) = points.select(group="pytest11")
    assert (point.name, point.value) == ("streamkit", "streamkit.testing.pytest_plugin")


def test_it_imports_nothing_but_pytest_and_the_standard_library():
    python("""
import sys
import pytest
before = set(sys.modules)
import streamkit.testing.pytest_plugin  # pytest loads it by its name
roots = {name.partition(".")[0] for name in set(sys.modules) - before}
assert not roots - set(sys.stdlib_module_names) - {"streamkit"}, roots
assert not {"streamkit.testing._scheduler", "streamkit.diagnostics"} & set(sys.modules)
""")


# -- the fixture streamkit_stream --------------------------------------------------------------


def test_a_stream_is_fresh_and_named_and_closed_afterwards_when_its_work_has_run(run):
    result = run("""
        import streamkit

        streams, seen = [], []

        def test_one(streamkit_stream):
            stream = streamkit_stream
            assert isinstance(stream, streamkit.Stream)
            assert (stream.device, stream.name, stream.closed) == ("cpu", "test_one", False)
            stream.submit(seen.append, 1)
            streams.append(stream)

        def test_two(streamkit_stream):
            assert streamkit_stream is not streams[0]
            assert streams[0].closed
            assert seen == [1]
        """)
    result.assert_outcomes(passed=2)


def test_an_error_of_the_work_is_one_of_the_test(run):
    result = run("""
        streams = []

        def fail():
            raise RuntimeError("of the work")

        def test_one(streamkit_stream):
            streams.append(streamkit_stream)
            streamkit_stream.submit(fail)

        def test_two():
            assert streams[0].closed
        """)
    result.assert_outcomes(passed=2, errors=1)
    result.stdout.fnmatch_lines(["*ERROR at teardown of test_one*", "*RuntimeError: of the work"])
    result.stdout.no_fnmatch_line("*Unraisable*")  # as of an error that nobody waited for
    assert result.ret == 1


def test_a_test_may_close_the_stream_itself(run):
    run("def test_one(streamkit_stream): streamkit_stream.close()").assert_outcomes(passed=1)


# -- seeds ------------------------------------------------------------------------------------

MISSING_WAIT = """
    import streamkit

    def test_order(streamkit_stream, streamkit_seed):
        stream, other, seen = streamkit_stream, streamkit.new_stream("cpu"), []
        stream.submit(seen.append, 1)
        {wait}
        other.submit(seen.append, 2)
        stream.sync()
        other.sync()
        assert seen == [1, 2]
    """


@pytest.mark.parametrize("seeds", [range(10), (0, 1)])
def test_a_missing_wait_fails_under_half_of_the_seeds_all_or_those_to_be_repeated(run, seeds):
    options = [f"--streamkit-seed={seed}" for seed in seeds if len(seeds) == 2]
    result = run(MISSING_WAIT.format(wait="pass"), *options)
    result.assert_outcomes(failed=len(seeds) // 2, passed=len(seeds) // 2)
    result.stdout.fnmatch_lines(["FAILED *::test_order?seed0?*"])


def test_the_stream_of_a_test_with_seeds_is_the_hosts_on_a_gpu_machine_too(run, monkeypatch):
    monkeypatch.setattr(driver, "is_present", lambda: pytest.fail("CUDA was asked for"))
    result = run(MISSING_WAIT.format(wait="other.wait(stream)"), "--streamkit-seeds", "50")
    result.assert_outcomes(passed=50)  # because of the wait


def test_work_that_is_left_at_the_end_runs_in_the_order_of_the_seed(run):
    result = run("""
        import streamkit

        def test_one(streamkit_seed):
            streamkit.new_stream("cpu").submit(lambda: 1 / 0)
        """)
    result.assert_outcomes(passed=10, errors=10)
    result.stdout.fnmatch_lines(["*ZeroDivisionError*", "*adversarial(0)*"])


# -- races ------------------------------------------------------------------------------------

RACES = """
    import pytest
    import numpy as np
    import streamkit

    def run(*, wait):
        a, b = streamkit.new_stream("cpu"), streamkit.new_stream("cpu")
        x, y = np.zeros(3), np.zeros(3)
        a.submit(np.copyto, x, 7)
        if wait:
            b.wait(a)
        b.submit(np.copyto, y, x)

    def test_with(): run(wait=True)

    def test_without(): run(wait=False)

    def test_with_seeds(streamkit_seed): run(wait=False)

    @pytest.mark.streamkit_no_races
    def test_on_purpose(): run(wait=False)

    def test_that_fails(): raise KeyError("its own")

    @pytest.mark.skip
    def test_skipped(): run(wait=False)
    """


def test_a_missing_wait_fails_without_seeds_where_races_are_looked_for(run):
    result = run(RACES, "--streamkit-races", "--streamkit-seeds=2", "--strict-markers")
    result.assert_outcomes(passed=2, failed=4, skipped=1)
    result.stdout.fnmatch_lines(
        [
            "*RaceError: nothing orders work on the same memory: 1 race found.",
            "*race on x (float64, shape (3,), 24 bytes): b reads it while a writes it",
            "*to run NumPy's copyto of line 8 first, add b.wait(a) before line 11",
            "*KeyError: 'its own'",
        ]
    )


@pytest.mark.parametrize(
    ("ends", "outcome"),
    [
        ("pytest.fail('own')", "failed"),
        ("pytest.raises(KeyError, int)", "failed"),
        ("raise SystemExit(3)", "failed"),
        ("raise TakesNoNotes", "failed"),
        ("pytest.skip('own')", "skipped"),
        ("pytest.xfail('own')", "xfailed"),
    ],
)
@pytest.mark.parametrize("kind", ["function", "unittest"])
def test_however_a_test_fails_it_names_its_races(run, kind, ends, outcome):
    """Those of unittest, and what pytest itself raises, pass no ``except Exception``."""
    program = """
    import unittest
    import numpy as np
    import pytest
    import streamkit as sk

    class TakesNoNotes(Exception):
        def add_note(self, note):
            raise TypeError

    def race():
        a, b, x = sk.new_stream("cpu"), sk.new_stream("cpu"), np.zeros(3)
        a.submit(np.copyto, x, 7)
        b.submit(np.add, x, 1, x)
        {ends}
    """
    tests = {
        "function": """
    def test_it():
        race()
    """,
        "unittest": """
    class TestIt(unittest.TestCase):
        def test_it(self):
            race()
    """,
    }
    result = run(program.format(ends=ends) + tests[kind], "--streamkit-races")
    result.assert_outcomes(**{outcome: 1})
    names = "--streamkit-races: 1 race found." in result.stdout.str()
    assert names == (outcome == "failed" and "TakesNoNotes" not in ends)


def test_an_analysis_that_fails_raises_its_own_error_after_that_of_the_test(run, monkeypatch):
    monkeypatch.setattr(RaceRecorder, "given_as", lambda *_: {}["of the analysis"])
    tests = """
        import pytest

        def test_one(): pass
        def test_two(): raise KeyError("its own")
        def test_three(): pytest.skip("its own")
        """
    result = run(tests, "--streamkit-races")
    result.assert_outcomes(failed=2, skipped=1)
    result.stdout.fnmatch_lines(
        ["E  *KeyError: 'of the analysis'", "E  *KeyError: 'its own'", "E  *'of the analysis'"]
    )
    result.stdout.no_fnmatch_line("*ScopeError*")  # of a report that was not made


def test_races_are_looked_for_only_if_asked(run):
    result = run(RACES, "--streamkit-seeds=2")
    result.assert_outcomes(passed=5, failed=1, skipped=1)
    result.stdout.no_fnmatch_line("*--streamkit-races*")


OPEN = """
    import numpy as np
    import pytest
    import streamkit as sk

    def race():
        a, b, x = sk.new_stream("cpu"), sk.new_stream("cpu"), np.zeros(3)
        fill = lambda x: x.fill(7)
        fill.__qualname__ = "race\\x1b"
        a.submit(fill, x)
        b.submit(np.add, x, 1, x)
    @pytest.mark.parametrize("number", range(2))
    def test_possible(number): race()
    def test_fails():
        race()
        raise KeyError("its own")
    def test_of_python_alone(): pass
    def test_parts(subtests):  # each is reported with the name of the test
        with subtests.test(): race()
    def test_skipped(): pytest.skip()
    @pytest.mark.streamkit_no_races
    def test_on_purpose(): race()
    """

TWICE = """
    from _pytest import runner

    def pytest_runtest_protocol(item):
        for _ in range(2): runner.runtestprotocol(item)
        return True
    """


@pytest.mark.parametrize(
    ("plugin", "name"), [((), "\\x1b"), (("xdist", "-n1"), "\\udcff"), (("twice",), "\\n")]
)
def test_a_run_that_passes_says_at_its_end_what_it_does_not_know(run, pytester, plugin, name):
    if "xdist" in plugin:
        pytest.importorskip("xdist")
    pytester.makepyfile(twice=TWICE)
    pytester.syspathinsert()
    tests = OPEN.replace("\\x1b", name)
    result = run(tests, "-v", "--streamkit-races", *["-p"][: len(plugin)], *plugin)
    times = 1 + ("twice" in plugin)
    result.assert_outcomes(passed=5 * times, failed=times, skipped=times)
    said = "6 tests: 4 tests with possible races, 4 operations not understood; not known: race"
    result.stdout.fnmatch_lines([f"*at {said}{name}, *"])


def test_possible_races_fail_if_asked(run):
    result = run(OPEN, "--streamkit-races=possible", "test_possible_races_fail_if_asked.py")
    result.assert_outcomes(passed=2, failed=4, skipped=1)
    result.stdout.fnmatch_lines(["*RaceError: *: 1 possible race found.", "*KeyError: 'its own'"])
    assert run(OPEN, "--streamkit-races=certain").ret == pytest.ExitCode.USAGE_ERROR


@pytest.mark.parametrize(
    ("body", "outcome"),
    [("s.submit(len, 'ab')", "passed"), ("with s: pass", "failed"), ("pytest.skip()", "skipped")],
)
def test_seeds_that_have_nothing_to_reorder_are_refused(run, body, outcome):
    test = f"""
        import pytest

        def test_it(streamkit_seed, streamkit_stream):
            s = streamkit_stream
            {body}
        """
    result = run(test, "--streamkit-seeds=2")
    result.assert_outcomes(**{outcome: 2})
    told = "ValueError: test_it[seed1] gave host streams no work to reorder" in result.stdout.str()
    assert told is (outcome == "failed")


# -- the markers that need a device -----------------------------------------------------------

MARKED = """
    import pytest

    @pytest.mark.{marker}
    def test_marked():
        pass

    def test_two():
        pass

    def test_three():
        pass
    """


@pytest.mark.parametrize("marker", ["streamkit_gpu", "streamkit_follows(library='warp')"])
def test_a_gpu_test_is_skipped_without_a_device(run, marker):
    result = run(MARKED.format(marker=marker), "-v", "-rs", "--strict-markers")
    result.assert_outcomes(passed=2, skipped=1)
    reason = "needs a CUDA device, and this machine has none"
    result.stdout.fnmatch_lines(["*::test_marked SKIPPED*", f"SKIPPED *: {reason}"])


def test_a_gpu_test_runs_with_a_device(run, monkeypatch):
    asked = []
    monkeypatch.setattr(driver, "is_present", lambda: asked.append("driver") or True)
    run(MARKED.format(marker="streamkit_gpu"), "--strict-markers").assert_outcomes(passed=3)
    assert asked == ["driver"]  # for the marked test, and no other


@pytest.mark.parametrize("arguments", ["'warp'", "library='warp'", ""])
def test_the_library_to_follow_is_taken_with_and_without_its_name(run, monkeypatch, arguments):
    asked = []

    def assert_follows(fn, *, library):
        asked.append(library)
        fn()

    monkeypatch.setattr(driver, "is_present", lambda: True)
    monkeypatch.setattr(testing, "assert_follows", assert_follows)
    result = run(MARKED.format(marker=f"streamkit_follows({arguments})"), "--strict-markers")
    result.assert_outcomes(passed=3)
    assert asked == ["warp" if arguments else None]


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ("'pytorch'", "*streamkit_follows: *no adapter for 'pytorch': write 'torch'*"),
        ("'torch', 'warp'", "*streamkit_follows: *takes from 0 to 1 positional arguments*"),
        ("libary='torch'", "*streamkit_follows: *unexpected keyword argument 'libary'*"),
        ("'cuda.core'", "*streamkit_follows: *cuda.core has no current stream*"),
    ],
)
def test_a_mistake_in_the_marker_is_no_skip(run, arguments, reason):
    result = run(MARKED.format(marker=f"streamkit_follows({arguments})"))
    result.assert_outcomes(passed=2, errors=1)
    result.stdout.fnmatch_lines([reason])
    assert "another exception" not in result.stdout.str()


FOLLOWS = """
    import unittest

    import pytest

    import streamkit as sk
    from streamkit.testing import assert_follows

    def test_one():
        assert_follows(len, "ab")

    class TestTwo(unittest.TestCase):
        def test_two(self):
            assert_follows(len, "ab")

    def test_three():
        with pytest.raises(sk.errors.NoDeviceError, match="no CUDA device"):
            assert_follows(len, "ab")

    def test_four():
        with pytest.raises(sk.errors.UnsupportedStreamError):
            assert_follows(len, "ab", library="pytorch")
    """


def test_without_a_device_assert_follows_skips_its_test_and_says_why(run, no_driver):
    result = run(FOLLOWS, "-rs")
    result.assert_outcomes(passed=2, skipped=2)
    result.stdout.fnmatch_lines(["SKIPPED *assert_follows needs a CUDA device: no CUDA device*"])


@pytest.mark.parametrize("count", ["0", "-1"])
def test_no_seed_at_all_is_refused(run, count):
    result = run(RACES, f"--streamkit-seeds={count}")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*--streamkit-seeds: *would run no test with streamkit_seed*"])


def test_a_number_of_seeds_that_is_none_is_refused_in_the_users_words(run):
    result = run(RACES, "--streamkit-seeds=many")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*argument --streamkit-seeds: 'many' is not a number of seeds"])


# -- what is not StreamKit's ------------------------------------------------------------------

FOREIGN_PLUGIN = """
    import pytest

    @pytest.fixture
    def stream():
        return "theirs"

    def pytest_configure(config):
        config.addinivalue_line("markers", "gpu: theirs")

    def pytest_runtest_setup(item):
        marker = item.get_closest_marker("gpu")
        if marker is not None and marker.args == ("absent",):
            pytest.skip("their rule")
    """
FOREIGN_TESTS = """
    import pytest

    @pytest.mark.gpu
    def test_of_a_gpu(stream):
        assert stream == "theirs"

    @pytest.mark.gpu("absent")
    def test_of_another_gpu():
        raise AssertionError

    @pytest.fixture
    def own_stream(stream):
        return "own"

    def test_own(own_stream, stream):
        assert (own_stream, stream) == ("own", "theirs")
    """


@pytest.mark.parametrize("order", [("foreign", "ours"), ("ours", "foreign")])
def test_a_mark_and_a_fixture_of_another_plugin_are_left_alone(pytester, run, order):
    pytester.makepyfile(foreign=FOREIGN_PLUGIN)
    pytester.syspathinsert()
    names = {"foreign": "foreign", "ours": "streamkit.testing.pytest_plugin"}
    options = [option for which in order for option in ("-p", names[which])]
    pytester.makepyfile(FOREIGN_TESTS)
    result = pytester.runpytest_inprocess(*options, "-v", "-rs", "--strict-markers")
    result.assert_outcomes(passed=2, skipped=1)
    result.stdout.fnmatch_lines(["*::test_of_another_gpu SKIPPED*", "SKIPPED *: their rule"])


def test_all_that_it_offers_has_streamkits_name(run, pytester):
    pytester.makepyfile("def test_one(stream): pass")
    with_it = ["-p", "streamkit.testing.pytest_plugin"]
    shown = {}
    for question in ("--markers", "--fixtures", "--help"):
        found = [
            set(pytester.runpytest_inprocess(*options, question).stdout.lines)
            for options in ([], with_it)
        ]
        shown[question] = found[1] - found[0]
    markers = [line for line in shown["--markers"] if line.startswith("@pytest.mark.")]
    assert {line.partition(":")[0] for line in markers} == {
        "@pytest.mark.streamkit_follows(library=None)",
        "@pytest.mark.streamkit_gpu",
        "@pytest.mark.streamkit_no_races",
    }
    fixtures = {line.partition(" ")[0] for line in shown["--fixtures"] if " -- " in line}
    assert fixtures == {"streamkit_seed", "streamkit_stream"}
    options = {
        line.partition("=")[0].split()[0]
        for line in shown["--help"]
        if line.startswith("  --streamkit")
    }
    assert options == {"--streamkit-races", "--streamkit-seed", "--streamkit-seeds"}
    result = pytester.runpytest_inprocess(*with_it)
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*fixture 'stream' not found*"])


def test_the_marker_gives_way_to_a_projects_own_rule(run, pytester):
    pytester.makeconftest("""
        import pytest

        def pytest_collection_modifyitems(items):
            for item in items:
                item.add_marker("streamkit_gpu")
                item.add_marker(pytest.mark.skip(reason="our rule"))
        """)
    result = run(MARKED.format(marker="streamkit_gpu"), "-rs", "--strict-markers")
    result.assert_outcomes(skipped=3)
    result.stdout.fnmatch_lines(["*our rule*"])
    result.stdout.no_fnmatch_line("*needs a CUDA device*")
