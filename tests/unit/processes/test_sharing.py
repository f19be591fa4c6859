"""What processes share, as far as it goes without CUDA: tokens, names of processes, and leases."""

from __future__ import annotations

import importlib.util
import os
import pickle
import signal
import struct
import subprocess
import sys
import time
import types
import weakref
import zlib

import pytest

import streamkit as sk
from streamkit._queues import keepalive  # what other calls of StreamKit do on the way
from streamkit._support import living_processes  # who lives, which `share` and `open` ask
from streamkit._support.tokens import EventToken  # as `event.export()` makes it
from streamkit.backends._managed_tensor import Layout  # what that holds
from streamkit.processes import (  # what an owner keeps, and what is open here
    kept,
    mappings,
    open_event,
    token_from_bytes,
)
from streamkit.processes.array_token import ArrayToken, SharedMemory  # as `share` makes it
from support.programs import needs_fork, run_python

pytestmark = pytest.mark.portable

has_locks = pytest.mark.skipif(
    importlib.util.find_spec("fcntl") is None, reason="this system has no fcntl"
)

NAME = "/run/user/1000/streamkit-shares-k2x/0123456789abcdef"  # of a process, which is a path
EVENT = EventToken(NAME, "GPU-00000000-1111-2222-3333-444444444444", bytes(64))
MEMORY = SharedMemory(9, bytes(range(64)), 4096)
ARRAY = ArrayToken(f"{NAME}.7", EVENT, MEMORY, Layout(512, (3, 4), (8, -2), (2, 32, 1)), "lib")


# -- tokens ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("token", [EVENT, ARRAY])
def test_a_token_is_the_same_after_a_journey(token):
    for arrived in (pickle.loads(pickle.dumps(token)), token_from_bytes(bytes(token))):  # noqa: S301 - its own
        assert arrived == token
        assert hash(arrived) == hash(token)
        assert type(arrived) is type(token)
        assert repr(arrived) == repr(token)
        assert arrived.uuid == EVENT.uuid
    assert EVENT != ARRAY
    assert bytes(EVENT) != EVENT
    assert len(pickle.dumps(token)) < 1000


def test_a_process_that_has_imported_nothing_yet_unpickles_it():
    text = pickle.dumps(ARRAY).hex()
    done = run_python("-c", f"import pickle; print(pickle.loads(bytes.fromhex('{text}')))")
    assert done.stdout == f"{ARRAY}\n", done.stderr


def with_body(body, *, version=1, magic=b"SKtoken"):
    """The bytes of a token that says this."""
    return struct.pack("!7sHII", magic, version, len(body), zlib.crc32(body)) + body


@pytest.mark.parametrize(
    "data",
    [
        b"", b"garbage", bytes(100), bytes(ARRAY)[:-1], bytes(ARRAY)[:10], bytes(ARRAY) + b"x",
        bytes(ARRAY).replace(b'"lib"', b'"bil"'), with_body(b"[]"), with_body(b"\xff"),
        with_body(b'["other",{}]'), with_body(b'["event",{}]'), with_body(b'["event",[1]]'),
        *(with_body(bytes(EVENT)[17:].replace(*change)) for change in (
            (NAME.encode(), b"../../x"), (b'"' + NAME.encode() + b'"', b"1"), (b"00" * 64, b"z"),
            (b'""]', b'"z"]'), (b',""]', b"]"),
        )),
        with_body(b"{}", magic=b"SKtokex"), with_body(b"[" * 100_000),
        bytes(ARRAY)[:17] + bytes(ARRAY)[18:],
        with_body(bytes(ARRAY)[17:].replace(b"512", b"1e999")),
    ],
)  # fmt: skip
def test_what_is_no_token_is_a_value_error(data):
    with pytest.raises(ValueError, match="not a token of StreamKit"):
        token_from_bytes(data)


@pytest.mark.parametrize(
    "lease", ["/run/user/1000/streamkit-shares-k2x/../x/0123456789abcdef.7", NAME]
)
def test_a_lease_in_another_folder_is_refused(lease):
    """Else whoever sends a token could have any file opened."""
    token = ArrayToken(lease, EVENT, MEMORY, Layout(0, (), (), (2, 32, 1)), "lib")
    with pytest.raises(ValueError, match="not a token of StreamKit"):
        token_from_bytes(bytes(token))


