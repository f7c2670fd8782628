"""The 3-D surface over two axes: the values as heights."""

from __future__ import annotations

from typing import Any

import numpy as np
import plotly.graph_objects as go

from landscape.views.figures.colours import colour_scale
from landscape.views.figures.layout import Style, colour_bar, text
from landscape.views.figures.missing import symbols
from landscape.views.figures.path import LIFT
from landscape.views.figures.pointer import plane_hover, pointer_values
from landscape.views.figures.scene import COLOUR_BAR_PX, PathInSpace, draw_scene
from landscape.views.figures.theme import typed
from landscape.views.prepared.figure_data import FigureData
from landscape.views.prepared.isolines import isolines
from landscape.views.prepared.path_on_surface import path_on_surface
from landscape.views.prepared.scale import nice_ticks

HEIGHT = 0.72  # of the longer horizontal axis


def draw_surface(data: FigureData, style: Style) -> go.Figure:
    """The values as heights over the plane, with isolines on them; missing points have symbols on the floor."""
    span = data.scale.high - data.scale.low
    floor = data.scale.low - 0.06 * span
    whole = bool(np.isfinite(data.drawn).all())
    traces: list[Any] = [_heights(data, style, lines=whole), *([] if whole else [_isolines(data, 0.006 * span)])]
    traces += symbols(data.states, tuple(axis.coordinates for axis in data.axes), floor)
    longest = max(axis.span for axis in data.axes)
    aspect = [axis.span / longest for axis in data.axes] if data.equal else [1.0, 1.0]
    z_axis = _z_axis(data, floor, data.scale.high + 0.04 * span)
    return draw_scene(data, traces, style, z_axis=z_axis, aspect=[*aspect, HEIGHT], overlay=_path(data, LIFT * span))


def _heights(data: FigureData, style: Style, lines: bool) -> go.Surface:
    """The surface. Plotly draws isolines on it only with `lines`, since missing values make that slow."""
    scale = data.scale
    contours = {"show": lines, "start": scale.start, "end": scale.stop, "size": scale.step}
    return go.Surface(
        x=data.axes[0].coordinates,
        y=data.axes[1].coordinates,
        z=typed(data.drawn),
        customdata=typed(pointer_values(data)[0]),
        hovertemplate=plane_hover(data),
        cmin=scale.low,
        cmax=scale.high,
        colorscale=colour_scale(style.colour_scale),
        colorbar=colour_bar(data, COLOUR_BAR_PX),
        contours={"z": contours | {"color": "rgba(255,255,255,0.45)", "width": 1, "highlight": False}},
        lighting={"ambient": 0.72, "diffuse": 0.5, "specular": 0.08, "roughness": 0.85, "fresnel": 0.05},
        connectgaps=False,
        name=data.observable,
        showlegend=False,
        meta={"role": "field"},
    )


def _isolines(data: FigureData, lift: float) -> go.Scatter3d:
    alpha, beta = (axis.coordinates for axis in data.axes)
    points = isolines(alpha, beta, data.drawn, data.scale.ticks)
    x, y, z = (typed(points[:, k]) for k in range(3))
    line = {"color": "rgba(255,255,255,0.75)", "width": 2.5}
    return go.Scatter3d(x=x, y=y, z=z + lift, mode="lines", line=line, hoverinfo="skip", showlegend=False)


def _z_axis(data: FigureData, low: float, high: float) -> dict[str, Any]:
    ticks, texts = nice_ticks(data.scale.low, data.scale.high, data.scale.log)
    return {
        "title": {"text": text(data.observable.replace("_", " "))},
        "range": [low, high],
        "tickmode": "array",
        "tickvals": ticks,
        "ticktext": texts,
    }


def _path(data: FigureData, lift: float) -> PathInSpace | None:
    """The path at the height of its projection, lifted so that it does not sink into the surface."""
    if data.path is None:
        return None
    alpha, beta = (axis.coordinates for axis in data.axes)
    height = data.path.height + lift
    line = path_on_surface((data.path.places[0], data.path.places[1]), height, alpha, beta, data.drawn)
    return PathInSpace(data.path, height, line)
