"""Trajectories on top of a drawing: lines, snapshots, starts, last snapshots, step numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import plotly.graph_objects as go

from landscape.core.grid import Floats
from landscape.views.draw.layout import text
from landscape.views.draw.style import (
    KEY,
    NOWHERE,
    PAPER,
    PATH_HALO,
    PathLook,
    Shades,
    are_told_apart,
    path_look,
    themed,
)
from landscape.views.figure_spec import FigureSpec
from landscape.views.prepare import words
from landscape.views.prepare.figure import FigureData
from landscape.views.prepare.paths import LAST, START, DrawnPath

STAR = 19  # pixels of the star at the last snapshot
SPARSE, DENSE, FEW = 10, 7, 25  # pixels of the other snapshots: of up to `FEW`, and of more
POINTS_OF_THREAD = 3  # both ends, and an undrawn one that separates it from the next thread
LIFT = 0.02  # of the height: enough for the path not to sink into the surface
MARK_LIFT = 1.5  # times the lift of the line: snapshots are larger, and on the surface would be half hidden


def snapshots_note(data: FigureData, looks: str = "colour") -> list[str]:
    """The note on the fill of the snapshots: their own values, or white if these are not known."""
    if not data.paths:
        return []
    title = words.observable_title(data.observable)
    if any(np.isfinite(path.own).any() for path in data.paths):
        return [f"Snapshots have the {looks} of their own {title}"]
    return [] if data.observable == "loss" else [f"Snapshots are white, as their own {title} is not kept"]


def legend_names(paths: Sequence[DrawnPath]) -> list[str]:
    """The legend entries that the paths bring."""
    if are_told_apart(paths):
        return [*(text(path.name) for path in paths), START, LAST]
    return [name for path in paths for name in (path.name, path.start_name, path.end_name)]


def role(path: DrawnPath, word: str) -> dict[str, Any]:
    """The meta of a trace: its role and, with several paths, its path; a page does not change such colours."""
    return {"role": word, **({"path": path.number} if path.run else {})}


def _numbered(path: DrawnPath, ends: tuple[float, float] | None = None) -> dict[str, Any]:
    """The meta of the trace whose snapshots have numbers; `ends` are the sizes of its first and last mark."""
    sizes = {} if ends is None else {"ends": list(ends)}
    return role(path, "path") | {"labels": [str(number) for number in path.numbers], **sizes}


def own_colours(path: DrawnPath, shades: Shades) -> list[str]:
    """The drawing's colour for the own loss of each snapshot; white if that is not known."""
    known = np.isfinite(path.own)
    colours = iter(shades(path.own[known]) if known.any() else ())
    return [next(colours) if is_known else PATH_HALO for is_known in known]


def flat_paths(
    paths: Sequence[DrawnPath], spec: FigureSpec, shades: Mapping[str, Shades] | None = None
) -> list[go.Scatter]:
    """The paths on a plane (the first two axes).

    Args:
        shades: the colours of the plane, per theme, to fill the snapshots. Without them, over a curve, everything has
            the colour of the path, and thin dotted lines connect the points.
    """
    fills = [_fills(path, spec, shades) for path in paths]
    traces = [
        trace for path, fill in zip(paths, fills, strict=True) for trace in _flat_line(path, spec, fill, bool(shades))
    ]
    for path, fill in zip(paths, fills, strict=True):
        traces += [_start(path, spec, fill), _end(path, spec, fill)]
    return [*traces, *(_flat_keys(spec) if are_told_apart(paths) else ())]


Fills = dict[str, list[str]]  # the colour of each snapshot, per theme


def _fills(path: DrawnPath, spec: FigureSpec, shades: Mapping[str, Shades] | None) -> Fills | None:
    return None if shades is None else {theme: own_colours(path, shade) for theme, shade in shades.items()}


def _filled(marker: dict[str, Any], fills: Fills | None, which: slice, spec: FigureSpec, meta: dict[str, Any]) -> Any:
    """The options of a trace with these markers, filled for the theme, and for the other theme if that differs."""
    if fills is None:
        return {"marker": marker, "meta": meta}
    options = {theme: {"marker": {"color": colours[which]}} for theme, colours in fills.items()}
    marker = marker | options[spec.theme]["marker"]
    differ = options["light"] != options["dark"]
    return {"marker": marker, "meta": meta | ({"themed": options} if differ else {})}


