"""The arrays that a call reads and writes, as declared, as NumPy documents, or as a guess."""

from __future__ import annotations

import functools
import inspect
import sys
import types
from typing import TYPE_CHECKING, Any, TypeVar

from streamkit._queues import registry
from streamkit._streams.host_stream import HostStream
from streamkit._support.messages import describe
from streamkit.diagnostics.races.arrays import CONTAINERS, DEPTH, among, is_mapped, watches
from streamkit.protocols import ArrayUse

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from streamkit.diagnostics.races.search import Mode

    FunctionT = TypeVar("FunctionT", bound=Callable[..., object])

_PLAIN = (bool, int, float, complex, str, bytes, slice, type(None), type(...))


def accesses(
    *, reads: Sequence[str] = (), writes: Sequence[str] = ()
) -> Callable[[FunctionT], FunctionT]:
    """Tell ``races`` which parameters of a function are arrays that it reads, and that it writes.

    The declaration is a promise: the function uses all of these arrays, and no other array that is
    written while it runs. It does not count for a decorator around the function, nor if an object
    among these parameters is no array. The function itself is returned.

    Args:
        reads: The names of the parameters that the function only reads.
        writes: The names of the parameters that it writes, whether or not it reads them too.

    Raises:
        TypeError: The names are not a sequence of strings, or the object cannot be marked.
        ValueError: The function has no parameter of one of these names.

    >>> from streamkit.testing import accesses
    >>> @accesses(reads=("x",), writes=("y",))
    ... def double(x, y):
    ...     y[:] = 2 * x
    """
    declared: dict[str, Mode] = dict.fromkeys(_names(reads), "read")
    declared.update(dict.fromkeys(_names(writes), "write"))

    def mark(fn: FunctionT) -> FunctionT:
        if not callable(fn):
            raise TypeError(f"accesses marks a function, which {describe(fn)} is not.")
        missing = declared.keys() - inspect.signature(fn).parameters.keys()
        if missing:
            raise ValueError(
                f"{describe(fn)} has no parameter {', '.join(sorted(missing))}: accesses names "
                "parameters of the function."
            )
        try:
            # with its id, because functools.wraps copies attributes to other functions
            fn._streamkit_accesses = id(fn), declared  # type: ignore[attr-defined]  # noqa: SLF001 - ours
        except AttributeError as error:
            raise TypeError(
                f"{describe(fn)} takes no attributes, so it cannot be marked. Mark a function "
                "that calls it."
            ) from error
        return fn

    return mark


def uses(call: Any) -> tuple[list[ArrayUse], bool]:
    """Return how a call, a ``functools.partial``, uses arrays, and whether that is known.

    A call that is not known may do anything with the arrays among its arguments.
    """
    if type(getattr(call.func, "__self__", None)) is HostStream:  # which tells its own steps
        return [], True
    declared = _as_declared(call)
    known = uses_of_numpy(call) if declared is None else declared
    if known is not None:
        return known, True
    found = among((*call.args, *call.keywords.values()))
    return [ArrayUse(array, "unknown", is_sure=False) for array in found], False


def is_operator(call: Any) -> bool:
    """Whether a call is a library's own, and all its accesses are told by operators.

    Compiled functions are such calls. Functions in Python may run hooks, and may use memory
    without an operator.
    """
    fn = call.func
    return (
        type(fn) is types.BuiltinFunctionType
        and (_is_of_watched(fn.__module__) or _is_of_watched(type(fn.__self__).__module__))
        and _is_passive(
            (call.args, call.keywords), lambda value: _is_of_watched(type(value).__module__)
        )
    )


def _is_passive(value: object, is_own: Callable[[Any], object], depth: int = DEPTH) -> bool:
    """Whether an argument brings no code of the program's, and no memory but of ``is_own``."""
    if type(value) in (*CONTAINERS, dict):
        inside: Any = value.values() if isinstance(value, dict) else value
        return depth > 0 and all(_is_passive(one, is_own, depth - 1) for one in inside)
    return issubclass(type(value), _PLAIN) or bool(is_own(value))


