"""Looks: colour scales of values, styles of curves and paths, light and dark templates."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import plotly.graph_objects as go
from plotly.colors import get_colorscale, hex_to_rgb, sample_colorscale

from landscape.surface.surface import NOT_COMPUTED, NOT_FINITE, QUARANTINED
from landscape.views.figure_spec import COLOUR_TABLE, DEFAULT_SCALE, DIVERGING, PATH_COLOUR
from landscape.views.prepare.paths import DrawnPath
from landscape.views.prepare.scale import NO_LOGARITHM, NO_SIGN, UNRESOLVED, Scale

SIGN_LINES = {  # of contour lines of signed values, by their sign
    -1: {"light": "#2166ac", "dark": "#7fb0ef"},
    0: {"light": "#1c2530", "dark": "#e6e9ee"},
    1: {"light": "#b2182b", "dark": "#f4937c"},
}
CURVES = ("#2f5d9b", "#b35c00", "#3a7d44", "#7a4fa3")  # mainly distinguished by panel
DARK_CURVES = ("#7fb0ef", "#f0a04b", "#7cc88a", "#c09ae0")


# Lines between bands, and on surfaces: white ones vanish where colours are pale.
BETWEEN, ON_SURFACE = "rgba(255,255,255,0.55)", "rgba(255,255,255,0.75)"
BETWEEN_PALE, ON_PALE_SURFACE = "rgba(60,70,85,0.35)", "rgba(60,70,85,0.55)"


# The functions below take a name of `COLOUR_TABLE`, or None for the default: `DIVERGING` for signed values,
# `DEFAULT_SCALE` for others.


def is_centred(name: str | None, scale: Scale) -> bool:
    """Whether the colours of a range are centred on 0: for signed values on a two-sided scale."""
    return scale.signed and name in (None, DIVERGING)


def scale_warning(name: str | None, scale: Scale) -> list[str]:
    """The caption's note on the colours: that they are centred on 0, or that the scale misleads."""
    if is_centred(name, scale):
        return ["Colours are pale at 0, blue below and red above"]
    look = COLOUR_TABLE[name or DEFAULT_SCALE]
    return [f"{look.title} misleads: {look.warning}"] if look.warning else []


# The part of a colour scale for lines, without the end that is too faint for thin lines: mostly the bright end on light
# paper, and the dark end on dark paper.
LINE_PART = {"light": (0.0, 0.88), "dark": (0.35, 1.0)}


def colour_scale(name: str | None, scale: Scale | None = None) -> list[list[Any]]:
    """The named scale as plotly's [[position, colour], …].

    Args:
        scale: the range that it is for; default: any range of unsigned values.

    Raises:
        JobError: there is no colour scale of that name.
    """
    positions = np.linspace(0, 1, 33)
    colours = colours_at(name, positions)
    if scale is not None and is_centred(name, scale):
        # The middle is at none of the even positions, so its neighbourhood needs additional ones.
        middle = np.clip(-scale.low / (scale.high - scale.low), 0.0, 1.0)
        positions = np.unique([*positions, middle])
        colours = colours_of(name, scale, scale.low + positions * (scale.high - scale.low))
    return [[float(at), colour] for at, colour in zip(positions, colours, strict=True)]


def colours_of(name: str | None, scale: Scale, drawn: Any) -> list[str]:
    """The colours of values in drawn units."""
    if not is_centred(name, scale):
        return colours_at(name, (drawn - scale.low) / (scale.high - scale.low))
    return colours_at(DIVERGING, 0.5 + 0.5 * drawn / scale.reach)


def colours_at(name: str | None, positions: Any) -> list[str]:
    """The colours of the named scale at these positions, from 0 (low) to 1 (high).

    Raises:
        JobError: there is no colour scale of that name.
    """
    base = get_colorscale(COLOUR_TABLE[name or DEFAULT_SCALE].plotly)
    # Rounding must not exceed the ends of the scale: plotly would look for a colour that does not exist.
    return [str(colour) for colour in sample_colorscale(base, np.clip(positions, 0.0, 1.0))]


