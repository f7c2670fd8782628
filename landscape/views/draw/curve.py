"""Drawing one axis: a panel per observable, with a band of ± two standard errors.

The loss has the band of its rise over the origin, if known: the error of its shape, not of its height.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import plotly.graph_objects as go

from landscape.core.grid import Floats
from landscape.views.draw.labels import lay_labels
from landscape.views.draw.layout import (
    TICKS_PX,
    axis_title,
    base_layout,
    finish,
    make_frame,
    more_lines,
    pointer_notes,
    pointer_text,
    pointer_values,
    text,
)
from landscape.views.draw.marks import extrema_names, flat_extrema, flat_origin, hatched, origin_names
from landscape.views.draw.paths import flat_paths, legend_names
from landscape.views.draw.style import CURVES, DARK_CURVES, path_look
from landscape.views.figure_spec import FigureSpec
from landscape.views.prepare.figure import FigureData, legend_name, missing_names, missing_states
from landscape.views.prepare.paths import DrawnPath, ends_of
from landscape.views.prepare.scale import nice_ticks
from landscape.views.prepare.uncertainty import NAME
from landscape.views.prepare.words import observable_title

# ----------------------------------------------------------------------------------------------------
# The band of other seeds behind the curve of a line.

FILLS = {"light": "#8a8f98", "dark": "#8a8f98"}


def seed_names(data: FigureData) -> list[str]:
    """The legend entry of the band, where there is one."""
    return [] if data.seeds is None else [NAME]


def seed_band(data: FigureData, spec: FigureSpec, bottom: float, **place: Any) -> list[go.Scatter]:
    """The band as a polygon without an edge; empty if lines of other seeds were not evaluated.

    Args:
        bottom: the lower limit on a logarithmic scale.
        place: the panel, as plotly's `xaxis` and `yaxis`.
    """
    if data.seeds is None:
        return []
    x, floor = data.seeds.at, bottom if data.scale.log else -np.inf
    low, high = np.maximum(data.seeds.low, floor), np.maximum(data.seeds.high, floor)
    return [
        go.Scatter(
            x=[*x, *x[::-1]],
            y=[*high, *low[::-1]],
            name=NAME,
            hoverinfo="skip",
            meta={"role": "seeds", "fills": FILLS},
            fill="toself",
            fillcolor=FILLS[spec.theme],
            opacity=0.24,
            line={"width": 0},
            mode="lines",
            **place,
        )
    ]


# ----------------------------------------------------------------------------------------------------


PLOT_PX, PANEL_PX, GAP_PX = 620, 300, 34


@dataclass(frozen=True)
class CurvePanel:
    """A panel, numbered from the top: the names of its axes, and its part [bottom, top] of the height."""

    number: int
    x: str
    y: str
    bottom: float
    top: float

    @property
    def axes(self) -> dict[str, str]:
        """The options of a plotly trace that place it in this panel."""
        return {"xaxis": self.x, "yaxis": self.y}


def draw_curve(data: FigureData, spec: FigureSpec) -> go.Figure:
    """One panel per prepared observable, above one another on a common axis."""
    observables = (data, *data.beside)
    count = len(observables)
    height = PANEL_PX if count == 1 else PANEL_PX * 0.72 * count + GAP_PX * (count - 1)
    below = TICKS_PX + 17
    names = _legend(observables)
    wider = max(more_lines(_value_title(observable, height / count)) for observable in observables)
    frame = make_frame(data, spec, (PLOT_PX, height), left=76 + wider, right=28, below=below, legend=names)
    places = panels(count, GAP_PX / height)
    layout = base_layout(data, spec, frame) | _x_axes(data, places)
    traces: list[Any] = []
    for panel, observable in zip(places, observables, strict=True):
        limits = y_limits(observable)
        title = _value_title(observable, height / count)
        layout[f"yaxis{panel.y[1:]}"] = _y_axis(observable, limits, panel) | {"title": title}
        first = next(k for k, other in enumerate(observables) if band_name(other) == band_name(observable))
        traces += _panel(observable, panel, limits, spec, band_in_legend=panel.number == first)
    if any(np.isfinite(path.height).any() for path in data.paths):
        paths = [_over_curve(data, path) for path in data.paths]
        traces += [trace.update(places[0].axes) for trace in flat_paths(paths, spec)]
    traces += flat_extrema(data, spec, **places[0].axes)
    figure = finish(data, traces, layout, {"plot": [PLOT_PX, height], "below": below, "equal": False})
    lay_labels(figure, (PLOT_PX, height))
    return figure


def panels(count: int, gap: float) -> list[CurvePanel]:
    """`count` panels of equal height from the top down, `gap` of the whole height apart.

    The lowest one has plotly's first x axis, which is labelled; the others share its range.
    """
    share = (1 - gap * (count - 1)) / count
    tops = [1 - k * (share + gap) for k in range(count)]
    return [
        CurvePanel(k, "x" if k == count - 1 else f"x{k + 2}", f"y{k + 1}" if k else "y", top - share, top)
        for k, top in enumerate(tops)
    ]


def _legend(observables: Sequence[FigureData]) -> list[str]:
    """The legend entries of all panels."""
    first = observables[0]
    names = list(
        dict.fromkeys(band_name(observable) for observable in observables if observable.shape_error is not None)
    )
    names += seed_names(first)
    names += [*legend_names(first.paths), snapshot_name(first)] if first.paths else []
    names += origin_names(first) if _origin_height(first) is not None else []
    return [*names, *missing_names(first.states), *extrema_names(first)]


def y_limits(data: FigureData) -> tuple[float, float]:
    """The range of the panel in drawn units: the scale's, extended by the band and the path if they stay near it.

    A band that is broad everywhere is shown whole, since noise would otherwise look like a shape. A band that is broad
    at one end only is cut off there.
    """
    low, high = data.scale.low, data.scale.high
    span = high - low
    reach, shown = 0.3 * span, [data.drawn]
    if data.shape_error is not None:
        with np.errstate(invalid="ignore", divide="ignore"):
            edges = [data.values - 2 * data.shape_error, data.values + 2 * data.shape_error]
            edges = [np.log10(np.where(edge > 0, edge, np.nan)) if data.scale.log else edge for edge in edges]
            half = edges[1] - data.drawn
        shown += edges
        half = half[np.isfinite(half)]
        reach = max(reach, 1.5 * float(np.median(half))) if half.size else reach
    shown += [heights for path in data.paths for heights in (path.height, path.own)]
    near = np.concatenate([values[np.isfinite(values)] for values in shown])
    near = near[(near >= low - reach) & (near <= high + reach)]
    low, high = min(low, near.min(initial=low)), max(high, near.max(initial=high))
    pad = 0.05 * (high - low)
    return float(low - pad), float(high + pad)


def band(x: Floats, values: Floats, error: Floats, floor: float) -> tuple[list[float | None], list[float | None]]:
    """Outlines of values ± 2·error as closed polygons, one per gapless stretch; nothing reaches below `floor`.

    Returns:
        x and y of the corners, with None after each polygon.
    """
    lower, upper = np.maximum(values - 2 * error, floor), values + 2 * error
    known = np.isfinite(lower) & np.isfinite(upper)
    edges = np.flatnonzero(np.diff(np.concatenate([[0], known.astype(np.int8), [0]])))
    xs: list[float | None] = []
    ys: list[float | None] = []
    for a, b in zip(edges[::2], edges[1::2], strict=True):
        xs += [*x[a:b], *x[a:b][::-1], None]
        ys += [*upper[a:b], *lower[a:b][::-1], None]
    return xs, ys


def band_name(data: FigureData) -> str:
    """The legend entry of the band around a curve."""
    return "± 2 standard errors" + ("" if data.rise_error is None else " of the rise over the origin")


def _panel(
    data: FigureData, panel: CurvePanel, limits: tuple[float, float], spec: FigureSpec, band_in_legend: bool
) -> list[Any]:
    """The traces of one panel: missing stretches, band, curve, and the loss at the snapshots themselves."""
    ends = (data.scale.real(limits[0]), data.scale.real(limits[1]))
    shown = np.where(np.isfinite(data.drawn), data.values, np.nan)
    traces: list[Any] = _missing(data, panel, ends, spec)
    traces += seed_band(data, spec, ends[0], **panel.axes)
    traces += _band(data, shown, panel, ends[0], spec, band_in_legend)
    traces.append(_curve(data, shown, panel, spec))
    height = _origin_height(data)
    marks = flat_origin(data, spec, height, **panel.axes) if height is not None else []
    traces += [mark.update(showlegend=False) if panel.number else mark for mark in marks]
    known = [path for path in data.paths if np.isfinite(path.own).any()]
    if panel.number == 0:
        traces += [_snapshots(path, panel, spec, snapshot_name(data), in_legend=path is known[0]) for path in known]
    return traces


def _origin_height(data: FigureData) -> float | None:
    """The value at the origin; None if it is unknown or the origin is not on the axis."""
    if data.origin is None or not math.isfinite(data.origin.height):
        return None
    return data.scale.real(data.origin.height)


def _missing(data: FigureData, panel: CurvePanel, ends: tuple[float, float], spec: FigureSpec) -> list[Any]:
    """Hatched stretches over the whole height of the panel; only the first panel's are in the legend."""
    rows = np.stack([data.states, data.states])
    codes = missing_states(data.states)
    traces = hatched(rows, data.axes[0].coordinates, np.array(ends), codes, spec.theme, **panel.axes)
    for code, trace in zip(codes, traces, strict=True):
        name = legend_name(code, int((data.states == code).sum()))
        trace.update(name=name, legendgroup=str(code), showlegend=panel.number == 0)
    return traces


