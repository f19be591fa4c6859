"""How a row of the speed table is declared."""

from __future__ import annotations

import gc
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from streamkit import _driver
from streamkit._bench_timing import Arms, Libraries, Plan, held_calls

if TYPE_CHECKING:
    from collections.abc import Callable, Generator


def row(  # noqa: PLR0913 - what a row of the table says
    plans: list[Plan],
    name: str,
    against: str,
    *,
    at_most: float,
    aim: float,
    note: str = "",
    slows_what_follows: bool = False,
) -> Callable[[Callable[[Libraries], Generator[Arms]]], None]:
    """Add what arranges the two sides to these plans; of one name are an operation's settings."""

    def register(arrange: Callable[[Libraries], Generator[Arms]]) -> None:
        ready = contextmanager(arrange)
        plans.append(Plan(name, against, at_most, aim, note, ready, slows_what_follows))

    return register


def each_once(
    libraries: Libraries, ours: Callable[[Any], Any], theirs: Callable[[Any], Any]
) -> Generator[Arms]:
    """Give each side streams of torch's that nobody has seen."""
    device, from_handle = libraries.device, libraries.torch.cuda.get_stream_from_external
    handles: list[int] = []

    def fresh(count: int) -> list[Any]:
        made = [_driver.create_stream(device, nonblocking=True, priority=0) for _ in range(count)]
        handles.extend(made)
        return [from_handle(handle, device) for handle in made]

    def clear() -> None:
        gc.collect()  # a library may hold its view in a cycle, and the handle must outlive the view
        while handles:
            _driver.destroy_stream(handles.pop())

    try:
        yield Arms(held_calls(ours), held_calls(theirs), fresh, fresh, clear, one_turn=True)
    finally:
        clear()
