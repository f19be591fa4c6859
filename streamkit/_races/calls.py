"""What a call reads and writes: as NumPy's functions do, as its author said, or a guess."""

from __future__ import annotations

import inspect
import types
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from streamkit._base.messages import describe
from streamkit._races import arrays, numpy_calls
from streamkit._races.numpy_calls import Use

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    FunctionT = TypeVar("FunctionT", bound=Callable[..., object])


class _Declared(NamedTuple):
    reads: tuple[str, ...]
    writes: tuple[str, ...]


def accesses(
    *, reads: Sequence[str] = (), writes: Sequence[str] = ()
) -> Callable[[FunctionT], FunctionT]:
    """Tell ``races`` which parameters of a function are arrays that it reads, and that it writes.

    It is a promise: the function uses all of these arrays, and no other that anybody writes. The
    function itself is returned.

    Args:
        reads: The names of the parameters that it only reads.
        writes: Those that it writes, also if it reads them.

    Raises:
        TypeError: The names are no sequence of strings, or the object cannot be marked.
        ValueError: A name is that of no parameter.

    >>> from streamkit.testing import accesses
    >>> @accesses(reads=("x",), writes=("y",))
    ... def double(x, y):
    ...     y[:] = 2 * x
    """
    declared = _Declared(_names(reads), _names(writes))

    def mark(fn: FunctionT) -> FunctionT:
        missing = {*declared.reads, *declared.writes} - set(_parameters(fn))
        if missing:
            raise ValueError(
                f"{describe(fn)} has no parameter {', '.join(sorted(missing))}: accesses names "
                "parameters of the function."
            )
        try:
            fn._streamkit_accesses = declared  # type: ignore[attr-defined]  # noqa: SLF001 - ours
        except AttributeError as error:
            raise TypeError(
                f"{describe(fn)} takes no attributes, so it cannot be marked. Mark a function "
                "that calls it."
            ) from error
        return fn

    return mark


def uses(call: Any) -> tuple[list[Use], bool]:
    """Return how a call, a ``functools.partial``, uses arrays, and whether that is known."""
    declared = getattr(call.func, "_streamkit_accesses", None)
    if isinstance(declared, _Declared):
        return list(_as_declared(declared, call)), True
    known = numpy_calls.uses(call)
    if known is not None:
        return known, True
    found = arrays.among((call.args, call.keywords, *_brought_along(call.func)))
    return [Use(array, "unknown", is_sure=False) for array in found], False


def _names(names: Sequence[str]) -> tuple[str, ...]:
    found = tuple(names)
    if isinstance(names, str) or not all(isinstance(name, str) for name in found):
        raise TypeError(f"accesses takes names of parameters, as in reads=('x',), not {names!r}.")
    return found


def _parameters(fn: Callable[..., object]) -> tuple[str, ...]:
    if not callable(fn):
        raise TypeError(f"accesses marks a function, and {describe(fn)} is none.")
    return tuple(inspect.signature(fn).parameters)


def _as_declared(declared: _Declared, call: Any) -> Iterator[Use]:
    try:
        bound = inspect.signature(call.func).bind(*call.args, **call.keywords)
    except TypeError:  # the call will fail, and use nothing
        return
    bound.apply_defaults()
    for name, value in bound.arguments.items():
        if name in declared.writes:
            yield from (Use(array, "write", is_sure=True) for array in arrays.among(value))
        elif name in declared.reads:
            yield from (Use(array, "read", is_sure=True) for array in arrays.among(value))


def _brought_along(fn: Any) -> Iterator[object]:
    """Yield what a function can use beside its arguments."""
    yield getattr(fn, "__self__", None)
    fn = getattr(fn, "__func__", fn)
    if isinstance(fn, types.FunctionType):
        code = fn.__code__
        for cell in fn.__closure__ or ():
            try:
                yield cell.cell_contents
            except ValueError:  # it has none yet
                continue
        yield from (fn.__globals__[name] for name in code.co_names if name in fn.__globals__)
