"""The training history as a figure: loss, metrics and learning rate, with the landscapes' intervals shaded.

Several runs are overlaid. All panels share one x axis, so the pointer reads every quantity at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import plotly.graph_objects as go

from landscape.core.errors import capped
from landscape.views.draw.layout import NEEDLESS_BUTTONS, legend_rows, text
from landscape.views.draw.style import CURVES, DARK_CURVES, TEMPLATES, look
from landscape.views.prepare.history import HistoryData, Mark, PathInterval, Series, is_loss, name_rows

PLOT_PX, TALLEST_PX, PANEL_PX, GAP_PX, BELOW_PX, LEGEND_ROW_PX = 620.0, 210.0, 110.0, 18.0, 48.0, 22.0
SHADES = ("rgba(214,51,108,0.16)", "rgba(47,93,155,0.16)", "rgba(58,125,68,0.18)", "rgba(179,92,0,0.16)")
WATCHED = "#d6336c"  # where rules fired
WATCHED_NAME = "a rule of watch fired"
MOST_NAME_ROWS = 6  # of intervals: more names would need more room than the curves; the pointer shows the others
LONGEST_NAME = 40  # characters of a run's name in the legend
POINTS_PER_INTERVAL = 100  # places where the pointer finds an interval


@dataclass(frozen=True)
class HistoryPanel:
    """The panel of one quantity: plotly's name of its y axis, and its part [bottom, top] of the height."""

    y: str
    bottom: float
    top: float


def draw_history(history: HistoryData, theme: str = "light") -> go.Figure:
    """One panel per quantity on a common axis, the loss tallest, the runs overlaid.

    `layout.meta["intervals"]` has the shaded stretches with the names of their landscapes and runs. The shapes and an
    invisible trace for the pointer have the same names, as `name` and `meta["landscape"]`.
    """
    heights = [TALLEST_PX] + [PANEL_PX] * (len(history.columns) - 1)
    total = sum(heights) + GAP_PX * (len(heights) - 1)
    panels = _panels(heights, total)
    layout = _layout(history, total, theme)
    traces: list[Any] = []
    for name, panel in zip(history.columns, panels, strict=True):
        series = [line for line in history.series if line.name == name]
        layout[f"yaxis{panel.y[1:]}"] = _y_axis(name, series, panel, history.log and is_loss(name))
        number = panels.index(panel)
        traces += [_trace(line, panel.y, _colours(history, line, number), history, theme) for line in series]
    layout["xaxis"] |= {"anchor": panels[-1].y, "title": {"text": history.unit}}
    traces += [_target(interval, history) for interval in history.intervals]
    traces += [_watched(marks, history) for run in range(len(history.runs)) if (marks := _marks_of(history, run))]
    return go.Figure(_first_of_each_run(traces, history), layout)


def _panels(heights: Sequence[float], total: float) -> list[HistoryPanel]:
    panels, edge = [], 1.0
    for k, height in enumerate(heights):
        panels.append(HistoryPanel(f"y{k + 1}" if k else "y", max(0.0, edge - height / total), edge))
        edge -= (height + GAP_PX) / total
    return panels


def _layout(history: HistoryData, total: float, theme: str) -> dict[str, Any]:
    named = [replace(interval, name=_title(interval, history)) for interval in _longest(history.intervals)]
    shades = list(dict.fromkeys((interval.name, interval.runs) for interval in history.intervals))
    rows = name_rows(named, *_x_range(history))
    top = 14.0 + 16 * min(max(rows, default=-1) + 1, MOST_NAME_ROWS)
    legend = legend_rows(_legend(history), PLOT_PX)
    bottom = BELOW_PX + (legend * LEGEND_ROW_PX + 10 if legend else 0)
    return {
        "template": TEMPLATES[theme],
        "height": round(total + top + bottom),
        "margin": {"l": 72, "r": 20, "t": top, "b": bottom, "autoexpand": False},
        "showlegend": bool(legend),
        "legend": {"orientation": "h", "x": 0, "xanchor": "left", "y": -(BELOW_PX + 4) / total, "yanchor": "top"},
        "hovermode": "x unified",
        "hoversubplots": "axis",
        "modebar": {"remove": NEEDLESS_BUTTONS},
        "xaxis": {"mirror": "all", "ticks": "", "range": _x_range(history)},
        "meta": {
            "plot": [PLOT_PX, total],
            "top": top,
            "below": BELOW_PX - 4,
            "equal": False,
            "caption": "".join(f"{note}. " for note in history.notes).strip(),
            "intervals": [_found(interval, history) for interval in history.intervals],
            "watch": [
                {"x": mark.x, "texts": list(mark.texts), "line": mark.line, "run": mark.run} for mark in history.marks
            ],
        },
        "shapes": [
            _shade(interval, shades.index((interval.name, interval.runs)), history, theme)
            for interval in history.intervals
        ],
        "annotations": [
            _name(interval, row) for interval, row in zip(named, rows, strict=True) if row < MOST_NAME_ROWS
        ],
    }


