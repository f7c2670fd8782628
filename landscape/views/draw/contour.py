"""The contour drawing of two axes: isolines, each labelled with its value."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import plotly.graph_objects as go

from landscape.views.draw.layout import Style, label_carrier, with_levels
from landscape.views.draw.plane import bar_length, contour_trace, draw_plane, smoothing
from landscape.views.draw.style import SIGN_LINES, is_centred, line_colours, line_shades, signs_of
from landscape.views.draw.theme import TEMPLATES
from landscape.views.prepare.figure import FigureData
from landscape.views.prepare.levels import EvenLevels, even_levels

LINE_PX = 15  # between two labelled lines at least, were they evenly spread over the plot


def draw_contour(data: FigureData, style: Style) -> go.Figure:
    """Isolines, each labelled with its value; there is no colour bar, which would say the same again."""
    signed = is_centred(style.colour_scale, data.scale)
    lines = signed_lines(data, style) if signed else _lines(data, style, bar_length(data))
    shades = {theme: line_shades(style.colour_scale, data.scale, theme) for theme in TEMPLATES}
    return draw_plane(with_levels(data), lines, style, shades=shades)


def signed_lines(field: FigureData, style: Style) -> list[go.Contour]:
    """Contour lines below, at and above 0, which differ by line style as well as colour."""
    even, signs = even_levels(field.scale.ticks), np.array(signs_of(field.scale))
    traces = []
    for sign, colours in SIGN_LINES.items():
        places = np.flatnonzero(signs == sign)
        if not places.size:
            continue
        which = slice(int(places[0]), int(places[-1]) + 1)
        start, stop = (even.start + even.step * int(k) for k in (places[0], places[-1]))
        scales = {theme: [[0.0, colour], [1.0, colour]] for theme, colour in colours.items()}
        dash = "dash" if sign < 0 else "solid"
        look_of_lines: dict[str, Any] = {
            "contours": {"start": start, "end": stop, "size": even.step, "coloring": "lines", "showlabels": True},
            "line": {"width": 2.4 if sign == 0 else 1.6, "dash": dash, "smoothing": smoothing(field)},
            "colorscale": scales[style.theme],
            "colorbar": label_carrier(field, even, which),
        }
        traces.append(contour_trace(field, even, meta={"labelled": True, "scales": scales}, **look_of_lines))
    return traces or [contour_trace(field, even, showscale=False, line={"width": 0})]


def _lines(data: FigureData, style: Style, length: float) -> list[go.Contour]:
    """Isolines with their values; where they are many, every k-th is heavier and has its value, as on maps.

    Plotly writes the colour bar's tick texts on the lines, which gives real values on a logarithmic scale. A
    line without a text can hang its placing of labels, so lines without a value are a trace of their own.
    """
    scale, even = data.scale, even_levels(data.scale.ticks)
    every = max(1, math.ceil(len(scale.ticks) * LINE_PX / length))
    first = (len(scale.ticks) - 1) % every // 2
    labelled = contour_trace(
        data,
        even,
        contours=_every(even, len(scale.ticks), first, every) | {"showlabels": True, "labelfont": {"size": 11}},
        line={"width": 1.7, "smoothing": smoothing(data)},
        colorbar=label_carrier(data, even, slice(first, None, every)),
        **_colours(data, style, slice(first, None, every)),
    )
    if every == 1:
        return [labelled]
    look = {"contours": _every(even, len(scale.ticks), 0, 1), "line": {"width": 0.7, "smoothing": smoothing(data)}}
    thin = contour_trace(data, even, showscale=False, **look, **_colours(data, style, slice(None)))
    # The trace above it answers the pointer: its numbers would be sent twice.
    return [thin.update(customdata=None, text=None, hovertemplate=None, hoverinfo="skip"), labelled]


def _every(even: EvenLevels, count: int, first: int, every: int) -> dict[str, Any]:
    """Every `every`-th of the `count` levels, from the `first` on, as plotly's contours."""
    last = first + (count - 1 - first) // every * every
    start, stop = (even.start + even.step * k for k in (first, last))
    return {"start": start, "end": stop, "size": even.step * every, "coloring": "lines"}


def _colours(data: FigureData, style: Style, which: slice) -> dict[str, Any]:
    """The colours of those levels, for both themes, as the page changes from one to the other."""
    scale = replace(data.scale, ticks=data.scale.ticks[which])
    scales = {theme: line_colours(style.colour_scale, scale, theme) for theme in ("light", "dark")}
    return {"colorscale": scales[style.theme], "meta": {"labelled": True, "scales": scales}}
