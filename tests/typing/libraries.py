"""Users' lines with the libraries themselves: as the checkers see them, installed or not."""

from __future__ import annotations

import cupy
import numba.cuda
import torch
import warp as wp

import streamkit as sk


def streams() -> None:
    sk.wrap(torch.cuda.current_stream())
    sk.wrap(torch.cuda.Stream()).native.wait_stream(torch.cuda.current_stream())
    sk.wrap(torch.Stream("cuda"))
    sk.wrap(cupy.cuda.Stream())
    sk.wrap(wp.get_stream())
    sk.wrap(wp.Stream("cuda:0"))
    sk.wrap(numba.cuda.stream())
    with sk.use(torch.cuda.Stream(), ordered=True):
        pass


def events_and_arrays(s: sk.Stream) -> None:
    for event in (torch.cuda.Event(), torch.Event(), cupy.cuda.Event(), wp.Event("cuda:0")):
        s.wait(event)
        s.record(event)
    s.wait(torch.cuda.current_stream())
    sk.wrap_event(numba.cuda.event())
    sk.handoff(torch.zeros(3), s).sum()
    sk.handoff(cupy.zeros(3), s)
    sk.handoff(wp.zeros(3), s)
