"""The figures of rounding: the loss at the origin over the bits, and the steps near the origin."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go

from landscape.views.draw.layout import sentence, wrapped
from landscape.views.draw.style import CURVES, DARK_CURVES
from landscape.views.draw.theme import TEMPLATES
from landscape.views.prepare.levels import nice_ticks
from landscape.views.prepare.quantisation import BitCurve, StepLine

WIDTH, HEIGHT, ABOVE, BELOW = 720, 440, 54, 118


def draw_bits(curve: BitCurve, theme: str = "light") -> go.Figure:
    """The loss over the bits, with the loss of the network that is not rounded as a line across."""
    first, second = (DARK_CURVES if theme == "dark" else CURVES)[:2]
    traces = [
        go.Scatter(
            x=[min(curve.bits) - 0.4, max(curve.bits) + 0.4],
            y=[curve.plain, curve.plain],
            mode="lines",
            name="not rounded",
            line={"color": second, "dash": "dash", "width": 1.6},
        ),
        go.Scatter(
            x=list(curve.bits),
            y=curve.loss,
            error_y={"type": "data", "array": np.nan_to_num(curve.error), "thickness": 1.4, "width": 4},
            mode="lines+markers",
            name="rounded",
            line={"color": first, "width": 1.6},
            marker={"size": 8},
        ),
    ]
    layout = _layout(curve.title, curve.caption, theme)
    layout["xaxis"] = {"title": {"text": "bits"}, "tickmode": "array", "tickvals": list(curve.bits)}
    layout["yaxis"] = {"title": {"text": "loss"}, "type": "log" if curve.log else "linear"}
    if curve.log:
        finite = np.log10([value for value in (*curve.loss, curve.plain) if np.isfinite(value) and value > 0])
        ticks, texts = nice_ticks(float(finite.min()), float(finite.max()), log=True)
        layout["yaxis"] |= {"tickmode": "array", "tickvals": [10.0**tick for tick in ticks], "ticktext": texts}
        layout["yaxis"]["title"]["text"] = "loss (logarithmic)"
    return go.Figure(traces, layout)


def draw_steps(line: StepLine, theme: str = "light") -> go.Figure:
    """Both losses on the short line."""
    first, second = (DARK_CURVES if theme == "dark" else CURVES)[:2]
    traces = [
        go.Scatter(
            x=line.at, y=line.plain, mode="lines", name="not rounded",
            line={"color": second, "dash": "dash", "width": 1.6},
        ),
        go.Scatter(
            x=line.at, y=line.rounded, mode="lines+markers", name="rounded",
            line={"color": first, "width": 1.4, "shape": "hvh"}, marker={"size": 4},
        ),
    ]  # fmt: skip
    layout = _layout(line.title, line.caption, theme)
    layout["xaxis"] = {"title": {"text": line.axis}, "exponentformat": "power"}
    layout["yaxis"] = {"title": {"text": "rise of the loss"}, "exponentformat": "power"}
    return go.Figure(traces, layout)


def _layout(title: str, caption: Sequence[str], theme: str) -> dict[str, Any]:
    return {
        "template": TEMPLATES[theme],
        "width": WIDTH,
        "height": HEIGHT + ABOVE + BELOW,
        "margin": {"l": 78, "r": 24, "t": ABOVE, "b": BELOW},
        "title": {"text": title},
        "legend": {"orientation": "h", "x": 0, "y": 1.0, "yanchor": "bottom"},
        "annotations": [
            {
                "text": wrapped(sentence(list(caption)), WIDTH - 110, 11),
                "showarrow": False,
                "xref": "paper",
                "yref": "paper",
                "x": 0,
                "y": -58 / HEIGHT,
                "xanchor": "left",
                "yanchor": "top",
                "align": "left",
                "font": {"size": 11},
            }
        ],
    }
