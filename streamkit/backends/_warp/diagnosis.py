"""Faults in Warp that raise nothing: two views of one handle, a stream lost or left behind.

It reads Warp's own tables and the objects that the garbage collector knows, and changes nothing.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import warp

from streamkit.backends._warp import current_stream
from streamkit.protocols import Finding

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_NAME = "warp"


def findings(streams: Iterable[Any]) -> Iterator[Finding]:
    """Yield what is wrong with these ``wp.Stream`` and on the devices that Warp has used."""
    yield from _two_views(streams)
    for device in warp.get_cuda_devices():
        if device.has_stream:
            yield from _lost(device)
            yield from _left(device)


def _two_views(streams: Iterable[Any]) -> Iterator[Finding]:
    """Yield each handle with several ``wp.Stream``: when one dies, Warp forgets the handle."""
    views = Counter((found.device.alias, found.cuda_stream) for found in streams)
    for (device, handle), count in views.items():
        if count > 1:
            yield Finding(
                "two-views",
                f"Warp has {count} wp.Stream objects on the stream {handle:#x} of {device}: when "
                "one of them dies, the others break",
                "Make one for each stream and keep it: streamkit.wrap(stream).to('warp').",
                _NAME,
            )


def _lost(device: Any) -> Iterator[Finding]:
    """Yield a native current stream that is not the one which Python shows."""
    native = current_stream.native_stream(device)
    shown = int(device.stream.cuda_stream or 0)
    if native is not None and native != shown:
        yield Finding(
            "lost-stream",
            f"Warp shows the stream {shown:#x} of {device.alias} as its current one, and launches "
            f"on {native:#x}: another wp.Stream of that handle has died",
            "Set it again: device.set_stream(device.stream, sync=False).",
            _NAME,
        )


def _left(device: Any) -> Iterator[Finding]:
    """Yield a current stream that no scope will restore."""
    stream = device.stream
    if stream.owner or stream is device.null_stream or current_stream.is_held():
        return
    yield Finding(
        "left-redirected",
        f"Warp is on the stream {int(stream.cuda_stream):#x} of {device.alias}, which is not "
        "its own, and no scope of a living thread put it there",
        "Leave the block, or undo the call, that moved it. Where a thread has ended inside a "
        "scope, the next scope in any thread puts Warp back.",
        _NAME,
    )
