"""Drawings in space: the 3-D surface over two axes, slices and isosurfaces of three axes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import plotly.graph_objects as go
from numpy.typing import NDArray

from landscape.core.grid import Floats
from landscape.core.text import number_text
from landscape.views.draw.labels import lay_labels
from landscape.views.draw.layout import (
    SCENE_TITLE,
    axis_title,
    base_layout,
    colour_bar,
    finish,
    make_frame,
    of_heights,
    text,
    with_levels,
)
from landscape.views.draw.marks import (
    error_sheets,
    flat_extrema,
    space_edges,
    space_extrema,
    space_networks,
    space_origin,
    symbols,
    unclear_volume,
)
from landscape.views.draw.paths import (
    LIFT,
    MARK_LIFT,
    PathInSpace,
    animate,
    legend_names,
    raised_note,
    snapshots_note,
    space_keys,
    space_path,
)
from landscape.views.draw.plane import bar_length, draw_plane, filled, layers
from landscape.views.draw.style import (
    NOWHERE,
    ON_PALE_SURFACE,
    ON_SURFACE,
    colour_scale,
    colours_of,
    even_shades,
    is_centred,
    typed,
)
from landscape.views.figure_spec import FigureSpec
from landscape.views.prepare.figure import (
    AxisView,
    FigureData,
    missing_names,
    missing_states,
    slice_at,
    slice_nearest,
    why_empty,
)
from landscape.views.prepare.geometry import along_normals, bilinear, isolines, isosurface, path_on_surface, refined
from landscape.views.prepare.paths import DrawnPath
from landscape.views.prepare.scale import Scale, nice_ticks

# ----------------------------------------------------------------------------------------------------
# The common parts of drawings in space: the scene's axes and camera, the legend, the path on top.

SCENE_PX = (680, 540)
COLOUR_BAR_PX = 320
CAMERA = {"eye": {"x": 0.95, "y": -1.35, "z": 0.95}, "center": {"x": 0.03, "y": 0, "z": -0.2}}


SHOWN_ROLES = ("origin", "uncertainty", "networks", "curve", "extrema", "finer")  # of the layers over the values


def shown_names(traces: Sequence[Any]) -> list[str]:
    """The legend entries of the layers over the values: the origin, the uncertainty, networks, their curve, extrema."""
    layers = [trace for trace in traces if (trace.meta or {}).get("role") in SHOWN_ROLES]
    return [trace.name for trace in layers if trace.showlegend is not False]


def draw_scene(
    data: FigureData,
    traces: list[Any],
    spec: FigureSpec,
    *,
    z_axis: dict[str, Any],
    aspect: list[float],
    overlay: Sequence[PathInSpace],
) -> go.Figure:
    """The scene around the traces, with the path on top of them.

    Args:
        z_axis: plotly's layout of the third axis.
        aspect: the lengths of the three axes in the picture, x first.
        overlay: the paths.
    """
    drawn = [path for path in overlay if np.isfinite(path.height).any()]
    if drawn:
        looks = "colour" if drawn[0].foot is None else "colour and the height"
        data = replace(data, caption=(*data.caption, *snapshots_note(data, looks), *raised_note(drawn)))
    shades = even_shades(spec.colour_scale, data.scale)
    paths = [trace for path in drawn for trace in space_path(path, spec, shades)]
    paths += space_keys([path.path for path in drawn], spec)
    names = [*legend_names([path.path for path in drawn]), *missing_names(data.states), *shown_names(traces)]
    frame = make_frame(data, spec, SCENE_PX, left=20, right=100, legend=names)
    layout = base_layout(data, spec, frame)
    layout["scene"] = {
        "xaxis": {"title": axis_title(data.axes[0].title, *SCENE_TITLE)},
        "yaxis": {"title": axis_title(data.axes[1].title, *SCENE_TITLE)},
        "zaxis": z_axis,
        "aspectmode": "manual",
        "aspectratio": dict(zip("xyz", aspect, strict=True)),
        "camera": CAMERA,
    }
    figure = finish(
        data, [*traces, *paths], layout, {"plot": list(SCENE_PX), "below": 0, "equal": False, "space": True}
    )
    lay_labels(figure, SCENE_PX)
    if spec.animate:
        animate(figure, [path.path for path in drawn])
    return figure


# ----------------------------------------------------------------------------------------------------

LINE_LIFT = 0.012  # of the height: with less, lines sink into the surface in WebGL renderers with 16 bits of depth
FINEST = 164  # points per axis, at most, of the grid on which isolines are computed
HEIGHT = 0.72  # of the longer horizontal axis
REACH = 0.5  # of the range drawn: the additional height for snapshots off the surface
NAMED = 3  # snapshots beyond an end of the scene, at most, that the caption names


def draw_surface(data: FigureData, spec: FigureSpec) -> go.Figure:
    """The values as heights over the plane, with isolines on them; missing points have symbols on the floor."""
    span = data.scale.high - data.scale.low
    ends, pale = heights_drawn(data.scale, data.paths), is_centred(spec.colour_scale, data.scale)
    aspect = horizontal_aspect(data)
    traces: list[Any] = [
        _heights(data, spec),
        level_lines(data, aspect, ON_PALE_SURFACE if pale else ON_SURFACE),
        *error_sheets(data, spec),
    ]
    traces += symbols(data.states, tuple(axis.coordinates for axis in data.axes), ends[0], spec.theme)
    traces += space_edges(data, spec, LINE_LIFT * span)
    traces += space_origin(data, spec, origin_height(data) + LIFT * span)
    traces += space_networks(data, spec, LIFT * span)
    traces += space_extrema(data, spec, 2 * LIFT * span)  # above the marks of the path
    upwards, overlay = z_axis(data, *ends), paths_in_space(data, LIFT * span, ends)
    data = with_levels(data)
    data = replace(data, caption=(*data.caption, *height_notes([("", path) for path in data.paths], ends)))
    return draw_scene(data, traces, spec, z_axis=upwards, aspect=[*aspect, HEIGHT], overlay=overlay)


def heights_drawn(scale: Scale, paths: Sequence[DrawnPath]) -> tuple[float, float]:
    """The lowest and the highest height of the scene: the range drawn, extended to snapshots near it."""
    span = scale.high - scale.low
    own = np.concatenate([np.empty(0), *(path.own[np.isfinite(path.own)] for path in paths)])
    below, above = own.min(initial=scale.low), own.max(initial=scale.high)
    low, high = max(below, scale.low - REACH * span), min(above, scale.high + REACH * span)
    return low - 0.06 * span, high + 0.04 * span


def height_notes(paths: Sequence[tuple[str, DrawnPath]], ends: tuple[float, float]) -> list[str]:
    """Notes on snapshots that are not drawn at the height of their own loss.

    Args:
        paths: each with its name besides its run, or ''.
        ends: the lowest and the highest height of the scene, from `heights_drawn`.
    """
    paths = [(label, path) for label, path in paths if np.isfinite(path.own).any() or np.isfinite(path.height).any()]
    sides = (
        ("below the heights shown, and drawn at their lower end", np.less, ends[0]),
        ("above the heights shown, and drawn at their upper end", np.greater, ends[1]),
    )
    notes = []
    for where, beyond, end in sides:
        names = [
            f"{', '.join(filter(None, (label, path.run, f'{path.unit} {path.numbers[k]}')))} "
            f"({number_text(float(path.loss[k]), 3)})"
            for label, path in paths
            for k in np.flatnonzero(np.isfinite(path.own) & beyond(path.own, end))
        ]
        more = [f"{len(names) - NAMED} more"] if len(names) > NAMED else []
        notes += [f"Snapshots {where}: {', '.join([*names[:NAMED], *more])}"] if names else []
    loss = np.concatenate(
        [np.empty(0), *(path.loss[~np.isfinite(path.own) & np.isfinite(path.height)] for _, path in paths)]
    )
    counts = {
        "is not finite": np.isinf(loss).sum(),
        "is not known": np.isnan(loss).sum(),
        "has no logarithm": np.isfinite(loss).sum(),
    }
    unknown = [f"{count} whose loss {why}" for why, count in counts.items() if count]
    return [*notes, *([f"White snapshots lie on the surface: {', '.join(unknown)}"] if unknown else [])]


def _heights(data: FigureData, spec: FigureSpec) -> go.Surface:
    """The surface, without plotly's own isolines: these are slow, only evenly spaced, and worse with holes."""
    scale = data.scale
    quiet = {"highlight": False}
    return go.Surface(
        x=data.axes[0].coordinates,
        y=data.axes[1].coordinates,
        z=typed(data.drawn),
        **of_heights(data),
        cmin=scale.low,
        cmax=scale.high,
        colorscale=colour_scale(spec.colour_scale, scale),
        colorbar=colour_bar(data, COLOUR_BAR_PX),
        contours={"x": quiet, "y": quiet, "z": quiet},
        lighting={"ambient": 0.72, "diffuse": 0.5, "specular": 0.08, "roughness": 0.85, "fresnel": 0.05},
        connectgaps=False,
        name=text(data.observable),
        showlegend=False,
        meta={"role": "field"},
    )


