"""What a block leaves behind: the same calls before and after it, in a process of their own."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import streamkit as sk
from bench.timing import (
    Arms,
    Libraries,
    Plan,
    calls,
    calls_without,
    same,
    take_turns,
)
from streamkit._cli.machine import CannotRunError
from streamkit._cuda import loader

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

_CHILD = (
    "import sys; sys.path[:0] = sys.argv[1:3]; "
    "from bench import after_block; after_block.main(sys.argv[3], *map(int, sys.argv[4:]))"
)
_SECONDS = 100
BLOCKS: dict[str, Callable[[], AbstractContextManager[object]]] = {
    "audit()": sk.audit,
    "races()": sk.races,
}


@dataclass(frozen=True)
class AfterBlock(Plan):
    """A row that a child measures: this process may have had such a block, and is spared it."""

    arrange: Any = None  # the child does
    block: str = ""
    """One of ``BLOCKS``."""
    is_last: bool = True

    def measure(self, libraries: Libraries, repeats: int, iterations: int) -> list[list[float]]:
        """Return the times after and before, of the call that became the slowest."""
        numbers = map(str, (libraries.device, repeats, iterations))
        homes = (str(Path(file).parents[1]) for file in (sk.__file__, __file__))
        command = [sys.executable, "-P", "-c", _CHILD, *homes, self.block, *numbers]
        try:
            done = subprocess.run(
                command, capture_output=True, check=False, timeout=_SECONDS, text=True
            )
        except subprocess.TimeoutExpired as error:
            raise CannotRunError(str(error)) from error
        if done.returncode:
            raise CannotRunError(done.stderr.strip().rpartition("\n")[2])
        found: list[list[float]] = json.loads(done.stdout.splitlines()[-1])
        return found


def main(block: str, device: int, repeats: int, iterations: int) -> None:
    """Measure in this process, and print the times."""
    import torch

    x = torch.zeros(1, device=f"cuda:{device}")
    stream = loader.cu.CUstream(torch.cuda.current_stream(device).cuda_stream)
    loops = calls(x.fill_), calls_without(partial(loader.cu.cuStreamQuery, stream))

    def times() -> list[list[float]]:
        arms = [Arms(loop, loop, same(1), same(1)) for loop in loops]
        return [take_turns(one, repeats, iterations, torch.cuda.synchronize)[0] for one in arms]

    times()  # not counted, as the first calls of a process are slower
    before = times()
    with BLOCKS[block]():
        x.fill_(1)
    pairs = zip(times(), before, strict=True)
    print(json.dumps(max(pairs, key=lambda pair: median(pair[0]) / median(pair[1]))))
