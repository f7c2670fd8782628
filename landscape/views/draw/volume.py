"""Three axes as a volume: nested isosurfaces."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import plotly.graph_objects as go
from numpy.typing import NDArray

from landscape.views.draw.extrema import space_extrema
from landscape.views.draw.layout import Style, colour_bar, text
from landscape.views.draw.marks import unclear_volume
from landscape.views.draw.missing import symbols
from landscape.views.draw.origin import space_origin
from landscape.views.draw.paths import PathInSpace
from landscape.views.draw.scene import COLOUR_BAR_PX, draw_scene
from landscape.views.draw.style import colour_scale, colours_of
from landscape.views.draw.theme import typed
from landscape.views.prepare.figure import FigureData
from landscape.views.prepare.isosurfaces import isosurface
from landscape.views.prepare.levels import number

Floats = NDArray[np.float64]

MOST_LEVELS = 5
SHORTEST = 0.2  # of the longest axis: a shorter one is stretched to this


def draw_volume(data: FigureData, style: Style) -> go.Figure:
    """Nested isosurfaces through the three axes."""
    levels = isosurface_levels(data)
    coordinates = (data.axes[0].coordinates, data.axes[1].coordinates, data.axes[2].coordinates)
    traces: list[Any] = [_isosurface(data, style, level, coordinates) for level in levels]
    traces += [_lone_colour_bar(data, style), *symbols(data.states, coordinates, None, style.theme)]
    traces += [*unclear_volume(data, style), *space_origin(data, style, 0.0), *space_extrema(data, style)]
    longest = max(axis.span for axis in data.axes)
    aspect = [max(axis.span / longest, SHORTEST) for axis in data.axes]
    z_axis = {"title": {"text": text(data.axes[2].name)}}
    overlay = [PathInSpace(path, path.places[2], np.stack(path.places, axis=1)) for path in data.paths]
    data = replace(data, caption=(*data.caption, *_notes(data, levels)))
    return draw_scene(data, traces, style, z_axis=z_axis, aspect=aspect, overlay=overlay)


def isosurface_levels(data: FigureData) -> tuple[float, ...]:
    """A few of the contour levels, the lower ones: isosurfaces of high values would hide those that they enclose."""
    low, high = data.scale.low, data.scale.high
    fitting = [level for level in data.scale.ticks if level <= low + 0.6 * (high - low)] or list(data.scale.ticks[:1])
    return tuple(fitting[:: -(-len(fitting) // MOST_LEVELS)])


def _notes(data: FigureData, levels: tuple[float, ...]) -> list[str]:
    """What the caption adds: the levels, and that an axis is longer than it is."""
    values = ", ".join(number(data.scale.real(level), 3) for level in levels)
    spans = [axis.span for axis in data.axes]
    stretched = ["A short axis is stretched to a fifth of the longest"] if max(spans) > 5 * min(spans) else []
    return [f"Isosurfaces at {values}", *stretched]


def _isosurface(data: FigureData, style: Style, level: float, coordinates: tuple[Floats, Floats, Floats]) -> go.Mesh3d:
    vertices, triangles = isosurface(data.drawn, coordinates, level)
    share = (level - data.scale.low) / (data.scale.high - data.scale.low)
    x, y, z = (typed(vertices[:, k]) for k in range(3))
    i, j, k = (triangles[:, column].astype(np.int32) for column in range(3))
    name = f"{text(data.observable.replace('_', ' '))} = {number(data.scale.real(level), 3)}"
    return go.Mesh3d(
        x=x,
        y=y,
        z=z,
        i=i,
        j=j,
        k=k,
        color=colours_of(style.colour_scale, data.scale, np.array([level]))[0],
        opacity=0.5 - 0.38 * share / 0.6 if share < 0.6 else 0.12,
        lighting={"ambient": 0.65, "diffuse": 0.6, "specular": 0.1, "roughness": 0.8, "fresnel": 0.1},
        name=name,
        hovertemplate=f"alpha %{{x:.4g}}<br>beta %{{y:.4g}}<br>gamma %{{z:.4g}}<br><b>{name}</b><extra></extra>",
        showlegend=False,
        meta={"role": "field"},
    )


def _lone_colour_bar(data: FigureData, style: Style) -> go.Scatter3d:
    """A trace without points that brings the colour bar for all isosurfaces."""
    marker = {
        "color": [data.scale.low],
        "cmin": data.scale.low,
        "cmax": data.scale.high,
        "colorscale": colour_scale(style.colour_scale, data.scale),
        "colorbar": colour_bar(data, COLOUR_BAR_PX),
        "showscale": True,
    }
    return go.Scatter3d(x=[None], y=[None], z=[None], mode="markers", marker=marker, showlegend=False, hoverinfo="skip")
