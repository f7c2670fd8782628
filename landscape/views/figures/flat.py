"""Drawing two axes on a plane: contour lines, filled topography, and slices of a three-axis grid with a slider."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import plotly.graph_objects as go
from numpy.typing import NDArray

from landscape.views.figures.holes import hatched, hole_names, present_states
from landscape.views.figures.layout import (
    TICKS_PX,
    Frame,
    Style,
    base_layout,
    colour_bar,
    finish,
    make_frame,
    wrapped,
)
from landscape.views.figures.overlay import animate, flat_labels, flat_path, legend_names
from landscape.views.figures.pointer import pointer_text, pointer_values
from landscape.views.figures.theme import colour_scale, typed
from landscape.views.prepared.prepare import Grid
from landscape.views.prepared.scale import number
from landscape.views.prepared.wording import wrap

PLOT_PX, TALLEST_PX, WIDEST_PX, LOWEST_PX = 560, 640, 820, 150
TICK_PX = 15
SMOOTHING = 0.6


def draw_contour(grid: Grid, style: Style) -> go.Figure:
    """Isolines, each labelled with its value."""
    return _draw_plane(grid, style, filled=False)


def draw_topographic(grid: Grid, style: Style) -> go.Figure:
    """Bands of colour between the isolines."""
    return _draw_plane(grid, style, filled=True)


def draw_slices(grid: Grid, style: Style) -> go.Figure:
    """Filled slices across the third axis, with a slider; the first shown is the one nearest 0."""
    gammas = grid.axes[2].coordinates
    shown = int(np.argmin(np.abs(gammas)))
    planes = [slice_at(grid, k) for k in range(len(gammas))]
    figure = _draw_plane(
        replace(planes[shown], states=grid.states[shown]), style, filled=True, room=74, every=grid.states
    )
    contour_and_holes = list(range(1 + len(present_states(grid.states))))
    frames = []
    for k, plane in enumerate(planes):
        holes = _holes(plane, present_states(grid.states), style)
        data = [_contour(plane, style, figure.layout.meta["plot"][1]), *holes]
        frames.append(go.Frame(data=data, traces=contour_and_holes, name=str(k)))
    figure.frames = frames
    move = {"mode": "immediate", "frame": {"duration": 0, "redraw": True}, "transition": {"duration": 0}}
    steps = [
        {"label": number(float(each), 3), "method": "animate", "args": [[str(k)], move]}
        for k, each in enumerate(gammas)
    ]
    below = figure.layout.meta["below"]
    figure.update_layout(
        sliders=[
            {
                "active": shown,
                "steps": steps,
                "currentvalue": {"prefix": f"{grid.axes[2].name} = ", "font": {"size": 13}},
                "x": 0,
                "len": 1,
                "y": -(below - 68) / figure.layout.meta["plot"][1],
                "yanchor": "top",
                "pad": {"t": 0, "b": 0},
                "font": {"size": 10},
            }
        ]
    )
    return figure


def slice_at(grid: Grid, k: int) -> Grid:
    """The plane at the `k`-th coordinate of the third axis, on the scale of the whole grid."""
    error = None if grid.error is None else grid.error[k]
    return replace(
        grid,
        caption=(*grid.caption, f"Slices across {grid.axes[2].title}"),
        axes=grid.axes[:2],
        values=grid.values[k],
        drawn=grid.drawn[k],
        error=error,
        rise=None if grid.rise is None else grid.rise[k],
        rise_error=None if grid.rise_error is None else grid.rise_error[k],
        states=grid.states[k],
    )


def plot_size(grid: Grid) -> tuple[float, float]:
    """Width and height of the plot area in pixels; one scale for both axes wherever that is drawable."""
    if not grid.equal:
        return PLOT_PX, 0.8 * PLOT_PX
    width = max(PLOT_PX, min(WIDEST_PX, LOWEST_PX / grid.ratio))
    height = width * grid.ratio
    return (width, height) if height <= TALLEST_PX else (TALLEST_PX / grid.ratio, TALLEST_PX)


def _draw_plane(
    grid: Grid, style: Style, filled: bool, room: float = 0, every: NDArray[np.uint8] | None = None
) -> go.Figure:
    """`room`: pixels kept free below the axis (for a slider); `every`: states whose legend entries are wanted."""
    codes = present_states(grid.states if every is None else every)
    names = [*legend_names(grid.track), *hole_names(grid.states if every is None else every)]
    plot = plot_size(grid)
    x_title, y_title = grid.axes[0].title, grid.axes[1].title
    x_lines, y_lines = len(wrap(x_title, plot[0], 13)), len(wrap(y_title, max(plot[1], 200), 13))
    below = TICKS_PX + 17 * x_lines + room
    frame = make_frame(grid, style, plot, left=56 + 17 * y_lines, below=below, legend=names)
    length = max(plot[1], 190.0)
    field = [_contour(grid, style, length)] if filled else _lines(grid, style, length)
    traces: list[Any] = [*field, *_holes(grid, codes, style)]
    layout = base_layout(grid, style, frame) | _axes(grid, frame, x_title, y_title)
    if grid.track is not None:
        traces += flat_path(grid.track, style)
        layout["annotations"] = [*layout["annotations"], *flat_labels(grid.track)]
    meta = {"plot": list(plot), "below": below, "equal": grid.equal}
    figure = finish(grid, traces, layout, meta)
    if style.animate and grid.track is not None and len(grid.track.numbers) > 1 and not room:
        animate(figure, grid.track)
    return figure


def _axes(grid: Grid, frame: Frame, x_title: str, y_title: str) -> dict[str, Any]:
    ranges = _ranges(grid)
    layout: dict[str, Any] = {
        "xaxis": {
            "title": {"text": wrapped(x_title, frame.plot[0])},
            "range": ranges[0],
            "showgrid": False,
            "zeroline": False,
        },
        "yaxis": {
            "title": {"text": wrapped(y_title, max(frame.plot[1], 200))},
            "range": ranges[1],
            "showgrid": False,
            "zeroline": False,
        },
    }
    if grid.equal:
        layout["xaxis"]["constrain"] = "domain"
        layout["yaxis"] |= {"scaleanchor": "x", "scaleratio": 1, "constrain": "domain", "constraintoward": "top"}
    return layout


def _ranges(grid: Grid) -> tuple[list[float], list[float]]:
    """The grid's own extent, wider where the path leaves it: nothing of the path is cut off."""
    found = []
    for k, axis in enumerate(grid.axes[:2]):
        low, high = float(axis.coordinates[0]), float(axis.coordinates[-1])
        if grid.track is not None:
            place = grid.track.places[k]
            margin = 0.03 * axis.span
            low = low if place.min() >= low else float(place.min()) - margin
            high = high if place.max() <= high else float(place.max()) + margin
        found.append([low, high])
    return found[0], found[1]


