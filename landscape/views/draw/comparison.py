"""`compare`: several landscapes as figures: overlaid, side by side, or as their differences."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import plotly.graph_objects as go

from landscape.core.errors import JobError, quoted
from landscape.core.text import file_name
from landscape.surface.derived import RISE
from landscape.views.draw.curve import draw_curve
from landscape.views.draw.figure import draw, show_part
from landscape.views.draw.labels import lay_labels
from landscape.views.draw.layout import legend_rows, sentence, with_levels
from landscape.views.draw.overlay import (
    add_marks,
    draw_contour_overlay,
    draw_curve_overlay,
    draw_surface_overlay,
    flat_marks,
    space_end,
)
from landscape.views.draw.paths import LIFT
from landscape.views.draw.plane import bar_length, draw_plane, filled, signed_lines
from landscape.views.draw.space import draw_slices, draw_surface
from landscape.views.draw.style import SeriesStyle, look
from landscape.views.figure_spec import (
    COMPARISON_KINDS,
    DIVERGING,
    MODE_TABLE,
    SCALE_NAMES,
    ComparisonSpec,
    FigureSpec,
    choose_kind,
    documented,
)
from landscape.views.prepare.comparison import (
    ComparedLandscape,
    Given,
    check_mode,
    compared,
    contrasts,
    prepare_overlay,
    share_scale,
    with_rise,
)
from landscape.views.prepare.difference import DifferenceData, prepare_difference
from landscape.views.prepare.geometry import bilinear
from landscape.views.prepare.paths import DrawnPath
from landscape.views.prepare.uncertainty import CLEAR
from landscape.views.prepare.words import capitalised

WITHIN = "within 2 standard errors of no difference"


def draw_difference(data: DifferenceData, kind: str, spec: FigureSpec) -> go.Figure:
    """The difference as a curve, on a plane, as heights, or in slices.

    Args:
        kind: "curve", "topographic", "contour", "surface" or "slices".
    """
    spec = replace(spec, colour_scale=DIVERGING)
    errors = in_errors(data) if kind in ("topographic", "contour", "slices") else None
    field = replace(data.field, difference=errors, unclear=WITHIN)
    if kind == "slices":
        return draw_slices(field, spec)
    if kind == "curve":
        return add_marks(_with_zero(draw_curve(field, spec), data), _marks_on_curve(data, spec))
    if kind == "surface":
        return add_marks(draw_surface(field, spec), _marks_on_surface(data, spec))
    values = signed_lines(field, spec) if kind == "contour" else [filled(field, spec, bar_length(field))]
    marks = [mark for item in _paths(data) for mark in flat_marks(*item, spec, joined=False)]
    return add_marks(draw_plane(with_levels(field), values, spec), marks)


def _paths(data: DifferenceData) -> list[tuple[DrawnPath, str, int, SeriesStyle]]:
    """The paths of each landscape, with its label, its number and its look."""
    numbered = enumerate(zip(data.labels, data.paths, strict=True))
    return [(path, label, number, look(number)) for number, (label, own) in numbered for path in own]


def _marks_on_curve(data: DifferenceData, spec: FigureSpec) -> list[go.Scatter]:
    """The last snapshots on the curve, where it reaches them."""
    x, y = data.field.axes[0].coordinates, data.field.values
    marks: list[go.Scatter] = []
    for path, label, number, own in _paths(data):
        height = np.interp(path.places[0], x, y, left=np.nan, right=np.nan)
        placed = replace(path, places=(path.places[0], height))
        marks += flat_marks(placed, label, number, own, spec, joined=False) if np.isfinite(height[-1]) else []
    return marks


def _marks_on_surface(data: DifferenceData, spec: FigureSpec) -> list[go.Scatter3d]:
    """The last snapshots on the surface of the differences, where it reaches them."""
    field = data.field
    x, y = (axis.coordinates for axis in field.axes)
    lift = LIFT * (field.scale.high - field.scale.low)
    marks: list[go.Scatter3d] = []
    for path, label, number, own in _paths(data):
        height = bilinear(x, y, field.drawn, path.places[0][-1:], path.places[1][-1:])
        marks += space_end(path, label, number, own, spec, float(height[0]) + lift)
    return marks


def in_errors(data: DifferenceData) -> np.ndarray | None:
    """Each difference in units of two standard errors; None if the errors are not known."""
    field = data.field
    if field.error is None or not data.within.any():
        return None
    none = 1.0 if field.scale.log else 0.0
    with np.errstate(invalid="ignore", divide="ignore"):
        ratio = np.abs(field.values - none) / (2 * field.error)
    ratio = np.where(field.values == none, 0.0, ratio)
    known = np.minimum(np.nan_to_num(ratio, nan=CLEAR, posinf=CLEAR), CLEAR)
    return np.where(np.isfinite(field.values), known, np.nan)


def _with_zero(figure: go.Figure, data: DifferenceData) -> go.Figure:
    """A line at no difference, behind the curve."""
    none = 1.0 if data.field.scale.log else 0.0
    line = {"color": "#808a97", "width": 1.2, "dash": "dot"}
    figure.add_shape(type="line", xref="paper", x0=0, x1=1, yref="y", y0=none, y1=none, line=line, layer="below")
    return figure


# ----------------------------------------------------------------------------------------------------
# Several figures side by side in one: each keeps its size in pixels, its title, legend, colour bar and caption.

AXIS = re.compile(r"([xy])(?:axis)?(\d*)")
MOST_COLUMNS = 3
# Plotly draws all scenes of a picture on one canvas. After a translucent scene it does not clear the depth buffer,
# which then hides parts of the next scene, unless the canvas changes its size in between.
APART_PX = 4  # the difference in size of two scenes that are drawn one after the other
# A template styles the first legend only. Groups would get a column each.
LEGEND = {"font": {"size": 11}, "bgcolor": "rgba(0,0,0,0)", "traceorder": "normal"}
ROW_PX, UPRIGHT_ROW_PX = 22, 20  # of a legend


@dataclass(frozen=True)
class FigurePlace:
    """The place of one figure in the whole, in pixels from the lower left corner, and the renumbering of its parts.

    `left` and `bottom` are the corner of its plot area, `width` and `height` its size. `axes` and `scenes` count those
    of the figures before it.
    """

    number: int
    left: float
    bottom: float
    width: float
    height: float
    whole: tuple[float, float]
    axes: int
    scenes: int

    def x(self, share: float) -> float:
        """A place from 0 to 1 across the plot area as a place across the whole."""
        return (self.left + share * self.width) / self.whole[0]

    def y(self, share: float) -> float:
        """The same for the height."""
        return (self.bottom + share * self.height) / self.whole[1]

    def axis(self, name: str) -> str:
        """The name of an axis of this figure in the whole: 'x2' may become 'x5'; other words stay as they are."""
        match = AXIS.fullmatch(name)
        if match is None:
            return name
        number = int(match[2] or 1) + self.axes
        return f"{match[1]}{number if number > 1 else ''}"

    def scene(self, name: str) -> str:
        """The name of a scene of this figure in the whole."""
        return _numbered("scene", int(name.removeprefix("scene") or 1) + self.scenes)

    def legend(self) -> str:
        """The name of this figure's legend in the whole."""
        return _numbered("legend", self.number + 1)


