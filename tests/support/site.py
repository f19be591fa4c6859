"""Modules that make the documentation site, imported by path because they are in no package."""

from __future__ import annotations

import functools
import importlib.util
import sys
from typing import Any

from support.documents import ROOT


@functools.cache  # what one of them has read or computed, the files of tests share
def extension(name: str, folder: str = "docs/_ext") -> Any:
    """Import a module of ``docs/_ext`` that needs no Sphinx, or one of another folder."""
    spec = importlib.util.spec_from_file_location(name, ROOT / folder / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
