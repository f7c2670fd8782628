"""`plot_compare`: several landscapes with matplotlib: panels with one colour bar, overlaid, or as their differences."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from landscape.core.errors import JobError, quoted
from landscape.surface.derived import RISE
from landscape.views.draw.comparison import WITHIN, comparison_kind, in_errors
from landscape.views.draw.curve import y_limits
from landscape.views.draw.style import SeriesStyle, look
from landscape.views.figure_spec import DIVERGING, KIND_TABLE, PLOTTED, ComparisonPlotSpec, choose_kind
from landscape.views.plots.labels import LabelledLines, Labels
from landscape.views.plots.marks import hatch_missing, mark_origin
from landscape.views.plots.pages import Page
from landscape.views.plots.plane import add_colour_bar, band_mappable, name_axes, set_plane, value_axis
from landscape.views.plots.space import add_height_bar, set_scene
from landscape.views.plots.style import HALO, LINES, STARS, plain_label
from landscape.views.prepare.comparison import (
    ComparedLandscape,
    check_mode,
    compared,
    prepare_overlay,
    share_scale,
    with_rise,
)
from landscape.views.prepare.difference import DifferenceData, prepare_difference
from landscape.views.prepare.figure import FigureData, prepare, slice_at, slice_nearest
from landscape.views.prepare.paths import DrawnPath
from landscape.views.prepare.smooth import contour_field
from landscape.views.prepare.words import observable_title

COLUMNS = {None: 3, "column": 2, "page": 3}  # of panels, at most, by the preset
WITH_BAR = ("topographic", "slices", "surface")
STAR_SIZE = 5.0  # in widths of the path
MOST_STACKED = 3  # panels above one another, which more would make higher than a page


def draw_comparison(
    landscapes: Sequence[Any], mode: str, axes: Sequence[Any] | None, spec: ComparisonPlotSpec
) -> list[Any]:
    """The axes of the comparison, as many as it has panels."""
    items = compared(landscapes)
    check_mode(mode, items, spec.observable)
    items, drawn = with_rise(items, spec)
    spec = replace(spec, observable=drawn.observable)
    return {"tiled": _tile, "difference": _differences, "overlay": _overlay}[mode](items, axes, spec)


def _drawn_on_panels(
    draws: Sequence[Callable[[Any, ComparisonPlotSpec], None]],
    axes: Sequence[Any] | None,
    in_space: bool,
    spec: ComparisonPlotSpec,
    finish: Callable[[Any, Sequence[Any]], None] = lambda figure, axes: None,
    *,
    most_columns: int | None = None,
) -> list[Any]:
    """Draw each panel on axes of its own, in at most `most_columns`, then what they share.

    Raises:
        JobError: there are fewer or more axes than panels.
    """
    count = len(draws)
    if axes is not None and np.size(axes) != count:
        raise JobError(f"axes: must be {count}, one per panel, not {np.size(axes)}; make as many, or leave them out")
    columns = most_columns or min(count, COLUMNS[spec.preset], math.ceil(math.sqrt(count)) if count > 3 else count)
    with Page(spec, axes, in_space, (-(-count // columns), columns)) as page:
        for spare in page.axes[count:]:
            spare.remove()
        del page.axes[count:]
        for ax, draw in zip(page.axes, draws, strict=True):
            draw(ax, page.spec)
        finish(page.figure, page.axes)
        return page.axes


# ----------------------------------------------------------------------------------------------------
# Tiled: a panel each, on one scale with one colour bar, from one side.


def _tile(items: Sequence[ComparedLandscape], axes: Sequence[Any] | None, spec: ComparisonPlotSpec) -> list[Any]:
    kinds = [choose_kind(replace(item.surface, name=item.label), spec.kind) for item in items]
    if len({kind == "surface" for kind in kinds}) > 1 or any(kind not in PLOTTED for kind in kinds):
        raise JobError(
            f"kind: {quoted(spec.kind)} is not drawn with matplotlib for all of them; take landscape.views.compare"
        )
    if spec.observable == RISE and kinds[0] != "surface":
        spec = replace(spec, uncertainty=True)  # over a surface it is two more surfaces, which only hide it
    if spec.lock:
        shared = share_scale(items, spec.observable, spec.log, zmin=spec.zmin, zmax=spec.zmax)
        spec = replace(spec, log=shared.log, zmin=shared.low, zmax=shared.high)
    panels = [_flat(prepare(item.surface, spec)) for item in items]
    shares_bar = spec.lock and spec.colour_bar and all(kind in WITH_BAR for kind in kinds)
    own = replace(spec, colour_bar=spec.colour_bar and not shares_bar)

    def draw_panel(item: ComparedLandscape, data: FigureData, kind: str) -> Callable[[Any, ComparisonPlotSpec], None]:
        def draw(ax: Any, page_spec: ComparisonPlotSpec) -> None:
            KIND_TABLE[kind].plot(data, ax, replace(page_spec, colour_bar=own.colour_bar))
            ax.set_title(plain_label(item.label), loc="left")

        return draw

    def finish(figure: Any, drawn: Sequence[Any]) -> None:
        curves = [ax for ax, kind in zip(drawn, kinds, strict=True) if kind == "curve"]
        if spec.lock and curves:
            limits = [y_limits(data) for data, kind in zip(panels, kinds, strict=True) if kind == "curve"]
            for ax in curves:
                value_axis(ax, (min(low for low, _ in limits), max(high for _, high in limits)), panels[0].scale.log)
        if shares_bar and kinds[0] == "surface":
            add_height_bar(figure, panels[0], spec, list(drawn))
            _share_heights(drawn)
        elif shares_bar:
            _bar_of_all(figure, panels, drawn, spec)

    draws = [draw_panel(*parts) for parts in zip(items, panels, kinds, strict=True)]
    # Half a column is too narrow for a colour bar beside the panels, and for the titles of a curve and a plane.
    wide = len({kind == "curve" for kind in kinds}) > 1 or (shares_bar and len(items) <= MOST_STACKED)
    stacked = spec.preset == "column" and wide
    return _drawn_on_panels(draws, axes, kinds[0] == "surface", spec, finish, most_columns=1 if stacked else None)


def _flat(data: FigureData) -> FigureData:
    """Of three axes the slice nearest to 0."""
    return slice_at(data, slice_nearest(data)) if len(data.axes) == 3 else data


def _bar_of_all(figure: Any, panels: Sequence[FigureData], drawn: Sequence[Any], spec: ComparisonPlotSpec) -> None:
    """The one colour bar of panels that share a scale."""
    bands = band_mappable(panels[0].scale, spec)
    add_colour_bar(figure, bands, list(drawn), panels[0].scale, observable_title(panels[0].observable))


def _share_heights(drawn: Sequence[Any]) -> None:
    low, high = min(ax.get_zlim()[0] for ax in drawn), max(ax.get_zlim()[1] for ax in drawn)
    for ax in drawn:
        ax.set_zlim(low, high)
        ax.set_zlabel("")


# ----------------------------------------------------------------------------------------------------
# Differences: each landscape less the first, around no difference.


def _differences(items: Sequence[ComparedLandscape], axes: Sequence[Any] | None, spec: ComparisonPlotSpec) -> list[Any]:
    kind = comparison_kind("difference", items, spec.kind)

    def prepared(limit: float | None) -> list[DifferenceData]:
        return [prepare_difference(items[0], item, spec, limit) for item in items[1:]]

    pairs = prepared(spec.zmax)
    if spec.lock and spec.zmax is None and len(pairs) > 1:
        pairs = prepared(max(pair.field.scale.real(pair.field.scale.high) for pair in pairs))
    spec = replace(spec, colour_scale=DIVERGING)

    def draw_pair(pair: DifferenceData) -> Callable[[Any, ComparisonPlotSpec], None]:
        errors = in_errors(pair) if kind in ("topographic", "contour", "slices") else None
        field = _flat(replace(pair.field, difference=errors, unclear=WITHIN))

        def draw(ax: Any, page_spec: ComparisonPlotSpec) -> None:
            KIND_TABLE[kind].plot(field, ax, page_spec)
            if kind == "curve":
                ax.axhline(1.0 if field.scale.log else 0.0, color="#808a97", linewidth=0.8, linestyle=":", zorder=0.9)
            ax.set_title(plain_label(field.name), loc="left")
            for number, (label, own) in enumerate(zip(pair.labels, pair.paths, strict=True)):
                for path in own if spec.path and kind not in ("curve", "surface") else ():
                    mark_end(ax, path, label, look(number), page_spec)

        return draw

    return _drawn_on_panels([draw_pair(pair) for pair in pairs], axes, kind == "surface", spec)


def mark_end(
    ax: Any, path: DrawnPath, label: str, style: SeriesStyle, spec: ComparisonPlotSpec, *, joined: bool = False
) -> None:
    """Mark the last snapshot of a landscape's path in its look, and draw the path if `joined`."""
    colour, places = style.colours["light"], path.places[:2]
    if joined:
        line = {"linewidth": 0.7 * spec.path_width, "linestyle": LINES[style.dash], "marker": ".", "markersize": 3}
        ax.plot(*places, color=colour, label="_path", **line)
    symbol = {"marker": STARS[style.mark(path.number)], "markersize": STAR_SIZE * spec.path_width, "linestyle": ""}
    name = plain_label(f"{label}, {path.end_name}")
    ax.plot(*(place[-1:] for place in places), color=colour, markeredgecolor=HALO, zorder=2.3, label=name, **symbol)


