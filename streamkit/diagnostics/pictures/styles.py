"""How each library's work is shown in pictures, and the files of this folder."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from streamkit._queues import registry


class Style(NamedTuple):
    """How a library's work is shown."""

    label: str
    colour: str

    @property
    def ink(self) -> str:
        """The colour of text on the colour: black or white, whichever has the greater contrast."""
        parts = (part / 255 for part in bytes.fromhex(self.colour[1:]))
        red, green, blue = (part**2.2 for part in parts)  # near enough to sRGB
        luminance = 0.2126 * red + 0.7152 * green + 0.0722 * blue
        return "#000000" if (luminance + 0.05) ** 2 > 1.05 * 0.05 else "#FFFFFF"


UNKNOWN = "unknown"
# Okabe and Ito's colours, which differ for every kind of colour vision.
STYLES = {
    row.name: Style(row.label, row.colour) for row in registry.LIBRARIES if row.colour is not None
}
STYLES["nccl"] = Style("NCCL", "#F0E442")
STYLES["numpy"] = Style("NumPy", "#56B4E9")
STYLES[UNKNOWN] = Style("other, or unknown", "#888888")


def style_of(library: str | None) -> Style:
    """Return how the work of a library is shown, also for a plugin's or an unknown one."""
    return STYLES.get(library or UNKNOWN, STYLES[UNKNOWN])


def file(name: str) -> str:
    """Return the text of a file of this folder: a page, a style or a script."""
    return Path(__file__).with_name(name).read_text(encoding="utf-8")