def side_by_side(figures: Sequence[go.Figure], columns: int | None = None) -> go.Figure:
    """One figure from several, in rows from the left; by default in at most three columns, about square.

    Frames, buttons and sliders are left out: they would move all figures at once.

    Args:
        figures: figures with a width, a height and margins in pixels; all in the same theme.
        columns: figures per row.
    """
    if len(figures) == 1:
        return figures[0]
    figures = [_with_short_legend(figure) for figure in figures]
    per_row = columns or min(MOST_COLUMNS, math.ceil(math.sqrt(len(figures))))
    rows = [figures[k : k + per_row] for k in range(0, len(figures), per_row)]
    heights = [max(figure.layout.height for figure in row) for row in rows]
    widths = [max(row[k].layout.width for row in rows if k < len(row)) for k in range(len(rows[0]))]
    whole = (float(sum(widths)), float(sum(heights)))
    layout: dict[str, Any] = {"annotations": [], "shapes": []}
    traces: list[Any] = []
    axes = scenes = 0
    for number, panel in enumerate(figures):
        row, column = divmod(number, per_row)
        top, left = whole[1] - sum(heights[:row]), float(sum(widths[:column]))
        place = _place(panel, number, left, top, whole, axes, scenes)
        plain = panel.to_plotly_json()
        traces += [_moved_trace(trace, place) for trace in plain["data"]]
        _add_layout(layout, plain["layout"], place)
        axes += sum(re.fullmatch(r"xaxis\d*", key) is not None for key in plain["layout"])
        scenes += sum(re.fullmatch(r"scene\d*", key) is not None for key in plain["layout"])
    _tell_scenes_apart(layout, whole)
    first = figures[0].layout
    layout |= {"template": first.template, "width": whole[0], "height": whole[1], "hovermode": "closest"}
    layout |= {"margin": {"l": 0, "r": 0, "t": 0, "b": 0, "autoexpand": False}, "modebar": first.modebar}
    layout["meta"] = {"caption": " ".join((panel.layout.meta or {}).get("caption", "") for panel in figures).strip()}
    return go.Figure(traces, layout)


