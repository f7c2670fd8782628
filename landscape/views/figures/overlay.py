"""The trajectory on top of a drawing: line, snapshots, start, convergence point, step numbers, animation."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import plotly.graph_objects as go

from landscape.views.figures.layout import Style, text
from landscape.views.figures.theme import PATH_HALO
from landscape.views.prepared.track import Track, place_labels

FRAMES_AT_MOST = 60
SPACE_DISTANCE = 0.1  # labels in space keep further apart: from most sides they come closer
LIFT = 0.02  # of the height: enough for the path not to sink into the surface


def legend_names(track: Track | None) -> list[str]:
    """The legend entries that the path brings."""
    return [] if track is None else ["trajectory", track.start_name, track.end_name]


def flat_path(track: Track, style: Style, joined: bool = True) -> list[go.Scatter]:
    """The path on a plane (the first two axes); not `joined`, a thin dotted line leads from point to point."""
    x, y = track.places[0], track.places[1]
    hover = {"hovertext": list(track.hover), "hoverinfo": "text"}
    ends = {"mode": "markers", "hoverinfo": "text", "meta": {"role": "end"}}
    line: dict[str, Any] = {"color": style.path_colour, "width": style.path_width}
    halo = {"color": PATH_HALO, "width": style.path_width + 3}
    if not joined:
        line, halo = line | {"width": 1, "dash": "dot"}, halo | {"width": 0}
    dots = {"size": 6, "color": style.path_colour, "line": {"color": PATH_HALO, "width": 1}}
    return [
        go.Scatter(
            x=x, y=y, mode="lines", line=halo, opacity=0.85, hoverinfo="skip", showlegend=False, meta={"role": "path"}
        ),
        go.Scatter(
            x=x, y=y, mode="lines+markers", line=line, marker=dots, name="trajectory", meta={"role": "path"}, **hover
        ),
        go.Scatter(
            x=x[:1],
            y=y[:1],
            marker={
                "symbol": "circle",
                "size": 12,
                "color": PATH_HALO,
                "line": {"color": style.path_colour, "width": 2.5},
            },
            name=track.start_name,
            hovertext=[track.hover[0]],
            **ends,
        ),
        go.Scatter(
            x=x[-1:],
            y=y[-1:],
            marker={
                "symbol": "star",
                "size": 17,
                "color": style.path_colour,
                "line": {"color": PATH_HALO, "width": 1.2},
            },
            name=track.end_name,
            hovertext=[track.hover[-1]],
            **ends,
        ),
    ]


def flat_labels(track: Track) -> list[dict[str, Any]]:
    """The numbers beside the snapshots, on a little paper of their own so that they read on any colour."""
    return [
        {
            "x": float(track.places[0][label.index]),
            "y": float(track.places[1][label.index]),
            "text": f"<b>{text(label.text)}</b>",
            "xshift": round(17 * math.cos(label.angle)),
            "yshift": round(15 * math.sin(label.angle)),
            "showarrow": False,
            "font": {"size": 11, "color": "#1c2530"},
            "bgcolor": "rgba(255,255,255,0.78)",
            "borderpad": 1,
            "name": "step",
        }
        for label in track.labels
    ]


def space_path(track: Track, style: Style, height: np.ndarray, line: np.ndarray) -> list[go.Scatter3d]:
    """The path in space: snapshots at `height`, joined by the points of `line` [m, 3]."""
    x, y = track.places[0], track.places[1]
    if not np.isfinite(height).any():
        return []
    edge = {"color": PATH_HALO, "width": 1}
    traces = [
        go.Scatter3d(
            x=line[:, 0],
            y=line[:, 1],
            z=line[:, 2],
            mode="lines",
            line={"color": style.path_colour, "width": style.path_width * 2.4},
            hoverinfo="skip",
            showlegend=False,
            connectgaps=False,
            meta={"role": "path"},
        ),
        go.Scatter3d(
            x=x,
            y=y,
            z=height,
            mode="markers",
            marker={"size": 3.5, "color": style.path_colour, "line": edge},
            hovertext=list(track.hover),
            hoverinfo="text",
            name="trajectory",
            meta={"role": "path"},
        ),
    ]
    for index, symbol, size, name in ((0, "circle-open", 8, track.start_name), (-1, "diamond", 6, track.end_name)):
        if np.isfinite(height[index]):
            place = [index % len(x)]
            marker = {"symbol": symbol, "size": size, "color": style.path_colour, "line": edge}
            hover = {"hovertext": [track.hover[index]], "hoverinfo": "text"}
            spot = {"x": x[place], "y": y[place], "z": height[place]}
            traces.append(go.Scatter3d(mode="markers", marker=marker, name=name, meta={"role": "end"}, **spot, **hover))
    return traces


def space_labels(track: Track, height: np.ndarray) -> list[dict[str, Any]]:
    """The numbers above the snapshots in space; they stay readable where the surface hides the point."""
    places = np.stack(track.places[:2], axis=1)
    flat = places / (np.ptp(places, axis=0).max() or 1.0) / 2  # a path takes about half of the picture
    return [
        {
            "x": float(track.places[0][label.index]),
            "y": float(track.places[1][label.index]),
            "z": float(height[label.index]),
            "text": f"<b>{text(label.text)}</b>",
            "yshift": 15,
            "showarrow": False,
            "font": {"size": 11, "color": "#1c2530"},
            "bgcolor": "rgba(255,255,255,0.78)",
            "borderpad": 1,
        }
        for label in place_labels(flat, [str(each) for each in track.numbers], SPACE_DISTANCE)
        if np.isfinite(height[label.index])
    ]


def _until(trace: Any, stop: int, count: int, keys: list[str]) -> dict[str, Any]:
    """The trace up to its `stop`-th snapshot; a draped line has several points from one to the next."""
    pieces = (len(trace.x) - 1) // (count - 1)
    return {"type": trace.type} | {key: trace[key][: (stop - 1) * pieces + 1] for key in keys}


def animate(figure: go.Figure, track: Track) -> None:
    """Add frames that let the path grow, and the buttons that play them; `figure` is changed."""
    moving = [k for k, trace in enumerate(figure.data) if (trace.meta or {}).get("role") == "path"]
    count = len(track.numbers)
    stops = sorted({round(each) for each in np.linspace(1, count, min(count, FRAMES_AT_MOST))})
    keys = [key for key in ("x", "y", "z") if moving and getattr(figure.data[moving[0]], key, None) is not None]
    frames = []
    for stop in stops:
        data = [_until(figure.data[k], stop, count, keys) for k in moving]
        frames.append(go.Frame(data=data, traces=moving, name=f"{track.unit} {track.numbers[stop - 1]}"))
    figure.frames = frames
    pause = {"mode": "immediate", "frame": {"duration": 0, "redraw": False}}
    redraw = "z" in keys
    duration = max(60, min(500, 6000 // max(1, len(stops))))
    play = {"mode": "immediate", "fromcurrent": False, "transition": {"duration": 0}}
    play["frame"] = {"duration": duration, "redraw": redraw}
    figure.update_layout(
        updatemenus=[
            {
                "type": "buttons",
                "direction": "left",
                "x": 0,
                "xanchor": "left",
                "y": 1,
                "yanchor": "bottom",
                "pad": {"b": 6},
                "showactive": False,
                "font": {"size": 11},
                "buttons": [
                    {"label": "▶ play path", "method": "animate", "args": [None, play]},
                    {"label": "❚❚", "method": "animate", "args": [[None], pause]},
                ],
            }
        ]
    )