def _band(
    data: FigureData, shown: Floats, panel: CurvePanel, bottom: float, spec: FigureSpec, in_legend: bool
) -> list[go.Scatter]:
    """The band of two standard errors around a curve; empty where the errors are not known."""
    if data.shape_error is None:
        return []
    floor = bottom if data.scale.log else -np.inf
    xs, ys = band(data.axes[0].coordinates, shown, data.shape_error, floor)
    fills = _colours(panel)
    trace = go.Scatter(
        x=xs,
        y=ys,
        name=band_name(data),
        legendgroup=band_name(data),
        showlegend=in_legend,
        hoverinfo="skip",
        meta={"role": "band", "fills": fills},
        fill="toself",
        fillcolor=fills[spec.theme],
        opacity=0.24,
        line={"width": 0},
        mode="lines",
        **panel.axes,
    )
    return [trace]


def _curve(data: FigureData, shown: Floats, panel: CurvePanel, spec: FigureSpec) -> go.Scatter:
    axis, colours = data.axes[0], _colours(panel)
    name = data.quantity
    raw, value = pointer_values(data)
    # On a refined landscape, dots mark the evaluated points.
    size = 4 if data.interpolated is None else np.where(data.interpolated == 0, 5, 0)
    dotted = len(axis.coordinates) <= 60 or data.interpolated is not None
    return go.Scatter(
        x=axis.coordinates,
        y=shown,
        customdata=raw,
        text=pointer_notes(data),
        mode="lines+markers" if dotted else "lines",
        line={"color": colours[spec.theme], "width": 2},
        marker={"size": size, "color": colours[spec.theme], "opacity": 1, "line": {"width": 0}},
        hovertemplate=f"{axis.name} %{{x:.4g}}<br>{pointer_text(name, value)}<extra></extra>",
        name=text(name),
        connectgaps=False,
        showlegend=False,
        meta={"role": "field", "colours": colours},
        **panel.axes,
    )