FLOAT = 2, 32, 1


@pytest.mark.parametrize(
    ("layout", "wrong"),
    {
        "half a layout": (Layout(0, (3,), (), FLOAT), "1 lengths and 0 strides"),
        "too many axes": (Layout(0, (1,) * 65, (1,) * 65, FLOAT), "65 lengths"),
        "a negative length": (Layout(0, (-5,), (1,), FLOAT), "a length of -5"),
        "no elements": (Layout(0, (4, 0), (1, 1), FLOAT), "a length of 0"),
        "huge": (Layout(0, (1 << 50,), (1,), FLOAT), "0 to 4503599627370496 of an allocation"),
        "one element too far": (Layout(4, (1024,), (1,), FLOAT), "4 to 4100 of an allocation"),
        "before the allocation": (Layout(-4, (4,), (1,), FLOAT), "-4 to 12 of an allocation"),
        "backwards, out of it": (Layout(8, (4,), (-1,), FLOAT), "-4 to 12 of an allocation"),
        "a large offset": (Layout(1 << 80, (4,), (1,), FLOAT), "not a whole number of 64 bits"),
        "an offset that is no number": (Layout(1.5, (4,), (1,), FLOAT), "not a whole number"),
        "an offset that is a truth": (Layout(True, (4,), (1,), FLOAT), "not a whole number"),
        "bits of -8": (Layout(0, (4,), (1,), (2, -8, 1)), "-8 bits"),
        "no lanes": (Layout(0, (4,), (1,), (2, 32, 0)), "0 lanes"),
        "a type that does not exist": (Layout(0, (4,), (1,), (99, 8, 1)), "no type of code 99"),
    }.values(),
)
def test_a_layout_that_leaves_its_allocation_is_refused(layout, wrong):
    """Before anything is opened: an array made of it would reach into its neighbours."""
    token = ArrayToken(f"{NAME}.7", EVENT, MEMORY, layout, "lib")
    with pytest.raises(ValueError, match=f"not a token of StreamKit: .*{wrong}"):
        token_from_bytes(bytes(token))


def test_an_array_that_fills_its_allocation_is_read():
    for layout in (Layout(0, (1024,), (1,), FLOAT), Layout(4092, (1024,), (-1,), FLOAT)):
        token = ArrayToken(f"{NAME}.7", EVENT, MEMORY, layout, "lib")
        assert token_from_bytes(bytes(token)) == token


@pytest.mark.parametrize("size", [0, 3, 65])
def test_a_handle_of_another_size_is_refused(size):
    wrong = f"has 64 bytes, and this one {size}"
    with pytest.raises(ValueError, match=wrong):
        token_from_bytes(bytes(EventToken(NAME, EVENT.uuid, bytes(size))))
    token = ArrayToken(
        f"{NAME}.7", EVENT, MEMORY._replace(handle=bytes(size)), ARRAY._layout, "lib"
    )
    with pytest.raises(ValueError, match=wrong):
        token_from_bytes(bytes(token))


def test_what_is_too_long_is_refused_unread():
    with pytest.raises(ValueError, match="at most 65536 bytes"):
        token_from_bytes(with_body(bytes(EVENT)[17:].replace(b"GPU-", b"GPU-" * (1 << 20))))
    with pytest.raises(ValueError, match="'GPU-x' is not of the form"):
        token_from_bytes(bytes(EventToken(NAME, "GPU-x", bytes(64))))


def test_another_version_is_told_apart_from_garbage():
    with pytest.raises(ValueError, match="format is 2, and this one reads 1"):
        token_from_bytes(with_body(b"something new", version=2))


@pytest.mark.parametrize("wrong", [None, "text", 5, EVENT])
def test_what_is_not_bytes_is_a_type_error(wrong):
    with pytest.raises(TypeError, match="read from bytes"):
        token_from_bytes(wrong)


