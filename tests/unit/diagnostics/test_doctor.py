"""The doctor without a GPU: what is installed, the driver's absence, the report, the command."""

from __future__ import annotations

import dataclasses
import functools
import importlib.metadata
import json
import re
import sys
import tomllib
from pathlib import Path

import pytest

import streamkit as sk
from streamkit._cuda import driver as driver_module  # a driver is made up here
from streamkit._cuda import loader  # a driver is made up here
from streamkit._queues import registry  # the rows name what pip installs
from streamkit.diagnostics.doctor import doctor, toolkit  # a machine is made up here
from streamkit.diagnostics.doctor import report as report_module  # an installation is made up here
from streamkit.diagnostics.doctor.installed import VARIABLES, Installed  # it is made up here
from streamkit.diagnostics.doctor.report import (  # it is made up here
    DoctorReport,
    Driver,
    LibraryReport,
    Standing,
)
from streamkit.diagnostics.recording import recorder  # it is made to be missing here
from streamkit.protocols import Finding
from streamkit.protocols import installed as installed_module  # the lines are looked at
from support.programs import ROOTS, python

pytestmark = [pytest.mark.portable, pytest.mark.quick]

A_GPU = ["a GPU [x]"]
DRIVER = Driver("13.0", "580.159.04", A_GPU)

# distributions, as pip leaves them
CLEAN = {
    "torch": "2.11.0+cu130",
    "cupy-cuda13x": "14.2.0",
    "warp-lang": "1.19.0",
    "apache-tvm-ffi": "0.1.15.post2",
    "numba-cuda": "0.30.4",
    "cuda-core": "1.2.2",
    "cuda_bindings": "13.3.1",
}
CUDA_12 = {**CLEAN, "torch": "2.11.0", "cupy-cuda12x": "14.2.0", "cuda_bindings": "12.9.4"}
del CUDA_12["cupy-cuda13x"]


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """Read what the doctor finds where exactly these distributions are installed."""

    def installed(distributions, torch_cuda="'13.0'", environment=()):
        for name, version in distributions.items():
            folder = tmp_path / f"{name.replace('-', '_')}-{version}.dist-info"
            folder.mkdir()
            about = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
            (folder / "METADATA").write_text(about)
        if torch_cuda is not None:
            (tmp_path / "torch").mkdir()
            text = f"cuda: Optional[str] = {torch_cuda}\nhip: Optional[str] = None\n"
            (tmp_path / "torch/version.py").write_text(text)
        monkeypatch.setattr(registry, "loaded", dict)
        monkeypatch.setattr(toolkit, "has", lambda name, *majors: True)
        monkeypatch.setattr(recorder, "load", int)
        only_here = functools.partial(importlib.metadata.distributions, path=[str(tmp_path)])
        monkeypatch.setattr(importlib.metadata, "distributions", only_here)
        for name in VARIABLES:
            monkeypatch.delenv(name, raising=False)
        for name, value in dict(environment).items():
            monkeypatch.setenv(name, value)
        return Installed.read()

    return installed


def codes(findings):
    findings = list(findings)
    assert all(finding.what and finding.remedy for finding in findings)
    return [(finding.code, finding.library) for finding in findings]


# -- what is installed ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("distributions", "torch_cuda", "driver"),
    [
        (CLEAN, "'13.0'", DRIVER),
        (CLEAN, "'13.0'", None),
        (CUDA_12, "'12.8'", DRIVER),
        (CUDA_12, "'12.8'", Driver("12.4", None, A_GPU)),
        ({}, None, None),
        ({"cuda_bindings": "13.3.1"}, None, Driver("13.0", None, [])),
        ({"torch": "2.13.0+cpu"}, None, None),
        ({"torch": "2.13.0+cpu"}, None, Driver("13.0", None, [])),
    ],
    ids=["13", "13-no-driver", "12-on-13", "12", "nothing", "no-device", "cpu", "cpu-no-device"],
)
def test_control_nothing_is_wrong_with_a_sound_installation(
    installed, distributions, torch_cuda, driver
):
    found = installed(distributions, torch_cuda)
    assert codes(found.check(driver)) == []


