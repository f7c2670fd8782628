"""Three axes as filled slices across the third one, with a slider."""

from __future__ import annotations

from typing import Any

import plotly.graph_objects as go

from landscape.views.draw.extrema import flat_extrema
from landscape.views.draw.layout import Style, with_levels
from landscape.views.draw.plane import bar_length, draw_plane, filled, layers
from landscape.views.prepare.figure import AxisView, FigureData, slice_at, slice_nearest
from landscape.views.prepare.levels import number
from landscape.views.prepare.missing import missing_states, why_empty

SLIDER_PX = 74
MOVE = {"mode": "immediate", "frame": {"duration": 0, "redraw": True}, "transition": {"duration": 0}}


def draw_slices(data: FigureData, style: Style) -> go.Figure:
    """Filled slices across the third axis, with a slider; the first shown is the one nearest 0."""
    gamma = data.axes[2]
    first = slice_nearest(data)
    data = with_levels(data)
    planes = [slice_at(data, k) for k in range(len(gamma.coordinates))]
    shown = planes[first]
    field = filled(shown, style, bar_length(shown))
    figure = draw_plane(shown, [field], style, room=SLIDER_PX, all_states=data.states)
    if not why_empty(data.states):  # what is said of the first slice need not hold of the others
        figure.layout.annotations = [note for note in figure.layout.annotations if note.name != "empty"]
    height, below = figure.layout.meta["plot"][1], figure.layout.meta["below"]
    codes = missing_states(data.states)
    frames = []
    for k, plane in enumerate(planes):
        traces = [filled(plane, style, height), *layers(plane, codes, style)]
        if k != first:
            traces = [_without_origin(trace) for trace in traces]
        marks = flat_extrema(plane, style)
        places = [*range(len(traces)), *range(len(figure.data) - len(marks), len(figure.data))]  # the path is between
        frames.append(go.Frame(data=[*traces, *marks], traces=places, name=str(k)))
    figure.frames = frames
    figure.update_layout(sliders=[_slider(gamma, first, -(below - 68) / height)])
    return figure


def _without_origin(trace: Any) -> Any:
    """The trace as it is in a slice that does not go through the origin: its mark has no place there."""
    return trace.update(x=[None], y=[None]) if trace.meta["role"] == "origin" else trace


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