def band_colours(name: str | None, scale: Scale) -> list[list[Any]]:
    """A colour per band between two levels, that of its middle, at the positions that plotly expects."""
    edges = np.array([scale.low, *scale.ticks, scale.high])
    return _at_even_places(colours_of(name, scale, (edges[1:] + edges[:-1]) / 2))


def line_colours(name: str | None, scale: Scale, theme: str) -> list[list[Any]]:
    """A colour per level, at the positions that plotly expects, none too faint for that theme."""
    start, stop = LINE_PART[theme]
    ticks = np.array(scale.ticks)
    colours = (
        [f"rgb{hex_to_rgb(SIGN_LINES[sign][theme])}" for sign in signs_of(scale)]
        if is_centred(name, scale)
        else colours_at(name, start + (stop - start) * (ticks - scale.low) / (scale.high - scale.low))
    )
    return _at_even_places(colours if len(colours) > 1 else colours * 2)


def signs_of(scale: Scale) -> list[int]:
    """The sign of each contour line of a range: −1, 0 or 1."""
    ticks = np.array(scale.ticks)
    none = np.abs(ticks) <= max(1e-9 * max(abs(scale.low), abs(scale.high)), scale.zero)
    return [int(sign) for sign in np.where(none, 0, np.sign(ticks))]


# Maps values in drawn units to colours, for one kind of drawing.
Shades = Callable[[Any], list[str]]


def even_shades(name: str | None, scale: Scale) -> Shades:
    """The colours of a surface, which change evenly."""
    return lambda drawn: colours_of(name, scale, np.asarray(drawn))


def band_shades(name: str | None, scale: Scale) -> Shades:
    """The colours of the bands between two levels that values lie in."""

    def shades(drawn: Any) -> list[str]:
        bands = [str(colour) for _, colour in band_colours(name, scale)]
        return [bands[k] for k in np.searchsorted(np.array(scale.ticks), np.asarray(drawn), side="right")]

    return shades


def line_shades(name: str | None, scale: Scale, theme: str) -> Shades:
    """The colours of isolines, and of values between two isolines."""
    start, stop = LINE_PART[theme]
    return lambda drawn: colours_at(name, start + (stop - start) * np.clip(_share(scale, np.asarray(drawn)), 0, 1))


def _share(scale: Scale, drawn: Any) -> Any:
    """Where values in drawn units lie in the range drawn, from 0 to 1."""
    return (drawn - scale.low) / (scale.high - scale.low)


def _at_even_places(colours: Sequence[str]) -> list[list[Any]]:
    return [[k / (len(colours) - 1), colour] for k, colour in enumerate(colours)]


# ----------------------------------------------------------------------------------------------------
# The looks of overlaid things.
#
# Each has its own colour and line style, to be distinct without colour too.

# Okabe and Ito's colours, darkened or lightened until such lines are visible on light and on dark paper.
OVERLAY_COLOURS = {
    "light": ("#2f5d9b", "#b35c00", "#3a7d44", "#a8327e", "#8c6d00", "#0f7c8a", "#5a4fcf", "#5a6675"),
    "dark": ("#7fb0ef", "#f0a04b", "#7cc88a", "#f08bc8", "#e2c44c", "#5fd0de", "#b3abff", "#a9b3c1"),
}
OVERLAY_DASHES = ("solid", "dash", "dot", "dashdot", "longdash")
OVERLAY_SYMBOLS = ("star", "diamond", "cross", "triangle-up", "square", "x", "pentagon")
OVERLAY_SPACE_SYMBOLS = ("diamond", "square", "cross", "circle", "x")


@dataclass(frozen=True)
class SeriesStyle:
    """How one of several things is drawn: `colours` per theme, plotly's `dash` of its lines, `symbol` of its marks."""

    colours: dict[str, str]
    dash: str
    symbol: str
    space_symbol: str

    def mark(self, path: int, *, space: bool = False) -> str:
        """The symbol at the end of the `path`-th of the paths of one thing, from 0."""
        own, symbols = (self.space_symbol, OVERLAY_SPACE_SYMBOLS) if space else (self.symbol, OVERLAY_SYMBOLS)
        return symbols[(symbols.index(own) + path) % len(symbols)]

    def faint(self, theme: str, opacity: float) -> str:
        """The colour as plotly's rgba, for areas."""
        red, green, blue = hex_to_rgb(self.colours[theme])
        return f"rgba({red},{green},{blue},{opacity:g})"