CUPY_SWITCH = "CUPY_CUDA_PER_THREAD_DEFAULT_STREAM"
CUDA_SWITCH = "CUDA_PYTHON_CUDA_PER_THREAD_DEFAULT_STREAM"
SWITCHES = ("per-thread-switches", None)
PLANTED = {
    "both CuPy wheels": (
        {"cupy-cuda12x": "14.2.0"},
        {},
        [("two-cupys", "cupy")],  # alone: a line about each would contradict the one about both
    ),
    "CuPy twice for one CUDA": ({"cupy": "14.2.0"}, {}, [("two-cupys", "cupy")]),
    "CUDA Python of another major": ({"cuda_bindings": "12.9.4"}, {}, [("cuda-majors", None)]),
    "torch without CUDA": ({"torch_cuda": "None"}, {}, [("torch-cpu", "torch")]),
    "one that does not show its files": (  # and is known by its label
        {"torch": "2.13.0+cpu", "torch_cuda": None},
        {},
        [("torch-cpu", "torch")],
    ),
    "torch for another CUDA": ({"torch_cuda": "'12.8'"}, {}, [("cuda-majors", None)]),
    "an old torch": ({"torch": "2.9.1+cu130"}, {}, [("old-library", "torch")]),
    "an old Warp": ({"warp-lang": "1.9.1"}, {}, [("old-library", "warp")]),
    "a newer torch": ({"torch": "2.16.0+cu130"}, {}, [("untested-library", "torch")]),
    "a newer cuda.bindings": (
        {"cuda_bindings": "13.6.0"},
        {},
        [("untested-library", "cuda.bindings")],
    ),
    "newer patches of what was tested": ({"warp-lang": "1.19.9", "cuda-core": "1.2.9"}, {}, []),
    "an old numba-cuda": ({"numba-cuda": "0.30.3"}, {}, [("old-library", "numba")]),
    "no cuda.core": ({"cuda-core": None}, {}, [("no-cuda-python", "cuda.core")]),
    "another streamkit": ({"streamkit": "0.3.2"}, {}, [("other-streamkit", None)]),
    "CuPy's switch": ({}, {CUPY_SWITCH: "1"}, [SWITCHES]),
    "CUDA Python's switch": ({}, {CUDA_SWITCH: "1"}, [SWITCHES]),
    "all switches, beside torch": ({}, {CUDA_SWITCH: "1", CUPY_SWITCH: "1"}, [SWITCHES]),
    "switches that are off": ({}, {CUDA_SWITCH: "0", CUPY_SWITCH: "0"}, []),
    "an old CUDA Python, which takes 0 for yes": (
        {"cuda_bindings": "13.2.0"},
        {CUDA_SWITCH: "0"},
        [SWITCHES],
    ),
    "an old CUDA Python, which takes any word for yes": (
        {"cuda_bindings": "13.2.0"},
        {CUDA_SWITCH: "no"},
        [SWITCHES],
    ),
    "an old CUDA Python, and no word": ({"cuda_bindings": "13.2.0"}, {CUDA_SWITCH: ""}, []),
    "a switch that is no number": ({}, {CUPY_SWITCH: "yes"}, []),  # CuPy says it
    "blocking launches": ({}, {"CUDA_LAUNCH_BLOCKING": "1"}, [("launch-blocking", None)]),
    "launches that do not block": ({}, {"CUDA_LAUNCH_BLOCKING": "0"}, []),
}


@pytest.mark.parametrize("fault", PLANTED)
def test_a_planted_fault_is_found_and_nothing_else(installed, fault):
    changes, environment, expected = PLANTED[fault]
    changes = dict(changes)
    torch_cuda = changes.pop("torch_cuda", "'13.0'")
    wanted = {name: version for name, version in {**CLEAN, **changes}.items() if version}
    found = installed(wanted, torch_cuda, environment)
    assert codes(found.check(DRIVER)) == expected


