"""Overlays of several landscapes: their legend entries, paths and last snapshots; as contours, curves or surfaces."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import plotly.graph_objects as go

from landscape.core.errors import capped
from landscape.views.draw.curve import PANEL_PX, PLOT_PX, band, y_limits
from landscape.views.draw.layout import (
    NOTE,
    TICKS_PX,
    axis_title,
    base_layout,
    finish,
    label_carrier,
    legend_rows,
    make_frame,
    of_heights,
    plane_hover,
    pointer_notes,
    pointer_text,
    pointer_values,
    text,
    with_levels,
)
from landscape.views.draw.marks import hatched, space_origin, symbols
from landscape.views.draw.paths import LIFT, POINTS_OF_THREAD, PathInSpace, raised_note, threads
from landscape.views.draw.plane import contour_trace, draw_plane, smoothing
from landscape.views.draw.space import (
    HEIGHT,
    draw_scene,
    height_notes,
    heights_drawn,
    horizontal_aspect,
    level_lines,
    origin_height,
    paths_in_space,
    z_axis,
)
from landscape.views.draw.style import INK, NOWHERE, PAPER, PATH_HALO, SeriesStyle, hue_scale, look, themed, typed
from landscape.views.figure_spec import FigureSpec
from landscape.views.prepare.comparison import OverlayData
from landscape.views.prepare.difference import coordinates_agree
from landscape.views.prepare.figure import FigureData, missing_states
from landscape.views.prepare.paths import DrawnPath
from landscape.views.prepare.scale import even_levels, nice_ticks
from landscape.views.prepare.words import observable_title, usual_digits

LEGEND = {"traceorder": "normal", "itemsizing": "trace"}  # entries in rows, each with its own line style
LEGEND_ROW_PX, LEGEND_GAP_PX = 22, 8
KEY_RANK = 900  # of plotly's 1000: the landscapes come first in the legend
NEAR, WIDER = 0.015, 0.8  # of the plot's width: marks this close hide one another; of a hidden mark's size: its growth
LONGEST_LABEL = 48  # characters of a label in the legend


def entry(label: str) -> str:
    """The legend entry of one landscape, which plotly reads as HTML."""
    return text(capped(label, LONGEST_LABEL))


def end_entry(label: str, path: DrawnPath) -> str:
    """The legend entry of the last snapshot, such as 'sgd: minimum, last snapshot (epoch 20)'.

    With several paths, the run is named: 'both, last snapshot of sgd (epoch 20)'.
    """
    last = f"{path.end_name} of {text(path.run)} ({path.unit} {path.numbers[-1]})" if path.run else path.end_name
    return f"{entry(label)}, {last}"


def overlay_names(labels: Sequence[str], paths: Sequence[Sequence[DrawnPath]]) -> list[str]:
    """All legend entries of the landscapes and their last snapshots."""
    ends = [end_entry(label, path) for label, own in zip(labels, paths, strict=True) for path in own]
    return [*(entry(label) for label in labels), *ends]


def flat_key(label: str, number: int, look: SeriesStyle, spec: FigureSpec) -> go.Scatter:
    """The legend entry of lines on a plane: a trace without points, as a contour trace's own entry looks different."""
    lines = {theme: {"line": {"color": look.colours[theme], "dash": look.dash, "width": 2}} for theme in look.colours}
    return go.Scatter(
        x=[None],
        y=[None],
        mode="lines",
        name=entry(label),
        legendgroup=f"item {number}",
        showlegend=True,
        legendrank=KEY_RANK + number,
        hoverinfo="skip",
        **themed(lines, spec.theme, role="key", item=number),
    )


def space_key(label: str, number: int, look: SeriesStyle, spec: FigureSpec) -> go.Scatter3d:
    """The legend entry of a surface: a trace without points."""
    markers = {
        theme: {"marker": {"symbol": "square", "size": 9, "color": look.colours["light"]}} for theme in look.colours
    }
    return go.Scatter3d(
        **NOWHERE,
        mode="markers",
        name=entry(label),
        legendgroup=f"item {number}",
        showlegend=True,
        legendrank=KEY_RANK + number,
        hoverinfo="skip",
        **themed(markers, spec.theme, role="key", item=number),
    )


