"""Check the built site: no dead internal link, nothing fetched when read, every public name there.

python docs/check_site.py docs/_build/html
"""

from __future__ import annotations

import importlib
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import streamkit
from streamkit import types
from streamkit._support.classes import hide

MODULES = (
    "streamkit",
    "streamkit.processes",
    "streamkit.protocols",
    "streamkit.testing",
    "streamkit.types",
)
CLASSES = ("CudaStream", "HostStream", "CudaEvent", "HostEvent", "CudaGraph")


class Page(HTMLParser):
    """The anchors of a page, what it links to, and what it loads."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.anchors = {""}
        self.links: list[str] = []
        self.loads: list[str] = []
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note what a tag defines or names."""
        found = {name: value or "" for name, value in attrs}
        self.anchors.update(found[name] for name in ("id", "name") if name in found)
        if tag == "a" and "href" in found:
            self.links.append(found["href"])
        elif tag == "link" and found.get("rel") not in ("canonical", "author"):
            self.loads.append(found.get("href", ""))
        elif "src" in found:
            self.loads.append(found["src"])


def problems(site: Path) -> list[str]:
    """Return what is wrong with the site, a line for each."""
    pages = {path.resolve(): Page(path) for path in sorted(site.rglob("*.html"))}
    found = []
    for path, page in pages.items():
        name = path.relative_to(site.resolve())
        for url in page.links + page.loads:
            parts = urlsplit(url)
            if parts.scheme or parts.netloc:
                if url in page.loads and parts.scheme != "data":
                    found.append(f"{name} loads {url}")
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if not target.exists():
                found.append(f"{name}: {url} is not there")
            elif target in pages and unquote(parts.fragment) not in pages[target].anchors:
                found.append(f"{name}: {url} has no such anchor")
    return found


def undocumented(site: Path) -> list[str]:
    """Return the public names and members that the site does not document."""
    anchors: set[str] = set()
    for path in (site / "reference").glob("*.html"):
        anchors |= Page(path).anchors
    missing: list[str] = []
    for home in MODULES:
        missing += [
            f"{home}.{name}"
            for name in importlib.import_module(home).__all__
            if not {f"{each}.{name}" for each in MODULES} & anchors
        ]
    for kind in CLASSES:
        bases = [base.__name__ for base in getattr(types, kind).__mro__]  # or its protocol
        missing += [
            f"streamkit.types.{kind}.{name}"
            for name in sorted(members(kind))
            if not {f"{home}.{base}.{name}" for home in MODULES for base in bases} & anchors
        ]
    return [f"{name} is not documented" for name in missing]


def members(kind: str) -> set[str]:
    """Return the public members that a class itself implements."""
    contracts = {streamkit.Stream, streamkit.Event, streamkit.Graph}
    cls = getattr(types, kind)
    found = {name for base in cls.__mro__ if base not in contracts for name in vars(base)}
    return {name for name in hide(cls, found) if not name.startswith("_")}


def main() -> int:
    """Print what is wrong; return how the command ends."""
    site = Path(sys.argv[1])
    wrong = problems(site) + undocumented(site)
    print(*wrong, sep="\n", end="\n" if wrong else "")  # noqa: T201 - it is a command
    count = len(list(site.rglob("*.html")))
    print(f"{count} pages, {len(wrong)} problems")  # noqa: T201 - the same
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
