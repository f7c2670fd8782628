"""The layer of uncertainty: where the values cannot be told from that of the origin, and how far they may be off."""

from __future__ import annotations

from typing import Any

import numpy as np
import plotly.graph_objects as go

from landscape.views.draw.layout import Style
from landscape.views.draw.theme import INK, themed, typed
from landscape.views.prepare.figure import FigureData
from landscape.views.prepare.isosurfaces import isosurface

BAND_NAME = "± 2 standard errors"
SHEET = {"light": "#7a8699", "dark": "#b9c4d4"}
VEIL = {"light": "rgba(255,255,255,0.45)", "dark": "rgba(20,24,31,0.5)"}


def unclear_names(data: FigureData) -> list[str]:
    """The legend entry of the region on a plane or in a volume, where it is drawn."""
    return [] if data.difference is None else [data.unclear]


def unclear_region(data: FigureData, style: Style) -> list[go.Contour]:
    """Where the values of a plane cannot be told from that of the origin: veiled, with a dashed edge."""
    if data.difference is None:
        return []
    edge = {"width": 1.4, "dash": "dash", "smoothing": 0.6 if max(data.difference.shape) <= 100 else 0.0}
    veils = {theme: {"fillcolor": VEIL[theme], "line": {**edge, "color": ink}} for theme, ink in INK.items()}
    return [
        go.Contour(
            x=data.axes[0].coordinates,
            y=data.axes[1].coordinates,
            z=typed(data.difference),
            # Plotly fills what does not fulfil the condition.
            contours={"type": "constraint", "operation": ">", "value": 1},
            connectgaps=False,
            hoverinfo="skip",
            name=data.unclear,
            showlegend=True,
            **themed(veils, style.theme, role="uncertainty"),
        )
    ]


def unclear_volume(data: FigureData, style: Style) -> list[go.Mesh3d]:
    """The surface in a volume within which the values cannot be told from that of the origin."""
    if data.difference is None:
        return []
    first, second, third = (axis.coordinates for axis in data.axes)
    vertices, triangles = isosurface(data.difference, (first, second, third), 1.0)
    places = {axis: typed(vertices[:, k]) for k, axis in enumerate("xyz")}
    corners = {corner: triangles[:, k].astype(np.int32) for k, corner in enumerate("ijk")}
    return [
        go.Mesh3d(
            opacity=0.25,
            hoverinfo="skip",
            name=data.unclear,
            showlegend=True,
            **themed({theme: {"color": ink} for theme, ink in INK.items()}, style.theme, role="uncertainty"),
            **places,
            **corners,
        )
    ]


def error_sheets(data: FigureData, style: Style) -> list[go.Surface]:
    """Two translucent surfaces, two standard errors of the shape above and below the values; none without errors."""
    error = data.shape_error
    if data.difference is None or error is None:
        return []
    sheets: list[Any] = []
    scales = {theme: {"colorscale": [[0, grey], [1, grey]]} for theme, grey in SHEET.items()}
    for sign, first in ((-1, True), (1, False)):
        heights = data.values + sign * 2 * error
        if data.scale.log:
            with np.errstate(invalid="ignore", divide="ignore"):
                heights = np.log10(np.where(heights > 0, heights, np.nan))
        heights = np.where(np.isfinite(data.drawn), heights, np.nan)
        sheets.append(
            go.Surface(
                x=data.axes[0].coordinates,
                y=data.axes[1].coordinates,
                z=typed(heights),
                showscale=False,
                opacity=0.35,
                hoverinfo="skip",
                contours={"x": {"highlight": False}, "y": {"highlight": False}, "z": {"highlight": False}},
                name=BAND_NAME,
                legendgroup=BAND_NAME,
                showlegend=first,
                connectgaps=False,
                **themed(scales, style.theme, role="uncertainty"),
            )
        )
    return sheets
