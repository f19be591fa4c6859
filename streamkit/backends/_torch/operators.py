"""The use that torch's operators make of tensors in the memory of the host, by their schemas.

A schema says which arguments an operator writes. A schema does not say which arguments give only
their shape, nor whether all elements are used, so such operators are listed here.
"""

from __future__ import annotations

import re
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch._ops import HigherOrderOperator
from torch.utils import _python_dispatch as dispatch
from torch.utils._pytree import tree_leaves

from streamkit._support.locks import new_lock

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence

    Tell = Callable[[str, Sequence[tuple[Any, ...]], bool], None]

_NO_ELEMENTS = re.compile(r"_like$|^_?new_|^sym_|^is_|^_has_|^set_|^_unsafe_view$")
"""Operators that use no element of a tensor unless they write the tensor."""
_ONLY_WRITE = {
    "bernoulli_", "cauchy_", "copy_", "exponential_", "fill_", "geometric_", "log_normal_",
    "normal_", "random_", "uniform_", "zero_",
}  # fmt: skip
"""Operators that write a tensor without reading it; without "_" they take only its shape."""
_WHOLE = {
    "_local_scalar_dense", "_log_softmax", "_softmax", "_to_copy", "amax", "amin", "aminmax",
    "argsort", "bmm", "cat", "clone", "cumprod", "cumsum", "dot", "linalg_vector_norm", "linear",
    "logsumexp", "mean", "mm", "mv", "native_layer_norm", "prod", "sort", "stack", "std", "sum",
    "var", "var_mean",
    *(name[:-1] for name in _ONLY_WRITE),
}  # fmt: skip
"""Operators that use every element of each tensor, as the pointwise ones do."""
_PART = {"equal", "float_power", "masked_fill", "masked_scatter", "pow", "where"}
"""Pointwise operators that leave elements out, because of other elements or of an exponent."""
_SCALED = {"addbmm", "addmm", "addmv", "addr", "baddbmm"}
"""Operators that use every element unless a factor is 0."""


@contextmanager
def watch_operators(tell: Tell) -> Generator[None]:
    """Let torch tell its operators of the thread that enters this, until any thread leaves it."""
    mode = getattr(_thread, "mode", None) or _Watching()
    try:
        _change(mode, lambda: (*mode.tells, tell))
        yield
    finally:
        _change(mode, lambda: tuple(one for one in mode.tells if one is not tell))


def _change(mode: Any, tells: Callable[[], tuple[Tell, ...]]) -> None:
    """Change whom a mode tells; it begins and ends below the others, as torch ends the topmost."""
    stack = dispatch._get_current_dispatch_mode_stack  # noqa: SLF001 - it has no public name
    with _lock:
        above = [one for one in stack() if one is not mode]
        above *= all(getattr(one, "old_dispatch_mode_flags", ()) for one in above)  # else misplaced
        if not mode.tells:
            mode.later = [m for m in above if m.is_infra_mode() and m.old_dispatch_mode_flags[-1]]
        above.sort(key=mode.later.__contains__)  # torch lists its own modes first
        try:
            for one in reversed(above):
                dispatch.TorchDispatchMode.__exit__(one, None, None, None)
            flags = vars(dispatch)  # for the whole process, of all modes
            if not _telling:
                _flags.update({name: flags[name] for name in flags if name.startswith("_is_in_")})
            mode.tells = tells()
            (_telling.add if mode.tells else _telling.discard)(mode)
            if mode.tells and getattr(_thread, "mode", None) is None:
                _thread.mode = mode.__enter__()
            elif not mode.tells and dispatch._get_current_dispatch_mode() is mode:  # noqa: SLF001 - else mute
                _thread.mode = mode.__exit__(None, None, None)
            # torch itself says wrongly whether modes tell if threads do not leave in turn
            flags.update(dict.fromkeys(_flags, True) if _telling else _flags)
            is_in = flags.get("_is_in_any_mode_without_ignore_compile_internals", False)
            flags.get(_SET_FLAG, bool)(is_in)
        finally:  # also where a signal's handler raises
            for one in [one for one in above if one not in stack()]:
                dispatch.TorchDispatchMode.__enter__(one)


def host_memory(array: Any) -> tuple[Any, bool] | None:
    """Return the storage, and whether it owns its memory, which can be another library's or shared.

    None for a sparse tensor, and for a tensor that ``torch.func`` gives in place of another.
    """
    try:
        storage = array.untyped_storage()
    except NotImplementedError:
        return None
    return storage, storage.resizable()


_SET_FLAG = "set_is_in_mode_without_ignore_compile_internals"  # private: another torch may lack it
_thread, _lock = threading.local(), new_lock()
_telling: set[_Watching] = set()  # of all threads
_flags: dict[str, bool] = {}  # torch's own flags, before the first mode


