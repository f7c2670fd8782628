"""`plot`: a surface on matplotlib axes, as a curve, contour lines, bands of colour, or heights."""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Sequence
from textwrap import wrap
from typing import Any

import numpy as np
from numpy.typing import NDArray

from landscape.core.errors import JobError, quoted
from landscape.core.grid import Floats
from landscape.surface.surface import NOT_COMPUTED, NOT_FINITE, QUARANTINED, Surface
from landscape.views.draw.curve import FILLS, band_name, y_limits
from landscape.views.draw.marks import NAME as FINER
from landscape.views.draw.marks import edge_places
from landscape.views.draw.paths import FEW, PathInSpace, own_colours, raised_note
from landscape.views.draw.space import height_notes, heights_drawn, origin_height, paths_in_space
from landscape.views.draw.style import (
    CURVES,
    KEY,
    Shades,
    are_told_apart,
    band_colours,
    band_shades,
    colour_scale,
    even_shades,
    is_centred,
    line_colours,
    line_shades,
    path_look,
    signs_of,
)
from landscape.views.figure_spec import PlotSpec, choose_kind, documented
from landscape.views.prepare.figure import (
    FigureData,
    legend_name,
    missing_states,
    prepare,
    rectangles,
    slice_at,
    slice_nearest,
    square_states,
    why_empty,
)
from landscape.views.prepare.paths import LAST, START, DrawnPath
from landscape.views.prepare.scale import NO_LOGARITHM, NO_SIGN, UNRESOLVED, nice_ticks
from landscape.views.prepare.uncertainty import NAME
from landscape.views.prepare.words import fitting_title

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
ENDS = (("o", 4.5, START), ("*", 7, LAST))  # symbol, size in widths of the path, name


def hatch_missing(ax: Any, states: NDArray[np.uint8], x: Floats, y: Floats) -> None:
    """Hatch the squares beside missing points [y, x], with a hatch and a label per reason."""
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
    width = spec.path_width
    for (marker, size, name), filled in zip(ENDS, (HALO, KEY), strict=True) if are_told_apart(paths) else ():
        look = {"markerfacecolor": filled, "markeredgecolor": KEY, "markersize": size * width}
        ax.plot([], [], marker=marker, linestyle="", label=name, **look)


def plain_label(text: str) -> str:
    """A label with escaped dollar signs, which matplotlib would read as a formula."""
    return text.replace("$", r"\$")


def fill_colours(path: DrawnPath, shades: Shades) -> list[Any]:
    """The plot's colour for the own loss of each snapshot; white if that is not known."""
    from matplotlib.colors import to_rgb

    return [rgb(colour) if colour.startswith("rgb") else to_rgb(colour) for colour in own_colours(path, shades)]


def _plot_line(
    ax: Any, path: DrawnPath, places: tuple[Floats, ...], spec: PlotSpec, fills: Sequence[Any] | None
) -> None:
    from matplotlib.patheffects import withStroke

    width, look = spec.path_width, path_look(path.number, spec.path_colour)
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
    ax: Any, path: DrawnPath, places: tuple[Floats, ...], spec: PlotSpec, fills: Sequence[Any] | None
) -> None:
    """Plot a ring at the start and a star at the end; several paths share one legend entry for each."""
    width, colour = spec.path_width, path_look(path.number, spec.path_colour).colour
    first, last = [place[:1] for place in places], [place[-1:] for place in places]
    names = ("_start", "_end") if path.run else (path.start_name, path.end_name)
    size = (5.5 - 0.8 * min(path.number, 3)) * width
    ring = {"markerfacecolor": fills[0] if fills else HALO, "markeredgecolor": colour, "markersize": size}
    ring |= {"markeredgewidth": width, "zorder": 2.2}
    ax.plot(*first, marker="o", linestyle="", label=names[0], **ring)
    if fills:
        # The edge of the star has the colour of the path; a white star below separates it from the plane.
        ax.plot(*last, marker="*", linestyle="", color=HALO, markersize=11.5 * width, zorder=2.2, label="_halo")
    star = {"markerfacecolor": fills[-1] if fills else colour, "markeredgecolor": colour if fills else HALO}
    star |= {"markersize": 8.5 * width, "markeredgewidth": 0.7 * width if fills else 0.6, "zorder": 2.3}
    ax.plot(*last, marker="*", linestyle="", label=names[1], **star)