def test_every_kind_of_bytes_will_do():
    for kind in (bytes, bytearray, memoryview):
        assert token_from_bytes(kind(bytes(EVENT))) == EVENT


def until(done):
    """Whether it becomes true, for which a slow machine has time."""
    limit = time.monotonic() + 60
    while not done():
        if time.monotonic() > limit:
            return False
        time.sleep(0.003)
    return True


# -- names of processes, and leases ---------------------------------------------------------------

OTHER = """
import errno, os, sys
from streamkit._support import living_processes  # as above
from streamkit._support.tokens import EventToken  # as above
from streamkit.processes import kept  # as above
def full(*_):
    raise OSError(errno.ENOSPC, "No space left on device")
def while_full(call):
    write, os.write = os.write, full
    try:
        return call()
    except OSError as error:
        return error.__notes__
    finally:
        os.write = write
print(living_processes.own_name(), flush=True)
for line in sys.stdin:
    print(eval(line), flush=True)
"""


class Other:
    """Another process, which evaluates what it is told."""

    def __init__(self):
        self.process = subprocess.Popen(
            [sys.executable, "-c", OTHER],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            encoding="utf-8",
        )
        self.name = self.process.stdout.readline().strip()

    def __call__(self, line):
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        return self.process.stdout.readline().strip()

    def end(self, how):
        if how == "kill":
            self.process.send_signal(signal.SIGKILL)
        self.process.stdin.close()
        self.process.wait(60)
        self.process.stdout.close()


@pytest.fixture
def new_other():
    made = []

    def make():
        made.append(Other())
        return made[-1]

    yield make
    for one in made:
        if one.process.poll() is None:
            one.end("kill")


def files_of(name):
    return sorted(
        str(path) for path in living_processes.folder().iterdir() if str(path).startswith(name)
    )


@has_locks
@pytest.mark.parametrize("how", ["kill", "exit"])
def test_a_process_lives_until_it_ends_however_it_does(new_other, how):
    other = new_other()
    assert living_processes.is_alive(other.name)
    assert living_processes.is_alive(living_processes.own_name())
    other.end(how)
    assert bool(files_of(other.name)) is (how == "kill")
    assert not living_processes.is_alive(other.name)
    assert not living_processes.is_alive(other.name)
    assert files_of(other.name) == []


@has_locks
def test_what_a_killed_process_has_left_goes_with_the_next_process(new_other):
    other = new_other()
    other("kept.OwnedLease().name")
    assert len(files_of(other.name)) == 2
    other.end("kill")
    assert len(files_of(other.name)) == 2
    of_another = living_processes.folder() / "LICENSE"
    of_another.touch()
    new_other()
    assert files_of(other.name) == []
    assert of_another.exists()  # only what StreamKit has made is removed
    of_another.unlink()


@pytest.fixture
def parent(tmp_path, monkeypatch):
    """Where the setting has the folder of this test's files made."""
    monkeypatch.setenv("STREAMKIT_RUNTIME_DIR", str(tmp_path))
    return tmp_path


@has_locks
def test_the_folder_is_of_this_user_alone(parent):
    made = living_processes.folder()
    assert made.parent == parent.resolve()
    found = made.stat()
    assert (found.st_uid, found.st_mode & 0o777) == (os.getuid(), 0o700)
    assert living_processes.folder() == made


@has_locks
def test_a_folder_that_others_can_enter_is_left_alone(parent):
    """Another user can make one of any name first: it is not used, and it blocks nothing."""
    taken, link = parent / "streamkit-shares-0", parent / "streamkit-shares-1"
    taken.mkdir(), taken.chmod(0o755)
    private = parent / "elsewhere"
    private.mkdir(mode=0o700)
    link.symlink_to(private)
    (parent / "streamkit-shares-2").write_text("a file")
    made = living_processes.folder()
    assert made.parent == parent.resolve()
    assert made.name not in {path.name for path in (taken, link)}
    for folder in (taken, link, private):
        name = folder / "0123456789abcdef"
        name.touch()
        with pytest.raises(PermissionError, match="the same user"):
            living_processes.is_alive(str(name))
        assert name.exists()


