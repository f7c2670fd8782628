"""What a figure for print is laid out for: its width, the size and the family of its words, presets of these.

Sizes are in pixels, 96 to the inch, as browsers and PDF writers take them: 10.67 px are 8 points on paper.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from landscape.core.errors import JobError, nearest, shown

UNITS = {"in": 96.0, "cm": 96 / 2.54, "mm": 96 / 25.4, "pt": 96 / 72, "px": 1.0}
NARROWEST, WIDEST = 144.0, 4000.0
SMALLEST_FONT, LARGEST_FONT = 5.0, 40.0


@dataclass(frozen=True)
class Paper:
    """What a figure is laid out for: its `width` and the size of its words in pixels, and the family of the font.

    Where the width is None, that of the drawing is kept; where the font size is, 12 pixels.
    """

    width: float | None = None
    font_px: float | None = None
    family: str | None = None


@dataclass(frozen=True)
class Preset:
    """A place in a paper: its options stand where no others are given."""

    width: str
    font_size: str = "8pt"
    levels: int | None = None


# A preset is a line here; what it stands for is in the help of `landscape export` as well.
PRESETS = {
    "column": Preset("3.25in", levels=8),
    "page": Preset("6.75in"),
}


def choose_preset(name: str | None) -> Preset | None:
    """The preset of that name; None where none is named.

    Raises:
        JobError: there is no such preset.
    """
    if name is not None and name not in [*PRESETS]:
        raise JobError(f"preset: unknown {shown(name)}; {nearest(str(name), PRESETS)}")
    return None if name is None else PRESETS[name]


def pixels(option: str, length: str | float, low: float, high: float) -> float:
    """A length such as '3.25in', '8 cm', '80mm', '240pt' or a number of pixels, in pixels.

    Raises:
        JobError: it is none, or not from `low` to `high` pixels.

    >>> pixels("width", "3.25in", 100, 4000), pixels("width", 480, 100, 4000)
    (312.0, 480.0)
    """
    found = re.fullmatch(r"\s*([0-9]*\.?[0-9]+)\s*(in|cm|mm|pt|px)?\s*", str(length))
    if found is None or isinstance(length, bool):
        raise JobError(f"{option}: must be a length such as 3.25in, 8cm, 80mm, 240pt or 312px, not {shown(length)}")
    value = float(found[1]) * UNITS[found[2] or "px"]
    if not low <= value <= high:
        raise JobError(f"{option}: must be from {low:g} to {high:g} px, not {value:g} px ({shown(length)})")
    return value


def choose_paper(
    width: str | float | None, font_size: str | float | None, font: str | None, preset: Preset | None
) -> Paper | None:
    """What the figure is laid out for; None where nothing was asked for, so that it keeps its sizes.

    Raises:
        JobError: a length is none, or too small or too large.
    """
    wide = width if width is not None else (preset.width if preset else None)
    size = font_size if font_size is not None else (preset.font_size if preset else None)
    if wide is None and size is None and font is None:
        return None
    return Paper(
        None if wide is None else pixels("width", wide, NARROWEST, WIDEST),
        None if size is None else pixels("font_size", size, SMALLEST_FONT, LARGEST_FONT),
        font,
    )
