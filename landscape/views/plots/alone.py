"""What is plotted without the values of a landscape: the path alone, and the density of the Hessian's eigenvalues."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LinearSegmentedColormap, Normalize
from matplotlib.ticker import FuncFormatter

from landscape.core.errors import JobError, quoted
from landscape.surface.surface import Surface
from landscape.views.draw.style import CURVES, colour_scale, even_shades
from landscape.views.figure_spec import PlotSpec, SpectralDensity
from landscape.views.plots.labels import Labels
from landscape.views.plots.marks import mark_networks, mark_origin, number_paths, plot_paths
from landscape.views.plots.pages import Page
from landscape.views.plots.plane import SparseTicks, nearest_text, set_plane
from landscape.views.plots.style import rgb
from landscape.views.prepare.figure import FigureData, prepare
from landscape.views.prepare.scale import choose_scale, nice_ticks
from landscape.views.prepare.words import observable_title

PLACES = 1000  # at which the density is drawn
DECADES = 6.0  # of the density that are drawn, at most: lower tails are those of the smoothing alone


def draw_path(surface: Surface, ax: Any, spec: PlotSpec) -> Any:
    """The axes with the paths of a landscape, coloured on the scale of the losses of their snapshots."""
    data = _scaled_by_path(prepare(surface, spec), spec)
    if len(data.axes) != 2 or not data.paths:
        raise JobError(
            f"plot_path: needs a landscape of two axes with a trajectory, not {quoted(surface.name)}; "
            "`landscape run` draws one with path: true"
        )
    with Page(spec, None if ax is None else [ax]) as page:
        axes, labels, spec = page.axes[0], Labels(page.axes[0]), page.spec
        mark_origin(axes, data, 0.0, 0.0)
        mark_networks(axes, data, spec, labels)
        places = [path.places[:2] for path in data.paths]
        plot_paths(axes, data.paths, places, spec, even_shades(spec.colour_scale, data.scale))
        number_paths(labels, data.paths, places, spec)
        axes.margins(0.08)
        set_plane(axes, data)
        if spec.colour_bar:
            _add_bar(page.figure, axes, data, spec)
        return axes


def _scaled_by_path(data: FigureData, spec: PlotSpec) -> FigureData:
    """The same with the range of the losses at the snapshots."""
    own = np.concatenate([np.empty(0), *(path.own for path in data.paths)])
    if spec.zmin is not None or spec.zmax is not None or not np.isfinite(own).any():
        return data
    low, high = (data.scale.real(float(end)) for end in (np.nanmin(own), np.nanmax(own)))
    ends = (low, high) if low < high else (None, None)
    return replace(data, scale=choose_scale(own, data.scale.log, *ends))


def _add_bar(figure: Any, ax: Any, data: FigureData, spec: PlotSpec) -> None:
    colours = [(at, rgb(colour)) for at, colour in colour_scale(spec.colour_scale, data.scale)]
    shades, norm = LinearSegmentedColormap.from_list("path", colours), Normalize(data.scale.low, data.scale.high)
    bar = figure.colorbar(ScalarMappable(norm, shades), ax=ax, fraction=0.05, pad=0.03, aspect=18)
    ticks, texts = nice_ticks(data.scale.low, data.scale.high, data.scale.log, most=6)
    bar.set_ticks(SparseTicks(ticks))
    bar.ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: nearest_text(ticks, texts, value)))
    bar.outline.set_linewidth(0.4)
    bar.set_label(observable_title(data.observable))


def draw_density(density: SpectralDensity, ax: Any, width: float | None, spec: PlotSpec) -> Any:
    """The axes with the smoothed density, and a tick at each node of the quadratures."""
    nodes = np.asarray(density.nodes, np.float64).ravel()
    span = float(np.ptp(nodes)) or float(np.abs(nodes).max()) or 1.0
    if width is not None and not (np.isfinite(width) and width > 0):
        raise JobError(f"width: must be a number above 0, not {quoted(width)}")
    width = 0.01 * span if width is None else float(width)
    places = np.linspace(nodes.min() - 4 * width, nodes.max() + 4 * width, PLACES)
    height = density.smooth(places, width)
    floor = float(height.max()) * 10.0**-DECADES
    with Page(spec, None if ax is None else [ax]) as page:
        axes = page.axes[0]
        axes.plot(places, np.maximum(height, floor), color=CURVES[0], label="density of eigenvalues")
        axes.fill_between(places, floor, np.maximum(height, floor), color=CURVES[0], alpha=0.2, linewidth=0)
        axes.axvline(0.0, color="#808a97", linewidth=0.8, linestyle=":", label="0")
        ends = {"color": CURVES[1], "marker": "|", "linestyle": "", "markersize": 7}
        axes.plot([nodes.min(), nodes.max()], [floor * 1.6] * 2, label="smallest and largest node", **ends)
        axes.set_yscale("log")
        axes.set_ylim(floor, None)
        axes.set_xlabel("eigenvalue of the Hessian")
        axes.set_ylabel("density")
        axes.ticklabel_format(axis="x", scilimits=(-3, 4), useMathText=True)
        axes.minorticks_off()
        return axes