def _tell_scenes_apart(layout: dict[str, Any], whole: tuple[float, float]) -> None:
    """Cut a few pixels off both sides of scenes until none has the size of the one drawn before it.

    The first one is also drawn after the last. Only the width changes: it crops a scene without scaling it.
    """
    names = [key for key in layout if re.fullmatch(r"scene\d*", key)]
    sizes: list[tuple[float, float]] = []
    for name in names:
        across, up = layout[name]["domain"]["x"], layout[name]["domain"]["y"]
        height = (up[1] - up[0]) * whole[1]
        before = [*sizes[-1:], *(sizes[:1] if name == names[-1] else ())]
        cut = 0.0
        while any(
            math.dist(((across[1] - across[0]) * whole[0] - cut, height), size) < APART_PX - 0.5 for size in before
        ):
            cut += APART_PX
        sizes.append(((across[1] - across[0]) * whole[0] - cut, height))
        side = cut / 2 / whole[0]
        layout[name]["domain"] = {"x": [across[0] + side, across[1] - side], "y": up}


def _with_short_legend(figure: go.Figure) -> go.Figure:
    """A copy with a vertical legend, and room for it above the caption, if the legend has more than one row.

    Plotly wraps the rows of a legend only at the width of the whole.
    """
    names = [trace.name for trace in figure.data if trace.name and trace.showlegend is not False]
    rows = legend_rows(names, figure.layout.width - figure.layout.margin.l - figure.layout.margin.r)
    changed = go.Figure(figure)
    if rows <= 1 or changed.layout.showlegend is False:
        return changed
    extra = max(0, len(names) * UPRIGHT_ROW_PX - rows * ROW_PX)
    changed.update_layout(legend_orientation="v", height=changed.layout.height + extra)
    changed.layout.margin.b += extra
    for annotation in changed.layout.annotations:
        if annotation.name == "caption":
            annotation.yshift -= extra
    return changed


def _place(
    figure: go.Figure, number: int, left: float, top: float, whole: tuple[float, float], axes: int, scenes: int
) -> FigurePlace:
    margin, width, height = figure.layout.margin, figure.layout.width, figure.layout.height
    inner = (width - margin.l - margin.r, height - margin.t - margin.b)
    return FigurePlace(number, left + margin.l, top - margin.t - inner[1], inner[0], inner[1], whole, axes, scenes)


def _numbered(word: str, number: int) -> str:
    return f"{word}{number if number > 1 else ''}"