def test_switches_that_all_libraries_follow_are_no_finding(installed):
    here = {
        name: version
        for name, version in CLEAN.items()
        if name not in ("torch", "warp-lang", "apache-tvm-ffi")
    }
    found = installed(here, None, {CUDA_SWITCH: "1", CUPY_SWITCH: "1"})
    assert codes(found.check(DRIVER)) == []
    rows = found.libraries({}, all_loaded=False)
    assert {row.handle_0 for row in rows} == {"per-thread"}


@pytest.mark.parametrize(
    ("served", "expected"),
    [
        ("12.4", {"torch", "cupy", "cuda.bindings"}),
        ("13.0", set()),
        ("14.1", set()),
    ],
)
def test_a_driver_older_than_what_a_library_is_built_for(installed, served, expected):
    """A minor version does not matter: CUDA 13.3 runs on a driver of 13.0."""
    found = [*installed(CLEAN).check(Driver(served, None, A_GPU))]
    assert set(codes(found)) == {("driver-older-than-runtime", name) for name in expected}
    another = f"Update the NVIDIA driver, or pip uninstall cupy-cuda13x, then {CUPY.format(12)}"
    told = [one.remedy for one in found if one.library == "cupy"]
    assert told == [another] * ("cupy" in expected)


TORCH = 'pip install "torch>=2.11" --index-url https://download.pytorch.org/whl/cu'
CUPY = 'pip install "cupy-cuda{}x>=14.0"'
BINDINGS = {
    12: 'pip install "cuda-bindings>=12.9.3,<13" "cuda-core>=1.2,<2"',
    13: 'pip install "cuda-bindings>=13.1.1,<14" "cuda-core>=1.2,<2"',
}


def remedy(found, code, driver=DRIVER):
    """The remedy of the one finding of a kind."""
    (finding,) = [finding for finding in found.check(driver) if finding.code == code]
    return finding.remedy


def test_beside_a_version_beyond_the_tested_ones_stands_the_newest_of_these(installed):
    found = installed({**CLEAN, "torch": "2.16.0+cu130"})
    assert remedy(found, "untested-library") == (
        'Update streamkit-cuda. If something goes wrong: pip install "torch==2.15.*"'
    )


def without(distributions, *names):
    return {name: version for name, version in distributions.items() if name not in names}


def test_the_remedy_names_the_line_that_installs_the_fitting_build(installed):
    found = installed({**CLEAN, "cupy-cuda12x": "14.2.0", "cupy-cuda13x": "14.2.0"})
    assert remedy(found, "two-cupys") == (
        "pip uninstall cupy-cuda12x cupy-cuda13x, then " + CUPY.format(13)
    )
    cupys = [name for name in found.packages if name != "cupy"]
    for name in cupys:
        del found.packages[name]  # the driver alone tells
    assert remedy(found, "two-cupys").endswith(CUPY.format(13))


@pytest.mark.parametrize(
    ("served", "expected"),
    [
        ("13.0", [f"pip uninstall cupy-cuda12x, then {CUPY.format(13)}"]),  # the smallest part
        (
            "12.8",  # not what the driver would refuse, though more has to be installed again
            [
                f"pip uninstall torch, then {TORCH}126",
                f"pip uninstall cuda-bindings, then {BINDINGS[12]}",
            ],
        ),
    ],
)
def test_the_one_cuda_to_have_is_one_that_the_driver_serves(installed, served, expected):
    mixed = {**without(CLEAN, "cupy-cuda13x"), "cupy-cuda12x": "14.2.0"}
    found = installed(mixed)
    told = remedy(found, "cuda-majors", Driver(served, None, A_GPU))
    assert told == f"Install builds of one major: {'; '.join(expected)}"