def _contour(grid: Grid, style: Style, length: float) -> go.Contour:
    """Bands of colour with thin lines between them."""
    scale = grid.scale
    contours = {"start": scale.start, "end": scale.stop, "size": scale.step, "coloring": "fill", "showlines": True}
    return _contour_trace(
        grid,
        contours=contours,
        line={"width": 0.7, "color": "rgba(255,255,255,0.55)", "smoothing": SMOOTHING},
        colorscale=colour_scale(style.colour_scale),
        colorbar=colour_bar(grid, length),
        meta={"role": "field"},
    )


def _lines(grid: Grid, style: Style, length: float) -> list[go.Contour]:
    """Isolines with their values; where they are many, every k-th is heavier and has its value, as on maps.

    Plotly writes the colour bar's tick texts on the lines, which gives real values on a logarithmic scale. A
    line without a text can hang its placing of labels, so lines without a value are a trace of their own.
    """
    scale = grid.scale
    every = max(1, math.ceil(len(scale.ticks) * TICK_PX / length))
    first = (len(scale.ticks) - 1) % every // 2
    ticks, texts = scale.ticks[first::every], scale.texts[first::every]
    span = (scale.stop - scale.start) or 1.0
    part = ((ticks[0] - scale.start) / span, (ticks[-1] - scale.start) / span) if len(ticks) > 1 else (0.0, 1.0)
    labelled = _contour_trace(
        grid,
        contours={
            "start": ticks[0],
            "end": ticks[-1],
            "size": scale.step * every,
            "coloring": "lines",
            "showlabels": True,
            "labelfont": {"size": 11},
        },
        line={"width": 1.7, "smoothing": SMOOTHING},
        **_line_colours(style, *part),
        colorbar=colour_bar(grid, length) | {"tickvals": list(ticks), "ticktext": list(texts)},
    )
    if every == 1:
        return [labelled]
    contours = {"start": scale.start, "end": scale.stop, "size": scale.step, "coloring": "lines"}
    line = {"width": 0.7, "smoothing": SMOOTHING}
    return [
        _contour_trace(grid, contours=contours, line=line, showscale=False, **_line_colours(style, 0.0, 1.0)),
        labelled,
    ]


def _line_colours(style: Style, low: float, high: float) -> dict[str, Any]:
    """Lines on paper need the scale's faint end cut off: the bright one on light paper, the dark one on dark paper."""
    scales = {}
    for theme, (start, stop) in {"light": (0.0, 0.88), "dark": (0.35, 1.0)}.items():
        width = stop - start
        scales[theme] = colour_scale(style.colour_scale, start + width * low, start + width * high)
    return {"colorscale": scales[style.theme], "meta": {"role": "field", "labelled": True, "scales": scales}}


def _contour_trace(grid: Grid, **look: Any) -> go.Contour:
    return go.Contour(
        x=grid.axes[0].coordinates,
        y=grid.axes[1].coordinates,
        z=typed(grid.drawn),
        customdata=typed(_raw(grid)),
        hovertemplate=_hover(grid),
        autocontour=False,
        zmin=grid.scale.low,
        zmax=grid.scale.high,
        connectgaps=False,
        name=grid.observable,
        showlegend=False,
        **look,
    )


def _raw(grid: Grid) -> NDArray[np.float64]:
    """Per point what the pointer shows."""
    return pointer_values(grid)[0]


def _hover(grid: Grid) -> str:
    names = [axis.name for axis in grid.axes]
    value = pointer_text(grid.observable.replace("_", " "), pointer_values(grid)[1])
    return f"{names[0]} %{{x:.4g}}<br>{names[1]} %{{y:.4g}}<br>{value}<extra></extra>"


def _holes(grid: Grid, codes: list[int], style: Style) -> list[go.Scatter]:
    """One hatched trace per code, empty where this plane has none of that kind (frames need the same traces)."""
    return hatched(grid.states, grid.axes[0].coordinates, grid.axes[1].coordinates, codes, style.theme)