def _is_of_watched(module: str | None) -> bool:
    """Whether a module belongs to a library that tells of its operators."""
    load = registry.loaded().get(str(module).partition(".")[0])
    return load is not None and watches(load())


def _names(names: Sequence[str]) -> tuple[str, ...]:
    found = tuple(names)
    if isinstance(names, str) or not all(isinstance(name, str) for name in found):
        raise TypeError(f"accesses takes names of parameters, as in reads=('x',), not {names!r}.")
    return found


def _as_declared(call: Any) -> list[ArrayUse] | None:
    """Return the uses that a function declares; None without them, or if an object hides arrays."""
    marked = getattr(call.func, "_streamkit_accesses", None)
    fn = getattr(call.func, "__func__", call.func)  # of a method
    if not isinstance(marked, tuple) or marked[0] != id(fn):
        return None
    try:
        bound = inspect.signature(call.func).bind(*call.args, **call.keywords)
    except TypeError:  # the call will fail before it uses anything
        return []
    bound.apply_defaults()
    given = [(mode, bound.arguments[name]) for name, mode in marked[1].items()]
    for _, value in given:  # scalars of NumPy's are not among the arrays
        if not _is_passive(value, lambda one: type(one).__module__ == "numpy" or [*among(one)]):
            return None
    found = [use for mode, value in given for use in _used(mode, value)]
    return None if any(is_mapped(use.array) for use in found) else found


# -- NumPy's own functions ------------------------------------------------------------------------

# For functions and methods, by name, the place of ``out`` among the positional arguments.
_READ_ALL = {
    "amax": 2, "amin": 2, "argsort": None, "around": 2, "clip": 3, "concatenate": 2, "copy": None,
    "cumprod": 3, "cumsum": 3, "dot": 2, "hstack": None, "inner": None, "max": 2, "mean": 3,
    "min": 2, "outer": 2, "prod": 3, "ptp": 2, "round": 2, "sort": None, "stack": 2, "std": 3,
    "sum": 3, "tensordot": None, "var": 3, "vdot": None, "vstack": None,
}  # fmt: skip
_READ_SOME = {
    "all": 2, "any": 2, "argmax": 2, "argmin": 2, "choose": 2, "compress": 3, "einsum": None,
    "take": 3, "trace": 5,
}  # fmt: skip
_WRITE = {
    "__setitem__": False, "copyto": True, "fill": True, "fill_diagonal": False, "place": False,
    "put": False, "put_along_axis": False, "putmask": False, "setfield": False,
}  # fmt: skip
"""Functions that write their first array, and whether they surely write the whole array."""
_METHODS_CHANGE = {
    *(f"__i{name}__" for name in (
        "add", "and", "floordiv", "lshift", "matmul", "mod", "mul", "or", "pow", "rshift", "sub",
        "truediv", "xor",
    )), "partition", "sort",
}  # fmt: skip
"""The methods that read the whole of their array and write it."""
_UFUNC_METHODS = {"reduce": 3, "accumulate": 3, "outer": None}
_WHERE = {"amax": 5, "amin": 5, "copyto": 3, "max": 5, "min": 5, "prod": 6, "reduce": 6, "sum": 6}
"""The place of ``where`` among the positional arguments, if it can be one of them."""
_STOP_EARLY = {"logical_and", "logical_or"}
"""The ufuncs whose reduction ends at the first element that decides the result."""


