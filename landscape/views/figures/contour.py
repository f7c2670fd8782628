"""The contour drawing of two axes: isolines, each labelled with its value."""

from __future__ import annotations

import math
from typing import Any

import plotly.graph_objects as go

from landscape.views.figures.colours import colour_scale
from landscape.views.figures.layout import Style, colour_bar
from landscape.views.figures.plane import SMOOTHING, bar_length, contour_trace, draw_plane
from landscape.views.prepared.figure_data import FigureData

TICK_PX = 15


def draw_contour(data: FigureData, style: Style) -> go.Figure:
    """Isolines, each labelled with its value."""
    return draw_plane(data, _lines(data, style, bar_length(data)), style)


def _lines(data: FigureData, style: Style, length: float) -> list[go.Contour]:
    """Isolines with their values; where they are many, every k-th is heavier and has its value, as on maps.

    Plotly writes the colour bar's tick texts on the lines, which gives real values on a logarithmic scale. A
    line without a text can hang its placing of labels, so lines without a value are a trace of their own.
    """
    scale = data.scale
    every = max(1, math.ceil(len(scale.ticks) * TICK_PX / length))
    first = (len(scale.ticks) - 1) % every // 2
    ticks, texts = scale.ticks[first::every], scale.texts[first::every]
    span = (scale.stop - scale.start) or 1.0
    part = ((ticks[0] - scale.start) / span, (ticks[-1] - scale.start) / span) if len(ticks) > 1 else (0.0, 1.0)
    contours = {"start": ticks[0], "end": ticks[-1], "size": scale.step * every, "coloring": "lines"}
    labelled = contour_trace(
        data,
        contours=contours | {"showlabels": True, "labelfont": {"size": 11}},
        line={"width": 1.7, "smoothing": SMOOTHING},
        **_line_colours(style, *part),
        colorbar=colour_bar(data, length) | {"tickvals": list(ticks), "ticktext": list(texts)},
    )
    if every == 1:
        return [labelled]
    contours = {"start": scale.start, "end": scale.stop, "size": scale.step, "coloring": "lines"}
    line = {"width": 0.7, "smoothing": SMOOTHING}
    thin = contour_trace(data, contours=contours, line=line, showscale=False, **_line_colours(style, 0.0, 1.0))
    return [thin, labelled]


def _line_colours(style: Style, low: float, high: float) -> dict[str, Any]:
    """The part of the colour scale from `low` to `high`, of 1, without the end that is too faint for lines on paper.

    Of most scales that is the bright end on light paper and the dark end on dark paper.
    """
    scales = {}
    for theme, (start, stop) in {"light": (0.0, 0.88), "dark": (0.35, 1.0)}.items():
        width = stop - start
        scales[theme] = colour_scale(style.colour_scale, start + width * low, start + width * high)
    return {"colorscale": scales[style.theme], "meta": {"role": "field", "labelled": True, "scales": scales}}
