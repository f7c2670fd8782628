"""The mark of the origin: a thin cross where the axes are 0, in its own legend entry."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import plotly.graph_objects as go

from landscape.views.figures.layout import Style
from landscape.views.figures.theme import INK, PAPER, themed
from landscape.views.prepared.figure_data import FigureData

SIZE, LINE, HALO = 24, 1.3, 3.5  # the arms reach out beyond the mark of the convergence point, often at the same place


def origin_names(data: FigureData) -> list[str]:
    """The legend entry of the mark, where there is one."""
    return [] if data.origin is None else [data.origin.name]


def flat_origin(data: FigureData, style: Style, y: float = 0.0, **place: Any) -> list[go.Scatter]:
    """The mark on a plane at (0, `y`): a cross with a halo, so that it is seen on any colour.

    Args:
        place: the panel, as plotly's `xaxis` and `yaxis`.
    """
    if data.origin is None or not math.isfinite(y):
        return []
    common: dict[str, Any] = {"x": [0.0], "y": [y], "mode": "markers", **place}
    halo = go.Scatter(
        opacity=0.75,
        hoverinfo="skip",
        showlegend=False,
        **common,
        **themed(_crosses(SIZE + 2, HALO, PAPER), style.theme, role="origin"),
    )
    cross = go.Scatter(
        name=data.origin.name,
        hovertext=[data.origin.hover],
        hoverinfo="text",
        **common,
        **themed(_crosses(SIZE, LINE, INK), style.theme, role="origin"),
    )
    return [halo, cross]


def _crosses(size: float, width: float, colours: Mapping[str, str]) -> dict[str, Any]:
    """The marker of the cross per theme."""
    return {
        theme: {"marker": {"symbol": "cross-thin", "size": size, "line": {"color": colour, "width": width}}}
        for theme, colour in colours.items()
    }


def space_origin(data: FigureData, style: Style, z: float) -> list[go.Scatter3d]:
    """The mark in space at (0, 0, `z`); empty where the height is not known."""
    if data.origin is None or not np.isfinite(z):
        return []
    marker = {theme: {"marker": {"symbol": "cross", "size": 5, "color": ink}} for theme, ink in INK.items()}
    return [
        go.Scatter3d(
            x=[0.0],
            y=[0.0],
            z=[z],
            mode="markers",
            name=data.origin.name,
            hovertext=[data.origin.hover],
            hoverinfo="text",
            **themed(marker, style.theme, role="origin"),
        )
    ]
