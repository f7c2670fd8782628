"""Marks of a refined landscape: dotted lines where its steps get finer, and dots on a curve where it was evaluated."""

from __future__ import annotations

from typing import Any

import numpy as np
import plotly.graph_objects as go

from landscape.views.draw.layout import Style
from landscape.views.draw.theme import INK, PAPER, themed
from landscape.views.prepare.figure import FigureData, Floats
from landscape.views.prepare.finer import finer_edges

NAME = "edges of finer steps"
WIDTH = 1.1


def finer_names(data: FigureData) -> list[str]:
    """The legend entry of the edges, where the landscape is refined."""
    return [] if data.interpolated is None else [NAME]


def edge_places(data: FigureData, *, every_point: bool = False) -> tuple[Floats, Floats, Floats]:
    """The edges on a plane, one after another, with NaN after each.

    Args:
        every_point: the points of the grid between the ends of each edge as well, for lines on a surface.

    Returns:
        Both coordinates, and the drawn values there.
    """
    assert data.interpolated is not None
    edges = finer_edges(data.interpolated)
    if not every_point:
        edges = [(rows[[0, -1]], columns[[0, -1]]) for rows, columns in edges]
    x, y = (axis.coordinates for axis in data.axes)
    gap = [np.nan]
    parts = [(np.r_[x[columns], gap], np.r_[y[rows], gap], np.r_[data.drawn[rows, columns], gap])
             for rows, columns in edges]  # fmt: skip
    along = [np.concatenate(each) for each in zip(*parts, strict=True)] if parts else [np.array(gap)] * 3
    return along[0], along[1], along[2]


def flat_edges(data: FigureData, style: Style) -> list[go.Scatter]:
    """The edges on a plane, with a halo as they cross all colours; as many traces also where a slice has no edge."""
    if data.interpolated is None:
        return []
    x, y, _ = edge_places(data)
    traces = []
    for width, dash, colours in ((2 * WIDTH, "solid", PAPER), (WIDTH, "dot", INK)):
        lines = {theme: {"line": {"color": colour, "width": width, "dash": dash}} for theme, colour in colours.items()}
        above = dash == "dot"
        look: dict[str, Any] = {"opacity": 1.0 if above else 0.5, "legendgroup": NAME, "showlegend": above}
        look |= themed(lines, style.theme, role="finer")
        traces.append(go.Scatter(x=x, y=y, mode="lines", name=NAME, hoverinfo="skip", **look))
    return traces


def space_edges(data: FigureData, style: Style, lift: float) -> list[go.Scatter3d]:
    """The edges on a surface.

    Args:
        lift: of the lines above the values, so that they do not sink into the surface.
    """
    if data.interpolated is None:
        return []
    x, y, z = edge_places(data, every_point=True)
    lines = {theme: {"line": {"color": ink, "width": 1.5, "dash": "dot"}} for theme, ink in INK.items()}
    options: dict[str, Any] = themed(lines, style.theme, role="finer")
    return [go.Scatter3d(x=x, y=y, z=z + lift, mode="lines", name=NAME, hoverinfo="skip", showlegend=True, **options)]
