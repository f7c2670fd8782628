"""Trajectories growing from their starts to their last snapshots: frames, and the buttons that play them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go

from landscape.views.prepare.paths import DrawnPath

FRAMES_AT_MOST = 60


def animate(figure: go.Figure, paths: Sequence[DrawnPath]) -> None:
    """Add frames that let the paths grow, and the buttons that play them; `figure` is changed.

    Several paths grow by one snapshot at a time each, and those with fewer of them stop at their ends.
    """
    longest = max(paths, key=lambda path: len(path.numbers), default=None)
    if longest is None or len(longest.numbers) < 2:
        return
    moving = [k for k, trace in enumerate(figure.data) if (trace.meta or {}).get("role") == "path"]
    counts = {path.number: len(path.numbers) for path in paths}
    count = len(longest.numbers)
    stops = sorted({round(stop) for stop in np.linspace(1, count, min(count, FRAMES_AT_MOST))})
    keys = [key for key in ("x", "y", "z") if moving and getattr(figure.data[moving[0]], key, None) is not None]
    frames = []
    for stop in stops:
        data = [_until(figure.data[k], stop, counts, keys) for k in moving]
        frames.append(go.Frame(data=data, traces=moving, name=f"{longest.unit} {longest.numbers[stop - 1]}"))
    figure.frames = frames
    figure.update_layout(updatemenus=[_buttons(stops)])


def _until(trace: Any, stop: int, counts: Mapping[int, int], keys: list[str]) -> dict[str, Any]:
    """The trace up to its `stop`-th snapshot; a path on a surface has several points from one to the next.

    A thread has `each` points of its own per snapshot.
    """
    count = counts[trace.meta.get("path", 0)]
    if each := trace.meta.get("each"):
        return {"type": trace.type} | {key: trace[key][: each * min(stop, count)] for key in keys}
    pieces = (len(trace.x) - 1) // (count - 1) if count > 1 else 1
    return {"type": trace.type} | {key: trace[key][: (min(stop, count) - 1) * pieces + 1] for key in keys}


def _buttons(stops: Sequence[int]) -> dict[str, Any]:
    """Play and pause; without drawing a frame anew plotly shows none in space, and takes contour lines away."""
    pause = {"mode": "immediate", "frame": {"duration": 0, "redraw": False}}
    play = {"mode": "immediate", "fromcurrent": False, "transition": {"duration": 0}}
    play["frame"] = {"duration": max(60, min(500, 6000 // max(1, len(stops)))), "redraw": True}
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
