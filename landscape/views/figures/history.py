"""The training history as a figure: loss, metrics and learning rate, with the landscapes' intervals shaded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go

from landscape.views.figures.colours import CURVES, DARK_CURVES
from landscape.views.figures.layout import NEEDLESS_BUTTONS, text
from landscape.views.figures.theme import TEMPLATES
from landscape.views.prepared.history import HistoryData, Interval, Series, name_rows

MOST_PANELS = 4
TALLEST_PX, PANEL_PX, GAP_PX, BELOW_PX = 210.0, 110.0, 18.0, 48.0
SHADES = ("rgba(214,51,108,0.16)", "rgba(47,93,155,0.16)", "rgba(58,125,68,0.18)", "rgba(179,92,0,0.16)")


def draw_history(history: HistoryData, theme: str = "light") -> go.Figure:
    """One panel per quantity on a common axis; at most four, the loss tallest."""
    series = history.series[:MOST_PANELS]
    heights = [TALLEST_PX] + [PANEL_PX] * (len(series) - 1)
    total = sum(heights) + GAP_PX * (len(series) - 1)
    layout = _layout(history, series, total, theme)
    traces, edge = [], 1.0
    for k, (one, height) in enumerate(zip(series, heights, strict=True)):
        domain = [max(0.0, edge - height / total), edge]
        layout |= _axes(one, k, domain, history.unit if k == len(series) - 1 else None)
        traces.append(_trace(one, k, theme))
        edge -= (height + GAP_PX) / total
    return go.Figure(traces, layout)


def _layout(history: HistoryData, series: Sequence[Series], total: float, theme: str) -> dict[str, Any]:
    low, high = min(float(one.x[0]) for one in series), max(float(one.x[-1]) for one in series)
    rows = name_rows(history.intervals, low, high)
    top = 14.0 + 16 * (max(rows, default=0) + 1)
    return {
        "template": TEMPLATES[theme],
        "height": round(total + top + BELOW_PX),
        "margin": {"l": 72, "r": 20, "t": top, "b": BELOW_PX, "autoexpand": False},
        "showlegend": False,
        "hovermode": "x unified",
        "modebar": {"remove": NEEDLESS_BUTTONS},
        "meta": {"plot": [620, total], "below": 44, "equal": False},
        "shapes": [_shade(interval, k) for k, interval in enumerate(history.intervals)],
        "annotations": [_name(interval, row) for interval, row in zip(history.intervals, rows, strict=True)],
    }


def _axes(one: Series, k: int, domain: list[float], unit: str | None) -> dict[str, Any]:
    """The axes of the `k`-th panel; the lowest one names the `unit`."""
    key = str(k + 1) if k else ""
    y_axis: dict[str, Any] = {"domain": domain, "anchor": f"x{key}"}
    y_axis["title"] = {"text": text(one.name.replace("_", " ")), "font": {"size": 12}}
    if len(one.y) and np.ptp(one.y) == 0 and one.y[0] != 0:  # else plotly shows a constant from -1 to 1
        y_axis["range"] = sorted([0.0, 2 * float(one.y[0])])
    x_axis: dict[str, Any] = {"anchor": f"y{key}", "showticklabels": unit is not None}
    x_axis |= {"matches": "x"} if k else {}
    x_axis |= {"title": {"text": unit}} if unit is not None else {}
    return {f"yaxis{key}": y_axis, f"xaxis{key}": x_axis}


def _trace(one: Series, k: int, theme: str) -> go.Scatter:
    key = str(k + 1) if k else ""
    colours = {"light": CURVES[k % 4], "dark": DARK_CURVES[k % 4]}
    return go.Scatter(
        x=one.x,
        y=one.y,
        mode="lines+markers" if len(one.x) <= 60 else "lines",
        name=text(one.name.replace("_", " ")),
        xaxis=f"x{key}",
        yaxis=f"y{key}",
        line={"width": 1.8, "color": colours[theme]},
        marker={"size": 4, "color": colours[theme]},
        hovertemplate="%{y:.5g}",
        meta={"role": "field", "colours": colours},
    )


def _shade(interval: Interval, k: int) -> dict[str, Any]:
    return {
        "type": "rect",
        "xref": "x",
        "yref": "paper",
        "x0": interval.start,
        "x1": interval.stop,
        "y0": 0,
        "y1": 1,
        "line": {"width": 0},
        "fillcolor": SHADES[k % len(SHADES)],
        "layer": "below",
    }


def _name(interval: Interval, row: int) -> dict[str, Any]:
    return {
        "text": text(interval.name),
        "x": (interval.start + interval.stop) / 2,
        "xref": "x",
        "y": 1,
        "yref": "paper",
        "yanchor": "bottom",
        "yshift": 16 * row,
        "showarrow": False,
        "font": {"size": 11},
    }
