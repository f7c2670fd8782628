"""Two axes as a surface on matplotlib's three-dimensional axes, with contour lines on the floor below it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from textwrap import wrap
from typing import Any

import numpy as np
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LinearSegmentedColormap, Normalize
from matplotlib.ticker import FixedLocator, FuncFormatter
from matplotlib.transforms import Bbox

from landscape.core.text import number_text
from landscape.views.draw.marks import NAME as FINER
from landscape.views.draw.marks import edge_places
from landscape.views.draw.paths import PathInSpace, raised_note
from landscape.views.draw.space import (
    HEIGHT,
    height_notes,
    heights_drawn,
    horizontal_aspect,
    origin_height,
    paths_in_space,
)
from landscape.views.draw.style import KEY, are_told_apart, colour_scale, even_shades, line_colours, path_look
from landscape.views.figure_spec import PlotSpec
from landscape.views.plots.labels import LabelledMarks, Labels, numbers_of, scene_box
from landscape.views.plots.marks import fill_colours, mark_extrema, mark_origin, say_why_empty
from landscape.views.plots.plane import SparseTicks, nearest_text
from landscape.views.plots.style import HATCHES, INK, LINES, MARKERS, QUIET, plain_label, rgb, small
from landscape.views.prepare.figure import FigureData, legend_name, missing_states
from landscape.views.prepare.paths import LAST, START
from landscape.views.prepare.scale import nice_ticks
from landscape.views.prepare.smooth import contour_field
from landscape.views.prepare.words import fitting_title, observable_title

FINEST = 120  # lines of the drawn mesh along each axis: more are slow and show nothing new
LINE_LENGTH = 90  # characters of a line of notes
LABEL_LETTERS = 28  # of an axis title, which stands along an edge of the box
FLOOR = 0.3  # of the range drawn: how far the floor lies below the lowest value, so that its lines are seen
CAMERA = {"elev": 30.0, "azim": -55.0}  # as in plotly's figures, and the same for all panels
LIFT = 0.02  # of the height: enough for the path not to sink into the surface


def plot_surface(data: FigureData, ax: Any, spec: PlotSpec) -> None:
    """Plot the values as heights, and contour lines, missing points and ends of threads on the floor."""
    scale, labels = data.scale, Labels(ax)
    span = scale.high - scale.low
    shades, norm = _colours(data, spec)
    x, y = np.meshgrid(data.axes[0].coordinates, data.axes[1].coordinates)
    look = {"cmap": shades, "norm": norm, "linewidth": 0, "antialiased": True, "axlim_clip": True, "zorder": 1}
    ax.computed_zorder = False  # matplotlib sorts whole artists by depth: the path would vanish behind the surface
    ends = heights_drawn(scale, data.paths)
    floor = ends[0] - FLOOR * span
    ax.set_zlim(floor, ends[1])
    ax.plot_surface(x, y, data.drawn, rcount=FINEST, ccount=FINEST, **look)
    _floor(data, ax, spec, floor)
    _sheets(data, ax, x, y)
    _missing(data, ax, x, y, floor)
    if data.interpolated is not None:
        across, up, heights = edge_places(data, every_point=True)
        look = {"color": INK, "linestyle": "dotted", "linewidth": 0.8, "zorder": 3, "label": FINER, "gid": QUIET}
        ax.plot(across, up, heights + LIFT * span, **look)
    mark_origin(ax, data, 0.0, 0.0, origin_height(data) + LIFT * span)
    overlays = paths_in_space(data, LIFT * span, ends)
    _paths(data, ax, spec, overlays, labels)
    if spec.preset is None:  # for print the caption says it
        _say_which_heights_are_not_true(data, ax, ends, overlays)
    mark_extrema(ax, data, LIFT * span)
    set_scene(ax, data, show_name=not spec.colour_bar)
    say_why_empty(data, ax.text2D, ax.transAxes)
    if spec.colour_bar:
        add_height_bar(ax.figure, data, spec, [ax])


def _colours(data: FigureData, spec: PlotSpec) -> tuple[Any, Any]:
    """The colour map of the heights, and its range."""
    colours = [(at, rgb(colour)) for at, colour in colour_scale(spec.colour_scale, data.scale)]
    return LinearSegmentedColormap.from_list("landscape", colours), Normalize(data.scale.low, data.scale.high)


def set_scene(ax: Any, data: FigureData, *, show_name: bool) -> None:
    """The camera, the lengths, the numbers and the titles of the three axes.

    Args:
        show_name: write the observable at the vertical axis, where no colour bar has it.
    """
    ticks, texts = nice_ticks(data.scale.low, data.scale.high, data.scale.log, most=6)
    ax.set_box_aspect((*horizontal_aspect(data), HEIGHT))
    ax.zaxis.set_major_locator(FixedLocator(ticks))
    ax.zaxis.set_major_formatter(FuncFormatter(lambda value, _: nearest_text(ticks, texts, value)))
    ax.view_init(**CAMERA)
    for edge, axis, length in zip((ax.xaxis, ax.yaxis), data.axes, horizontal_aspect(data), strict=True):
        words, share = fitting_title(axis.title, LABEL_LETTERS)
        edge.set_label_text(words, fontsize=share * edge.label.get_size())
        edge.get_major_locator().set_params(nbins=max(2, round(5 * length)))
        # Without a power of ten apart, which would stand on the numbers of another axis.
        edge.set_major_formatter(FuncFormatter(lambda value, _: number_text(value, 3).replace("-", "\u2212")))
    ax.set_zlabel(observable_title(data.observable) if show_name else "")


def add_height_bar(figure: Any, data: FigureData, spec: PlotSpec, axes: list[Any]) -> None:
    """The colour bar of the heights, beside one or several scenes."""
    shades, norm = _colours(data, spec)
    ticks, texts = nice_ticks(data.scale.low, data.scale.high, data.scale.log, most=6)
    bar = figure.colorbar(ScalarMappable(norm, shades), ax=axes, shrink=0.6, pad=0.12, aspect=18)
    bar.outline.set_linewidth(0.4)
    bar.set_ticks(SparseTicks(ticks))
    bar.ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: nearest_text(ticks, texts, value)))
    bar.set_label(observable_title(data.observable))


def _floor(data: FigureData, ax: Any, spec: PlotSpec, floor: float) -> None:
    """The contour lines, projected on the floor of the box."""
    x, y, drawn = contour_field(data, spec)
    values = np.ma.masked_invalid(drawn)
    if values.count() and values.min() < values.max():
        colours = [rgb(colour) for _, colour in line_colours(spec.colour_scale, data.scale, "light")]
        look = {"colors": colours[: len(data.scale.ticks)], "linewidths": 0.6, "zorder": 0.5}
        ax.contour(x, y, values, levels=list(data.scale.ticks), zdir="z", offset=floor, **look)


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
        ax.text2D(0.0, 0.0, "\n".join(lines), transform=ax.transAxes, fontsize=small(), va="top")


def _paths(data: FigureData, ax: Any, spec: PlotSpec, overlays: Sequence[PathInSpace], labels: Labels) -> None:
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
        sizes = np.full(len(overlay.height), 5.0 * spec.path_width)
        labels.marks.append(LabelledMarks(spots, tuple(map(str, path.numbers)), sizes))
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


# ----------------------------------------------------------------------------------------------------
# Scenes laid out for print: matplotlib's layouts reserve room for them that they do not use.

ZOOMS, HALVINGS = (0.4, 2.6), 7
PADS, BINS = (-4.0, 0.0, 4.0, 8.0, 13.0, 19.0), (4, 3, 2, 1)
EDGE_PX, NEAREST_PX = 2.0, 4.0  # around a scene, and between the title of an axis and a number
NARROW = 4.0  # inches: a narrower scene names its axes as shortly as it can
LETTERS = 15  # of the title of an axis in a wider one


def lay_scenes(figure: Any, scenes: Sequence[Any], bars: Sequence[Any]) -> None:
    """Give scenes the room beside their colour bar and above the legend, as large as all words are whole and apart.

    All scenes get one size, so that they can be compared.
    """
    figure.draw_without_rendering()
    renderer = figure.canvas.get_renderer()
    right = min([bar.get_tightbbox(renderer).x0 for bar in bars] or [figure.bbox.width]) / figure.bbox.width
    low = max([legend.get_window_extent(renderer).y1 for legend in figure.legends] or [0.0]) / figure.bbox.height
    figure.set_layout_engine("none")
    grid = scenes[0].get_subplotspec().get_gridspec()
    wide, high = right / grid.ncols, (1.0 - low) / grid.nrows
    titles = [ax.title.get_size() for ax in scenes if ax.get_title(loc="left")]
    named = 1.6 * max(titles, default=0.0) / 72 / figure.get_figheight()
    heavy = [artist for ax in scenes for artist in ax.collections if artist.get_visible()]
    for artist in heavy:  # they need most of the time of a drawing, and no room of their own
        artist.set_visible(False)
    places = {}
    for ax in scenes:
        for artist in (*ax.collections, *ax.lines):  # the scene may be larger than its axes, which no one sees
            artist.set_clip_on(False)
        spot = ax.get_subplotspec()
        left, bottom = spot.colspan.start * wide, low + (grid.nrows - spot.rowspan.stop) * high
        places[ax] = Bbox.from_bounds(left, bottom, wide, high - named)
        ax.set_position(places[ax])
        for axis in (ax.xaxis, ax.yaxis):
            axis.set_rotate_label(False)
            axis.label.set_rotation(0)
            letters = 0 if wide * figure.get_figwidth() < NARROW else LETTERS
            axis.set_label_text(fitting_title(axis.get_label_text(), letters, 1.0)[0])
    for _ in range(2):  # as titles that were moved off numbers need more room
        _enlarge(figure, places)
        for ax in scenes:
            _thin_numbers(figure, ax)
            _move_titles(figure, ax)
    _enlarge(figure, places)
    for ax, place in places.items():
        _thin_numbers(figure, ax)
        if title := ax.get_title(loc="left"):  # above the place of the scene, wherever its axes lie now
            own = ax.get_position()
            indent = 3 * EDGE_PX / figure.bbox.width
            at = {"x": (place.x0 + indent - own.x0) / own.width, "y": (place.y1 - own.y0) / own.height}
            ax.set_title(title, loc="left", **at)
    for artist in heavy:
        artist.set_visible(True)


def _enlarge(figure: Any, places: Mapping[Any, Bbox]) -> None:
    """Draw scenes at the largest zoom at which each fits into its place, found by halving; each in the middle of it."""
    low, high = ZOOMS
    for turn in range(HALVINGS + 1):
        zoom = (low + high) / 2 if turn < HALVINGS else low
        for ax in places:
            ax.set_box_aspect(ax.get_box_aspect(), zoom=zoom)
        figure.draw_without_rendering()
        whole = all(_spare(figure, ax, place).min() >= 0 for ax, place in places.items())
        low, high = (zoom, high) if whole else (low, zoom)
    for ax, place in places.items():
        extent = _extent(figure, ax)
        middles = [np.array([(box.x0 + box.x1) / 2, (box.y0 + box.y1) / 2]) for box in (place, extent)]
        ax.set_position(ax.get_position(original=True).translated(*(middles[0] - middles[1])))
    figure.draw_without_rendering()


def _boxes(texts: Sequence[Any], renderer: Any) -> list[Any]:
    return [text.get_window_extent(renderer) for text in texts if text.get_visible() and text.get_text().strip()]


def _extent(figure: Any, ax: Any) -> Bbox:
    """The box around a scene and all words at its axes, in shares of the figure."""
    words = [word for axis in (ax.xaxis, ax.yaxis, ax.zaxis) for word in (*numbers_of(axis), axis.label)]
    boxes = [scene_box(ax), *_boxes(words, figure.canvas.get_renderer())]
    return Bbox.union(boxes).transformed(figure.transSubfigure.inverted())


def _spare(figure: Any, ax: Any, place: Bbox) -> Any:
    """The pixels [2] that a scene leaves free in its place, across and up, less a thin edge."""
    extent = _extent(figure, ax)
    shares = np.array([place.width - extent.width, place.height - extent.height])
    return shares * figure.bbox.size - 2 * EDGE_PX


def _thin_numbers(figure: Any, ax: Any) -> None:
    """Take fewer numbers where they overlap."""
    renderer = figure.canvas.get_renderer()

    def numbers(axis: Any) -> list[Any]:
        return _boxes(numbers_of(axis), renderer)

    for axis in (ax.zaxis, ax.xaxis, ax.yaxis):
        others = [other for other in (ax.zaxis, ax.xaxis, ax.yaxis) if other is not axis]
        for bins in BINS:
            own = numbers(axis)
            beside = [box for other in others for box in numbers(other)]
            if not any(one.overlaps(other) for k, one in enumerate(own) for other in (*own[:k], *beside)):
                break
            axis.get_major_locator().set_params(nbins=bins)
            figure.draw_without_rendering()
        else:  # an axis too short for two numbers
            middle = 0.0 if np.prod(axis.get_view_interval()) < 0 else float(np.mean(axis.get_view_interval()))
            axis.set_major_locator(FixedLocator([middle]))
            figure.draw_without_rendering()


def _move_titles(figure: Any, ax: Any) -> None:
    """Move the titles of axes off all numbers."""
    renderer = figure.canvas.get_renderer()
    for axis in (ax.xaxis, ax.yaxis, ax.zaxis):
        for pad in PADS:
            axis.labelpad = pad
            figure.draw_without_rendering()
            axes = (ax.xaxis, ax.yaxis, ax.zaxis)
            everything = [box for other in axes for box in _boxes(numbers_of(other), renderer)]
            titles = [box.padded(NEAREST_PX) for box in _boxes([axis.label], renderer)]
            if not any(title.overlaps(box) for title in titles for box in everything):
                break
