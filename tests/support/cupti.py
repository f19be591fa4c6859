"""CUPTI as a test plays it."""

from __future__ import annotations

import ctypes
import struct

from streamkit._cuda import memory_pools  # what is said of memory
from streamkit.diagnostics.recording import recorder  # whom it asks
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


SIZES = {"cuStreamIsCapturing": 4, "cuStreamGetFlags": 4, "cuCtxGetDevice": 4}


class Answers:
    """What the recorder is told when it asks the driver: a function of Python's for each question.

    They return values, or None for an error; of a question that they leave out the driver is asked.
    """

    def __init__(self, monkeypatch, **answers):
        self.asked = []
        real = recorder.driver_functions
        functions = [self._function(name, answers.get(name)) for name in recorder._FUNCTIONS]

        def found():
            others = real() if None in functions else functions
            return [one or other for one, other in zip(functions, others, strict=True)]

        monkeypatch.setattr(recorder, "driver_functions", found)

    def _function(self, name, answer):
        if answer is None:
            return None
        given, places = (0, 1) if name == "cuCtxGetDevice" else (1, 1)
        given, places = (2, 2) if "ParamInfo" in name else (given, places)
        kinds = [ctypes.c_uint64] * given + [ctypes.c_void_p] * places
        if name == "cuPointerGetAttributes":
            kinds, given = [ctypes.c_uint, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint64], 4

        def ask(*values):
            self.asked.append(name)
            found = answer(*values[:given] if given < 4 else values[3:])
            if found is None or isinstance(found, BaseException):
                return 1 if found is None else 400
            where = values[given:]
            if given == 4:
                where = (ctypes.c_void_p * 4).from_address(values[2])
                found = found.start, found.size, int(found.is_host) or 2, found.context
            found = found if isinstance(found, tuple) else (found,)
            for place, value in zip(where, found, strict=True):
                size = SIZES.get(name, 8)
                ctypes.memmove(place, value.to_bytes(8, "little"), size)
            return 0

        return ctypes.CFUNCTYPE(ctypes.c_int, *kinds)(ask)


def says_of_memory(address):
    """Answer as ``memory_pools`` does, which a test may replace."""
    return memory_pools.allocation(address)


def words(*values):
    """Pack fields that all have 8 bytes."""
    return struct.pack(f"<{len(values)}Q", *values)
