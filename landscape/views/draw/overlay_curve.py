"""Curves of several landscapes with one axis in one panel, each in a colour and a line style of its own."""

from __future__ import annotations

from typing import Any

import numpy as np
import plotly.graph_objects as go

from landscape.views.draw.curve import PANEL_PX, PLOT_PX, band, y_limits
from landscape.views.draw.layout import TICKS_PX, Style, base_layout, finish, make_frame, one_line, text
from landscape.views.draw.overlay import LEGEND, entry, flat_marks, on_curve, overlay_names, widen_hidden
from landscape.views.draw.overlay_looks import look
from landscape.views.draw.pointer import pointer_notes, pointer_text, pointer_values
from landscape.views.draw.theme import INK, themed
from landscape.views.prepare.comparison_overlay import OverlayData
from landscape.views.prepare.figure import FigureData
from landscape.views.prepare.levels import nice_ticks
from landscape.views.prepare.paths import DrawnPath

TALLER = 1.35  # than a panel of one landscape
BAND_OPACITY = 0.16
ORIGIN = "origin"


def draw_curve_overlay(data: OverlayData, style: Style) -> go.Figure:
    """The curves with their bands of two standard errors, the origin and the last snapshot of each."""
    height, below = PANEL_PX * TALLER, TICKS_PX + 17
    limits = [y_limits(field) for field in data.fields]
    ends = (min(low for low, _ in limits), max(high for _, high in limits))
    paths = [_paths(field) for field in data.fields]
    names = [*overlay_names(data.labels, paths), *([ORIGIN] if any(map(_has_origin, data.fields)) else [])]
    frame = make_frame(data.frame, style, (PLOT_PX, height), left=76, right=28, below=below, legend=names)
    layout = base_layout(data.frame, style, frame) | _axes(data, ends)
    traces: list[Any] = []
    floor = 10.0 ** ends[0] if data.frame.scale.log else -np.inf
    for number, (label, field) in enumerate(zip(data.labels, data.fields, strict=True)):
        traces += [*_band(field, number, floor, style), _curve(field, label, number, style)]
    for number, (label, own) in enumerate(zip(data.labels, paths, strict=True)):
        traces += [mark for path in own for mark in flat_marks(path, label, number, look(number), style, joined=False)]
    traces += _origins(data, style)
    figure = finish(data.frame, traces, layout, {"plot": [PLOT_PX, height], "below": below, "equal": False})
    widen_hidden(figure.data, figure.layout)
    return figure.update_layout(legend=LEGEND)


def _axes(data: OverlayData, ends: tuple[float, float]) -> dict[str, Any]:
    axis, log = data.frame.axes[0], data.frame.scale.log
    margin = 0.02 * axis.span
    y_axis: dict[str, Any] = {"title": {"text": text(data.frame.observable.replace("_", " "))}, "range": list(ends)}
    if log:
        ticks, texts = nice_ticks(*ends, log=True)
        y_axis |= {"type": "log", "tickmode": "array", "tickvals": [10.0**tick for tick in ticks], "ticktext": texts}
    x_range = [float(axis.coordinates[0] - margin), float(axis.coordinates[-1] + margin)]
    return {"xaxis": {"title": {"text": one_line(axis.title, PLOT_PX)}, "range": x_range}, "yaxis": y_axis}


def _paths(field: FigureData) -> list[DrawnPath]:
    """The paths over the curve whose loss at the last snapshot is known."""
    known = [path for path in field.paths if field.observable == "loss" and np.isfinite(path.height[-1])]
    return [on_curve(path, field.scale.real) for path in known]


def _shown(field: FigureData) -> np.ndarray:
    return np.where(np.isfinite(field.drawn), field.values, np.nan)


def _band(field: FigureData, number: int, floor: float, style: Style) -> list[go.Scatter]:
    if field.shape_error is None:
        return []
    xs, ys = band(field.axes[0].coordinates, _shown(field), field.shape_error, floor)
    fills = {theme: {"fillcolor": colour} for theme, colour in look(number).colours.items()}
    return [
        go.Scatter(
            x=xs,
            y=ys,
            fill="toself",
            mode="lines",
            line={"width": 0},
            opacity=BAND_OPACITY,
            hoverinfo="skip",
            showlegend=False,
            legendgroup=f"item {number}",
            **themed(fills, style.theme, role="band", item=number),
        )
    ]


def _curve(field: FigureData, label: str, number: int, style: Style) -> go.Scatter:
    own = look(number)
    raw, value = pointer_values(field)
    lines = {
        theme: {"line": {"color": colour, "dash": own.dash, "width": 2.2}} for theme, colour in own.colours.items()
    }
    axis = field.axes[0].name
    name = field.observable.replace("_", " ")
    return go.Scatter(
        x=field.axes[0].coordinates,
        y=_shown(field),
        customdata=raw,
        text=pointer_notes(field),
        mode="lines",
        name=entry(label),
        legendgroup=f"item {number}",
        connectgaps=False,
        hovertemplate=f"{axis} %{{x:.4g}}<br>{pointer_text(name, value)}<extra>{entry(label)}</extra>",
        **themed(lines, style.theme, role="field", item=number),
    )


def _has_origin(field: FigureData) -> bool:
    return field.origin is not None and bool(np.isfinite(field.origin.height))


def _origins(data: OverlayData, style: Style) -> list[go.Scatter]:
    """A cross on each curve at its origin, in one trace."""
    marked = [field for field in data.fields if _has_origin(field)]
    if not marked:
        return []
    heights = [field.scale.real(field.origin.height) for field in marked if field.origin is not None]
    hover = [field.origin.hover for field in marked if field.origin is not None]
    crosses = {
        theme: {"marker": {"symbol": "cross-thin", "size": 20, "line": {"color": ink, "width": 1.3}}}
        for theme, ink in INK.items()
    }
    options: dict[str, Any] = themed(crosses, style.theme, role="origin")
    return [
        go.Scatter(
            x=[0.0] * len(marked), y=heights, mode="markers", name=ORIGIN, hovertext=hover, hoverinfo="text", **options
        )
    ]
