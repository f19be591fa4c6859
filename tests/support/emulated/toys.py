"""Programs with toy libraries that have a current stream, each with an adapter of its own.

Each has a process of its own, for a library is moved for as long as its process lives.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from support.programs import python

SOURCE = Path(__file__).parents[2] / "plugin/src"

START = """
import sys
from cuda.bindings import driver
import streamkit as sk

def current_handles(*libraries):
    return [library.current_stream().number for library in libraries]

def error_of(kind, call, *arguments, **options):
    try:
        call(*arguments, **options)
    except kind as error:
        return error
    raise AssertionError(f"it raised no {kind.__name__}")

def nothing_inside(scope):
    with scope:
        pass
"""

REFUSES = """

def enter(stream):
    raise UnsupportedStreamError("toylib has had enough")
"""

FORGETS = """

def leave(token):
    raise ValueError("toylib forgot where it was")
"""

FAILS = """

fails = []

def leave(token):
    toylib.set_current_stream(token)
    if fails:
        raise fails[0]
"""

TRACKS = """

remembered = [None]  # instead of the context's device, until a stream is set

def current_device():
    driver = __import__("cuda.bindings.driver", fromlist=["x"])
    return int(driver.cuCtxGetDevice()[1]) if remembered[0] is None else remembered[0]

def restore_device(device):
    if current_device() != device:
        remembered[0] = device

def own_device():
    from streamkit.protocols import OwnDevice
    return OwnDevice(current_device, restore_device)

def enter(stream, enter=enter):
    before, remembered[0] = current_device(), None
    return before, enter(stream)

def leave(token, leave=leave):
    remembered[0] = None
    leave(token[1])
    restore_device(token[0])
"""

# instead of the plugin's ``bind``, so that StreamKit makes one of these
STEPS = """

def enter(stream):
    return toylib.set_current_stream(stream)

def leave(token):
    toylib.set_current_stream(token)
"""

INTERRUPTED = """

def leave(token):
    toylib.set_current_stream(token)
    raise KeyboardInterrupt
"""

WITHOUT_CUDA = """

def current(device):
    from streamkit.errors import NoDeviceError
    raise NoDeviceError("this build of toylib has no CUDA")
"""


@pytest.fixture
def program(tmp_path):
    """Run a program that has some toy libraries installed, each with an adapter of its own.

    Those named toya to toyz are installed where the program names them, with additions or without.
    """

    def run(code, **additions):
        named = sorted({*re.findall(r"\btoy[a-z]\b", code), *additions})
        additions = {name: additions.get(name, "") for name in named}
        library = (SOURCE / "toylib.py").read_text()
        plugin = (SOURCE / "streamkit_toylib.py").read_text()
        adapter = plugin.partition("\n\n\ndef bind(")[0] + STEPS
        for name, addition in additions.items():
            (tmp_path / f"{name}.py").write_text(library)
            changed = (adapter + addition).replace("toylib", name)
            (tmp_path / f"streamkit_{name}.py").write_text(changed)
        about = tmp_path / "toys-1.dist-info"
        about.mkdir()
        (about / "METADATA").write_text("Metadata-Version: 2.1\nName: toys\nVersion: 1\n")
        entries = "\n".join(f"{name} = streamkit_{name}" for name in additions)
        (about / "entry_points.txt").write_text(f"[streamkit.backends]\n{entries}\n")
        return python(START + code, path=[tmp_path])

    return run
