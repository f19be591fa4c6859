"""PyTorch in a capture: torch has to begin, so that its memory and random numbers take part.

torch begins through ``CUDAGraph``, because ``torch.cuda.graph`` waits for the device and empties
caches.
"""

from __future__ import annotations

import contextlib
import re
import traceback
from typing import TYPE_CHECKING, Any

import torch

from streamkit import errors
from streamkit._cuda import driver, graphs
from streamkit._support import garbage
from streamkit._support.frames import local_variables
from streamkit._support.messages import describe
from streamkit.backends._torch import random_numbers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType

    from streamkit.protocols import Binding

_ELSEWHERE = re.compile(
    r"legacy stream depend|uncaptured work in another stream|stale reference to the default stream"
)
"""The words of CUDA, and of torch from 2.13 on, about outside work that a capture would need."""
_NOT_OF_THE_PROGRAM = "torch", "streamkit"

_SHARES_SCRATCH = tuple(map(int, torch.__version__.split(".")[:2])) < (2, 15)
"""Whether torch keeps cuBLAS's scratch memory for a stream also while that captures."""


class Part:
    """A capture that begins on ``origin``, and that ``stream`` joins, as a fork does.

    The end of a graph of torch 2.12 to 2.14 frees cuBLAS's scratch memory of the stream on which
    the capture began, which another graph of that stream may still use.
    """

    def __init__(self, stream: Any, mode: str, origin: Any, bind: Callable[[Any], Binding]) -> None:
        self._stream = stream
        self._origin = origin
        self._mode = mode
        self._bind = bind
        self._graph: Any = torch.cuda.CUDAGraph(keep_graph=True)
        self._is_open = self._is_refused = False
        self._kept: Any = contextlib.nullcontext()  # until it has begun
        device = stream.device_index
        self._numbers = random_numbers.GraphState(device) if random_numbers.ARE_SHARED else None

    def begin(self) -> None:
        """Begin the capture; the memory that torch allocates here breaks no other capture.

        Weights that autocast has cast before are cast again inside, because the block of autocast
        frees the first ones at its end, and they would not follow the weights.
        """
        torch.clear_autocast_cache()
        if self._numbers is not None:
            self._numbers.begin()
        self._go_to(self._origin)
        # torch (2.11) ends the process with a graph that has not begun, or dies while it captures
        self._kept = garbage.kept_on_error(self._graph)
        self._kept.__enter__()
        with driver.beside_captures():
            try:
                self._graph.capture_begin(capture_error_mode=self._mode)
            except Exception:
                self._is_refused = True
                raise
        self._is_open = True
        if self._origin is not self._stream:
            if graphs.captured(int(self._stream.cuda_stream)) is not None:
                raise errors.CaptureError(
                    f"another thread has begun a capture on {describe(self._stream)} meanwhile. "
                    "End that one first."
                )
            self._stream.wait_stream(self._origin)
            self._go_to(self._stream)

    def end(self) -> Graph:
        """End the capture and return the executable graph."""
        if self._origin is not self._stream:
            self._origin.wait_stream(self._stream)
        self._go_to(self._origin)
        with garbage.kept_on_error(self._graph):  # the traceback could end it in a later capture
            self._graph.capture_end()
            self._is_open = False
            with driver.beside_captures():
                self._end()
                begun = self._origin.record_event()
                self._graph.instantiate()
        self._kept.__exit__(None, None, None)
        return Graph(self._graph, self._stream, self._bind, self._numbers, begun)

    def abandon(self) -> None:
        """Let torch end an empty capture instead of this one.

        After a capture whose end has failed, torch's allocator and random numbers stay in it: every
        later random number raises.
        """
        drop_failed_backward()
        if self._is_refused:  # torch would refuse to end it
            self._end()
            return
        handle = int(self._origin.cuda_stream)
        if graphs.captured(handle) is not None:
            self._is_open = True  # an interrupt can come before the beginning is noted
        graphs.discard(handle)
        if self._is_open:
            graphs.begin(handle, "relaxed")
            found = graphs.captured(handle)
            if found is not None:
                # torch warns of a graph without any node
                driver.ask("cuGraphAddEmptyNode", found.graph, None, 0)
            self._go_to(self._origin)
            self._graph.capture_end()
            self._is_open = False
        self._end()
        if self._graph is None:
            return
        with driver.beside_captures():
            self._graph.reset()
            self._kept.__exit__(None, None, None)
            self._graph = None  # now, because the error's traceback keeps this object
            # torch caches memory from inside where no other capture finds it
            with contextlib.suppress(RuntimeError):  # of torch, while it captures in another thread
                torch.cuda.empty_cache()

    def _end(self) -> None:
        """Give torch back its random numbers; a second call does nothing.

        Weights that autocast has cast inside are the graph's, and eager work must not read them.
        """
        torch.clear_autocast_cache()
        if self._numbers is not None:
            self._numbers.end()

    def _go_to(self, stream: Any) -> None:
        """Make the stream torch's current one; the scope restores what was before."""
        self._bind(stream).set_current()


