"""One axis with matplotlib: the curve with its band of two standard errors."""

from __future__ import annotations

from typing import Any

import numpy as np

from landscape.views.draw.curve import band_name, y_limits
from landscape.views.draw.seeds import FILLS
from landscape.views.draw.style import CURVES
from landscape.views.matplotlib import (
    HATCHES,
    PlotStyle,
    mark_extrema,
    mark_origin,
    number_path,
    plot_paths,
    say_why_empty,
)
from landscape.views.prepare.figure import FigureData
from landscape.views.prepare.levels import nice_ticks
from landscape.views.prepare.missing import legend_name, missing_states, rectangles, square_states
from landscape.views.prepare.seeds import NAME

EVALUATED = "evaluated"


def plot_curve(data: FigureData, ax: Any, style: PlotStyle) -> None:
    """The observable over the axis in real values, missing stretches hatched, the path at its projections."""
    x, colour = data.axes[0].coordinates, CURVES[0]
    shown = np.where(np.isfinite(data.drawn), data.values, np.nan)
    low, high = (data.scale.real(end) for end in y_limits(data))
    if data.shape_error is not None:
        edges = (np.maximum(shown - 2 * data.shape_error, low), shown + 2 * data.shape_error)
        ax.fill_between(x, *edges, color=colour, alpha=0.24, linewidth=0, label=band_name(data))
    if data.seeds is not None:
        band = (np.maximum(each, low) if data.scale.log else each for each in (data.seeds.low, data.seeds.high))
        ax.fill_between(data.seeds.at, *band, color=FILLS["light"], alpha=0.24, linewidth=0, label=NAME)
    ax.plot(x, shown, color=colour, label=data.observable.replace("_", " "))
    if data.interpolated is not None:
        there = data.interpolated == 0
        ax.plot(x[there], shown[there], "o", color=colour, markersize=2.5, label=EVALUATED)
    _hatch_stretches(data, ax)
    if any(np.isfinite(path.height).any() for path in data.paths):
        heights = [np.array([data.scale.real(float(drawn)) for drawn in path.height]) for path in data.paths]
        places = [(path.places[0], height) for path, height in zip(data.paths, heights, strict=True)]
        plot_paths(ax, data.paths, places, style)
        for path, place in zip(data.paths, places, strict=True):
            number_path(ax, path, place)
    if data.origin is not None:
        mark_origin(ax, data, 0.0, data.scale.real(data.origin.height))
    mark_extrema(ax, data, real=data.scale.real)
    say_why_empty(data, ax.text, ax.transAxes)
    if data.scale.log:
        ax.set_yscale("log")
        ticks, texts = nice_ticks(*y_limits(data), log=True, most=6)
        ax.set_yticks([10.0**tick for tick in ticks], texts, minor=False)
        ax.minorticks_off()
    ax.set(xlabel=data.axes[0].title, ylabel=data.observable.replace("_", " "), ylim=(low, high))


def _hatch_stretches(data: FigureData, ax: Any) -> None:
    """Missing stretches over the whole height, each reason in its own way; the first of each has the label."""
    x, rows = data.axes[0].coordinates, np.stack([data.states, data.states])
    squares = square_states(rows)
    for code in missing_states(data.states):
        name = legend_name(code, int((data.states == code).sum()))
        for number, (_, _, left, right) in enumerate(rectangles(squares == code)):
            ax.axvspan(x[left], x[right], label="" if number else name, linewidth=0, zorder=0.5, **HATCHES[code])
