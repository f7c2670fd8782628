"""The marks of minima and of the saddles at which they merge: dots and crosses, each in its own legend entry."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import plotly.graph_objects as go

from landscape.views.draw.layout import Style
from landscape.views.draw.theme import INK, PAPER, themed
from landscape.views.prepare.extrema import Marks
from landscape.views.prepare.figure import FigureData

# Ink with an edge of paper, so that they are seen on any colour; smaller than the marks of the path, on which they lie.
FLAT = {"minima": ("circle", 9, 1.6), "saddles": ("x", 9, 1.2)}
SPACE = {"minima": ("circle", 5, 1), "saddles": ("x", 3.5, 0)}
ROLE = "extrema"


def extrema_names(data: FigureData) -> list[str]:
    """The legend entries of the marks, where these are drawn."""
    return [marks.name for _, marks in _kinds(data)]


def flat_extrema(data: FigureData, style: Style, **place: Any) -> list[go.Scatter]:
    """The marks on a plane at their places; over one axis at their values.

    Args:
        place: the panel, as plotly's `xaxis` and `yaxis`.
    """
    traces = []
    for kind, marks in _kinds(data):
        x, y = marks.places[0], _real(data, marks) if len(data.axes) == 1 else marks.places[1]
        spots = (
            {"x": x, "y": y} if len(x) else {"x": [None], "y": [None]}
        )  # without any, the legend would lose its entry
        traces.append(go.Scatter(**spots, **_look(marks, FLAT[kind], style), **place))
    return traces


def space_extrema(data: FigureData, style: Style, lift: float = 0.0) -> list[go.Scatter3d]:
    """The marks in space, of two axes at their values, lifted so that they do not sink into the surface."""
    return [
        go.Scatter3d(
            x=marks.places[0],
            y=marks.places[1],
            z=marks.height + lift if len(data.axes) == 2 else marks.places[2],
            **_look(marks, SPACE[kind], style),
        )
        for kind, marks in _kinds(data)
    ]


def _kinds(data: FigureData) -> list[tuple[str, Marks]]:
    """The marks that the landscape has; the saddles first, as of two marks at one place the minimum is to be seen."""
    if data.extrema is None:
        return []
    both = [("saddles", data.extrema.saddles), ("minima", data.extrema.minima)]
    return [(kind, marks) for kind, marks in both if marks.name]


def _real(data: FigureData, marks: Marks) -> np.ndarray:
    return np.array([data.scale.real(height) for height in marks.height])


def _look(marks: Marks, shape: tuple[str, float, float], style: Style) -> Mapping[str, Any]:
    symbol, size, edge = shape
    markers = {
        theme: {
            "marker": {
                "symbol": symbol,
                "size": size,
                "color": INK[theme],
                "line": {"color": PAPER[theme], "width": edge},
            }
        }
        for theme in INK
    }
    words = {"name": marks.name, "hovertext": list(marks.hover), "hoverinfo": "text", "showlegend": True}
    return {"mode": "markers", **words, **themed(markers, style.theme, role=ROLE)}
