"""Every call of CUDA's header that takes a stream is one whose meaning ``races`` knows."""

from __future__ import annotations

import re

from emulator import build
from streamkit.diagnostics.recording.calls import CALLS  # no public name lists them

NO_WORK = {
    "asks": {"cuStreamGetPriority", "cuStreamGetFlags", "cuStreamGetCtx", "cuStreamGetId",
             "cuStreamGetDevice", "cuStreamGetGreenCtx", "cuStreamGetDevResource",
             "cuStreamGetAttribute", "cuStreamIsCapturing", "cuStreamGetCaptureInfo"},
    "sets what is no work": {"cuStreamSetAttribute", "cuStreamCopyAttributes",
                             "cuStreamUpdateCaptureDependencies", "cuStreamAttachMemAsync"},
    "is deprecated since CUDA 4": {"cuLaunchGridAsync"},
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
