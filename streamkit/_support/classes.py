"""The common base of our objects' classes: a quick ``isinstance``, and other libraries' names."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn, Protocol, TypeVar

if TYPE_CHECKING:
    from abc import ABCMeta
    from collections.abc import Callable, Iterable, Mapping

    ProtocolMeta = ABCMeta
else:
    ProtocolMeta = type(Protocol)

KindT = TypeVar("KindT", bound=type)

_made_by: dict[object, str] = {}  # by protocol, the functions that return its objects

_ABSENT = object()


class StaticProtocol(ProtocolMeta):
    """A protocol whose ``isinstance`` evaluates no property.

    Python 3.11's ``isinstance`` reads every member, which would ask a closed stream for its handle
    and the driver for its state. A call of the protocol itself says what to call instead.
    """

    if not TYPE_CHECKING:  # to type checkers each class would give anything at all

        def __call__(cls, *arguments: Any, **named: Any) -> Any:  # noqa: N805 - a metaclass
            how = _made_by.get(cls)
            if how is not None:
                raise TypeError(f"streamkit.{cls.__name__} is an interface, not a class: {how}.")
            return super().__call__(*arguments, **named)

    def __instancecheck__(cls, instance: object) -> bool:  # noqa: N805 - the instance is a class
        if type.__instancecheck__(cls, instance):
            return True
        if isinstance(instance, type):
            return False
        import inspect  # noqa: PLC0415 - slow to import, and seldom needed

        return cls in _made_by and all(
            inspect.getattr_static(instance, name, _ABSENT) is not _ABSENT
            for name in cls.__abstractmethods__
        )


def made_by(how: str) -> Callable[[KindT], KindT]:
    """Return a decorator: a call of the protocol raises TypeError that says what to call."""

    def decorate(kind: KindT) -> KindT:
        _made_by[kind] = how
        return kind

    return decorate


class Concrete(StaticProtocol):
    """The metaclass of the classes that implement these protocols: a plain, fast ``isinstance``."""

    if not TYPE_CHECKING:  # type checkers do not see that the signature is the same
        __instancecheck__ = type.__instancecheck__  # the C functions
        __call__ = type.__call__

    def __dir__(cls) -> list[str]:  # noqa: N805 - the instance is a class
        return hide(cls, super().__dir__())


# -- other libraries' names for members of our objects ------------------------------------------

# ``hasattr`` and ``dir`` do not see these names, so no library takes our objects for its own. The
# names are attributes of the class, because a ``__getattr__`` makes every attribute slower on
# Python 3.11.


class _OtherName:
    """Another library's name for a member, which raises AttributeError with the line to write."""

    def __init__(self, name: str, line: str) -> None:
        self._name, self._line = name, line

    def __get__(self, obj: object, kind: type) -> NoReturn:
        message = f"{kind.__name__!r} object has no attribute {self._name!r}: "
        raise AttributeError(f"{message}write '{self._line}' instead.")


def answer(names: Mapping[str, str]) -> Callable[[KindT], KindT]:
    """Return a decorator: objects of the class answer these names with the line to write."""

    def decorate(kind: KindT) -> KindT:
        members: dict[str, object] = {name: _OtherName(name, line) for name, line in names.items()}
        members["__dir__"] = lambda self: hide(type(self), object.__dir__(self))
        for name, member in members.items():
            setattr(kind, name, member)
        return kind

    return decorate


def hide(kind: type, names: Iterable[str]) -> list[str]:
    """Return the names without the class's ``_OtherName``s."""
    members: dict[str, object] = {}
    for base in reversed(kind.__mro__):
        members |= vars(base)
    return [name for name in names if not isinstance(members.get(name), _OtherName)]