def uses_of_numpy(call: Any) -> list[ArrayUse] | None:
    """Return how a call of NumPy uses arrays; None for a function that is not listed here."""
    numpy: Any = sys.modules.get("numpy")
    fn, args, named = call.func, call.args, call.keywords
    owner: Any = getattr(fn, "__self__", None)
    if numpy is None or not _is_passive((args, named), functools.partial(_is_of_numpy, numpy)):
        return None
    name = getattr(fn, "__name__", "")
    found: list[ArrayUse] | None = None
    ufunc = fn if isinstance(fn, numpy.ufunc) else owner
    if isinstance(ufunc, numpy.ufunc) and {*"".join(ufunc.types)} <= {*"O->"}:
        return None  # of ``frompyfunc``: it calls the program's code
    if ufunc is fn:
        found = [*_of_ufunc(args[: fn.nin], args[fn.nin :], named)]
    elif isinstance(owner, numpy.ufunc):
        found = _of_ufunc_method(getattr(owner, "__name__", ""), name, args, named)
    elif type(owner) is numpy.ndarray and not owner.dtype.hasobject and not is_mapped(owner):
        found = _of_function(name, (owner, *args), named, is_method=True)
    elif getattr(numpy, name, None) is fn:
        found = _of_function(name, args, named, is_method=False)
    if found and any(getattr(use.array, "size", 1) == 0 for use in found):
        return [use._replace(is_sure=False) for use in found]  # perhaps the call does nothing
    return found


def _is_of_numpy(numpy: Any, value: Any) -> bool:
    """Whether NumPy converts nothing, and knows whose memory it uses."""
    if type(value) in (numpy.ndarray, numpy.memmap):
        return not (value.dtype.hasobject or is_mapped(value))
    return issubclass(type(value), (numpy.generic, numpy.dtype, type))


def _is_everywhere(name: str, args: tuple[object, ...], named: Mapping[str, object]) -> bool:
    """Whether a call leaves no element out, as one with a ``where`` can do."""
    place = _WHERE.get(name, len(args))
    return named.get("where", True) is True and all(one is True for one in args[place : place + 1])


def _used(mode: Mode, values: object, *, is_sure: bool = True) -> Iterator[ArrayUse]:
    return (ArrayUse(array, mode, is_sure) for array in among(values))


_reads, _writes = functools.partial(_used, "read"), functools.partial(_used, "write")


def _of_ufunc(
    inputs: tuple[Any, ...], outputs: tuple[Any, ...], named: dict[str, Any]
) -> Iterator[ArrayUse]:
    is_sure = _is_everywhere("", (), named)
    yield from _reads(inputs, is_sure=is_sure)
    yield from _reads(named.get("where"))
    yield from _writes((outputs, named.get("out")), is_sure=is_sure)


def _of_ufunc_method(
    ufunc: str, name: str, args: tuple[Any, ...], named: dict[str, Any]
) -> list[ArrayUse] | None:
    if name == "at" and args:
        changed = *_reads(args[:1], is_sure=False), *_writes(args[:1], is_sure=False)
        return [*changed, *_reads((args[1:], named))]
    is_sure = ufunc not in _STOP_EARLY or name != "reduce"
    return _with_out(_UFUNC_METHODS, name, args, named, is_sure=is_sure)


def _of_function(
    name: str, args: tuple[Any, ...], named: dict[str, Any], *, is_method: bool
) -> list[ArrayUse] | None:
    if is_method and name in _METHODS_CHANGE:
        return [*_reads((args, named)), *_writes(args[:1])]
    if name in _WRITE and args:
        is_sure = _WRITE[name] and _is_everywhere(name, args, named)
        if name == "__setitem__" and len(args) > 1:
            key = args[1]
            is_sure = key is Ellipsis or (isinstance(key, slice) and key == slice(None))
        return [*_writes(args[:1], is_sure=is_sure), *_reads((args[1:], named), is_sure=is_sure)]
    found = _with_out(_READ_ALL, name, args, named, is_sure=True)
    return found or _with_out(_READ_SOME, name, args, named, is_sure=False)


def _with_out(
    known: Mapping[str, int | None],
    name: str,
    args: tuple[Any, ...],
    named: dict[str, Any],
    *,
    is_sure: bool,
) -> list[ArrayUse] | None:
    """Return the uses of a ``known`` function, which reads all arguments but ``out``; else None."""
    if name not in known:
        return None
    place = known[name]
    is_sure = is_sure and _is_everywhere(name, args, named)
    named, inputs = dict(named), list(args)
    written = [named.pop("out", None)]
    if place is not None and len(inputs) > place:
        written.append(inputs.pop(place))
    return [*_reads((inputs, named), is_sure=is_sure), *_writes(written)]
