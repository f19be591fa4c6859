"""``assert_follows`` on the libraries: each planted fault is named, and right functions pass."""

from __future__ import annotations

import pytest

import streamkit as sk
from streamkit.diagnostics.recording import recorder  # where CUPTI is found
from streamkit.testing import assert_follows
from support.gpu.raw import make_stream, sync
from support.libraries import need

ONE = "does not follow the stream "


@pytest.fixture(params=["CUPTI", "no CUPTI"])
def has_cupti(request, monkeypatch):
    def find():
        raise recorder.NoCallbacksError("there is no libcupti")

    if request.param == "no CUPTI":
        monkeypatch.setattr(recorder, "_find", find)
    return request.param == "CUPTI"


@pytest.fixture
def add(three, cells):
    """Launch a library's kernel on its current stream, or on the one given."""
    src, dst = cells(1), cells(0)

    def add(name, stream=None):
        subject = three[name]
        if stream is None:
            subject.add_one_current(src.pointer, dst.pointer)
        else:
            subject.add_one(stream, src.pointer, dst.pointer)

    return add


def failure(fn, **how):
    with pytest.raises(AssertionError, match=ONE) as caught:
        assert_follows(fn, **how)
    return str(caught.value)


LIBRARIES = pytest.mark.parametrize("name", ["torch", "cupy", "warp"])


@LIBRARIES
def test_work_on_the_stream_passes_however_it_is_given(has_cupti, add, name):
    assert_follows(lambda: add(name))
    assert_follows(add, name, library=name)
    assert_follows(lambda *, stream: add(name, stream.to(name)))


def test_a_library_that_follows_another_passes(has_cupti, add):
    assert_follows(sk.follow("torch")(add), "cupy", library="torch")


@LIBRARIES
def test_a_library_that_does_not_follow_another_is_named(has_cupti, add, name):
    followed = "torch" if name != "torch" else "cupy"
    message = failure(lambda: (add(followed), add(name)), library=followed)
    assert "was given to another current stream" in message


@LIBRARIES
def test_a_function_that_takes_the_current_stream_for_the_one_passed_is_named(has_cupti, add, name):
    message = failure(lambda *, stream: (add(name, stream.to(name)), add(name)))
    assert "was given to another current stream" in message


@pytest.mark.parametrize("name", ["torch", "cupy"])
def test_a_kernel_on_the_default_stream_is_named(has_cupti, three, add, name):
    message = failure(lambda: (add(name), add(name, three[name].default())))
    if has_cupti:
        assert f"[{name}] on legacy default stream (cuda:0)" in message
    else:
        assert "it works on the default stream" in message
        assert f"at {__file__}:" in message


@LIBRARIES
def test_a_host_synchronisation_is_named(has_cupti, three, add, name):
    message = failure(lambda: (add(name), sync(three[name].handle_of(three[name].current()))))
    if has_cupti:
        assert "the host waits for the GPU:\n  cuStreamSynchronize on stream for" in message
    else:
        assert "it waits for the GPU" in message
        assert f"at {__file__}:" in message


@LIBRARIES
def test_a_kernel_on_a_private_stream_is_named(has_cupti, three, add, name):
    private = three[name].new_stream()

    def fn():
        add(name)
        add(name, private)

    if has_cupti:
        assert "this did not wait:\n" in (message := failure(fn))
        assert f"[{name}] on" in message
    else:
        assert_follows(fn)  # what a capture cannot see
    alone = failure(lambda: add(name, private))
    assert ("did not wait" if has_cupti else "no GPU work") in alone


@LIBRARIES
@pytest.mark.parametrize("joins", [True, False])
def test_a_side_stream_passes_if_it_is_joined(has_cupti, three, add, name, joins):
    private = sk.new_stream(nonblocking=True)

    def fn(*, stream):
        private.wait(stream)
        add(name, private.to(name))
        add(name, stream.to(name))
        if joins:
            stream.wait(private)

    if joins:
        assert_follows(fn)
    else:
        assert "goes on when the stream is done" in failure(fn)


def operations():
    """What the guide's table says, for each library: the operation, and how the error begins."""
    import numpy as np

    torch, cupy, wp = need("torch"), need("cupy"), need("warp")
    need("numba")
    from numba import cuda

    x, i = torch.rand(64, 64, device="cuda"), torch.arange(64, device="cuda")
    y, a = cupy.random.rand(64, 64), wp.ones(64, dtype=float, device="cuda:0")
    out = wp.zeros(1, dtype=float, device="cuda:0")

    @cuda.jit
    def add_one(array):
        array[0, cuda.threadIdx.x] = 1

    waits, default = "the host waits for the GPU", "this ran on the default stream"
    return {
        "torch nonzero": (lambda: torch.nonzero(x), waits),
        "torch item": (lambda: x.sum().item(), waits),
        "torch tensor": (lambda: torch.tensor([1.0], device="cuda"), waits),
        "torch inv": (lambda: torch.linalg.inv(x + 64 * torch.eye(64, device="cuda")), waits),
        "torch inv_ex": (lambda: torch.linalg.inv_ex(x), None),
        "torch repeat": (lambda: torch.repeat_interleave(i, i), waits),
        "torch sort": (lambda: torch.sort(x), None),
        "cupy nonzero": (lambda: cupy.nonzero(y), waits),
        "cupy randint": (lambda: cupy.random.randint(0, 9, 64), waits),
        "cupy matmul": (lambda: y @ y, None),
        "warp numpy": (a.numpy, default),
        "warp array_sum": (lambda: wp.utils.array_sum(a), default),
        "warp array_sum out": (lambda: wp.utils.array_sum(a, out=out), None),
        "numba kernel": (lambda: add_one[1, 64](y), default),
        "numba stream": (lambda stream: add_one[1, 64, stream.to("numba")](y), None),
        "numba to_device": (lambda: cuda.to_device(np.ones(64)), default),
    }


@pytest.mark.filterwarnings("ignore:.*Grid size:Warning")  # numba may have been imported before
def test_the_guides_table_is_true(three):
    found = {}
    expected = operations()
    for name, (fn, _) in expected.items():
        try:
            assert_follows(fn)
        except AssertionError as error:
            found[name] = str(error).partition(": ")[2].partition(":")[0]
        else:
            found[name] = None
    assert found == {name: error for name, (_, error) in expected.items()}


def test_no_work_fails(has_cupti):
    assert "there is no GPU work" in failure(lambda: None)


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
@pytest.mark.parametrize("call", [1, 2, 3])
def test_after_an_error_the_libraries_are_as_before(
    has_cupti, libraries_as_before, add, error, call
):
    calls, side = [], sk.from_handle(make_stream())

    def fn(*, stream):
        calls.append(stream)
        side.wait(stream)
        for name in ("torch", "cupy", "warp"):
            add(name, side.to(name))
        stream.wait(side)
        if len(calls) == min(call, 3 if has_cupti else 2):
            raise error("of the function")

    with pytest.raises(error, match="of the function"):
        assert_follows(fn)
    assert calls[-1].closed
    assert_follows(lambda: add("torch"))
