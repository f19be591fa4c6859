"""Gives Warp and torch, in each Python that starts, the number of a version that is not out yet.

With this folder on PYTHONPATH the tests run as in the months after a release: the lanes ``next``.
"""

from __future__ import annotations

import sys
from importlib.machinery import PathFinder

# not Warp's config.version, which Warp compares with that of its native part
LATER = {"warp": "1.99.0", "torch.version": "2.99.0"}


class Later:
    """A finder that has the module run, and then changes its number."""

    def find_spec(self, name, path=None, target=None):
        spec = PathFinder.find_spec(name, path, target) if name in LATER else None
        if spec is not None:
            run = spec.loader.exec_module

            def exec_module(module):
                run(module)
                module.__version__ = LATER[name]

            spec.loader.exec_module = exec_module
        return spec


sys.meta_path.insert(0, Later())
