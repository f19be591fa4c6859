"""Random programs of CUDA streams, against the reference model."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given, settings

import streamkit as sk
from support.libraries import need
from support.model import is_caught, play, programs, search, search_finds
from support.model_cuda import Cuda

warp = need("warp")


@settings(search, max_examples=100)
@given(programs)
def test_streams_and_scopes_keep_every_edge_and_add_none(program):
    play(program, Cuda())


# -- the controls: each of these is wrong in one thing, which the search has to find ---------------


class DeafToStreams(Cuda):
    def wait_stream(self, stream, other):
        pass


class DeafToEvents(Cuda):
    def wait_event(self, stream, event):
        pass


class RecordsOnce(Cuda):
    def record(self, stream, event):
        if event not in self._events:
            super().record(stream, event)


class Impatient(Cuda):
    def sync(self, stream):
        pass


class AlwaysDone(Cuda):
    def done(self, stream):
        return True


class Unmoved(Cuda):
    def scope(self, stream, ordered):
        return contextlib.nullcontext()


class Unordered(Cuda):
    def scope(self, stream, ordered):
        return sk.use(self._streams[stream], libraries=["warp"])


class AlwaysOrdered(Cuda):
    def scope(self, stream, ordered):
        return sk.use(self._streams[stream], libraries=["warp"], ordered=True)


@pytest.mark.parametrize(
    "kind",
    [
        DeafToStreams,
        DeafToEvents,
        RecordsOnce,
        Impatient,
        AlwaysDone,
        Unmoved,
        Unordered,
        AlwaysOrdered,
    ],
)
def test_the_search_finds_what_is_wrong(kind):
    search_finds(programs, lambda program: is_caught(program, kind()), most=3_000)
