"""Three axes as filled slices across the third one, with a slider."""

from __future__ import annotations

from typing import Any

import numpy as np
import plotly.graph_objects as go

from landscape.views.figures.layout import Style
from landscape.views.figures.plane import bar_length, draw_plane, filled, missing_cells
from landscape.views.prepared.figure_data import AxisView, FigureData, slice_at
from landscape.views.prepared.missing import missing_states
from landscape.views.prepared.scale import number

SLIDER_PX = 74
MOVE = {"mode": "immediate", "frame": {"duration": 0, "redraw": True}, "transition": {"duration": 0}}


def draw_slices(data: FigureData, style: Style) -> go.Figure:
    """Filled slices across the third axis, with a slider; the first shown is the one nearest 0."""
    gamma = data.axes[2]
    first = int(np.argmin(np.abs(gamma.coordinates)))
    planes = [slice_at(data, k) for k in range(len(gamma.coordinates))]
    shown = planes[first]
    field = filled(shown, style, bar_length(shown))
    figure = draw_plane(shown, [field], style, room=SLIDER_PX, all_states=data.states)
    height, below = figure.layout.meta["plot"][1], figure.layout.meta["below"]
    codes = missing_states(data.states)
    frames = []
    for k, plane in enumerate(planes):
        traces = [filled(plane, style, height), *missing_cells(plane, codes, style)]
        frames.append(go.Frame(data=traces, traces=list(range(1 + len(codes))), name=str(k)))
    figure.frames = frames
    figure.update_layout(sliders=[_slider(gamma, first, -(below - 68) / height)])
    return figure


def _slider(axis: AxisView, active: int, y: float) -> dict[str, Any]:
    """One step per coordinate of the axis, each showing the frame of that number."""
    steps = [
        {"label": number(float(coordinate), 3), "method": "animate", "args": [[str(k)], MOVE]}
        for k, coordinate in enumerate(axis.coordinates)
    ]
    return {
        "active": active,
        "steps": steps,
        "currentvalue": {"prefix": f"{axis.name} = ", "font": {"size": 13}},
        "x": 0,
        "len": 1,
        "y": y,
        "yanchor": "top",
        "pad": {"t": 0, "b": 0},
        "font": {"size": 10},
    }