@has_locks
def test_the_folder_of_the_session_is_used_if_it_is_this_users_alone(tmp_path, monkeypatch):
    monkeypatch.delenv("STREAMKIT_RUNTIME_DIR", raising=False)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    tmp_path.chmod(0o700)
    assert living_processes.folder().parent == tmp_path.resolve()
    tmp_path.chmod(0o755)  # as another user's is not, after ``sudo``
    assert living_processes.folder().parent != tmp_path.resolve()


@has_locks
def test_a_folder_that_cannot_be_made_says_how_to_choose_another(parent, monkeypatch):
    monkeypatch.setenv("STREAMKIT_RUNTIME_DIR", str(parent / "missing"))
    with pytest.raises(FileNotFoundError) as caught:
        living_processes.folder()
    assert "STREAMKIT_RUNTIME_DIR=FOLDER" in caught.value.__notes__[0]
    (found,) = (one for one in sk.doctor().findings if one.code == "runtime-folder")
    assert "missing" in found.what
    assert "STREAMKIT_RUNTIME_DIR" in found.remedy


@has_locks
def test_processes_of_other_folders_find_each_other(new_other, tmp_path, monkeypatch):
    """As in two sessions, or where two processes have made a folder at the same time."""
    monkeypatch.setenv("STREAMKIT_RUNTIME_DIR", str(tmp_path))
    other = new_other()
    assert other.name.startswith(str(tmp_path.resolve()))
    lease = kept.OwnedLease()
    other(f"globals().update(x=kept.enter({lease.name!r}))")
    assert not lease.end_if_unused()
    other.end("kill")
    assert lease.end_if_unused()
    assert not living_processes.is_alive(other.name)


# -- seals ----------------------------------------------------------------------------------------


@has_locks
def test_a_token_that_its_process_has_not_made_is_not_opened(new_other):
    """CUDA's driver crashes with some handles that were made up."""
    other = new_other()
    for name in (other.name, living_processes.own_name()):
        token = EventToken(name, EVENT.uuid, bytes(64))
        with pytest.raises(ValueError, match="was not made by the process"):
            token.check()
    line = f"bytes(EventToken({other.name!r}, {EVENT.uuid!r}, bytes(64)).sealed()).hex()"
    sent = token_from_bytes(bytes.fromhex(other(line)))
    sent.check()
    changed = EventToken(other.name, EVENT.uuid, bytes(63) + b"x")
    for seal in (sent._seal, "\udc80"):
        changed._seal = seal
        with pytest.raises(ValueError, match="was not made by the process"):
            changed.check()
    other.end("exit")
    with pytest.raises(sk.errors.StreamClosedError, match="gone"):
        sent.check()


@has_locks
@pytest.mark.parametrize("how", ["close", "kill", "exit"])
def test_a_lease_ends_when_each_receiver_has_dropped_or_died(new_other, how):
    lease, others = kept.OwnedLease(), [new_other(), new_other()]
    assert not lease.end_if_unused()  # nobody has had it
    for other in others:
        other(f"globals().update(x=kept.enter('{lease.name}'))")
    assert not lease.end_if_unused()
    for other in others:
        assert not lease.end_if_unused()
        if how == "close":
            other("x.close()")
        else:
            other.end(how)
    assert lease.end_if_unused()
    assert lease.has_ended
    assert files_of(lease.name) == []
    assert kept.enter(lease.name) is None


@has_locks
def test_a_receiver_that_failed_leaves_the_lease_to_others(new_other):
    lease, other = kept.OwnedLease(), new_other()
    other(f"kept.leave(kept.enter('{lease.name}'))")
    assert not lease.end_if_unused()
    other(f"kept.enter('{lease.name}').close()")
    assert lease.end_if_unused()


