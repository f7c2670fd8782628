"""`compare`: several landscapes as figures, over one another, beside one another, or as their differences."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import plotly.graph_objects as go

from landscape.core.errors import JobError, nearest, shown
from landscape.views.draw.difference import draw_difference
from landscape.views.draw.figure import choose_kind, figure
from landscape.views.draw.kinds import KINDS
from landscape.views.draw.layout import Style, sentence
from landscape.views.draw.overlay_contour import draw_contour_overlay
from landscape.views.draw.overlay_curve import draw_curve_overlay
from landscape.views.draw.overlay_surface import draw_surface_overlay
from landscape.views.draw.side_by_side import side_by_side
from landscape.views.draw.style import check_scale
from landscape.views.draw.theme import TEMPLATES
from landscape.views.prepare.comparison import Compared, Given, check_mode, compared, contrasts
from landscape.views.prepare.comparison_overlay import prepare_overlay, share_scale
from landscape.views.prepare.difference import DifferenceData, prepare_difference
from landscape.views.prepare.words import capitalised, file_name

# By mode and number of axes, the default first.
COMPARISON_KINDS: dict[str, dict[int, tuple[str, ...]]] = {
    "overlay": {1: ("curve",), 2: ("contour", "surface")},
    "difference": {1: ("curve",), 2: ("topographic", "contour", "surface"), 3: ("slices",)},
    "tiled": {axes: tuple(kind for kind in kinds if kind != "barcode") for axes, kinds in KINDS.items()},
}
OPACITY = 0.8


@dataclass(frozen=True)
class ComparedFigure:
    """One figure of a comparison; `items` are the numbers of the landscapes in it, `file` the name for its files."""

    figure: go.Figure
    title: str
    caption: str
    file: str
    items: tuple[int, ...]


@dataclass(frozen=True)
class Options:
    """The options of a comparison that are the same in all its modes."""

    observable: str
    log: bool | None
    levels: int | None
    exact_levels: bool
    zmin: float | None
    zmax: float | None
    lock: bool
    path: bool
    uncertainty: bool
    opacity: float
    max_points: int | None
    style: Style


def compare(landscapes: Sequence[Given], mode: str = "overlay", kind: str | None = None, **options: Any) -> go.Figure:
    """Compare landscapes in one figure; several figures stand side by side in it.

    Args:
        landscapes: surfaces, or pairs of a label and a surface, of any runs.
        mode: "overlay", all over one another; "difference", each less the first, or "tiled", one beside the other.
        kind: as for `figure`, where it fits the mode; default: what suits it.
        options: those of `compare_figures`.

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
    return side_by_side([one.figure for one in compare_figures(landscapes, mode, kind, **options)])


def compare_figures(
    landscapes: Sequence[Given],
    mode: str = "overlay",
    kind: str | None = None,
    *,
    observable: str = "loss",
    log: bool | None = None,
    levels: int | None = None,
    exact_levels: bool = False,
    zmin: float | None = None,
    zmax: float | None = None,
    lock: bool = True,
    colour_scale: str | None = None,
    path: bool = True,
    uncertainty: bool = False,
    opacity: float = OPACITY,
    theme: str = "light",
    title: bool = True,
    caption: bool = True,
    animate: bool = False,
    max_points: int | None = None,
    **unknown: Any,
) -> list[ComparedFigure]:
    """The figures of a comparison: one of an overlay, one per landscape where tiled, one per difference.

    Args:
        landscapes: surfaces, or pairs of a label and a surface.
        mode: "overlay", "difference" or "tiled".
        kind: default: what suits the mode and the number of axes, see `COMPARISON_KINDS`.
        log: a logarithmic scale; a difference is then a ratio. Default: as for `figure`; differences are linear.
        levels, exact_levels: as for `figure`.
        zmin, zmax: ends of the range, in real values; of a difference, zmax is the end on either side.
        lock: give all the same colour and height scale and the same contour lines.
        colour_scale: of tiled figures; overlaid ones have a colour each, differences a scale of two sides.
        uncertainty: the layer of uncertainty of tiled figures; a difference always shows where it is within its error.
        opacity: of overlaid surfaces, from 0 to 1.
        animate: add buttons that let the path grow, where tiled.
        max_points: points per axis to draw at most.

    Raises:
        JobError: the landscapes cannot be compared so; or an unknown mode, kind, observable or option.
    """
    if unknown:
        wrong = next(iter(unknown))
        raise JobError(
            f"compare: unknown option {shown(wrong)}; {nearest(wrong, compare_figures.__kwdefaults__ or ())}"
        )
    if theme not in TEMPLATES:
        raise JobError(f"theme: unknown {shown(theme)}; {nearest(str(theme), TEMPLATES)}")
    if isinstance(opacity, bool) or not isinstance(opacity, (int, float)) or not 0 < opacity <= 1:
        raise JobError(f"opacity: must be above 0 and at most 1, not {shown(opacity)}")
    items = compared(landscapes)
    check_mode(mode, items, observable)
    style = Style(check_scale(colour_scale), theme, title=title, caption=caption, animate=animate)
    asked = Options(
        observable, log, levels, exact_levels, zmin, zmax, lock, path, uncertainty, opacity, max_points, style
    )
    draw = {"overlay": _overlay, "difference": _differences, "tiled": _tiles}[mode]
    return draw(items, kind, asked)