def flat_marks(
    path: DrawnPath, label: str, number: int, look: SeriesStyle, spec: FigureSpec, *, joined: bool = True
) -> list[go.Scatter]:
    """The path on a plane in the landscape's own look, and its last snapshot.

    Args:
        joined: draw the path; otherwise only the last snapshot.
    """
    x, y = path.places[0], path.places[1]
    group = {"legendgroup": f"item {number}"}
    hover = [f"<b>{entry(label)}</b><br>{line}" for line in path.hover]
    traces = []
    if joined:
        lines = {
            theme: {
                "line": {"color": colour, "dash": look.dash, "width": spec.path_width * 0.7},
                "marker": {"color": colour, "size": 4},
            }
            for theme, colour in look.colours.items()
        }
        options: dict[str, Any] = themed(lines, spec.theme, role="path", item=number)
        traces.append(
            go.Scatter(
                x=x,
                y=y,
                mode="lines+markers",
                hovertext=hover,
                hoverinfo="text",
                name=entry(label),
                showlegend=False,
                **group,
                **options,
            )
        )
    marks = {
        theme: {
            "marker": {
                "symbol": look.mark(path.number),
                "size": 14,
                "color": colour,
                "line": {"color": PAPER[theme], "width": 1.4},
            }
        }
        for theme, colour in look.colours.items()
    }
    options = themed(marks, spec.theme, role="end", item=number)
    name = end_entry(label, path)
    traces.append(
        go.Scatter(
            x=x[-1:], y=y[-1:], mode="markers", name=name, hovertext=hover[-1:], hoverinfo="text", **group, **options
        )
    )
    return traces


def space_marks(
    overlay: PathInSpace, label: str, number: int, look: SeriesStyle, spec: FigureSpec
) -> list[go.Scatter3d]:
    """The path in space in the landscape's own colour, its snapshots, and the last one if its height is known."""
    path, line, height = overlay.path, overlay.line, overlay.height
    if not np.isfinite(height).any():
        return []
    group = {"legendgroup": f"item {number}"}
    light = look.colours["dark"]  # the lighter one; the surface below has the other
    fills = [light if finite else PATH_HALO for finite in np.isfinite(path.own)]  # white without a height of its own
    colour = {theme: {"line": {"color": light, "width": spec.path_width * 2}} for theme in look.colours}
    joined = go.Scatter3d(
        x=line[:, 0],
        y=line[:, 1],
        z=line[:, 2],
        mode="lines",
        hoverinfo="skip",
        showlegend=False,
        connectgaps=False,
        **group,
        **themed(colour, spec.theme, role="path", item=number),
    )
    meta = {"role": "path", "item": number, "path": path.number}
    snapshots = go.Scatter3d(
        x=path.places[0],
        y=path.places[1],
        z=height,
        mode="markers",
        marker={"size": 3, "color": fills, "line": {"color": INK["light"], "width": 1}},
        hovertext=[f"<b>{entry(label)}</b><br>{line}" for line in path.hover],
        hoverinfo="text",
        showlegend=False,
        meta=meta,
        **group,
    )
    hanging = threads(overlay, light, spec.path_width, meta=meta | {"each": POINTS_OF_THREAD}, **group)
    white = "" if np.isfinite(path.own[-1]) else PATH_HALO
    return [joined, *hanging, snapshots, *space_end(path, label, number, look, spec, float(height[-1]), white)]


