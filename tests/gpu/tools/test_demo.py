"""The main job on real hardware: its numbers are NumPy's, its stages on one queue."""

from __future__ import annotations

import pytest

from support.libraries import need

pytest.importorskip("numpy")


def test_the_demo_is_right_and_runs_on_one_queue():
    need("torch", "cupy", "warp")
    from streamkit._cli import demo  # the command prints no objects

    result = demo.run()
    assert result.ok
    assert {stage.library.lower() for stage in result.stages} >= {"torch", "cupy", "warp"}
    assert len({stage.queue for stage in result.stages}) == 1
    assert result.device == "cuda:0"
