"""The training history as a figure: loss, metrics and learning rate, with the landscapes' intervals shaded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import plotly.graph_objects as go
from numpy.typing import NDArray

from landscape.surface import Surface
from landscape.views.figures.curve import COLOURS, DARK_COLOURS
from landscape.views.figures.layout import NEEDLESS_BUTTONS, text
from landscape.views.figures.theme import TEMPLATES
from landscape.views.prepared.comparable import Comparable
from landscape.views.prepared.wording import finite

MOST_POINTS = 3000
MOST_PANELS = 4
SHADES = ("rgba(214,51,108,0.16)", "rgba(47,93,155,0.16)", "rgba(58,125,68,0.18)", "rgba(179,92,0,0.16)")


@dataclass(frozen=True, eq=False)
class Series(Comparable):
    """One recorded quantity over training."""

    name: str
    x: NDArray[np.float64]
    y: NDArray[np.float64]


@dataclass(frozen=True)
class Interval:
    """The stretch of training that one landscape's path covers."""

    name: str
    start: float
    stop: float


@dataclass(frozen=True, eq=False)
class History(Comparable):
    """What the history figure shows; `unit` is what x counts."""

    unit: str
    series: tuple[Series, ...]
    intervals: tuple[Interval, ...]


def prepare_history(
    rows: Sequence[Mapping[str, Any]], surfaces: Sequence[Surface] = (), steps_per_epoch: Any = None
) -> History | None:
    """The recorded quantities with loss first and learning rate last; None where nothing was recorded."""
    paths = [
        (surface.name, surface.path) for surface in surfaces if surface.path is not None and len(surface.path.step)
    ]
    unit = "epoch" if (paths and all(path.unit == "epoch" for _, path in paths)) or not _has(rows, "step") else "step"
    per_epoch = finite(steps_per_epoch)
    names = {key for row in rows for key, value in row.items() if finite(value) is not None} - {"step", "epoch"}
    order = sorted(names, key=lambda name: (name != "loss", name == "learning_rate", name))
    series = [_series(rows, name, unit, per_epoch) for name in order]
    found = tuple(each for each in series if len(each.x))
    if not found:
        return None
    same = [Interval(name, float(path.step[0]), float(path.step[-1])) for name, path in paths if path.unit == unit]
    return History(unit, found, tuple(same))


def _has(rows: Sequence[Mapping[str, Any]], key: str) -> bool:
    return any(finite(row.get(key)) is not None for row in rows)


def _series(rows: Sequence[Mapping[str, Any]], name: str, unit: str, per_epoch: float | None) -> Series:
    points = []
    for row in rows:
        step, epoch, value = (finite(row.get(key)) for key in ("step", "epoch", name))
        x = (
            step / per_epoch
            if unit == "epoch" and per_epoch and step is not None
            else epoch
            if unit == "epoch"
            else step
        )
        if x is not None and value is not None:
            points.append((x, value))
    every = -(-len(points) // MOST_POINTS) or 1
    array = np.array(points[::every], np.float64).reshape(-1, 2)
    return Series(name, array[:, 0], array[:, 1])


def draw_history(history: History, theme: str = "light") -> go.Figure:
    """One panel per quantity on a common axis; at most four, the loss tallest."""
    series = history.series[:MOST_PANELS]
    heights = [210.0] + [110.0] * (len(series) - 1)
    rows = name_rows(
        history.intervals, min(float(each.x[0]) for each in series), max(float(each.x[-1]) for each in series)
    )
    gap, top, bottom = 18.0, 14.0 + 16 * (max(rows, default=0) + 1), 48.0
    total = sum(heights) + gap * (len(series) - 1)
    layout: dict[str, Any] = {
        "template": TEMPLATES[theme],
        "height": round(total + top + bottom),
        "margin": {"l": 72, "r": 20, "t": top, "b": bottom, "autoexpand": False},
        "showlegend": False,
        "hovermode": "x unified",
        "modebar": {"remove": NEEDLESS_BUTTONS},
        "meta": {"plot": [620, total], "below": 44, "equal": False},
        "shapes": [_shade(each, k) for k, each in enumerate(history.intervals)],
        "annotations": [_name(each, row) for each, row in zip(history.intervals, rows, strict=True)],
    }
    traces, edge = [], 1.0
    for k, (each, height) in enumerate(zip(series, heights, strict=True)):
        key = str(k + 1) if k else ""
        last = k == len(series) - 1
        layout[f"yaxis{key}"] = {"domain": [max(0.0, edge - height / total), edge], "anchor": f"x{key}"}
        layout[f"yaxis{key}"]["title"] = {"text": text(each.name.replace("_", " ")), "font": {"size": 12}}
        if len(each.y) and np.ptp(each.y) == 0 and each.y[0] != 0:  # else plotly shows a constant from -1 to 1
            layout[f"yaxis{key}"]["range"] = sorted([0.0, 2 * float(each.y[0])])
        layout[f"xaxis{key}"] = {"anchor": f"y{key}", "showticklabels": last} | ({"matches": "x"} if k else {})
        if last:
            layout[f"xaxis{key}"]["title"] = {"text": history.unit}
        edge -= (height + gap) / total
        marks = "lines+markers" if len(each.x) <= 60 else "lines"
        colours = {"light": COLOURS[k % 4], "dark": DARK_COLOURS[k % 4]}
        traces.append(
            go.Scatter(
                x=each.x,
                y=each.y,
                mode=marks,
                name=text(each.name.replace("_", " ")),
                xaxis=f"x{key}",
                yaxis=f"y{key}",
                line={"width": 1.8, "color": colours[theme]},
                marker={"size": 4, "color": colours[theme]},
                hovertemplate="%{y:.5g}",
                meta={"role": "field", "colours": colours},
            )
        )
    return go.Figure(traces, layout)


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


def name_rows(intervals: Sequence[Interval], low: float, high: float) -> list[int]:
    """The row for each interval's name above the figure, so that names side by side keep clear of each other."""
    span = (high - low) or 1.0
    ends: list[float] = []
    rows = []
    for each in intervals:
        half = (len(each.name) * 6.5 + 10) / 2 / 360 * span  # 360 px: the plot on a narrow page
        middle = (each.start + each.stop) / 2
        row = next((k for k, end in enumerate(ends) if middle - half >= end), len(ends))
        ends[row : row + 1] = [middle + half]
        rows.append(row)
    return rows


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
