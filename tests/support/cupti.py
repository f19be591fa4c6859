"""CUPTI as a test plays it."""

from __future__ import annotations

import ctypes
import struct

from streamkit.diagnostics.recording.calls import CALLS  # CUPTI's numbers

NUMBER = {call.name: number for number, call in reversed(CALLS.items())}
PER_THREAD = {call.name: number for number, call in CALLS.items() if call.is_per_thread}
BEGIN, END = 0, 1
CONTEXT = 77


class Cupti:
    """It calls back with the structures in memory that CUPTI gives."""

    def __init__(self):
        self.enabled = set()
        self.callback = None
        self.code = 0

    def cuptiSubscribe(self, _handle, callback, _user):  # noqa: N802 - CUPTI's name
        if not self.code:
            self.callback = callback
        return self.code

    def cuptiEnableCallback(self, is_on, _handle, domain, number):  # noqa: N802 - CUPTI's name
        assert domain == 1
        (self.enabled.add if is_on else self.enabled.discard)(number)

    def cuptiUnsubscribe(self, _handle):  # noqa: N802 - CUPTI's name
        assert not self.enabled
        self.callback = None

    def call(
        self, number, fields, *, code=0, sites=(BEGIN, END), symbol=b"kernel", meanwhile=None,
        name=b"",
    ):  # fmt: skip
        """Play one call of the driver; ``meanwhile`` is between its beginning and its end."""
        fields = ctypes.create_string_buffer(fields, max(len(fields), 64))
        result, texts = ctypes.c_int(code), [*map(ctypes.create_string_buffer, (name, symbol))]
        for site in sites:
            found = map(ctypes.addressof, (texts[0], fields, result, texts[1]))
            data = struct.pack("<i4xQQQQQ", site, *found, CONTEXT)
            kept = ctypes.create_string_buffer(data + bytes(32))
            if number in self.enabled:
                self.callback(None, 1, number, ctypes.c_void_p(ctypes.addressof(kept)))
            if meanwhile is not None and site == BEGIN:
                meanwhile()


def words(*values):
    """Pack fields that all have 8 bytes."""
    return struct.pack(f"<{len(values)}Q", *values)