class _Watching(dispatch.TorchDispatchMode):  # type: ignore[misc]  # torch is not typed
    """The mode of a thread, one for all whom it tells, because they end in any order."""

    supports_higher_order_operators = True  # else torch refuses them while this is entered
    tells: tuple[Tell, ...] = ()
    later: Sequence[Any] = ()  # torch's own modes that began after a user's, and before this one

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Say no to a wrapper around each operator, for which torch imports its whole compiler."""
        return False  # the compiler leaves this file alone by the rule that ``compiler`` gives it

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = {} if kwargs is None else kwargs
        operator = _operators.get(id(func))
        if operator is None:
            operator = _operators[id(func)] = _operator(func)
        if operator.is_view or not self.tells:
            return func(*args, **kwargs)
        name = operator.name
        before = _uses(operator, args, kwargs)[0] if name == "resize_" else []  # what it gives up
        found = func(*args, **kwargs)
        uses, is_known = _uses(operator, args, kwargs, () if "empty" in name else found)
        if uses or not is_known:
            for tell in self.tells:
                tell(name, before + uses, is_known)
        return found


_KINDS = (torch.Tensor, torch.nn.Parameter)


class _Operator(NamedTuple):
    """What the schema of an operator says."""

    func: Any
    name: str
    is_view: bool
    arguments: list[tuple[int, str, tuple[Any, ...]]]
    """The place and the name of each argument with tensors, and how these are used."""
    is_whole: bool | None
    """Whether every element surely is used; None: unless a factor is 0."""
    is_known: bool
    """Whether the schema tells all: some of ``c10d`` work in place and declare no write."""
    training: int | None
    """The place of the argument with which batch norm writes its running statistics."""


_operators: dict[int, _Operator] = {}  # by the ids of functions, which take long to hash


def _operator(func: Any) -> _Operator:
    if isinstance(func, HigherOrderOperator):  # the operators of its functions are not seen
        return _Operator(func, func.name(), False, [(0, "", ("unknown",))], False, False, None)  # noqa: FBT003 - of a NamedTuple
    schema = func._schema  # noqa: SLF001 - as torch's own modes do
    name, names = schema.name.rpartition("::")[2], [one.name for one in schema.arguments]
    written = [one.alias_info is not None and one.alias_info.is_write for one in schema.arguments]
    is_known, arguments = any(written) or not name.endswith("_"), []
    is_copy = f"{name}_" in _ONLY_WRITE and (name != "bernoulli" or "p" in names)
    for place, one in enumerate(schema.arguments):
        is_shape = _NO_ELEMENTS.search(name) or (is_copy and one.name == "self")
        is_read = not (one.is_out or name in _ONLY_WRITE or name == "resize_")
        is_read = is_read if written[place] else not is_shape
        modes = ("read",) * is_read + ("write",) * written[place] if is_known else ("unknown",)
        if "Tensor" in str(one.type):
            arguments.append((place, one.name, modes))
    base = name.removeprefix("_foreach_").removesuffix("_")
    is_whole = base in _WHOLE or base != name.removesuffix("_") or torch.Tag.pointwise in func.tags
    is_whole = is_known and base not in _PART and is_whole
    is_view = func.is_view or (torch.Tag.inplace_view in func.tags and name != "resize_")
    training = names.index("training") if {"training", "running_mean"} <= {*names} else None
    whole = None if base in _SCALED else is_whole
    return _Operator(func, name, is_view, arguments, whole, is_known, training)


def _uses(
    operator: _Operator, args: tuple[Any, ...], kwargs: dict[str, Any], made: Any = ()
) -> tuple[list[Any], bool]:
    """Return the uses of an operator's tensors, with what it has made, and whether that is all."""
    func, _, _, arguments, is_whole, is_known, training = operator
    if isinstance(func, HigherOrderOperator):
        args = (tree_leaves((args, kwargs)),)
    if is_whole is None:
        is_whole = 0 not in (kwargs.get("alpha", 1), kwargs.get("beta", 1))
    trains, uses, owners = training is not None and args[training], [], []
    for place, name, modes in arguments:
        value = args[place] if place < len(args) else kwargs.get(name)
        both = ("read", "write") if trains and name.startswith("running_") else modes
        for tensor in (value,) if type(value) in _KINDS else _tensors(value):
            owner, _, layout, is_plain = memory = _memory(tensor)
            owners.append(id(owner))
            is_known = is_known and is_plain
            is_whole = is_whole and 0 not in layout[1]
            uses += [(tensor, mode, is_whole, memory) for mode in both if owner]
    if operator.is_whole is not False and not is_whole:  # perhaps found out after the first ones
        uses = [(tensor, mode, False, memory) for tensor, mode, _, memory in uses]
    for tensor in (made,) if type(made) in _KINDS else _tensors(made):
        owner, _, _, is_plain = memory = _memory(tensor)
        is_known = is_known and is_plain
        if owner and id(owner) not in owners:
            uses.append((tensor, "write", True, memory))
        owners.append(id(owner))
    return uses, is_known


def _memory(tensor: Any) -> tuple[Any, ...]:
    """Return the owner of a tensor's memory, whether that is its own, the layout, and if it is all.

    A file can be mapped twice, and a tensor of another kind can run code. The owner is None if the
    memory is not the tensor's own, or not the host's.
    """
    if not tensor.is_cpu:
        return None, False, (0, ()), True
    try:
        storage, is_plain = tensor.untyped_storage(), type(tensor) in _KINDS
        if not is_plain and (tensor.is_nested or storage.device.type == "meta"):
            return None, False, (0, ()), not tensor.is_nested  # a fake tensor has no memory
        layout = tensor.data_ptr(), tensor.size(), tensor.stride()
    except RuntimeError:
        return None, False, (0, ()), False
    is_own, itemsize = storage.resizable(), tensor.element_size()
    is_plain = is_plain and (is_own or storage.filename is None)
    return storage, is_own, (*layout, itemsize, itemsize, tensor.dtype), is_plain


def _tensors(value: Any) -> Sequence[Any]:
    """Return the tensors in an argument or a result, also in lists."""
    if isinstance(value, torch.Tensor):
        return (value,)
    is_several = type(value) in (list, tuple)
    return [one for part in value for one in _tensors(part)] if is_several else ()
