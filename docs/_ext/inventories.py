"""Inventories for ``sphinx.ext.intersphinx``, made of ``docs/inventories.toml``.

Sphinx would fetch those of the other projects at each build, which then fails without a network.
"""

from __future__ import annotations

import tomllib
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sphinx.application import Sphinx
    from sphinx.config import Config

NAMES = Path(__file__).parents[1] / "inventories.toml"


def inventory(project: str, kinds: dict[str, Any]) -> bytes:
    """Return the names of a project in the format of ``objects.inv``, version 2."""
    lines = [
        f"{name} py:{kind} 1 {page} -\n"
        for kind, names in kinds.items()
        if kind != "url"
        for name, page in names.items()
    ]
    head = f"# Sphinx inventory version 2\n# Project: {project}\n# Version: \n"
    head += "# The remainder of this file is compressed using zlib.\n"
    return head.encode() + zlib.compress("".join(lines).encode())


def write(app: Sphinx, config: Config) -> None:
    """Write them where Sphinx keeps what it has read, and name them to intersphinx."""
    for project, kinds in tomllib.loads(NAMES.read_text(encoding="utf-8")).items():
        path = Path(app.doctreedir) / f"{project}.inv"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(inventory(project, kinds))
        config.intersphinx_mapping[project] = (kinds["url"], str(path))


def setup(app: Sphinx) -> dict[str, Any]:
    """Write them before intersphinx looks at its settings, which it does at 800."""
    app.connect("config-inited", write)
    return {"parallel_read_safe": True}
