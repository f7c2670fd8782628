"""Drawings of two axes on a plane: contours, bands of colour, names; their common size, axes, layers and paths."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import plotly.graph_objects as go
from numpy.typing import NDArray

from landscape.core.errors import capped
from landscape.surface.surface import OK
from landscape.views.draw.labels import lay_labels
from landscape.views.draw.layout import (
    TICKS_PX,
    axis_title,
    base_layout,
    colour_bar,
    finish,
    label_carrier,
    make_frame,
    more_lines,
    plane_hover,
    pointer_notes,
    pointer_values,
    text,
    with_levels,
)
from landscape.views.draw.marks import (
    evaluated_points,
    extrema_names,
    finer_names,
    flat_edges,
    flat_extrema,
    flat_networks,
    flat_origin,
    hatched,
    network_names,
    origin_names,
    unclear_names,
    unclear_region,
)
from landscape.views.draw.paths import animate, flat_paths, legend_names, snapshots_note
from landscape.views.draw.style import (
    BETWEEN,
    BETWEEN_PALE,
    INK,
    SIGN_LINES,
    TEMPLATES,
    Shades,
    band_colours,
    band_shades,
    is_centred,
    line_colours,
    line_shades,
    signs_of,
    themed,
    typed,
)
from landscape.views.figure_spec import FigureSpec
from landscape.views.prepare.figure import FigureData, missing_names, missing_states
from landscape.views.prepare.paths import ends_of
from landscape.views.prepare.scale import EvenLevels, even_levels
from landscape.views.prepare.smooth import GRID_POINTS, contour_field, is_smooth, smooth_note

PLOT_PX, TALLEST_PX, WIDEST_PX, LOWEST_PX = 560, 640, 820, 150
SHORTEST_BAR_PX = 190.0
BESIDE_PX = 40  # that a title of the vertical axis may be longer than a low plot, into the margins above and below
SMOOTHING, COARSE = 0.6, 100  # lines through coarser grids are smoothed; finer grids do not need it


def plot_size(data: FigureData) -> tuple[float, float]:
    """Width and height of the plot area in pixels; one scale for both axes if that is drawable."""
    if not data.equal:
        return PLOT_PX, 0.8 * PLOT_PX
    width = max(PLOT_PX, min(WIDEST_PX, LOWEST_PX / data.ratio))
    height = width * data.ratio
    return (width, height) if height <= TALLEST_PX else (TALLEST_PX / data.ratio, TALLEST_PX)


def bar_length(data: FigureData) -> float:
    """The length of the colour bar beside the plot, in pixels."""
    return max(plot_size(data)[1], SHORTEST_BAR_PX)


def draw_plane(
    data: FigureData,
    field: Sequence[go.Contour],
    spec: FigureSpec,
    *,
    room: float = 0,
    all_states: NDArray[np.uint8] | None = None,
    shades: Mapping[str, Shades] | None = None,
) -> go.Figure:
    """The figure around the traces `field` that show the values.

    Args:
        room: pixels to keep free below the axis, for a slider.
        all_states: the states with legend entries, if more than those of this plane.
        shades: the colours of values per theme, if they differ from those of bands.
    """
    if shades is None:
        shades = dict.fromkeys(TEMPLATES, band_shades(spec.colour_scale, data.scale))
    data = replace(data, caption=(*data.caption, *smooth_note(data, spec), *snapshots_note(data)))
    states = data.states if all_states is None else all_states
    plot = plot_size(data)
    titles = axis_title(data.axes[0].title, plot[0]), axis_title(data.axes[1].title, plot[1] + BESIDE_PX)
    below = TICKS_PX + 17 + room + more_lines(titles[0])
    names = [*legend_names(data.paths), *network_names(data), *missing_names(states)]
    names += [*layer_names(data), *extrema_names(data), *([GRID_POINTS] if spec.points else [])]
    frame = make_frame(data, spec, plot, left=73 + more_lines(titles[1]), below=below, legend=names)
    traces: list[Any] = [*field, *_pointer(data, spec), *layers(data, missing_states(states), spec)]
    layout = base_layout(data, spec, frame) | _axes(data, titles)
    traces += [
        *grid_points(data, spec),
        *flat_networks(data, spec),
        *flat_paths(data.paths, spec, shades),
        *flat_extrema(data, spec),
    ]
    figure = finish(data, traces, layout, {"plot": list(plot), "below": below, "equal": data.equal})
    lay_labels(figure, plot)
    if spec.animate and not room:
        animate(figure, data.paths)
    return figure


def _axes(data: FigureData, titles: Sequence[dict[str, Any]]) -> dict[str, Any]:
    ranges = _ranges(data)
    layout: dict[str, Any] = {
        "xaxis": {
            "title": titles[0],
            "range": ranges[0],
            "showgrid": False,
            "zeroline": False,
        },
        "yaxis": {
            "title": titles[1],
            "range": ranges[1],
            "showgrid": False,
            "zeroline": False,
        },
    }
    if data.equal:
        layout["xaxis"]["constrain"] = "domain"
        layout["yaxis"] |= {"scaleanchor": "x", "scaleratio": 1, "constrain": "domain", "constraintoward": "top"}
    return layout


def _ranges(data: FigureData) -> tuple[list[float], list[float]]:
    """The grid's extent, widened until it holds all paths."""
    ranges = []
    for k, axis in enumerate(data.axes[:2]):
        low, high = float(axis.coordinates[0]), float(axis.coordinates[-1])
        least, largest = ends_of(data.paths, k)
        margin = 0.03 * axis.span
        low = low if least >= low else least - margin
        high = high if largest <= high else largest + margin
        ranges.append([low, high])
    return ranges[0], ranges[1]