def _flat_line(path: DrawnPath, spec: FigureSpec, fills: Fills | None, joined: bool) -> list[go.Scatter]:
    x, y, look = path.places[0], path.places[1], path_look(path.number, spec.path_colour)
    hover = {"hovertext": list(path.hover), "hoverinfo": "text"}
    line: dict[str, Any] = {"color": look.colour, "width": spec.path_width, "dash": look.dash}
    halo = {"color": PATH_HALO, "width": spec.path_width + 3}
    dense, marks = len(x) > FEW, []
    size, edge = (DENSE if dense else SPARSE), {"color": look.colour, "width": 1.2 if dense else 1.8}
    quiet: dict[str, Any] = {"opacity": 0.85, "hoverinfo": "skip", "showlegend": False, "meta": role(path, "path")}
    if joined:
        inner = max(0, len(x) - 2)
        sizes = [_start_size(path) + 3, *[size + 4] * inner, STAR + 6][: len(x)]
        symbols = ["circle", *[look.symbol] * inner, "star"][-len(x) :]
        white = {"color": PATH_HALO, "size": sizes, "symbol": symbols, "line": {"width": 0}}
        marks = [go.Scatter(x=x, y=y, mode="markers", marker=white, **quiet)]
    else:
        line, halo = line | {"width": 1, "dash": "dot"}, halo | {"width": 0}
        size, edge = (6 if look.symbol == "circle" else 7), {"color": PATH_HALO, "width": 1}
    dots = {"size": size, "symbol": look.symbol, "color": look.colour, "line": edge}
    options = _filled(dots, fills, slice(None), spec, _numbered(path, (_start_size(path), STAR)))
    return [
        go.Scatter(x=x, y=y, mode="lines", line=halo, **quiet),
        *marks,
        go.Scatter(x=x, y=y, mode="lines+markers", line=line, name=text(path.name), **options, **hover),
    ]


def _start_size(path: DrawnPath) -> int:
    """The size of a start: sizes differ, so that starts at the same place all stay visible."""
    return 15 - 2 * min(path.number, 3)


def _start(path: DrawnPath, spec: FigureSpec, fills: Fills | None) -> go.Scatter:
    edge = {"color": path_look(path.number, spec.path_colour).colour, "width": 2.8}
    marker = {"symbol": "circle", "size": _start_size(path), "color": PATH_HALO, "line": edge}
    return _flat_mark(path, slice(0, 1), path.start_name, marker, spec, fills)


def _end(path: DrawnPath, spec: FigureSpec, fills: Fills | None) -> go.Scatter:
    colour = path_look(path.number, spec.path_colour).colour
    edge = {"color": PATH_HALO, "width": 1.2} if fills is None else {"color": colour, "width": 2}
    marker = {"symbol": "star", "size": STAR, "color": colour, "line": edge}
    return _flat_mark(path, slice(-1, None), path.end_name, marker, spec, fills)


def _flat_mark(
    path: DrawnPath, which: slice, name: str, marker: dict[str, Any], spec: FigureSpec, fills: Fills | None
) -> go.Scatter:
    """The mark of one snapshot; with its own legend entry if there is only one path."""
    return go.Scatter(
        x=path.places[0][which],
        y=path.places[1][which],
        name=name,
        hovertext=list(path.hover[which]),
        mode="markers",
        hoverinfo="text",
        showlegend=not path.run,
        **_filled(marker, fills, which, spec, role(path, "end")),
    )


def _flat_keys(spec: FigureSpec) -> list[go.Scatter]:
    """The legend entries that the starts and the ends of several paths share."""
    empty: dict[str, Any] = {"x": [None], "y": [None], "mode": "markers", "hoverinfo": "skip", "showlegend": True}
    return [go.Scatter(name=name, **empty, **looks) for name, looks in _keys(spec, ("circle", 10), ("star", 13))]


def _space_keys(spec: FigureSpec) -> list[go.Scatter3d]:
    empty: dict[str, Any] = {**NOWHERE, "mode": "markers", "hoverinfo": "skip"}
    return [
        go.Scatter3d(name=name, **empty, **looks) for name, looks in _keys(spec, ("circle-open", 7), ("diamond", 6))
    ]


def _keys(spec: FigureSpec, *symbols: tuple[str, int]) -> list[tuple[str, dict[str, Any]]]:
    """The names of both entries, and their marks, in a grey that no path uses."""
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
        entries.append((name, themed(options, spec.theme, role="path key")))
    return entries


@dataclass(frozen=True, eq=False)
class PathInSpace:
    """The path with the heights of its n snapshots, and the points [m, 3] of the line that joins their projections.

    `foot` are the heights of the surface below or above the snapshots, where threads end; None for three axes.
    """

    path: DrawnPath
    height: Floats
    line: Floats
    foot: Floats | None = None


def raised_note(overlays: Sequence[PathInSpace]) -> list[str]:
    """The note that snapshots on the surface are drawn above it, if there are any."""
    raised = sum(
        int((np.isfinite(overlay.path.own) & (overlay.height == overlay.foot)).sum())
        for overlay in overlays
        if overlay.foot is not None
    )
    if not raised:
        return []
    share = f"{100 * LIFT * MARK_LIFT:.0f}\u00a0% of the range drawn"
    return [f"Snapshots within {share} of the surface are drawn just above it: {raised}"]


def threads(overlay: PathInSpace, colour: str, width: float, **more: Any) -> list[go.Scatter3d]:
    """Straight lines from the snapshots down, or up, to the surface; none for three axes."""
    if overlay.foot is None:
        return []
    x, y = (np.repeat(place, POINTS_OF_THREAD) for place in overlay.path.places[:2])
    z = np.stack([overlay.height, overlay.foot, np.full(len(overlay.height), np.nan)], axis=1).ravel()
    line = {"line": {"color": colour, "width": width}, "mode": "lines", "connectgaps": False}
    return [go.Scatter3d(x=x, y=y, z=z, hoverinfo="skip", showlegend=False, **line, **more)]


