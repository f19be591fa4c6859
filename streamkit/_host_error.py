"""The error of a host queue's work: told to all who wait for that work, and raised once after."""

from __future__ import annotations


class FirstError:
    """The first error of a queue's items, until the stream tells it: then it has another of these.

    Set by one thread at a time, that whose item runs.
    """

    __slots__ = ("_trace", "error")

    def __init__(self) -> None:
        self.error: BaseException | None = None

    def set(self, error: BaseException) -> None:
        """Note an error; nothing if there is one already."""
        if self.error is None:
            self._trace = error.__traceback__
            self.error = error

    def again(self) -> BaseException | None:
        """Return the error as it was raised: each ``raise`` adds to the traceback it finds."""
        return None if self.error is None else self.error.with_traceback(self._trace)
