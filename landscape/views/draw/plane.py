"""What the drawings of two axes on a plane share: size, axes, isolines, missing points, the paths on top."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import plotly.graph_objects as go
from numpy.typing import NDArray

from landscape.views.draw.animation import animate
from landscape.views.draw.extrema import extrema_names, flat_extrema
from landscape.views.draw.finer import finer_names, flat_edges
from landscape.views.draw.layout import (
    TICKS_PX,
    Frame,
    Style,
    base_layout,
    colour_bar,
    finish,
    make_frame,
    one_line,
    text,
)
from landscape.views.draw.marks import unclear_names, unclear_region
from landscape.views.draw.missing import hatched
from landscape.views.draw.networks import flat_networks, network_labels, network_names
from landscape.views.draw.origin import flat_origin, origin_names
from landscape.views.draw.paths import flat_labels, flat_paths, legend_names, snapshots_note
from landscape.views.draw.pointer import plane_hover, pointer_notes, pointer_values
from landscape.views.draw.style import BETWEEN, BETWEEN_PALE, Shades, band_colours, band_shades, is_centred
from landscape.views.draw.theme import TEMPLATES, typed
from landscape.views.prepare.figure import FigureData
from landscape.views.prepare.levels import EvenLevels, even_levels
from landscape.views.prepare.missing import missing_names, missing_states
from landscape.views.prepare.paths import ends_of

PLOT_PX, TALLEST_PX, WIDEST_PX, LOWEST_PX = 560, 640, 820, 150
SHORTEST_BAR_PX = 190.0
SMOOTHING, COARSE = 0.6, 100  # lines through coarser grids are smoothed; through finer ones that only takes time


def plot_size(data: FigureData) -> tuple[float, float]:
    """Width and height of the plot area in pixels; one scale for both axes wherever that is drawable."""
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
    style: Style,
    *,
    room: float = 0,
    all_states: NDArray[np.uint8] | None = None,
    shades: Mapping[str, Shades] | None = None,
) -> go.Figure:
    """The figure around the traces `field` that show the values.

    Args:
        room: pixels to keep free below the axis, for a slider.
        all_states: the states of which the legend has entries, where they are more than those of this plane.
        shades: the colours of values per theme, where they are not those of bands.
    """
    if shades is None:
        shades = dict.fromkeys(TEMPLATES, band_shades(style.colour_scale, data.scale))
    data = replace(data, caption=(*data.caption, *snapshots_note(data)))
    states = data.states if all_states is None else all_states
    plot = plot_size(data)
    below = TICKS_PX + 17 + room
    names = [*legend_names(data.paths), *network_names(data), *missing_names(states)]
    names += [*layer_names(data), *extrema_names(data)]
    frame = make_frame(data, style, plot, left=73, below=below, legend=names)
    traces: list[Any] = [*field, *layers(data, missing_states(states), style)]
    layout = base_layout(data, style, frame) | _axes(data, frame)
    traces += flat_networks(data, style)
    layout["annotations"] = [*layout["annotations"], *network_labels(data)]
    traces += flat_paths(data.paths, style, shades)
    layout["annotations"] = [*layout["annotations"], *flat_labels(data.paths)]
    traces += flat_extrema(data, style)
    figure = finish(data, traces, layout, {"plot": list(plot), "below": below, "equal": data.equal})
    if style.animate and not room:
        animate(figure, data.paths)
    return figure


def _axes(data: FigureData, frame: Frame) -> dict[str, Any]:
    ranges = _ranges(data)
    layout: dict[str, Any] = {
        "xaxis": {
            "title": {"text": one_line(data.axes[0].title, frame.plot[0])},
            "range": ranges[0],
            "showgrid": False,
            "zeroline": False,
        },
        "yaxis": {
            "title": {"text": one_line(data.axes[1].title, frame.plot[1])},
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
    """The grid's own extent, wider where a path leaves it: nothing of the paths is cut off."""
    ranges = []
    for k, axis in enumerate(data.axes[:2]):
        low, high = float(axis.coordinates[0]), float(axis.coordinates[-1])
        least, largest = ends_of(data.paths, k)
        margin = 0.03 * axis.span
        low = low if least >= low else least - margin
        high = high if largest <= high else largest + margin
        ranges.append([low, high])
    return ranges[0], ranges[1]


def filled(data: FigureData, style: Style, bar: float) -> go.Contour:
    """Bands of colour with thin lines between them, and a colour bar of `bar` pixels."""
    even, pale = even_levels(data.scale.ticks), is_centred(style.colour_scale, data.scale)
    contours = {"start": even.start, "end": even.stop, "size": even.step, "coloring": "fill", "showlines": True}
    return contour_trace(
        data,
        even,
        contours=contours,
        line={"width": 0.7, "color": BETWEEN_PALE if pale else BETWEEN, "smoothing": smoothing(data)},
        colorscale=band_colours(style.colour_scale, data.scale),
        colorbar=colour_bar(data, bar, even),
    )


def smoothing(data: FigureData) -> float:
    """How much plotly rounds the corners of lines, which lie where they cross the squares of the grid."""
    return SMOOTHING if max(data.drawn.shape) <= COARSE else 0.0


def contour_trace(
    data: FigureData, even: EvenLevels, *, meta: Mapping[str, Any] | None = None, **look: Any
) -> go.Contour:
    """The values as plotly's contour trace, in units in which its levels are evenly spaced.

    Args:
        meta: joins the role, and the levels in drawn units where they are not even themselves, by which the page's
            script turns drawn values that arrive later into those of this trace.
        look: options of the trace.
    """
    levels = {"levels": list(even.drawn)} if even.drawn else {}
    return go.Contour(
        x=data.axes[0].coordinates,
        y=data.axes[1].coordinates,
        z=typed(even.values(data.drawn)),
        customdata=typed(pointer_values(data)[0]),
        text=pointer_notes(data),
        hovertemplate=plane_hover(data),
        autocontour=False,
        zmin=even.value(data.scale.low),
        zmax=even.value(data.scale.high),
        connectgaps=False,
        name=text(data.observable),
        showlegend=False,
        meta={"role": "field", **levels, **(meta or {})},
        **look,
    )


def layers(data: FigureData, codes: Sequence[int], style: Style) -> list[Any]:
    """What lies over the values and under the path: missing points, the uncertain region, finer steps, the origin.

    Args:
        codes: the reasons for missing points to draw; each has a trace, empty where nothing of this plane is missing
            for that reason, since the frames of an animation need the same traces.
    """
    x, y = data.axes[0].coordinates, data.axes[1].coordinates
    cells = hatched(data.states, x, y, codes, style.theme)
    return [*cells, *unclear_region(data, style), *flat_edges(data, style), *flat_origin(data, style)]


def layer_names(data: FigureData) -> list[str]:
    """The legend entries of `layers` beside those of missing points."""
    return [*unclear_names(data), *finer_names(data), *origin_names(data)]