def comparison_kind(mode: str, items: Sequence[Compared], kind: str | None) -> str:
    """The given kind, or the default for the mode and the number of axes.

    Raises:
        JobError: the kind does not fit them.
    """
    axes = len(items[0].surface.axes)
    fitting = COMPARISON_KINDS[mode][axes]
    if kind is not None and kind not in fitting:
        choose_kind(
            replace(items[0].surface, name=items[0].label), kind
        )  # refuses an unknown kind, and one for another number of axes
        raise JobError(f"kind: {shown(kind)} does not fit the mode {shown(mode)}; known: {', '.join(fitting)}")
    return kind or fitting[0]


def _overlay(items: Sequence[Compared], kind: str | None, asked: Options) -> list[ComparedFigure]:
    chosen = comparison_kind("overlay", items, kind)
    data = prepare_overlay(
        items,
        asked.observable,
        log=asked.log,
        levels=asked.levels,
        exact_levels=asked.exact_levels,
        zmin=asked.zmin,
        zmax=asked.zmax,
        lock=asked.lock,
        path=asked.path,
        max_points=asked.max_points,
    )
    if chosen == "surface":
        drawn = draw_surface_overlay(data, asked.style, asked.opacity)
    else:
        drawn = {"curve": draw_curve_overlay, "contour": draw_contour_overlay}[chosen](data, asked.style)
    name = _file("-and-".join(data.labels), "overlay", chosen, asked)
    return [ComparedFigure(drawn, data.frame.title, sentence(data.frame.caption), name, tuple(range(len(items))))]


def _differences(items: Sequence[Compared], kind: str | None, asked: Options) -> list[ComparedFigure]:
    chosen = comparison_kind("difference", items, kind)

    def prepared(limit: float | None) -> list[DifferenceData]:
        options = {"levels": asked.levels, "max_points": asked.max_points}
        return [
            prepare_difference(items[0], item, asked.observable, log=bool(asked.log), limit=limit, **options)
            for item in items[1:]
        ]

    pairs = prepared(asked.zmax)
    if asked.lock and asked.zmax is None and len(pairs) > 1:
        pairs = prepared(max(data.field.scale.real(data.field.scale.high) for data in pairs))
    figures = []
    for number, data in enumerate(pairs, 1):
        drawn = draw_difference(data if asked.path else replace(data, paths=((), ())), chosen, asked.style)
        name = _file(f"{data.labels[1]}-less-{data.labels[0]}", "difference", chosen, asked)
        figures.append(ComparedFigure(drawn, data.field.title, sentence(data.field.caption), name, (0, number)))
    return figures


def _tiles(items: Sequence[Compared], kind: str | None, asked: Options) -> list[ComparedFigure]:
    """One figure each, whose caption says what sets them apart, as each may be read by itself.

    With one scale, the ends are given to each, from which all choose the same contour lines.
    """
    low, high, log = asked.zmin, asked.zmax, asked.log
    if asked.lock:
        shared = share_scale(items, asked.observable, log, zmin=low, zmax=high)
        low, high, log = shared.low, shared.high, shared.log
    style, figures, differ = asked.style, [], tuple(capitalised(each) for each in contrasts(items))
    for number, item in enumerate(items):
        named = replace(item.surface, name=item.label)
        chosen = choose_kind(named, kind)
        drawn = figure(
            named,
            chosen,
            observable=asked.observable,
            log=log,
            levels=asked.levels,
            exact_levels=asked.exact_levels,
            uncertainty=asked.uncertainty,
            zmin=low,
            zmax=high,
            colour_scale=style.colour_scale,
            path=asked.path,
            animate=style.animate,
            theme=style.theme,
            title=style.title,
            caption=style.caption,
            max_points=asked.max_points,
            notes=differ,
        )
        words = drawn.layout.meta["caption"]
        name = _file(item.label, "", chosen, asked)
        figures.append(ComparedFigure(drawn, item.label, words, name, (number,)))
    if asked.lock:
        _share_heights([one.figure for one in figures])
    return figures


def _share_heights(figures: Sequence[go.Figure]) -> None:
    """Give panels of curves one range per row: theirs also depends on the bands and paths of each."""
    curves = [drawn for drawn in figures if "curve" in _roles(drawn)]
    for axis in ("yaxis", "yaxis2"):
        ranges = [drawn.layout[axis].range for drawn in curves if axis in drawn.layout and drawn.layout[axis].range]
        if len(ranges) > 1:
            common = [min(low for low, _ in ranges), max(high for _, high in ranges)]
            for drawn in curves:
                if axis in drawn.layout:
                    drawn.layout[axis].range = common


def _roles(drawn: go.Figure) -> set[str]:
    """'curve' where the values are drawn as lines."""
    return {"curve" for trace in drawn.data if trace.type == "scatter" and (trace.meta or {}).get("role") == "field"}


def _file(label: str, mode: str, kind: str, asked: Options) -> str:
    shown_observable = "" if asked.observable == "loss" else asked.observable
    return file_name(label, mode, kind, shown_observable, {None: "", True: "log", False: "linear"}[asked.log])
