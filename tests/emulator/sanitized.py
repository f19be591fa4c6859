"""Run the emulated tier, and the recorder's tests, on a driver and a recorder with a sanitizer.

python tests/emulator/sanitized.py asan|tsan [options of pytest, and files of the tier]

The interpreter is not sanitized itself, so the sanitizer's runtime has to be in the process before
it. Leaks are not looked for: at its end CPython still holds memory on purpose.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TIER = ROOT / "tests" / "emulated"
sys.path.insert(0, str(ROOT / "tests"))

from emulator import build  # noqa: E402 - found through the line above

OPTIONS = {
    "asan": {"ASAN_OPTIONS": "detect_leaks=0", "UBSAN_OPTIONS": "print_stacktrace=1"},
    # CPython and the libraries are not instrumented: only what the driver's code does counts
    "tsan": {"TSAN_OPTIONS": "halt_on_error=1 ignore_noninstrumented_modules=1"},
}


def main():
    if len(sys.argv) < 2 or sys.argv[1] not in OPTIONS:
        sys.exit(__doc__)
    name, *options = sys.argv[1:]
    environment = {
        **os.environ,
        **OPTIONS[name],
        "LD_PRELOAD": str(build.runtime(name)),
        "STREAMKIT_SANITIZER": name,
    }
    pytest = str(Path(sys.executable).with_name("pytest"))
    # not capturing file descriptors: a report is written to one, and then the process ends
    fixed = (pytest, "--capture=sys")
    named = [option for option in options if Path(option.partition("::")[0]).exists()]
    failed = []
    # a process each: one that has grown can start no child beside tsan's memory
    files = [*TIER.rglob("test_*.py"), *ROOT.glob("tests/unit/diagnostics/test_recorder*.py")]
    for file in named or sorted(map(str, files)):
        others = [option for option in options if option not in named]
        if subprocess.run(
            [*fixed, file, *others], env=environment, cwd=ROOT, check=False
        ).returncode:
            failed.append(file)
    if failed:
        sys.exit(f"{name}: failed in {', '.join(failed)}")


if __name__ == "__main__":
    main()
