"""The documentation site: ``sphinx-build -W -n docs docs/_build/html``, or ``tox -e docs``."""

from __future__ import annotations

import sys
from pathlib import Path

import streamkit

sys.path.insert(0, str(Path(__file__).parent / "_ext"))

project = "StreamKit"
author = "The StreamKit developers"
copyright = author  # noqa: A001 - Sphinx's name for it
version = release = streamkit.__version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.intersphinx",
    "sphinx_copybutton",
    "sphinx_design",
    "extension",
]
exclude_patterns = ["_build", "evidence"]
html_search_scorer = str(Path(__file__).parent / "_ext" / "scorer.js")
nitpicky = True
nitpick_ignore_regex = [  # names to which there is no page to link
    ("py:.*", r"(asyncio|collections\.abc|contextlib|os|pathlib|types|typing)\..*"),
    ("py:.*", "AbstractContextManager|Future|Path|PathLike"),
    ("py:.*", r"(streamkit\..*\.)?((Array|Foreign|Function|Native)T|P(\.k?w?args)?|T|QueueRecord)"),
]
# The names that pages and docstrings may link to are written here by hand, in the oldest format,
# which is text, and not fetched: else the site could not be built without a network.
intersphinx_mapping = {
    "python": ("https://docs.python.org/3/", "inventories/python.inv"),
    "torch": ("https://docs.pytorch.org/docs/stable/", "inventories/torch.inv"),
    "cupy": ("https://docs.cupy.dev/en/stable/", "inventories/cupy.inv"),
    "warp": ("https://nvidia.github.io/warp/stable/", "inventories/warp.inv"),
}

myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 4

autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
autodoc_inherit_docstrings = False  # a method without one does what its protocol promises
# by their names, not as the long unions that they stand for
autodoc_type_aliases = {
    name: f"streamkit.protocols.{name}"
    for name in ("ArrayLike", "EventLike", "ForeignStream", "StreamLike", "WorkLike")
}
python_use_unqualified_type_names = True
add_module_names = False

html_theme = "furo"
pygments_dark_style = "github-dark"
html_title = f"StreamKit {version}"
html_static_path = ["_static"]
html_css_files = ["libraries.css", "streamkit.css"]
html_copy_source = False
copybutton_selector = "div:not(.highlight-text) > div.highlight pre"  # not what is printed
