"""Drawings on flat matplotlib axes: the curve of one axis with its band, bands of colour and contour lines of two."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.cm import ScalarMappable
from matplotlib.colors import BoundaryNorm, ListedColormap
from matplotlib.ticker import FixedLocator, FuncFormatter
from matplotlib.transforms import Bbox

from landscape.views.draw.curve import FILLS, band_name, y_limits
from landscape.views.draw.marks import NAME as FINER
from landscape.views.draw.marks import edge_places
from landscape.views.draw.style import (
    CURVES,
    Shades,
    band_colours,
    band_shades,
    is_centred,
    line_colours,
    line_shades,
    signs_of,
)
from landscape.views.figure_spec import PlotSpec
from landscape.views.plots.labels import LabelledLines, Labels
from landscape.views.plots.marks import (
    hatch_missing,
    mark_extrema,
    mark_networks,
    mark_origin,
    mark_points,
    number_paths,
    plot_paths,
    say_why_empty,
)
from landscape.views.plots.style import HALO, HATCHES, INK, QUIET, UNCLEAR, rgb
from landscape.views.prepare.figure import FigureData, legend_name, missing_states, rectangles, square_states
from landscape.views.prepare.scale import Scale, nice_ticks
from landscape.views.prepare.smooth import contour_field
from landscape.views.prepare.uncertainty import NAME
from landscape.views.prepare.words import fitting_title, observable_title

# ----------------------------------------------------------------------------------------------------
# One axis: the curve with its band of two standard errors.

EVALUATED = "evaluated"


def plot_curve(data: FigureData, ax: Any, spec: PlotSpec) -> None:
    """Plot the observable over the axis in real values, with hatched missing stretches and the projected path."""
    x, colour, labels = data.axes[0].coordinates, CURVES[0], Labels(ax)
    shown = np.where(np.isfinite(data.drawn), data.values, np.nan)
    low = data.scale.real(y_limits(data)[0])
    if data.shape_error is not None:
        edges = (np.maximum(shown - 2 * data.shape_error, low), shown + 2 * data.shape_error)
        ax.fill_between(x, *edges, color=colour, alpha=0.24, linewidth=0, label=band_name(data))
    if data.seeds is not None:
        band = (np.maximum(bound, low) if data.scale.log else bound for bound in (data.seeds.low, data.seeds.high))
        ax.fill_between(data.seeds.at, *band, color=FILLS["light"], alpha=0.24, linewidth=0, label=NAME)
    ax.plot(x, shown, color=colour, label=observable_title(data.observable))
    if data.interpolated is not None or spec.points:
        there = np.isfinite(shown) if data.interpolated is None else data.interpolated == 0
        ax.plot(x[there], shown[there], "o", color=colour, markersize=2.5, label=EVALUATED)
    _hatch_stretches(data, ax)
    if any(np.isfinite(path.height).any() for path in data.paths):
        heights = [np.array([data.scale.real(float(drawn)) for drawn in path.height]) for path in data.paths]
        places = [(path.places[0], height) for path, height in zip(data.paths, heights, strict=True)]
        plot_paths(ax, data.paths, places, spec)
        number_paths(labels, data.paths, places, spec)
    if data.origin is not None:
        mark_origin(ax, data, 0.0, data.scale.real(data.origin.height))
    mark_extrema(ax, data, real=data.scale.real)
    say_why_empty(data, ax.text, ax.transAxes)
    value_axis(ax, y_limits(data), data.scale.log)
    ax.set_ylabel(observable_title(data.observable))
    name_axes(ax, data.axes[0].title)


def value_axis(ax: Any, limits: tuple[float, float], log: bool) -> None:
    """The vertical axis of a curve in real values, from limits in drawn units."""
    if log:
        ax.set_yscale("log")
        ticks, texts = nice_ticks(*limits, log=True, most=6)
        ax.set_yticks([10.0**tick for tick in ticks], texts, minor=False)
        ax.minorticks_off()
    else:
        ax.ticklabel_format(axis="y", scilimits=(-3, 4), useMathText=True)
    ax.set_ylim(*(10.0**limit if log else limit for limit in limits))


def _hatch_stretches(data: FigureData, ax: Any) -> None:
    """Hatch missing stretches over the whole height, by reason; the first of each reason has the label."""
    x, rows = data.axes[0].coordinates, np.stack([data.states, data.states])
    squares = square_states(rows)
    for code in missing_states(data.states):
        name = legend_name(code, int((data.states == code).sum()))
        for number, (_, _, left, right) in enumerate(rectangles(squares == code)):
            ax.axvspan(x[left], x[right], label="" if number else name, linewidth=0, zorder=0.5, **HATCHES[code])


# ----------------------------------------------------------------------------------------------------
# Two axes: bands of colour between the levels, or labelled lines.

SHORTEST_BAR = 1.0  # inches: a flat plane has a bar that is higher than itself
LETTER, LINE = 0.55, 1.3  # the mean width of a letter and the height of a line, in sizes of their font


def plot_topographic(data: FigureData, ax: Any, spec: PlotSpec) -> None:
    """Bands of colour between the levels, and a colour bar beside the axes."""
    scale = data.scale
    x, y, drawn = contour_field(data, spec)
    values = np.ma.masked_invalid(drawn)
    if values.count():
        bands = band_mappable(scale, spec)
        ax.contourf(
            x, y, np.ma.clip(values, scale.low, scale.high), levels=bands.norm.boundaries, colors=bands.cmap.colors
        )
        line = {"linewidths": 0.4, "linestyles": "solid", "alpha": 0.6}
        colour = INK if is_centred(spec.colour_scale, scale) else HALO
        ax.contour(x, y, values, levels=list(scale.ticks), colors=colour, **line)
        if spec.colour_bar:
            add_colour_bar(ax.figure, bands, [ax], scale, observable_title(data.observable))
    finish(data, ax, spec, band_shades(spec.colour_scale, scale), Labels(ax))


def band_mappable(scale: Scale, spec: PlotSpec) -> Any:
    """The colours of the bands between the levels, for a drawing and its colour bar."""
    hair = 1e-6 * (scale.high - scale.low)  # so that values at the very ends have a colour
    edges = [scale.low - hair, *scale.ticks, scale.high + hair]
    colours = ListedColormap([rgb(colour) for _, colour in band_colours(spec.colour_scale, scale)])
    return ScalarMappable(BoundaryNorm(edges, colours.N), colours)


class SparseTicks(FixedLocator):
    """Every k-th of the ticks, so that their labels do not overlap at the size that the bar has when drawn."""

    def __call__(self) -> Any:
        axis: Any = self.axis
        places = super().__call__()
        size = axis.get_major_ticks(1)[0].label1.get_size() * axis.figure.dpi / 72
        most = max(2, int(axis.axes.get_window_extent().height / (LINE * size)))
        return places[:: max(1, -(-len(places) // most))]


class _BarPlace:
    """The place of a colour bar: as high as the axes beside it, which may have shrunk to equal units."""

    def __init__(self, bar: Any, beside: Any) -> None:
        self.bar, self.beside, self.own = bar, beside, bar.get_axes_locator()

    def __call__(self, ax: Any, renderer: Any) -> Any:
        box = self.own(ax, renderer) if self.own is not None else ax.get_position(original=True)
        self.beside.apply_aspect()
        there = self.beside.get_position()
        height = max(there.height, min(box.height, SHORTEST_BAR / ax.figure.get_figheight()))
        middle = (there.y0 + there.y1) / 2
        return Bbox.from_bounds(box.x0, middle - height / 2, box.width, height)

    def get_subplotspec(self) -> Any:
        """For matplotlib's layouts."""
        return None