def space_end(
    path: DrawnPath, label: str, number: int, look: SeriesStyle, spec: FigureSpec, height: float, colour: str = ""
) -> list[go.Scatter3d]:
    """The last snapshot in space at that height, if it is known.

    Args:
        colour: default: that of the look.
    """
    if not np.isfinite(height):
        return []
    edge = {"color": INK["light"], "width": 1}
    symbol = look.mark(path.number, space=True)
    marker = {"symbol": symbol, "size": 6, "color": colour or look.colours["dark"], "line": edge}
    return [
        go.Scatter3d(
            x=path.places[0][-1:],
            y=path.places[1][-1:],
            z=[height],
            mode="markers",
            marker=marker,
            name=end_entry(label, path),
            hovertext=[f"<b>{entry(label)}</b><br>{path.hover[-1]}"],
            hoverinfo="text",
            legendgroup=f"item {number}",
            meta={"role": "end", "item": number},
        )
    ]


def add_marks(figure: go.Figure, traces: Sequence[Any]) -> go.Figure:
    """Add traces on top, with room for their legend entries between the axis and the caption; `figure` is changed."""
    width = figure.layout.meta["plot"][0]
    before = legend_rows(_names(figure.data), width)
    widen_hidden(traces, figure.layout)
    figure.add_traces(list(traces))
    after = legend_rows(_names(figure.data), width)
    extra = (after - before) * LEGEND_ROW_PX + (LEGEND_GAP_PX if after and not before else 0)
    figure.layout.margin.b += extra
    figure.layout.height += extra
    for annotation in figure.layout.annotations:
        if annotation.name == "caption":
            annotation.yshift -= extra
    return figure.update_layout(legend=LEGEND)


def widen_hidden(traces: Sequence[Any], layout: go.Layout) -> None:
    """Enlarge a last snapshot for each later one at the same place, which would hide it."""
    ends = [trace for trace in traces if (trace.meta or {}).get("role") == "end"]
    near = [NEAR * abs(high - low) for low, high in (layout[f"{name}axis"].range or (0, 0) for name in "xy")]
    for k, one in enumerate(ends):
        over = [
            other
            for other in ends[k + 1 :]
            if abs(one.x[0] - other.x[0]) <= near[0] and abs(one.y[0] - other.y[0]) <= near[1]
            and ("z" not in one or np.isclose(one.z[0], other.z[0]))
        ]  # fmt: skip
        one.marker.size *= 1 + WIDER * len(over)


def _names(traces: Sequence[Any]) -> list[str]:
    return [trace.name for trace in traces if trace.name and trace.showlegend is not False]


def on_curve(path: DrawnPath, real: Any) -> DrawnPath:
    """The path over a curve, with its height, in real values, in place of the second axis."""
    height = np.array([real(float(drawn)) for drawn in path.height])
    return replace(path, places=(path.places[0], height))


# ----------------------------------------------------------------------------------------------------
# Overlaid contour lines of several landscapes, each set in its own colour and line style.

FAINT = 0.45  # opacity of the hatches of missing points: another landscape may have values below


def draw_contour_overlay(data: OverlayData, spec: FigureSpec) -> go.Figure:
    """The lines of each landscape, with their values on them, its missing points, its path and last snapshot."""
    items = list(enumerate(zip(data.labels, data.fields, strict=True)))
    lines = [_lines(data, field, number, spec) for number, (_, field) in items]
    marks: list[Any] = [flat_key(label, number, look(number), spec) for number, (label, _) in items]
    marks += [trace for number, (label, field) in items for trace in _missing(field, label, number, spec)]
    for number, (label, field) in items:
        marks += [mark for path in field.paths for mark in flat_marks(path, label, number, look(number), spec)]
    return add_marks(draw_plane(with_levels(data.frame), lines, spec), marks)


def _lines(data: OverlayData, field: FigureData, number: int, spec: FigureSpec) -> go.Contour:
    even, own = even_levels(field.scale.ticks), look(number)
    scales = {theme: [[0.0, colour], [1.0, colour]] for theme, colour in own.colours.items()}
    trace = contour_trace(
        field,
        even,
        contours={
            "start": even.start,
            "end": even.stop,
            "size": even.step,
            "coloring": "lines",
            "showlabels": True,
            "labelfont": {"size": 10},
        },
        line={"width": 1.6, "dash": own.dash, "smoothing": smoothing(field)},
        colorscale=scales[spec.theme],
        colorbar=label_carrier(field, even, slice(None)),
        legendgroup=f"item {number}",
        meta={"item": number, "labelled": True, "scales": scales, "themed": _themed(scales)},
    )
    return trace.update(_pointer(data, number))