def snapshot_name(data: FigureData) -> str:
    """The legend entry of the values at the snapshots themselves."""
    return f"{observable_title(data.observable)} at the snapshot itself"


def _snapshots(path: DrawnPath, panel: CurvePanel, spec: FigureSpec, name: str, *, in_legend: bool) -> go.Scatter:
    """The values at the real snapshots, which need not lie on the line."""
    look = path_look(path.number, spec.path_colour)
    colour = look.colour if path.run else _colours(panel)[spec.theme]
    return go.Scatter(
        x=path.places[0],
        y=path.loss,
        mode="markers",
        marker={"symbol": f"{look.symbol}-open", "size": 8, "color": colour, "line": {"width": 1.6}},
        name=name,
        legendgroup=name,
        showlegend=in_legend,
        hovertext=list(path.hover),
        hoverinfo="text",
        **panel.axes,
    )


def _colours(panel: CurvePanel) -> dict[str, str]:
    """The colour of a panel's curve, per theme."""
    return {"light": CURVES[panel.number % len(CURVES)], "dark": DARK_CURVES[panel.number % len(DARK_CURVES)]}


def _x_axes(data: FigureData, places: Sequence[CurvePanel]) -> dict[str, Any]:
    """The common axis under the lowest panel; the panels above share its range and have no title or tick labels."""
    axis: dict[str, Any] = {"title": axis_title(data.axes[0].title, PLOT_PX), "range": _x_range(data)}
    layout = {"xaxis": axis | {"anchor": places[-1].y}}
    for panel in places[:-1]:
        layout[f"xaxis{panel.x[1:]}"] = {"anchor": panel.y, "matches": "x", "showticklabels": False}
    return layout


def _value_title(data: FigureData, height: float) -> dict[str, Any]:
    return axis_title(data.quantity, height)


def _y_axis(data: FigureData, limits: tuple[float, float], panel: CurvePanel) -> dict[str, Any]:
    axis: dict[str, Any] = {
        "domain": [max(panel.bottom, 0.0), min(panel.top, 1.0)],
        "range": list(limits),
    }
    if data.scale.log:
        ticks, texts = nice_ticks(*limits, log=True)
        axis |= {"type": "log", "tickmode": "array", "tickvals": [10.0**tick for tick in ticks], "ticktext": texts}
    return axis | {"anchor": panel.x}


def _x_range(data: FigureData) -> list[float]:
    least, largest = ends_of(data.paths, 0)
    low, high = min(float(data.axes[0].coordinates[0]), least), max(float(data.axes[0].coordinates[-1]), largest)
    margin = 0.02 * (high - low)
    return [low - margin, high + margin]


def _over_curve(data: FigureData, path: DrawnPath) -> DrawnPath:
    """The path with its height, in real values, in place of the second axis."""
    height = np.array([data.scale.real(float(drawn)) for drawn in path.height])
    return replace(path, places=(path.places[0], height))
