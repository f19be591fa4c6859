"""A table that does not keep its objects alive."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar
from weakref import ref

from streamkit._support.locks import new_lock

if TYPE_CHECKING:
    from collections.abc import Iterator

V = TypeVar("V")


class WeakTable(dict[int, "ref[V]"], Generic[V]):
    """Weak references by number; dead references are swept out now and then.

    WeakValueDictionary gives each reference a callback instead, at three times the cost. Safe from
    any thread; the lock is taken only where an entry makes room for another.
    """

    _sweep_at = 1_000

    def __init__(self) -> None:
        super().__init__()
        self._lock = new_lock()

    def put(self, key: int, value: V) -> None:
        """Note an object, which something else keeps alive, in place of the noted one."""
        self[key] = ref(value)
        if len(self) > self._sweep_at:
            self._sweep()

    def first(self, key: int, value: V) -> V:
        """Return the noted object of this number if it is alive, else note ``value`` and return it.

        Threads that call it at the same time get the same object.
        """
        mine = ref(value)
        seen = self.setdefault(key, mine)  # atomic
        while seen is not mine:
            other = seen()
            if other is not None:
                return other
            with self._lock:
                if self.get(key) is seen:
                    self[key] = mine
            seen = self.setdefault(key, mine)
        if len(self) > self._sweep_at:
            self._sweep()
        return value

    def _sweep(self) -> None:
        with self._lock:
            for key, seen in self.copy().items():
                if seen() is None:
                    taken = self.pop(key, None)
                    if taken is not None and taken is not seen:  # ``put`` was between the two
                        self.setdefault(key, taken)
            self._sweep_at = 2 * len(self) + 1_000

    def living(self) -> Iterator[V]:
        for seen in self.copy().values():
            value = seen()
            if value is not None:
                yield value
