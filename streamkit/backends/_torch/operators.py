"""The use that torch's operators make of tensors in the memory of the host, by their schemas.

A schema says which arguments an operator writes. A schema does not say which arguments give only
their shape, nor whether all elements are used, so such operators are listed here.
"""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING, Any

import torch
from torch._ops import HigherOrderOperator
from torch.utils import _python_dispatch
from torch.utils._pytree import tree_leaves

from streamkit._support.locks import new_lock
from streamkit.protocols import ArrayUse

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    Tell = Callable[[str, Sequence[ArrayUse], bool], None]

_NO_ELEMENTS = re.compile(r"_like$|^_?new_|^sym_|^is_|^_has_|^resize_|^set_|^_unsafe_view$")
"""Operators that use no element of a tensor unless they write the tensor."""
_ONLY_WRITE = {
    "bernoulli_", "cauchy_", "copy_", "exponential_", "fill_", "geometric_", "log_normal_",
    "normal_", "random_", "uniform_", "zero_",
}  # fmt: skip
"""Operators that write a tensor in place without reading it."""
_WHOLE = {
    "_local_scalar_dense", "_log_softmax", "_softmax", "_to_copy", "amax", "amin", "aminmax",
    "argmax", "argmin", "argsort", "bmm", "cat", "clone", "convolution", "cumprod", "cumsum", "dot",
    "linalg_vector_norm", "linear", "logsumexp", "max", "mean", "min", "mm", "mv",
    "native_layer_norm", "prod", "sort", "stack", "std", "sum", "var", "var_mean",
    *(name[:-1] for name in _ONLY_WRITE),
}  # fmt: skip
"""Operators that use every element of each tensor, as the pointwise ones do."""
_PART = {"masked_fill", "masked_scatter", "where"}
"""Pointwise operators, of which the elements of one tensor select those of another."""
_SCALED = {"addbmm", "addmm", "addmv", "addr", "baddbmm"}
"""Operators that use every element unless a factor is 0."""


def watch_operators(tell: Tell) -> Any:
    """Return a mode of torch, which counts for the thread that enters it."""
    is_compiling = "torch._dynamo" in sys.modules
    return _WatchingBesideCompiler(tell) if is_compiling else _Watching(tell)


def host_memory(array: Any) -> tuple[Any, bool] | None:
    """Return the storage, and whether it owns its memory, which can be another library's or shared.

    None for a sparse tensor, and for a tensor that ``torch.func`` gives in place of another.
    """
    try:
        storage = array.untyped_storage()
    except NotImplementedError:
        return None
    return storage, storage.resizable()


_lock = new_lock()
_entered = 0  # modes of all threads
_flags: dict[str, bool] = {}  # torch's own flags, before the first mode


def _flags_of_torch() -> dict[str, bool]:
    """Return what torch notes, for the whole process, of the modes that are entered."""
    return {name: on for name, on in vars(_python_dispatch).items() if name.startswith("_is_in_")}