def filled(data: FigureData, spec: FigureSpec, bar: float) -> go.Contour:
    """Bands of colour with thin lines between them, and a colour bar of `bar` pixels."""
    even, pale = even_levels(data.scale.ticks), is_centred(spec.colour_scale, data.scale)
    contours = {"start": even.start, "end": even.stop, "size": even.step, "coloring": "fill", "showlines": True}
    return contour_trace(
        data,
        even,
        spec,
        contours=contours,
        line={"width": 0.7, "color": BETWEEN_PALE if pale else BETWEEN, "smoothing": smoothing(data)},
        colorscale=band_colours(spec.colour_scale, data.scale),
        colorbar=colour_bar(data, bar, even),
    )


def smoothing(data: FigureData) -> float:
    """How much plotly rounds the corners of lines, which lie on the edges of grid squares."""
    return SMOOTHING if max(data.drawn.shape) <= COARSE else 0.0


def _pointer(data: FigureData, spec: FigureSpec) -> list[go.Heatmap]:
    """An invisible trace that answers the pointer with the values of points, where lines are interpolated."""
    if not is_smooth(data, spec):
        return []
    x, y = (axis.coordinates for axis in data.axes)
    numbers = {"customdata": typed(pointer_values(data)[0]), "hovertemplate": plane_hover(data)}
    return [go.Heatmap(x=x, y=y, z=typed(data.drawn), opacity=0, showscale=False, **numbers)]


def grid_points(data: FigureData, spec: FigureSpec) -> list[go.Scatter]:
    """Small ticks at the points of the grid that have a value, if asked for."""
    if not spec.points:
        return []
    x, y = np.meshgrid(*(axis.coordinates for axis in data.axes))
    known = data.states == OK if data.interpolated is None else (data.states == OK) & (data.interpolated == 0)
    looks = {
        theme: {"marker": {"symbol": "cross-thin", "size": 4, "line": {"width": 0.6, "color": ink}}}
        for theme, ink in INK.items()
    }
    places: dict[str, Any] = {"x": typed(x[known]), "y": typed(y[known]), "mode": "markers", "hoverinfo": "skip"}
    return [go.Scatter(name=GRID_POINTS, opacity=0.7, **places, **themed(looks, spec.theme, role="points"))]


def contour_trace(
    data: FigureData,
    even: EvenLevels,
    spec: FigureSpec | None = None,
    *,
    meta: Mapping[str, Any] | None = None,
    **look: Any,
) -> go.Contour:
    """The values as plotly's contour trace, in units with evenly spaced levels.

    Args:
        spec: if it asks for interpolated lines, or allows them, the trace runs through these and not the points.
        meta: is added to the trace's role and to its levels in drawn units, if these are uneven; the page's script uses
            the levels to convert drawn values that arrive later.
        look: options of the trace.
    """
    levels = {"levels": list(even.drawn)} if even.drawn else {}
    if spec is not None and is_smooth(data, spec):
        x, y, drawn = contour_field(data, spec)
        look["line"] = {**look.get("line", {}), "smoothing": 0.0}
        hover: dict[str, Any] = {"hoverinfo": "skip"}
    else:
        x, y, drawn = data.axes[0].coordinates, data.axes[1].coordinates, data.drawn
        hover = {"customdata": typed(pointer_values(data)[0]), "text": pointer_notes(data)}
        hover |= {"hovertemplate": plane_hover(data)}
    return go.Contour(
        x=x,
        y=y,
        z=typed(even.values(drawn)),
        autocontour=False,
        zmin=even.value(data.scale.low),
        zmax=even.value(data.scale.high),
        connectgaps=False,
        name=text(data.observable),
        showlegend=False,
        meta={"role": "field", **levels, **(meta or {})},
        **hover,
        **look,
    )


