"""The driver's calls that put work on a queue, or order it, as CUPTI's callbacks show them."""

from __future__ import annotations

import struct
from typing import NamedTuple


class DriverCall(NamedTuple):
    """One of them."""

    kind: str
    """What it means for an order."""
    name: str
    fields: struct.Struct
    """Of its parameters."""
    stream: int | None
    """Which of the fields is its stream; None if it has none."""
    is_per_thread: bool
    """Whether the null stream is the per-thread one for it, not the legacy one."""

    def stream_of(self, values: tuple[int, ...]) -> int:
        """Return the handle of its stream, 1 or 2 for a default one."""
        handle = 0 if self.stream is None else values[self.stream]
        return handle or (2 if self.is_per_thread else 1)


# The kind; the fields that are used, "@" for the stream, as far as they are needed; the calls:
# their names and CUPTI's numbers, every second one where stream 0 is the per-thread one. CUDA keeps
# numbers and fields for ever: a call that changes gets a new number.
_TABLE = """
launch            | Q32x@QQ    | cuLaunchKernel 307 442
launch            | Q32x@Q     | cuLaunchCooperativeKernel 477 478
launch with more  | QQQQ       | cuLaunchKernelEx 652 653
copy              | QQQ        | cuMemcpy 305 408
copy              | QQQ        | cuMemcpyHtoD 276 397
copy and wait     | QQQ        | cuMemcpyDtoH 278 398
copy              | QQQ        | cuMemcpyDtoD 280 399
copy              | Q8xQ8xQ    | cuMemcpyPeer 318 409
copy              | QQQ@       | cuMemcpyAsync 306 418
copy              | QQQ@       | cuMemcpyHtoDAsync 277 421
copy              | QQQ@       | cuMemcpyDtoHAsync 279 422
copy              | QQQ@       | cuMemcpyDtoDAsync 281 423
copy              | Q8xQ8xQ@   | cuMemcpyPeerAsync 319 426
copy of rows      | Q          | cuMemcpy2D 287 405
copy of rows      | Q          | cuMemcpy2DUnaligned 288 406
copy of rows      | Q@         | cuMemcpy2DAsync 289 424
fill              | Q8xQ       | cuMemsetD8 249 411
fill of 2         | Q8xQ       | cuMemsetD16 250 412
fill of 4         | Q8xQ       | cuMemsetD32 251 413
fill              | Q8xQ@      | cuMemsetD8Async 216 428
fill of 2         | Q8xQ@      | cuMemsetD16Async 218 429
fill of 4         | Q8xQ@      | cuMemsetD32Async 220 430
other work        | 8x         | cuMemsetD2D8 252 414
other work        | 8x         | cuMemsetD2D16 253 415
other work        | 8x         | cuMemsetD2D32 254 416
other work        | 40x@       | cuMemsetD2D8Async 222 431
other work        | 40x@       | cuMemsetD2D16Async 224 432
other work        | 40x@       | cuMemsetD2D32Async 226 433
other work        | 8x         | cuMemcpy3D 290 407
other work        | 8x         | cuMemcpy3DPeer 320 410
other work        | 8x@        | cuMemcpy3DAsync 291 425
other work        | 8x@        | cuMemcpy3DPeerAsync 321 427
other work        | 32x@       | cuMemcpyHtoAAsync 293 419
other work        | 32x@       | cuMemcpyAtoHAsync 283 420
other work        | 64x@       | cuMemcpyBatchAsync 776 777
other work        | 56x@       | cuMemcpyBatchAsync 796 797
other work        | 32x@       | cuMemcpy3DBatchAsync 778 779
other work        | 24x@       | cuMemcpy3DBatchAsync 798 799
other work        | 8x@        | cuGraphLaunch 514 515
other work        | @          | cuLaunchHostFunc 527 528
other work        | @          | cuStreamAddCallback 346 437
wait for a value  | @          | cuStreamWaitValue32 458 459 659 660
wait for a value  | @          | cuStreamWaitValue64 473 474 661 662
wait for a value  | @          | cuStreamBatchMemOp 462 463 667 668
record            | Q@         | cuEventRecord 119 441
record            | Q@         | cuEventRecordWithFlags 587 588
wait              | @Q         | cuStreamWaitEvent 295 436
event done        | Q          | cuEventSynchronize 121
event done        | Q          | cuEventQuery 120
stream done       | @          | cuStreamSynchronize 126 440
stream done       | @          | cuStreamQuery 125 439
device done       |            | cuCtxSynchronize 17
device done       |            | cuCtxSynchronize 800
begin of capture  | @          | cuStreamBeginCapture 495 496 539 540
begin of capture  | @          | cuStreamBeginCaptureToGraph 720 721
end of capture    | @          | cuStreamEndCapture 497 498
stream made       | QI         | cuStreamCreate 124
stream made       | QI         | cuStreamCreateWithPriority 367
stream destroyed  | @          | cuStreamDestroy 127
stream destroyed  | @          | cuStreamDestroy 326
event destroyed   | Q          | cuEventDestroy 122
event destroyed   | Q          | cuEventDestroy 325
foreign event     | Q          | cuIpcOpenEventHandle 335
allocation        | QQ@        | cuMemAllocAsync 598 599
allocation        | QQ8x@      | cuMemAllocFromPoolAsync 611 612
free              | Q@         | cuMemFreeAsync 600 601
device done       | Q          | cuMemFree 245
code unloaded     |            | cuModuleUnload 22
code unloaded     |            | cuLibraryUnload 680
"""


def _calls() -> dict[int, DriverCall]:
    found = {}
    for row in _TABLE.strip().splitlines():
        kind, fields, call = map(str.strip, row.split("|"))
        read = struct.Struct("<" + fields.replace("@", "Q"))
        letters = [letter for letter in fields if letter in "QI@"]
        stream = letters.index("@") if "@" in letters else None
        name, *numbers = call.split()
        for place, number in enumerate(numbers):
            found[int(number)] = DriverCall(kind, name, read, stream, is_per_thread=place % 2 == 1)
    return found


CALLS = _calls()
"""By CUPTI's number of each."""
