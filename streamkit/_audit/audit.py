"""``audit``: what really ran in a block, and on which queue."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from streamkit._audit.callback_recording import CallbackRecorder
from streamkit._audit.cuda_recording import CudaRecorder
from streamkit._audit.host_recording import HostRecorder
from streamkit._audit.report import AuditReport
from streamkit._cuda import driver, loader

if TYPE_CHECKING:
    from collections.abc import Generator


@contextmanager
def audit(*, times: bool = True) -> Generator[AuditReport]:
    """Record every operation in the block, of any library and thread, with its real queue.

    On the GPU these are kernels, copies, fills, waits, and where the host waited, from CUPTI; on
    host queues, submitted functions and the bodies of scopes. What CUDA graphs run counts where
    they are launched. The report is made when the block ends, which waits until everything has run;
    if the block raises, it holds what had run by then. Inside a scope of a host stream it does not
    wait for that stream. Audits nest. In a forked child host queues alone are recorded.

    With ``times=False`` the GPU's part is what is given to the driver, by callbacks, in the order
    in which it is given; a graph is one operation. That needs no CUDA 13 and no cupti-python, and
    leaves nothing behind. The end does not wait for the GPU, and a stream may capture meanwhile.

    Args:
        times: Record when each operation ran. What shows times needs it.

    Raises:
        BackendNotInstalledError: There is a GPU, and no CUPTI, or with times none of CUDA 13. It
            says how to install it.
        ScopeError: torch's profiler or another tool has CUPTI, which serves one at a time, or took
            it meanwhile.
        CaptureError: The block ends while a stream captures, and times are recorded.
        ForkedProcessError: The block ends in a child that was forked inside it.
    """
    report, host = AuditReport(), HostRecorder()
    cuda: CudaRecorder | CallbackRecorder | None = None
    if not loader.is_forked and driver.is_present():
        cuda = CudaRecorder() if times else CallbackRecorder()
    recorders = (host,) if cuda is None else (cuda, host)
    with ExitStack() as completing, ExitStack() as finishing:
        for recorder in recorders:
            finishing.callback(recorder.stop)
            recorder.start()
        completing.callback(  # all have begun: after all have stopped
            _complete, report, host, cuda, has_times=times
        )
        yield report
        for recorder in recorders:
            recorder.sync()


def _complete(
    report: AuditReport,
    host: HostRecorder,
    cuda: CudaRecorder | CallbackRecorder | None,
    *,
    has_times: bool,
) -> None:
    found, unfinished = host.operations(None if cuda is None else cuda.queue_of)
    if cuda is not None:
        found = [*cuda.operations(), *found]
    if not has_times:
        found = [replace(one, start_ns=0, end_ns=0) for one in found]
    key_of = cuda.key_of if isinstance(cuda, CudaRecorder) else None
    report.complete(found, unfinished=unfinished, key_of=key_of, has_times=has_times)