# ----------------------------------------------------------------------------------------------------
# Overlaid: all on one pair of axes, each in a colour and a line style of its own.


def _overlay(items: Sequence[ComparedLandscape], axes: Sequence[Any] | None, spec: ComparisonPlotSpec) -> list[Any]:
    kind = comparison_kind("overlay", items, spec.kind)
    data = prepare_overlay(items, spec)
    named = list(enumerate(zip(data.labels, data.fields, strict=True)))

    def curves(ax: Any, spec: ComparisonPlotSpec) -> None:
        limits = [y_limits(field) for field in data.fields]
        ends = (min(low for low, _ in limits), max(high for _, high in limits))
        low = 10.0 ** ends[0] if data.frame.scale.log else -np.inf
        for number, (label, field) in named:
            style, x = look(number), field.axes[0].coordinates
            shown = np.where(np.isfinite(field.drawn), field.values, np.nan)
            if field.shape_error is not None:
                edges = (np.maximum(shown - 2 * field.shape_error, low), shown + 2 * field.shape_error)
                ax.fill_between(x, *edges, color=style.colours["light"], alpha=0.16, linewidth=0)
            ax.plot(x, shown, color=style.colours["light"], linestyle=LINES[style.dash], label=plain_label(label))
            for path in field.paths:
                height = np.array([field.scale.real(float(drawn)) for drawn in path.height])
                if np.isfinite(height[-1]):
                    mark_end(ax, replace(path, places=(path.places[0], height)), label, style, spec)
        value_axis(ax, ends, data.frame.scale.log)
        ax.set_ylabel(observable_title(data.frame.observable))
        name_axes(ax, data.frame.axes[0].title)

    def lines(ax: Any, spec: ComparisonPlotSpec) -> None:
        labels = Labels(ax)
        for number, (label, field) in named:
            style = look(number)
            colour, dash = style.colours["light"], LINES[style.dash]
            x, y, drawn = contour_field(field, spec)
            values = np.ma.masked_invalid(drawn)
            hatch_missing(ax, field.states, field.axes[0].coordinates, field.axes[1].coordinates)
            if values.count():
                shape = {"colors": colour, "linestyles": [dash], "linewidths": 0.8 * spec.path_width}
                drawn_lines = ax.contour(x, y, values, levels=list(field.scale.ticks), **shape)
                labels.lines.append(LabelledLines(drawn_lines, field.scale.texts, (colour,) * len(field.scale.texts)))
            ax.plot([], [], color=colour, linestyle=dash, linewidth=spec.path_width, label=plain_label(label))
            for path in field.paths:
                mark_end(ax, path, label, style, spec, joined=True)
        mark_origin(ax, data.frame, 0.0, 0.0)
        set_plane(ax, data.frame)

    def surfaces(ax: Any, spec: ComparisonPlotSpec) -> None:
        ax.computed_zorder = False
        for number, (label, field) in named:
            x, y = np.meshgrid(*(axis.coordinates for axis in field.axes))
            colour = look(number).colours["light"]
            ax.plot_surface(x, y, field.drawn, color=colour, alpha=0.6 * spec.opacity, linewidth=0, axlim_clip=True)
            ax.plot([], [], [], color=colour, linewidth=4, label=plain_label(label))
        set_scene(ax, data.frame, show_name=True)

    draw = {"curve": curves, "contour": lines, "surface": surfaces}[kind]
    return _drawn_on_panels([draw], axes, kind == "surface", spec)