@pytest.mark.parametrize(
    ("others", "served", "major"),
    [
        ({"cupy-cuda12x": "14.2.0"}, "13.0", "126"),
        ({"cupy-cuda12x": "14.2.0"}, "12.8", "126"),
        ({"cuda-bindings": "12.9.4"}, "13.0", "126"),
        ({"cuda-bindings": "13.3.1"}, "13.0", "130"),
        ({"cuda-bindings": "12.9.4", "cupy-cuda13x": "14.2.0"}, "13.0", "126"),
        ({"cupy-cuda13x": "14.2.0"}, "12.8", "126"),  # the driver does not serve that CuPy
        ({"warp-lang": "1.18.0+cu12"}, "13.0", "126"),
        ({"warp-lang": "1.18.0+cu12", "cupy-cuda13x": "14.2.0"}, "13.0", "130"),
        ({}, "12.4", "126"),
        ({}, "14.1", "130"),
    ],
)
def test_the_advice_looks_at_all_that_is_installed_and_at_the_driver(
    installed, others, served, major
):
    found = installed({"torch": "2.13.0", **others}, "None")
    driver = Driver(served, None, A_GPU)
    assert remedy(found, "torch-cpu", driver) == f"pip uninstall torch, then {TORCH}{major}"


def test_a_missing_cuda_python_is_installed_for_the_cuda_that_is_here(installed):
    found = installed({"cupy-cuda12x": "14.2.0"}, None)
    line = remedy(found, "no-cuda-python")
    assert line == 'Install it: pip install "cuda-core>=1.2,<2" "cuda-bindings>=12.9.3,<13"'
    assert installed_module.install_line("cuda.bindings", 13) == BINDINGS[12]


def test_an_old_library_is_replaced_by_one_for_the_cuda_that_is_here(installed):
    found = installed({**CUDA_12, "cuda_bindings": "12.3.0"}, "'12.8'")
    assert remedy(found, "old-library") == f"pip uninstall cuda-bindings, then {BINDINGS[12]}"


@pytest.mark.parametrize(
    ("lacks", "distributions", "expected"),
    [
        (("nvrtc", 13), CLEAN, [("no-nvrtc", "cupy")]),
        (("nvrtc", 12), CLEAN, []),
        (("nvrtc", 12), {**CUDA_12}, [("no-nvrtc", "cupy")]),
        (("nvrtc", 13), without(CLEAN, "cupy-cuda13x"), []),
        (("cupti", 13, 12), CLEAN, [("no-cupti", None)]),  # one of either would do
    ],
)
def test_a_part_of_the_toolkit_that_is_missing(
    installed, monkeypatch, lacks, distributions, expected
):
    found = installed(distributions, "'12.8'" if distributions == CUDA_12 else "'13.0'")
    monkeypatch.setattr(toolkit, "has", lambda *part: part != lacks)
    assert codes(found.check(DRIVER)) == expected
    assert codes(found.check(None)) == []
    assert codes(found.check(Driver("13.0", None, []))) == []
    for code, _ in expected:
        part = code.removeprefix("no-")
        suffix = "-cu12" if lacks == ("nvrtc", 12) else ""
        assert remedy(found, code) == f"Install it: pip install nvidia-cuda-{part}{suffix}"


@pytest.mark.parametrize("lacks", ["recorder", "headers"])
def test_what_is_missing_besides_libraries_of_the_toolkit(installed, monkeypatch, tmp_path, lacks):
    load, found = recorder.load.__wrapped__, installed(CLEAN)
    if lacks == "recorder":
        monkeypatch.setattr(recorder, "_FILE", tmp_path / "none")
        monkeypatch.setattr(recorder, "load", load)
        code, library, told = "no-recorder", None, "if there is a C compiler"
    else:
        monkeypatch.setattr(toolkit, "has_headers", lambda: False)
        code, library, told = "no-cuda-headers", "cupy", "pip install nvidia-cuda-runtime"
    monkeypatch.setattr(sys, "platform", "linux")
    assert codes(found.check(DRIVER)) == [(code, library)]
    assert told in remedy(found, code)
    monkeypatch.delitem(found.packages, "cupy")
    monkeypatch.setattr(sys, "platform", "win32")  # where there is no recorder
    assert codes(found.check(DRIVER)) == codes(found.check(None)) == []


def test_warp_goes_with_libraries_of_any_cuda_and_not_with_an_older_driver(installed):
    """CUDA's libraries are a part of it."""
    found = installed({**CLEAN, "warp-lang": "1.18.0+cu12"})
    assert codes(found.check(DRIVER)) == []
    newer = Installed(
        {**found.packages, "warp": found.packages["warp"]._replace(cuda="13")},
        found.variants,
        names_clash=False,
        environment={},
        loaded=frozenset(),
    )
    told = codes(newer.check(Driver("12.8", None, A_GPU)))
    assert ("driver-older-than-runtime", "warp") in told


