"""``python -m streamkit``: the command ``streamkit``."""

from streamkit._cli.cli import main

if __name__ == "__main__":
    main()
