"""A private name of a library that has gone, where streams exist: slower, and nothing else.

Each is taken from the real library as far as that itself goes on without it.
"""

from __future__ import annotations

import ctypes
import gc
import runpy
import sys
import weakref

import pytest

import streamkit as sk


@pytest.fixture
def state(warp, monkeypatch):
    """Warp's current streams for StreamKit, chosen anew: after the test as before."""
    from streamkit.backends._warp import current_stream  # its roads are chosen there

    sk.new_stream().to("warp")
    current_stream._native.cache_clear()
    yield current_stream
    monkeypatch.undo()
    current_stream._native.cache_clear()
    assert current_stream._native() is not None


def slow_scopes():
    return [one for one in sk.doctor().findings if one.code == "slow-scopes"]


def check_scopes(warp, warp_state):
    """Work goes to the scope's stream, in Python and natively, and then where it went before."""
    before, stream = warp_state(), sk.new_stream(1)
    with stream:
        streams, native, default, _ = warp_state()
        assert (streams[1].cuda_stream, native[1], default) == (stream.handle,) * 2 + ("cuda:1",)
        assert sk.current_stream("warp", device=1) == stream
    assert warp_state() == before


def test_control_a_known_warp_is_no_finding(warp, warp_state, state):
    check_scopes(warp, warp_state)
    assert state._native() is not None
    assert slow_scopes() == []


def python_of_warp(stream):
    """The functions of Warp's own Python that a scope calls which is not the stream's first."""
    with stream:
        pass
    called = []

    def note(frame, event, _):
        if event == "call" and frame.f_globals["__name__"].startswith("warp."):
            called.append(frame.f_code.co_name)

    sys.setprofile(note)
    try:
        with stream:
            pass
    finally:
        sys.setprofile(None)
    return called


@pytest.mark.parametrize("version", [None, "1.20.0", "2.0.0.dev1"])
def test_a_scope_calls_nothing_of_warps_python_whatever_the_version(
    warp, warp_state, state, monkeypatch, version
):
    monkeypatch.setattr(warp, "__version__", version or warp.__version__)
    monkeypatch.setattr(warp.config, "version", warp.__version__)
    check_scopes(warp, warp_state)
    assert python_of_warp(sk.new_stream(1)) == []
    assert slow_scopes() == []


@pytest.mark.parametrize("name", ["set_stream", "get_device", "set_default_device"])
def test_a_function_of_warps_that_is_not_the_known_one_is_called(
    warp, warp_state, state, monkeypatch, name
):
    owner = warp.Device if name == "set_stream" else type(state.warp_runtime())
    known = getattr(owner, name)

    def changed(self, *arguments, **options):
        return known(self, *arguments, **options)

    monkeypatch.setattr(owner, name, changed)
    check_scopes(warp, warp_state)
    assert name in python_of_warp(sk.new_stream(1))
    (finding,) = slow_scopes()
    assert warp.__version__ in finding.what
    assert "the program has replaced" in finding.what


@pytest.mark.parametrize("now", ["f(\n", 'def f(x):\n    """Only words."""\n'])
def test_a_function_whose_file_is_another_by_now_has_no_known_body(tmp_path, now):
    from streamkit.backends._known_bodies import digest  # what a gate asks

    (file := tmp_path / "library.py").write_text("def f(x):\n    return x\n")
    function = runpy.run_path(str(file))["f"]
    assert digest(function)
    file.write_text(now)
    assert digest(function) == ""


def test_without_the_native_functions_scopes_take_the_public_road(
    warp, warp_state, state, monkeypatch
):
    class Without(ctypes.PyDLL):
        def __getattr__(self, name):
            if name == "wp_cuda_context_set_stream":
                raise AttributeError(name)
            return super().__getattr__(name)

    monkeypatch.setattr(ctypes, "PyDLL", Without)
    check_scopes(warp, warp_state)
    assert state._native() is None
    assert len(slow_scopes()) == 1


def test_without_warps_runtime_its_streams_are_found_and_its_scopes_are_right(
    warp, warp_state, state, monkeypatch
):
    from streamkit.backends._warp import adapter, capture  # they ask for the runtime

    adapter._watch_handles.cache_clear()
    for module in (state, adapter.current_stream, capture):
        monkeypatch.setattr(module, "warp_runtime", lambda: None)
    check_scopes(warp, warp_state)
    own = warp.Stream("cuda:0")
    assert sk.from_handle(own.cuda_stream, device=0).to("warp") is own
    capture.free_deferred()  # by a wait for the devices, which frees it too
    assert len(slow_scopes()) == 1
    monkeypatch.undo()
    adapter._watch_handles.cache_clear()


class Own:
    """What a lent view holds."""


def test_a_lent_view_holds_its_array_under_no_name(warp):
    class Later(warp.array):
        """As a Warp would be that keeps what a view is of under another name."""

        def view(self, dtype):
            view = super().view(dtype)
            view._whole, view._ref = view._ref, None
            return view

    from streamkit._queues import registry  # what is lent otherwise belongs to a stream

    array = Later(ptr=4096, shape=4, dtype=warp.float32, device="cuda:0")
    owner = Own()
    lent, gone = registry.adapter("warp").lend(array, owner), weakref.ref(array)
    assert registry.adapter("warp").lent_by(lent) is owner
    del array
    gc.collect()
    assert gone() is None
    assert lent.ptr == 4096