def space_path(overlay: PathInSpace, spec: FigureSpec, shades: Shades) -> list[go.Scatter3d]:
    """The path in space: its snapshots, filled with the colour of their own loss, their threads, and the line.

    Empty if no snapshot's height is known.
    """
    path, height, line = overlay.path, overlay.height, overlay.line
    if not np.isfinite(height).any():
        return []
    look, group = path_look(path.number, spec.path_colour), {"legendgroup": text(path.name)}
    drawn = {"color": look.colour, "width": spec.path_width * 2.4, "dash": look.dash}
    quiet: dict[str, Any] = {"hoverinfo": "skip", "showlegend": False, **group}
    joined = go.Scatter3d(
        x=line[:, 0],
        y=line[:, 1],
        z=line[:, 2],
        mode="lines",
        line=drawn,
        connectgaps=False,
        meta=role(path, "path"),
        **quiet,
    )
    fills = own_colours(path, shades)
    spots = {"x": path.places[0], "y": path.places[1], "z": height, "mode": "markers", "meta": role(path, "path")}
    dense = len(height) > FEW
    # The edge of a mark is too thin in space: a larger mark below it serves as the edge.
    edges = {"size": 5.5 if dense else 8, "symbol": look.space_symbol, "color": look.colour, "line": {"width": 0}}
    marks = {
        "size": 4 if dense else 5,
        "symbol": look.space_symbol,
        "color": fills,
        "line": {"color": look.colour, "width": 2},
    }
    key = go.Scatter3d(  # a trace without points: the line and its snapshots are two traces, and an entry shows one
        **NOWHERE,
        mode="lines+markers",
        line=drawn,
        marker=marks | {"color": fills[:1]},
        name=text(path.name),
        meta=role(path, "path key"),
        **group,
    )
    meta = role(path, "path") | {"each": POINTS_OF_THREAD}
    marked = quiet | {"hoverinfo": "text", "hovertext": list(path.hover)}
    numbered = spots | {"meta": _numbered(path)}
    return [
        joined,
        *threads(overlay, look.colour, spec.path_width * (0.6 if dense else 1.4), meta=meta, **group),
        go.Scatter3d(marker=edges, **quiet, **spots),
        go.Scatter3d(marker=marks, **marked, **numbered),
        key,
        *_space_ends(path, look, height, fills),
    ]


def space_keys(paths: Sequence[DrawnPath], spec: FigureSpec) -> list[go.Scatter3d]:
    """The legend entries that the starts and ends of several runs share; none for one run."""
    return _space_keys(spec) if are_told_apart(paths) else []


def _space_ends(path: DrawnPath, look: PathLook, height: Floats, fills: Sequence[str]) -> list[go.Scatter3d]:
    """The first and the last snapshot in space, if their heights are known."""
    traces = []
    for index, symbol, size, name in ((0, "circle", 7, path.start_name), (-1, "diamond", 6, path.end_name)):
        if np.isfinite(height[index]):
            place = [index % len(height)]
            spot = {"x": path.places[0][place], "y": path.places[1][place], "z": height[place], "mode": "markers"}
            below = {"symbol": symbol, "size": size + 4, "color": look.colour, "line": {"width": 0}}
            marker = {
                "symbol": symbol,
                "size": size,
                "color": [fills[index]],
                "line": {"color": look.colour, "width": 3},
            }
            hover = {"hovertext": [path.hover[index]], "hoverinfo": "text", "showlegend": not path.run}
            # With several paths the marks have no entry of their own, and are hidden with their path.
            shared = {"meta": role(path, "end"), "legendgroup": text(path.name) if path.run else name}
            traces.append(go.Scatter3d(marker=below, hoverinfo="skip", showlegend=False, **shared, **spot))
            traces.append(go.Scatter3d(marker=marker, name=name, **shared, **spot, **hover))
    return traces


# ----------------------------------------------------------------------------------------------------
# Animated trajectories: frames from the start to the last snapshot, and the buttons that play them.

FRAMES_AT_MOST = 60


def animate(figure: go.Figure, paths: Sequence[DrawnPath]) -> None:
    """Add frames in which the paths grow, and the buttons that play them, to `figure`.

    In each frame every path grows by one snapshot; shorter paths stop at their ends.
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
    """The trace up to its `stop`-th snapshot.

    A path on a surface has several points between two snapshots, a thread `each` points per snapshot.
    """
    count = counts[trace.meta.get("path", 0)]
    if each := trace.meta.get("each"):
        return {"type": trace.type} | {key: trace[key][: each * min(stop, count)] for key in keys}
    pieces = (len(trace.x) - 1) // (count - 1) if count > 1 else 1
    return {"type": trace.type} | {key: trace[key][: (min(stop, count) - 1) * pieces + 1] for key in keys}


def _buttons(stops: Sequence[int]) -> dict[str, Any]:
    """Play and pause; frames are redrawn, as plotly otherwise shows none in space, and removes contour lines."""
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