def number_path(ax: Any, path: DrawnPath, places: tuple[Floats, Floats]) -> None:
    """Write the numbers beside the snapshots, away from the line."""
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
    """Mark the origin by a thin cross with a halo at `place`, if it lies inside the axes and its place is known."""
    from matplotlib.patheffects import withStroke

    if data.origin is None or not np.isfinite(place).all():
        return
    cross = {"marker": "+", "markersize": 11, "markeredgecolor": INK, "markeredgewidth": 0.9, "linestyle": ""}
    halo = [withStroke(linewidth=2.6, foreground=HALO)]
    ax.plot(*([value] for value in place), label=data.origin.name, path_effects=halo, **cross)


def mark_networks(ax: Any, data: FigureData, spec: PlotSpec) -> None:
    """Mark the networks of a plane by diamonds with their names, and draw the curve between two of them."""
    networks = data.networks
    if networks is None:
        return
    if networks.curve.size:
        ax.plot(*networks.curve, color=spec.path_colour, linewidth=spec.path_width, label=networks.curve_name, zorder=5)
    look = {"marker": "D", "linestyle": "", "markerfacecolor": spec.path_colour, "markeredgecolor": HALO}
    ax.plot(*networks.places, label=networks.title, zorder=6, **look)
    box = {"facecolor": HALO, "edgecolor": "none", "alpha": 0.75, "pad": 0.8}
    for x, y, name in zip(*networks.places, networks.names, strict=True):
        ax.annotate(
            name, (x, y), xytext=(0, 6), textcoords="offset points", ha="center", fontsize="x-small", bbox=box, zorder=7
        )


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


def say_why_empty(data: FigureData, write: Callable[..., Any], place: Any) -> None:
    """Write a sentence in the middle if nothing can be drawn.

    Args:
        write: the function of the axes that writes text; `place` is their transform.
    """
    sentence = why_empty(data.states)
    box = {"facecolor": HALO, "edgecolor": "none", "alpha": 0.85}
    if sentence:
        write(0.5, 0.7, "\n".join(wrap(sentence, 32)), transform=place, ha="center", va="center", bbox=box, zorder=8)


def rgb(colour: str) -> tuple[float, float, float]:
    """Plotly's 'rgb(1, 2, 3)' in matplotlib's form."""
    red, green, blue = (float(part) / 255 for part in colour[4:-1].split(","))
    return red, green, blue


# ----------------------------------------------------------------------------------------------------
# One axis with matplotlib: the curve with its band of two standard errors.

EVALUATED = "evaluated"


def plot_curve(data: FigureData, ax: Any, spec: PlotSpec) -> None:
    """Plot the observable over the axis in real values, with hatched missing stretches and the projected path."""
    x, colour = data.axes[0].coordinates, CURVES[0]
    shown = np.where(np.isfinite(data.drawn), data.values, np.nan)
    low, high = (data.scale.real(end) for end in y_limits(data))
    if data.shape_error is not None:
        edges = (np.maximum(shown - 2 * data.shape_error, low), shown + 2 * data.shape_error)
        ax.fill_between(x, *edges, color=colour, alpha=0.24, linewidth=0, label=band_name(data))
    if data.seeds is not None:
        band = (np.maximum(bound, low) if data.scale.log else bound for bound in (data.seeds.low, data.seeds.high))
        ax.fill_between(data.seeds.at, *band, color=FILLS["light"], alpha=0.24, linewidth=0, label=NAME)
    ax.plot(x, shown, color=colour, label=data.observable.replace("_", " "))
    if data.interpolated is not None:
        there = data.interpolated == 0
        ax.plot(x[there], shown[there], "o", color=colour, markersize=2.5, label=EVALUATED)
    _hatch_stretches(data, ax)
    if any(np.isfinite(path.height).any() for path in data.paths):
        heights = [np.array([data.scale.real(float(drawn)) for drawn in path.height]) for path in data.paths]
        places = [(path.places[0], height) for path, height in zip(data.paths, heights, strict=True)]
        plot_paths(ax, data.paths, places, spec)
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
    ax.set(ylabel=data.observable.replace("_", " "), ylim=(low, high))
    _name_axes(ax, data.axes[0].title)


