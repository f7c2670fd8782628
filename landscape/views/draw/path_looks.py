"""The looks of the paths of several runs: by colour, by line and by mark, so that they differ in grey print too."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from landscape.views.draw.theme import PATH_COLOUR
from landscape.views.prepare.paths import DrawnPath

# Of lightness 49, 74, 63 and 14: apart in grey print, and for eyes that see no red, no green or no blue. What they lie
# on has all colours of a scale, so each line has a white edge; in space it has none, and minima, where paths end, are
# dark: the dark one comes last.
COLOURS = (PATH_COLOUR, "#f2a900", "#3aa0e8", "#1c2530")
DASHES = ("solid", "dash", "dot")  # the next one when the colours begin again
SYMBOLS = ("circle", "square", "diamond", "triangle-up")
SPACE_SYMBOLS = ("circle", "square", "diamond", "cross")
KEY = "#7b8696"  # of the legend entries that all paths share


@dataclass(frozen=True)
class PathLook:
    """How a path is drawn: the colour of its line, plotly's `dash`, and the symbols of its snapshots."""

    colour: str
    dash: str = "solid"
    symbol: str = "circle"
    space_symbol: str = "circle"


def path_look(number: int, first: str = PATH_COLOUR) -> PathLook:
    """The look of the `number`-th path from 0; those of the first 12 differ.

    Args:
        first: the colour of the first.
    """
    colours = (first, *COLOURS[1:])
    mark = number + number // len(colours)  # a colour that comes again has another mark: close dots hide the dashes
    return PathLook(
        colours[number % len(colours)],
        DASHES[number // len(colours) % len(DASHES)],
        SYMBOLS[mark % len(SYMBOLS)],
        SPACE_SYMBOLS[mark % len(SPACE_SYMBOLS)],
    )


def are_told_apart(paths: Sequence[DrawnPath]) -> bool:
    """Whether paths have the names of their runs, and share the entries of the legend for start and end."""
    return any(path.run for path in paths)
