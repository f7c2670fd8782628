"""The 3-D surface over two axes: the values as heights."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import plotly.graph_objects as go
from numpy.typing import NDArray

from landscape.views.draw.extrema import space_extrema
from landscape.views.draw.finer import space_edges
from landscape.views.draw.layout import Style, colour_bar, text, with_levels
from landscape.views.draw.marks import error_sheets
from landscape.views.draw.missing import symbols
from landscape.views.draw.networks import space_networks
from landscape.views.draw.origin import space_origin
from landscape.views.draw.paths import LIFT, MARK_LIFT, PathInSpace
from landscape.views.draw.pointer import of_heights
from landscape.views.draw.scene import COLOUR_BAR_PX, draw_scene
from landscape.views.draw.style import ON_PALE_SURFACE, ON_SURFACE, colour_scale, is_centred
from landscape.views.draw.theme import typed
from landscape.views.prepare.figure import FigureData
from landscape.views.prepare.geometry import isolines, refined
from landscape.views.prepare.levels import nice_ticks, number
from landscape.views.prepare.path_on_surface import along_normals, bilinear, path_on_surface
from landscape.views.prepare.paths import DrawnPath
from landscape.views.prepare.scale import Scale

LINE_LIFT = 0.012  # of the height: less, and software that draws WebGL with 16 bits of depth lets the lines sink in
FINEST = 164  # points per axis, at most, of the grid that isolines are found on
HEIGHT = 0.72  # of the longer horizontal axis
REACH = 0.5  # of the range drawn: as much more height the scene has for snapshots that lie off the surface
NAMED = 3  # snapshots beyond an end of the scene, at most, that the caption names


def draw_surface(data: FigureData, style: Style) -> go.Figure:
    """The values as heights over the plane, with isolines on them; missing points have symbols on the floor."""
    span = data.scale.high - data.scale.low
    ends, pale = heights_drawn(data.scale, data.paths), is_centred(style.colour_scale, data.scale)
    aspect = horizontal_aspect(data)
    traces: list[Any] = [
        _heights(data, style),
        level_lines(data, aspect, ON_PALE_SURFACE if pale else ON_SURFACE),
        *error_sheets(data, style),
    ]
    traces += symbols(data.states, tuple(axis.coordinates for axis in data.axes), ends[0], style.theme)
    traces += space_edges(data, style, LINE_LIFT * span)
    traces += space_origin(data, style, origin_height(data) + LIFT * span)
    traces += space_networks(data, style, LIFT * span)
    traces += space_extrema(data, style, 2 * LIFT * span)  # above the marks of the path
    upwards, overlay = z_axis(data, *ends), paths_in_space(data, LIFT * span, ends)
    data = with_levels(data)
    data = replace(data, caption=(*data.caption, *height_notes([("", path) for path in data.paths], ends)))
    return draw_scene(data, traces, style, z_axis=upwards, aspect=[*aspect, HEIGHT], overlay=overlay)


def heights_drawn(scale: Scale, paths: Sequence[DrawnPath]) -> tuple[float, float]:
    """The lowest and the highest height of the scene: the range drawn, and the snapshots that stay near it."""
    span = scale.high - scale.low
    own = np.concatenate([np.empty(0), *(path.own[np.isfinite(path.own)] for path in paths)])
    below, above = own.min(initial=scale.low), own.max(initial=scale.high)
    low, high = max(below, scale.low - REACH * span), min(above, scale.high + REACH * span)
    return low - 0.06 * span, high + 0.04 * span


def height_notes(paths: Sequence[tuple[str, DrawnPath]], ends: tuple[float, float]) -> list[str]:
    """Which snapshots are not drawn at the height of their own loss.

    Args:
        paths: each with what it is called besides its run, or ''.
        ends: the lowest and the highest height of the scene, as `heights_drawn` gives them.
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
            f"({number(float(path.loss[k]), 3)})"
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


def _heights(data: FigureData, style: Style) -> go.Surface:
    """The surface, without plotly's own isolines: those are slow, at even distances only, and worse with holes."""
    scale = data.scale
    quiet = {"highlight": False}
    return go.Surface(
        x=data.axes[0].coordinates,
        y=data.axes[1].coordinates,
        z=typed(data.drawn),
        **of_heights(data),
        cmin=scale.low,
        cmax=scale.high,
        colorscale=colour_scale(style.colour_scale, scale),
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
        aspect: as `horizontal_aspect` gives it.
    """
    alpha, beta = (axis.coordinates for axis in data.axes)
    # Plotly interpolates a cell bilinearly: on the cell's two plain triangles, the lines would sink into it.
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
    """The height of the origin in drawn units: as evaluated there, or interpolated between points of the grid."""
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
        "title": {"text": text(data.observable.replace("_", " "))},
        "range": [low, high],
        "tickmode": "array",
        "tickvals": ticks,
        "ticktext": texts,
    }


def paths_in_space(data: FigureData, lift: float, ends: tuple[float, float]) -> list[PathInSpace]:
    """The paths: their lines over the projections, lifted so that they do not sink in, the snapshots at their own loss.

    A snapshot whose own loss is as good as that of the surface would be half hidden in it: it stands just above, as one
    does whose own loss has no height. What is beyond the ends of the scene is drawn there.

    Args:
        ends: the lowest and the highest height of the scene, as `heights_drawn` gives them.
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
    """Which snapshots lie further from the surface than those on it are raised; of the others that is not known."""
    apart = np.abs(path.own - path.height) > lift
    return np.isfinite(path.own) & (apart | ~np.isfinite(path.height))
