"""The command ``streamkit``: it runs ``commands``, or says what installs what they need."""

from __future__ import annotations

import importlib
import sys

import streamkit
from streamkit._base.messages import DISTRIBUTION

_EXTRA = ("numpy", "rich", "typer")


def main() -> None:
    """Run the command line; without the extra ``cli`` exit 2 with the line that installs it."""
    if sys.argv[1:] == ["--version"]:  # the one thing that needs no extra
        sys.stdout.write(f"{streamkit.__version__}\n")
        return
    try:
        for name in _EXTRA:
            importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name not in _EXTRA:
            raise
        sys.stderr.write(
            f"The streamkit command needs {', '.join(_EXTRA)}, and {error.name} is not installed. "
            f"Install them with: pip install '{DISTRIBUTION}[cli]'\n"
        )
        sys.exit(2)
    from streamkit._tools import commands

    commands.app()


if __name__ == "__main__":
    main()
