"""The band of other seeds behind the curve of a line."""

from __future__ import annotations

from typing import Any

import numpy as np
import plotly.graph_objects as go

from landscape.views.draw.layout import Style
from landscape.views.prepare.figure import FigureData
from landscape.views.prepare.seeds import NAME

FILLS = {"light": "#8a8f98", "dark": "#8a8f98"}


def seed_names(data: FigureData) -> list[str]:
    """The legend entry of the band, where there is one."""
    return [] if data.seeds is None else [NAME]


def seed_band(data: FigureData, style: Style, bottom: float, **place: Any) -> list[go.Scatter]:
    """The band as a polygon without an edge; nothing where lines of other seeds were not evaluated.

    Args:
        bottom: nothing reaches below it where the scale is logarithmic.
        place: the panel, as plotly's `xaxis` and `yaxis`.
    """
    if data.seeds is None:
        return []
    x, floor = data.seeds.at, bottom if data.scale.log else -np.inf
    low, high = np.maximum(data.seeds.low, floor), np.maximum(data.seeds.high, floor)
    return [
        go.Scatter(
            x=[*x, *x[::-1]],
            y=[*high, *low[::-1]],
            name=NAME,
            hoverinfo="skip",
            meta={"role": "seeds", "fills": FILLS},
            fill="toself",
            fillcolor=FILLS[style.theme],
            opacity=0.24,
            line={"width": 0},
            mode="lines",
            **place,
        )
    ]
