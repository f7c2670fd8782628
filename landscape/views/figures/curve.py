"""Drawing one axis: each observable in a panel of its own, with a band of two standard errors on either side.

The loss has the band of its rise over the origin where that is known: the error of its shape, not of its height.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go
from numpy.typing import NDArray

from landscape.views.figures.holes import hatched, hole_name, hole_names, present_states
from landscape.views.figures.layout import TICKS_PX, Style, base_layout, finish, make_frame, text, wrapped
from landscape.views.figures.overlay import flat_labels, flat_path, legend_names
from landscape.views.figures.pointer import pointer_text, pointer_values
from landscape.views.prepared.prepare import Grid
from landscape.views.prepared.scale import nice_ticks
from landscape.views.prepared.track import Track
from landscape.views.prepared.wording import wrap

Floats = NDArray[np.float64]

PLOT_PX, PANEL_PX, GAP_PX = 620, 300, 34
COLOURS = ("#2f5d9b", "#b35c00", "#3a7d44", "#7a4fa3")  # told apart by panel first, by colour second
DARK_COLOURS = ("#7fb0ef", "#f0a04b", "#7cc88a", "#c09ae0")


def draw_curve(grids: Sequence[Grid], style: Style) -> go.Figure:
    """One panel per prepared observable, above one another on a common axis."""
    first = grids[0]
    x_title = first.axes[0].title
    height = PANEL_PX if len(grids) == 1 else PANEL_PX * 0.72 * len(grids) + GAP_PX * (len(grids) - 1)
    named = list(dict.fromkeys(band_name(grid) for grid in grids if grid.shape_error is not None))
    named += [*(legend_names(first.track)), "loss at the snapshot itself"] if first.track is not None else []
    below = TICKS_PX + 17 * len(wrap(x_title, PLOT_PX, 13))
    names = [*named, *hole_names(first.states)]
    frame = make_frame(first, style, (PLOT_PX, height), left=76, right=28, below=below, legend=names)
    layout = base_layout(first, style, frame) | {
        "xaxis": {"title": {"text": wrapped(x_title, PLOT_PX)}, "range": _x_range(first)}
    }
    layout["xaxis"]["anchor"] = "y" if len(grids) == 1 else f"y{len(grids)}"
    for k in range(len(grids) - 1):  # the panels above share the axis, without its words
        key = f"xaxis{k + 2}"
        layout[key] = {"anchor": f"y{k + 1 if k else ''}", "matches": "x", "showticklabels": False}
    gap = GAP_PX / height
    share = (1 - gap * (len(grids) - 1)) / len(grids)
    traces: list[Any] = []
    for k, grid in enumerate(grids):
        top = 1 - k * (share + gap)
        limits = y_limits(grid)
        layout[f"yaxis{k + 1 if k else ''}"] = _y_axis(grid, limits, top - share, top) | {
            "anchor": "x" if k == len(grids) - 1 else f"x{k + 2}"
        }
        same_band = [j for j, each in enumerate(grids) if band_name(each) == band_name(grid)]
        traces += _panel(grid, k, len(grids), limits, style, same_band[0])
    if first.track is not None and first.observable == "loss":
        track = _over_curve(first, first.track)
        panel = {"xaxis": "x" if len(grids) == 1 else "x2", "yaxis": "y"}
        traces += [trace.update(panel) for trace in flat_path(track, style, joined=False)]
        layout["annotations"] = [
            *layout["annotations"],
            *(
                each | {"xref": panel["xaxis"], "yref": "y"}
                for each in _log_labels(flat_labels(track), first.scale.log)
            ),
        ]
    return finish(first, traces, layout, {"plot": [PLOT_PX, height], "below": below, "equal": False})


def y_limits(grid: Grid) -> tuple[float, float]:
    """The drawn range of the panel: the scale's, and the band and the path as far as they stay near it.

    A band that is broad all along is shown whole, or noise would pass for a shape; one that spreads at an end is not.
    """
    low, high = grid.scale.low, grid.scale.high
    span = high - low
    reach, extra = 0.3 * span, [grid.drawn]
    if grid.shape_error is not None:
        with np.errstate(invalid="ignore", divide="ignore"):
            edges = [grid.values - 2 * grid.shape_error, grid.values + 2 * grid.shape_error]
            edges = [np.log10(np.where(edge > 0, edge, np.nan)) if grid.scale.log else edge for edge in edges]
            half = edges[1] - grid.drawn
        extra += edges
        half = half[np.isfinite(half)]
        reach = max(reach, 1.5 * float(np.median(half))) if half.size else reach
    if grid.track is not None:
        extra.append(grid.track.height)
    near = np.concatenate([each[np.isfinite(each)] for each in extra])
    near = near[(near >= low - reach) & (near <= high + reach)]
    low, high = min(low, near.min(initial=low)), max(high, near.max(initial=high))
    pad = 0.05 * (high - low)
    return float(low - pad), float(high + pad)


def band(x: Floats, values: Floats, error: Floats, floor: float) -> tuple[list[float | None], list[float | None]]:
    """Outlines of values ± 2·error as closed polygons, one per gapless stretch; nothing reaches below `floor`."""
    lower, upper = np.maximum(values - 2 * error, floor), values + 2 * error
    known = np.isfinite(lower) & np.isfinite(upper)
    edges = np.flatnonzero(np.diff(np.concatenate([[0], known.astype(np.int8), [0]])))
    xs: list[float | None] = []
    ys: list[float | None] = []
    for a, b in zip(edges[::2], edges[1::2], strict=True):
        xs += [*x[a:b], *x[a:b][::-1], None]
        ys += [*upper[a:b], *lower[a:b][::-1], None]
    return xs, ys


def band_name(grid: Grid) -> str:
    """What the band around a curve is, in the legend."""
    return "± 2 standard errors" + ("" if grid.rise_error is None else " of the rise over the origin")


def _panel(grid: Grid, k: int, count: int, limits: tuple[float, float], style: Style, first_of_kind: int) -> list[Any]:
    x = grid.axes[0].coordinates
    axis = {"xaxis": "x" if k == count - 1 else f"x{k + 2}", "yaxis": f"y{k + 1 if k else ''}"}
    colour = (DARK_COLOURS if style.theme == "dark" else COLOURS)[k % len(COLOURS)]
    bottom, top = (grid.scale.real(each) for each in limits)
    shown = np.where(np.isfinite(grid.drawn), grid.values, np.nan)
    rows = np.stack([grid.states, grid.states])
    traces: list[Any] = hatched(rows, x, np.array([bottom, top]), present_states(grid.states), style.theme, **axis)
    for code, trace in zip(present_states(grid.states), traces, strict=True):
        trace.update(name=hole_name(code, int((grid.states == code).sum())), legendgroup=str(code), showlegend=k == 0)
    if grid.shape_error is not None:
        floor = bottom if grid.scale.log else -np.inf
        xs, ys = band(x, shown, grid.shape_error, floor)
        fill = {"fill": "toself", "fillcolor": colour, "opacity": 0.24, "line": {"width": 0}, "mode": "lines"}
        traces.append(
            go.Scatter(
                x=xs,
                y=ys,
                name=band_name(grid),
                legendgroup=band_name(grid),
                showlegend=k == first_of_kind,
                hoverinfo="skip",
                meta={"role": "band", "fills": {"light": COLOURS[k % 4], "dark": DARK_COLOURS[k % 4]}},
                **fill,
                **axis,
            )
        )
    name = grid.observable.replace("_", " ")
    raw, value = pointer_values(grid)
    traces.append(
        go.Scatter(
            x=x,
            y=shown,
            customdata=raw,
            mode="lines+markers" if len(x) <= 60 else "lines",
            line={"color": colour, "width": 2},
            marker={"size": 4, "color": colour},
            hovertemplate=f"{grid.axes[0].name} %{{x:.4g}}<br>{pointer_text(text(name), value)}<extra></extra>",
            name=name,
            connectgaps=False,
            showlegend=False,
            meta={"role": "field", "colours": {"light": COLOURS[k % 4], "dark": DARK_COLOURS[k % 4]}},
            **axis,
        )
    )
    if k == 0 and grid.track is not None and np.isfinite(grid.track.loss).any() and grid.observable == "loss":
        marker = {"symbol": "circle-open", "size": 8, "color": colour, "line": {"width": 1.6}}
        hover = {"hovertext": list(grid.track.hover), "hoverinfo": "text"}
        traces.append(
            go.Scatter(
                x=grid.track.places[0],
                y=grid.track.loss,
                mode="markers",
                marker=marker,
                name="loss at the snapshot itself",
                **axis,
                **hover,
            )
        )
    return traces


def _y_axis(grid: Grid, limits: tuple[float, float], bottom: float, top: float) -> dict[str, Any]:
    axis: dict[str, Any] = {
        "title": {"text": text(grid.observable.replace("_", " "))},
        "domain": [max(bottom, 0.0), min(top, 1.0)],
        "range": list(limits),
    }
    if grid.scale.log:
        ticks, texts = nice_ticks(*limits, log=True)
        axis |= {"type": "log", "tickmode": "array", "tickvals": [10.0**tick for tick in ticks], "ticktext": texts}
    return axis


def _x_range(grid: Grid) -> list[float]:
    low, high = float(grid.axes[0].coordinates[0]), float(grid.axes[0].coordinates[-1])
    if grid.track is not None:
        low, high = min(low, float(grid.track.places[0].min())), max(high, float(grid.track.places[0].max()))
    margin = 0.02 * (high - low)
    return [low - margin, high + margin]


def _over_curve(grid: Grid, track: Track) -> Track:
    """The path as a plane's path: its height in place of the second axis, in real values."""
    height = np.array([grid.scale.real(float(each)) for each in track.height])
    labels = tuple(label for label in track.labels if np.isfinite(height[label.index]))
    return Track(track.unit, track.numbers, (track.places[0], height), track.height, track.loss, track.hover, labels)


def _log_labels(labels: list[dict[str, Any]], log: bool) -> list[dict[str, Any]]:
    """Annotations on a logarithmic axis are placed by the logarithm."""
    return [each | {"y": float(np.log10(each["y"]))} for each in labels] if log else labels