def layers(data: FigureData, codes: Sequence[int], spec: FigureSpec) -> list[Any]:
    """The layers between values and path: missing points, the uncertain region, finer steps, the origin.

    Args:
        codes: the reasons for missing points to draw; each has a trace, possibly empty, since the frames of an
            animation need the same traces.
    """
    x, y = data.axes[0].coordinates, data.axes[1].coordinates
    cells = hatched(data.states, x, y, codes, spec.theme)
    return [
        *cells,
        *unclear_region(data, spec),
        *flat_edges(data, spec),
        *evaluated_points(data, spec),
        *flat_origin(data, spec),
    ]


def layer_names(data: FigureData) -> list[str]:
    """The legend entries of `layers` beside those of missing points."""
    return [*unclear_names(data), *finer_names(data), *origin_names(data)]


# ----------------------------------------------------------------------------------------------------
# A plane whose values stand for names: which layer breaks, and by which rule. Each occurring name has a colour.

NOTHING = {"light": "#e8eaee", "dark": "#2b313c"}  # of the first name, where nothing breaks
# Distinct for any colour vision (Okabe and Ito 2008); reused from the beginning.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#f0e442", "#7f3c8d")
LONGEST = 24  # characters of a name


def draw_categories(data: FigureData, spec: FigureSpec) -> go.Figure:
    """Each point in the colour of the name that its value stands for."""
    assert data.categories is not None
    finite = data.drawn[np.isfinite(data.drawn)]
    codes = [int(code) for code in np.unique(finite)] or [0]
    names = [_name(data.categories, code) for code in codes]
    places = np.searchsorted(codes, np.where(np.isfinite(data.drawn), data.drawn, codes[0])).astype(np.float64)
    texts = np.array(names, object)[places.astype(int)]
    places[~np.isfinite(data.drawn)] = np.nan
    colours = _category_colours(codes, spec.theme)
    share = 1 / len(codes)
    scale = [[edge * share, colour] for k, colour in enumerate(colours) for edge in (k, k + 1)]
    field = go.Heatmap(
        x=data.axes[0].coordinates,
        y=data.axes[1].coordinates,
        z=places,
        zmin=-0.5,
        zmax=len(codes) - 0.5,
        colorscale=scale,
        text=[[text(str(cell)) for cell in row] for row in texts],
        hovertemplate=f"{data.axes[0].name} %{{x:.4g}}, {data.axes[1].name} %{{y:.4g}}<br>%{{text}}<extra></extra>",
        name=text(data.observable),
        meta={"role": "categories"},
        colorbar={
            "title": {"text": text(data.quantity), "side": "top", "font": {"size": 13}},
            "thickness": 14,
            "len": bar_length(data),
            "lenmode": "pixels",
            "x": 1.02,
            "xanchor": "left",
            "outlinewidth": 0,
            "tickfont": {"size": 11},
            "tickmode": "array",
            "tickvals": list(range(len(codes))),
            "ticktext": [text(capped(name, LONGEST)) for name in names],
        },
    )
    figure = draw_plane(data, [field], spec)
    longest = max(min(len(name), LONGEST) for name in names)
    room = 40 + 7 * longest
    if room > figure.layout.margin.r:
        figure.update_layout(width=figure.layout.width + room - figure.layout.margin.r, margin={"r": room})
    return figure


def _name(categories: tuple[str, ...], code: int) -> str:
    return categories[code] if 0 <= code < len(categories) else str(code)


def _category_colours(codes: list[int], theme: str) -> list[str]:
    """A colour per code; neighbours in the bar always differ."""
    named = [code for code in codes if code != 0]
    return [NOTHING[theme] if code == 0 else COLOURS[named.index(code) % len(COLOURS)] for code in codes]


# ----------------------------------------------------------------------------------------------------
# The contour drawing of two axes: isolines, each labelled with its value.

