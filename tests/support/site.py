"""What the documentation site is made of, imported by path: its folder is no package."""

from __future__ import annotations

import importlib.util
import sys
from typing import Any

from support.documents import ROOT


def extension(name: str, folder: str = "docs/_ext") -> Any:
    """A module of ``docs/_ext`` that needs no Sphinx, or of another folder."""
    spec = importlib.util.spec_from_file_location(name, ROOT / folder / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
