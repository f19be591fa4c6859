"""What a call reads and writes: as its author declared, as NumPy documents it, or as a guess."""

from __future__ import annotations

import inspect
import sys
import types
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from streamkit._base.messages import describe
from streamkit._races.arrays import among

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from streamkit._races.search import Mode

    FunctionT = TypeVar("FunctionT", bound=Callable[..., object])


class Use(NamedTuple):
    """How a call uses an array."""

    array: Any
    mode: Mode
    is_sure: bool
    """Whether it surely uses all of it."""


def accesses(
    *, reads: Sequence[str] = (), writes: Sequence[str] = ()
) -> Callable[[FunctionT], FunctionT]:
    """Tell ``races`` which parameters of a function are arrays that it reads, and that it writes.

    It is a promise: the function uses all of these arrays, and no other array that is written while
    it runs. The function itself is returned.

    Args:
        reads: The names of the parameters that it only reads.
        writes: The names of those that it writes, whether or not it reads them too.

    Raises:
        TypeError: The names are no sequence of strings, or the object cannot be marked.
        ValueError: The function has no parameter of one of these names.

    >>> from streamkit.testing import accesses
    >>> @accesses(reads=("x",), writes=("y",))
    ... def double(x, y):
    ...     y[:] = 2 * x
    """
    declared: dict[str, Mode] = dict.fromkeys(_names(reads), "read")
    declared.update(dict.fromkeys(_names(writes), "write"))

    def mark(fn: FunctionT) -> FunctionT:
        missing = declared.keys() - set(_parameters(fn))
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
    if isinstance(declared, dict):
        return list(_as_declared(declared, call)), True
    known = uses_of_numpy(call)
    if known is not None:
        return known, True
    found = among((call.args, call.keywords, *_brought_along(call.func)))
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


def _as_declared(declared: Mapping[str, Mode], call: Any) -> Iterator[Use]:
    try:
        bound = inspect.signature(call.func).bind(*call.args, **call.keywords)
    except TypeError:  # the arguments do not fit: the call will fail before it uses anything
        return
    bound.apply_defaults()
    for name, value in bound.arguments.items():
        if name in declared:
            yield from (Use(array, declared[name], is_sure=True) for array in among(value))


def _brought_along(fn: Any) -> Iterator[object]:
    """Yield what a function can use beside its arguments."""
    yield getattr(fn, "__self__", None)
    fn = getattr(fn, "__func__", fn)
    if isinstance(fn, types.FunctionType):
        code = fn.__code__
        for cell in fn.__closure__ or ():
            try:
                yield cell.cell_contents
            except ValueError:  # the variable has no value yet
                continue
        yield from (fn.__globals__[name] for name in code.co_names if name in fn.__globals__)


# -- NumPy's own functions ------------------------------------------------------------------------

# By name, as functions and as methods: which positional argument ``out`` is.
_READ_ALL = {
    "clip": 3, "copy": None, "cumprod": 3, "cumsum": 3, "dot": 2, "max": 2, "mean": 3, "min": 2,
    "prod": 3, "round": 2, "std": 3, "sum": 3, "var": 3,
}  # fmt: skip
_READ_SOME = {
    "all": 2, "any": 2, "argmax": 2, "argmin": 2, "choose": 2, "compress": 3, "take": 3, "trace": 5,
}  # fmt: skip
_FUNCTIONS_READ_ALL = _READ_ALL | {
    "amax": 2, "amin": 2, "argsort": None, "around": 2, "concatenate": 2, "einsum": None,
    "hstack": None, "inner": None, "outer": 2, "ptp": 2, "sort": None, "stack": 2,
    "tensordot": None, "vdot": None, "vstack": None,
}  # fmt: skip
_METHODS_WRITE = {
    "__setitem__": False, "fill": True, "partition": True, "put": False, "sort": True,
}  # fmt: skip
"""The methods that write their array, and whether they surely write all of it."""
_FUNCTIONS_WRITE = {
    "copyto": True, "fill_diagonal": False, "place": False, "put": False,
    "put_along_axis": False, "putmask": False,
}  # fmt: skip
"""The functions that write their first argument, and whether they surely write all of it."""
_UFUNC_METHODS = {"reduce": 3, "accumulate": 3, "reduceat": 4, "outer": None}