def look(number: int) -> SeriesStyle:
    """The look of the `number`-th thing from 0; the first 40 differ."""
    return SeriesStyle(
        {theme: colours[number % len(colours)] for theme, colours in OVERLAY_COLOURS.items()},
        OVERLAY_DASHES[number % len(OVERLAY_DASHES)],
        OVERLAY_SYMBOLS[number % len(OVERLAY_SYMBOLS)],
        OVERLAY_SPACE_SYMBOLS[number % len(OVERLAY_SPACE_SYMBOLS)],
    )


def hue_scale(one: SeriesStyle) -> list[list[object]]:
    """A colour scale of one hue, dark for low values: for the heights of one surface among several."""
    base = np.array(hex_to_rgb(one.colours["light"]), np.float64)
    stops = {0.0: 0.45 * base, 0.45: base, 1.0: base + 0.72 * (255 - base)}
    return [[at, f"rgb({','.join(str(round(part)) for part in colour)})"] for at, colour in stops.items()]


# ----------------------------------------------------------------------------------------------------
# Looks shared by all figures: light and dark templates, hatches for missing points, the buttons beside a figure.

FONT = "Inter, 'Helvetica Neue', Arial, 'Liberation Sans', sans-serif"
PATH_HALO = "#ffffff"
INK = {"light": "#1c2530", "dark": "#e6e9ee"}  # lines and words
PAPER = {"light": "#ffffff", "dark": "#14181f"}

# The reasons for a missing point differ by hatch and by symbol, to be distinct without colour too.
HATCH = {
    NOT_COMPUTED: {"shape": "/", "fgcolor": "#b4bac4", "bgcolor": "#eceef1", "symbol": "square", "solid": "#9aa3b0"},
    NOT_FINITE: {"shape": "x", "fgcolor": "#ffffff", "bgcolor": "#3b3f46", "symbol": "circle", "solid": "#3b3f46"},
    QUARANTINED: {"shape": ".", "fgcolor": "#8a3b00", "bgcolor": "#f6c9a0", "symbol": "diamond", "solid": "#c2570c"},
    NO_LOGARITHM: {"shape": "-", "fgcolor": "#57606a", "bgcolor": "#ffffff", "symbol": "cross", "solid": "#57606a"},
    UNRESOLVED: {"shape": "|", "fgcolor": "#7d93ad", "bgcolor": "#e6edf5", "symbol": "square-open", "solid": "#7d93ad"},
    NO_SIGN: {"shape": "\\", "fgcolor": "#8c8c5a", "bgcolor": "#f4f1d6", "symbol": "diamond-open", "solid": "#8c8c5a"},
}
DARK_HATCH = {
    NOT_COMPUTED: {"fgcolor": "#5b6675", "bgcolor": "#252b35"},
    NOT_FINITE: {"fgcolor": "#14181f", "bgcolor": "#aab2be"},
    QUARANTINED: {"fgcolor": "#ffb37a", "bgcolor": "#5a2a08"},
    NO_LOGARITHM: {"fgcolor": "#98a3b3", "bgcolor": "#14181f"},
    UNRESOLVED: {"fgcolor": "#9fb6d1", "bgcolor": "#22303f"},
    NO_SIGN: {"fgcolor": "#d6d19a", "bgcolor": "#3a3820"},
}
DARK_SOLID = {
    NOT_COMPUTED: "#7b8696",
    NOT_FINITE: "#e3e7ee",
    QUARANTINED: "#ffb37a",
    NO_LOGARITHM: "#98a3b3",
    UNRESOLVED: "#9fb6d1",
    NO_SIGN: "#d6d19a",
}