def _moved_trace(trace: dict[str, Any], place: FigurePlace) -> dict[str, Any]:
    moved = {**trace, "legend": place.legend()}
    if moved.get("legendgroup"):
        moved["legendgroup"] = f"{place.number}: {moved['legendgroup']}"
    if trace["type"] in ("scatter3d", "surface", "mesh3d", "volume", "isosurface"):
        moved["scene"] = place.scene(trace.get("scene", "scene"))
    else:
        moved |= {key: place.axis(trace.get(key, key[0])) for key in ("xaxis", "yaxis")}
    if "colorbar" in moved:
        moved["colorbar"] = _moved_part(moved["colorbar"], place)
    marker = moved.get("marker")
    if isinstance(marker, dict) and "colorbar" in marker:
        moved["marker"] = {**marker, "colorbar": _moved_part(marker["colorbar"], place)}
    return moved


def _moved_part(part: dict[str, Any], place: FigurePlace) -> dict[str, Any]:
    """A legend or colour bar with its place moved to the whole."""
    moved = {**part, "x": place.x(part.get("x", 1.02)), "y": place.y(part.get("y", 0.5))}
    if part.get("lenmode", "fraction") == "fraction" and "len" in part:
        moved["len"] = part["len"] * place.height / place.whole[1]
    return moved


def _add_layout(layout: dict[str, Any], own: dict[str, Any], place: FigurePlace) -> None:
    """Add the placed parts of one figure's layout to `layout`."""
    for key, value in own.items():
        if re.fullmatch(r"[xy]axis\d*", key):
            name = place.axis(key)
            layout[f"{name[0]}axis{name[1:]}"] = _moved_axis(value, key, place)
        elif re.fullmatch(r"scene\d*", key):
            domain = value.get("domain", {})
            across, up = domain.get("x", (0, 1)), domain.get("y", (0, 1))
            spot = {"x": [place.x(at) for at in across], "y": [place.y(at) for at in up]}
            layout[place.scene(key)] = {**value, "domain": spot}
    if "legend" in own:
        layout[place.legend()] = _moved_part({"x": 0, "y": 1, **own["legend"], **LEGEND}, place)
    if own.get("showlegend") is not None:
        layout["showlegend"] = layout.get("showlegend", False) or own["showlegend"]
    layout["annotations"] += [_moved_mark(mark, place, ("x", "y")) for mark in own.get("annotations", ())]
    layout["annotations"] += _title(own, place)
    layout["shapes"] += [_moved_mark(shape, place, ("x0", "x1", "y0", "y1")) for shape in own.get("shapes", ())]


def _moved_axis(axis: dict[str, Any], key: str, place: FigurePlace) -> dict[str, Any]:
    domain, to = axis.get("domain", (0, 1)), place.x if key.startswith("x") else place.y
    moved = {**axis, "domain": [min(max(to(at), 0.0), 1.0) for at in domain], "automargin": False}
    moved["anchor"] = place.axis(axis.get("anchor", ("y" if key[0] == "x" else "x") + key[5:]))
    return moved | {name: place.axis(axis[name]) for name in ("matches", "scaleanchor", "overlaying") if name in axis}


def _moved_mark(mark: dict[str, Any], place: FigurePlace, keys: Sequence[str]) -> dict[str, Any]:
    """An annotation or a shape, relative to the paper or to the renumbered axes."""
    moved = dict(mark)
    for letter, to in (("x", place.x), ("y", place.y)):
        reference = mark.get(f"{letter}ref", letter)
        if reference == "paper":
            moved |= {key: to(mark[key]) for key in keys if key.startswith(letter) and key in mark}
        moved[f"{letter}ref"] = reference if reference == "paper" else place.axis(reference)
    return moved


def _title(own: dict[str, Any], place: FigurePlace) -> list[dict[str, Any]]:
    """The title of one figure, as an annotation over its plot area."""
    words = (own.get("title") or {}).get("text")
    if not words:
        return []
    spot = {"xref": "paper", "yref": "paper", "x": place.x(0.5), "y": place.y(1.0), "yshift": 10}
    return [{"text": words, **spot, "xanchor": "center", "yanchor": "bottom", "showarrow": False, "font": {"size": 16}}]


# ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ComparedFigure:
    """One figure of a comparison; `items` are the numbers of the landscapes in it, `file` the name for its files.

    `ends` are those of the range drawn, in real values; None for a tile with a range of its own.
    """

    figure: go.Figure
    title: str
    caption: str
    file: str
    items: tuple[int, ...]
    ends: tuple[float, float] | None = None


@documented(ComparisonSpec)
def compare(landscapes: Sequence[Given], mode: str = "overlay", kind: str | None = None, **options: Any) -> go.Figure:
    """Compare landscapes in one figure; several figures stand side by side in it.

    Args:
        landscapes: surfaces, or pairs of a label and a surface, of any runs.
        mode: "overlay", all over one another; "difference", each less the first, or "tiled", one beside the other.
        kind: as for `figure`, where it fits the mode; default: what suits it.
        OPTIONS

    The difference is a ratio where `log` is True, and linear by default; its zmax is the end on either side, and it
    always shows where it is within its error. Only tiled figures have a colour scale and an animation of their own.

    Raises:
        JobError: the landscapes cannot be compared so; or an unknown mode, kind, observable or option.

    Example:
        >>> import numpy as np
        >>> from landscape import Axis, Surface
        >>> axis = Axis("alpha", np.linspace(-1, 1, 5))
        >>> line = Surface("line", (axis,), {"loss": axis.coordinates**2}, status=np.ones(5, np.uint8))
        >>> drawn = compare([("one", line), ("two", line)], "difference")
        >>> drawn.layout.title.text
        'Loss of two less one'
    """
    return side_by_side([compared.figure for compared in compare_figures(landscapes, mode, kind, **options)])


@documented(ComparisonSpec)
def compare_figures(
    landscapes: Sequence[Given], mode: str = "overlay", kind: str | None = None, **options: Any
) -> list[ComparedFigure]:
    """The figures of a comparison: one of an overlay, one per landscape where tiled, one per difference.

    Args:
        landscapes: surfaces, or pairs of a label and a surface.
        mode: "overlay", "difference" or "tiled".
        kind: default: what suits the mode and the number of axes, see `landscape.views.COMPARISON_KINDS`.
        OPTIONS

    Raises:
        JobError: the landscapes cannot be compared so; or an unknown mode, kind, observable or option.
    """
    return draw_comparison(landscapes, mode, ComparisonSpec.of(kind, options))


def draw_comparison(landscapes: Sequence[Given], mode: str, spec: ComparisonSpec) -> list[ComparedFigure]:
    """The same for a `ComparisonSpec`."""
    items = compared(landscapes)
    check_mode(mode, items, spec.observable)
    figures = MODE_TABLE[mode].draw(*with_rise(items, spec))
    for one in figures:
        show_part(one.figure, spec)
    return figures


def comparison_kind(mode: str, items: Sequence[ComparedLandscape], kind: str | None) -> str:
    """The given kind, or the default for the mode and the number of axes.

    Raises:
        JobError: the kind does not fit them.
    """
    axes = len(items[0].surface.axes)
    fitting = COMPARISON_KINDS[mode][axes]
    if kind is not None and kind not in fitting:
        choose_kind(
            replace(items[0].surface, name=items[0].label), kind
        )  # raises for an unknown kind, and for one with another number of axes
        raise JobError(f"kind: {quoted(kind)} does not fit the mode {quoted(mode)}; known: {', '.join(fitting)}")
    return kind or fitting[0]


def overlay(items: Sequence[ComparedLandscape], spec: ComparisonSpec) -> list[ComparedFigure]:
    """All of them in one figure."""
    kind = comparison_kind("overlay", items, spec.kind)
    data = prepare_overlay(items, spec)
    if kind == "surface":
        drawn = draw_surface_overlay(data, spec, spec.opacity)
    else:
        drawn = {"curve": draw_curve_overlay, "contour": draw_contour_overlay}[kind](data, spec)
    name = _file("-and-".join(data.labels), "overlay", kind, spec)
    everyone, caption = tuple(range(len(items))), sentence(data.frame.caption)
    return [ComparedFigure(drawn, data.frame.title, caption, name, everyone, data.frame.scale.ends)]


