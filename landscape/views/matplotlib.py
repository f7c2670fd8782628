"""What all plots share: options that leave the data as they are, hatches, the trajectory, the mark of the origin."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from textwrap import wrap
from typing import Any

import numpy as np
from numpy.typing import NDArray

from landscape.surface.surface import NOT_COMPUTED, NOT_FINITE, QUARANTINED
from landscape.views.draw.path_looks import KEY, are_told_apart, path_look
from landscape.views.draw.paths import FEW, own_colours
from landscape.views.draw.style import Shades
from landscape.views.prepare.figure import FigureData
from landscape.views.prepare.missing import legend_name, missing_states, rectangles, square_states, why_empty
from landscape.views.prepare.paths import LAST, START, DrawnPath
from landscape.views.prepare.scale import NO_LOGARITHM, NO_SIGN, UNRESOLVED

Floats = NDArray[np.float64]

HATCHES: dict[int, dict[str, Any]] = {
    NOT_COMPUTED: {"hatch": "///", "facecolor": "#eceef1", "edgecolor": "#b4bac4"},
    NOT_FINITE: {"hatch": "xxx", "facecolor": "#3b3f46", "edgecolor": "#ffffff"},
    QUARANTINED: {"hatch": "...", "facecolor": "#f6c9a0", "edgecolor": "#8a3b00"},
    NO_LOGARITHM: {"hatch": "---", "facecolor": "#ffffff", "edgecolor": "#57606a"},
    UNRESOLVED: {"hatch": "|||", "facecolor": "#e6edf5", "edgecolor": "#7d93ad"},
    NO_SIGN: {"hatch": "\\\\\\", "facecolor": "#f4f1d6", "edgecolor": "#8c8c5a"},
}
INK, HALO = "#1c2530", "#ffffff"
MARKERS = {"circle": "o", "square": "s", "diamond": "D", "triangle-up": "^"}
LINES = {"solid": "-", "dash": "--", "dot": ":"}
ENDS = (("o", 4.5, START), ("*", 7, LAST))  # the mark, its size in widths of the path, and its name


@dataclass(frozen=True)
class PlotStyle:
    """How to draw: those options of `plot` that leave the data as they are; widths in points."""

    colour_scale: str | None
    path_colour: str
    path_width: float
    colour_bar: bool


def hatch_missing(ax: Any, states: NDArray[np.uint8], x: Floats, y: Floats) -> None:
    """Hatch the squares beside missing points [y, x], each reason in its own way and with a label."""
    from matplotlib.collections import PolyCollection

    squares = square_states(states)
    for code in missing_states(states):
        corners = [
            [(x[left], y[top]), (x[right], y[top]), (x[right], y[bottom]), (x[left], y[bottom])]
            for top, bottom, left, right in rectangles(squares == code)
        ]
        name = legend_name(code, int((states == code).sum()))
        ax.add_collection(PolyCollection(corners, label=name, linewidth=0, zorder=1.5, **HATCHES[code]), autolim=False)


def plot_paths(
    ax: Any,
    paths: Sequence[DrawnPath],
    places: Sequence[tuple[Floats, ...]],
    style: PlotStyle,
    shades: Shades | None = None,
) -> None:
    """The trajectories through `places`, one array per dimension of the axes, with their starts and ends marked.

    Args:
        shades: the colours of the plane, which fill the snapshots. Without them, which is over a curve, all is in the
            colour of the path, and thin dotted lines connect the points.
    """
    fills = [None if shades is None else fill_colours(path, shades) for path in paths]
    for path, through, fill in zip(paths, places, fills, strict=True):
        _plot_line(ax, path, through, style, fill)
    for path, through, fill in zip(paths, places, fills, strict=True):
        _plot_ends(ax, path, through, style, fill)
    width = style.path_width
    for (marker, size, name), filled in zip(ENDS, (HALO, KEY), strict=True) if are_told_apart(paths) else ():
        look = {"markerfacecolor": filled, "markeredgecolor": KEY, "markersize": size * width}
        ax.plot([], [], marker=marker, linestyle="", label=name, **look)


def plain_label(text: str) -> str:
    """A label whose dollar signs matplotlib does not take for those of a formula."""
    return text.replace("$", r"\$")


def fill_colours(path: DrawnPath, shades: Shades) -> list[Any]:
    """The colour that the plot has for the own loss of each snapshot; white where that is not known."""
    from matplotlib.colors import to_rgb

    return [rgb(colour) if colour.startswith("rgb") else to_rgb(colour) for colour in own_colours(path, shades)]


def _plot_line(
    ax: Any, path: DrawnPath, places: tuple[Floats, ...], style: PlotStyle, fills: Sequence[Any] | None
) -> None:
    from matplotlib.patheffects import withStroke

    width, look = style.path_width, path_look(path.number, style.path_colour)
    halo = [withStroke(linewidth=2.2 * width, foreground=HALO)]
    label = plain_label(path.name)
    if fills is None:
        size = (1.8 if look.symbol == "circle" else 2.4) * width
        dots = {"marker": MARKERS[look.symbol], "markersize": size, "linewidth": 0.6 * width, "linestyle": ":"}
        ax.plot(*places, color=look.colour, path_effects=halo, label=label, **dots)
        return
    size = (3.6 if len(fills) <= FEW else 2.4) * width
    line = {"linewidth": width, "linestyle": LINES[look.dash], "path_effects": halo, "label": label}
    ring = {"marker": MARKERS[look.symbol], "markersize": size, "markerfacecolor": HALO}  # for the legend
    ax.plot(*places, color=look.colour, **line, **ring)
    edges = {"edgecolors": look.colour, "linewidths": 0.7 * width, "path_effects": halo}
    ax.scatter(*places, s=size**2, marker=MARKERS[look.symbol], c=list(fills), zorder=2.1, label="_snapshots", **edges)


def _plot_ends(
    ax: Any, path: DrawnPath, places: tuple[Floats, ...], style: PlotStyle, fills: Sequence[Any] | None
) -> None:
    """A ring at the start and a star at the end; of several paths both have one entry of the legend for all."""
    width, colour = style.path_width, path_look(path.number, style.path_colour).colour
    first, last = [place[:1] for place in places], [place[-1:] for place in places]
    names = ("_start", "_end") if path.run else (path.start_name, path.end_name)
    size = (5.5 - 0.8 * min(path.number, 3)) * width
    ring = {"markerfacecolor": fills[0] if fills else HALO, "markeredgecolor": colour, "markersize": size}
    ring |= {"markeredgewidth": width, "zorder": 2.2}
    ax.plot(*first, marker="o", linestyle="", label=names[0], **ring)
    if fills:
        # The edge of the star has the colour of the path; the white star below it parts both from the plane.
        ax.plot(*last, marker="*", linestyle="", color=HALO, markersize=11.5 * width, zorder=2.2, label="_halo")
    star = {"markerfacecolor": fills[-1] if fills else colour, "markeredgecolor": colour if fills else HALO}
    star |= {"markersize": 8.5 * width, "markeredgewidth": 0.7 * width if fills else 0.6, "zorder": 2.3}
    ax.plot(*last, marker="*", linestyle="", label=names[1], **star)


def number_path(ax: Any, path: DrawnPath, places: tuple[Floats, Floats]) -> None:
    """The numbers beside the snapshots, away from the line."""
    for label in path.labels:
        place = (float(places[0][label.index]), float(places[1][label.index]))
        if np.isfinite(place).all():
            ax.annotate(
                label.text,
                place,
                xytext=(9 * np.cos(label.angle), 8 * np.sin(label.angle)),
                textcoords="offset points",
                ha="center",
                va="center",
                fontsize="x-small",
                bbox={"boxstyle": "square,pad=0.1", "facecolor": HALO, "edgecolor": "none", "alpha": 0.75},
                annotation_clip=True,
            )


def mark_origin(ax: Any, data: FigureData, *place: float) -> None:
    """The origin as a thin cross with a halo at `place`, where it lies inside the axes and its place is known."""
    from matplotlib.patheffects import withStroke

    if data.origin is None or not np.isfinite(place).all():
        return
    cross = {"marker": "+", "markersize": 11, "markeredgecolor": INK, "markeredgewidth": 0.9, "linestyle": ""}
    halo = [withStroke(linewidth=2.6, foreground=HALO)]
    ax.plot(*([value] for value in place), label=data.origin.name, path_effects=halo, **cross)


def mark_networks(ax: Any, data: FigureData, style: PlotStyle) -> None:
    """The networks of a plane as diamonds with their names, and the curve between two of them."""
    networks = data.networks
    if networks is None:
        return
    if networks.curve.size:
        ax.plot(
            *networks.curve, color=style.path_colour, linewidth=style.path_width, label=networks.curve_name, zorder=5
        )
    look = {"marker": "D", "linestyle": "", "markerfacecolor": style.path_colour, "markeredgecolor": HALO}
    ax.plot(*networks.places, label=networks.title, zorder=6, **look)
    box = {"facecolor": HALO, "edgecolor": "none", "alpha": 0.75, "pad": 0.8}
    for x, y, name in zip(*networks.places, networks.names, strict=True):
        ax.annotate(
            name, (x, y), xytext=(0, 6), textcoords="offset points", ha="center", fontsize="x-small", bbox=box, zorder=7
        )


def mark_extrema(ax: Any, data: FigureData, lift: float = 0.0, real: Callable[[float], float] = float) -> None:
    """The minima above the noise as dots and their saddles as crosses, where these are asked for.

    Args:
        lift: how far above a surface.
        real: what the axes show of a drawn value, where they have one axis of coordinates, or two and a height.
    """
    if data.extrema is None:
        return
    for marks, marker, size in ((data.extrema.saddles, "X", 6.0), (data.extrema.minima, "o", 5.5)):
        height = np.array([real(float(value)) + lift for value in marks.height])
        flat = len(data.axes) > 1 and not hasattr(ax, "plot_surface")
        places = marks.places[:2] if flat else (*marks.places, height)
        look = {"markerfacecolor": INK, "markeredgecolor": HALO, "markeredgewidth": 0.8, "linestyle": "", "zorder": 7}
        if len(height):
            ax.plot(*places, marker=marker, markersize=size, label=marks.name, **look)


def say_why_empty(data: FigureData, write: Callable[..., Any], place: Any) -> None:
    """A sentence in the middle where nothing can be drawn.

    Args:
        write: the function of the axes that writes text, and `place` their transform.
    """
    sentence = why_empty(data.states)
    box = {"facecolor": HALO, "edgecolor": "none", "alpha": 0.85}
    if sentence:
        write(0.5, 0.7, "\n".join(wrap(sentence, 32)), transform=place, ha="center", va="center", bbox=box, zorder=8)


def rgb(colour: str) -> tuple[float, float, float]:
    """Plotly's 'rgb(1, 2, 3)' as matplotlib takes it."""
    red, green, blue = (float(part) / 255 for part in colour[4:-1].split(","))
    return red, green, blue