def _template(ink: str, muted: str, paper: str, line: str) -> go.layout.Template:
    axis = {
        "gridcolor": line,
        "linecolor": muted,
        "zerolinecolor": line,
        "tickcolor": muted,
        "ticks": "outside",
        "ticklen": 4,
        "showline": True,
        "mirror": True,
        "title": {"font": {"size": 13}, "standoff": 8},
        "automargin": True,
    }
    scene_axis = {
        "gridcolor": line,
        "linecolor": muted,
        "zerolinecolor": line,
        "backgroundcolor": paper,
        "showbackground": True,
        "tickfont": {"size": 11},
        "title": {"font": {"size": 12}},
    }
    layout = go.Layout(
        font={"family": FONT, "size": 12, "color": ink},
        paper_bgcolor=paper,
        plot_bgcolor=paper,
        title={"font": {"size": 16}, "x": 0.5, "xanchor": "center"},
        xaxis=axis,
        yaxis=axis,
        scene={"xaxis": scene_axis, "yaxis": scene_axis, "zaxis": scene_axis},
        legend={"bgcolor": "rgba(0,0,0,0)", "font": {"size": 11}},
        hoverlabel={
            "bgcolor": paper,
            "bordercolor": muted,
            "font": {"color": ink, "size": 12},
            "align": "left",
            "namelength": -1,
        },
        modebar={"bgcolor": "rgba(0,0,0,0)", "color": muted, "activecolor": ink},
    )
    return go.layout.Template(layout=layout)


TEMPLATES = {
    "light": _template(INK["light"], "#5a6675", PAPER["light"], "#dfe3e8"),
    "dark": _template(INK["dark"], "#98a3b3", PAPER["dark"], "#303845"),
}


def config(filename: str = "landscape") -> dict[str, Any]:
    """The `config` of `fig.show` and `fig.write_html`: no cloud, and the name of a saved PNG."""
    return {
        "showSendToCloud": False,
        "displaylogo": False,
        "responsive": True,
        "toImageButtonOptions": {"format": "png", "filename": filename, "scale": 3},
    }


def themed(options: Mapping[str, Mapping[str, Any]], theme: str, **meta: Any) -> dict[str, Any]:
    """Options of a trace for one theme, and for all themes in its meta, so that a page can change the theme.

    Args:
        options: options of a plotly trace per theme, as nested mappings.
        meta: is added to the meta of the trace, such as its role.
    """
    return {**options[theme], "meta": {**meta, "themed": options}}


def typed(values: Any) -> Any:
    """The values as float32, which is finer than any screen and half the bytes; as float64 if they are too large."""
    array = np.asarray(values, np.float64)
    finite = array[np.isfinite(array)]
    return array if finite.size and np.abs(finite).max() > 3e38 else array.astype(np.float32)


# ----------------------------------------------------------------------------------------------------
# The looks of the paths of several runs: different colours, lines and marks, to be distinct in grey print too.

# Of lightness 49, 74, 63 and 14: distinct in grey print, and with any colour blindness. The background has all colours
# of a scale, so each line has a white edge, but not in space; there minima, where paths end, are dark: the dark colour
# comes last.
PATH_COLOURS = (PATH_COLOUR, "#f2a900", "#3aa0e8", "#1c2530")
PATH_DASHES = ("solid", "dash", "dot")  # the next one when the colours repeat
PATH_SYMBOLS = ("circle", "square", "diamond", "triangle-up")
PATH_SPACE_SYMBOLS = ("circle", "square", "diamond", "cross")
NOWHERE = {"x": [None], "y": [None], "z": [None]}  # of a trace in space that is there for its legend entry alone
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
    colours = (first, *PATH_COLOURS[1:])
    mark = number + number // len(colours)  # a repeated colour gets another mark, as close dots hide the dashes
    return PathLook(
        colours[number % len(colours)],
        PATH_DASHES[number // len(colours) % len(PATH_DASHES)],
        PATH_SYMBOLS[mark % len(PATH_SYMBOLS)],
        PATH_SPACE_SYMBOLS[mark % len(PATH_SPACE_SYMBOLS)],
    )


def are_told_apart(paths: Sequence[DrawnPath]) -> bool:
    """Whether paths are named by their runs, and share the legend entries for start and end."""
    return any(path.run for path in paths)
