"""The topographic drawing of two axes: bands of colour between the isolines."""

from __future__ import annotations

import plotly.graph_objects as go

from landscape.views.draw.layout import Style, with_levels
from landscape.views.draw.plane import bar_length, draw_plane, filled
from landscape.views.prepare.figure import FigureData


def draw_topographic(data: FigureData, style: Style) -> go.Figure:
    """Bands of colour between the isolines."""
    return draw_plane(with_levels(data), [filled(data, style, bar_length(data))], style)
