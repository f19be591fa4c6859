"""The races that a page tells, below its picture."""

from __future__ import annotations

import html
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

STYLE = """
h2 { font-size: 15px; margin: 14px 0 4px; }
ol, ul { margin: 0; padding-left: 1.6em; overflow-wrap: anywhere; }
li { margin-bottom: 8px; }
li b, li span, li strong { display: block; }
li span, li strong { font-weight: 400; }
li span { opacity: 0.75; }
li strong { border-left: 3px solid #c4161c; padding-left: 8px; margin-top: 2px; }
li b::first-letter, li strong::first-letter { text-transform: uppercase; }
@media (prefers-color-scheme: dark) { li strong { border-color: #ff7b72; } }
"""


def race_list(texts: Sequence[str]) -> str:
    """Return the list: the first line of each text has its array, the last one its fix."""
    items = []
    for text in texts:
        array, *operations, fix = map(html.escape, map(str.strip, text.splitlines()))
        told = "".join(f"<span>{one}</span>" for one in operations)
        items.append(f"<li><b>{array}</b>{told}<strong>{fix}</strong></li>\n")
    return f"<h2>Nothing orders these</h2>\n<ol>\n{''.join(items)}</ol>\n" if items else ""