def horizontal_aspect(data: FigureData) -> list[float]:
    """The lengths of the two axes of coordinates in the scene, the longer one of length 1."""
    longest = max(axis.span for axis in data.axes)
    return [axis.span / longest for axis in data.axes] if data.equal else [1.0, 1.0]


def level_lines(data: FigureData, aspect: list[float], colour: str = ON_SURFACE) -> go.Scatter3d:
    """The contour lines, a little above the surface.

    Args:
        aspect: from `horizontal_aspect`.
    """
    alpha, beta = (axis.coordinates for axis in data.axes)
    # Plotly interpolates a cell bilinearly: lines on the cell's two flat triangles would sink into it.
    factor = max(1, min(FINEST // max(data.drawn.shape), 4))
    x, y = refined(alpha, factor), refined(beta, factor)
    height = bilinear(alpha, beta, data.drawn, x[None, :], y[:, None]) if factor > 1 else data.drawn
    points = isolines(x, y, height, data.scale.ticks)
    spans = (*(axis.span for axis in data.axes), (data.scale.high - data.scale.low) or 1.0)
    scale = [length / (span or 1.0) for length, span in zip((*aspect, HEIGHT), spans, strict=True)]
    x, y, z = (typed(part) for part in along_normals(points, x, y, height, LINE_LIFT * HEIGHT, scale).T)
    line = {"color": colour, "width": 2.5}
    return go.Scatter3d(x=x, y=y, z=z, mode="lines", line=line, hoverinfo="skip", showlegend=False)


def origin_height(data: FigureData) -> float:
    """The height of the origin in drawn units: evaluated there, or interpolated between grid points."""
    if data.origin is None:
        return math.nan
    if math.isfinite(data.origin.height):
        return data.origin.height
    zero = np.zeros(1)
    return float(bilinear(data.axes[0].coordinates, data.axes[1].coordinates, data.drawn, zero, zero)[0])


def z_axis(data: FigureData, low: float, high: float) -> dict[str, Any]:
    """The axis of the values, from `low` to `high` in drawn units, with real values at its ticks."""
    ticks, texts = nice_ticks(data.scale.low, data.scale.high, data.scale.log)
    return {
        "title": axis_title(data.quantity, *SCENE_TITLE),
        "range": [low, high],
        "tickmode": "array",
        "tickvals": ticks,
        "ticktext": texts,
    }


def paths_in_space(data: FigureData, lift: float, ends: tuple[float, float]) -> list[PathInSpace]:
    """The paths: their lines over the projections, lifted above the surface, and the snapshots at their own loss.

    A snapshot whose own loss is about that of the surface would be half hidden, so it is drawn just above, like one
    whose own loss has no height. Snapshots beyond the ends of the scene are drawn at the ends.

    Args:
        ends: the lowest and the highest height of the scene, from `heights_drawn`.
    """
    alpha, beta = (axis.coordinates for axis in data.axes)
    return [
        PathInSpace(
            path,
            np.clip(np.where(_is_off(path, MARK_LIFT * lift), path.own, path.height + MARK_LIFT * lift), *ends),
            path_on_surface((path.places[0], path.places[1]), path.height + lift, alpha, beta, data.drawn),
            np.where(_is_off(path, MARK_LIFT * lift), path.height, path.height + MARK_LIFT * lift),
        )
        for path in data.paths
    ]


def _is_off(path: DrawnPath, lift: float) -> NDArray[np.bool_]:
    """Which snapshots lie farther from the surface than the lift of snapshots on it; False if unknown."""
    apart = np.abs(path.own - path.height) > lift
    return np.isfinite(path.own) & (apart | ~np.isfinite(path.height))


# ----------------------------------------------------------------------------------------------------
# Three axes as filled slices across the third one, with a slider.

SLIDER_PX = 74
MOVE = {"mode": "immediate", "frame": {"duration": 0, "redraw": True}, "transition": {"duration": 0}}


def draw_slices(data: FigureData, spec: FigureSpec) -> go.Figure:
    """Filled slices across the third axis, with a slider; the slice nearest 0 is shown first."""
    gamma = data.axes[2]
    first = slice_nearest(data)
    data = with_levels(data)
    planes = [slice_at(data, k) for k in range(len(gamma.coordinates))]
    shown = planes[first]
    field = filled(shown, spec, bar_length(shown))
    figure = draw_plane(shown, [field], spec, room=SLIDER_PX, all_states=data.states)
    if not why_empty(data.states):  # a note on the first slice need not hold for the others
        figure.layout.annotations = [note for note in figure.layout.annotations if note.name != "empty"]
    height, below = figure.layout.meta["plot"][1], figure.layout.meta["below"]
    codes = missing_states(data.states)
    frames = []
    for k, plane in enumerate(planes):
        traces = [filled(plane, spec, height), *layers(plane, codes, spec)]
        if k != first:
            traces = [_without_origin(trace) for trace in traces]
        marks = flat_extrema(plane, spec)
        places = [
            *range(len(traces)),
            *range(len(figure.data) - len(marks), len(figure.data)),
        ]  # the path's traces lie in between
        frames.append(go.Frame(data=[*traces, *marks], traces=places, name=str(k)))
    figure.frames = frames
    figure.update_layout(sliders=[_slider(gamma, first, -(below - 68) / height)])
    return figure


def _without_origin(trace: Any) -> Any:
    """The trace for a slice that does not contain the origin: without the origin's mark."""
    return trace.update(x=[None], y=[None]) if trace.meta["role"] == "origin" else trace


def _slider(axis: AxisView, active: int, y: float) -> dict[str, Any]:
    """One step per coordinate of the axis, each showing the frame of that number."""
    steps = [
        {"label": number_text(float(coordinate), 3), "method": "animate", "args": [[str(k)], MOVE]}
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


# ----------------------------------------------------------------------------------------------------
# Three axes as a volume: nested isosurfaces.


MOST_LEVELS = 5
SHORTEST = 0.2  # of the longest axis: a shorter one is stretched to this


def draw_volume(data: FigureData, spec: FigureSpec) -> go.Figure:
    """Nested isosurfaces through the three axes."""
    levels = isosurface_levels(data)
    coordinates = (data.axes[0].coordinates, data.axes[1].coordinates, data.axes[2].coordinates)
    traces: list[Any] = [_isosurface(data, spec, level, coordinates) for level in levels]
    traces += [_lone_colour_bar(data, spec), *symbols(data.states, coordinates, None, spec.theme)]
    traces += [*unclear_volume(data, spec), *space_origin(data, spec, 0.0), *space_extrema(data, spec)]
    longest = max(axis.span for axis in data.axes)
    aspect = [1.0 if data.fill else max(axis.span / longest, SHORTEST) for axis in data.axes]
    z_axis = {"title": {"text": text(data.axes[2].name)}}
    overlay = [PathInSpace(path, path.places[2], np.stack(path.places, axis=1)) for path in data.paths]
    data = replace(data, caption=(*data.caption, *_notes(data, levels)))
    return draw_scene(data, traces, spec, z_axis=z_axis, aspect=aspect, overlay=overlay)


def isosurface_levels(data: FigureData) -> tuple[float, ...]:
    """A few of the lower contour levels: isosurfaces of high values would hide those that they enclose."""
    low, high = data.scale.low, data.scale.high
    fitting = [level for level in data.scale.ticks if level <= low + 0.6 * (high - low)] or list(data.scale.ticks[:1])
    return tuple(fitting[:: -(-len(fitting) // MOST_LEVELS)])


def _notes(data: FigureData, levels: tuple[float, ...]) -> list[str]:
    """Notes for the caption: the levels, and whether an axis is stretched."""
    values = ", ".join(number_text(data.scale.real(level), 3) for level in levels)
    spans = [axis.span for axis in data.axes]
    stretched = ["A short axis is stretched to a fifth of the longest"] if max(spans) > 5 * min(spans) else []
    return [f"Isosurfaces at {values}", *stretched]


def _isosurface(
    data: FigureData, spec: FigureSpec, level: float, coordinates: tuple[Floats, Floats, Floats]
) -> go.Mesh3d:
    vertices, triangles = isosurface(data.drawn, coordinates, level)
    share = (level - data.scale.low) / (data.scale.high - data.scale.low)
    x, y, z = (typed(vertices[:, k]) for k in range(3))
    i, j, k = (triangles[:, column].astype(np.int32) for column in range(3))
    name = f"{text(data.observable.replace('_', ' '))} = {number_text(data.scale.real(level), 3)}"
    return go.Mesh3d(
        x=x,
        y=y,
        z=z,
        i=i,
        j=j,
        k=k,
        color=colours_of(spec.colour_scale, data.scale, np.array([level]))[0],
        opacity=0.5 - 0.38 * share / 0.6 if share < 0.6 else 0.12,
        lighting={"ambient": 0.65, "diffuse": 0.6, "specular": 0.1, "roughness": 0.8, "fresnel": 0.1},
        name=name,
        hovertemplate=f"alpha %{{x:.4g}}<br>beta %{{y:.4g}}<br>gamma %{{z:.4g}}<br><b>{name}</b><extra></extra>",
        showlegend=False,
        meta={"role": "field"},
    )


def _lone_colour_bar(data: FigureData, spec: FigureSpec) -> go.Scatter3d:
    """A trace without points that provides the colour bar of all isosurfaces."""
    marker = {
        "color": [data.scale.low],
        "cmin": data.scale.low,
        "cmax": data.scale.high,
        "colorscale": colour_scale(spec.colour_scale, data.scale),
        "colorbar": colour_bar(data, COLOUR_BAR_PX),
        "showscale": True,
    }
    return go.Scatter3d(**NOWHERE, mode="markers", marker=marker, showlegend=False, hoverinfo="skip")
