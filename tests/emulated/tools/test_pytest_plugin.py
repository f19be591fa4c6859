"""The pytest plugin where there is a device."""

from __future__ import annotations

import sys

from support.emulated.captures import nothing_left

__all__ = ["nothing_left"]  # the fixture
pytest_plugins = ["pytester"]


def test_a_marked_test_runs_and_the_stream_is_on_the_device_unless_there_are_seeds(
    pytester, monkeypatch
):
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)
    pytester.makepyfile("""
        import pytest
        import streamkit
        import streamkit.types

        streams = []

        @pytest.mark.streamkit_gpu
        def test_one(streamkit_stream):
            assert isinstance(streamkit_stream, streamkit.types.CudaStream)
            assert (streamkit_stream.device, streamkit_stream.name) == ("cuda:0", "test_one")
            streams.append(streamkit_stream)

        def test_two():
            assert streams[0].closed

        def test_three(streamkit_stream, streamkit_seed):
            assert isinstance(streamkit_stream, streamkit.types.HostStream)
            streamkit_stream.submit(int)  # else the seeds have nothing to reorder
        """)
    result = pytester.runpytest_inprocess(
        "-p", "streamkit.testing.pytest_plugin", "--streamkit-seeds=2", "--strict-markers"
    )
    result.assert_outcomes(passed=4)


def test_a_test_with_the_marker_follows_or_fails(pytester, monkeypatch, nothing_left):
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)
    for name in ("cupti", "cupti.cupti"):
        monkeypatch.setitem(sys.modules, name, None)
    pytester.makepyfile("""
        import pytest
        import streamkit
        import streamkit.types
        from cuda.bindings import driver

        @pytest.fixture
        def memory():
            return driver.cuMemAlloc(4)[1]

        def fill(memory, stream):
            code, = driver.cuMemsetD32Async(memory, 0, 1, int(stream))
            assert not code

        calls = []

        @pytest.mark.streamkit_follows
        @pytest.mark.parametrize("number", [1, 2])
        def test_right(memory, number, unused=0):
            calls.append(number)
            fill(memory, streamkit.current_stream("warp"))

        @pytest.mark.streamkit_follows(library="warp")
        class TestOfAClass:
            def test_right_too(self, memory):
                fill(memory, streamkit.current_stream("warp"))

        @pytest.mark.streamkit_follows
        def test_wrong(memory):
            fill(memory, 1)

        @pytest.mark.streamkit_follows(library="numba")
        def test_of_no_such_library():
            pass

        def test_each_ran_once_to_warm_up_and_once_held():
            assert calls == [1, 1, 2, 2]
        """)
    result = pytester.runpytest_inprocess(
        "-p", "streamkit.testing.pytest_plugin", "--strict-markers", "-p", "no:cacheprovider"
    )
    result.assert_outcomes(passed=4, failed=1, errors=1)
    result.stdout.fnmatch_lines(
        [
            "*UnsupportedStreamError: *",
            "*AssertionError: test_wrong does not follow the stream current in the libraries: *",
        ]
    )
