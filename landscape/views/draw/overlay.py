"""What an overlay shows of each landscape beside its values: the legend entry, the path, the last snapshot."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import plotly.graph_objects as go

from landscape.core.errors import capped
from landscape.views.draw.layout import Style, legend_rows, text
from landscape.views.draw.overlay_looks import Look
from landscape.views.draw.paths import POINTS_OF_THREAD, PathInSpace, threads
from landscape.views.draw.theme import INK, PAPER, PATH_HALO, themed
from landscape.views.prepare.paths import DrawnPath

LEGEND = {"traceorder": "normal", "itemsizing": "trace"}  # entries in rows, each with its own line style
LEGEND_ROW_PX, LEGEND_GAP_PX = 22, 8
KEY_RANK = 900  # of plotly's 1000: the landscapes come first in the legend
NEAR, WIDER = 0.015, 0.8  # of the width of the plot: marks so near hide one another; of the size of one that is hidden
LONGEST_LABEL = 48  # characters of a label in the legend


def entry(label: str) -> str:
    """The legend entry of one landscape, which plotly reads as HTML."""
    return text(capped(label, LONGEST_LABEL))


def end_entry(label: str, path: DrawnPath) -> str:
    """The legend entry of the last snapshot, such as 'sgd: minimum, last snapshot (epoch 20)'.

    Of one of several paths, the run is named: 'both, last snapshot of sgd (epoch 20)'.
    """
    last = f"{path.end_name} of {text(path.run)} ({path.unit} {path.numbers[-1]})" if path.run else path.end_name
    return f"{entry(label)}, {last}"


def overlay_names(labels: Sequence[str], paths: Sequence[Sequence[DrawnPath]]) -> list[str]:
    """All legend entries of the landscapes and their last snapshots."""
    ends = [end_entry(label, path) for label, own in zip(labels, paths, strict=True) for path in own]
    return [*(entry(label) for label in labels), *ends]


def flat_key(label: str, number: int, look: Look, style: Style) -> go.Scatter:
    """The legend entry of lines on a plane: a trace without points, as a contour trace has no entry of this look."""
    lines = {theme: {"line": {"color": look.colours[theme], "dash": look.dash, "width": 2}} for theme in look.colours}
    return go.Scatter(
        x=[None],
        y=[None],
        mode="lines",
        name=entry(label),
        legendgroup=f"item {number}",
        showlegend=True,
        legendrank=KEY_RANK + number,
        hoverinfo="skip",
        **themed(lines, style.theme, role="key", item=number),
    )


def space_key(label: str, number: int, look: Look, style: Style) -> go.Scatter3d:
    """The legend entry of a surface: a trace without points."""
    markers = {
        theme: {"marker": {"symbol": "square", "size": 9, "color": look.colours["light"]}} for theme in look.colours
    }
    return go.Scatter3d(
        x=[None],
        y=[None],
        z=[None],
        mode="markers",
        name=entry(label),
        legendgroup=f"item {number}",
        showlegend=True,
        legendrank=KEY_RANK + number,
        hoverinfo="skip",
        **themed(markers, style.theme, role="key", item=number),
    )


def flat_marks(
    path: DrawnPath, label: str, number: int, look: Look, style: Style, *, joined: bool = True
) -> list[go.Scatter]:
    """The path on a plane in the landscape's own look, and its last snapshot.

    Args:
        joined: draw the path, and not the last snapshot alone.
    """
    x, y = path.places[0], path.places[1]
    group = {"legendgroup": f"item {number}"}
    hover = [f"<b>{entry(label)}</b><br>{line}" for line in path.hover]
    traces = []
    if joined:
        lines = {
            theme: {
                "line": {"color": colour, "dash": look.dash, "width": style.path_width * 0.7},
                "marker": {"color": colour, "size": 4},
            }
            for theme, colour in look.colours.items()
        }
        options: dict[str, Any] = themed(lines, style.theme, role="path", item=number)
        traces.append(
            go.Scatter(
                x=x,
                y=y,
                mode="lines+markers",
                hovertext=hover,
                hoverinfo="text",
                name=entry(label),
                showlegend=False,
                **group,
                **options,
            )
        )
    marks = {
        theme: {
            "marker": {
                "symbol": look.mark(path.number),
                "size": 14,
                "color": colour,
                "line": {"color": PAPER[theme], "width": 1.4},
            }
        }
        for theme, colour in look.colours.items()
    }
    options = themed(marks, style.theme, role="end", item=number)
    name = end_entry(label, path)
    traces.append(
        go.Scatter(
            x=x[-1:], y=y[-1:], mode="markers", name=name, hovertext=hover[-1:], hoverinfo="text", **group, **options
        )
    )
    return traces


def space_marks(overlay: PathInSpace, label: str, number: int, look: Look, style: Style) -> list[go.Scatter3d]:
    """The path in space in the landscape's own colour, its snapshots, and the last one where its height is known."""
    path, line, height = overlay.path, overlay.line, overlay.height
    if not np.isfinite(height).any():
        return []
    group = {"legendgroup": f"item {number}"}
    light = look.colours["dark"]  # the light one of the two, as the surface below is in the other
    fills = [light if each else PATH_HALO for each in np.isfinite(path.own)]  # white without a height of its own
    colour = {theme: {"line": {"color": light, "width": style.path_width * 2}} for theme in look.colours}
    joined = go.Scatter3d(
        x=line[:, 0],
        y=line[:, 1],
        z=line[:, 2],
        mode="lines",
        hoverinfo="skip",
        showlegend=False,
        connectgaps=False,
        **group,
        **themed(colour, style.theme, role="path", item=number),
    )
    meta = {"role": "path", "item": number, "path": path.number}
    snapshots = go.Scatter3d(
        x=path.places[0],
        y=path.places[1],
        z=height,
        mode="markers",
        marker={"size": 3, "color": fills, "line": {"color": INK["light"], "width": 1}},
        hovertext=[f"<b>{entry(label)}</b><br>{line}" for line in path.hover],
        hoverinfo="text",
        showlegend=False,
        meta=meta,
        **group,
    )
    hanging = threads(overlay, light, style.path_width, meta=meta | {"each": POINTS_OF_THREAD}, **group)
    white = "" if np.isfinite(path.own[-1]) else PATH_HALO
    return [joined, *hanging, snapshots, *space_end(path, label, number, look, style, float(height[-1]), white)]