def _themed(scales: dict[str, Any]) -> dict[str, Any]:
    return {theme: {"colorscale": scale} for theme, scale in scales.items()}


def _pointer(data: OverlayData, number: int) -> dict[str, Any]:
    """The pointer's text: the values of all landscapes if they have the same points, else only its own.

    Plotly shows only the top trace under the pointer.
    """
    fields = data.fields
    first = [axis.coordinates for axis in fields[0].axes]
    if not all(coordinates_agree(first, [axis.coordinates for axis in field.axes]) for field in fields):
        own = fields[number]
        return {
            "hovertemplate": plane_hover(own).replace("<extra></extra>", f"<extra>{entry(data.labels[number])}</extra>")
        }
    if number < len(fields) - 1:
        return {"hoverinfo": "skip", "hovertemplate": None, "customdata": None, "text": None}
    return {
        "customdata": typed(np.concatenate([_with_error(field) for field in fields], axis=-1)),
        "text": _notes(fields),
        "hovertemplate": _all(data),
    }


def _notes(fields: Sequence[FigureData]) -> np.ndarray | None:
    """The last line of the pointer's text for refined landscapes: whether any of the values is interpolated."""
    maps = [field.interpolated for field in fields if field.interpolated is not None]
    return np.where(np.maximum.reduce(maps) > 0, "<br>interpolated", "").astype(np.object_) if maps else None


def _with_error(field: FigureData) -> np.ndarray:
    """The values of a landscape and two standard errors of each, NaN if unknown: [..., 2]."""
    error = np.full(field.values.shape, np.nan) if field.error is None else 2 * field.error
    return np.stack([field.values, error], axis=-1)


def _all(data: OverlayData) -> str:
    names = [axis.name for axis in data.frame.axes]
    lines = [
        f"{entry(label)} <b>%{{customdata[{2 * k}]:.{usual_digits(field.values, field.error, 5)}g}}</b>"
        + ("" if field.error is None else f" ± %{{customdata[{2 * k + 1}]:.2g}} (2 s.e.)")
        for k, (label, field) in enumerate(zip(data.labels, data.fields, strict=True))
    ]
    note = "" if _notes(data.fields) is None else NOTE
    return "<br>".join([f"{names[0]} %{{x:.4g}}", f"{names[1]} %{{y:.4g}}", *lines]) + f"{note}<extra></extra>"


def _missing(field: FigureData, label: str, number: int, spec: FigureSpec) -> Sequence[go.Scatter]:
    x, y = (axis.coordinates for axis in field.axes)
    traces = hatched(field.states, x, y, missing_states(field.states), spec.theme)
    for trace in traces:
        trace.update(name=f"{entry(label)}: {trace.name}", opacity=FAINT, legendgroup=f"item {number}")
    return traces


# ----------------------------------------------------------------------------------------------------
# Curves of several landscapes with one axis in one panel, each in a colour and a line style of its own.

TALLER = 1.35  # than a panel of one landscape
BAND_OPACITY = 0.16
ORIGIN = "origin"