def uses_of_numpy(call: Any) -> list[Use] | None:
    """Return how a call of NumPy uses arrays; None for one that is not known here."""
    numpy: Any = sys.modules.get("numpy")
    fn, args, named = call.func, call.args, call.keywords
    if numpy is None or not _is_plain(numpy, (*args, *named.values())):
        return None
    owner, name = getattr(fn, "__self__", None), getattr(fn, "__name__", "")
    found: list[Use] | None = None
    if isinstance(fn, numpy.ufunc):
        found = [*_of_ufunc(args[: fn.nin], args[fn.nin :], named)]
    elif isinstance(owner, numpy.ufunc):
        found = _of_ufunc_method(name, args, named)
    elif type(owner) is numpy.ndarray:
        found = _of_function(name, (owner, *args), named, is_method=True)
    elif getattr(numpy, name, None) is fn:
        found = _of_function(name, args, named, is_method=False)
    return found


def _is_plain(numpy: Any, values: tuple[object, ...]) -> bool:
    """Whether no argument overrides what NumPy's functions do with it."""
    return all(
        type(value) in (numpy.ndarray, numpy.memmap)
        or not (hasattr(value, "__array_ufunc__") or hasattr(value, "__array_function__"))
        or isinstance(value, numpy.generic)
        for value in values
    )


def _is_everywhere(*positional: object, where: object = True, **_: object) -> bool:
    """Whether a call of a function that takes ``where`` last leaves no element out."""
    return where is True and not positional


def _reads(values: object, *, is_sure: bool = True) -> Iterator[Use]:
    return (Use(array, "read", is_sure) for array in among(values))


def _writes(values: object, *, is_sure: bool = True) -> Iterator[Use]:
    return (Use(array, "write", is_sure) for array in among(values))


def _of_ufunc(
    inputs: tuple[Any, ...], outputs: tuple[Any, ...], named: dict[str, Any]
) -> Iterator[Use]:
    is_sure = _is_everywhere(**named)
    yield from _reads(inputs, is_sure=is_sure)
    yield from _reads(named.get("where"))
    yield from _writes((outputs, named.get("out")), is_sure=is_sure)


def _of_ufunc_method(name: str, args: tuple[Any, ...], named: dict[str, Any]) -> list[Use] | None:
    if name == "at" and args:
        return [*_writes(args[:1], is_sure=False), *_reads((args[1:], named))]
    return _with_out(_UFUNC_METHODS, name, args, named, is_sure=True)


def _of_function(
    name: str, args: tuple[Any, ...], named: dict[str, Any], *, is_method: bool
) -> list[Use] | None:
    writes = (_METHODS_WRITE if is_method else _FUNCTIONS_WRITE).get(name)
    if writes is not None and args:
        if is_method:
            is_sure = writes or (len(args) > 1 and args[1] is Ellipsis)
        else:
            is_sure = writes and _is_everywhere(*args[3:], **named)
        return [*_writes(args[:1], is_sure=is_sure), *_reads((args[1:], named), is_sure=is_sure)]
    read_all = _READ_ALL if is_method else _FUNCTIONS_READ_ALL
    found = _with_out(read_all, name, args, named, is_sure=True)
    return found or _with_out(_READ_SOME, name, args, named, is_sure=False)


def _with_out(
    known: Mapping[str, int | None],
    name: str,
    args: tuple[Any, ...],
    named: dict[str, Any],
    *,
    is_sure: bool,
) -> list[Use] | None:
    """Return what a ``known`` function does, which reads all arguments but ``out``; else None."""
    if name not in known:
        return None
    place = known[name]
    named = dict(named)
    written = [named.pop("out", None)]
    inputs = list(args)
    if place is not None and len(inputs) > place:
        written.append(inputs.pop(place))
    is_sure = is_sure and _is_everywhere(**named)
    return [*_reads((inputs, named), is_sure=is_sure), *_writes(written)]
