"""What lies over the values on matplotlib's axes: paths, networks, minima, the origin, missing points, grid points."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from textwrap import wrap
from typing import Any

import numpy as np
from matplotlib.collections import PolyCollection
from matplotlib.colors import to_rgb
from matplotlib.patheffects import withStroke
from numpy.typing import NDArray

from landscape.core.grid import Floats
from landscape.surface.surface import OK
from landscape.views.draw.paths import FEW, own_colours
from landscape.views.draw.style import KEY, Shades, are_told_apart, path_look
from landscape.views.figure_spec import PlotSpec
from landscape.views.plots.labels import LabelledMarks, Labels
from landscape.views.plots.style import HALO, HATCHES, INK, LINES, MARKERS, QUIET, plain_label, rgb
from landscape.views.prepare.figure import (
    FigureData,
    legend_name,
    missing_states,
    rectangles,
    square_states,
    why_empty,
)
from landscape.views.prepare.paths import LAST, START, DrawnPath
from landscape.views.prepare.smooth import GRID_POINTS

ENDS = (("o", 4.5, START), ("*", 7, LAST))  # symbol, size in widths of the path, name
RING, STAR, BELOW_STAR = 5.5, 8.5, 11.5  # sizes of ends in widths of the path
DIAMOND = 6.0


def hatch_missing(ax: Any, states: NDArray[np.uint8], x: Floats, y: Floats) -> None:
    """Hatch the squares beside missing points [y, x], with a hatch and a label per reason."""
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
    spec: PlotSpec,
    shades: Shades | None = None,
) -> None:
    """Plot the trajectories through `places`, one array per dimension of the axes, with marked starts and ends.

    Args:
        shades: the colours of the plane, to fill the snapshots. Without them, over a curve, everything has the colour
            of the path, and thin dotted lines connect the points.
    """
    fills = [None if shades is None else fill_colours(path, shades) for path in paths]
    for path, through, fill in zip(paths, places, fills, strict=True):
        _plot_line(ax, path, through, spec, fill)
    for path, through, fill in zip(paths, places, fills, strict=True):
        _plot_ends(ax, path, through, spec, fill)
    plot_path_keys(ax, paths, spec)


def plot_path_keys(ax: Any, paths: Sequence[DrawnPath], spec: PlotSpec) -> None:
    """The legend entries that the starts and ends of several paths share."""
    for (marker, size, name), filled in zip(ENDS, (HALO, KEY), strict=True) if are_told_apart(paths) else ():
        look = {"markerfacecolor": filled, "markeredgecolor": KEY, "markersize": size * spec.path_width}
        ax.plot([], [], marker=marker, linestyle="", label=name, **look)


def fill_colours(path: DrawnPath, shades: Shades) -> list[Any]:
    """The plot's colour for the own loss of each snapshot; white if that is not known."""
    return [rgb(colour) if colour.startswith("rgb") else to_rgb(colour) for colour in own_colours(path, shades)]


def _plot_line(
    ax: Any, path: DrawnPath, places: tuple[Floats, ...], spec: PlotSpec, fills: Sequence[Any] | None
) -> None:
    width, look = spec.path_width, path_look(path.number, spec.path_colour)
    halo = [withStroke(linewidth=2.2 * width, foreground=HALO)]
    label = plain_label(path.name)
    if fills is None:
        size = (1.8 if look.symbol == "circle" else 2.4) * width
        dots = {"marker": MARKERS[look.symbol], "markersize": size, "linewidth": 0.6 * width, "linestyle": ":"}
        ax.plot(*places, color=look.colour, path_effects=halo, label=label, **dots)
        return
    size = _mark_size(path) * width
    line = {"linewidth": width, "linestyle": LINES[look.dash], "path_effects": halo, "label": label}
    ring = {"marker": MARKERS[look.symbol], "markersize": size, "markerfacecolor": HALO}  # for the legend
    ax.plot(*places, color=look.colour, **line, **ring)
    edges = {"edgecolors": look.colour, "linewidths": 0.7 * width, "path_effects": halo}
    ax.scatter(*places, s=size**2, marker=MARKERS[look.symbol], c=list(fills), zorder=2.1, label="_snapshots", **edges)


def _mark_size(path: DrawnPath) -> float:
    """The size of a snapshot in widths of the path."""
    return 3.6 if len(path.numbers) <= FEW else 2.4


