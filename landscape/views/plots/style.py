"""The looks of matplotlib's drawings: hatches, symbols, sizes of words; the user's settings, or those of a preset."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from matplotlib import rcParams

from landscape.surface.surface import NOT_COMPUTED, NOT_FINITE, QUARANTINED
from landscape.views.figure_spec import FigureSpec
from landscape.views.prepare.scale import NO_LOGARITHM, NO_SIGN, UNRESOLVED

HATCHES: dict[int, dict[str, Any]] = {
    NOT_COMPUTED: {"hatch": "///", "facecolor": "#eceef1", "edgecolor": "#b4bac4"},
    NOT_FINITE: {"hatch": "xxx", "facecolor": "#3b3f46", "edgecolor": "#ffffff"},
    QUARANTINED: {"hatch": "...", "facecolor": "#f6c9a0", "edgecolor": "#8a3b00"},
    NO_LOGARITHM: {"hatch": "---", "facecolor": "#ffffff", "edgecolor": "#57606a"},
    UNRESOLVED: {"hatch": "|||", "facecolor": "#e6edf5", "edgecolor": "#7d93ad"},
    NO_SIGN: {"hatch": "\\\\\\", "facecolor": "#f4f1d6", "edgecolor": "#8c8c5a"},
}
INK, HALO = "#1c2530", "#ffffff"
UNCLEAR = "#8d99a8"  # of the hatching where a value cannot be told from that of the origin: seen on pale and on dark
MARKERS = {"circle": "o", "square": "s", "diamond": "D", "triangle-up": "^"}
LINES = {"solid": "-", "dash": "--", "dot": ":", "dashdot": "-.", "longdash": (0, (8, 3))}
STARS = {"star": "*", "cross": "P", "x": "X", "pentagon": "p"} | MARKERS  # of last snapshots in a comparison
QUIET = "landscape-quiet"  # the gid of lines that labels may cover
SMALL = 7 / 8  # of the size of words: legends, ticks and labels, 7 pt beside words of 8 pt
PIXELS_PER_INCH = 96.0
WIDE, THINNEST = 4.5, 0.55  # inches of a plot with a path of the usual width, and the least share of that width


def rgb(colour: str) -> tuple[float, float, float]:
    """Plotly's 'rgb(1, 2, 3)' in matplotlib's form."""
    red, green, blue = (float(part) / 255 for part in colour[4:-1].split(","))
    return red, green, blue


def plain_label(text: str) -> str:
    """A label with escaped dollar signs, which matplotlib would read as a formula."""
    return text.replace("$", r"\$")


def small() -> float:
    """The size of labels in points, from the settings of matplotlib."""
    return SMALL * float(rcParams["font.size"])


def preset_settings(spec: FigureSpec) -> dict[str, Any]:
    """The settings of matplotlib for the preset of `spec`; none without one, so that those of the user count."""
    if spec.preset is None:
        return {}
    size = (spec.print_size[1] or 0.0) * 72 / PIXELS_PER_INCH
    return {
        "font.size": size,
        **dict.fromkeys(("axes.labelsize", "axes.titlesize", "figure.titlesize"), size),
        **dict.fromkeys(("xtick.labelsize", "ytick.labelsize", "legend.fontsize"), SMALL * size),
        **dict.fromkeys(("axes.linewidth", "xtick.major.width", "ytick.major.width"), 0.6),
        **dict.fromkeys(("xtick.major.size", "ytick.major.size", "axes.labelpad"), 2.5),
        "grid.linewidth": 0.4,
        "grid.color": "#d5dae0",
        "lines.linewidth": 1.1,
        "lines.markersize": 4.5,
        "legend.frameon": False,
        "legend.handlelength": 1.6,
        "legend.columnspacing": 1.2,
        "hatch.linewidth": 0.5,
    }


def sized(spec: FigureSpec, columns: int) -> FigureSpec:
    """The options for print, with paths as thin as the width of a panel asks for, unless their width is given."""
    usual = type(spec)().path_width
    if spec.preset is None or spec.path_width != usual:
        return spec
    share = width_in_inches(spec) / columns / WIDE
    return replace(spec, path_width=min(1.0, max(THINNEST, share)) * usual)


def width_in_inches(spec: FigureSpec) -> float:
    """The width of the figure that a preset asks for."""
    return float(spec.print_size[0] or 0.0) / PIXELS_PER_INCH
