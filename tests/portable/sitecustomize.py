"""Takes from each Python that starts what only POSIX or Linux has.

With this folder on PYTHONPATH the tests marked ``portable`` run as on a laptop without either: the
lane ``unit-portable``. What pytest, subprocess, shutil, asyncio and the mutations need stays, and
the C++ runtime, with which audits of CUDA streams, which are for Linux, read the names of kernels.
"""

from __future__ import annotations

import os
import signal
import sys
import time

ABSENT = {
    os: (
        "chown", "confstr", "eventfd", "eventfd_read", "eventfd_write", "fork", "forkpty",
        "getloadavg", "getpgid", "getpgrp", "getpriority", "getsid", "memfd_create",
        "mkfifo", "nice", "openpty", "pidfd_open", "posix_fallocate", "posix_spawn", "pread",
        "pwrite", "register_at_fork", "sched_getaffinity", "sched_setaffinity", "sched_yield",
        "setpgid", "setsid", "wait", "wait3", "wait4",
    ),
    signal: (
        "SIGALRM", "SIGBUS", "SIGCHLD", "SIGHUP", "SIGPIPE", "SIGQUIT", "SIGSTOP",
        "SIGUSR1", "SIGUSR2", "alarm", "getitimer", "pause", "pthread_kill", "pthread_sigmask",
        "setitimer", "siginterrupt", "sigpending", "sigtimedwait", "sigwait", "sigwaitinfo",
    ),
    time: (
        "CLOCK_BOOTTIME", "CLOCK_MONOTONIC", "CLOCK_MONOTONIC_RAW", "CLOCK_PROCESS_CPUTIME_ID",
        "CLOCK_REALTIME", "CLOCK_TAI", "CLOCK_THREAD_CPUTIME_ID", "clock_getres", "clock_gettime",
        "clock_gettime_ns", "clock_settime", "clock_settime_ns", "pthread_getcpuclockid", "tzset",
    ),
}  # fmt: skip
MODULES = "fcntl", "grp", "pty", "pwd", "resource", "syslog", "termios", "tty"

for module, names in ABSENT.items():
    for name in names:
        if hasattr(module, name):
            delattr(module, name)
sys.modules.update(dict.fromkeys(MODULES))  # None is how an import is forbidden


def _refuse(event: str, arguments: tuple[object, ...]) -> None:
    if event == "ctypes.dlopen":
        frame = sys._getframe(1)
        stays = (
            type(frame.f_locals.get("self")).__name__ == "PyDLL"  # Python itself
            or arguments[0] == "libstdc++.so.6"
        )
        while frame.f_globals["__name__"] == "ctypes":
            frame = frame.f_back
        if not stays and frame.f_globals["__name__"].startswith("streamkit."):
            raise OSError(f"no library {arguments[0]!r} on this platform")
    elif event == "open" and str(arguments[0]).startswith("/proc/"):
        raise FileNotFoundError(f"no {arguments[0]} on this platform")


sys.addaudithook(_refuse)
