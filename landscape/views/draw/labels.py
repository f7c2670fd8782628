"""The labels beside snapshots and networks in plotly figures, placed for the size that a figure has.

A trace names its labels in `meta["labels"]`, one per point; they are placed when the figure's size is known, and again
when it is laid out for print.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go

from landscape.core.grid import Floats
from landscape.views.draw.layout import text
from landscape.views.prepare.labels import Spot, Track, place_labels

FONT = 11.0  # pixels
DIGIT, LINE, PAD = 0.62, 1.3, 1.0  # the width of a bold letter and the height of a line in fonts; the edge in pixels
HALO = 2.0  # pixels of white around marks
STEP, NETWORK = "step", "network"  # the names of the annotations
FIELD_OF_VIEW = math.radians(45)  # of plotly's camera


def label_sizes(texts: Sequence[str], font: float) -> Floats:
    """The widths and heights of labels in pixels, [n, 2]."""
    return np.array([[DIGIT * font * len(words) + 2 * PAD, LINE * font + 2 * PAD] for words in texts]).reshape(-1, 2)


def lay_labels(figure: go.Figure, plot: tuple[float, float], font: float = FONT) -> None:
    """Place the labels of all traces as annotations, in place of those that the figure has; changes `figure`.

    Args:
        plot: the size of the plot area in pixels.
    """
    layout = figure.layout
    if (layout.meta or {}).get("space"):
        layout.scene.annotations = _in_scene(figure, plot, font)
        return
    others = [note for note in layout.annotations if note.name not in (STEP, NETWORK)]
    panels = dict.fromkeys((trace.yaxis or "y", trace.xaxis or "x") for trace in _labelled(figure))
    layout.annotations = [*others, *(note for y, x in panels for note in _in_panel(figure, x, y, plot, font))]


def _labelled(figure: go.Figure) -> list[Any]:
    return [trace for trace in figure.data if (trace.meta or {}).get("labels")]


def _in_panel(figure: go.Figure, x: str, y: str, plot: tuple[float, float], font: float) -> Iterator[dict[str, Any]]:
    """The annotations on one pair of axes."""
    axes = [figure.layout[f"{name[0]}axis{name[1:]}"] for name in (x, y)]
    ranges = [axis.range or _matched(figure, axis).range for axis in axes]
    shares = [(axis.domain or (0.0, 1.0)) for axis in axes]
    room = [length * (share[1] - share[0]) for length, share in zip(plot, shares, strict=True)]
    scales = [length / (ends[1] - ends[0]) for length, ends in zip(room, ranges, strict=True)]
    if axes[1].scaleanchor:
        scales = [min(scales, key=abs)] * 2
    area = tuple(abs(scale * (ends[1] - ends[0])) for scale, ends in zip(scales, ranges, strict=True))

    def on_paper(trace: Any) -> Floats:
        """The points of a trace in pixels, [n, 2]."""
        places = [_drawn(values, axis) for values, axis in zip((trace.x, trace.y), axes, strict=True)]
        return np.stack(
            [(at - ends[0]) * scale for at, ends, scale in zip(places, ranges, scales, strict=True)], axis=1
        )

    there = [one for one in figure.data if one.type == "scatter" and (one.xaxis or "x", one.yaxis or "y") == (x, y)]
    labelled = [trace for trace in there if (trace.meta or {}).get("labels")]
    tracks = [_track(trace, on_paper(trace), there, font) for trace in labelled]
    others = [_other(trace, on_paper(trace)) for trace in there if trace not in labelled and _is_drawn(trace)]
    spots = place_labels([*tracks, *others], (area[0], area[1]))
    for trace, track, own in zip(labelled, tracks, spots, strict=False):
        for spot in own:
            place = {"x": _real(trace.x, spot, axes[0]), "y": _real(trace.y, spot, axes[1]), "xref": x, "yref": y}
            yield place | _annotation(trace, track, spot, font)


def _matched(figure: go.Figure, axis: Any) -> Any:
    """The axis whose range a panel shares."""
    return figure.layout[f"{axis.matches[0]}axis{axis.matches[1:]}"]


def _drawn(values: Any, axis: Any) -> Floats:
    """Values as the axis places them: their logarithms on a logarithmic one."""
    known = np.array([np.nan if value is None else value for value in values], np.float64)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.log10(known) if axis.type == "log" else known


def _real(values: Any, spot: Spot, axis: Any) -> float:
    """The coordinate of an annotation, which plotly takes as a logarithm on a logarithmic axis."""
    return float(_drawn([values[spot.index]], axis)[0])


def _is_drawn(trace: Any) -> bool:
    return (trace.meta or {}).get("role") in ("field", "curve", "origin", "end") and trace.x is not None


def _track(trace: Any, points: Floats, there: Sequence[Any], font: float) -> Track:
    """The labelled marks of a trace, with the star and the ring at its ends as they are drawn."""
    labels, ends = trace.meta["labels"], trace.meta.get("ends")
    radii = np.full(len(points), _size(trace.marker) / 2 + HALO)
    if ends:
        for index, size in zip((0, -1), ends, strict=True):
            radii[index] = size / 2 + HALO
    width = (trace.line.width or 2.0) + 2 * HALO if "lines" in (trace.mode or "") else 0.0
    return Track(points, label_sizes(labels, font), radii, width, named=trace.meta["role"] == "networks")


def _size(marker: Any) -> float:
    size = marker.size
    return float(max(size) if isinstance(size, (list, tuple, np.ndarray)) else size or 6.0)


def _other(trace: Any, points: Floats) -> Track:
    """What has no labels but must not be hidden: the curve of the values, the origin's cross."""
    if trace.meta["role"] == "origin":
        return _cross(points[0], _size(trace.marker))
    line, marks = "lines" in (trace.mode or ""), "markers" in (trace.mode or "")
    radii = np.full(len(points), _size(trace.marker) / 2 if marks else 0.0)
    return Track(points, np.zeros((len(points), 2)), radii, (trace.line.width or 2.0) if line else 0.0)