@has_locks
def test_a_receiver_that_meets_a_full_folder_leaves_no_lock(new_other):
    """Neither does it end the lease of another, nor keep it for as long as the process lives."""
    lease, unlucky, other = kept.OwnedLease(), new_other(), new_other()
    other(f"globals().update(x=kept.enter({lease.name!r}))")
    unlucky("os.environ.update(STREAMKIT_RUNTIME_DIR='/missing')")  # not where the lease is
    said = unlucky(f"while_full(lambda: kept.enter({lease.name!r}))")
    assert lease.name.rpartition("/")[0] in said
    assert "STREAMKIT_RUNTIME_DIR" in said
    assert not lease.end_if_unused()
    unlucky(f"globals().update(y=kept.enter({lease.name!r}))")
    assert unlucky("while_full(lambda: kept.leave(y))") == "None"  # it needs no space
    assert not lease.end_if_unused()
    other("x.close()")
    assert lease.end_if_unused()
    assert unlucky("len(living_processes._open)") == "1"  # its name's


@has_locks
def test_a_lease_is_ended_by_hand_once():
    lease = kept.OwnedLease()
    assert not lease.end_if_unused()
    lease.end()
    lease.end()
    assert lease.end_if_unused()


@has_locks
def test_a_lease_whose_question_was_interrupted_can_still_end(monkeypatch):
    lease = kept.OwnedLease()
    kept.enter(lease.name).close()

    def interrupted(*arguments):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(os, "pread", interrupted)
        with pytest.raises(KeyboardInterrupt):
            lease.end_if_unused()
    assert lease.end_if_unused()


@has_locks
def test_a_lease_that_ends_while_it_is_opened_is_not_opened(monkeypatch):
    lease, find = kept.OwnedLease(), living_processes.find

    def find_then_end(name):
        found = find(name)
        lease.end()
        return found

    monkeypatch.setattr(living_processes, "find", find_then_end)
    assert kept.enter(lease.name) is None


@has_locks
def test_a_lease_of_a_dead_owner_is_not_opened(new_other):
    other = new_other()
    name = other("kept.OwnedLease().name")
    entered = kept.enter(name)
    assert entered is not None
    entered.close()
    other.end("kill")
    assert kept.enter(name) is None


@has_locks
@needs_fork
def test_a_forked_child_holds_no_lock_of_its_parent(new_other):
    """It would keep leases, and make a dead process seem alive."""
    other = new_other()
    name = other("kept.OwnedLease().name")
    done = run_python(
        "-c",
        f"""
import os, signal, sys, time
from streamkit._support import living_processes  # as above
from streamkit.processes import kept  # as above
entered = kept.enter({name!r})
own = living_processes.own_name()
ready, told = os.pipe()
child = os.fork()
if child == 0:
    assert not living_processes.is_own(own)
    entered.close()  # nothing happens
    living_processes.own_name()
    os.write(told, b"x")
    os.close(1), os.close(2)
    time.sleep(60)
    os._exit(0)
os.read(ready, 1)
print(own, child, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
""",
    )
    own, child = done.stdout.split()
    try:
        assert not living_processes.is_alive(own)
        assert other(f"living_processes.find('{name}').lock(shared=False)") == "True"
    finally:
        os.kill(int(child), signal.SIGKILL)


@has_locks
@needs_fork
def test_what_a_parent_keeps_is_not_a_forked_childs_to_end():
    done = run_python(
        "-c",
        """
import os
from streamkit.processes import kept  # as above
one = kept.KeptArray(object(), None, None)
child = os.fork()
if child == 0:
    told = one.has_ended()
    one.end()
    os._exit(not told)
_, status = os.waitpid(child, 0)
entered = kept.enter(one.name)
print(status, entered is not None, one.has_ended())
""",
    )
    assert done.stdout.split() == ["0", "True", "False"], done.stderr


class Array:
    """What an owner keeps, in place of an array: nothing but its life matters here."""


@has_locks
@pytest.mark.parametrize("how", ["close", "kill"])
def test_what_is_kept_goes_when_the_receivers_have(new_other, how):
    """Of many, though each call asks for some of them only, and nobody opens the first ones."""
    other, arrays = new_other(), [Array() for _ in range(150)]
    names = [kept.KeptArray(array, None, None).name for array in arrays]
    alive = [weakref.ref(array) for array in arrays]
    other(f"globals().update(x=[kept.enter(name) for name in {names[100:]}])")
    del arrays
    keepalive.drain()
    assert all(one() is not None for one in alive)
    if how == "close":
        other("[one.close() for one in x]")
    else:
        other.end("kill")

    def are_gone():
        keepalive.drain()
        return not any(one() for one in alive[100:])

    assert until(are_gone)
    assert all(one() is not None for one in alive[:100])
    for name in names[:100]:
        kept.find(name).end()
    assert not any(one() for one in alive)
    assert kept.find(names[0]) is None


