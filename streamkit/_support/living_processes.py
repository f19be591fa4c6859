"""The names of processes: paths of locked files, which tell whether a process still lives.

The system releases the lock when the process ends, however it ends. A process id would not do,
because the system gives it to another process later. The file lies in a folder of this user alone,
whose name is random, so that no other user can take it first; tokens bring the path. The file holds
a key with which the process seals its tokens, because a forged handle can crash CUDA's driver.
"""

from __future__ import annotations

import atexit
import contextlib
import hmac
import os
import re
import secrets
import stat
import tempfile
from pathlib import Path
from typing import Any

from streamkit import errors
from streamkit._support import locks
from streamkit._support.locks import new_lock

_lock = new_lock()
_name: str | None = None
_key = b""
_KEY_SIZE = 32
SETTING = "STREAMKIT_RUNTIME_DIR"
"""The environment variable that names the folder in which the files' folder is made."""
NAME = re.compile(r"[0-9a-f]{16}")  # of a process's file
_PREFIX = "streamkit-shares-"  # of the folder: a token names no file outside such a one
_open: dict[int, LockedFile] = {}  # by descriptor, the files whose locks this process holds


class LockedFile:
    """An open file of the folder, and a lock on it that ends with this process."""

    def __init__(self, name: str, flags: int) -> None:
        self._name = name
        self.descriptor: int = os.open(name, flags | os.O_RDWR | os.O_APPEND, 0o600)
        _open[self.descriptor] = self

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

    def append(self, data: bytes) -> None:
        """Write at the end, in one step for all processes."""
        try:
            os.write(self.descriptor, data)
        except OSError as error:
            parent = Path(self._name).parent
            error.add_note(f"StreamKit writes in {parent}: free space there, or set {SETTING}.")
            raise

    def replace(self, data: bytes) -> None:
        """Overwrite the bytes that ``append`` wrote, which needs no space; nothing once closed."""
        if _open.get(self.descriptor) is self:
            start = os.lseek(self.descriptor, 0, os.SEEK_CUR) - len(data)
            _fcntl().fcntl(self.descriptor, _fcntl().F_SETFL, 0)  # else it would append
            os.pwrite(self.descriptor, data, start)

    def close(self) -> None:
        """Give up the lock; a second call does nothing, nor does one in a forked child."""
        if _open.get(self.descriptor) is self:  # the number can be another file's by now
            del _open[self.descriptor]
            os.close(self.descriptor)


def create(name: str) -> LockedFile:
    """Create the file of that path; FileExistsError if there is one."""
    return LockedFile(name, os.O_CREAT | os.O_EXCL | os.O_CLOEXEC)


def find(name: str) -> LockedFile:
    """Open the file of that path; FileNotFoundError if there is none.

    PermissionError if its folder, which a token names, is not this user's alone.
    """
    _fcntl()
    path = Path(name).parent
    if not _is_private(path.lstat()) or not path.name.startswith(_PREFIX):
        raise PermissionError(
            f"{path}, in which a token names a file, is not a folder of this user's alone, so "
            "nothing in it is opened. Both processes need the same user."
        )
    return LockedFile(name, os.O_CLOEXEC | os.O_NOFOLLOW)


def remove(name: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        Path(name).unlink()


def folder() -> Path:
    """Return this user's folder for the files, which is made if there is none.

    Its parent is the folder that the setting names, else the folder of the user's session, else
    one in memory if the system has it. OSError, with a note, if the folder cannot be made;
    UnsupportedStreamError on a system where CUDA shares nothing between processes.
    """
    _fcntl()
    chosen, session = os.environ.get(SETTING), os.environ.get("XDG_RUNTIME_DIR")
    memory = Path("/dev/shm")  # noqa: S108 - a folder of this user's alone, in it
    if chosen:
        parent = Path(chosen)
    elif session and _is_private_folder(Path(session)):  # after ``sudo`` it can be another user's
        parent = Path(session)
    else:
        parent = memory if memory.is_dir() else Path(tempfile.gettempdir())
    parent = parent.resolve()
    own = [path for path in sorted(parent.glob(f"{_PREFIX}*")) if _is_private_folder(path)]
    if own:
        return own[0]
    try:
        return Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent))
    except OSError as error:
        error.add_note(f"Name a folder in which this user can write: {SETTING}=FOLDER.")
        raise


def _is_private_folder(path: Path) -> bool:
    try:
        return _is_private(path.lstat())
    except OSError:
        return False


def _is_private(found: os.stat_result) -> bool:
    is_own = found.st_uid == os.geteuid() and not found.st_mode & 0o077
    return stat.S_ISDIR(found.st_mode) and is_own  # a link would lead to where another user likes


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
            own = folder()
            for path in own.iterdir():
                if NAME.fullmatch(path.name):  # leave other files alone
                    is_alive(str(path))  # removes what a killed process left
            _name = _announce(own)
        return _name


def is_own(name: str) -> bool:
    return name == _name


def _announce(own: Path) -> str:
    global _key  # noqa: PLW0603 - a process has one key, with its name
    key = secrets.token_bytes(_KEY_SIZE)
    while True:
        name = str(own / secrets.token_hex(8))
        held = create(name)
        try:
            if held.lock(shared=False) and held.is_linked():
                held.append(key)
                break
        except BaseException:
            remove(name)
            held.close()
            raise
        held.close()  # another process has removed the file, which was not locked yet
    _key = key
    owner = os.getpid()

    def end() -> None:
        if os.getpid() == owner:
            remove(name)

    atexit.register(end)
    return name


def is_alive(name: str) -> bool:
    """Whether the process of this name runs; remove the files that a killed process left."""
    if is_own(name):
        return True
    try:
        found = find(name)
    except FileNotFoundError:
        return False
    try:
        if not found.lock(shared=True):
            return True
        path = Path(name)
        for left in path.parent.glob(f"{path.name}.*"):
            remove(str(left))
        remove(name)
        return False
    finally:
        found.close()


def seal(name: str, data: bytes) -> str:
    """Return the proof that data comes from a process; FileNotFoundError if it has ended."""
    key = _key
    if not is_own(name):
        found = find(name)
        try:
            key = os.pread(found.descriptor, _KEY_SIZE, 0)
        finally:
            found.close()
    return hmac.digest(key, data, "sha256").hex()[:32]


def _be_another_process() -> None:
    """Forget the parent's name in a forked child, and leave the parent's locks to the parent."""
    global _name  # noqa: PLW0603 - a process has one name
    _name = None
    for descriptor in tuple(_open):
        with contextlib.suppress(OSError):
            os.close(descriptor)
    _open.clear()


locks.in_child(_be_another_process)
