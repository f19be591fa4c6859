"""The default streams: three spellings of two queues, per library, as a table."""

from __future__ import annotations

import threading

import pytest

import streamkit as sk
from support.gpu.raw import stream_id

# library -> how it spells (legacy, per-thread); None where it cannot take the queue
SPELLING = {
    "torch": (0, None),
    "cupy": (0, 2),
    "warp": (0, 2),
    "cuda.core": (1, 2),
    "numba": (1, 2),
}


def test_0_and_1_are_one_queue_and_keep_their_spelling():
    zero, one = sk.from_handle(0), sk.from_handle(1)
    assert zero == one == sk.default_stream()
    assert hash(zero) == hash(one)
    assert (zero.handle, one.handle) == (0, 1)
    assert zero.id == one.id == stream_id(1)
    assert zero.is_default
    assert not zero.is_nonblocking
    assert not zero.owned


def test_2_is_this_threads_own_queue():
    mine = sk.default_stream(per_thread=True)
    assert mine == sk.from_handle(2) != sk.default_stream()
    assert mine.id == stream_id(2)


@pytest.mark.parametrize("library", SPELLING)
def test_the_librarys_own_default_is_the_legacy_stream(subjects, library):
    subject = subjects(library)
    native = subject.default()
    stream = sk.wrap(native)
    assert stream == sk.default_stream() == sk.from_handle(0)
    assert stream.to(library) is native
    assert stream.handle in (0, 1)  # Warp's own says None
    assert stream.device == "cuda:0"


@pytest.mark.parametrize("spelled", [0, 1])
@pytest.mark.parametrize("library", SPELLING)
def test_the_legacy_stream_converts_to_the_librarys_spelling(subjects, library, spelled):
    subject = subjects(library)
    view = sk.from_handle(spelled).to(library)
    assert isinstance(view, subject.stream_class())
    assert subject.handle_of(view) == SPELLING[library][0]
    assert sk.wrap(view) == sk.default_stream()


@pytest.mark.parametrize("library", SPELLING)
def test_the_per_thread_stream_converts_or_is_refused(subjects, library):
    subject = subjects(library)
    expected = SPELLING[library][1]
    if expected is None:
        with pytest.raises(sk.errors.UnsupportedStreamError, match="per-thread"):
            sk.default_stream(per_thread=True).to(library)
        return
    view = sk.default_stream(per_thread=True).to(library)
    assert subject.handle_of(view) == expected
    assert sk.wrap(view) == sk.default_stream(per_thread=True)


def test_a_per_thread_stream_refuses_other_threads():
    mine = sk.default_stream(per_thread=True)
    seen = {}

    def elsewhere():
        seen["equal"] = sk.default_stream(per_thread=True) == mine
        for name, call in {
            "sync": mine.sync,
            "record": mine.record,
            "wait": lambda: sk.new_stream("cuda:0").wait(mine),
            "use": lambda: sk.use(mine).__enter__(),
            "to": lambda: mine.to("cuda.core"),
        }.items():
            with pytest.raises(sk.errors.ScopeError) as caught:
                call()
            seen[name] = str(caught.value)

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert seen.pop("equal") is False
    here, there = str(threading.get_ident()), str(thread.ident)
    assert len(seen) == 5
    assert all(here in text and there in text for text in seen.values())


def test_torch_handle_0_is_never_a_fresh_pool_stream(subjects):
    view = sk.default_stream().to("torch")
    assert view == subjects("torch").default()
    assert view.cuda_stream == 0
