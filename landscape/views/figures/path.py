"""Trajectories on top of a drawing: lines, snapshots, starts, last snapshots, step numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go

from landscape.views.figures.layout import Style, text
from landscape.views.figures.path_looks import KEY, PathLook, are_told_apart, path_look
from landscape.views.figures.theme import PAPER, PATH_HALO, themed
from landscape.views.prepared.path import LAST, START, DrawnPath, place_labels_of_all

SPACE_DISTANCE = 0.1  # labels in space keep further apart: from most sides they come closer
LIFT = 0.02  # of the height: enough for the path not to sink into the surface


def legend_names(paths: Sequence[DrawnPath]) -> list[str]:
    """The legend entries that the paths bring."""
    if are_told_apart(paths):
        return [*(text(path.name) for path in paths), START, LAST]
    return [name for path in paths for name in (path.name, path.start_name, path.end_name)]


def role(path: DrawnPath, word: str) -> dict[str, Any]:
    """The meta of a trace: what it is and, of several paths, of which; a page leaves their colours as they are."""
    return {"role": word, **({"path": path.number} if path.run else {})}


def flat_paths(paths: Sequence[DrawnPath], style: Style, joined: bool = True) -> list[go.Scatter]:
    """The paths on a plane (the first two axes). Unless `joined`, only thin dotted lines connect their points."""
    traces = [trace for path in paths for trace in _flat_line(path, style, joined)]
    traces += [mark for path in paths for mark in (_start(path, style), _end(path, style))]
    return [*traces, *(_flat_keys(style) if are_told_apart(paths) else ())]


def _flat_line(path: DrawnPath, style: Style, joined: bool) -> list[go.Scatter]:
    x, y, look = path.places[0], path.places[1], path_look(path.number, style.path_colour)
    hover = {"hovertext": list(path.hover), "hoverinfo": "text"}
    line: dict[str, Any] = {"color": look.colour, "width": style.path_width, "dash": look.dash}
    halo = {"color": PATH_HALO, "width": style.path_width + 3}
    if not joined:
        line, halo = line | {"width": 1, "dash": "dot"}, halo | {"width": 0}
    size = 6 if look.symbol == "circle" else 7
    dots = {"size": size, "symbol": look.symbol, "color": look.colour, "line": {"color": PATH_HALO, "width": 1}}
    meta = {"meta": role(path, "path")}
    return [
        go.Scatter(x=x, y=y, mode="lines", line=halo, opacity=0.85, hoverinfo="skip", showlegend=False, **meta),
        go.Scatter(x=x, y=y, mode="lines+markers", line=line, marker=dots, name=text(path.name), **meta, **hover),
    ]


def _start(path: DrawnPath, style: Style) -> go.Scatter:
    edge = {"color": path_look(path.number, style.path_colour).colour, "width": 2.5}
    # Of several, the inner ones can be seen where they start at the same place.
    marker = {"symbol": "circle", "size": 12 - 2 * min(path.number, 3), "color": PATH_HALO, "line": edge}
    return _flat_mark(path, slice(0, 1), path.start_name, marker)


def _end(path: DrawnPath, style: Style) -> go.Scatter:
    edge = {"color": PATH_HALO, "width": 1.2}
    colour = path_look(path.number, style.path_colour).colour
    return _flat_mark(
        path, slice(-1, None), path.end_name, {"symbol": "star", "size": 17, "color": colour, "line": edge}
    )


def _flat_mark(path: DrawnPath, which: slice, name: str, marker: Mapping[str, Any]) -> go.Scatter:
    """One snapshot, marked; with a legend entry of its own where there is one path alone."""
    return go.Scatter(
        x=path.places[0][which],
        y=path.places[1][which],
        marker=marker,
        name=name,
        hovertext=list(path.hover[which]),
        mode="markers",
        hoverinfo="text",
        showlegend=not path.run,
        meta=role(path, "end"),
    )


def _flat_keys(style: Style) -> list[go.Scatter]:
    """The legend entries that the starts and the ends of several paths share."""
    empty: dict[str, Any] = {"x": [None], "y": [None], "mode": "markers", "hoverinfo": "skip", "showlegend": True}
    return [go.Scatter(name=name, **empty, **looks) for name, looks in _keys(style, ("circle", 10), ("star", 13))]


def _space_keys(style: Style) -> list[go.Scatter3d]:
    empty: dict[str, Any] = {"x": [None], "y": [None], "z": [None], "mode": "markers", "hoverinfo": "skip"}
    return [
        go.Scatter3d(name=name, **empty, **looks) for name, looks in _keys(style, ("circle-open", 7), ("diamond", 6))
    ]


def _keys(style: Style, *symbols: tuple[str, int]) -> list[tuple[str, dict[str, Any]]]:
    """The names of both entries, and their marks in a grey that no path has."""
    entries = []
    for (symbol, size), name in zip(symbols, (START, LAST), strict=True):
        rings = {"line": {"color": KEY, "width": 2}} if name == START else {}
        options: dict[str, Any] = {
            theme: {
                "marker": {
                    "symbol": symbol,
                    "size": size,
                    "color": PAPER[theme] if symbol == "circle" else KEY,
                    **rings,
                }
            }
            for theme in PAPER
        }
        entries.append((name, themed(options, style.theme, role="path key")))
    return entries


def flat_labels(paths: Sequence[DrawnPath]) -> list[dict[str, Any]]:
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
        for path in paths
        for label in path.labels
    ]


def space_path(path: DrawnPath, style: Style, height: np.ndarray, line: np.ndarray) -> list[go.Scatter3d]:
    """The path in space: its n snapshots at `height` [n], joined by the points of `line` [m, 3].

    Empty where the height of no snapshot is known.
    """
    if not np.isfinite(height).any():
        return []
    look = path_look(path.number, style.path_colour)
    joined = go.Scatter3d(
        x=line[:, 0],
        y=line[:, 1],
        z=line[:, 2],
        mode="lines",
        line={"color": look.colour, "width": style.path_width * 2.4, "dash": look.dash},
        hoverinfo="skip",
        showlegend=False,
        connectgaps=False,
        meta=role(path, "path"),
    )
    edge = {"color": PATH_HALO, "width": 1}
    snapshots = go.Scatter3d(
        x=path.places[0],
        y=path.places[1],
        z=height,
        mode="markers",
        marker={"size": 3.5, "symbol": look.space_symbol, "color": look.colour, "line": edge},
        hovertext=list(path.hover),
        hoverinfo="text",
        name=text(path.name),
        meta=role(path, "path"),
    )
    return [joined, snapshots, *_space_ends(path, look, height)]


def space_keys(paths: Sequence[DrawnPath], style: Style) -> list[go.Scatter3d]:
    """The legend entries that starts and ends share where several runs are told apart; else none."""
    return _space_keys(style) if are_told_apart(paths) else []


def _space_ends(path: DrawnPath, look: PathLook, height: np.ndarray) -> list[go.Scatter3d]:
    """The first and the last snapshot in space, as far as their heights are known."""
    traces = []
    for index, symbol, size, name in ((0, "circle-open", 8, path.start_name), (-1, "diamond", 6, path.end_name)):
        if np.isfinite(height[index]):
            place = [index % len(height)]
            edge = {"color": PATH_HALO, "width": 1}
            marker = {"symbol": symbol, "size": size, "color": look.colour, "line": edge}
            hover = {"hovertext": [path.hover[index]], "hoverinfo": "text", "showlegend": not path.run}
            spot = {"x": path.places[0][place], "y": path.places[1][place], "z": height[place]}
            meta = {"meta": role(path, "end")}
            traces.append(go.Scatter3d(mode="markers", marker=marker, name=name, **meta, **spot, **hover))
    return traces


def space_labels(paths: Sequence[DrawnPath], heights: Sequence[np.ndarray]) -> list[dict[str, Any]]:
    """The numbers above the snapshots in space; they stay readable where the surface hides the point."""
    places = [np.stack(path.places[:2], axis=1) for path in paths]
    span = np.ptp(np.concatenate(places), axis=0).max() if places else 0.0
    flat = [each / (span or 1.0) / 2 for each in places]  # paths take about half of the picture
    texts = [[str(number) for number in path.numbers] for path in paths]
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
        for path, height, labels in zip(paths, heights, place_labels_of_all(flat, texts, SPACE_DISTANCE), strict=True)
        for label in labels
        if np.isfinite(height[label.index])
    ]
