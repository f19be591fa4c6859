"""The pytest plugin: a stream for each test, adversarial seeds, races, and markers for GPU tests.

pytest loads this at its start in every project that has StreamKit installed. So it imports only
pytest, StreamKit and the standard library until a test uses a fixture. All that it offers has
StreamKit's name, because a project may have a ``stream`` or a mark ``gpu`` of its own.
"""

from __future__ import annotations

import contextlib
import inspect
from argparse import ArgumentTypeError
from itertools import chain
from typing import TYPE_CHECKING, Any

import pytest

import streamkit
from streamkit._cuda import driver
from streamkit._queues import registry
from streamkit._support.messages import in_one_line

if TYPE_CHECKING:
    from collections.abc import Generator

    from streamkit.diagnostics.races.report import RaceReport
    from streamkit.types import CudaStream, HostStream

_report: pytest.StashKey[RaceReport] = pytest.StashKey()
_scheduler: pytest.StashKey[Any] = pytest.StashKey()
_NAMED = 8  # operations that the last line names
_SEEDS = 10  # five pairs: the odd seed prefers the item that the even seed puts last


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add ``--streamkit-races`` and ``--streamkit-seeds``."""
    group = parser.getgroup("streamkit")
    group.addoption(
        "--streamkit-seed",
        type=int,
        action="append",
        metavar="SEED",
        help="run tests with streamkit_seed under this seed only; can be given several times",
    )
    group.addoption(
        "--streamkit-seeds",
        type=_at_least_one,
        default=_SEEDS,
        metavar="COUNT",
        help=f"run tests with streamkit_seed under this many seeds ({_SEEDS})",
    )
    for fails, text in (
        ("certain", "fail each test in which nothing orders two uses of the same memory"),
        ("possible", "fail each test with a possible race too"),
    ):  # two names, because the path of a test could be taken for a value
        name = "--streamkit-races" + "=possible" * (fails == "possible")
        group.addoption(name, action="store_const", const=fails, dest="streamkit_races", help=text)


def _at_least_one(text: str) -> int:
    try:
        count = int(text)
    except ValueError as error:  # argparse would name this function in it
        raise ArgumentTypeError(f"{text!r} is not a number of seeds") from error
    if count < 1:
        raise ArgumentTypeError(f"{text} would run no test with streamkit_seed: use 1 or more")
    return count


def pytest_configure(config: pytest.Config) -> None:
    """Register the markers."""
    for marker in (
        "streamkit_gpu: needs a CUDA device; skipped where there is none",
        (
            "streamkit_follows(library=None): fails unless the work of the test follows the "
            "current stream, of that library or of all; the test runs up to three times, and is "
            "skipped where there is no CUDA device"
        ),
        "streamkit_no_races: has races on purpose; --streamkit-races does not look",
    ):
        config.addinivalue_line("markers", marker)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test that uses ``streamkit_seed`` once for each seed."""
    if "streamkit_seed" in metafunc.fixturenames:
        option: Any = metafunc.config.getoption
        seeds = option("streamkit_seed") or range(option("streamkit_seeds"))
        metafunc.parametrize(
            "streamkit_seed", seeds, ids=[f"seed{seed}" for seed in seeds], indirect=True
        )


@pytest.hookimpl(tryfirst=True)  # before pytest looks at the test's skips
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a test whose marker needs a CUDA device where there is none."""
    mark = item.get_closest_marker("streamkit_follows")
    if mark is not None:
        _followed(mark)  # a mistake in the marker is an error everywhere
    marks = "streamkit_gpu", "streamkit_follows"
    if any(map(item.get_closest_marker, marks)) and not driver.is_present():
        item.add_marker(pytest.mark.skip(reason="needs a CUDA device, and this machine has none"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Run the test inside ``races``, with ``--streamkit-races`` and unless it is marked."""
    __tracebackhide__ = True
    wanted = item.config.getoption("streamkit_races")
    if not wanted or item.get_closest_marker("streamkit_no_races") is not None:
        outcome = yield
    else:
        with streamkit.races() as report:
            item.stash[_report] = report
            outcome = yield
        report.assert_none(possible=wanted == "possible")
    if _scheduler in item.stash:
        item.stash[_scheduler].assert_had_work(item.name)
    return outcome


