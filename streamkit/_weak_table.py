"""A table of objects that it does not keep alive."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterator

V = TypeVar("V")


class WeakTable(dict[int, "weakref.ref[V]"], Generic[V]):
    """Weak references by number; those whose object has gone are swept out now and then.

    WeakValueDictionary gives each reference a callback instead, at three times the cost. Writers
    hold a lock of their own if losing an entry to another writer would matter.
    """

    _sweep_at = 1_000

    def find(self, key: int) -> V | None:
        """Return the object under this number if it is alive."""
        found = self.get(key)
        return None if found is None else found()

    def keep(self, key: int, value: V) -> None:
        """Note the object, which something else keeps alive."""
        self[key] = weakref.ref(value)
        if len(self) > self._sweep_at:
            for old, seen in self.copy().items():
                if seen() is None:
                    self.pop(old, None)
            self._sweep_at = 2 * len(self) + 1_000

    def living(self) -> Iterator[V]:
        """Iterate over the objects that are alive."""
        for seen in self.copy().values():
            value = seen()
            if value is not None:
                yield value