class Graph:
    shared = "cuBLAS's scratch memory in torch" if _SHARES_SCRATCH else None

    def __init__(
        self, graph: Any, stream: Any, bind: Callable[[Any], Binding], numbers: Any, begun: Any
    ) -> None:
        self._graph: Any = graph
        self._bind = bind
        self._stream, self._way = stream, bind(stream)  # of the last launch
        self._numbers, self._begun = numbers, begun
        self._is_first = True
        self.graph = int(graph.raw_cuda_graph())
        self.executable = int(graph.raw_cuda_graph_exec())

    def launch(self, stream: Any) -> bool:
        """Queue a run, with new random numbers: a launch by the driver would repeat them.

        Return whether it draws none, as far as that can be known.
        """
        if stream is not self._stream:
            self._stream, self._way = stream, self._bind(stream)
        if self._way.is_current():
            return self._replay()
        before = self._way.save()
        try:
            self._way.enter(before)
            return self._replay()
        finally:
            self._way.leave(before)

    def _replay(self) -> bool:
        if self._is_first:
            # torch wrote a seed on the capture's stream, which must not come after that of this run
            self._stream.wait_event(self._begun)
            self._is_first = False
        if self._numbers is not None:
            return not self._numbers.replay(self._graph)
        self._graph.replay()
        return False

    def close(self) -> None:
        """Destroy the graph, and give its memory back to torch; a second call does nothing."""
        if self._graph is None:
            return
        self._graph.reset()
        # now: torch (2.11) ends the process if a graph dies in a capture, and where no context is
        # current the end of its event makes one current
        self._graph = self._numbers = self._begun = None


def drop_failed_backward() -> None:
    """Have autograd drop the rest of a failed backward pass of this thread.

    torch (2.13) drops the rest only in the next backward pass. Until then its nodes are alive, and
    a forward pass would use them again, on the stream that they remember.
    """
    # torch allows no pass inside of torch.func's transforms
    allowed = contextlib.suppress(RuntimeError)
    with allowed, torch.inference_mode(mode=False), torch.enable_grad():
        torch.zeros((), device="cpu", requires_grad=True).mul(1).backward()


# -- what to change in a training step ------------------------------------------------------------


def explain_capture(error: Exception) -> str | None:
    said = str(error)
    if "capturable is False" in said:
        return "Make the optimizer with capturable=True, so that it counts its steps on the GPU."
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    if any(frame.f_globals.get("__name__") == "torch.amp.grad_scaler" for frame in frames):
        return (
            "GradScaler asks on the CPU whether a gradient is infinite. An optimizer with "
            "fused=True asks on the GPU, and bfloat16 needs no scaler."
        )
    if not _ELSEWHERE.search(said):
        return None
    names = " and ".join(sorted(set(_results_of_forward_passes(frames))))
    return (
        "Autograd uses its nodes of an earlier forward pass again as long as the result is alive"
        f"{names and f' (look at {names})'}, and they work on the stream of that pass, which is "
        "outside the capture. Let go of that result first, or keep result.detach(); or run that "
        "pass on the stream that you capture: 'with streamkit.use(s, ordered=True):'."
    )


def _results_of_forward_passes(frames: list[FrameType]) -> Iterator[str]:
    """Yield the variables of the program, around the error, whose tensors hold autograd's nodes."""
    callers = [frame for frame, _ in traceback.walk_stack(frames[0].f_back)] if frames else []
    for frame in (*frames, *callers):
        package = str(frame.f_globals.get("__name__")).partition(".")[0]
        if package in _NOT_OF_THE_PROGRAM:
            continue
        for name, value in local_variables(frame).items():
            if isinstance(value, torch.Tensor) and value.grad_fn is not None:
                yield name