def draw_curve_overlay(data: OverlayData, spec: FigureSpec) -> go.Figure:
    """The curves with their bands of two standard errors, the origin and the last snapshot of each."""
    height, below = PANEL_PX * TALLER, TICKS_PX + 17
    limits = [y_limits(field) for field in data.fields]
    ends = (min(low for low, _ in limits), max(high for _, high in limits))
    paths = [_paths(field) for field in data.fields]
    names = [*overlay_names(data.labels, paths), *([ORIGIN] if any(map(_has_origin, data.fields)) else [])]
    frame = make_frame(data.frame, spec, (PLOT_PX, height), left=76, right=28, below=below, legend=names)
    layout = base_layout(data.frame, spec, frame) | _axes(data, ends)
    traces: list[Any] = []
    floor = 10.0 ** ends[0] if data.frame.scale.log else -np.inf
    for number, (label, field) in enumerate(zip(data.labels, data.fields, strict=True)):
        traces += [*_band(field, number, floor, spec), _curve(field, label, number, spec)]
    for number, (label, own) in enumerate(zip(data.labels, paths, strict=True)):
        traces += [mark for path in own for mark in flat_marks(path, label, number, look(number), spec, joined=False)]
    traces += _curve_origins(data, spec)
    figure = finish(data.frame, traces, layout, {"plot": [PLOT_PX, height], "below": below, "equal": False})
    widen_hidden(figure.data, figure.layout)
    return figure.update_layout(legend=LEGEND)


def _axes(data: OverlayData, ends: tuple[float, float]) -> dict[str, Any]:
    axis, log = data.frame.axes[0], data.frame.scale.log
    margin = 0.02 * axis.span
    y_axis: dict[str, Any] = {"title": {"text": text(data.frame.quantity)}, "range": list(ends)}
    if log:
        ticks, texts = nice_ticks(*ends, log=True)
        y_axis |= {"type": "log", "tickmode": "array", "tickvals": [10.0**tick for tick in ticks], "ticktext": texts}
    x_range = [float(axis.coordinates[0] - margin), float(axis.coordinates[-1] + margin)]
    return {"xaxis": {"title": axis_title(axis.title, PLOT_PX), "range": x_range}, "yaxis": y_axis}


def _paths(field: FigureData) -> list[DrawnPath]:
    """The paths over the curve whose loss at the last snapshot is known."""
    known = [path for path in field.paths if np.isfinite(path.height[-1])]
    return [on_curve(path, field.scale.real) for path in known]


def _shown(field: FigureData) -> np.ndarray:
    return np.where(np.isfinite(field.drawn), field.values, np.nan)


def _band(field: FigureData, number: int, floor: float, spec: FigureSpec) -> list[go.Scatter]:
    if field.shape_error is None:
        return []
    xs, ys = band(field.axes[0].coordinates, _shown(field), field.shape_error, floor)
    fills = {theme: {"fillcolor": colour} for theme, colour in look(number).colours.items()}
    return [
        go.Scatter(
            x=xs,
            y=ys,
            fill="toself",
            mode="lines",
            line={"width": 0},
            opacity=BAND_OPACITY,
            hoverinfo="skip",
            showlegend=False,
            legendgroup=f"item {number}",
            **themed(fills, spec.theme, role="band", item=number),
        )
    ]


def _curve(field: FigureData, label: str, number: int, spec: FigureSpec) -> go.Scatter:
    own = look(number)
    raw, value = pointer_values(field)
    lines = {
        theme: {"line": {"color": colour, "dash": own.dash, "width": 2.2}} for theme, colour in own.colours.items()
    }
    axis = field.axes[0].name
    name = field.quantity
    return go.Scatter(
        x=field.axes[0].coordinates,
        y=_shown(field),
        customdata=raw,
        text=pointer_notes(field),
        mode="lines",
        name=entry(label),
        legendgroup=f"item {number}",
        connectgaps=False,
        hovertemplate=f"{axis} %{{x:.4g}}<br>{pointer_text(name, value)}<extra>{entry(label)}</extra>",
        **themed(lines, spec.theme, role="field", item=number),
    )


def _has_origin(field: FigureData) -> bool:
    return field.origin is not None and bool(np.isfinite(field.origin.height))


def _curve_origins(data: OverlayData, spec: FigureSpec) -> list[go.Scatter]:
    """A cross on each curve at its origin, in one trace."""
    marked = [field for field in data.fields if _has_origin(field)]
    if not marked:
        return []
    heights = [field.scale.real(field.origin.height) for field in marked if field.origin is not None]
    hover = [field.origin.hover for field in marked if field.origin is not None]
    crosses = {
        theme: {"marker": {"symbol": "cross-thin", "size": 20, "line": {"color": ink, "width": 1.3}}}
        for theme, ink in INK.items()
    }
    options: dict[str, Any] = themed(crosses, spec.theme, role="origin")
    return [
        go.Scatter(
            x=[0.0] * len(marked), y=heights, mode="markers", name=ORIGIN, hovertext=hover, hoverinfo="text", **options
        )
    ]


