"""Marks over the values: uncertainty, extrema, edges of refinement, missing points, networks, the origin."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go
from numpy.typing import NDArray

from landscape.core.grid import Floats
from landscape.core.text import count_text
from landscape.views.draw.layout import text
from landscape.views.draw.style import DARK_HATCH, DARK_SOLID, HATCH, INK, NOWHERE, PAPER, PATH_HALO, themed, typed
from landscape.views.figure_spec import FigureSpec
from landscape.views.prepare.figure import FigureData, legend_name, missing_states, rectangles, square_states
from landscape.views.prepare.geometry import isosurface, region_below
from landscape.views.prepare.scale import STATES
from landscape.views.prepare.uncertainty import Marks, finer_edges

EVALUATED = "evaluated points"
BAND_NAME = "± 2 standard errors"
SHEET = {"light": "#7a8699", "dark": "#b9c4d4"}
VEIL = {"light": "rgba(255,255,255,0.4)", "dark": "rgba(20,24,31,0.45)"}  # lets hatching be seen on dark colours too
MOST_HATCHED = 257  # points per axis of a hatched region's outline


def unclear_names(data: FigureData) -> list[str]:
    """The legend entry of the uncertain region on a plane or in a volume, if it is drawn."""
    return [] if data.difference is None else [data.unclear]


def unclear_region(data: FigureData, spec: FigureSpec) -> list[go.Scatter]:
    """The region of a plane whose values cannot be told from the origin's, or from no difference: hatched."""
    if data.difference is None:
        return []
    rows, columns = (slice(None, None, -(-size // MOST_HATCHED)) for size in data.difference.shape)
    x, y = region_below(
        data.axes[0].coordinates[columns], data.axes[1].coordinates[rows], data.difference[rows, columns], 1.0
    )
    shape = {"shape": "\\", "size": 8, "solidity": 0.12}
    patterns = {
        theme: {"fillpattern": {**shape, "fgcolor": ink, "bgcolor": VEIL[theme]}, "line": {"width": 0, "color": ink}}
        for theme, ink in INK.items()
    }
    look: dict[str, Any] = themed(patterns, spec.theme, role="uncertainty")
    # Without a point the trace would lose its legend entry, which says that the region is empty.
    spots = {"x": x, "y": y} if x else {"x": [None], "y": [None]}
    return [
        go.Scatter(**spots, mode="lines", fill="toself", hoverinfo="skip", name=data.unclear, showlegend=True, **look)
    ]


def unclear_volume(data: FigureData, spec: FigureSpec) -> list[go.Mesh3d]:
    """The surface in a volume within which the values cannot be told from that of the origin."""
    if data.difference is None:
        return []
    first, second, third = (axis.coordinates for axis in data.axes)
    vertices, triangles = isosurface(data.difference, (first, second, third), 1.0)
    places = {axis: typed(vertices[:, k]) for k, axis in enumerate("xyz")}
    corners = {corner: triangles[:, k].astype(np.int32) for k, corner in enumerate("ijk")}
    return [
        go.Mesh3d(
            opacity=0.25,
            hoverinfo="skip",
            name=data.unclear,
            showlegend=True,
            **themed({theme: {"color": ink} for theme, ink in INK.items()}, spec.theme, role="uncertainty"),
            **places,
            **corners,
        )
    ]


def error_sheets(data: FigureData, spec: FigureSpec) -> list[go.Surface]:
    """Two translucent surfaces, two standard errors of the shape above and below the values; none without errors."""
    error = data.shape_error
    if data.difference is None or error is None:
        return []
    sheets: list[Any] = []
    scales = {theme: {"colorscale": [[0, grey], [1, grey]]} for theme, grey in SHEET.items()}
    for sign, first in ((-1, True), (1, False)):
        heights = data.values + sign * 2 * error
        if data.scale.log:
            with np.errstate(invalid="ignore", divide="ignore"):
                heights = np.log10(np.where(heights > 0, heights, np.nan))
        heights = np.where(np.isfinite(data.drawn), heights, np.nan)
        sheets.append(
            go.Surface(
                x=data.axes[0].coordinates,
                y=data.axes[1].coordinates,
                z=typed(heights),
                showscale=False,
                opacity=0.35,
                hoverinfo="skip",
                contours={"x": {"highlight": False}, "y": {"highlight": False}, "z": {"highlight": False}},
                name=BAND_NAME,
                legendgroup=BAND_NAME,
                showlegend=first,
                connectgaps=False,
                **themed(scales, spec.theme, role="uncertainty"),
            )
        )
    return sheets


# ----------------------------------------------------------------------------------------------------
# The marks of minima and of the saddles at which they merge: dots and crosses, each in its own legend entry.

# Dark with a light edge, to be visible on any colour; smaller than the marks of the path, on which they lie.
FLAT = {"minima": ("circle", 9, 1.6), "saddles": ("x", 9, 1.2)}
SPACE = {"minima": ("circle", 5, 1), "saddles": ("x", 3.5, 0)}
ROLE = "extrema"


def extrema_names(data: FigureData) -> list[str]:
    """The legend entries of the marks, where these are drawn."""
    return [marks.name for _, marks in _kinds(data)]


def flat_extrema(data: FigureData, spec: FigureSpec, **place: Any) -> list[go.Scatter]:
    """The marks on a plane at their places; over one axis at their values.

    Args:
        place: the panel, as plotly's `xaxis` and `yaxis`.
    """
    traces = []
    for kind, marks in _kinds(data):
        x, y = marks.places[0], _real(data, marks) if len(data.axes) == 1 else marks.places[1]
        spots = (
            {"x": x, "y": y} if len(x) else {"x": [None], "y": [None]}
        )  # a trace without points would lose its legend entry
        traces.append(go.Scatter(**spots, **_look(marks, FLAT[kind], spec), **place))
    return traces


def space_extrema(data: FigureData, spec: FigureSpec, lift: float = 0.0) -> list[go.Scatter3d]:
    """The marks in space, of two axes at their values, lifted so that they do not sink into the surface."""
    return [
        go.Scatter3d(
            x=marks.places[0],
            y=marks.places[1],
            z=marks.height + lift if len(data.axes) == 2 else marks.places[2],
            **_look(marks, SPACE[kind], spec),
        )
        for kind, marks in _kinds(data)
    ]


def _kinds(data: FigureData) -> list[tuple[str, Marks]]:
    """The marks of the landscape; saddles first, so that a minimum at the same place is drawn over a saddle."""
    if data.extrema is None:
        return []
    both = [("saddles", data.extrema.saddles), ("minima", data.extrema.minima)]
    return [(kind, marks) for kind, marks in both if marks.name]


def _real(data: FigureData, marks: Marks) -> np.ndarray:
    return np.array([data.scale.real(height) for height in marks.height])


def _look(marks: Marks, shape: tuple[str, float, float], spec: FigureSpec) -> Mapping[str, Any]:
    symbol, size, edge = shape
    markers = {
        theme: {
            "marker": {
                "symbol": symbol,
                "size": size,
                "color": INK[theme],
                "line": {"color": PAPER[theme], "width": edge},
            }
        }
        for theme in INK
    }
    words = {"name": marks.name, "hovertext": list(marks.hover), "hoverinfo": "text", "showlegend": True}
    return {"mode": "markers", **words, **themed(markers, spec.theme, role=ROLE)}


# ----------------------------------------------------------------------------------------------------
# Marks of a refined landscape: dotted lines where its steps get finer, and dots at the evaluated points of a curve.

NAME = "edges of finer steps"
WIDTH = 1.1


def finer_names(data: FigureData) -> list[str]:
    """The legend entry of the edges, if the landscape is refined, or of the points, if it has an accuracy."""
    return [EVALUATED] * (data.samples is not None) if data.interpolated is None else [NAME]


def evaluated_points(data: FigureData, spec: FigureSpec) -> list[go.Scatter]:
    """Where a landscape with an accuracy was evaluated, larger for more samples; hidden until the legend is clicked."""
    if data.samples is None:
        return []
    rows, columns = np.nonzero(data.samples)
    known = data.samples[rows, columns]
    x, y = (axis.coordinates for axis in data.axes)
    share = np.log2(np.maximum(known, 1)) / max(1.0, float(np.log2(max(int(known.max(initial=1)), 2))))
    marks = {
        theme: {"marker": {"color": INK[theme], "size": 2.0 + 5.0 * share**2, "line": {"color": colour, "width": 0.5}}}
        for theme, colour in PAPER.items()
    }
    words = [f"{count_text(count)} samples" for count in known]
    look: dict[str, Any] = themed(marks, spec.theme, role="evaluated")
    return [
        go.Scatter(
            x=x[columns], y=y[rows], mode="markers", name=EVALUATED, visible="legendonly", text=words,
            hovertemplate="%{text}<extra></extra>", showlegend=True, **look,
        )
    ]  # fmt: skip


def edge_places(data: FigureData, *, every_point: bool = False) -> tuple[Floats, Floats, Floats]:
    """The edges on a plane, one after another, with NaN after each.

    Args:
        every_point: also return the grid points between the ends of each edge, for lines on a surface.

    Returns:
        Both coordinates, and the drawn values there.
    """
    assert data.interpolated is not None
    edges = finer_edges(data.interpolated)
    if not every_point:
        edges = [(rows[[0, -1]], columns[[0, -1]]) for rows, columns in edges]
    x, y = (axis.coordinates for axis in data.axes)
    gap = [np.nan]
    parts = [(np.r_[x[columns], gap], np.r_[y[rows], gap], np.r_[data.drawn[rows, columns], gap])
             for rows, columns in edges]  # fmt: skip
    along = [np.concatenate(pieces) for pieces in zip(*parts, strict=True)] if parts else [np.array(gap)] * 3
    return along[0], along[1], along[2]


def flat_edges(data: FigureData, spec: FigureSpec) -> list[go.Scatter]:
    """The edges on a plane, with a halo as they cross all colours; the same number of traces without any edge."""
    if data.interpolated is None:
        return []
    x, y, _ = edge_places(data)
    traces = []
    for width, dash, colours in ((2 * WIDTH, "solid", PAPER), (WIDTH, "dot", INK)):
        lines = {theme: {"line": {"color": colour, "width": width, "dash": dash}} for theme, colour in colours.items()}
        above = dash == "dot"
        look: dict[str, Any] = {"opacity": 1.0 if above else 0.5, "legendgroup": NAME, "showlegend": above}
        look |= themed(lines, spec.theme, role="finer")
        traces.append(go.Scatter(x=x, y=y, mode="lines", name=NAME, hoverinfo="skip", **look))
    return traces


def space_edges(data: FigureData, spec: FigureSpec, lift: float) -> list[go.Scatter3d]:
    """The edges on a surface.

    Args:
        lift: the height of the lines above the values, so that they do not sink into the surface.
    """
    if data.interpolated is None:
        return []
    x, y, z = edge_places(data, every_point=True)
    lines = {theme: {"line": {"color": ink, "width": 1.5, "dash": "dot"}} for theme, ink in INK.items()}
    options: dict[str, Any] = themed(lines, spec.theme, role="finer")
    return [go.Scatter3d(x=x, y=y, z=z + lift, mode="lines", name=NAME, hoverinfo="skip", showlegend=True, **options)]


# ----------------------------------------------------------------------------------------------------
# Marks for points without a value to draw: hatched cells on a plane, symbols in space, each with its legend entry.


def hatched(
    states: NDArray[np.uint8], x: Floats, y: Floats, codes: Sequence[int], theme: str = "light", **place: Any
) -> list[go.Scatter]:
    """One filled and hatched trace per code, empty if nothing is missing for that reason.

    Args:
        states: [y, x], the state of each point.
        codes: the reasons to draw; frames of an animation need the same traces, even empty ones.
        place: the panel, as plotly's `xaxis` and `yaxis`.
    """
    squares = square_states(states)
    return [
        _hatch(code, squares == code, legend_name(code, int((states == code).sum())), x, y, theme, place)
        for code in codes
    ]


def _hatch(
    code: int, mask: NDArray[np.bool_], name: str, x: Floats, y: Floats, theme: str, place: dict[str, Any]
) -> go.Scatter:
    xs: list[float | None] = []
    ys: list[float | None] = []
    for top, bottom, left, right in rectangles(mask):
        xs += [x[left], x[right], x[right], x[left], x[left], None]
        ys += [y[top], y[top], y[bottom], y[bottom], y[top], None]
    look = HATCH[code]
    patterns = {"light": {key: look[key] for key in ("fgcolor", "bgcolor")}, "dark": DARK_HATCH[code]}
    return go.Scatter(
        x=xs,
        y=ys,
        mode="lines",
        line={"width": 0, "color": look["solid"]},
        fill="toself",
        fillpattern=patterns[theme] | {"shape": look["shape"], "size": 7, "solidity": 0.3},
        name=name,
        hoverinfo="name",
        hoveron="fills",
        showlegend=True,
        meta={"role": "missing", "code": code, "patterns": patterns},
        **place,
    )


def symbols(
    states: NDArray[np.uint8],
    axes: tuple[Floats, ...],
    floor: float | None,
    theme: str = "light",
    most: int = 4000,
) -> list[Any]:
    """One trace per reason, with a symbol per missing point: at the point itself, or on the `floor` under a surface.

    Args:
        states: [y, x] or [z, y, x], the state of each point; `axes` are their coordinates, x first.
        floor: the height of the symbols; None for three axes, where a point has its own place.
        most: symbols per reason to draw; if more points are missing, every k-th has one.
    """
    traces = []
    for code in missing_states(states):
        index = np.nonzero(states == code)
        every = -(-len(index[0]) // most)
        places = [axis[where[::every]] for axis, where in zip(axes, reversed(index), strict=True)]
        if floor is not None:
            places.append(np.full(places[0].shape, floor))
        look = {"size": 3, "symbol": HATCH[code]["symbol"], "opacity": 0.8}
        colours = {"light": HATCH[code]["solid"], "dark": DARK_SOLID[code]}
        markers = {paper: {"marker": look | {"color": colour}} for paper, colour in colours.items()}
        traces.append(
            go.Scatter3d(
                x=places[0],
                y=places[1],
                z=places[2],
                mode="markers",
                name=legend_name(code, index[0].size),
                hovertemplate="alpha %{x:.4g}<br>beta %{y:.4g}<extra>" + STATES[code] + "</extra>",
                showlegend=True,
                **themed(markers, theme, role="missing", code=code, floor=floor),
            )
        )
    return traces


# ----------------------------------------------------------------------------------------------------
# The marks of the networks that a plane runs through, with their names, and the curve between two of them.

NETWORK_SIZE = 13


def network_names(data: FigureData) -> list[str]:
    """The legend entries of the marks and of the curve, if there are any."""
    return [] if data.networks is None else [data.networks.title, *([data.networks.curve_name] * has_curve(data))]


def has_curve(data: FigureData) -> bool:
    """Whether a curve is drawn between the networks."""
    return data.networks is not None and data.networks.curve.size > 0


def flat_networks(data: FigureData, spec: FigureSpec) -> list[go.Scatter]:
    """The curve, and the networks as diamonds, at their true coordinates on a plane."""
    networks = data.networks
    if networks is None:
        return []
    traces = []
    if has_curve(data):
        line = {"x": networks.curve[0], "y": networks.curve[1], "mode": "lines", "meta": {"role": "curve"}}
        halo, ink = (
            {"color": colour, "width": spec.path_width + more}
            for colour, more in ((PATH_HALO, 3), (spec.path_colour, 0))
        )
        traces.append(go.Scatter(line=halo, opacity=0.85, hoverinfo="skip", showlegend=False, **line))
        traces.append(go.Scatter(line=ink, hoverinfo="skip", name=networks.curve_name, **line))
    edge = {"color": PATH_HALO, "width": 1.5}
    marks = go.Scatter(
        x=networks.places[0],
        y=networks.places[1],
        mode="markers",
        marker={"symbol": "diamond", "size": NETWORK_SIZE, "color": spec.path_colour, "line": edge},
        name=networks.title,
        hovertext=list(networks.hover),
        hoverinfo="text",
        meta={"role": "networks", "labels": list(networks.names)},
    )
    return [*traces, marks]


def space_networks(data: FigureData, spec: FigureSpec, lift: float) -> list[go.Scatter3d]:
    """The networks and the curve, `lift` above the surface; networks beyond the grid are left out."""
    networks = data.networks
    if networks is None or not np.isfinite(networks.heights).any():
        return []
    traces = []
    if has_curve(data):
        traces.append(
            go.Scatter3d(
                x=networks.curve[0],
                y=networks.curve[1],
                z=networks.curve_heights + lift,
                mode="lines",
                line={"color": spec.path_colour, "width": spec.path_width * 2.4},
                hoverinfo="skip",
                name=networks.curve_name,
                meta={"role": "curve"},
            )
        )
    marks = go.Scatter3d(
        x=networks.places[0],
        y=networks.places[1],
        z=networks.heights + lift,
        mode="markers+text",
        text=[text(name) for name in networks.names],
        textposition="top center",
        marker={"symbol": "diamond", "size": 5, "color": spec.path_colour},
        name=networks.title,
        hovertext=list(networks.hover),
        hoverinfo="text",
        meta={"role": "networks"},
    )
    return [*traces, marks]


# ----------------------------------------------------------------------------------------------------
# The mark of the origin: a thin cross where the axes are 0, in its own legend entry.

ARM = 0.05  # of an axis: the length of an arm of the mark in space
ORIGIN_SIZE, LINE, HALO = (
    24,
    1.3,
    3.5,
)  # the arms reach beyond the mark of the last snapshot, which is often at the same place


def origin_names(data: FigureData) -> list[str]:
    """The legend entry of the mark, if there is one."""
    return [] if data.origin is None else [data.origin.name]


def flat_origin(data: FigureData, spec: FigureSpec, y: float = 0.0, **place: Any) -> list[go.Scatter]:
    """The mark on a plane at (0, `y`): a cross with a halo, to be visible on any colour.

    Args:
        place: the panel, as plotly's `xaxis` and `yaxis`.
    """
    if data.origin is None or not math.isfinite(y):
        return []
    common: dict[str, Any] = {"x": [0.0], "y": [y], "mode": "markers", **place}
    halo = go.Scatter(
        opacity=0.75,
        hoverinfo="skip",
        showlegend=False,
        **common,
        **themed(_crosses(ORIGIN_SIZE + 2, HALO, PAPER), spec.theme, role="origin"),
    )
    cross = go.Scatter(
        name=data.origin.name,
        hovertext=[data.origin.hover],
        hoverinfo="text",
        **common,
        **themed(_crosses(ORIGIN_SIZE, LINE, INK), spec.theme, role="origin"),
    )
    return [halo, cross]


def _crosses(size: float, width: float, colours: Mapping[str, str]) -> dict[str, Any]:
    """The marker of the cross per theme."""
    return {
        theme: {"marker": {"symbol": "cross-thin", "size": size, "line": {"color": colour, "width": width}}}
        for theme, colour in colours.items()
    }


def space_origin(data: FigureData, spec: FigureSpec, z: float) -> list[go.Scatter3d]:
    """The mark in space at (0, 0, `z`): three crossing thin lines; empty if the height is not known.

    Plotly draws a marker in space from a letter, which is slower than all the rest of the figure.
    """
    if data.origin is None or not np.isfinite(z):
        return []
    ends = np.full((3, 3, 3), np.nan)  # [line, its two ends and a gap, axis]
    spans = [*(axis.span for axis in data.axes), data.scale.high - data.scale.low]
    for k, span in enumerate(spans[:3]):
        ends[k, :2] = 0.0
        ends[k, :2, k] = -ARM * span, ARM * span
    points = ends.reshape(9, 3) + np.array([0.0, 0.0, z])
    lines = {theme: {"line": {"color": ink, "width": 4}} for theme, ink in INK.items()}
    cross = {theme: {"marker": {"symbol": "cross", "size": 5, "color": ink}} for theme, ink in INK.items()}
    mark = go.Scatter3d(
        x=points[:, 0],
        y=points[:, 1],
        z=points[:, 2],
        mode="lines",
        connectgaps=False,
        hovertext=data.origin.hover,
        hoverinfo="text",
        showlegend=False,
        **themed(lines, spec.theme, role="origin"),
    )
    key = go.Scatter3d(
        **NOWHERE,
        mode="markers",
        showlegend=True,
        **themed(cross, spec.theme, role="origin"),
    )
    return [trace.update(name=data.origin.name, legendgroup=data.origin.name) for trace in (mark, key)]
