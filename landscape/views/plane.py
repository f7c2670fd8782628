"""Two axes with matplotlib: bands of colour between the levels, or lines that carry their values."""

from __future__ import annotations

import math
from typing import Any

import matplotlib
import numpy as np

from landscape.views.draw.finer import NAME as FINER
from landscape.views.draw.finer import edge_places
from landscape.views.draw.style import (
    Shades,
    band_colours,
    band_shades,
    is_centred,
    line_colours,
    line_shades,
    signs_of,
)
from landscape.views.matplotlib import (
    HALO,
    INK,
    PlotStyle,
    hatch_missing,
    mark_extrema,
    mark_networks,
    mark_origin,
    number_path,
    plot_paths,
    rgb,
    say_why_empty,
)
from landscape.views.prepare.figure import FigureData
from landscape.views.prepare.words import in_fewer_words

UNCLEAR = "within 2 standard errors of the origin"


def plot_topographic(data: FigureData, ax: Any, style: PlotStyle) -> None:
    """Bands of colour between the levels, and a colour bar beside the axes."""
    scale, values = data.scale, np.ma.masked_invalid(data.drawn)
    pale = is_centred(style.colour_scale, scale)
    hair = 1e-6 * (scale.high - scale.low)  # what lies at the very ends has a colour, too
    edges = [scale.low - hair, *scale.ticks, scale.high + hair]
    colours = [rgb(colour) for _, colour in band_colours(style.colour_scale, scale)]
    x, y = (axis.coordinates for axis in data.axes)
    if values.count():
        bands = ax.contourf(x, y, np.ma.clip(values, scale.low, scale.high), levels=edges, colors=colours)
        ax.contour(
            x,
            y,
            values,
            levels=list(scale.ticks),
            colors=INK if pale else HALO,
            linewidths=0.4,
            linestyles="solid",
            alpha=0.6,
        )
        if style.colour_bar:
            bar = ax.figure.colorbar(bands, cax=ax.inset_axes((1.04, 0.0, 0.05, 1.0)), spacing="uniform")
            every = _every(data, ax)
            bar.set_ticks(scale.ticks[::every], labels=scale.texts[::every])
            bar.set_label(data.observable.replace("_", " "))
    _finish(data, ax, style, band_shades(style.colour_scale, scale))


def _every(data: FigureData, ax: Any) -> int:
    """Of how many levels one has its value at the colour bar, so that the values do not overlap."""
    box, line = ax.get_window_extent(), float(1.25 * matplotlib.rcParams["font.size"] * ax.figure.dpi / 72)
    wide, high = (axis.span or 1.0 for axis in data.axes)
    height = float(min(box.height, box.width * high / wide) if data.equal else box.height)
    return max(1, math.ceil(len(data.scale.ticks) * line / max(height, line)))


def plot_contour(data: FigureData, ax: Any, style: PlotStyle) -> None:
    """Lines that carry their values; there is no colour bar, which would say the same again."""
    scale, values = data.scale, np.ma.masked_invalid(data.drawn)
    colours = [rgb(colour) for _, colour in line_colours(style.colour_scale, scale, "light")][: len(scale.ticks)]
    x, y = (axis.coordinates for axis in data.axes)
    if values.count():
        signed = is_centred(style.colour_scale, scale)
        dashes = ["dashed" if signed and sign < 0 else "solid" for sign in signs_of(scale)]
        lines = ax.contour(x, y, values, levels=list(scale.ticks), colors=colours, linestyles=dashes, linewidths=1.2)
        ax.clabel(lines, fmt=dict(zip(scale.ticks, scale.texts, strict=True)), fontsize="x-small")
    _finish(data, ax, style, line_shades(style.colour_scale, scale, "light"))


def _finish(data: FigureData, ax: Any, style: PlotStyle, shades: Shades) -> None:
    """What lies over the values, and the axes."""
    x, y = (axis.coordinates for axis in data.axes)
    hatch_missing(ax, data.states, x, y)
    if data.difference is not None:
        ratio = np.ma.masked_invalid(data.difference)
        ax.contourf(x, y, ratio, levels=[-1.0, 1.0], colors=[HALO], alpha=0.45)
        ax.contour(x, y, ratio, levels=[1.0], colors=[INK], linestyles="dashed", linewidths=0.9)
        ax.plot([], [], color=INK, linestyle="dashed", linewidth=0.9, label=UNCLEAR)
    if data.interpolated is not None:
        across, up, _ = edge_places(data)
        ax.plot(across, up, color=HALO, linewidth=1.4, alpha=0.5)
        ax.plot(across, up, color=INK, linestyle="dotted", linewidth=0.8, label=FINER)
    mark_origin(ax, data, 0.0, 0.0)
    mark_networks(ax, data, style)
    plot_paths(ax, data.paths, [path.places[:2] for path in data.paths], style, shades)
    for path in data.paths:
        number_path(ax, path, (path.places[0], path.places[1]))
    mark_extrema(ax, data)
    say_why_empty(data, ax.text, ax.transAxes)
    box = ax.get_window_extent()
    letter = 0.55 * matplotlib.rcParams["font.size"] * ax.figure.dpi / 72  # its width in pixels
    for name, axis, pixels in zip(("xlabel", "ylabel"), data.axes, (box.width, box.height), strict=True):
        ax.set(**{name: in_fewer_words(axis.title, max(8, int(pixels / letter)))})
    if data.equal:
        ax.set_aspect("equal", adjustable="box")
