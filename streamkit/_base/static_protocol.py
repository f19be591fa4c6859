"""``isinstance`` with a protocol, without reading a property of the object."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from streamkit._base.other_names import hide

if TYPE_CHECKING:
    from abc import ABCMeta

    ProtocolMeta = ABCMeta
else:
    ProtocolMeta = type(Protocol)

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
