"""The trajectory on top of a drawing: line, snapshots, start, convergence point, step numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import plotly.graph_objects as go

from landscape.views.figures.layout import Style, text
from landscape.views.figures.theme import PATH_HALO
from landscape.views.prepared.path import DrawnPath, place_labels

SPACE_DISTANCE = 0.1  # labels in space keep further apart: from most sides they come closer
LIFT = 0.02  # of the height: enough for the path not to sink into the surface


def legend_names(path: DrawnPath | None) -> list[str]:
    """The legend entries that the path brings."""
    return [] if path is None else ["trajectory", path.start_name, path.end_name]


def flat_path(path: DrawnPath, style: Style, joined: bool = True) -> list[go.Scatter]:
    """The path on a plane (the first two axes). Unless `joined`, only a thin dotted line connects its points."""
    x, y = path.places[0], path.places[1]
    hover = {"hovertext": list(path.hover), "hoverinfo": "text"}
    line: dict[str, Any] = {"color": style.path_colour, "width": style.path_width}
    halo = {"color": PATH_HALO, "width": style.path_width + 3}
    if not joined:
        line, halo = line | {"width": 1, "dash": "dot"}, halo | {"width": 0}
    dots = {"size": 6, "color": style.path_colour, "line": {"color": PATH_HALO, "width": 1}}
    role = {"meta": {"role": "path"}}
    return [
        go.Scatter(x=x, y=y, mode="lines", line=halo, opacity=0.85, hoverinfo="skip", showlegend=False, **role),
        go.Scatter(x=x, y=y, mode="lines+markers", line=line, marker=dots, name="trajectory", **role, **hover),
        _start(path, style),
        _end(path, style),
    ]


def _start(path: DrawnPath, style: Style) -> go.Scatter:
    edge = {"color": style.path_colour, "width": 2.5}
    marker = {"symbol": "circle", "size": 12, "color": PATH_HALO, "line": edge}
    return _flat_mark(path, slice(0, 1), path.start_name, marker)


def _end(path: DrawnPath, style: Style) -> go.Scatter:
    edge = {"color": PATH_HALO, "width": 1.2}
    marker = {"symbol": "star", "size": 17, "color": style.path_colour, "line": edge}
    return _flat_mark(path, slice(-1, None), path.end_name, marker)


def _flat_mark(path: DrawnPath, which: slice, name: str, marker: Mapping[str, Any]) -> go.Scatter:
    """One snapshot, marked and with a legend entry of its own."""
    return go.Scatter(
        x=path.places[0][which],
        y=path.places[1][which],
        marker=marker,
        name=name,
        hovertext=list(path.hover[which]),
        mode="markers",
        hoverinfo="text",
        meta={"role": "end"},
    )


def flat_labels(path: DrawnPath) -> list[dict[str, Any]]:
    """The numbers beside the snapshots as annotations, on a light ground so that they read on any colour."""
    return [
        {
            "x": float(path.places[0][label.index]),
            "y": float(path.places[1][label.index]),
            "text": f"<b>{text(label.text)}</b>",
            "xshift": round(17 * math.cos(label.angle)),
            "yshift": round(15 * math.sin(label.angle)),
            "showarrow": False,
            "font": {"size": 11, "color": "#1c2530"},
            "bgcolor": "rgba(255,255,255,0.78)",
            "borderpad": 1,
            "name": "step",
        }
        for label in path.labels
    ]


def space_path(path: DrawnPath, style: Style, height: np.ndarray, line: np.ndarray) -> list[go.Scatter3d]:
    """The path in space: its n snapshots at `height` [n], joined by the points of `line` [m, 3].

    Empty where the height of no snapshot is known.
    """
    if not np.isfinite(height).any():
        return []
    joined = go.Scatter3d(
        x=line[:, 0],
        y=line[:, 1],
        z=line[:, 2],
        mode="lines",
        line={"color": style.path_colour, "width": style.path_width * 2.4},
        hoverinfo="skip",
        showlegend=False,
        connectgaps=False,
        meta={"role": "path"},
    )
    snapshots = go.Scatter3d(
        x=path.places[0],
        y=path.places[1],
        z=height,
        mode="markers",
        marker={"size": 3.5, "color": style.path_colour, "line": {"color": PATH_HALO, "width": 1}},
        hovertext=list(path.hover),
        hoverinfo="text",
        name="trajectory",
        meta={"role": "path"},
    )
    return [joined, snapshots, *_space_ends(path, style, height)]


def _space_ends(path: DrawnPath, style: Style, height: np.ndarray) -> list[go.Scatter3d]:
    """The first and the last snapshot in space, as far as their heights are known."""
    traces = []
    for index, symbol, size, name in ((0, "circle-open", 8, path.start_name), (-1, "diamond", 6, path.end_name)):
        if np.isfinite(height[index]):
            place = [index % len(height)]
            edge = {"color": PATH_HALO, "width": 1}
            marker = {"symbol": symbol, "size": size, "color": style.path_colour, "line": edge}
            hover = {"hovertext": [path.hover[index]], "hoverinfo": "text"}
            spot = {"x": path.places[0][place], "y": path.places[1][place], "z": height[place]}
            traces.append(go.Scatter3d(mode="markers", marker=marker, name=name, meta={"role": "end"}, **spot, **hover))
    return traces


def space_labels(path: DrawnPath, height: np.ndarray) -> list[dict[str, Any]]:
    """The numbers above the snapshots in space; they stay readable where the surface hides the point."""
    places = np.stack(path.places[:2], axis=1)
    flat = places / (np.ptp(places, axis=0).max() or 1.0) / 2  # a path takes about half of the picture
    return [
        {
            "x": float(path.places[0][label.index]),
            "y": float(path.places[1][label.index]),
            "z": float(height[label.index]),
            "text": f"<b>{text(label.text)}</b>",
            "yshift": 15,
            "showarrow": False,
            "font": {"size": 11, "color": "#1c2530"},
            "bgcolor": "rgba(255,255,255,0.78)",
            "borderpad": 1,
        }
        for label in place_labels(flat, [str(number) for number in path.numbers], SPACE_DISTANCE)
        if np.isfinite(height[label.index])
    ]
