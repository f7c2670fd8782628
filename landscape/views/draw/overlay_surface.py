"""Surfaces over one another in space, each in shades of a colour of its own."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import plotly.graph_objects as go

from landscape.views.draw.layout import Style, with_levels
from landscape.views.draw.missing import symbols
from landscape.views.draw.origin import space_origin
from landscape.views.draw.overlay import add_marks, entry, space_key, space_marks
from landscape.views.draw.overlay_looks import hue_scale, look
from landscape.views.draw.paths import LIFT, PathInSpace, raised_note
from landscape.views.draw.pointer import of_heights
from landscape.views.draw.scene import draw_scene
from landscape.views.draw.space import (
    HEIGHT,
    height_notes,
    heights_drawn,
    horizontal_aspect,
    level_lines,
    origin_height,
    paths_in_space,
    z_axis,
)
from landscape.views.draw.theme import typed
from landscape.views.prepare.comparison_overlay import OverlayData
from landscape.views.prepare.figure import FigureData
from landscape.views.prepare.words import observable_title

LINES = "rgba(255,255,255,0.6)"


def draw_surface_overlay(data: OverlayData, style: Style, opacity: float) -> go.Figure:
    """The surfaces on one height scale, with contour lines, paths and last snapshots; missing points on the floor.

    Args:
        opacity: of the surfaces, from 0 to 1.
    """
    frame = data.frame
    span = frame.scale.high - frame.scale.low
    named = [(label, path) for label, field in zip(data.labels, data.fields, strict=True) for path in field.paths]
    ends = heights_drawn(frame.scale, [path for _, path in named])
    aspect = horizontal_aspect(frame)
    traces: list[Any] = []
    marks: list[Any] = []
    overlays: list[PathInSpace] = []
    for number, (label, field) in enumerate(zip(data.labels, data.fields, strict=True)):
        group = {"legendgroup": f"item {number}"}
        traces.append(_heights(field, label, number, opacity))
        traces.append(level_lines(field, aspect, LINES).update(meta={"role": "lines", "item": number}, **group))
        marks.append(space_key(label, number, look(number), style))
        missing = symbols(field.states, tuple(axis.coordinates for axis in field.axes), ends[0], style.theme)
        for trace in missing:
            trace.update(name=f"{entry(label)}: {trace.name}", **group)
        marks += missing
        drawn = paths_in_space(field, LIFT * span, ends)
        overlays += drawn
        for path in drawn:
            marks += space_marks(path, label, number, look(number), style)
    traces += _origins(data, style, span)
    if any(np.isfinite(path.own).any() for _, path in named):
        frame = replace(
            frame,
            caption=(*frame.caption, f"Snapshots have the height of their own {observable_title(frame.observable)}"),
        )
    frame = replace(frame, caption=(*frame.caption, *raised_note(overlays), *height_notes(named, ends)))
    upwards, aspects = z_axis(frame, *ends), [*aspect, HEIGHT]
    figure = draw_scene(with_levels(frame), traces, style, z_axis=upwards, aspect=aspects, overlay=[])
    return add_marks(figure, marks)


def _heights(field: FigureData, label: str, number: int, opacity: float) -> go.Surface:
    quiet, pointed = {"highlight": False}, of_heights(field)
    return go.Surface(
        x=field.axes[0].coordinates,
        y=field.axes[1].coordinates,
        z=typed(field.drawn),
        customdata=pointed["customdata"],
        text=pointed["text"],
        hovertemplate=pointed["hovertemplate"].replace("<extra></extra>", f"<extra>{entry(label)}</extra>"),
        cmin=field.scale.low,
        cmax=field.scale.high,
        colorscale=hue_scale(look(number)),
        showscale=False,
        opacity=opacity,
        contours={"x": quiet, "y": quiet, "z": quiet},
        lighting={"ambient": 0.72, "diffuse": 0.5, "specular": 0.08, "roughness": 0.85, "fresnel": 0.05},
        connectgaps=False,
        name=entry(label),
        legendgroup=f"item {number}",
        showlegend=False,
        meta={"role": "field", "item": number},
    )


def _origins(data: OverlayData, style: Style, span: float) -> list[go.Scatter3d]:
    """The origin on each surface, with one legend entry for all."""
    marks = [mark for field in data.fields for mark in space_origin(field, style, origin_height(field) + LIFT * span)]
    for mark in marks[1:]:
        mark.update(showlegend=False)
    return [mark.update(legendgroup="origin") for mark in marks]
