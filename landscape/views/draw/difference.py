"""The difference of two landscapes: red where the second is higher, blue where it is lower, pale where neither is."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import plotly.graph_objects as go

from landscape.views.draw.curve import draw_curve
from landscape.views.draw.layout import Style, with_levels
from landscape.views.draw.overlay import add_marks, flat_marks, space_end
from landscape.views.draw.paths import LIFT
from landscape.views.draw.plane import bar_length, draw_plane, filled, signed_lines
from landscape.views.draw.space import draw_slices, draw_surface
from landscape.views.draw.style import DIVERGING, SeriesStyle, look
from landscape.views.prepare.difference import DifferenceData
from landscape.views.prepare.geometry import bilinear
from landscape.views.prepare.paths import DrawnPath
from landscape.views.prepare.uncertainty import CLEAR

WITHIN = "edge of the faded area, within 2 standard errors of no difference"


def draw_difference(data: DifferenceData, kind: str, style: Style) -> go.Figure:
    """The difference as a curve, on a plane, as heights, or in slices.

    Args:
        kind: "curve", "topographic", "contour", "surface" or "slices".
    """
    style = replace(style, colour_scale=DIVERGING)
    errors = _in_errors(data) if kind in ("topographic", "contour", "slices") else None
    field = replace(data.field, difference=errors, unclear=WITHIN)
    if kind == "slices":
        return draw_slices(field, style)
    if kind == "curve":
        return add_marks(_with_zero(draw_curve(field, style), data), _marks_on_curve(data, style))
    if kind == "surface":
        return add_marks(draw_surface(field, style), _marks_on_surface(data, style))
    values = signed_lines(field, style) if kind == "contour" else [filled(field, style, bar_length(field))]
    marks = [mark for item in _paths(data) for mark in flat_marks(*item, style, joined=False)]
    return add_marks(draw_plane(with_levels(field), values, style), marks)


def _paths(data: DifferenceData) -> list[tuple[DrawnPath, str, int, SeriesStyle]]:
    """The paths of each landscape, with its label, its number and its look."""
    numbered = enumerate(zip(data.labels, data.paths, strict=True))
    return [(path, label, number, look(number)) for number, (label, own) in numbered for path in own]


def _marks_on_curve(data: DifferenceData, style: Style) -> list[go.Scatter]:
    """The last snapshots on the curve, where it reaches them."""
    x, y = data.field.axes[0].coordinates, data.field.values
    marks: list[go.Scatter] = []
    for path, label, number, own in _paths(data):
        height = np.interp(path.places[0], x, y, left=np.nan, right=np.nan)
        placed = replace(path, places=(path.places[0], height))
        marks += flat_marks(placed, label, number, own, style, joined=False) if np.isfinite(height[-1]) else []
    return marks


def _marks_on_surface(data: DifferenceData, style: Style) -> list[go.Scatter3d]:
    """The last snapshots on the surface of the differences, where it reaches them."""
    field = data.field
    x, y = (axis.coordinates for axis in field.axes)
    lift = LIFT * (field.scale.high - field.scale.low)
    marks: list[go.Scatter3d] = []
    for path, label, number, own in _paths(data):
        height = bilinear(x, y, field.drawn, path.places[0][-1:], path.places[1][-1:])
        marks += space_end(path, label, number, own, style, float(height[0]) + lift)
    return marks


def _in_errors(data: DifferenceData) -> np.ndarray | None:
    """How many times two standard errors each difference is from none; None where the errors are not known."""
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
