"""The words of every refusal of an audit; the error classes are in ``errors``."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from streamkit._refusals import describe
from streamkit.errors import OneQueueError, ScopeError

if TYPE_CHECKING:
    from collections.abc import Iterable

_STRAYS = 12  # lines


def audit_not_over() -> ScopeError:
    """Word a report that is read inside its block."""
    return ScopeError("the report is made when the block ends. Read it after 'with ... as report:'")


def ran_elsewhere(stream: object, strays: Iterable[object], count: int) -> OneQueueError:
    """Word the work of an audit that did not run on one stream, or that there was none."""
    if not count:
        return OneQueueError(
            f"nothing ran in the audit, so nothing is known of {describe(stream)}. Put the work "
            "inside its block."
        )
    lines = Counter(map(str, strays))
    shown = [f"  {line}" + (f" ({n} times)" if n > 1 else "") for line, n in lines.items()]
    more = len(shown) - _STRAYS
    if more > 0:
        shown[_STRAYS:] = [f"  and {more} more"]
    return OneQueueError(
        f"{lines.total()} of {count} operations did not run on {describe(stream)}:\n"
        + "\n".join(shown)
        + "\nPut the work inside 'with streamkit.use(stream):', after every import."
    )


def no_cupti(cause: object) -> ScopeError:
    """Word CUPTI that refuses to record."""
    return ScopeError(
        f"CUPTI cannot record here ({cause}). It serves one tool at a time, and needs CUDA 13: end "
        "Nsight or another profiler, or look at what 'nvidia-smi' says of the driver."
    )


def audit_in_profiler() -> ScopeError:
    """Word an audit inside a profiler that uses CUPTI too."""
    return ScopeError(
        "PyTorch's profiler is running, and CUPTI serves one tool at a time: both would lose their "
        "records. Run the audit before or after it."
    )


def audit_disturbed() -> ScopeError:
    """Word an audit whose records went to another tool."""
    return ScopeError(
        "another tool took CUPTI inside the audit, so its records are lost: PyTorch's profiler is "
        "one. Run them one after the other."
    )