def space_end(
    path: DrawnPath, label: str, number: int, look: Look, style: Style, height: float, colour: str = ""
) -> list[go.Scatter3d]:
    """The last snapshot in space at that height, where it is known.

    Args:
        colour: default: that of the look.
    """
    if not np.isfinite(height):
        return []
    edge = {"color": INK["light"], "width": 1}
    symbol = look.mark(path.number, space=True)
    marker = {"symbol": symbol, "size": 6, "color": colour or look.colours["dark"], "line": edge}
    return [
        go.Scatter3d(
            x=path.places[0][-1:],
            y=path.places[1][-1:],
            z=[height],
            mode="markers",
            marker=marker,
            name=end_entry(label, path),
            hovertext=[f"<b>{entry(label)}</b><br>{path.hover[-1]}"],
            hoverinfo="text",
            legendgroup=f"item {number}",
            meta={"role": "end", "item": number},
        )
    ]


def add_marks(figure: go.Figure, traces: Sequence[Any]) -> go.Figure:
    """Add traces on top, with room for their legend entries between the axis and the caption; `figure` is changed."""
    width = figure.layout.meta["plot"][0]
    before = legend_rows(_names(figure.data), width)
    widen_hidden(traces, figure.layout)
    figure.add_traces(list(traces))
    after = legend_rows(_names(figure.data), width)
    extra = (after - before) * LEGEND_ROW_PX + (LEGEND_GAP_PX if after and not before else 0)
    figure.layout.margin.b += extra
    figure.layout.height += extra
    for annotation in figure.layout.annotations:
        if annotation.name == "caption":
            annotation.yshift -= extra
    return figure.update_layout(legend=LEGEND)


def widen_hidden(traces: Sequence[Any], layout: go.Layout) -> None:
    """Make a last snapshot larger for each later one at its place, under which it could not be seen."""
    ends = [trace for trace in traces if (trace.meta or {}).get("role") == "end"]
    near = [NEAR * abs(high - low) for low, high in (layout[f"{name}axis"].range or (0, 0) for name in "xy")]
    for k, one in enumerate(ends):
        over = [
            other
            for other in ends[k + 1 :]
            if abs(one.x[0] - other.x[0]) <= near[0] and abs(one.y[0] - other.y[0]) <= near[1]
            and ("z" not in one or np.isclose(one.z[0], other.z[0]))
        ]  # fmt: skip
        one.marker.size *= 1 + WIDER * len(over)


def _names(traces: Sequence[Any]) -> list[str]:
    return [trace.name for trace in traces if trace.name and trace.showlegend is not False]


def on_curve(path: DrawnPath, real: Any) -> DrawnPath:
    """The path over a curve as one of a plane: its height, in real values, in place of the second axis."""
    height = np.array([real(float(drawn)) for drawn in path.height])
    return replace(path, places=(path.places[0], height))