def add_colour_bar(figure: Any, bands: Any, axes: list[Any], scale: Scale, title: str, **place: Any) -> Any:
    """A colour bar with real values at the levels, beside one or several axes; layouts know it."""
    shape = {"fraction": 0.05, "pad": 0.03, "aspect": 18} | place
    bar = figure.colorbar(bands, ax=axes, spacing="uniform", **shape)
    bar.outline.set_linewidth(0.4)
    bar.set_ticks(SparseTicks(list(scale.ticks)))
    bar.ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: nearest_text(scale.ticks, scale.texts, value)))
    bar.minorticks_off()
    bar.set_label(title)
    if len(axes) == 1:
        bar.ax.set_axes_locator(_BarPlace(bar.ax, axes[0]))
    return bar


def nearest_text(ticks: Sequence[float], texts: Sequence[str], value: float) -> str:
    """The text of the tick nearest to a value."""
    return min(zip(ticks, texts, strict=True), key=lambda tick: abs(tick[0] - value), default=(0.0, ""))[1]


def name_axes(ax: Any, *titles: str) -> None:
    """Write the titles of the axes beside the plot, the first one under it; long ones are smaller."""
    letter = LETTER * ax.xaxis.label.get_size() * ax.figure.dpi / 72  # its width in pixels
    box = ax.get_window_extent()
    for axis, title, pixels in zip((ax.xaxis, ax.yaxis), titles, (box.width, box.height), strict=False):
        words, share = fitting_title(title, max(8, int(pixels / letter)))
        axis.set_label_text(words, fontsize=share * axis.label.get_size())


