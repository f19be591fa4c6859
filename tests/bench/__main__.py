"""The command that runs the bench: ``tox -e bench`` in a clone, on a machine with a GPU.

A machine without tox or a network runs ``PYTHONPATH=$PWD:$PWD/tests python -m bench``.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, NoReturn

import bench
from streamkit._cli import cli

if TYPE_CHECKING:
    import argparse


def main() -> NoReturn:
    """Run the command line and exit: with 1 if the bench cannot run or the file not be written."""
    parser = cli._Parser(
        prog="bench",
        description=(
            "Time StreamKit's calls beside those of the libraries. Needs a GPU, torch, CuPy and "
            "Warp, and two minutes."
        ),
    )
    parser.add(cli.Command(_run, "", cli.JSON | cli.OUTPUT))
    cli._exit(parser, sys.argv[1:])


def _run(options: argparse.Namespace) -> int:
    if not options.as_json:
        cli._need("The bench", "rich")
    return cli._report(options, bench.run, bench.as_data, _show)


def _show(report: bench.BenchReport) -> None:
    from bench import tables  # it needs rich, which --json does not

    tables.show_bench(report)


if __name__ == "__main__":
    main()
