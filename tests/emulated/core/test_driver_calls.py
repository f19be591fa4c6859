"""Calls of the driver: which ``races`` knows, and what those by ctypes return."""

from __future__ import annotations

import re

import emulator
from emulator import build
from streamkit._cuda import driver, loader  # no public name makes these calls
from streamkit.diagnostics.recording.calls import CALLS  # no public name lists them

NO_WORK = {
    "asks": {"cuStreamGetPriority", "cuStreamGetFlags", "cuStreamGetCtx", "cuStreamGetId",
             "cuStreamGetDevice", "cuStreamGetGreenCtx", "cuStreamGetDevResource",
             "cuStreamGetAttribute", "cuStreamIsCapturing", "cuStreamGetCaptureInfo"},
    "sets what is no work": {"cuStreamSetAttribute", "cuStreamCopyAttributes",
                             "cuStreamUpdateCaptureDependencies", "cuStreamAttachMemAsync"},
    "is deprecated since CUDA 4": {"cuLaunchGridAsync"},
    "ends a capture, and later calls tell": {"cuStreamEndCapture"},
    "moves memory that stays the same": {"cuMemPrefetchAsync", "cuMemPrefetchBatchAsync",
                                         "cuGraphUpload"},
}  # fmt: skip
FUNCTION = re.compile(
    r"CUresult CUDAAPI (cu\w+?)(?:_v\d)?(?:_pt[sd][zs])?\(([^)]*\bCUstream\s+\w+[^)]*)\)"
)


def test_each_call_with_a_stream_is_known():
    header = (build.header_folder() / "cuda.h").read_text(encoding="utf-8", errors="replace")
    found = {name for name, _ in FUNCTION.findall(header)}
    known = {call.name for call in CALLS.values()}
    assert len(found) > 40
    assert found - known - set().union(*NO_WORK.values()) == set()
    assert known.isdisjoint(set().union(*NO_WORK.values()))


def test_a_question_that_is_not_checked_leaves_the_checked_one_alone():
    """Whichever was made first: one of them returns nothing, and the other one the code."""
    for order in ((True, False), (False, True)):
        loader.with_gil.cache_clear()
        asks = {checked: driver.capture_question(1, is_checked=checked)[0] for checked in order}
        assert (asks[True](), asks[False]()) == (0, None)
        emulator.fail("cuStreamIsCapturing", 999)
        assert asks[True]() == 999
