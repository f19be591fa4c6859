"""The tiers: which tests belong to them, what a lane must have, and a tally of each."""

from __future__ import annotations

import importlib.util
import os
import signal
import tempfile
from collections import Counter
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

import pytest

from support.libraries import cuda_devices, lane, missing, required

if TYPE_CHECKING:
    from collections.abc import Generator

HERE = Path(__file__).parent
TIERS = ("unit", "nogpu", "emulated", "gpu")

# pytest-timeout reads this when it is installed; its ini option would be an error where it is not.
os.environ.setdefault("PYTEST_TIMEOUT", "120")

collect_ignore = ["plugin"]  # a project of its own, installed by the lanes


def _tier(path: str) -> str | None:
    return next((part for part in PurePosixPath(path).parts if part in TIERS), None)


def _streamkit() -> str:
    spec = importlib.util.find_spec("streamkit")
    return str(spec.origin) if spec else "not installed"


def pytest_report_header() -> str:
    return f"streamkit: {_streamkit()}"


def pytest_sessionstart() -> None:
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # as in a shell's background job, whose children would be deaf to Ctrl-C too
        signal.signal(signal.SIGINT, signal.default_int_handler)
    name = "-".join(lane())
    if "TOX_ENV_NAME" in os.environ and _streamkit() == str(HERE.parent / "streamkit/__init__.py"):
        pytest.exit("this lane tests the wheel, and found the checkout", returncode=1)
    if absent := missing(required()):
        pytest.exit(f"the lane {name} needs {absent}: not installed", returncode=1)
    if "gpu" in lane() and not cuda_devices():
        pytest.exit(f"the lane {name} needs a CUDA device: the driver reports none", returncode=1)


def pytest_configure(config: pytest.Config) -> None:
    sanitizer = os.environ.get("STREAMKIT_SANITIZER", "")
    if sanitizer:  # of the recorder in C, which the tests then use
        from emulator import build
        from streamkit.diagnostics.recording import recorder  # it is told of another file

        folder = tempfile.TemporaryDirectory()
        config.add_cleanup(folder.cleanup)
        recorder._FILE = build.recorder(Path(folder.name), recorder._SOURCE, sanitizer)
        os.environ["RECORDER"] = str(recorder._FILE)  # for processes of their own


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    tiers = {_tier(item.path.relative_to(HERE).as_posix()) for item in items}
    if "nogpu" in tiers.intersection(lane()) and cuda_devices():
        name = "-".join(lane())
        pytest.exit(f"the lane {name} tests life without a CUDA device: hide it", returncode=1)
    for item in items:
        tier = _tier(item.path.relative_to(HERE).as_posix())
        if tier is None:
            raise pytest.UsageError(f"{item.nodeid} is in none of the tiers {', '.join(TIERS)}")
        item.add_marker(tier)
        if tier == "gpu" and not cuda_devices():
            item.add_marker(pytest.mark.skip(reason="no CUDA device"))
        if tier == "nogpu" and cuda_devices():
            item.add_marker(pytest.mark.skip(reason="there is a CUDA device"))


@pytest.hookimpl(wrapper=True, tryfirst=True)  # below pytest's own summary
def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter,
) -> Generator[None, None, None]:
    yield
    outcomes: dict[str, str] = {}
    for outcome, kinds in (
        ("passed", ("passed",)),
        ("skipped", ("skipped", "xfailed")),
        ("failed", ("failed", "error")),  # last: a test that passed and then broke has failed
    ):
        for kind in kinds:
            for report in terminalreporter.stats.get(kind, ()):
                outcomes[report.nodeid] = outcome
    for tier in TIERS:
        count = Counter(
            outcome
            for nodeid, outcome in outcomes.items()
            if _tier(nodeid.partition("::")[0]) == tier
        )
        if count:
            text = ", ".join(f"{count[kind]} {kind}" for kind in ("passed", "failed", "skipped"))
            terminalreporter.write_line(f"tier {tier}: {text}")
    skips = Counter(
        (report.nodeid.partition("[")[0], _reason(report))
        for kind in ("skipped", "xfailed")
        for report in terminalreporter.stats.get(kind, ())
    )
    for (test, reason), number in sorted(skips.items()):
        terminalreporter.write_line(f"skipped {number} {test}: {reason}")  # for tests/expected.py


def _reason(report: pytest.TestReport) -> str:
    if hasattr(report, "wasxfail"):
        return f"expected to fail: {report.wasxfail}"
    _, _, told = report.longrepr
    return " ".join(told.removeprefix("Skipped: ").split())