def _plot_ends(
    ax: Any, path: DrawnPath, places: tuple[Floats, ...], spec: PlotSpec, fills: Sequence[Any] | None
) -> None:
    """Plot a ring at the start and a star at the end; several paths share one legend entry for each."""
    width, colour = spec.path_width, path_look(path.number, spec.path_colour).colour
    first, last = [place[:1] for place in places], [place[-1:] for place in places]
    names = ("_start", "_end") if path.run else (path.start_name, path.end_name)
    size = (RING - 0.8 * min(path.number, 3)) * width
    ring = {"markerfacecolor": fills[0] if fills else HALO, "markeredgecolor": colour, "markersize": size}
    ring |= {"markeredgewidth": width, "zorder": 2.2}
    ax.plot(*first, marker="o", linestyle="", label=names[0], **ring)
    if fills:
        # The edge of the star has the colour of the path; a white star below separates it from the plane.
        halo = {"markersize": BELOW_STAR * width, "zorder": 2.2, "label": "_halo"}
        ax.plot(*last, marker="*", linestyle="", color=HALO, **halo)
    star = {"markerfacecolor": fills[-1] if fills else colour, "markeredgecolor": colour if fills else HALO}
    star |= {"markersize": STAR * width, "markeredgewidth": 0.7 * width if fills else 0.6, "zorder": 2.3}
    ax.plot(*last, marker="*", linestyle="", label=names[1], **star)


def number_paths(
    labels: Labels, paths: Sequence[DrawnPath], places: Sequence[tuple[Floats, ...]], spec: PlotSpec
) -> None:
    """Number the snapshots of the paths, at `places` on the axes."""
    for path, through in zip(paths, places, strict=True):
        sizes = np.full(len(path.numbers), _mark_size(path) * spec.path_width)
        sizes[0], sizes[-1] = RING * spec.path_width, BELOW_STAR * spec.path_width
        labels.marks.append(LabelledMarks(through, tuple(map(str, path.numbers)), sizes))


def mark_origin(ax: Any, data: FigureData, *place: float) -> None:
    """Mark the origin by a thin cross with a halo at `place`, if it lies inside the axes and its place is known."""
    if data.origin is None or not np.isfinite(place).all():
        return
    cross = {"marker": "+", "markersize": 11, "markeredgecolor": INK, "markeredgewidth": 0.9, "linestyle": ""}
    halo = [withStroke(linewidth=2.6, foreground=HALO)]
    ax.plot(*([value] for value in place), label=data.origin.name, path_effects=halo, **cross)


def mark_networks(ax: Any, data: FigureData, spec: PlotSpec, labels: Labels) -> None:
    """Mark the networks of a plane by diamonds with their names, and draw the curve between two of them."""
    networks = data.networks
    if networks is None:
        return
    if networks.curve.size:
        ax.plot(*networks.curve, color=spec.path_colour, linewidth=spec.path_width, label=networks.curve_name, zorder=5)
    look = {"marker": "D", "linestyle": "", "markerfacecolor": spec.path_colour, "markeredgecolor": HALO}
    ax.plot(*networks.places, label=networks.title, zorder=6, markersize=DIAMOND, **look)
    sizes = np.full(len(networks.names), DIAMOND)
    labels.marks.append(LabelledMarks((networks.places[0], networks.places[1]), networks.names, sizes, named=True))


def mark_extrema(ax: Any, data: FigureData, lift: float = 0.0, real: Callable[[float], float] = float) -> None:
    """Mark the minima above the noise by dots and their saddles by crosses, if asked for.

    Args:
        lift: the height above a surface.
        real: converts a drawn value to that of the axes, for a curve or a surface.
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


def mark_points(ax: Any, data: FigureData, spec: PlotSpec) -> None:
    """Mark the points of the grid that have a value by small ticks, if asked for."""
    if not spec.points:
        return
    x, y = np.meshgrid(data.axes[0].coordinates, data.axes[1].coordinates)
    known = data.states == OK if data.interpolated is None else (data.states == OK) & (data.interpolated == 0)
    tick = {"marker": "+", "markersize": 2.2, "markeredgewidth": 0.4, "markeredgecolor": INK, "alpha": 0.7}
    ax.plot(x[known], y[known], linestyle="", label=GRID_POINTS, gid=QUIET, zorder=1.6, **tick)


def say_why_empty(data: FigureData, write: Callable[..., Any], place: Any) -> None:
    """Write a sentence in the middle if nothing can be drawn.

    Args:
        write: the function of the axes that writes text; `place` is their transform.
    """
    sentence = why_empty(data.states)
    box = {"facecolor": HALO, "edgecolor": "none", "alpha": 0.85}
    if sentence:
        write(0.5, 0.7, "\n".join(wrap(sentence, 32)), transform=place, ha="center", va="center", bbox=box, zorder=8)
