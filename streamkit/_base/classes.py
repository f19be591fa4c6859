"""What the classes of our objects share: a quick ``isinstance``, and other libraries' names."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn, Protocol, TypeVar

if TYPE_CHECKING:
    from abc import ABCMeta
    from collections.abc import Callable, Iterable, Mapping

    ProtocolMeta = ABCMeta
else:
    ProtocolMeta = type(Protocol)

KindT = TypeVar("KindT", bound=type)

_ABSENT = object()


class StaticProtocol(ProtocolMeta):
    """A protocol whose ``isinstance`` evaluates no property.

    The one of Python 3.11 reads every member, which would ask a closed stream for its handle and
    the driver for its state.
    """

    def __instancecheck__(cls, instance: object) -> bool:  # noqa: N805 - the instance is a class
        if type.__instancecheck__(cls, instance):
            return True
        if isinstance(instance, type):
            return False
        import inspect  # noqa: PLC0415 - slow to import, and seldom needed

        members = cls.__dict__.get("_members", ())
        return bool(members) and all(
            inspect.getattr_static(instance, name, _ABSENT) is not _ABSENT for name in members
        )


class Concrete(StaticProtocol):
    """The metaclass of the classes that implement these protocols: a plain, fast ``isinstance``."""

    if not TYPE_CHECKING:  # type checkers do not see that the signature is the same
        __instancecheck__ = type.__instancecheck__  # the C function

    def __dir__(cls) -> list[str]:  # noqa: N805 - the instance is a class
        return hide(cls, super().__dir__())


# -- names that other libraries have for what StreamKit calls otherwise -------------------------

# To ``hasattr`` and ``dir`` they are not there, so no library takes our objects for its own. They
# are attributes of the class, because a ``__getattr__`` makes every attribute slower on Python
# 3.11.

OF_STREAMS = {
    "synchronize": "sync()",
    "query": "done",
    "is_complete": "done",
    "wait_stream": "wait(stream)",
    "wait_event": "wait(event)",
    "record_event": "record(event)",
    "ptr": "handle",
    "cuda_stream": "handle",
}
OF_EVENTS = {
    "synchronize": "sync()",
    "query": "done",
    "is_complete": "done",
    "is_done": "done",
    "record": "stream.record(event)",
    "wait": "stream.wait(event)",
    "elapsed_time": "end - start",
    "ptr": "handle",
    "cuda_event": "handle",
}


class _OtherName:
    """A name that is not there; asking for it raises AttributeError with the name that is."""

    def __init__(self, name: str, ours: str) -> None:
        self._name, self._ours = name, ours

    def __get__(self, obj: object, kind: type) -> NoReturn:
        message = f"{kind.__name__!r} object has no attribute {self._name!r}: "
        raise AttributeError(f"{message}it is {self._ours} here.")


def answer(names: Mapping[str, str]) -> Callable[[KindT], KindT]:
    """Return a decorator: objects of the class answer other libraries' names with ours."""

    def decorate(kind: KindT) -> KindT:
        members: dict[str, object] = {name: _OtherName(name, ours) for name, ours in names.items()}
        members["__dir__"] = lambda self: hide(type(self), object.__dir__(self))
        for name, member in members.items():
            setattr(kind, name, member)
        return kind

    return decorate


def hide(kind: type, names: Iterable[str]) -> list[str]:
    """Return the names without those that are not there."""
    members: dict[str, object] = {}
    for base in reversed(kind.__mro__):
        members |= vars(base)
    return [name for name in names if not isinstance(members.get(name), _OtherName)]
