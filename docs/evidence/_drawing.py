"""What the programs beside it share: their options, and the record that a drawing says it is of."""

from __future__ import annotations

import argparse
import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import matplotlib as mpl

if TYPE_CHECKING:
    from collections.abc import Callable

    from matplotlib.figure import Figure


def main(summary: str, draw: Callable[[dict[str, Any]], Figure], data: Path, out: Path) -> None:
    """Read, draw, write; the same data give the same file."""
    parser = argparse.ArgumentParser(description=summary)
    parser.add_argument("--data", type=Path, default=data, help="the record")
    parser.add_argument("--out", type=Path, default=out, help="where to draw it")
    arguments = parser.parse_args()
    record: bytes = arguments.data.read_bytes()
    mpl.rcdefaults()
    mpl.rcParams["svg.hashsalt"] = "streamkit"
    figure = draw(json.loads(record))
    arguments.out.parent.mkdir(exist_ok=True)
    # a test asks a drawing of which data it is
    drawn = {"Date": None, "Source": f"sha256 of the data: {hashlib.sha256(record).hexdigest()}"}
    figure.savefig(arguments.out, metadata=drawn if arguments.out.suffix == ".svg" else {})
