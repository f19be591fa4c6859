"""The driver's calls that put work on a queue, or order it, as CUPTI shows them to the recorder."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, cast

if TYPE_CHECKING:
    from streamkit.diagnostics.recording.places import Place

CallKind = Literal[
    "launch", "launch with more", "copy", "copy and wait", "copy of rows", "fill", "fill of 2",
    "fill of 4", "graph launch", "host function", "other work", "wait for a value", "free",
    "record", "wait", "event done", "stream done", "device done", "free and wait",
    "begin of capture", "stream made", "stream destroyed",
    "event made", "event destroyed", "foreign event", "shared event", "event in a graph",
    "graph node",
    "allocation", "memory made", "memory mapped", "memory gone", "memory unmapped",
    "code unloaded", "not followed", "unknown", "stream met",
]  # fmt: skip
"""The meaning of a call for an order, or for the memory that work uses."""


class DriverCall(NamedTuple):
    """A call of the driver, in one of its variants."""

    kind: CallKind
    name: str
    fields: struct.Struct
    """The layout of the parameters, as far as they are used."""
    stream: int | None
    """The byte of the parameters where the stream is; None for a call without a stream."""
    is_per_thread: bool
    """Whether the null stream means the per-thread stream, and not the legacy one."""


# The kind; the fields that are used, "@" for the stream, as far as they are needed; the calls:
# their names and CUPTI's numbers, every second one where stream 0, if the call takes it, is the
# per-thread one. CUDA keeps numbers and fields for ever: a call that changes gets a new number. The
# first row is no call: the recorder notes what the driver says of a stream, its id, context,
# device and flags, in the call that uses it first; what is not known is 0, or -1.
_TABLE = """
stream met        | @QQii8x    | - 0
launch            | Q32x@QQ    | cuLaunchKernel 307 442
launch            | Q32x@Q     | cuLaunchCooperativeKernel 477 478
launch with more  | QQQQ       | cuLaunchKernelEx 652 653
copy              | QQQ        | cuMemcpy 305 408, cuMemcpyHtoD 276 397, cuMemcpyDtoD 280 399
copy and wait     | QQQ        | cuMemcpyDtoH 278 398
copy              | Q8xQ8xQ    | cuMemcpyPeer 318 409
copy              | QQQ@       | cuMemcpyAsync 306 418, cuMemcpyHtoDAsync 277 421
copy              | QQQ@       | cuMemcpyDtoHAsync 279 422, cuMemcpyDtoDAsync 281 423
copy              | Q8xQ8xQ@   | cuMemcpyPeerAsync 319 426
copy of rows      | Q          | cuMemcpy2D 287 405, cuMemcpy2DUnaligned 288 406
copy of rows      | Q@         | cuMemcpy2DAsync 289 424
fill              | Q8xQ       | cuMemsetD8 249 411
fill of 2         | Q8xQ       | cuMemsetD16 250 412
fill of 4         | Q8xQ       | cuMemsetD32 251 413
fill              | Q8xQ@      | cuMemsetD8Async 216 428
fill of 2         | Q8xQ@      | cuMemsetD16Async 218 429
fill of 4         | Q8xQ@      | cuMemsetD32Async 220 430
other work        | 8x         | cuMemsetD2D8 252 414, cuMemsetD2D16 253 415, cuMemsetD2D32 254 416
other work        | 8x         | cuMemcpyAtoA 286 404, cuMemcpyAtoD 284 401, cuMemcpyAtoH 282 403
other work        | 8x         | cuMemcpyDtoA 285 400, cuMemcpyHtoA 292 402, cuMemcpy3D 290 407
other work        | 8x         | cuMemcpy3DPeer 320 410
other work        | 40x@       | cuMemsetD2D8Async 222 431, cuMemsetD2D16Async 224 432
other work        | 40x@       | cuMemsetD2D32Async 226 433
other work        | 8x@        | cuMemcpy3DAsync 291 425, cuMemcpy3DPeerAsync 321 427
other work        | 32x@       | cuMemcpyHtoAAsync 293 419, cuMemcpyAtoHAsync 283 420
other work        | 32x@       | cuMemcpy3DBatchAsync 778 779, cuMemBatchDecompressAsync 761 762
other work        | 32x@       | cuMemDiscardBatchAsync 789 790
other work        | 64x@       | cuMemcpyBatchAsync 776 777
other work        | 56x@       | cuMemcpyBatchAsync 796 797
other work        | 56x@       | cuMemDiscardAndPrefetchBatchAsync 791 792
other work        | 24x@       | cuMemcpy3DBatchAsync 798 799
other work        | 24x@       | cuSignalExternalSemaphoresAsync 490 491
other work        | @          | cuStreamWriteValue32 460 461 663 664
other work        | @          | cuStreamWriteValue64 475 476 665 666
other work        | 16x@       | cuMemMapArrayAsync 584 585, cuGraphicsMapResources 133 443
other work        | 16x@       | cuGraphicsUnmapResources 134 444
graph launch      | 8x@        | cuGraphLaunch 514 515
host function     | @          | cuLaunchHostFunc 527 528, cuStreamAddCallback 346 437
wait for a value  | @          | cuStreamWaitValue32 458 459 659 660
wait for a value  | @          | cuStreamWaitValue64 473 474 661 662
wait for a value  | @          | cuStreamBatchMemOp 462 463 667 668
wait for a value  | 24x@       | cuWaitExternalSemaphoresAsync 492 493
record            | Q@         | cuEventRecord 119 441
record            | Q@I        | cuEventRecordWithFlags 587 588
wait              | @QI        | cuStreamWaitEvent 295 436
event done        | Q          | cuEventSynchronize 121, cuEventQuery 120
stream done       | @          | cuStreamSynchronize 126 440, cuStreamQuery 125 439
device done       |            | cuCtxSynchronize 17
device done       | Q          | cuCtxSynchronize 800
begin of capture  | @          | cuStreamBeginCapture 495 496 539 540
begin of capture  | @          | cuStreamBeginCaptureToGraph 720 721
stream made       | QI         | cuStreamCreate 124, cuStreamCreateWithPriority 367
stream made       | Q8xI       | cuGreenCtxStreamCreate 758
stream destroyed  | @          | cuStreamDestroy 127 326
event made        | Q          | cuEventCreate 118
event destroyed   | Q          | cuEventDestroy 122 325
foreign event     | Q          | cuIpcOpenEventHandle 335, cuEventCreateFromEGLSync 479
shared event      | 8xQ        | cuIpcGetEventHandle 334
event in a graph  | 32xQ       | cuGraphAddEventRecordNode 589, cuGraphAddEventWaitNode 590
event in a graph  | 8xQ        | cuGraphEventRecordNodeSetEvent 593
event in a graph  | 8xQ        | cuGraphEventWaitNodeSetEvent 594
event in a graph  | 16xQ       | cuGraphExecEventRecordNodeSetEvent 595
event in a graph  | 16xQ       | cuGraphExecEventWaitNodeSetEvent 596
graph node        | 32xQ       | cuGraphAddNode 712
graph node        | 40xQ       | cuGraphAddNode 723
graph node        | 8xQ        | cuGraphNodeSetParams 713
graph node        | 16xQ       | cuGraphExecNodeSetParams 714
allocation        | QQ@        | cuMemAllocAsync 598 599
allocation        | QQ8x@      | cuMemAllocFromPoolAsync 611 612
free              | Q@         | cuMemFreeAsync 600 601
memory made       | QQ         | cuMemAlloc 243, cuMemAllocManaged 371, cuMemAllocHost 294
memory made       | QQ         | cuMemHostAlloc 39 271
memory made       | Q          | cuMemAllocPitch 244, cuIpcOpenMemHandle 329 567
memory made       | Q          | cuMemPoolImportPointer 616
memory mapped     | QQ         | cuMemHostRegister 301 379, cuMemMap 551
free and wait     | Q          | cuMemFree 245
memory gone       | Q          | cuMemFreeHost 38, cuMemHostUnregister 302, cuIpcCloseMemHandle 330
memory unmapped   | QQ         | cuMemUnmap 552
code unloaded     |            | cuModuleUnload 22, cuLibraryUnload 680
not followed      |            | cuCtxDestroy 322, cuCtxRecordEvent 755, cuCtxWaitEvent 756
not followed      |            | cuDevicePrimaryCtxReset 389 545, cuGreenCtxRecordEvent 749
not followed      |            | cuLaunchCooperativeKernelMultiDevice 480, cuGreenCtxWaitEvent 750
"""


def _calls() -> dict[int, DriverCall]:
    found = {}
    for row in _TABLE.strip().splitlines():
        sort, fields, alike = map(str.strip, row.split("|"))
        kind = cast("CallKind", sort)
        read = struct.Struct("<" + fields.replace("@", "Q"))
        before, stream, _ = fields.partition("@")
        at = struct.calcsize(f"<{before}") if stream else None
        for name, *numbers in map(str.split, alike.split(",")):
            for place, number in enumerate(numbers):
                found[int(number)] = DriverCall(kind, name, read, at, is_per_thread=place % 2 == 1)
    return found


CALLS = _calls()
"""By CUPTI's number of each."""
UNKNOWN = range(807, 1024)
"""The numbers that a CUPTI newer than CUDA 13.0 may give to calls that are not known here."""


class Fact(NamedTuple):
    """One call of the driver, or a stream that was met."""

    call: int
    """The number of the call in ``CALLS``."""
    thread: int
    """The caller's number by the system, which tells apart threads that follow one another."""
    context: int
    """The CUcontext that was current."""
    fields: bytes
    """The arguments; empty for the launch of a kernel, the name of an unknown call."""
    place: Place | None
    """The line of the user's that made the call, if it is known."""
    more: Any = None
    """The data to which the fields point, or the driver's answer about these."""
    since: int | None = None
    """For a call that has ended, how many facts there were when it began; else None."""
    stream: int = 0
    """The handle of the stream, 1 or 2 for a default stream; 0 for a call without a stream."""
    is_captured: bool = False
    """Whether the stream captured when the call was made, or by it."""


FAILED = object()
"""``more`` of a call that has failed."""


class Kernel(NamedTuple):
    """A launch: ``more`` of its fact."""

    symbol: str
    parameters: tuple[bytes, ...] | None
    """None if the parameters cannot be read."""