def plot_contour(data: FigureData, ax: Any, spec: PlotSpec) -> None:
    """Plot labelled lines; a colour bar would repeat the labels."""
    scale, labels = data.scale, Labels(ax)
    x, y, drawn = contour_field(data, spec)
    values = np.ma.masked_invalid(drawn)
    colours = [rgb(colour) for _, colour in line_colours(spec.colour_scale, scale, "light")][: len(scale.ticks)]
    if values.count():
        signed = is_centred(spec.colour_scale, scale)
        dashes = ["dashed" if signed and sign < 0 else "solid" for sign in signs_of(scale)]
        look = {"colors": colours, "linestyles": dashes, "linewidths": 0.8 * spec.path_width}
        lines = ax.contour(x, y, values, levels=list(scale.ticks), **look)
        labels.lines.append(LabelledLines(lines, scale.texts, tuple(colours)))
    finish(data, ax, spec, line_shades(spec.colour_scale, scale, "light"), labels)


def finish(data: FigureData, ax: Any, spec: PlotSpec, shades: Shades, labels: Labels) -> None:
    """Draw the layers over the values, and the axes."""
    x, y = (axis.coordinates for axis in data.axes)
    hatch_missing(ax, data.states, x, y)
    if data.difference is not None:
        ratio = np.ma.masked_invalid(data.difference)
        within = ax.contourf(x, y, ratio, levels=[-1.0, 1.0], colors="none", hatches=["////"])
        within.set(edgecolor=UNCLEAR, linewidth=0.0)
        ax.contour(x, y, ratio, levels=[1.0], colors=[UNCLEAR], linewidths=0.6)
        ax.fill([], [], facecolor="none", edgecolor=UNCLEAR, hatch="////", linewidth=0.6, label=data.unclear)
    if data.interpolated is not None:
        across, up, _ = edge_places(data)
        ax.plot(across, up, color=HALO, linewidth=1.4, alpha=0.5, gid=QUIET)
        ax.plot(across, up, color=INK, linestyle="dotted", linewidth=0.8, label=FINER, gid=QUIET)
    mark_points(ax, data, spec)
    mark_origin(ax, data, 0.0, 0.0)
    mark_networks(ax, data, spec, labels)
    places = [path.places[:2] for path in data.paths]
    plot_paths(ax, data.paths, places, spec, shades)
    number_paths(labels, data.paths, places, spec)
    mark_extrema(ax, data)
    say_why_empty(data, ax.text, ax.transAxes)
    set_plane(ax, data)


def set_plane(ax: Any, data: FigureData) -> None:
    """The titles, the numbers and the unit lengths of both axes."""
    if data.equal:
        ax.set_aspect("equal", adjustable="box")
    for axis in (ax.xaxis, ax.yaxis):
        axis.get_major_formatter().set_powerlimits((-3, 4))
        axis.get_major_formatter().set_useMathText(True)
    name_axes(ax, *(axis.title for axis in data.axes))