def _hatch_stretches(data: FigureData, ax: Any) -> None:
    """Hatch missing stretches over the whole height, by reason; the first of each reason has the label."""
    x, rows = data.axes[0].coordinates, np.stack([data.states, data.states])
    squares = square_states(rows)
    for code in missing_states(data.states):
        name = legend_name(code, int((data.states == code).sum()))
        for number, (_, _, left, right) in enumerate(rectangles(squares == code)):
            ax.axvspan(x[left], x[right], label="" if number else name, linewidth=0, zorder=0.5, **HATCHES[code])


# ----------------------------------------------------------------------------------------------------
# Two axes with matplotlib: bands of colour between the levels, or labelled lines.

UNCLEAR = "within 2 standard errors of the origin"


def plot_topographic(data: FigureData, ax: Any, spec: PlotSpec) -> None:
    """Bands of colour between the levels, and a colour bar beside the axes."""
    scale, values = data.scale, np.ma.masked_invalid(data.drawn)
    pale = is_centred(spec.colour_scale, scale)
    hair = 1e-6 * (scale.high - scale.low)  # so that values at the very ends have a colour
    edges = [scale.low - hair, *scale.ticks, scale.high + hair]
    colours = [rgb(colour) for _, colour in band_colours(spec.colour_scale, scale)]
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
        if spec.colour_bar:
            bar = ax.figure.colorbar(bands, cax=ax.inset_axes((1.04, 0.0, 0.05, 1.0)), spacing="uniform")
            every = _every(data, ax)
            bar.set_ticks(scale.ticks[::every], labels=scale.texts[::every])
            bar.set_label(data.observable.replace("_", " "))
    _finish(data, ax, spec, band_shades(spec.colour_scale, scale))


def _every(data: FigureData, ax: Any) -> int:
    """n, if every n-th level is labelled at the colour bar, so that labels do not overlap."""
    box, line = ax.get_window_extent(), 1.25 * _font_size(ax)
    wide, high = (axis.span or 1.0 for axis in data.axes)
    height = float(min(box.height, box.width * high / wide) if data.equal else box.height)
    return max(1, math.ceil(len(data.scale.ticks) * line / max(height, line)))


def _font_size(ax: Any) -> float:
    """The size of words in pixels."""
    from matplotlib import rcParams

    return float(rcParams["font.size"] * ax.figure.dpi / 72)


def _name_axes(ax: Any, *titles: str) -> None:
    """Write the titles of the axes beside the plot, the first one under it; long ones are smaller."""
    box, letter = ax.get_window_extent(), 0.55 * _font_size(ax)  # its width in pixels
    for axis, title, pixels in zip((ax.xaxis, ax.yaxis), titles, (box.width, box.height), strict=False):
        words, share = fitting_title(title, max(8, int(pixels / letter)))
        axis.set_label_text(words, fontsize=share * axis.label.get_size())


def plot_contour(data: FigureData, ax: Any, spec: PlotSpec) -> None:
    """Plot labelled lines; a colour bar would repeat the labels."""
    scale, values = data.scale, np.ma.masked_invalid(data.drawn)
    colours = [rgb(colour) for _, colour in line_colours(spec.colour_scale, scale, "light")][: len(scale.ticks)]
    x, y = (axis.coordinates for axis in data.axes)
    if values.count():
        signed = is_centred(spec.colour_scale, scale)
        dashes = ["dashed" if signed and sign < 0 else "solid" for sign in signs_of(scale)]
        lines = ax.contour(x, y, values, levels=list(scale.ticks), colors=colours, linestyles=dashes, linewidths=1.2)
        ax.clabel(lines, fmt=dict(zip(scale.ticks, scale.texts, strict=True)), fontsize="x-small")
    _finish(data, ax, spec, line_shades(spec.colour_scale, scale, "light"))


