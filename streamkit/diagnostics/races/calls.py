"""What a call reads and writes: as its author declared, as NumPy documents it, or as a guess.

A function whose arrays are all watched tells by its operators what it does with them.
"""

from __future__ import annotations

import dis
import functools
import inspect
import sys
import types
from itertools import chain
from typing import TYPE_CHECKING, Any, TypeGuard, TypeVar

from streamkit._queues import registry
from streamkit._support.messages import describe
from streamkit.diagnostics.races.arrays import CONTAINERS, among, watches
from streamkit.protocols import ArrayUse, Event, Stream

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from types import CodeType, FrameType

    from streamkit.diagnostics.races.search import Mode

    FunctionT = TypeVar("FunctionT", bound=Callable[..., object])

_DEPTH = 4  # of functions that call each other
_ARRAY_LIBRARIES = {"numpy", *(row.root for row in registry.LIBRARIES)}
_PLAIN = (bool, int, float, complex, str, bytes, slice, range, type(None), type(...))
_HIDE = {
    "__array__", "__dlpack__", "__import__", "data_ptr", "eval", "exec", "format", "getattr",
    "globals", "numpy", "print", "repr", "str", "tolist", "untyped_storage", "vars",
}  # fmt: skip
"""Names in code of which operators do not tell what it uses."""
_LEND = {"__array__", "__dlpack__", "data_ptr", "from_dlpack", "numpy", "untyped_storage"}
"""Those of them that give memory to code of which operators tell nothing."""


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


def uses(call: Any, is_watched: Callable[[object], bool]) -> tuple[list[ArrayUse], bool]:
    """Return how a call, a ``functools.partial``, uses arrays, and whether that is known.

    What operators tell of the arrays that are watched is left out, if the call uses no others.
    """
    declared = getattr(call.func, "_streamkit_accesses", None)
    if isinstance(declared, dict):
        return list(_as_declared(declared, call)), True
    known = uses_of_numpy(call)
    if known is not None:
        return known, True
    brought = call.args, call.keywords, *_brought_along(call.func)
    if _is_watched_whole((call.func, *brought), is_watched):
        return [], True
    found = among((*brought, *_inside_of(call.args), *_inside_of(call.keywords.values())))
    return [ArrayUse(array, "unknown", is_sure=False) for array in found], False


def _inside_of(arguments: Iterable[object]) -> Iterator[object]:
    """Yield the attributes of arguments, such as those of a dataclass."""
    for one in arguments:
        if not isinstance(one, (type, types.ModuleType, types.FunctionType)):
            yield from getattr(one, "__dict__", {}).values()


def names_no_others(
    frame: FrameType, named: Iterable[object], is_watched: Callable[[object], bool]
) -> bool:
    """Whether the code of a frame reaches no arrays but watched ones, and no library of others.

    It reaches what it has ``named``, the attributes of that, and what its own functions name.
    """
    own = _root(frame.f_globals.get("__name__"))

    def is_own(one: object) -> TypeGuard[types.FunctionType]:
        return isinstance(one, types.FunctionType) and _root(one.__module__) == own

    reached = list(named)
    for one in filter(is_own, tuple(reached)):
        reached += _brought_along(one)
    codes = [frame.f_code, *(one.__code__ for one in filter(is_own, reached))]
    if any(_LEND & _named(code) for code in codes):
        return False
    return not any(
        (
            isinstance(one, types.ModuleType)
            and _root(one.__name__) in _ARRAY_LIBRARIES
            and not _is_of_watched(one.__name__)
        )
        or any(not is_watched(array) for array in among(one))
        for one in chain(reached, _inside_of(reached))
    )


def _names(names: Sequence[str]) -> tuple[str, ...]:
    found = tuple(names)
    if isinstance(names, str) or not all(isinstance(name, str) for name in found):
        raise TypeError(f"accesses takes names of parameters, as in reads=('x',), not {names!r}.")
    return found


def _parameters(fn: Callable[..., object]) -> tuple[str, ...]:
    if not callable(fn):
        raise TypeError(f"accesses marks a function, which {describe(fn)} is not.")
    return tuple(inspect.signature(fn).parameters)


def _as_declared(declared: Mapping[str, Mode], call: Any) -> Iterator[ArrayUse]:
    try:
        bound = inspect.signature(call.func).bind(*call.args, **call.keywords)
    except TypeError:  # the arguments do not fit: the call will fail before it uses anything
        return
    bound.apply_defaults()
    for name, value in bound.arguments.items():
        if name in declared:
            yield from (ArrayUse(array, declared[name], is_sure=True) for array in among(value))