def test_a_build_that_is_here_goes_before_another_comes(installed):
    """pip would leave the same version, and CuPy's two distributions share one folder."""
    found = installed(CLEAN)
    older = Driver("12.4", None, A_GPU)
    assert found.replacement("cupy", older) == (
        f"pip uninstall cupy-cuda13x, then {CUPY.format(12)}"
    )
    assert found.replacement("warp", older) == (
        'pip uninstall warp-lang, then pip install "warp-lang>=1.14,<1.18"'
    )
    assert found.replacement("a plugin", older) == "a build of a plugin for CUDA 12"
    del found.packages["warp"]
    assert found.replacement("warp", DRIVER) == 'pip install "warp-lang>=1.14"'


def test_where_nothing_tells_the_cuda_both_lines_are_given(installed):
    installed({}, None)
    line = installed_module.install_line
    assert line("cupy", 0) == f"{CUPY.format(13)} (for CUDA 12: {CUPY.format(12)})"
    assert line("cupy", 12) == CUPY.format(12)
    assert line("cupy", 14) == CUPY.format(13)
    installed({"torch": "2.13.0"}, "None")  # a build without CUDA tells none
    assert line("cupy", 13) == CUPY.format(13)


def test_a_folder_that_pip_left_half_removed_is_passed_over(installed, tmp_path):
    (tmp_path / "torch-2.9.1.dist-info").mkdir()
    (tmp_path / "cupy_cuda12x-14.2.0.dist-info").mkdir()
    found = installed(CLEAN)
    assert codes(found.check(DRIVER)) == []
    assert found.packages["torch"].version == CLEAN["torch"]


def requirements(text):
    """What a line or an extra asks for: versions by distribution, its own extras left out."""
    found = {}
    for name, asked in re.findall(
        r"([a-z][a-z-]*(?:\d+x?)?)(?:\[\w+\])?((?:[<>=][\d.<>=,]+)?)", text
    ):
        found[name] = tuple(sorted(re.sub(r"(\.0)+(?=,|$)", "", one) for one in asked.split(",")))
    return found


def test_the_versions_of_the_lines_are_those_of_the_extras_and_of_the_rows():
    """What pip may install is what the doctor takes."""
    text = (Path(__file__).parents[3] / "pyproject.toml").read_text()
    extras = tomllib.loads(text)["project"]["optional-dependencies"]
    assert registry.LIBRARIES
    for row in registry.LIBRARIES:
        assert sorted(row.requirements) == [12, 13]
        for major, line in row.requirements.items():
            asked = requirements(" ".join(re.findall(r'"([^"]*)"', line)))
            oldest = ".".join(map(str, row.oldest))
            own = next(iter(asked))  # the library itself comes first
            assert re.fullmatch(row.variants or row.distribution, own)
            if row.name == "cuda.bindings":
                oldest = {12: oldest, 13: "13.1.1"}[major]
                own = "cuda-bindings"
            wanted = requirements(f"x>={oldest}")["x"] if oldest else ("",)
            assert set(wanted) <= set(asked[own]), line
            for name, versions in asked.items():
                offered = [
                    requirements(one)[name]
                    for lines in extras.values()
                    for one in lines
                    if name in requirements(one)
                ]
                assert any(set(one) <= set(versions) for one in offered), (line, offered)


def test_what_is_installed_and_what_is_missing_is_listed(installed):
    found = installed({"torch": "2.11.0", "cuda-core": "1.2.2"})
    rows = found.libraries({}, all_loaded=False)
    assert [(row.name, row.version, row.cuda) for row in rows] == [
        ("torch", "2.11.0", "13.0"),
        ("cuda.core", "1.2.2", None),
    ]
    others = [row.name for row in registry.LIBRARIES if row.name not in ("torch", "cuda.core")]
    assert {"cupy", "warp", "tvm_ffi", "numba", "rmm", "cuda.bindings"} <= set(others)
    assert found.missing == others