def _x_range(history: HistoryData) -> list[float]:
    """The extent of all curves and intervals, with a little room on either side."""
    ends = [float(end) for line in history.series for end in (line.x.min(), line.x.max())]
    ends += [end for interval in history.intervals for end in (interval.start, interval.stop)]
    room = 0.02 * (max(ends) - min(ends)) or 0.5
    return [min(ends) - room, max(ends) + room]


def _legend(history: HistoryData) -> list[str]:
    drawn = {line.run for line in history.series}
    runs = [capped(name, LONGEST_NAME) for k, name in enumerate(history.runs) if k in drawn]
    return (runs if len(history.runs) > 1 else []) + ([WATCHED_NAME] if history.marks else [])


def _y_axis(name: str, series: Sequence[Series], panel: HistoryPanel, log: bool) -> dict[str, Any]:
    """The axis of one panel. A constant gets a range from 0; plotly's own would be -1 to 1."""
    title = {"text": text(capped(name.replace("_", " "), LONGEST_NAME)), "font": {"size": 12}}
    axis: dict[str, Any] = {"domain": [panel.bottom, panel.top], "anchor": "x", "title": title}
    values = np.concatenate([line.y for line in series])
    if log and (values > 0).any():
        return axis | {"type": "log", "dtick": "D2" if _decades(values) < 2 else None}
    if len(values) and np.ptp(values) == 0 and values[0] != 0:
        axis["range"] = sorted([0.0, 2 * float(values[0])])
    return axis


def _decades(values: np.ndarray) -> float:
    positive = values[values > 0]
    return float(np.log10(positive.max()) - np.log10(positive.min()))


def _colours(history: HistoryData, one: Series, panel: int) -> dict[str, str]:
    """The colours of a curve per theme: by panel for a single run, else by run."""
    if len(history.runs) > 1:
        return look(one.run).colours
    return {"light": CURVES[panel % len(CURVES)], "dark": DARK_CURVES[panel % len(DARK_CURVES)]}


def _trace(one: Series, y_axis: str, colours: dict[str, str], history: HistoryData, theme: str) -> go.Scatter:
    several = len(history.runs) > 1
    quantity = text(one.name.replace("_", " "))
    run = text(capped(history.runs[one.run], LONGEST_NAME))
    return go.Scatter(
        x=one.x,
        y=one.y,
        mode="lines+markers" if len(one.x) <= 60 else "lines",
        name=run if several else quantity,
        legendgroup=f"run {one.run}",
        showlegend=False,
        xaxis="x",
        yaxis=y_axis,
        line={"width": 1.8, "color": colours[theme], "dash": look(one.run).dash},
        marker={"size": 4, "color": colours[theme]},
        hovertemplate=f"%{{y:.5g}}<extra>{f'{quantity}, {run}' if several else quantity}</extra>",
        meta={"role": "field", "colours": colours, "run": one.run, "column": one.name},
    )


def _first_of_each_run(traces: list[Any], history: HistoryData) -> list[Any]:
    """The same traces, with legend entries for the first one of each of several runs, and for one set of crosses."""
    shown: set[int] = set()
    for cross in [trace for trace in traces if trace.meta["role"] == "watch"][:1]:
        cross.showlegend = True
    for trace in traces:
        if len(history.runs) > 1 and trace.meta["role"] == "field" and trace.meta["run"] not in shown:
            shown.add(trace.meta["run"])
            trace.showlegend = True
    return traces