LINE_PX = 15  # at least between two labelled lines, if they were evenly spread over the plot


def draw_contour(data: FigureData, spec: FigureSpec) -> go.Figure:
    """Isolines, each labelled with its value; a colour bar would repeat the labels."""
    signed = is_centred(spec.colour_scale, data.scale)
    lines = signed_lines(data, spec) if signed else _lines(data, spec, bar_length(data))
    shades = {theme: line_shades(spec.colour_scale, data.scale, theme) for theme in TEMPLATES}
    return draw_plane(with_levels(data), lines, spec, shades=shades)


def signed_lines(field: FigureData, spec: FigureSpec) -> list[go.Contour]:
    """Contour lines below, at and above 0, which differ by line style as well as colour."""
    even, signs = even_levels(field.scale.ticks), np.array(signs_of(field.scale))
    traces = []
    for sign, colours in SIGN_LINES.items():
        places = np.flatnonzero(signs == sign)
        if not places.size:
            continue
        which = slice(int(places[0]), int(places[-1]) + 1)
        start, stop = (even.start + even.step * int(k) for k in (places[0], places[-1]))
        scales = {theme: [[0.0, colour], [1.0, colour]] for theme, colour in colours.items()}
        dash = "dash" if sign < 0 else "solid"
        look_of_lines: dict[str, Any] = {
            "contours": {"start": start, "end": stop, "size": even.step, "coloring": "lines", "showlabels": True},
            "line": {"width": 2.4 if sign == 0 else 1.6, "dash": dash, "smoothing": smoothing(field)},
            "colorscale": scales[spec.theme],
            "colorbar": label_carrier(field, even, which),
        }
        traces.append(contour_trace(field, even, spec, meta={"labelled": True, "scales": scales}, **look_of_lines))
    return traces or [contour_trace(field, even, showscale=False, line={"width": 0})]


def _lines(data: FigureData, spec: FigureSpec, length: float) -> list[go.Contour]:
    """Isolines with their values; of many, every k-th is heavier and has its value, as on maps.

    Plotly labels the lines with the colour bar's tick texts, which are real values on a logarithmic scale. A line
    without a text can hang its label placement, so lines without labels are a separate trace.
    """
    scale, even = data.scale, even_levels(data.scale.ticks)
    every = max(1, math.ceil(len(scale.ticks) * LINE_PX / length))
    first = (len(scale.ticks) - 1) % every // 2
    labelled = contour_trace(
        data,
        even,
        spec,
        contours=_every(even, len(scale.ticks), first, every) | {"showlabels": True, "labelfont": {"size": 11}},
        line={"width": 1.7, "smoothing": smoothing(data)},
        colorbar=label_carrier(data, even, slice(first, None, every)),
        **_colours(data, spec, slice(first, None, every)),
    )
    if every == 1:
        return [labelled]
    look = {"contours": _every(even, len(scale.ticks), 0, 1), "line": {"width": 0.7, "smoothing": smoothing(data)}}
    thin = contour_trace(data, even, spec, showscale=False, **look, **_colours(data, spec, slice(None)))
    # The trace above it answers the pointer; the numbers need not be sent twice.
    return [thin.update(customdata=None, text=None, hovertemplate=None, hoverinfo="skip"), labelled]


def _every(even: EvenLevels, count: int, first: int, every: int) -> dict[str, Any]:
    """Every `every`-th of the `count` levels, from the `first` on, as plotly's contours."""
    last = first + (count - 1 - first) // every * every
    start, stop = (even.start + even.step * k for k in (first, last))
    return {"start": start, "end": stop, "size": even.step * every, "coloring": "lines"}


def _colours(data: FigureData, spec: FigureSpec, which: slice) -> dict[str, Any]:
    """The colours of those levels, for both themes, as the page changes from one to the other."""
    scale = replace(data.scale, ticks=data.scale.ticks[which])
    scales = {theme: line_colours(spec.colour_scale, scale, theme) for theme in ("light", "dark")}
    return {"colorscale": scales[spec.theme], "meta": {"labelled": True, "scales": scales}}


# ----------------------------------------------------------------------------------------------------
# The topographic drawing of two axes: bands of colour between the isolines.


def draw_topographic(data: FigureData, spec: FigureSpec) -> go.Figure:
    """Bands of colour between the isolines."""
    return draw_plane(with_levels(data), [filled(data, spec, bar_length(data))], spec)