def _cross(centre: Floats, size: float) -> Track:
    """The origin's mark: two strokes, so that labels may stand between its arms."""
    arms = np.array([[-1, 0], [1, 0], [np.nan, np.nan], [0, -1], [0, 1]]) * size / 2
    return Track.of_line(centre + arms, HALO)


def _annotation(trace: Any, track: Track, spot: Spot, font: float) -> dict[str, Any]:
    """A label on a light ground, to be readable on any colour, moved away from its mark."""
    across, up = np.array([spot.x, spot.y]) - track.points[spot.index]
    return {
        "text": f"<b>{text(trace.meta['labels'][spot.index])}</b>",
        "xshift": round(float(across), 1),
        "yshift": round(float(up), 1),
        "showarrow": False,
        "font": {"size": font, "color": "#1c2530"},
        "bgcolor": "rgba(255,255,255,0.78)",
        "borderpad": PAD,
        "name": NETWORK if track.named else STEP,
    }


# ----------------------------------------------------------------------------------------------------
# Labels in space, placed as the scene is seen at first; a reader who turns it may bring some together.


def _in_scene(figure: go.Figure, plot: tuple[float, float], font: float) -> list[dict[str, Any]]:
    labelled = [trace for trace in _labelled(figure) if trace.type == "scatter3d"]
    if not labelled:
        return []
    ends = _ends(figure)
    tracks = []
    for trace in labelled:
        radii = np.full(len(trace.x), _size(trace.marker) / 2 + 2 * HALO)
        sizes = label_sizes(trace.meta["labels"], font)
        tracks.append(Track(seen(trace, ends, figure.layout.scene, plot), sizes, radii))
    lines = [one for one in figure.data if one.type == "scatter3d" and one.mode == "lines" and _is_path(one)]
    others = [Track.of_line(seen(line, ends, figure.layout.scene, plot), 2 * HALO) for line in lines]
    spots = place_labels([*tracks, *others], plot)
    return [
        {"x": float(trace.x[spot.index]), "y": float(trace.y[spot.index]), "z": float(trace.z[spot.index])}
        | _annotation(trace, track, spot, font)
        for trace, track, own in zip(labelled, tracks, spots, strict=False)
        for spot in own
    ]


def _is_path(trace: Any) -> bool:
    return (trace.meta or {}).get("role") == "path"


def _ends(figure: go.Figure) -> Floats:
    """The ranges of a scene's axes, [3, 2]: given, or from the lowest to the highest of what is drawn."""
    ends = []
    for name in "xyz":
        given = figure.layout.scene[f"{name}axis"].range
        parts = [_numbers(trace[name]) for trace in figure.data if trace.type != "scatter"]
        known = np.concatenate([np.empty(0), *(part[np.isfinite(part)] for part in parts)])
        ends.append(given or (known.min(initial=0.0), known.max(initial=1e-12)))
    return np.array(ends, np.float64)


def _numbers(values: Any) -> Floats:
    listed = () if values is None else values
    return np.array([np.nan if value is None else value for value in np.ravel(listed)], np.float64)


def seen(trace: Any, ends: Floats, scene: Any, plot: tuple[float, float]) -> Floats:
    """The points of a trace as plotly's camera sees them, in pixels [n, 2].

    The camera stands at center + eye, in units of the scene's box, and looks at center with 45 degrees from bottom to
    top of the picture.
    """
    places = np.stack([_numbers(trace[name]) for name in "xyz"], axis=1)
    ratio = np.array([scene.aspectratio[name] or 1.0 for name in "xyz"])
    box = ((places - ends[:, 0]) / (ends[:, 1] - ends[:, 0]) - 0.5) * ratio
    eye, centre = (np.array([part[name] or 0.0 for name in "xyz"]) for part in (scene.camera.eye, scene.camera.center))
    forwards = centre - eye
    forwards = forwards / np.linalg.norm(forwards)
    right = np.cross(forwards, [0.0, 0.0, 1.0])
    right /= np.linalg.norm(right)
    away = (box - eye) @ forwards
    flat = np.stack([(box - eye) @ right, (box - eye) @ np.cross(right, forwards)], axis=1)
    return np.asarray(flat / away[:, None] / math.tan(FIELD_OF_VIEW / 2) * plot[1] / 2 + np.array(plot) / 2)