@pytest.hookimpl  # after the hook for unittest, whose tests do not raise their errors
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> None:
    """Name the races of a test that fails for another reason, perhaps because of a race."""
    report = item.stash.get(_report, None) if call.when == "call" else None
    if report is None:
        return
    with contextlib.suppress(Exception):  # the report was not made, or the error takes no notes
        seen = report.coverage
        missed = [*map(in_one_line, seen.missed)]  # pytest-xdist sends no surrogates
        found = len(report.possible), seen.total - seen.understood, missed
        item.user_properties.append(("streamkit_races", found))  # pytest-xdist hands them on
        if call.excinfo is None or call.excinfo.errisinstance(pytest.skip.Exception):
            return
        if report.certain and str(report) not in str(call.excinfo.value):
            call.excinfo.value.add_note(f"--streamkit-races: {report}")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say what ``--streamkit-races`` leaves open, because a test that passes does not tell."""
    if not terminalreporter.config.getoption("streamkit_races"):
        return
    from streamkit.diagnostics.pictures.timeline import counted

    reports = chain.from_iterable(terminalreporter.stats.values())
    calls = (one for one in reports if getattr(one, "when", "") == "call")  # subtests' tell nothing
    told = {(one.nodeid, key): value for one in calls for key, value in one.user_properties}
    found = [value for (_, key), value in told.items() if key == "streamkit_races"]
    names = [*dict.fromkeys(chain.from_iterable(one[2] for one in found))]
    named = ", ".join([*names[:_NAMED], *["..."][: len(names) > _NAMED]])
    terminalreporter.write_line(
        f"--streamkit-races looked at {counted(len(found), 'test')}: "
        f"{counted(sum(one[0] > 0 for one in found), 'test')} with possible races, "
        f"{counted(sum(one[1] for one in found), 'operation')} not understood"
        f"{named and '; not known: '}{named}"
    )


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Check a test with the marker ``streamkit_follows`` by ``assert_follows``."""
    __tracebackhide__ = True
    mark = pyfuncitem.get_closest_marker("streamkit_follows")
    if mark is None:
        return None
    from streamkit.testing import assert_follows

    test, values = pyfuncitem.obj, pyfuncitem.funcargs
    arguments = {
        name: values[name] for name in inspect.signature(test).parameters if name in values
    }

    def call() -> None:
        test(**arguments)

    call.__qualname__ = test.__qualname__
    assert_follows(call, library=_followed(mark))
    return True


def _followed(mark: pytest.Mark) -> str | None:
    """Return the library that a test with the marker has to follow, None for all libraries."""

    def streamkit_follows(library: str | None = None) -> str | None:
        return library

    try:
        library = streamkit_follows(*mark.args, **mark.kwargs)
        return None if library is None else registry.with_current_named(library)
    except TypeError as error:  # an UnsupportedStreamError is one too
        mistake = f"@pytest.mark.streamkit_follows: {error}"
    pytest.fail(mistake, pytrace=False)  # out here, where it does not drag the first error along


@pytest.fixture
def streamkit_seed(request: pytest.FixtureRequest) -> Generator[int]:
    """Run the test in ``streamkit.testing.adversarial(seed)``, once for each of ten seeds."""
    from streamkit.testing._scheduler import scheduled

    with scheduled(request.param) as scheduler:
        request.node.stash[_scheduler] = scheduler
        yield request.param


@pytest.fixture
def streamkit_stream(request: pytest.FixtureRequest) -> Generator[CudaStream[Any] | HostStream]:
    """Make a stream: on the GPU, or on the host where there is none and for ``streamkit_seed``.

    After the test it is synchronised, so that an error of its work is one of the test, and closed.
    """
    device = "cpu" if "streamkit_seed" in request.fixturenames else None
    made = streamkit.new_stream(device, name=request.node.name)
    yield made
    try:
        if not made.closed:
            made.sync()
    finally:
        made.close()
