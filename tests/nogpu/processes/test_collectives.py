"""Streams that wait for a work of torch.distributed: real gloo, in several processes."""

from __future__ import annotations

import pytest

import streamkit as sk
from streamkit._queues import registry  # what a CUDA stream calls of torch, as far as it goes here
from support.libraries import need
from support.queues import LONG, within
from support.ranks import run_ranks

torch = need("torch")

START = """
def stream_that_waits(work):
    "Its log, before the other rank joins the collective: that is after ``join``."
    s, log = sk.new_stream("cpu"), []
    s.submit(log.append, "before")
    s.wait(work)
    s.submit(lambda: log.append(x.tolist()))
    return s, log

x, other = torch.full((4,), rank + 1.0), sk.new_stream("cpu")
"""


def test_work_after_it_runs_after_the_collective(tmp_path):
    """Of a work, of its future, and of a message, whose work has no future."""
    run_ranks(
        START
        + """
from streamkit._queues import registry  # what a CUDA stream calls, as far as it goes without CUDA

def refused(work):
    try:
        registry.work_library(work).work_of(work).wait()
    except sk.errors.UnsupportedStreamError as error:
        assert "call its wait(), which blocks the host" in str(error), error
    else:
        raise AssertionError("torch cannot hold a stream here")

def collective():
    return dist.all_reduce(x, async_op=True)

def future():
    return collective().get_future()

def message():
    return dist.irecv(x, src=1) if rank == 0 else dist.isend(x, dst=0)

for begin, result in ((collective, 3.0), (future, 3.0), (message, 2.0)):
    x.fill_(rank + 1.0)
    key = "join " + begin.__name__
    if rank == 0:
        pending = begin()
        s, log = stream_that_waits(pending)
        third = sk.new_stream("cpu")
        third.wait(pending)  # any number of streams can
        other.submit(lambda: log.append(x[0].item()))  # the control: what does not wait
        other.sync(60)
        try:
            s.sync(timeout=0.05)
        except TimeoutError:
            log.append("busy")
        assert sorted(map(str, log)) == ["1.0", "before", "busy"], (begin, log)
        if begin is not future:
            refused(pending)
        store.set(key, "")
        s.sync(60)
        third.sync(60)
        registry.work_library(pending).work_of(pending).wait()  # done, it blocks and holds nobody
        assert log[-1] == [result] * 4, (begin, log)
    else:
        store.wait([key])
        s, log = stream_that_waits(begin())
        s.sync(60)
""",
        tmp_path,
    )


def test_in_a_scope_and_under_the_scheduler(tmp_path):
    run_ranks(
        START
        + """
from streamkit.testing import adversarial

work = dist.all_reduce(x, async_op=True)
with other:
    other.wait(work)
    assert x.tolist() == [3.0] * 4  # inside it blocks: the body is the item that runs

for seed in range(10):  # one group, one order: here that of this loop, in each rank
    with adversarial(seed):
        x.fill_(rank + 1.0)
        s, log = stream_that_waits(dist.all_reduce(x, async_op=True))
        t = sk.new_stream("cpu")
        t.wait(s)
        t.submit(log.append, "after")
        t.sync()
        assert log == ["before", [3.0] * 4, "after"], log
""",
        tmp_path,
    )


def test_its_error_is_the_queues(tmp_path):
    told = run_ranks(
        START
        + """
sys.unraisablehook = lambda found: print(found.err_msg, repr(found.object))
if rank == 0:
    message, told = dist.irecv(torch.zeros(4), src=1), []
    store.set("begun", "")
    store.wait(["gone"])
    for s in (sk.new_stream("cpu"), sk.new_stream("cpu")):
        s.wait(message)
        try:
            s.sync(60)
        except RuntimeError as error:
            told.append(error)
    assert len(told) == 2, told  # by each stream that waits for it
    s, log = stream_that_waits(dist.all_reduce(x, async_op=True))
    try:
        s.sync(60)
    except RuntimeError as error:
        log.append(type(error).__name__)
    assert log == ["before", "RuntimeError"], log  # what comes after it does not run
    s.sync(60)  # once, as that of a function
    s.wait(dist.all_reduce(x, async_op=True))
    s.close()  # an error that nobody waits for
else:
    store.wait(["begun"])
    store.set("gone", "")  # and it is, before the sum is whole
""",
        tmp_path,
        end="",
    )[0]
    assert 'Work, submitted in "<string>", line' in told


def test_a_message_that_is_waited_for_leaves_nothing(tmp_path):
    """A handler for forks can never be taken back, and would hold what it is for."""
    run_ranks(
        """
import gc, os, weakref

registered, register = [], os.register_at_fork

def note(**handlers):
    registered.append(handlers)
    register(**handlers)

os.register_at_fork = note
s, x, left = sk.new_stream("cpu"), torch.zeros(4), []
for times in (1, 20):  # the first may make what is the process's own
    registered.clear()
    for _ in range(times):
        message = dist.isend(x, 1) if rank == 0 else dist.irecv(x, 0)
        s.wait(message)
        s.wait(message)
        s.sync(60)
        left.append(weakref.ref(message))
del message
gc.collect()
assert not registered, registered
assert [one() for one in left] == [None] * 21, left
note(after_in_child=int)
assert registered  # the control: one is counted
""",
        tmp_path,
    )


# -- a future of torch's own --------------------------------------------------------------------


def test_a_future_of_torch_is_waited_for():
    future, log, s = torch.futures.Future(), [], sk.new_stream("cpu")
    s.wait(future)
    s.submit(log.append, "after")
    with pytest.raises(TimeoutError):
        s.sync(timeout=0.05)
    assert not log
    future.set_result(None)
    within(s.sync)
    assert log == ["after"]


def test_the_error_of_a_future_of_torch_is_the_queues():
    future, s = torch.futures.Future(), sk.new_stream("cpu")
    s.wait(future)
    future.set_exception(LookupError("of the future"))
    with pytest.raises(LookupError, match="of the future"):
        s.sync(LONG)
    s.sync(LONG)


def test_a_cuda_stream_takes_a_future_of_torch_that_is_done():
    done, failed, pending = torch.futures.Future(), torch.futures.Future(), torch.futures.Future()
    # what the stream calls: there is no CUDA stream here
    work_of = registry.work_library(done).work_of
    done.set_result(None)
    work_of(done).wait()
    failed.set_exception(LookupError("of the future"))
    with pytest.raises(LookupError, match="of the future"):
        work_of(failed).wait()
    with pytest.raises(sk.errors.UnsupportedStreamError, match=r"add_done_callback\(launch\)"):
        work_of(pending).wait()


def test_neither_is_a_stream():
    with pytest.raises(sk.errors.UnsupportedStreamError, match=r"Future.* is not a stream"):
        sk.wrap(torch.futures.Future())
