"""A process as others know it: by a name, and a locked file that tells whether it lives.

The system releases the lock when the process ends, however it ends. A process id would not do,
because the system gives it to another process later.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import secrets
import tempfile
from pathlib import Path
from typing import Any

from streamkit import errors
from streamkit._base import locks
from streamkit._base.locks import new_lock

_lock = new_lock()
_name: str | None = None
_open: dict[int, LockedFile] = {}  # by descriptor: their locks are this process's alone


class LockedFile:
    """An open file of the folder, and a lock on it that ends with this process."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        _open[descriptor] = self

    def is_linked(self) -> bool:
        return os.fstat(self.descriptor).st_nlink > 0

    def lock(self, *, shared: bool) -> bool:
        """Take the lock; False if another process has it. Never waits."""
        system = _fcntl()
        mode = system.LOCK_SH if shared else system.LOCK_EX
        try:
            system.flock(self.descriptor, mode | system.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def close(self) -> None:
        """Give up the lock; nothing happens the second time, nor in a forked child."""
        if _open.get(self.descriptor) is self:  # the number can be another file's by now
            del _open[self.descriptor]
            os.close(self.descriptor)


def create(name: str) -> LockedFile:
    """Create a file in the folder; FileExistsError if there is one of that name."""
    flags = os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_APPEND | os.O_CLOEXEC
    return LockedFile(os.open(folder() / name, flags, 0o600))


def find(name: str) -> LockedFile:
    """Open a file of the folder; FileNotFoundError if there is none of that name."""
    return LockedFile(os.open(folder() / name, os.O_RDWR | os.O_APPEND | os.O_CLOEXEC))


def remove(name: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        (folder() / name).unlink()


def folder() -> Path:
    """Return the folder of this user's files, in memory if the system has files there.

    UnsupportedStreamError on a system where CUDA shares nothing between processes.
    """
    _fcntl()
    memory = Path("/dev/shm")  # noqa: S108 - a folder of this user's alone, in it
    path = memory if memory.is_dir() else Path(tempfile.gettempdir())
    path /= f"streamkit-{os.getuid()}"
    path.mkdir(mode=0o700, exist_ok=True)
    found = path.lstat()
    if path.is_symlink() or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise PermissionError(
            f"{path} is not a folder of this user's alone, and so not safe. Remove it."
        )
    return path


def _fcntl() -> Any:
    try:
        import fcntl  # noqa: PLC0415 - not every system has it
    except ImportError as error:
        raise errors.UnsupportedStreamError(
            "CUDA shares events and memory between processes on Linux only. Elsewhere, send a "
            "copy of the array."
        ) from error
    return fcntl


def own_name() -> str:
    """Return this process's name; the first call announces it."""
    global _name  # noqa: PLW0603 - a process has one name
    with _lock:
        if _name is None:
            for path in folder().iterdir():
                if "." not in path.name:
                    is_alive(path.name)  # removes what a killed process left
            _name = _announce()
        return _name


def is_own(name: str) -> bool:
    return name == _name


def _announce() -> str:
    while True:
        name = secrets.token_hex(8)
        held = create(name)
        if held.lock(shared=False) and held.is_linked():
            break
        held.close()  # another process has removed it, because it was not locked yet
    owner = os.getpid()

    def end() -> None:
        if os.getpid() == owner:
            remove(name)

    atexit.register(end)
    return name


def is_alive(name: str) -> bool:
    """Whether the process of this name is running; if it was killed, remove the files it left."""
    if is_own(name):
        return True
    try:
        found = find(name)
    except FileNotFoundError:
        return False
    try:
        if not found.lock(shared=True):
            return True
        for path in folder().glob(f"{name}.*"):
            remove(path.name)
        remove(name)
        return False
    finally:
        found.close()


def _be_another_process() -> None:
    """In a forked child: forget the parent's name, and leave its locks to it."""
    global _name  # noqa: PLW0603 - see above
    _name = None
    for descriptor in tuple(_open):
        with contextlib.suppress(OSError):
            os.close(descriptor)
    _open.clear()


locks.in_child(_be_another_process)
