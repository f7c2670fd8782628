"""Contour lines of several landscapes over one another, each set in a colour and a line style of its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go

from landscape.views.draw.layout import Style, label_carrier, with_levels
from landscape.views.draw.missing import hatched
from landscape.views.draw.overlay import add_marks, entry, flat_key, flat_marks
from landscape.views.draw.overlay_looks import look
from landscape.views.draw.plane import contour_trace, draw_plane, smoothing
from landscape.views.draw.pointer import NOTE, plane_hover
from landscape.views.draw.theme import typed
from landscape.views.prepare.comparison_grid import coordinates_agree
from landscape.views.prepare.comparison_overlay import OverlayData
from landscape.views.prepare.figure import FigureData
from landscape.views.prepare.levels import even_levels
from landscape.views.prepare.missing import missing_states

FAINT = 0.45  # opacity of the hatches of missing points, under which another landscape may have values


def draw_contour_overlay(data: OverlayData, style: Style) -> go.Figure:
    """The lines of each landscape, with their values on them, its missing points, its path and last snapshot."""
    items = list(enumerate(zip(data.labels, data.fields, strict=True)))
    lines = [_lines(data, field, number, style) for number, (_, field) in items]
    marks: list[Any] = [flat_key(label, number, look(number), style) for number, (label, _) in items]
    marks += [trace for number, (label, field) in items for trace in _missing(field, label, number, style)]
    for number, (label, field) in items:
        marks += [mark for path in field.paths for mark in flat_marks(path, label, number, look(number), style)]
    return add_marks(draw_plane(with_levels(data.frame), lines, style), marks)


def _lines(data: OverlayData, field: FigureData, number: int, style: Style) -> go.Contour:
    even, own = even_levels(field.scale.ticks), look(number)
    scales = {theme: [[0.0, colour], [1.0, colour]] for theme, colour in own.colours.items()}
    trace = contour_trace(
        field,
        even,
        contours={
            "start": even.start,
            "end": even.stop,
            "size": even.step,
            "coloring": "lines",
            "showlabels": True,
            "labelfont": {"size": 10},
        },
        line={"width": 1.6, "dash": own.dash, "smoothing": smoothing(field)},
        colorscale=scales[style.theme],
        colorbar=label_carrier(field, even, slice(None)),
        legendgroup=f"item {number}",
        meta={"item": number, "labelled": True, "scales": scales, "themed": _themed(scales)},
    )
    return trace.update(_pointer(data, number))


def _themed(scales: dict[str, Any]) -> dict[str, Any]:
    return {theme: {"colorscale": scale} for theme, scale in scales.items()}


def _pointer(data: OverlayData, number: int) -> dict[str, Any]:
    """What the pointer shows: where all have the same points, the values of all at once, else only one's own.

    Plotly asks only the uppermost trace under the pointer.
    """
    fields = data.fields
    first = [axis.coordinates for axis in fields[0].axes]
    if not all(coordinates_agree(first, [axis.coordinates for axis in field.axes]) for field in fields):
        own = fields[number]
        return {
            "hovertemplate": plane_hover(own).replace("<extra></extra>", f"<extra>{entry(data.labels[number])}</extra>")
        }
    if number < len(fields) - 1:
        return {"hoverinfo": "skip", "hovertemplate": None, "customdata": None, "text": None}
    return {
        "customdata": typed(np.concatenate([_with_error(field) for field in fields], axis=-1)),
        "text": _notes(fields),
        "hovertemplate": _all(data),
    }


def _notes(fields: Sequence[FigureData]) -> np.ndarray | None:
    """The last line of the pointer where landscapes are refined: whether any of the values is interpolated."""
    maps = [field.interpolated for field in fields if field.interpolated is not None]
    return np.where(np.maximum.reduce(maps) > 0, "<br>interpolated", "").astype(np.object_) if maps else None


def _with_error(field: FigureData) -> np.ndarray:
    """The values of a landscape and two standard errors each, NaN where these are not known: [..., 2]."""
    error = np.full(field.values.shape, np.nan) if field.error is None else 2 * field.error
    return np.stack([field.values, error], axis=-1)


def _all(data: OverlayData) -> str:
    names = [axis.name for axis in data.frame.axes]
    lines = [
        f"{entry(label)} <b>%{{customdata[{2 * k}]:.5g}}</b>"
        + ("" if field.error is None else f" ± %{{customdata[{2 * k + 1}]:.2g}} (2 s.e.)")
        for k, (label, field) in enumerate(zip(data.labels, data.fields, strict=True))
    ]
    note = "" if _notes(data.fields) is None else NOTE
    return "<br>".join([f"{names[0]} %{{x:.4g}}", f"{names[1]} %{{y:.4g}}", *lines]) + f"{note}<extra></extra>"


def _missing(field: FigureData, label: str, number: int, style: Style) -> Sequence[go.Scatter]:
    x, y = (axis.coordinates for axis in field.axes)
    traces = hatched(field.states, x, y, missing_states(field.states), style.theme)
    for trace in traces:
        trace.update(name=f"{entry(label)}: {trace.name}", opacity=FAINT, legendgroup=f"item {number}")
    return traces
