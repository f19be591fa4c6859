"""RMM's streams: read as any other library's, and made of StreamKit's."""

from __future__ import annotations

import streamkit as sk
from support.libraries import need


def test_its_streams_are_read_and_made():
    need("rmm")
    from rmm.pylibrmm.stream import Stream

    own = sk.new_stream()
    theirs = own.to("rmm")
    assert isinstance(theirs, Stream)
    assert sk.wrap(theirs) == own
    assert theirs.__cuda_stream__() == (0, own.handle)