def show_differences(items: Sequence[ComparedLandscape], spec: ComparisonSpec) -> list[ComparedFigure]:
    """A figure per landscape but the first: what it has more or less than that one."""
    kind = comparison_kind("difference", items, spec.kind)

    def prepared(limit: float | None) -> list[DifferenceData]:
        return [prepare_difference(items[0], item, spec, limit) for item in items[1:]]

    pairs = prepared(spec.zmax)
    if spec.lock and spec.zmax is None and len(pairs) > 1:
        pairs = prepared(max(data.field.scale.real(data.field.scale.high) for data in pairs))
    figures = []
    for number, data in enumerate(pairs, 1):
        drawn = draw_difference(data if spec.path else replace(data, paths=((), ())), kind, spec)
        name = _file(f"{data.labels[1]}-less-{data.labels[0]}", "difference", kind, spec)
        caption, ends = sentence(data.field.caption), data.field.scale.ends
        figures.append(ComparedFigure(drawn, data.field.title, caption, name, (0, number), ends))
    return figures


def tile(items: Sequence[ComparedLandscape], spec: ComparisonSpec) -> list[ComparedFigure]:
    """One figure per landscape; each caption names the differences, since a figure may be read alone.

    On a common scale, all get the same ends, and so choose the same contour lines.
    """
    of_each = replace(spec, notes=tuple(map(capitalised, contrasts(items))))
    flat_rise = spec.observable == RISE and spec.rise is not False
    if spec.lock:
        shared = share_scale(items, spec.observable, spec.log, zmin=spec.zmin, zmax=spec.zmax)
        of_each = replace(of_each, zmin=shared.low, zmax=shared.high, log=shared.log)
    low, high = of_each.zmin, of_each.zmax
    ends = (low, high) if spec.lock and low is not None and high is not None else None
    figures = []
    for number, item in enumerate(items):
        named = replace(item.surface, name=item.label)
        kind = choose_kind(named, spec.kind)
        # Over a surface the uncertainty is two more surfaces, which only hide it.
        hatched = flat_rise and kind in ("topographic", "contour", "slices")
        drawn = draw(named, replace(of_each, kind=kind, uncertainty=spec.uncertainty or hatched))
        caption, name = drawn.layout.meta["caption"], _file(item.label, "", kind, spec)
        figures.append(ComparedFigure(drawn, item.label, caption, name, (number,), ends))
    if spec.lock:
        _share_heights([compared.figure for compared in figures])
    return figures


def comparison_name(figures: Sequence[ComparedFigure], mode: str) -> str:
    """The name of a file, without its ending, that shows all figures of a comparison side by side."""
    first, *others = [one.file for one in figures]
    return file_name(first, "and", str(len(others)), "more", mode) if others else first


def _share_heights(figures: Sequence[go.Figure]) -> None:
    """Give panels of curves one range per row; their own ranges also depend on bands and paths."""
    curves = [drawn for drawn in figures if "curve" in _roles(drawn)]
    for axis in ("yaxis", "yaxis2"):
        ranges = [drawn.layout[axis].range for drawn in curves if axis in drawn.layout and drawn.layout[axis].range]
        if len(ranges) > 1:
            common = [min(low for low, _ in ranges), max(high for _, high in ranges)]
            for drawn in curves:
                if axis in drawn.layout:
                    drawn.layout[axis].range = common
                    lay_labels(drawn, drawn.layout.meta["plot"])


def _roles(drawn: go.Figure) -> set[str]:
    """{'curve'} if the values are drawn as lines."""
    return {"curve" for trace in drawn.data if trace.type == "scatter" and (trace.meta or {}).get("role") == "field"}


def _file(label: str, mode: str, kind: str, spec: ComparisonSpec) -> str:
    observable = "" if spec.observable == "loss" else spec.observable
    return file_name(label, mode, kind, observable, SCALE_NAMES[spec.log])
