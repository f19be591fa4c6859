"""The pytest plugin where there is a device."""

from __future__ import annotations

pytest_plugins = ["pytester"]


def test_a_marked_test_runs_and_the_stream_is_on_the_device_unless_there_are_seeds(
    pytester, monkeypatch
):
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)
    pytester.makepyfile("""
        import pytest
        import streamkit

        streams = []

        @pytest.mark.streamkit_gpu
        def test_one(streamkit_stream):
            assert isinstance(streamkit_stream, streamkit.CudaStream)
            assert (streamkit_stream.device, streamkit_stream.name) == ("cuda:0", "test_one")
            streams.append(streamkit_stream)

        def test_two():
            assert streams[0].closed

        def test_three(streamkit_stream, streamkit_seed):
            assert isinstance(streamkit_stream, streamkit.HostStream)
        """)
    result = pytester.runpytest_inprocess(
        "-p", "streamkit._tools.pytest_plugin", "--streamkit-seeds=2", "--strict-markers"
    )
    result.assert_outcomes(passed=4)
