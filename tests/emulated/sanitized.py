"""Run the emulated tier on a driver built with a sanitizer.

python tests/emulated/sanitized.py asan|tsan [options of pytest, and files of the tier]

The interpreter is not sanitized itself, so the sanitizer's runtime has to be in the process before
it. Leaks are not looked for: at its end CPython still holds memory on purpose.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import _build

TIER = Path(__file__).resolve().parent

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
        "LD_PRELOAD": str(_build.runtime(name)),
        "STREAMKIT_SANITIZER": name,
    }
    pytest = str(Path(sys.executable).with_name("pytest"))
    # not capturing file descriptors: a report is written to one, and then the process ends
    fixed = (pytest, "--capture=sys")
    named = [option for option in options if Path(option.partition("::")[0]).exists()]
    failed = []
    # a process each: one that has grown can start no child beside tsan's memory
    for file in named or sorted(map(str, TIER.glob("test_*.py"))):
        others = [option for option in options if option not in named]
        if subprocess.run(
            [*fixed, file, *others], env=environment, cwd=TIER.parents[1], check=False
        ).returncode:
            failed.append(file)
    if failed:
        sys.exit(f"{name}: failed in {', '.join(failed)}")


if __name__ == "__main__":
    main()
