"""What the drawings in space share: the scene's axes and camera, the legend, the path on top."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import plotly.graph_objects as go

from landscape.views.draw.animation import animate
from landscape.views.draw.layout import Style, base_layout, finish, make_frame, one_line
from landscape.views.draw.paths import (
    PathInSpace,
    legend_names,
    raised_note,
    snapshots_note,
    space_keys,
    space_labels,
    space_path,
)
from landscape.views.draw.style import even_shades
from landscape.views.prepare.figure import FigureData
from landscape.views.prepare.missing import missing_names

SCENE_PX = (680, 540)
COLOUR_BAR_PX = 320
CAMERA = {"eye": {"x": 0.95, "y": -1.35, "z": 0.95}, "center": {"x": 0.03, "y": 0, "z": -0.2}}


SHOWN_ROLES = ("origin", "uncertainty", "networks", "curve", "extrema", "finer")  # of what lies over the values


def shown_names(traces: Sequence[Any]) -> list[str]:
    """The legend entries of the layers over the values: the origin, the uncertainty, networks, their curve, extrema."""
    layers = [trace for trace in traces if (trace.meta or {}).get("role") in SHOWN_ROLES]
    return [trace.name for trace in layers if trace.showlegend is not False]


def draw_scene(
    data: FigureData,
    traces: list[Any],
    style: Style,
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
    drawn = [each for each in overlay if np.isfinite(each.height).any()]
    if drawn:
        looks = "colour" if drawn[0].foot is None else "colour and the height"
        data = replace(data, caption=(*data.caption, *snapshots_note(data, looks), *raised_note(drawn)))
    shades = even_shades(style.colour_scale, data.scale)
    paths = [trace for each in drawn for trace in space_path(each, style, shades)]
    paths += space_keys([each.path for each in drawn], style)
    names = [*legend_names([each.path for each in drawn]), *missing_names(data.states), *shown_names(traces)]
    frame = make_frame(data, style, SCENE_PX, left=20, right=100, legend=names)
    layout = base_layout(data, style, frame)
    layout["scene"] = {
        "xaxis": {"title": {"text": one_line(data.axes[0].title, 260, 12)}},
        "yaxis": {"title": {"text": one_line(data.axes[1].title, 260, 12)}},
        "zaxis": z_axis,
        "aspectmode": "manual",
        "aspectratio": dict(zip("xyz", aspect, strict=True)),
        "camera": CAMERA,
    }
    if overlay:
        layout["scene"]["annotations"] = space_labels(
            [each.path for each in overlay], [each.height for each in overlay]
        )
    figure = finish(
        data, [*traces, *paths], layout, {"plot": list(SCENE_PX), "below": 0, "equal": False, "space": True}
    )
    if style.animate:
        animate(figure, [each.path for each in drawn])
    return figure
