"""Two axes as a surface, with matplotlib's three-dimensional axes."""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import wrap
from typing import Any

import numpy as np

from landscape.views.draw.finer import NAME as FINER
from landscape.views.draw.finer import edge_places
from landscape.views.draw.path_looks import KEY, are_told_apart, path_look
from landscape.views.draw.paths import PathInSpace, raised_note
from landscape.views.draw.space import height_notes, heights_drawn, origin_height, paths_in_space
from landscape.views.draw.style import colour_scale, even_shades
from landscape.views.matplotlib import (
    HATCHES,
    INK,
    LINES,
    MARKERS,
    PlotStyle,
    fill_colours,
    mark_extrema,
    mark_origin,
    plain_label,
    rgb,
    say_why_empty,
)
from landscape.views.prepare.figure import FigureData
from landscape.views.prepare.levels import nice_ticks
from landscape.views.prepare.missing import legend_name, missing_states
from landscape.views.prepare.paths import LAST, START

FINEST = 120  # lines of the drawn mesh along each axis: more take long and show no more
LINE_LENGTH = 90  # characters of a line of notes
LIFT = 0.02  # of the height: enough for the path not to sink into the surface


def plot_surface(data: FigureData, ax: Any, style: PlotStyle) -> None:
    """The values as heights; missing points have symbols on the floor."""
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import LinearSegmentedColormap, Normalize

    scale = data.scale
    span = scale.high - scale.low
    colours = [(at, rgb(colour)) for at, colour in colour_scale(style.colour_scale, scale)]
    shades, norm = LinearSegmentedColormap.from_list("landscape", colours), Normalize(scale.low, scale.high)
    x, y = np.meshgrid(data.axes[0].coordinates, data.axes[1].coordinates)
    look = {"cmap": shades, "norm": norm, "linewidth": 0, "antialiased": True, "axlim_clip": True, "zorder": 1}
    ax.computed_zorder = False  # matplotlib sorts whole artists by depth: the path would vanish behind the surface
    ends = heights_drawn(scale, data.paths)
    ax.set_zlim(*ends)
    ax.plot_surface(x, y, data.drawn, rcount=FINEST, ccount=FINEST, **look)
    _sheets(data, ax, x, y)
    _missing(data, ax, x, y, ends[0])
    if data.interpolated is not None:
        across, up, heights = edge_places(data, every_point=True)
        look = {"color": INK, "linestyle": "dotted", "linewidth": 0.8, "zorder": 3, "label": FINER}
        ax.plot(across, up, heights + LIFT * span, **look)
    mark_origin(ax, data, 0.0, 0.0, origin_height(data) + LIFT * span)
    overlays = paths_in_space(data, LIFT * span, ends)
    _paths(data, ax, style, overlays)
    _say_which_heights_are_not_true(data, ax, ends, overlays)
    mark_extrema(ax, data, LIFT * span)
    ticks, texts = nice_ticks(scale.low, scale.high, scale.log, most=6)
    ax.set_zticks(ticks, texts)
    ax.set(xlabel=data.axes[0].name, ylabel=data.axes[1].name)  # for more words there is no room in space
    say_why_empty(data, ax.text2D, ax.transAxes)
    if style.colour_bar:
        bar = ax.figure.colorbar(ScalarMappable(norm, shades), ax=ax, shrink=0.6, pad=0.12)
        bar.set_ticks(ticks, labels=texts)
        bar.set_label(data.observable.replace("_", " "))


def _sheets(data: FigureData, ax: Any, x: Any, y: Any) -> None:
    """Two standard errors of the shape above and below the values, where the layer of uncertainty is asked for."""
    if data.difference is None or data.shape_error is None:
        return
    for sign in (-1, 1):
        heights = data.values + sign * 2 * data.shape_error
        with np.errstate(invalid="ignore", divide="ignore"):
            heights = np.log10(np.where(heights > 0, heights, np.nan)) if data.scale.log else heights
        ax.plot_surface(x, y, heights, color="#7a8699", alpha=0.3, linewidth=0, axlim_clip=True, zorder=2)


def _missing(data: FigureData, ax: Any, x: Any, y: Any, floor: float) -> None:
    for code, symbol in zip(missing_states(data.states), "sodXPv", strict=False):
        at = data.states == code
        colour = HATCHES[code]["edgecolor"] if HATCHES[code]["edgecolor"] != "#ffffff" else HATCHES[code]["facecolor"]
        name = legend_name(code, int(at.sum()))
        ax.scatter(x[at], y[at], np.full(int(at.sum()), floor), s=4, marker=symbol, color=colour, label=name)


def _say_which_heights_are_not_true(
    data: FigureData, ax: Any, ends: tuple[float, float], overlays: Sequence[PathInSpace]
) -> None:
    """In lines at the lower edge of the axes, as a plot has no caption."""
    notes = [*height_notes([("", path) for path in data.paths], ends), *raised_note(overlays)]
    lines = [line for note in notes for line in wrap(plain_label(note), LINE_LENGTH)]
    if lines:
        ax.text2D(0.0, 0.0, "\n".join(lines), transform=ax.transAxes, fontsize="x-small", va="top")


def _paths(data: FigureData, ax: Any, style: PlotStyle, overlays: Sequence[PathInSpace]) -> None:
    drawn = [each for each in overlays if np.isfinite(each.height).any()]
    shades = even_shades(style.colour_scale, data.scale)
    for overlay in drawn:
        look, path = path_look(overlay.path.number, style.path_colour), overlay.path
        line = {"color": look.colour, "linewidth": style.path_width, "linestyle": LINES[look.dash], "zorder": 5}
        ax.plot(*overlay.line.T, label=plain_label(path.name), **line)
        fills, foot = fill_colours(path, shades), overlay.height if overlay.foot is None else overlay.foot
        for x, y, low, high in zip(*path.places[:2], foot, overlay.height, strict=True):
            ax.plot([x, x], [y, y], [low, high], color=look.colour, linewidth=0.6 * style.path_width, zorder=5)
        marks = {"marker": MARKERS[look.symbol], "edgecolors": look.colour, "linewidths": 0.7 * style.path_width}
        spots = (*path.places[:2], overlay.height)
        ax.scatter(
            *spots, s=(3.2 * style.path_width) ** 2, c=fills, zorder=6, depthshade=False, label="_snapshots", **marks
        )
        for index, marker, name in ((0, "o", path.start_name), (-1, "D", path.end_name)):
            place = [path.places[0][index], path.places[1][index], overlay.height[index]]
            colours = {"markerfacecolor": fills[index], "markeredgecolor": look.colour, "markeredgewidth": 1.5}
            label = f"_{name}" if path.run else name
            ax.plot(*([value] for value in place), marker=marker, linestyle="", label=label, zorder=6, **colours)
    for marker, name in (("o", START), ("D", LAST)) if are_told_apart([each.path for each in drawn]) else ():
        colours = {"markerfacecolor": "none" if marker == "o" else KEY, "markeredgecolor": KEY}
        ax.plot([], [], [], marker=marker, linestyle="", label=name, **colours)