def _brought_along(fn: Any) -> Iterator[object]:
    """Yield what a function can use beside its arguments, and what those can that it names.

    Functions of other packages are left out.
    """
    yield getattr(fn, "__self__", None)
    fn = getattr(fn, "__func__", fn)
    if not isinstance(fn, (types.FunctionType, type)):  # an object with a call
        fn = type(fn).__call__
    found: list[types.FunctionType] = [fn] if isinstance(fn, types.FunctionType) else []
    for one in found:  # to which the loop adds
        for value in _own(one):
            yield value
            if not isinstance(value, types.FunctionType) or value in found:
                continue
            if _root(value.__module__) == _root(one.__module__):
                found.append(value)


def _root(module: str | None) -> str:
    return str(module).partition(".")[0]


def _own(fn: types.FunctionType) -> Iterator[object]:
    """Yield a function's defaults, and the values of the variables around it that it names."""
    yield from fn.__defaults__ or ()
    yield from (fn.__kwdefaults__ or {}).values()
    for cell in fn.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:  # the variable has no value yet
            continue
    yield from (fn.__globals__[name] for name in _named(fn.__code__) if name in fn.__globals__)


@functools.lru_cache(maxsize=512)
def _named(code: CodeType) -> frozenset[str]:
    """Return the names that code uses, also inside of functions that it makes."""
    inner = (one for one in code.co_consts if isinstance(one, types.CodeType))
    return frozenset(code.co_names).union(*map(_named, inner))


@functools.lru_cache(maxsize=512)
def _hides(code: CodeType) -> bool:
    """Whether code can use what it does not name."""
    return bool(
        _HIDE & _named(code)
        or any(
            one.opname.startswith(("IMPORT_NAME", "FORMAT", "CONVERT"))  # it shows an array
            for one in dis.get_instructions(code)
        )
        or any(isinstance(one, types.CodeType) and _hides(one) for one in code.co_consts)
    )


def _is_watched_whole(
    values: Any, is_watched: Callable[[object], bool], depth: int = _DEPTH
) -> bool:
    """Whether values are no arrays but watched ones, and nothing that can signal a thread.

    They can be functions of which that is true of all that they use, and there has to be one that
    is watched or comes from a library that is.
    """
    return any(map(is_watched, among(values))) and all(
        _is_seen(one, is_watched, depth) for one in values
    )


def _is_seen(value: Any, is_watched: Callable[[object], bool], depth: int) -> bool:
    if isinstance(value, _PLAIN) or is_watched(value) or isinstance(value, (Stream, Event)):
        return True
    if isinstance(value, (*CONTAINERS, dict)):
        inside = value.values() if isinstance(value, dict) else value
        return depth > 0 and all(_is_seen(one, is_watched, depth - 1) for one in inside)
    if isinstance(value, types.FunctionType) and not _is_of_watched(value.__module__):
        return (
            depth > 0
            and not _hides(value.__code__)
            and all(_is_seen(one, is_watched, depth - 1) for one in _own(value))
        )
    if isinstance(value, (types.BuiltinMethodType, types.MethodWrapperType)):
        owner = value.__self__
        return is_watched(owner) or _is_of_watched(getattr(value, "__module__", None))
    if isinstance(value, types.ModuleType):
        return _is_of_watched(value.__name__)
    return _is_of_watched(type(value).__module__) and not hasattr(value, "wait")


def _is_of_watched(module: str | None) -> bool:
    """Whether a module belongs to a library that tells what its operators do."""
    load = registry.loaded().get(_root(module))
    return load is not None and watches(load())


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
    "__setitem__": False, "fill": True, "partition": True, "put": False, "resize": False,
    "setfield": False, "sort": True,
}  # fmt: skip
"""The methods that write their array, and whether they surely write all of it."""
_METHODS_CHANGE = {
    *(f"__i{name}__" for name in (
        "add", "and", "floordiv", "lshift", "matmul", "mod", "mul", "or", "pow", "rshift", "sub",
        "truediv", "xor",
    )), "partition", "sort",
}  # fmt: skip
"""The methods that read all of their array and write it."""
_FUNCTIONS_WRITE = {
    "copyto": True, "fill_diagonal": False, "place": False, "put": False,
    "put_along_axis": False, "putmask": False,
}  # fmt: skip
"""The functions that write their first argument, and whether they surely write all of it."""
_UFUNC_METHODS = {"reduce": 3, "accumulate": 3, "outer": None}
_WHERE = {"amax": 5, "amin": 5, "copyto": 3, "max": 5, "min": 5, "prod": 6, "reduce": 6, "sum": 6}
"""Which positional argument ``where`` is, if it can be one."""
_STOP_EARLY = {"logical_and", "logical_or"}
"""The ufuncs that reduce no further than to the first element that decides."""


