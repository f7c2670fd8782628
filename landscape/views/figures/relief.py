"""Drawing in space: the 3-D surface over two axes, and the volume of three axes as nested isosurfaces."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import plotly.graph_objects as go
from numpy.typing import NDArray
from plotly.colors import sample_colorscale

from landscape.views.figures.drape import draped
from landscape.views.figures.flat import _hover, _raw
from landscape.views.figures.holes import hole_names, symbols
from landscape.views.figures.isolines import isolines
from landscape.views.figures.layout import Style, base_layout, colour_bar, finish, make_frame, text, wrapped
from landscape.views.figures.overlay import LIFT, animate, legend_names, space_labels, space_path
from landscape.views.figures.shells import shell
from landscape.views.figures.theme import colour_scale, typed
from landscape.views.prepared.prepare import Grid
from landscape.views.prepared.scale import nice_ticks, number

Floats = NDArray[np.float64]

SCENE_PX = (680, 540)
HEIGHT = 0.72  # of the longer horizontal axis
CAMERA = {"eye": {"x": 0.95, "y": -1.35, "z": 0.95}, "center": {"x": 0.03, "y": 0, "z": -0.2}}
SHELLS = 5


def draw_surface(grid: Grid, style: Style) -> go.Figure:
    """The values as heights over the plane, isolines on it and on its floor."""
    scale = grid.scale
    span = scale.high - scale.low
    floor = scale.low - 0.06 * span
    whole = bool(np.isfinite(grid.drawn).all())
    lines = {"show": whole, "start": scale.start, "end": scale.stop, "size": scale.step}
    surface = go.Surface(
        x=grid.axes[0].coordinates,
        y=grid.axes[1].coordinates,
        z=typed(grid.drawn),
        customdata=typed(_raw(grid)),
        hovertemplate=_hover(grid),
        cmin=scale.low,
        cmax=scale.high,
        colorscale=colour_scale(style.colour_scale),
        colorbar=colour_bar(grid, 320),
        contours={"z": lines | {"color": "rgba(255,255,255,0.45)", "width": 1, "highlight": False}},
        lighting={"ambient": 0.72, "diffuse": 0.5, "specular": 0.08, "roughness": 0.85, "fresnel": 0.05},
        connectgaps=False,
        name=grid.observable,
        showlegend=False,
        meta={"role": "field"},
    )
    coordinates = tuple(axis.coordinates for axis in grid.axes)
    traces: list[Any] = [surface, *([] if whole else [_isolines(grid, 0.006 * span)])]
    traces += symbols(grid.states, coordinates, floor)
    height = None if grid.track is None else grid.track.height + LIFT * span
    ticks, texts = nice_ticks(scale.low, scale.high, scale.log)
    z_axis = {
        "title": {"text": text(grid.observable.replace("_", " "))},
        "range": [floor, scale.high + 0.04 * span],
        "tickmode": "array",
        "tickvals": ticks,
        "ticktext": texts,
    }
    widths = [axis.span for axis in grid.axes]
    longest = max(widths)
    aspect = [width / longest for width in widths] if grid.equal else [1.0, 1.0]
    line = None
    if grid.track is not None and height is not None:
        line = draped((grid.track.places[0], grid.track.places[1]), height, coordinates[0], coordinates[1], grid.drawn)
    return _scene(grid, style, traces, z_axis, [*aspect, HEIGHT], height, line)


def _isolines(grid: Grid, lift: float) -> go.Scatter3d:
    alpha, beta = (axis.coordinates for axis in grid.axes)
    points = isolines(alpha, beta, grid.drawn, grid.scale.ticks)
    x, y, z = (typed(points[:, k]) for k in range(3))
    line = {"color": "rgba(255,255,255,0.75)", "width": 2.5}
    return go.Scatter3d(x=x, y=y, z=z + lift, mode="lines", line=line, hoverinfo="skip", showlegend=False)


def draw_volume(grid: Grid, style: Style) -> go.Figure:
    """Nested shells of equal value through the three axes."""
    coordinates = (grid.axes[0].coordinates, grid.axes[1].coordinates, grid.axes[2].coordinates)
    levels = shell_levels(grid)
    said = ", ".join(number(grid.scale.real(level), 3) for level in levels)
    widths = [axis.span for axis in grid.axes]
    longest = max(widths)
    stretched = ["A short axis is stretched to a fifth of the longest"] if longest > 5 * min(widths) else []
    grid = replace(grid, caption=(*grid.caption, f"Shells at {said}", *stretched, f"Upwards {grid.axes[2].title}"))
    traces: list[Any] = [_shell(grid, style, level, coordinates) for level in levels]
    traces += [_lone_colour_bar(grid, style), *symbols(grid.states, coordinates, None)]
    aspect = [max(width / longest, 0.2) for width in widths]
    z_axis = {"title": {"text": text(grid.axes[2].name)}}
    height = None if grid.track is None else grid.track.places[2]
    line = None if grid.track is None else np.stack(grid.track.places, axis=1)
    return _scene(grid, style, traces, z_axis, aspect, height, line)


def shell_levels(grid: Grid) -> tuple[float, ...]:
    """A few of the contour levels, the lower ones: high shells would hide what they enclose."""
    low, high = grid.scale.low, grid.scale.high
    fitting = [level for level in grid.scale.ticks if level <= low + 0.6 * (high - low)] or list(grid.scale.ticks[:1])
    return tuple(fitting[:: -(-len(fitting) // SHELLS)])


def _shell(grid: Grid, style: Style, level: float, coordinates: tuple[Floats, Floats, Floats]) -> go.Mesh3d:
    vertices, triangles = shell(grid.drawn, coordinates, level)
    share = (level - grid.scale.low) / (grid.scale.high - grid.scale.low)
    x, y, z = (typed(vertices[:, k]) for k in range(3))
    i, j, k = (triangles[:, column].astype(np.int32) for column in range(3))
    name = f"{text(grid.observable.replace('_', ' '))} = {number(grid.scale.real(level), 3)}"
    return go.Mesh3d(
        x=x,
        y=y,
        z=z,
        i=i,
        j=j,
        k=k,
        color=sample_colorscale(colour_scale(style.colour_scale), [min(max(share, 0.0), 1.0)])[0],
        opacity=0.5 - 0.38 * share / 0.6 if share < 0.6 else 0.12,
        lighting={"ambient": 0.65, "diffuse": 0.6, "specular": 0.1, "roughness": 0.8, "fresnel": 0.1},
        name=name,
        hovertemplate=f"alpha %{{x:.4g}}<br>beta %{{y:.4g}}<br>gamma %{{z:.4g}}<br><b>{name}</b><extra></extra>",
        showlegend=False,
        meta={"role": "field"},
    )


def _lone_colour_bar(grid: Grid, style: Style) -> go.Scatter3d:
    """A trace without points that brings the colour bar for all shells."""
    marker = {
        "color": [grid.scale.low],
        "cmin": grid.scale.low,
        "cmax": grid.scale.high,
        "colorscale": colour_scale(style.colour_scale),
        "colorbar": colour_bar(grid, 320),
        "showscale": True,
    }
    return go.Scatter3d(x=[None], y=[None], z=[None], mode="markers", marker=marker, showlegend=False, hoverinfo="skip")


def _scene(
    grid: Grid,
    style: Style,
    traces: list[Any],
    z_axis: dict[str, Any],
    aspect: list[float],
    height: Floats | None,
    line: Floats | None,
) -> go.Figure:
    """The scene around the traces, with the path at `height` on top of them, joined by the points of `line`."""
    path: list[Any] = []
    if grid.track is not None and height is not None and line is not None:
        path = space_path(grid.track, style, height, line)
    names = legend_names(grid.track) if path else []
    names += hole_names(grid.states)
    frame = make_frame(grid, style, SCENE_PX, left=20, right=100, legend=names)
    layout = base_layout(grid, style, frame)
    layout["scene"] = {
        "xaxis": {"title": {"text": wrapped(grid.axes[0].title, 260, 12)}},
        "yaxis": {"title": {"text": wrapped(grid.axes[1].title, 260, 12)}},
        "zaxis": z_axis,
        "aspectmode": "manual",
        "aspectratio": dict(zip("xyz", aspect, strict=True)),
        "camera": CAMERA,
    }
    if grid.track is not None and height is not None:
        layout["scene"]["annotations"] = space_labels(grid.track, height)
    figure = finish(grid, [*traces, *path], layout, {"plot": list(SCENE_PX), "below": 0, "equal": False, "space": True})
    if style.animate and path and grid.track is not None and len(grid.track.numbers) > 1:
        animate(figure, grid.track)
    return figure