def test_a_plugin_is_listed(installed, tmp_path):
    found = installed({"toys": "3.1"}, None)
    assert "toylib" not in found.packages
    (tmp_path / "toys-3.1.dist-info/entry_points.txt").write_text(
        "[streamkit.backends]\ntoylib = streamkit_toylib\n"
    )
    found = Installed.read()
    assert found.packages["toylib"].version == "3.1"


@pytest.mark.parametrize("kind", ["RuntimeError", "SystemExit"])
def test_an_installed_library_that_cannot_be_imported_is_found_when_it_is_loaded(
    installed, tmp_path, monkeypatch, kind
):
    assert "cupy" not in sys.modules
    (tmp_path / "cupy.py").write_text(f"raise {kind}('its libraries are not there')\n")
    monkeypatch.syspath_prepend(tmp_path)
    found = installed({"cupy-cuda13x": "14.2.0"}, None)
    told = []
    (finding,) = found.load(DRIVER, lambda *step: told.append(step))
    assert codes([finding]) == [("cannot-be-imported", "cupy")]
    assert f"{kind}: its libraries are not there" in finding.what
    again = 'pip uninstall cupy-cuda13x, then pip install "cupy-cuda13x>=14.0"'
    assert finding.remedy == f"Install it again: {again}"
    assert told == [("import cupy", 0, 1)]


# -- the driver -------------------------------------------------------------------------------


@pytest.fixture
def driver(monkeypatch, installed):
    """Look at a driver that fails with an error, or has these devices; nothing is installed."""
    installed({}, None)

    def look(answer, version=13000, **environment):
        monkeypatch.setattr(loader, "driver_version", lambda: version)
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        for name, value in environment.items():
            monkeypatch.setenv(name, value)

        def device_count():
            if isinstance(answer, Exception):
                raise answer
            return answer

        monkeypatch.setattr(driver_module, "device_count", device_count)
        monkeypatch.setattr(driver_module, "device_name", "device {}".format)
        monkeypatch.setattr(driver_module, "current_device", lambda: 0)
        monkeypatch.setattr(driver_module, "primary_context", lambda _: 1)
        findings = []
        return doctor.look_at_driver(findings), findings

    return look


def test_control_a_driver_with_devices_is_no_finding(driver):
    found, findings = driver(2)
    assert (found.cuda, found.devices, findings) == ("13.0", ["device 0", "device 1"], [])


NO_DEVICE = sk.errors.NoDeviceError("there is no CUDA device: why")
OLD_DRIVER = sk.errors.DriverError("cuDriverGetVersion", "cudaErrorInsufficientDriver", 35)
NO_BINDINGS = sk.errors.BackendNotInstalledError("no")
HIDDEN = "CUDA_VISIBLE_DEVICES"


@pytest.mark.parametrize(
    ("answer", "version", "environment", "expected"),
    [
        (NO_DEVICE, 13000, {}, ("no-device", "nvidia-smi")),
        (NO_DEVICE, 13000, {HIDDEN: ""}, ("no-device", "CUDA_VISIBLE_DEVICES=''")),
        (NO_DEVICE, 13000, {HIDDEN: "-1"}, ("no-device", "CUDA_VISIBLE_DEVICES='-1'")),
        (0, 13000, {}, ("no-device", "nvidia-smi")),
        (OLD_DRIVER, 11080, {}, ("old-driver", "Update")),
        (NO_BINDINGS, 12040, {}, ("no-cuda-python", '"cuda-bindings>=12.9.3,<13"')),
        (NO_BINDINGS, 13000, {}, ("no-cuda-python", '"cuda-bindings>=13.1.1,<14"')),
        (sk.errors.DriverError("cuInit", "X", 999), 13000, {}, ("driver-fails", "nvidia-smi")),
        (sk.errors.DriverError("cuInit", "X", 34), 13000, {}, ("driver-fails", "stubs, off LD_")),
        (sk.errors.DriverError("cuInit", "X", 3), 13000, {}, ("driver-fails", "spawn")),
        (sk.errors.DriverError("cuInit", "X", 802), 13000, {}, ("driver-fails", "Fabric Manager")),
        (sk.errors.DriverError("cuInit", "X", 803), 13000, {}, ("driver-fails", "kernel module")),
    ],
)
def test_a_driver_that_does_not_serve_is_found(driver, answer, version, environment, expected):
    found, (finding,) = driver(answer, version, **environment)
    assert finding.code == expected[0]
    assert expected[1] in finding.what + finding.remedy
    assert (found is None) is (version == 0)


