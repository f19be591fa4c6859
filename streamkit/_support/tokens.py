"""Tokens: a few bytes that go to another process in place of an object, and open it there."""

from __future__ import annotations

import hmac
import json
import re
import struct
import zlib
from abc import abstractmethod
from typing import TYPE_CHECKING, Any

from streamkit._support import living_processes, messages

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Self

VERSION = 1
"""The version of the format; a token of another version is refused."""

_MAGIC = b"SKtoken"
_HEADER = struct.Struct("!7sHII")  # the magic, the version, and length and checksum of the rest

_MOST = 1 << 16  # bytes; a token has some hundred
HANDLE_SIZE = 64  # bytes, of each handle of CUDA's for other processes

_PROCESS = re.compile(r"/[^\0]+/[0-9a-f]{16}")  # a process's name, which is a path
_UUID = re.compile(r"GPU-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")

_HEX = re.compile(r"[0-9a-f]*")
_SEAL = re.compile(r"([0-9a-f]{32})?")

_kinds: dict[str, Callable[[dict[str, Any]], Token]] = {}


class Token:
    """A token with a form in bytes, which a pickle holds. Equal tokens open the same object."""

    __slots__ = ("_process", "_seal")

    _kind = ""  # names the class in the bytes

    def __init__(self, process: str) -> None:
        self._process, self._seal = process, ""

    def __init_subclass__(cls) -> None:
        _kinds[cls._kind] = cls._of

    @abstractmethod
    def _content(self) -> dict[str, Any]:
        """Return the token's content, of types that JSON has, for ``_of`` to read."""

    @classmethod
    @abstractmethod
    def _of(cls, content: dict[str, Any]) -> Self:
        """Return the token of a content; KeyError, TypeError or ValueError if that is wrong."""

    def sealed(self) -> Self:
        """Return this token with the seal that proves that it is of this process."""
        self._seal = self._own_seal()
        return self

    def check(self) -> None:
        """Refuse a token that its process has not made: a forged handle can crash the driver.

        Raises ValueError for such a token; StreamClosedError if the process has ended.
        """
        try:
            own = self._own_seal()
        except FileNotFoundError as error:
            raise messages.gone(self, self._process) from error
        if not hmac.compare_digest(own.encode(), self._seal.encode(errors="replace")):
            raise ValueError(
                f"{messages.describe(self)} was not made by the process that it names, or it was "
                "changed on the way, so nothing was opened. Send bytes(token) as it is."
            )

    def _own_seal(self) -> str:
        return living_processes.seal(self._process, _dumped([self._kind, self._content()]))

    def __bytes__(self) -> bytes:
        """Return the bytes that ``streamkit.processes.token_from_bytes`` reads."""
        body = _dumped([self._kind, self._content(), self._seal])
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
    """A token from which ``streamkit.processes.open_event`` opens an event of another process.

    The token can be pickled. Programs that unpickle nothing can send ``bytes(token)``, which
    ``streamkit.processes.token_from_bytes`` reads.
    """

    __slots__ = ("handle", "process", "uuid")

    _kind = "event"

    def __init__(self, process: str, uuid: str, handle: bytes) -> None:
        super().__init__(process)
        self.process: str = process
        """The path of the file by which other processes know the one that made the token."""
        self.uuid: str = uuid
        """The UUID of the event's device, as CUDA_VISIBLE_DEVICES takes it."""
        self.handle: bytes = handle
        """CUDA's handle of the event."""

    def _content(self) -> dict[str, Any]:
        return {"process": self.process, "uuid": self.uuid, "handle": self.handle.hex()}

    @classmethod
    def _of(cls, content: dict[str, Any]) -> Self:
        process = text(content["process"], _PROCESS)
        return cls(process, text(content["uuid"], _UUID), handle(content["handle"]))

    def __repr__(self) -> str:
        return f"<streamkit.EventToken {self.uuid}>"


def _unpickle(_: type, data: bytes) -> Token:
    return read(data)  # the class is an argument so that its module is imported


def read(data: Any) -> Token:
    """Return the token in these bytes.

    TypeError if they are not bytes, ValueError if they are not a token of this version.
    """
    if not isinstance(data, (bytes, bytearray, memoryview)):
        raise TypeError(f"a token is read from bytes, not from {messages.describe(data)}.")
    if memoryview(data).nbytes > _MOST:
        raise _garbage(f"a token has at most {_MOST} bytes")
    whole = bytes(data)
    if len(whole) < _HEADER.size or not whole.startswith(_MAGIC):
        raise _garbage("they do not begin like one")
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
        kind, content, seal = json.loads(body)
        token = _kinds[kind](dict(content))
        token._seal = text(seal, _SEAL)  # noqa: SLF001 - of its own class
    except KeyError as error:
        raise _garbage(f"what it says lacks {error}") from error
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise _garbage(f"what it says cannot be read: {error}") from error
    return token


def text(value: object, pattern: re.Pattern[str]) -> str:
    """Return the value if it is a text of that pattern, else raise ValueError."""
    if not isinstance(value, str) or not pattern.fullmatch(value):
        raise ValueError(f"{value!r:.60} is not of the form {pattern.pattern}")
    return value


def number(value: object) -> int:
    """Return the value if it is a number of 63 bits and a sign, else raise ValueError."""
    if type(value) is not int or not -(1 << 63) < value < 1 << 63:
        raise ValueError(f"{value!r:.60} is not a whole number of 64 bits")
    return value


def handle(value: object) -> bytes:
    """Return the bytes of a CUDA handle, ValueError if their number is wrong."""
    found = bytes.fromhex(text(value, _HEX))
    if len(found) != HANDLE_SIZE:
        raise ValueError(f"a handle of CUDA's has {HANDLE_SIZE} bytes, and this one {len(found)}")
    return found


def _dumped(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def _garbage(why: str) -> ValueError:
    return ValueError(
        f"these bytes are not a token of StreamKit: {why}. Send bytes(token) as it is, and "
        "all of it."
    )
