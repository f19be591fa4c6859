"""Device memory for arrays of any library."""

from __future__ import annotations

import threading

from support.gpu.raw import check, driver


class Memory:
    """Device memory that tells when a library has freed it."""

    def __init__(self, device=0, size=1024):
        with_context = check(driver.cuDevicePrimaryCtxRetain(device))
        check(driver.cuCtxPushCurrent(with_context))
        self.pointer = int(check(driver.cuMemAlloc(size)))
        check(driver.cuCtxPopCurrent())
        self.freed = threading.Event()

    def free(self, *_):
        self.freed.set()