# ----------------------------------------------------------------------------------------------------
# Overlaid surfaces in space, each in shades of its own colour.

LINES = "rgba(255,255,255,0.6)"


def draw_surface_overlay(data: OverlayData, spec: FigureSpec, opacity: float) -> go.Figure:
    """The surfaces on one height scale, with contour lines, paths and last snapshots; missing points on the floor.

    Args:
        opacity: of the surfaces, from 0 to 1.
    """
    frame = data.frame
    span = frame.scale.high - frame.scale.low
    named = [(label, path) for label, field in zip(data.labels, data.fields, strict=True) for path in field.paths]
    ends = heights_drawn(frame.scale, [path for _, path in named])
    aspect = horizontal_aspect(frame)
    traces: list[Any] = []
    marks: list[Any] = []
    overlays: list[PathInSpace] = []
    for number, (label, field) in enumerate(zip(data.labels, data.fields, strict=True)):
        group = {"legendgroup": f"item {number}"}
        traces.append(_heights(field, label, number, opacity))
        traces.append(level_lines(field, aspect, LINES).update(meta={"role": "lines", "item": number}, **group))
        marks.append(space_key(label, number, look(number), spec))
        missing = symbols(field.states, tuple(axis.coordinates for axis in field.axes), ends[0], spec.theme)
        for trace in missing:
            trace.update(name=f"{entry(label)}: {trace.name}", **group)
        marks += missing
        drawn = paths_in_space(field, LIFT * span, ends)
        overlays += drawn
        for path in drawn:
            marks += space_marks(path, label, number, look(number), spec)
    traces += _surface_origins(data, spec, span)
    if any(np.isfinite(path.own).any() for _, path in named):
        frame = replace(
            frame,
            caption=(*frame.caption, f"Snapshots have the height of their own {observable_title(frame.observable)}"),
        )
    frame = replace(frame, caption=(*frame.caption, *raised_note(overlays), *height_notes(named, ends)))
    upwards, aspects = z_axis(frame, *ends), [*aspect, HEIGHT]
    figure = draw_scene(with_levels(frame), traces, spec, z_axis=upwards, aspect=aspects, overlay=[])
    return add_marks(figure, marks)


def _heights(field: FigureData, label: str, number: int, opacity: float) -> go.Surface:
    quiet, pointed = {"highlight": False}, of_heights(field)
    return go.Surface(
        x=field.axes[0].coordinates,
        y=field.axes[1].coordinates,
        z=typed(field.drawn),
        customdata=pointed["customdata"],
        text=pointed["text"],
        hovertemplate=pointed["hovertemplate"].replace("<extra></extra>", f"<extra>{entry(label)}</extra>"),
        cmin=field.scale.low,
        cmax=field.scale.high,
        colorscale=hue_scale(look(number)),
        showscale=False,
        opacity=opacity,
        contours={"x": quiet, "y": quiet, "z": quiet},
        lighting={"ambient": 0.72, "diffuse": 0.5, "specular": 0.08, "roughness": 0.85, "fresnel": 0.05},
        connectgaps=False,
        name=entry(label),
        legendgroup=f"item {number}",
        showlegend=False,
        meta={"role": "field", "item": number},
    )


def _surface_origins(data: OverlayData, spec: FigureSpec, span: float) -> list[go.Scatter3d]:
    """The origin on each surface, with one legend entry for all."""
    marks = [mark for field in data.fields for mark in space_origin(field, spec, origin_height(field) + LIFT * span)]
    for mark in marks[2:]:  # of each surface the mark and its entry
        mark.update(showlegend=False)
    return [mark.update(legendgroup="origin") for mark in marks]
