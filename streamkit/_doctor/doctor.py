"""What is wrong with this installation and in this process: ``streamkit.doctor()``.

What is installed is read from its metadata, and nothing is imported for it; what is loaded is
asked. A check that fails is a finding like any other.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from streamkit._doctor import driver_check, process
from streamkit._doctor import installed as installed_module
from streamkit._doctor.report import Report, tell

if TYPE_CHECKING:
    from collections.abc import Callable

    from streamkit.protocols import Finding

    Progress = Callable[[str, int, int], object]


def doctor(*, load: bool = False) -> Report:
    """Look for what is wrong with CUDA and the libraries here; each finding says what to do.

    Installed libraries are not imported, unless ``load`` asks for it. Loaded ones are asked for
    their current stream in this thread on the current device and on the others in use, which
    initialises them there, as ``current_streams`` does. Raises nothing for what it finds: a broken
    library is a finding too. Safe from any thread.
    """
    return examine(load=load)


def examine(*, load: bool = False, progress: Progress = lambda *_: None) -> Report:
    """Do what ``doctor`` does; ``progress`` is called with what comes next, and how much is done.

    First the driver, then what is installed, then what is loaded: the order of the findings.
    """
    installed = installed_module.look()
    findings: list[Finding] = []
    driver = driver_check.look(findings)
    usable = None if findings else driver
    broken = list(installed_module.load(installed, progress)) if load else []
    installed = installed_module.asked(installed)
    findings += tell("what is installed", lambda: installed_module.check(installed, driver))
    findings += broken
    running = process.Running()
    if usable is not None:
        findings += tell("this process", lambda: running.check(installed, usable))
    return Report(
        python=sys.version.partition(" ")[0],
        streamkit=str(sys.modules["streamkit"].__version__),
        driver=driver,
        context=running.context,
        libraries=installed_module.libraries(installed, running.standing, all_loaded=load),
        missing=installed_module.missing(installed),
        environment=installed.environment,
        findings=list(dict.fromkeys(findings)),
    )
