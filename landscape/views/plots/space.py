"""Two axes as a surface, with matplotlib's three-dimensional axes."""

from __future__ import annotations

from typing import Any

import numpy as np

from landscape.views.figures.colours import colour_scale
from landscape.views.figures.finer import NAME as FINER
from landscape.views.figures.finer import edge_places
from landscape.views.figures.surface import origin_height, path_in_space
from landscape.views.plots.style import HATCHES, INK, PlotStyle, mark_extrema, mark_origin, rgb, say_why_empty
from landscape.views.prepared.figure_data import FigureData
from landscape.views.prepared.levels import nice_ticks
from landscape.views.prepared.missing import legend_name, missing_states

FINEST = 120  # lines of the drawn mesh along each axis: more take long and show no more
LIFT = 0.02  # of the height: enough for the path not to sink into the surface


def plot_surface(data: FigureData, ax: Any, style: PlotStyle) -> None:
    """The values as heights; missing points have symbols on the floor."""
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import LinearSegmentedColormap, Normalize

    scale = data.scale
    span = scale.high - scale.low
    colours = [(at, rgb(colour)) for at, colour in colour_scale(style.colour_scale)]
    shades, norm = LinearSegmentedColormap.from_list(style.colour_scale, colours), Normalize(scale.low, scale.high)
    x, y = np.meshgrid(data.axes[0].coordinates, data.axes[1].coordinates)
    look = {"cmap": shades, "norm": norm, "linewidth": 0, "antialiased": True, "axlim_clip": True, "zorder": 1}
    ax.computed_zorder = False  # matplotlib sorts whole artists by depth: the path would vanish behind the surface
    ax.set_zlim(scale.low - 0.06 * span, scale.high + 0.04 * span)
    ax.plot_surface(x, y, data.drawn, rcount=FINEST, ccount=FINEST, **look)
    _sheets(data, ax, x, y)
    _missing(data, ax, x, y, scale.low - 0.06 * span)
    if data.interpolated is not None:
        across, up, heights = edge_places(data, every_point=True)
        look = {"color": INK, "linestyle": "dotted", "linewidth": 0.8, "zorder": 3, "label": FINER}
        ax.plot(across, up, heights + LIFT * span, **look)
    mark_origin(ax, data, 0.0, 0.0, origin_height(data) + LIFT * span)
    _path(data, ax, style, LIFT * span)
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
    for code, symbol in zip(missing_states(data.states), "sodX", strict=False):
        at = data.states == code
        colour = HATCHES[code]["edgecolor"] if HATCHES[code]["edgecolor"] != "#ffffff" else HATCHES[code]["facecolor"]
        name = legend_name(code, int(at.sum()))
        ax.scatter(x[at], y[at], np.full(int(at.sum()), floor), s=4, marker=symbol, color=colour, label=name)


def _path(data: FigureData, ax: Any, style: PlotStyle, lift: float) -> None:
    overlay = path_in_space(data, lift)
    if overlay is None or not np.isfinite(overlay.height).any():
        return
    ax.plot(*overlay.line.T, color=style.path_colour, linewidth=style.path_width, label="trajectory", zorder=5)
    for index, marker, name in ((0, "o", overlay.path.start_name), (-1, "D", overlay.path.end_name)):
        place = [overlay.path.places[0][index], overlay.path.places[1][index], overlay.height[index]]
        colours = {"markerfacecolor": "none" if index == 0 else style.path_colour, "markeredgecolor": style.path_colour}
        ax.plot(*([value] for value in place), marker=marker, linestyle="", label=name, zorder=6, **colours)
