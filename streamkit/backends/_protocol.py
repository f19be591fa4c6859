"""Any object of the CUDA stream protocol: ``__cuda_stream__() -> (0, handle)``.

The protocol carries no device and no owner. So the driver has to find the device, and the object
itself counts as the owner.
"""

from __future__ import annotations

import inspect
import numbers
from typing import Any

from streamkit._support import messages
from streamkit.errors import UnsupportedStreamError
from streamkit.protocols import Queue, Traits

name = "protocol"
api = 1
traits = Traits(has_streams=False)

_MAX_HANDLE = 2**64


class Source:
    """An object of the protocol that keeps its queue: libraries build streams from it."""

    __slots__ = ("queue",)

    def __init__(self, queue: Queue) -> None:
        self.queue = queue

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self.queue.handle


def extract(obj: Any) -> Queue:
    """Read the handle from ``__cuda_stream__``, checking every part of the answer."""
    method = inspect.getattr_static(obj, "__cuda_stream__")
    if isinstance(method, property) or not callable(getattr(method, "__func__", method)):
        raise _bad_answer(obj, "is an attribute, not a method")
    try:
        answer = obj.__cuda_stream__()
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:
        raise _bad_answer(obj, f"raised {type(error).__name__}: {error}") from error
    other = ""
    if isinstance(answer, (tuple, list)) and len(answer) == 2:  # noqa: PLR2004 - a pair
        version, handle = answer
        if _is_int(version) and _is_int(handle) and version == 0 and 0 <= handle < _MAX_HANDLE:
            return Queue(int(handle), owner=obj)
        if _is_int(version) and version != 0:
            other = f", of protocol version {version}, not 0"
    raise _bad_answer(obj, f"returned {messages.describe(answer)}{other}")


def _is_int(value: object) -> bool:
    # NumPy's scalars are integers too; arrays and tensors, which also have __index__, are not
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)


def borrow(queue: Queue) -> Any:
    """Refuse: a protocol has no stream class of its own."""
    raise messages.library_cannot_take(
        "the CUDA stream protocol",
        f"{queue!r} as an object of its own",
        "the StreamKit stream has __cuda_stream__() itself",
    )


def _bad_answer(obj: object, what: str) -> UnsupportedStreamError:
    kind = type(obj)
    return UnsupportedStreamError(
        f"{kind.__module__}.{kind.__qualname__}.__cuda_stream__ {what}; the protocol asks for a "
        "method that returns the tuple (0, handle), handle an int."
    )
