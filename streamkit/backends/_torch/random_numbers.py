"""torch's random numbers in graphs: each graph has a state of torch's generator of its own.

Up to torch 2.11 all graphs of a generator share the memory from which their kernels read its seed
and offset. ``CUDAGraph.replay`` fills it before each run, ``capture_begin`` before a capture, and a
graph that runs meanwhile draws the numbers of another. A state of its own has its own memory. From
2.12 on torch itself gives each graph such memory, for every generator.
"""

from __future__ import annotations

from typing import Any

import torch

from streamkit._support.locks import new_lock

ARE_SHARED = tuple(map(int, torch.__version__.split(".")[:2])) < (2, 12)
"""Whether graphs share that memory, and draw from the default generator alone."""

_lock = new_lock()
_outside: dict[int, Any] = {}  # device -> the state of its default generator outside of a capture


class GraphState:
    """A graph's own state of its device's default generator.

    Numbers are those that torch alone would draw: a run begins at the generator's seed and offset,
    and moves the offset on.
    """

    def __init__(self, device: int) -> None:
        self._device = device
        self._generator = torch.cuda.default_generators[device]
        self._own = self._generator.clone_state()
        self._drawn = -1  # by how much a run moves the offset, which the first run shows
        self._next = _read(self._own)  # the next run begins here if nothing else draws before

    def begin(self) -> None:
        """Give the generator this state, for a capture that begins then."""
        with _lock:
            _outside[self._device] = self._generator.graphsafe_get_state()
            self._generator.graphsafe_set_state(self._own)

    def end(self) -> None:
        """Give the generator its state back, after the capture; a second call does nothing."""
        with _lock:
            outside = _outside.get(self._device)
            if outside is None:
                return
            self._generator.graphsafe_set_state(outside)
            del _outside[self._device]
            found = _read(self._own)
            if found != self._next:  # another thread has seeded it meanwhile
                _write(outside, *found)
                self._next = found

    def replay(self, graph: Any) -> bool:
        """Queue a run on the current stream; return whether the graph draws numbers."""
        with _lock:
            # not the generator, which would begin cuDNN's dropout anew
            outside = _outside.get(self._device) or self._generator.graphsafe_get_state()
            seed, offset = begins = outside.initial_seed(), outside.get_offset()
            if begins != self._next:
                _write(self._own, seed, offset)
            is_first = self._drawn < 0
            if is_first:
                graph.replay()
                self._drawn = self._own.get_offset() - offset
            if self._drawn:
                # before the run: eager work of another thread draws the numbers after these
                outside.set_offset(offset + self._drawn)
            self._next = seed, offset + self._drawn
        if not is_first:
            graph.replay()
        return bool(self._drawn)


def _read(state: Any) -> tuple[int, int]:
    return state.initial_seed(), state.get_offset()


def _write(state: Any, seed: int, offset: int) -> None:
    state.manual_seed(seed)
    state.set_offset(offset)
