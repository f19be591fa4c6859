"""The main job on real hardware: its numbers are NumPy's, its stages on one queue."""

from __future__ import annotations

import pytest

from support.libraries import need

pytest.importorskip("numpy")


def test_the_demo_is_right_and_runs_on_one_queue():
    need("torch", "cupy", "warp")
    from streamkit._cli import demo  # the command prints no objects

    result = demo.run()
    assert result["ok"], result
    assert [stage["library"] for stage in result["stages"]] == ["torch", "cupy", "warp"]
    assert len({stage["queue"] for stage in result["stages"]}) == 1
    assert "cuda:0" in result["stream"]
    assert result["notes"] == []


@pytest.mark.parametrize("library", ["torch", "cupy", "warp"])
def test_each_library_can_do_it_alone(library):
    need(library)
    from streamkit._cli import demo  # the command prints no objects

    result = demo.run(libraries=(library,))
    assert result["ok"], result
    assert {stage["library"] for stage in result["stages"]} == {library}