def test_in_a_forked_child_the_driver_is_not_called(driver, monkeypatch):
    monkeypatch.setattr(loader, "is_forked", True)
    found, findings = driver(AssertionError("it was called"))
    assert found is None
    assert codes(findings) == [("forked", None)]


def test_a_machine_without_a_driver(no_driver, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    report = sk.doctor()
    assert report.driver is None
    assert not any(found.code.startswith(("no-d", "driver")) for found in report.findings)
    assert report.environment["CUDA_VISIBLE_DEVICES"] == ""
    assert report.streamkit == sk.__version__


def test_it_imports_no_library():
    python(f"""
import sys
import streamkit as sk
report = sk.doctor()
assert not (set({ROOTS}) - {{"cuda"}}) & set(sys.modules)  # the driver's bindings are asked
assert not any(library.loaded for library in report.libraries), report.libraries
""")


def test_an_old_driver_is_refused_in_words_even_if_the_bindings_cannot_start_it(monkeypatch):
    class Bindings:
        @staticmethod
        def cuInit(_):  # noqa: N802 - CUDA's name
            raise RuntimeError("function cuGetProcAddress_v2 is not found")

    monkeypatch.setattr(loader, "driver_version", lambda: 11080)
    with pytest.raises(sk.errors.DriverError, match=r"CUDA 11\.8.*CUDA 12 or newer") as refused:
        loader._initialise(Bindings)
    assert refused.value.code == 35
    monkeypatch.setattr(loader, "driver_version", lambda: 0)
    with pytest.raises(sk.errors.NoDeviceError):
        loader._initialise(Bindings)


# -- the report and the command ---------------------------------------------------------------

STANDING = Standing("cuda:0", 0x7F0012345678, 1234, "per-thread default", True, 0x55AA, False)
LIBRARIES = [
    LibraryReport("torch", "2.13.0+cu130", "13.0", True, "legacy", STANDING),
    LibraryReport("cuda.bindings", None, None, True, "per-thread", None),
]
FOUND = [Finding("left-redirected", "torch stands on [x]", "Leave the block. " * 9, "torch")]


def report_of(findings=FOUND):
    switches = {CUPY_SWITCH: "1"}
    return DoctorReport("3.11.7", "0.1.0", DRIVER, 0, LIBRARIES, ["warp"], switches, list(findings))


@pytest.mark.parametrize(
    ("error", "remedy"),
    [(ValueError, "earlier GPU work"), (sk.errors.StreamKitError, "Do what this error says.")],
)
def test_a_check_that_fails_is_a_finding_and_keeps_what_it_had_found(error, remedy):
    def check():
        yield FOUND[0]
        raise error("broken")

    found = report_module.run_check("the toys", check, "toylib")
    assert codes(found) == [("left-redirected", "torch"), ("cannot-be-asked", "toylib")]
    assert f"the toys cannot be examined: {error.__name__}: broken" in found[1].what
    assert remedy in found[1].remedy


def test_the_guide_has_every_code():
    sources = Path(sk.__file__).parent.rglob("*.py")
    texts = [path.read_text(encoding="utf-8") for path in sources]
    codes = {code for text in texts for code in re.findall(r'\bFinding\(\s*f?"(.+?)"', text)}
    guide = Path(__file__).parents[3].joinpath("docs/guides/wrong-queue.md").read_text("utf-8")
    told = re.findall(r"`([a-z-]+)`", guide.partition("| code |")[2])
    patterns = {re.sub(r"\{.*?\}", "[a-z]+", code) for code in codes}
    assert len(codes) > 30
    assert [one for one in patterns if not any(re.fullmatch(one, code) for code in told)] == []


def test_the_data_is_jsons_and_holds_the_verdict():
    data = json.loads(json.dumps(report_module.as_data(report_of())))
    assert data["ok"] is False
    assert data["findings"] == [FOUND[0]._asdict()]
    assert data["libraries"][0]["current"]["id"] == 1234
    assert data["driver"]["devices"] == A_GPU
    assert report_module.as_data(report_of([]))["ok"] is True


@pytest.fixture
def command(monkeypatch, capsys):
    """Run ``streamkit doctor ARGUMENTS`` on a given report; return its exit status and output."""
    from streamkit._cli import cli  # the command, in this process

    def command(report, *arguments):
        def examine(*, load, progress):
            print("a library talks")
            progress("import torch", 0, 1)
            assert load is ("--load" in arguments)
            return report

        monkeypatch.setattr(doctor, "examine", examine)
        monkeypatch.setattr(sys, "argv", ["streamkit", "doctor", *arguments])
        with pytest.raises(SystemExit) as exited:
            cli.main()
        return exited.value.code, *capsys.readouterr()

    return command


def test_the_command_shows_all_and_exits_1(command):
    status, output, complaints = command(report_of())
    assert (status, complaints) == (1, "")
    lines = output.splitlines()
    assert lines[0] == "StreamKit 0.1.0, Python 3.11.7"
    assert lines[1] == "Driver 580.159.04, CUDA 13.0; cuda:0 a GPU [x]"
    assert lines[2] == f"{CUPY_SWITCH}=1"
    cells = [line.split() for line in lines]
    assert ["torch", "2.13.0+cu130", "13.0", "yes", "legacy"] in cells
    assert ["cuda.bindings", "?", "yes", "per-thread"] in cells
    words = {word for line in cells for word in line}
    assert {"cuda:0", "1234", "0x7f0012345678", "captures", "0x55aa"} <= words
    assert "Not installed: warp" in lines
    assert "1. left-redirected: torch stands on [x]" in lines
    assert f"   {FOUND[0].remedy}" in lines  # whole, so that it can be copied
    assert lines[-1] == "1 finding"
    assert "a library talks" not in output
    assert "\x1b" not in output
    (head,) = [line for line in lines if line.startswith("library")]
    (row,) = [line for line in lines if line.startswith("cuda.bindings")]
    assert head.index("loaded") == row.index("yes")  # columns stand below their headings
    assert head.index("handle 0") == row.index("per-thread")


def test_the_command_exits_0_where_nothing_is_wrong_with_and_without_a_driver(command):
    status, output, complaints = command(report_of([]), "--load")
    assert (status, complaints) == (0, "")
    assert output.endswith("OK: nothing wrong was found\n")
    report = DoctorReport("3.11.7", "0.1.0", None, 0, [], ["torch"], {}, FOUND)
    _, output, _ = command(report)
    assert output.startswith("StreamKit 0.1.0, Python 3.11.7\nNo CUDA driver\nNot installed: torch")
    status, output, _ = command(dataclasses.replace(report, findings=[]))
    assert (status, output.splitlines()[-1]) == (0, "OK: nothing wrong was found")
    assert "\nNo CUDA driver, so programs run on host streams. " in output


def test_the_report_is_shown_printed_and_a_notebooks(capsys):
    report = report_of([FOUND[0]._replace(what="<b> & é")])
    text = str(report)
    assert "1. left-redirected: <b> & é" in text.splitlines()
    assert repr(report) == "<streamkit doctor report: 1 finding>"
    assert repr(report_of([])) == "<streamkit doctor report: 0 findings>"
    report.show()
    print(report)
    assert capsys.readouterr().out == 2 * f"{text}\n"
    page = report._repr_html_()
    assert "1. left-redirected: &lt;b&gt; &amp; é\n" in page
    assert page.startswith("<pre ")


def test_a_variable_of_bytes_that_are_no_text_is_written_out():
    report = dataclasses.replace(report_of(), environment={"A": "x\udc80"})
    assert "A=x\\udc80" in str(report)
    assert "x\\udc80" in report._repr_html_()
    str(report).encode()
    json.dumps(report_module.as_data(report)).encode()