@has_locks
def test_each_share_lets_go_of_what_the_receivers_have_dropped(monkeypatch):
    """Where a process calls nothing else, all that it has ever shared would stay."""
    array = Array()
    one, alive = kept.KeptArray(array, None, None), weakref.ref(array)
    del array
    kept.enter(one.name).close()
    monkeypatch.setattr(kept, "_ask_at", 0.0)  # else the leases may have been asked just now
    with pytest.raises(TypeError, match="not an array"):
        sk.share("text")
    assert alive() is None


@has_locks
def test_an_array_that_its_own_process_has_opened_goes_when_nobody_there_holds_it():
    """Who sends a token need not know in which process it is opened."""
    array = Array()
    one, alive = kept.KeptArray(array, None, None), weakref.ref(array)
    del array
    assert not one.has_ended()
    one.was_opened_here, opened = True, one.array
    assert not one.has_ended()
    del opened
    assert one.has_ended()
    assert alive() is None
    assert one.has_ended()


@has_locks
def test_a_file_that_is_closed_twice_leaves_the_next_one_of_its_number_alone():
    """Its lock would stay for ever."""
    lease = kept.OwnedLease()
    first = kept.enter(lease.name)
    first.close()
    second = kept.enter(lease.name)
    assert second.descriptor == first.descriptor
    first.close()
    assert not lease.end_if_unused()
    second.close()
    assert lease.end_if_unused()


@has_locks
@needs_fork
def test_in_a_forked_child_a_file_of_the_parent_closes_no_other_one(tmp_path):
    """The child has closed it, and the next one that it opens gets the number."""
    done = run_python(
        "-c",
        f"""
import os
from streamkit._support import living_processes  # as above
held = living_processes.create({str(tmp_path / "held")!r})
child = os.fork()
if child == 0:
    while os.open(os.devnull, os.O_RDONLY) < held.descriptor:
        pass
    held.close()
    os.fstat(held.descriptor)
    os._exit(0)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
""",
    )
    assert done.stdout == "0\n", done.stderr


def test_an_allocation_is_in_use_until_the_last_of_two_arrays_in_it_goes(monkeypatch):
    monkeypatch.setattr(mappings.sharing, "open_memory", lambda *_: 4096)
    allocation = mappings.SharedAllocation(NAME, 1, bytes(64), 0)
    lease = types.SimpleNamespace(close=int)
    arrays, users = [mappings.Mapping(allocation, lease) for _ in range(2)], []
    while arrays:
        arrays.pop()
        mappings._count_back()
        users.append(mappings._opened[allocation].users)
    del mappings._opened[allocation]
    assert users == [1, 0]


def test_a_system_without_locks_says_so(monkeypatch):
    monkeypatch.setitem(sys.modules, "fcntl", None)
    with pytest.raises(sk.errors.UnsupportedStreamError, match=r"Linux only.* copy of the"):
        living_processes.folder()


# -- on the host ----------------------------------------------------------------------------------


def test_the_host_has_no_events_and_arrays_for_other_processes():
    with pytest.raises(sk.errors.UnsupportedStreamError, match="belongs to its process"):
        sk.new_event(device="cpu", interprocess=True)
    with pytest.raises(ValueError, match="leave out timing"):
        sk.new_event(device="cpu", interprocess=True, timing=True)
    with pytest.raises(TypeError, match="not the token of an event"):
        open_event(ARRAY)
    with pytest.raises(TypeError, match="not an array"):
        sk.share("text")


def test_an_array_of_the_host_goes_as_it_is():
    numpy = pytest.importorskip("numpy")
    with pytest.raises(TypeError, match="is on the host: send it as it is"):
        sk.share(numpy.zeros(3), after=sk.new_stream("cpu"))