def _title(interval: PathInterval, history: HistoryData) -> str:
    """The name of a landscape, with its runs unless all shown runs have it."""
    drawn = {line.run for line in history.series}
    if drawn <= set(interval.runs):
        return interval.name
    return f"{interval.name} ({', '.join(capped(history.runs[k], LONGEST_NAME) for k in interval.runs)})"


def _found(interval: PathInterval, history: HistoryData) -> dict[str, Any]:
    return {
        "landscape": interval.name,
        "runs": list(interval.runs),
        "labels": [history.runs[k] for k in interval.runs],
        "start": interval.start,
        "stop": interval.stop,
    }


def _longest(intervals: Sequence[PathInterval]) -> list[PathInterval]:
    """The longest stretch of each landscape, which gets its name."""
    longest: dict[tuple[str, tuple[int, ...]], PathInterval] = {}
    for interval in intervals:
        key = interval.name, interval.runs
        best = longest.get(key, interval)
        longest[key] = interval if interval.stop - interval.start > best.stop - best.start else best
    return list(longest.values())


def _target(interval: PathInterval, history: HistoryData) -> go.Scatter:
    """Invisible points for the pointer within an interval, along the first curve of the top panel."""
    of_run = [line for line in history.series if line.run in interval.runs] or list(history.series)
    curve = next((line for line in of_run if line.name == history.columns[0]), None)
    inside = curve.x[(curve.x >= interval.start) & (curve.x <= interval.stop)] if curve is not None else np.empty(0)
    every = -(-len(inside) // POINTS_PER_INTERVAL) or 1
    x = np.unique(np.concatenate([[interval.start], inside[::every], [interval.stop]]))
    first = curve if curve is not None else history.series[0]
    order = np.argsort(first.x, kind="stable")
    return go.Scatter(
        x=x,
        y=np.interp(x, first.x[order], first.y[order]),
        mode="markers",
        marker={"opacity": 0, "size": 1},
        name=text(_title(interval, history)),
        hovertemplate=f"<i>{text(_title(interval, history))}</i><extra></extra>",
        showlegend=False,
        xaxis="x",
        yaxis="y",
        meta={"role": "interval", "landscape": interval.name, "runs": list(interval.runs)},
    )


def _marks_of(history: HistoryData, run: int) -> list[Mark]:
    return [mark for mark in history.marks if mark.run == run]


def _watched(marks: Sequence[Mark], history: HistoryData) -> go.Scatter:
    """Crosses on the first curve of a run where rules fired; the pointer shows which."""
    curve = next((line for line in history.series if line.run == marks[0].run), history.series[0])
    panel, order = history.columns.index(curve.name), np.argsort(curve.x, kind="stable")
    x = [mark.x for mark in marks]
    return go.Scatter(
        x=x,
        y=np.interp(x, curve.x[order], curve.y[order]),
        mode="markers",
        marker={"symbol": "x", "size": 8, "color": WATCHED},
        name=WATCHED_NAME,
        text=["<br>".join(map(text, mark.texts)) for mark in marks],
        hovertemplate="%{text}<extra>watch</extra>",
        showlegend=False,
        xaxis="x",
        yaxis=f"y{panel + 1}" if panel else "y",
        meta={"role": "watch", "run": marks[0].run},
    )


def _shade(interval: PathInterval, k: int, history: HistoryData, theme: str) -> dict[str, Any]:
    several = len(history.runs) > 1 and len(interval.runs) == 1
    colour = look(interval.runs[0]).faint(theme, 0.13) if several else SHADES[k % len(SHADES)]
    return {
        "type": "rect",
        "name": interval.name,
        "xref": "x",
        "yref": "paper",
        "x0": interval.start,
        "x1": interval.stop,
        "y0": 0,
        "y1": 1,
        "line": {"width": 0 if interval.stop > interval.start else 2, "color": colour},
        "fillcolor": colour,
        "layer": "below",
    }


def _name(interval: PathInterval, row: int) -> dict[str, Any]:
    return {
        "name": "interval",
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
