"""What goes to another process in place of an object: a few bytes that say what to open there."""

from __future__ import annotations

import json
import re
import struct
import zlib
from abc import abstractmethod
from typing import TYPE_CHECKING, Any

from streamkit._base import messages

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Self

VERSION = 1
"""The version of the format; a token of another version is refused."""

_MAGIC = b"SKtoken"
_HEADER = struct.Struct("!7sHII")  # the magic, the version, and length and checksum of the rest

_PROCESS = re.compile(r"[0-9a-f]{16}")  # a process's name, as files have it

_kinds: dict[str, Callable[[dict[str, Any]], Token]] = {}


class Token:
    """A token, which has a form in bytes; a pickle holds these bytes. Equal ones open the same."""

    __slots__ = ()

    _kind = ""  # names the class in the bytes

    def __init_subclass__(cls) -> None:
        _kinds[cls._kind] = cls._of

    @abstractmethod
    def _content(self) -> dict[str, Any]:
        """Return what JSON can hold; ``_of`` reads it."""

    @classmethod
    @abstractmethod
    def _of(cls, content: dict[str, Any]) -> Self:
        """Return the token of that content; KeyError, TypeError or ValueError if it is wrong."""

    def __bytes__(self) -> bytes:
        """Return what ``streamkit.processes.token_from_bytes`` reads."""
        body = json.dumps([self._kind, self._content()], separators=(",", ":")).encode()
        return _HEADER.pack(_MAGIC, VERSION, len(body), zlib.crc32(body)) + body

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpickle, (type(self), bytes(self))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Token):
            return NotImplemented
        return bytes(self) == bytes(other)

    def __hash__(self) -> int:
        return hash(bytes(self))


class EventToken(Token):
    """What ``streamkit.processes.open_event`` opens an event of another process from.

    It can be pickled. For those who unpickle nothing, ``bytes(token)`` gives bytes that
    ``streamkit.processes.token_from_bytes`` reads.
    """

    __slots__ = ("handle", "process", "uuid")

    _kind = "event"

    def __init__(self, process: str, uuid: str, handle: bytes) -> None:
        self.process: str = process
        """The name that the process has in files of StreamKit."""
        self.uuid: str = uuid
        """The UUID of the event's device, as CUDA_VISIBLE_DEVICES takes it."""
        self.handle: bytes = handle
        """CUDA's handle of the event."""

    def _content(self) -> dict[str, Any]:
        return {"process": self.process, "uuid": self.uuid, "handle": self.handle.hex()}

    @classmethod
    def _of(cls, content: dict[str, Any]) -> Self:
        process = text(content["process"])
        if not _PROCESS.fullmatch(process):
            raise ValueError(process)
        return cls(process, text(content["uuid"]), bytes.fromhex(content["handle"]))

    def __repr__(self) -> str:
        return f"<streamkit.EventToken {self.uuid}>"


def _unpickle(_: type, data: bytes) -> Token:
    return read(data)  # the class is there so that its module is imported


def read(data: Any) -> Token:
    """Return the token in these bytes.

    TypeError if they are no bytes, ValueError if they are no token of this version.
    """
    if not isinstance(data, (bytes, bytearray, memoryview)):
        raise TypeError(f"a token is read from bytes, not from {messages.describe(data)}.")
    whole = bytes(data)
    if len(whole) < _HEADER.size or not whole.startswith(_MAGIC):
        raise _garbage("they do not begin as one")
    _, version, length, checksum = _HEADER.unpack_from(whole)
    if version != VERSION:
        raise ValueError(
            f"the token was made by another version of StreamKit: its format is {version}, and "
            f"this one reads {VERSION}. Install the same version in both processes."
        )
    body = whole[_HEADER.size :]
    if len(body) != length or zlib.crc32(body) != checksum:
        raise _garbage("a part is missing or was changed")
    try:
        kind, content = json.loads(body)
        return _kinds[kind](dict(content))
    except (KeyError, TypeError, ValueError, OverflowError, RecursionError) as error:
        raise _garbage("what it says cannot be read") from error


def text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError
    return value


def _garbage(why: str) -> ValueError:
    return ValueError(
        f"these bytes are no token of StreamKit: {why}. Send bytes(token) as it is, and all of it."
    )
