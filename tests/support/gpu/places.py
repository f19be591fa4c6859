"""The libraries' current streams, read and set for a test by the libraries' own calls."""

from __future__ import annotations

import contextlib

from support.gpu.raw import current_context, on_device
from support.libraries import cuda_devices


def current_state(three):
    """Each library's current stream by its own API; Warp's native one, and the context."""
    torch, cupy, warp = three["torch"].torch, three["cupy"].cupy, three["warp"].warp
    native = warp._src.context.runtime.core.wp_cuda_context_get_stream
    devices = range(cuda_devices())
    return {
        "torch": [torch.cuda.current_stream(index) for index in devices],
        "cupy": [cupy.cuda.get_current_stream(index) for index in devices],
        "warp": [warp.get_stream(f"cuda:{index}") for index in devices],
        "warp native": [native(warp.get_cuda_device(index).context) for index in devices],
        "warp device": str(warp.get_device()),
        "context": current_context(),
    }


def pushed_last(three, device):
    """The stream to which CuPy returns after a ``with``: the one pushed last, not the one set."""
    subject = three["cupy"]
    with on_device(device):
        now = subject.current()
        with subject.new_stream():
            pass
        found = subject.current()
        subject.make_current(now)
    return found


def current(three):
    """The current stream of each library on its current device."""
    return {name: subject.current() for name, subject in three.items()}


def place(three, streams, device):
    """Make each library's stream current on the device."""
    with on_device(device):  # CuPy takes no stream of another
        for name, subject in three.items():
            subject.make_current(streams[name])


@contextlib.contextmanager
def own_streams_current(three, device):
    """Give each library a new current stream of its own, which waits for none of the others."""
    with on_device(device):
        first = current(three)
    try:
        with on_device(device):
            own = {name: subject.new_stream() for name, subject in three.items()}
        place(three, own, device)
        yield own
    finally:
        place(three, first, device)


@contextlib.contextmanager
def one_stream_current(three, library, device, stream=None):
    """Make ``stream``, or a new one, the library's current stream for the block."""
    with on_device(device):
        first, previous = current(three), stream or three[library].new_stream()
        three[library].make_current(previous)
    try:
        yield previous
    finally:
        place(three, first, device)


@contextlib.contextmanager
def working_on(three, device):
    """Make the device current for the driver and for Warp, which has its own default device."""
    warp = three["warp"].warp
    before = warp.get_device()
    with on_device(device):
        warp.set_device(f"cuda:{device}")
        try:
            yield
        finally:
            warp.set_device(before)
