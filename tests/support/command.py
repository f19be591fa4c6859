"""The command, for a Python of its own: whoever imports this file reaches all that it can do."""

COMMAND = """
from streamkit._cli.cli import main  # what the script `streamkit` calls
main()
"""

OF_COMMANDS = ("streamkit._cli.cli", "numpy")
"""What it imports, for ``support.programs.forked``."""