def _finish(data: FigureData, ax: Any, spec: PlotSpec, shades: Shades) -> None:
    """Draw the layers over the values, and the axes."""
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
    mark_networks(ax, data, spec)
    plot_paths(ax, data.paths, [path.places[:2] for path in data.paths], spec, shades)
    for path in data.paths:
        number_path(ax, path, (path.places[0], path.places[1]))
    mark_extrema(ax, data)
    say_why_empty(data, ax.text, ax.transAxes)
    _name_axes(ax, *(axis.title for axis in data.axes))
    if data.equal:
        ax.set_aspect("equal", adjustable="box")


# ----------------------------------------------------------------------------------------------------
# Two axes as a surface, with matplotlib's three-dimensional axes.

FINEST = 120  # lines of the drawn mesh along each axis: more are slow and show nothing new
LINE_LENGTH = 90  # characters of a line of notes
LABEL_LETTERS = 28  # of an axis title, which stands along an edge of the box
LIFT = 0.02  # of the height: enough for the path not to sink into the surface


def plot_surface(data: FigureData, ax: Any, spec: PlotSpec) -> None:
    """Plot the values as heights; missing points have symbols on the floor."""
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import LinearSegmentedColormap, Normalize

    scale = data.scale
    span = scale.high - scale.low
    colours = [(at, rgb(colour)) for at, colour in colour_scale(spec.colour_scale, scale)]
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
    _paths(data, ax, spec, overlays)
    _say_which_heights_are_not_true(data, ax, ends, overlays)
    mark_extrema(ax, data, LIFT * span)
    ticks, texts = nice_ticks(scale.low, scale.high, scale.log, most=6)
    ax.set_zticks(ticks, texts)
    for edge, axis in zip((ax.xaxis, ax.yaxis), data.axes, strict=True):
        words, share = fitting_title(axis.title, LABEL_LETTERS)
        edge.set_label_text(words, fontsize=share * edge.label.get_size())
    ax.locator_params(axis="x", nbins=5)
    ax.locator_params(axis="y", nbins=5)
    say_why_empty(data, ax.text2D, ax.transAxes)
    if spec.colour_bar:
        bar = ax.figure.colorbar(ScalarMappable(norm, shades), ax=ax, shrink=0.6, pad=0.12)
        bar.set_ticks(ticks, labels=texts)
        bar.set_label(data.observable.replace("_", " "))


def _sheets(data: FigureData, ax: Any, x: Any, y: Any) -> None:
    """Plot two standard errors of the shape above and below the values, if the uncertainty is asked for."""
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
    """Write which heights are not true at the lower edge of the axes, as a plot has no caption."""
    notes = [*height_notes([("", path) for path in data.paths], ends), *raised_note(overlays)]
    lines = [line for note in notes for line in wrap(plain_label(note), LINE_LENGTH)]
    if lines:
        ax.text2D(0.0, 0.0, "\n".join(lines), transform=ax.transAxes, fontsize="x-small", va="top")


