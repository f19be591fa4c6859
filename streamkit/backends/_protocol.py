"""Any object of the CUDA stream protocol: ``__cuda_stream__() -> (0, handle)``.

The protocol carries no device and no owner: the driver is asked for the first, and the object
itself is taken for the second.
"""

from __future__ import annotations

import inspect
from typing import Any

from streamkit import errors
from streamkit.protocols import Queue

name = "protocol"
api = 1

_MAX_HANDLE = 2**64


def extract(obj: Any) -> Queue:
    """Read the handle from ``__cuda_stream__``, checking every part of the answer."""
    method = inspect.getattr_static(obj, "__cuda_stream__")
    if isinstance(method, property) or not callable(getattr(method, "__func__", method)):
        raise errors.bad_protocol(obj, "is an attribute, not a method")
    try:
        answer = obj.__cuda_stream__()
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:
        raise errors.bad_protocol(obj, f"raised {type(error).__name__}: {error}") from error
    return Queue(_handle(obj, answer), owner=obj)


def _handle(obj: Any, answer: object) -> int:
    said = f"returned {errors.describe(answer)}"
    if not isinstance(answer, (tuple, list)) or len(answer) != 2:  # noqa: PLR2004 - a pair
        raise errors.bad_protocol(obj, said)
    version, handle = answer
    if _is_int(version) and version != 0:
        raise errors.bad_protocol(obj, f"{said}, of protocol version {version}, not 0")
    if not _is_int(version) or not _is_int(handle) or not 0 <= handle < _MAX_HANDLE:
        raise errors.bad_protocol(obj, said)
    return int(handle)


def _is_int(value: object) -> bool:
    return hasattr(type(value), "__index__") and not isinstance(value, bool)


def borrow(queue: Queue) -> Any:
    """Refuse: a protocol has no stream class of its own."""
    raise errors.library_cannot_take(
        "the CUDA stream protocol",
        f"{queue!r} as an object of its own",
        "the StreamKit stream has __cuda_stream__() itself",
    )
