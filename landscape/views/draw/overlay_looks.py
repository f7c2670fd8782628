"""The looks of things drawn over one another.

Each has a colour and a line style of its own, so that it can be told apart without colour too.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from plotly.colors import hex_to_rgb

# Okabe and Ito's colours, darkened or lightened until lines of them can be seen on light and on dark paper.
COLOURS = {
    "light": ("#2f5d9b", "#b35c00", "#3a7d44", "#a8327e", "#8c6d00", "#0f7c8a", "#5a4fcf", "#5a6675"),
    "dark": ("#7fb0ef", "#f0a04b", "#7cc88a", "#f08bc8", "#e2c44c", "#5fd0de", "#b3abff", "#a9b3c1"),
}
DASHES = ("solid", "dash", "dot", "dashdot", "longdash")
SYMBOLS = ("star", "diamond", "cross", "triangle-up", "square", "x", "pentagon")
SPACE_SYMBOLS = ("diamond", "square", "cross", "circle", "x")


@dataclass(frozen=True)
class Look:
    """How one of several things is drawn: `colours` per theme, plotly's `dash` of its lines, `symbol` of its marks."""

    colours: dict[str, str]
    dash: str
    symbol: str
    space_symbol: str

    def mark(self, path: int, *, space: bool = False) -> str:
        """The symbol at the end of the `path`-th of the paths of one thing, from 0."""
        own, symbols = (self.space_symbol, SPACE_SYMBOLS) if space else (self.symbol, SYMBOLS)
        return symbols[(symbols.index(own) + path) % len(symbols)]

    def faint(self, theme: str, opacity: float) -> str:
        """The colour as plotly's rgba, for areas."""
        red, green, blue = hex_to_rgb(self.colours[theme])
        return f"rgba({red},{green},{blue},{opacity:g})"


def look(number: int) -> Look:
    """The look of the `number`-th thing from 0; the first 40 differ."""
    return Look(
        {theme: colours[number % len(colours)] for theme, colours in COLOURS.items()},
        DASHES[number % len(DASHES)],
        SYMBOLS[number % len(SYMBOLS)],
        SPACE_SYMBOLS[number % len(SPACE_SYMBOLS)],
    )


def hue_scale(one: Look) -> list[list[object]]:
    """A colour scale of one hue, dark where the values are low: heights of one surface among several."""
    base = np.array(hex_to_rgb(one.colours["light"]), np.float64)
    stops = {0.0: 0.45 * base, 0.45: base, 1.0: base + 0.72 * (255 - base)}
    return [[at, f"rgb({','.join(str(round(part)) for part in colour)})"] for at, colour in stops.items()]
