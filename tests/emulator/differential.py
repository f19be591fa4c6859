"""What the driver at hand does, as a record: run on the emulated driver and on hardware.

python tests/emulator/differential.py [--out FILE] [SECTION ... | --without SECTION ...]

FILE is the record of a real driver. With sections, the others stay in it as they were recorded.
Each observation is a code, a count or a comparison, so that two drivers can be compared. Nothing
waits for long: gates open by themselves, and after three minutes the script ends with a traceback.
"""

from __future__ import annotations

import argparse
import datetime as dt
import faulthandler
import os
import platform
import sys
from pathlib import Path

os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")  # a held queue holds no other
sys.path.insert(0, str(Path(__file__).parents[1]))

from cuda.bindings import driver

from emulator.observations import (
    RECORD,
    captures,
    copies,
    facts,
    graphs,
    kept,
    launches,
    parameters,
    pools,
    queues,
    read,
    source_hash,
    work,
    write,
)
from emulator.observations.probe import code, device_count, ok, primary

SECTIONS = {
    function.__name__: function
    for function in (
        queues.contexts,
        queues.created_streams,
        queues.default_streams,
        queues.another_context_current,
        queues.two_devices,
        work.event_codes,
        work.event_holds,
        work.implicit_order,
        work.value_gates,
        work.host_functions,
        work.memory,
        captures.calls_beside_a_capture,
        captures.captured_events,
        graphs.forks_and_joins,
        graphs.ends,
        graphs.graphs,
        parameters.node_parameters,
        kept.user_objects,
        kept.kept_by_launches,
        kept.executables,
        kept.dependencies,
        launches.launches,
        pools.pool_attributes,
        pools.pool_memory,
        pools.device_pool,
        pools.pool_access,
        pools.pool_order,
        pools.pools_of_two_devices,
        copies.fills,
        copies.copies,
        copies.copies_that_wait,
        copies.callbacks,
        copies.wide_value_gates,
        copies.pointers,
        facts.entry_points,
        facts.error_texts,
        facts.device_facts,
        facts.context_facts,
        queues.forked_child,
    )
}


def observe(function):
    """A section's observations; one that breaks off says how."""
    try:
        return function()
    except Exception as error:  # noqa: BLE001 - the record shows it, and the next section runs
        return {"broke off": f"{type(error).__name__}: {error}"}


def record(names, without=()):
    """The observations of the sections named; if none is, of all, ``without`` some."""
    seen = {}
    if not names:
        seen["before_cuinit"] = observe(queues.before_cuinit)
    if found := driver.cuInit(0)[0]:
        raise SystemExit(f"cuInit: {code((found,))}")
    if not names:
        seen["without_a_context"] = observe(queues.without_a_context)
        seen["devices"] = observe(queues.devices)
    context = primary()
    for name in names or [name for name in SECTIONS if name not in without]:
        ok(driver.cuCtxSetCurrent(context))
        seen[name] = observe(SECTIONS[name])
    ok(driver.cuCtxSetCurrent(context))
    ok(driver.cuCtxSynchronize())
    ok(driver.cuDevicePrimaryCtxRelease(0))
    return seen


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, default=RECORD, help="where to write the record")
    parser.add_argument("sections", nargs="*", choices=[*SECTIONS, []], help="else all of them")
    parser.add_argument("--without", nargs="*", choices=SECTIONS, default=[], metavar="SECTION")
    arguments = parser.parse_args()
    faulthandler.enable()
    faulthandler.dump_traceback_later(180, exit=True)
    observed = record(arguments.sections, arguments.without)
    version = int(ok(driver.cuDriverGetVersion()))
    names = [ok(driver.cuDeviceGetName(128, device)) for device in range(device_count())]
    made = {
        "date": dt.datetime.now(dt.UTC).date().isoformat(),
        "devices": [name.partition(b"\0")[0].decode() for name in names],
        "cuda_driver": f"{version // 1000}.{version % 1000 // 10}",
        "python": platform.python_version(),
    }
    sections = {}
    if arguments.sections and arguments.out.exists():
        sections = read(arguments.out)
    for name, seen in observed.items():
        file = (SECTIONS.get(name) or queues.before_cuinit).__module__.rpartition(".")[2]
        sections[name] = {
            **made, "file": file, "source": source_hash(file), "observations": seen,
        }  # fmt: skip
    write(arguments.out, sections)
    counts = ", ".join(f"{name} {len(seen)}" for name, seen in observed.items())
    print(f"{arguments.out}: {counts}")


if __name__ == "__main__":
    main()