def uses_of_numpy(call: Any) -> list[ArrayUse] | None:
    """Return how a call of NumPy uses arrays; None for one that is not known here."""
    numpy: Any = sys.modules.get("numpy")
    fn, args, named = call.func, call.args, call.keywords
    if numpy is None or not _is_plain(numpy, (*args, *named.values())):
        return None
    owner, name = getattr(fn, "__self__", None), getattr(fn, "__name__", "")
    found: list[ArrayUse] | None = None
    if isinstance(fn, numpy.ufunc):
        found = [*_of_ufunc(args[: fn.nin], args[fn.nin :], named)]
    elif isinstance(owner, numpy.ufunc):
        found = _of_ufunc_method(getattr(owner, "__name__", ""), name, args, named)
    elif type(owner) is numpy.ndarray:
        found = _of_function(name, (owner, *args), named, is_method=True)
    elif getattr(numpy, name, None) is fn:
        found = _of_function(name, args, named, is_method=False)
    if found and any(getattr(use.array, "size", 1) == 0 for use in found):
        return [use._replace(is_sure=False) for use in found]  # then perhaps nothing is done
    return found


def _is_plain(numpy: Any, values: tuple[Any, ...]) -> bool:
    """Whether no argument overrides what NumPy's functions do with it, or holds other arrays."""
    return all(
        (type(value) in (numpy.ndarray, numpy.memmap) and not value.dtype.hasobject)
        or not (hasattr(value, "__array_ufunc__") or hasattr(value, "__array_function__"))
        or isinstance(value, numpy.generic)
        for value in values
    )


def _is_everywhere(name: str, args: tuple[object, ...], named: Mapping[str, object]) -> bool:
    """Whether a call leaves no element out, as one with a ``where`` can do."""
    place = _WHERE.get(name, len(args))
    return named.get("where", True) is True and all(one is True for one in args[place : place + 1])


def _reads(values: object, *, is_sure: bool = True) -> Iterator[ArrayUse]:
    return (ArrayUse(array, "read", is_sure) for array in among(values))


def _writes(values: object, *, is_sure: bool = True) -> Iterator[ArrayUse]:
    return (ArrayUse(array, "write", is_sure) for array in among(values))


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
    if name == "reduceat" and args:  # it begins at the first index
        rest = _with_out({name: 3}, name, args[1:], named, is_sure=True)
        return [*_reads(args[:1], is_sure=False), *(rest or ())]
    is_sure = ufunc not in _STOP_EARLY or name != "reduce"
    return _with_out(_UFUNC_METHODS, name, args, named, is_sure=is_sure)


def _of_function(
    name: str, args: tuple[Any, ...], named: dict[str, Any], *, is_method: bool
) -> list[ArrayUse] | None:
    is_swap = is_method and name == "byteswap"
    if is_swap and not (args[1] if len(args) > 1 else named.get("inplace", False)):
        return [*_reads(args[:1])]
    if is_swap or (is_method and name in _METHODS_CHANGE):
        return [*_reads((args, named)), *_writes(args[:1])]
    writes = (_METHODS_WRITE if is_method else _FUNCTIONS_WRITE).get(name)
    if writes is not None and args:
        if name == "__setitem__":
            is_sure = len(args) > 1 and (args[1] is Ellipsis or _is_whole(args[1]))
        else:
            is_sure = writes and _is_everywhere(name, args, named)
        return [*_writes(args[:1], is_sure=is_sure), *_reads((args[1:], named), is_sure=is_sure)]
    read_all = _READ_ALL if is_method else _FUNCTIONS_READ_ALL
    found = _with_out(read_all, name, args, named, is_sure=True)
    return found or _with_out(_READ_SOME, name, args, named, is_sure=False)


def _is_whole(key: object) -> bool:
    return isinstance(key, slice) and (key.start, key.stop, key.step) == (None, None, None)


def _with_out(
    known: Mapping[str, int | None],
    name: str,
    args: tuple[Any, ...],
    named: dict[str, Any],
    *,
    is_sure: bool,
) -> list[ArrayUse] | None:
    """Return what a ``known`` function does, which reads all arguments but ``out``; else None."""
    if name not in known:
        return None
    place = known[name]
    is_sure = is_sure and _is_everywhere(name, args, named)
    named = dict(named)
    written = [named.pop("out", None)]
    inputs = list(args)
    if place is not None and len(inputs) > place:
        written.append(inputs.pop(place))
    return [*_reads((inputs, named), is_sure=is_sure), *_writes(written)]
