"""``streamkit.doctor()``: what is wrong with this installation and in this process.

What is installed is read from its metadata, and nothing is imported for it; what is loaded is
asked. A check that fails is a finding like any other.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from streamkit._doctor import driver_check
from streamkit._doctor.installed import Installed
from streamkit._doctor.process import Process
from streamkit._doctor.report import DoctorReport, run_check

if TYPE_CHECKING:
    from streamkit._doctor.installed import Progress
    from streamkit.protocols import Finding


def doctor(*, load: bool = False) -> DoctorReport:
    """Look for what is wrong with CUDA and the libraries here; each finding says what to do.

    Loaded libraries are asked for their current stream in this thread on the current device and on
    the others in use, which initialises them there, as ``current_streams`` does. Raises nothing for
    what it finds: a broken library is a finding too. Safe from any thread.

    Args:
        load: Import the installed libraries too, and look at them.
    """
    return examine(load=load)


def examine(*, load: bool = False, progress: Progress = lambda *_: None) -> DoctorReport:
    """Do what ``doctor`` does; ``progress`` is called with what comes next, and how much is done.

    First the driver, then what is installed, then what is loaded: the order of the findings.
    """
    installed = Installed.read()
    findings: list[Finding] = []
    driver = driver_check.look(findings)
    usable = None if findings else driver
    broken = list(installed.load(driver, progress)) if load else []
    installed.ask_loaded()
    findings += run_check("what is installed", lambda: installed.check(driver))
    findings += broken
    process = Process()
    if usable is not None:
        findings += run_check("this process", lambda: process.check(installed, usable))
    return DoctorReport(
        python=sys.version.partition(" ")[0],
        streamkit=str(sys.modules["streamkit"].__version__),
        driver=driver,
        context=process.context,
        libraries=installed.libraries(
            {name: current.standing for name, current in process.current.items()}, all_loaded=load
        ),
        missing=installed.missing,
        environment=installed.environment,
        findings=list(dict.fromkeys(findings)),
    )
