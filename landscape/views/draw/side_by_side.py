"""Several figures as one, side by side: each keeps its size in pixels, its title, legend, colour bar and caption."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import plotly.graph_objects as go

from landscape.views.draw.layout import legend_rows

AXIS = re.compile(r"([xy])(?:axis)?(\d*)")
MOST_COLUMNS = 3
# Plotly draws all scenes of a picture on one canvas. After a scene with anything translucent in it, its depths are not
# cleared, and hide parts of the next scene, unless the canvas changes its size in between.
APART_PX = 4  # by which two scenes differ that are drawn one after the other
# A template reaches the first legend only. Groups would stand apart, each in a column of its own.
LEGEND = {"font": {"size": 11}, "bgcolor": "rgba(0,0,0,0)", "traceorder": "normal"}
ROW_PX, UPRIGHT_ROW_PX = 22, 20  # of a legend


@dataclass(frozen=True)
class Place:
    """Where one figure lies in the whole, in pixels from its lower left corner, and how its parts are renumbered.

    `left` and `bottom` are the corner of its plot area and `width` and `height` the size of that. `axes` and `scenes`
    are how many of each the figures before it have.
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
        """A place from 0 to 1 over the width of the plot area, as one over the width of the whole."""
        return (self.left + share * self.width) / self.whole[0]

    def y(self, share: float) -> float:
        """The same over the height."""
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
    """One figure of several, in rows from the left, of as many columns as look about square, at most three.

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
    for number, figure in enumerate(figures):
        row, column = divmod(number, per_row)
        top, left = whole[1] - sum(heights[:row]), float(sum(widths[:column]))
        place = _place(figure, number, left, top, whole, axes, scenes)
        plain = figure.to_plotly_json()
        traces += [_moved_trace(trace, place) for trace in plain["data"]]
        _add_layout(layout, plain["layout"], place)
        axes += sum(re.fullmatch(r"xaxis\d*", key) is not None for key in plain["layout"])
        scenes += sum(re.fullmatch(r"scene\d*", key) is not None for key in plain["layout"])
    _tell_scenes_apart(layout, whole)
    first = figures[0].layout
    layout |= {"template": first.template, "width": whole[0], "height": whole[1], "hovermode": "closest"}
    layout |= {"margin": {"l": 0, "r": 0, "t": 0, "b": 0, "autoexpand": False}, "modebar": first.modebar}
    layout["meta"] = {"caption": " ".join((figure.layout.meta or {}).get("caption", "") for figure in figures).strip()}
    return go.Figure(traces, layout)


def _tell_scenes_apart(layout: dict[str, Any], whole: tuple[float, float]) -> None:
    """Cut a few pixels off both sides of scenes until none has the size of the one drawn before it.

    The first one is drawn after the last, too. Only the width changes, by which a scene is cropped and not scaled.
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
    """A copy whose legend stands upright where it has more than a row, with room for it above the caption.

    Plotly breaks the rows of a legend only at the width of the whole.
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
) -> Place:
    margin, width, height = figure.layout.margin, figure.layout.width, figure.layout.height
    inner = (width - margin.l - margin.r, height - margin.t - margin.b)
    return Place(number, left + margin.l, top - margin.t - inner[1], inner[0], inner[1], whole, axes, scenes)


def _numbered(word: str, number: int) -> str:
    return f"{word}{number if number > 1 else ''}"


def _moved_trace(trace: dict[str, Any], place: Place) -> dict[str, Any]:
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


def _moved_part(part: dict[str, Any], place: Place) -> dict[str, Any]:
    """A legend or colour bar that is placed over the plot area of its figure."""
    moved = {**part, "x": place.x(part.get("x", 1.02)), "y": place.y(part.get("y", 0.5))}
    if part.get("lenmode", "fraction") == "fraction" and "len" in part:
        moved["len"] = part["len"] * place.height / place.whole[1]
    return moved


def _add_layout(layout: dict[str, Any], own: dict[str, Any], place: Place) -> None:
    """Add what the layout of one figure places to `layout`."""
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


def _moved_axis(axis: dict[str, Any], key: str, place: Place) -> dict[str, Any]:
    domain, to = axis.get("domain", (0, 1)), place.x if key.startswith("x") else place.y
    moved = {**axis, "domain": [min(max(to(at), 0.0), 1.0) for at in domain], "automargin": False}
    moved["anchor"] = place.axis(axis.get("anchor", ("y" if key[0] == "x" else "x") + key[5:]))
    return moved | {name: place.axis(axis[name]) for name in ("matches", "scaleanchor", "overlaying") if name in axis}


def _moved_mark(mark: dict[str, Any], place: Place, keys: Sequence[str]) -> dict[str, Any]:
    """An annotation or a shape: by paper where it was so, else by the renumbered axes."""
    moved = dict(mark)
    for letter, to in (("x", place.x), ("y", place.y)):
        reference = mark.get(f"{letter}ref", letter)
        if reference == "paper":
            moved |= {key: to(mark[key]) for key in keys if key.startswith(letter) and key in mark}
        moved[f"{letter}ref"] = reference if reference == "paper" else place.axis(reference)
    return moved


def _title(own: dict[str, Any], place: Place) -> list[dict[str, Any]]:
    """The title of one figure, as an annotation over its plot area."""
    words = (own.get("title") or {}).get("text")
    if not words:
        return []
    spot = {"xref": "paper", "yref": "paper", "x": place.x(0.5), "y": place.y(1.0), "yshift": 10}
    return [{"text": words, **spot, "xanchor": "center", "yanchor": "bottom", "showarrow": False, "font": {"size": 16}}]