def _paths(data: FigureData, ax: Any, spec: PlotSpec, overlays: Sequence[PathInSpace]) -> None:
    drawn = [overlay for overlay in overlays if np.isfinite(overlay.height).any()]
    shades = even_shades(spec.colour_scale, data.scale)
    for overlay in drawn:
        look, path = path_look(overlay.path.number, spec.path_colour), overlay.path
        line = {"color": look.colour, "linewidth": spec.path_width, "linestyle": LINES[look.dash], "zorder": 5}
        ax.plot(*overlay.line.T, label=plain_label(path.name), **line)
        fills, foot = fill_colours(path, shades), overlay.height if overlay.foot is None else overlay.foot
        for x, y, low, high in zip(*path.places[:2], foot, overlay.height, strict=True):
            ax.plot([x, x], [y, y], [low, high], color=look.colour, linewidth=0.6 * spec.path_width, zorder=5)
        marks = {"marker": MARKERS[look.symbol], "edgecolors": look.colour, "linewidths": 0.7 * spec.path_width}
        spots = (*path.places[:2], overlay.height)
        ax.scatter(
            *spots, s=(3.2 * spec.path_width) ** 2, c=fills, zorder=6, depthshade=False, label="_snapshots", **marks
        )
        for index, marker, name in ((0, "o", path.start_name), (-1, "D", path.end_name)):
            place = [path.places[0][index], path.places[1][index], overlay.height[index]]
            colours = {"markerfacecolor": fills[index], "markeredgecolor": look.colour, "markeredgewidth": 1.5}
            label = f"_{name}" if path.run else name
            ax.plot(*([value] for value in place), marker=marker, linestyle="", label=label, zorder=6, **colours)
    for marker, name in (("o", START), ("D", LAST)) if are_told_apart([overlay.path for overlay in drawn]) else ():
        colours = {"markerfacecolor": "none" if marker == "o" else KEY, "markeredgecolor": KEY}
        ax.plot([], [], [], marker=marker, linestyle="", label=name, **colours)


# A kind is a line here and a function that draws it; the names are those of the kinds of figures.
PLOTS: dict[str, Callable[[FigureData, Any, PlotSpec], None]] = {
    "curve": plot_curve,
    "topographic": plot_topographic,
    "contour": plot_contour,
    "surface": plot_surface,
    "slices": plot_topographic,
}


@documented(PlotSpec)
def plot(surface: Surface, ax: Any = None, kind: str | None = None, **options: Any) -> Any:
    """Draw a landscape with matplotlib.

    Words and lines have the sizes of matplotlib's settings. Everything drawn has a label, for `ax.legend()`.

    Args:
        ax: axes to draw on, with `projection="3d"` for a surface; default: those of a new figure.
        kind: "curve" for one axis; "topographic" (default), "contour" or "surface" for two; "slices" for three, which
            draws the slice nearest to 0.
        OPTIONS

    Returns:
        The axes.

    Raises:
        JobError: an unknown kind, observable, colour scale or option, or one that does not fit.
    """
    spec, surface = PlotSpec.of(kind, options), surface.merged()
    chosen = choose_kind(surface, kind)
    if chosen not in PLOTS:
        raise JobError(
            f"kind: {quoted(chosen)} is not drawn with matplotlib; take {', '.join(PLOTS)}, or surface.figure()"
        )
    data = prepare(surface, spec)
    if chosen == "slices":
        data = slice_at(data, slice_nearest(data))
    axes = _checked_axes(ax, chosen)
    PLOTS[chosen](data, axes, spec)
    return axes


def _checked_axes(ax: Any, kind: str) -> Any:
    """The axes as given, or those of a new figure.

    Raises:
        JobError: they are flat and a surface needs three dimensions, or the other way round.
    """
    from matplotlib import pyplot

    needs_space = kind == "surface"
    if ax is None:
        projection = {"projection": "3d"} if needs_space else {}
        return pyplot.figure(layout="constrained").add_subplot(**projection)
    if needs_space != hasattr(ax, "plot_surface"):
        remedy = 'make them with projection="3d"' if needs_space else "make them without a projection"
        raise JobError(f"ax: must be {'three' if needs_space else 'two'}-dimensional axes for {quoted(kind)}; {remedy}")
    return ax


# ----------------------------------------------------------------------------------------------------
# A surface as a PNG by matplotlib, without a window and without changing the caller's settings.


def png_picture(surface: Surface, kind: str, max_points: int) -> bytes:
    """The picture, with its title; refuses kinds that matplotlib does not draw."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    assert kind in PLOTS
    figure = Figure(figsize=(5, 4), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot(projection="3d") if kind == "surface" else figure.add_subplot()
    plot(surface, axes, kind, max_points=max_points)
    axes.set_title(f"{surface.name}: loss", fontsize="medium")
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=100)
    return file.getvalue()