class _Watching(_python_dispatch.TorchDispatchMode):  # type: ignore[misc]  # torch is not typed
    supports_higher_order_operators = True  # else torch refuses them while this is entered

    def __init__(self, tell: Tell) -> None:
        super().__init__()
        self._tell = tell

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Say no to a wrapper around each operator, for which torch imports its whole compiler."""
        return False

    def __enter__(self) -> Any:
        global _entered, _flags  # noqa: PLW0603 - torch has them for the process
        with _lock:
            if not _entered:
                _flags = _flags_of_torch()
            _entered += 1
            return super().__enter__()

    def __exit__(self, *error: object) -> None:
        """Leave, and correct what torch restores if threads do not leave in turn."""
        global _entered  # noqa: PLW0603 - as above
        with _lock:
            super().__exit__(*error)
            _entered -= 1
            flags = _flags if not _entered else dict.fromkeys(_flags, True)
            vars(_python_dispatch).update(flags)
            tell = getattr(
                _python_dispatch, "set_is_in_mode_without_ignore_compile_internals", None
            )
            if tell is not None:  # private: another torch may have none
                tell(flags.get("_is_in_any_mode_without_ignore_compile_internals", False))

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if isinstance(func, HigherOrderOperator):
            return self._of_functions(func, args, kwargs)
        name = func._schema.name.rpartition("::")[2]  # noqa: SLF001 - as torch's own modes do
        found = func(*args, **kwargs)
        if not (func.is_view or torch.Tag.inplace_view in func.tags):
            every = [*_uses(func, name, args, kwargs), *_made(name, args, found)]
            uses = [use for use in every if _storage(use.array) is not None]
            if every:
                is_known = len(uses) == len(every)
                self._tell(name, uses, is_known and all(type(use.array) in _KINDS for use in uses))
        return found

    def _of_functions(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run an operator that calls functions, such as ``cond``, whose operators are not seen."""
        found = func(*args, **kwargs)
        tensors = _tensors([one for one in tree_leaves((args, kwargs)) if _is_tensor(one)])
        uses = [ArrayUse(one, "unknown", is_sure=False) for one in tensors if _storage(one)]
        self._tell(func.name(), uses, False)  # noqa: FBT003 - the contract of adapters
        return found


class _WatchingBesideCompiler(_Watching):
    """A watching mode with the wrapper, without which the compiler would compile this code too."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return True

    def __torch_dispatch__(self, *call: Any) -> Any:
        return super().__torch_dispatch__(*call)


_KINDS = (torch.Tensor, torch.nn.Parameter)


def _uses(
    func: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Iterator[ArrayUse]:
    arguments = func._schema.arguments  # noqa: SLF001 - as above
    values = [*args, *(kwargs.get(argument.name) for argument in arguments[len(args) :])]
    found = list(map(_tensors, values))
    is_whole = _is_whole(func, name, kwargs) and all(
        tensor.numel() for tensors in found for tensor in tensors
    )
    for argument, tensors in zip(arguments, found, strict=True):
        is_written = argument.alias_info is not None and argument.alias_info.is_write
        if is_written:
            is_read = not argument.is_out and name not in _ONLY_WRITE
        else:
            is_read = not _NO_ELEMENTS.search(name)
        for tensor in tensors:
            if is_read:
                yield ArrayUse(tensor, "read", is_whole)
            if is_written:
                yield ArrayUse(tensor, "write", is_whole)


def _made(name: str, args: tuple[Any, ...], found: Any) -> Iterator[ArrayUse]:
    """Yield the tensors that an operator has made and written, but for those of its arguments."""
    if "empty" not in name:
        given = {_storage(tensor) for one in args for tensor in _tensors(one)}
        for tensor in _tensors(list(found) if isinstance(found, tuple) else found):
            if _storage(tensor) not in given:
                yield ArrayUse(tensor, "write", is_sure=True)


def _storage(tensor: Any) -> int | None:
    """Return the identity of a tensor's memory, None if it has none that is its own."""
    found = host_memory(tensor)
    return None if found is None else found[0]._cdata  # noqa: SLF001 - it has no public name


def _is_whole(func: Any, name: str, kwargs: dict[str, Any]) -> bool:
    """Whether an operator surely uses every element of its tensors."""
    base = name.removeprefix("_foreach_").removesuffix("_")
    if base in _SCALED:
        return 0 not in (kwargs.get("alpha", 1), kwargs.get("beta", 1))
    return base not in _PART and (
        base in _WHOLE or base != name.removesuffix("_") or torch.Tag.pointwise in func.tags
    )


def _is_tensor(value: object) -> bool:
    return isinstance(value, torch.Tensor)


def _tensors(value: Any) -> list[Any]:
    """Return the tensors of the host in an argument."""
    if _is_tensor(value):
        return [value] if value.is_cpu else []
    return [one for part in value for one in _tensors(part)] if isinstance(value, list) else []
