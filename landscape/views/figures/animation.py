"""The trajectory growing from its start to the convergence point: frames, and the buttons that play them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go

from landscape.views.prepared.path import DrawnPath

FRAMES_AT_MOST = 60


def animate(figure: go.Figure, path: DrawnPath) -> None:
    """Add frames that let the path grow, and the buttons that play them; `figure` is changed."""
    moving = [k for k, trace in enumerate(figure.data) if (trace.meta or {}).get("role") == "path"]
    count = len(path.numbers)
    stops = sorted({round(stop) for stop in np.linspace(1, count, min(count, FRAMES_AT_MOST))})
    keys = [key for key in ("x", "y", "z") if moving and getattr(figure.data[moving[0]], key, None) is not None]
    frames = []
    for stop in stops:
        data = [_until(figure.data[k], stop, count, keys) for k in moving]
        frames.append(go.Frame(data=data, traces=moving, name=f"{path.unit} {path.numbers[stop - 1]}"))
    figure.frames = frames
    figure.update_layout(updatemenus=[_buttons(stops, redraw="z" in keys)])


def _until(trace: Any, stop: int, count: int, keys: list[str]) -> dict[str, Any]:
    """The trace up to its `stop`-th snapshot; a path on a surface has several points from one to the next."""
    pieces = (len(trace.x) - 1) // (count - 1)
    return {"type": trace.type} | {key: trace[key][: (stop - 1) * pieces + 1] for key in keys}


def _buttons(stops: Sequence[int], redraw: bool) -> dict[str, Any]:
    """Play and pause; plotly shows a frame in space only where it draws the scene again."""
    pause = {"mode": "immediate", "frame": {"duration": 0, "redraw": False}}
    play = {"mode": "immediate", "fromcurrent": False, "transition": {"duration": 0}}
    play["frame"] = {"duration": max(60, min(500, 6000 // max(1, len(stops)))), "redraw": redraw}
    return {
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
