"""The mark of the origin: a thin cross where the axes are 0, in its own legend entry."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import plotly.graph_objects as go

from landscape.views.draw.layout import Style
from landscape.views.draw.theme import INK, PAPER, themed
from landscape.views.prepare.figure import FigureData

ARM = 0.05  # of an axis: the reach of the mark in space, to either side
SIZE, LINE, HALO = 24, 1.3, 3.5  # the arms reach out beyond the mark of the last snapshot, often at the same place


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
    """The mark in space at (0, 0, `z`): three thin lines that cross; empty where the height is not known.

    Lines, as plotly makes a marker in space from a letter, which takes longer than all else that is drawn.
    """
    if data.origin is None or not np.isfinite(z):
        return []
    ends = np.full((3, 3, 3), np.nan)  # [line, its two ends and a gap, axis]
    spans = [*(axis.span for axis in data.axes), data.scale.high - data.scale.low]
    for k, span in enumerate(spans[:3]):
        ends[k, :2] = 0.0
        ends[k, :2, k] = -ARM * span, ARM * span
    points = ends.reshape(9, 3) + np.array([0.0, 0.0, z])
    lines = {theme: {"line": {"color": ink, "width": 4}} for theme, ink in INK.items()}
    return [
        go.Scatter3d(
            x=points[:, 0],
            y=points[:, 1],
            z=points[:, 2],
            mode="lines",
            connectgaps=False,
            name=data.origin.name,
            hovertext=data.origin.hover,
            hoverinfo="text",
            **themed(lines, style.theme, role="origin"),
        )
    ]
