"""`figure`: from a surface and a kind to a plotly figure. Prepares the data, then has the kind draw them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import plotly.graph_objects as go

from landscape.core.grid import Floats
from landscape.core.text import count_text, number_text
from landscape.surface.surface import Surface
from landscape.views.draw.layout import TICKS_PX, base_layout, finish, make_frame, text
from landscape.views.draw.plane import draw_categories
from landscape.views.draw.print import fit_to_paper
from landscape.views.draw.style import CURVES, DARK_CURVES, INK, scale_warning, themed
from landscape.views.figure_spec import KIND_TABLE, FigureSpec, choose_kind, documented
from landscape.views.prepare.figure import FigureData, prepare
from landscape.views.prepare.scale import nice_ticks
from landscape.views.prepare.uncertainty import Bars
from landscape.views.prepare.words import capitalised

# ----------------------------------------------------------------------------------------------------
# The barcode of a landscape with any number of axes: of each minimum a bar as long as its persistence.


PLOT_PX, SHORTEST_PX, TALLEST_PX, ROW_PX = 620, 130, 560, 26
THICKNESS = 0.62  # of a row
MOST_VALUES = 25  # rows that have their values beside them; of more, those above the noise come first
BELOW_COLOUR = {"light": "#b4bac4", "dark": "#5b6675"}
ABOVE_COLOUR = {"light": CURVES[0], "dark": DARK_CURVES[0]}


def draw_barcode(data: FigureData, spec: FigureSpec) -> go.Figure:
    """The minima by their persistence, the longest bars above; those that end within the noise are grey."""
    notes_on_values = {capitalised(note) for note in data.scale.notes}  # of a range that is not drawn here
    data = replace(data, caption=tuple(part for part in data.caption if part not in notes_on_values))
    assert data.extrema is not None
    bars, log = data.extrema.bars, data.scale.log
    low, high = bar_range(bars, log)
    below = TICKS_PX + 17
    plot = (PLOT_PX, float(np.clip(ROW_PX * (len(bars.values) + 1), SHORTEST_PX, TALLEST_PX)))
    parts = [_bars(bars, spec, log, is_clear) for is_clear in (True, False) if (bars.is_clear == is_clear).any()]
    traces = [*parts, *_endless(bars, spec, high), *_threshold(bars, spec, log)]
    names = [trace.name for trace in traces if trace.showlegend]
    frame = make_frame(data, spec, plot, left=76, right=28, below=below, legend=names)
    layout = base_layout(data, spec, frame) | _axes(data, bars, low, high)
    return finish(data, traces, layout, {"plot": list(plot), "below": below, "equal": False})


def bar_range(bars: Bars, log: bool) -> tuple[float, float]:
    """The ends of the axis of persistence, in drawn units: all bars that end and the threshold, with room to the right.

    On a logarithmic axis, the shortest bar has a length, too.
    """
    lengths = bars.persistence[np.isfinite(bars.persistence) & (bars.persistence > 0)]
    ends = _drawn(np.array([end for end in (*lengths, bars.threshold) if end > 0] or [1.0]), log)
    if not log:
        return 0.0, 1.15 * float(ends.max())
    low, high = float(ends.min()), float(ends.max())
    room = max(0.15 * (high - low), 0.1)
    return low - room, high + room


def _drawn(lengths: Floats, log: bool) -> Floats:
    with np.errstate(divide="ignore"):
        return np.log10(lengths) if log else lengths


def _axes(data: FigureData, bars: Bars, low: float, high: float) -> dict[str, Any]:
    ticks, texts = nice_ticks(low, high, data.scale.log)
    count, what = len(bars.values), text(data.observable.replace("_", " "))
    valued = count if count <= MOST_VALUES else int(bars.is_clear.sum())
    rows = range(0, valued, max(1, -(-valued // MOST_VALUES)))
    return {
        "barmode": "overlay",
        "xaxis": {
            "title": {"text": "persistence: how far below the saddle to a lower minimum"},
            "range": [low, high],
            "tickmode": "array",
            "tickvals": ticks,
            "ticktext": texts,
            "zeroline": False,
        },
        "yaxis": {
            "title": {"text": f"{what} at the minimum"},
            "range": [count - 0.2, -0.8],
            "tickmode": "array",
            "tickvals": list(rows),
            "ticktext": [number_text(float(bars.values[row]), 4) for row in rows],
            "showgrid": False,
            "zeroline": False,
        },
    }


def _bars(bars: Bars, spec: FigureSpec, log: bool, is_clear: bool) -> go.Bar:
    """The bars above the noise or those below it."""
    which = np.flatnonzero(bars.is_clear == is_clear)
    low, high = bar_range(bars, log)
    ends = np.clip(_drawn(bars.persistence[which], log), low, high)
    colours = ABOVE_COLOUR if is_clear else BELOW_COLOUR
    return go.Bar(
        orientation="h",
        base=np.full(len(which), low),
        x=ends - low,
        y=which,
        width=THICKNESS,
        name="minima above the noise" if is_clear else _below_name(bars),
        showlegend=True,
        hovertext=[bars.hover[k] for k in which],
        hoverinfo="text",
        **themed({theme: {"marker": {"color": colour}} for theme, colour in colours.items()}, spec.theme, role="bars"),
    )


def _below_name(bars: Bars) -> str:
    left_out = f", {count_text(bars.left_out)} of them left out" if bars.left_out else ""
    return f"{count_text(bars.below)} below the noise{left_out}"


def _endless(bars: Bars, spec: FigureSpec, high: float) -> list[go.Scatter]:
    """An arrow at the end of the bar of each minimum from which no way leads to a lower one."""
    rows = np.flatnonzero(np.isinf(bars.persistence))
    look = {"symbol": "triangle-right", "size": 13}
    markers = {theme: {"marker": look | {"color": colour}} for theme, colour in ABOVE_COLOUR.items()}
    ends = {"x": np.full(len(rows), high), "y": rows, "mode": "markers", "cliponaxis": False}
    arrow = go.Scatter(hoverinfo="skip", showlegend=False, **ends, **themed(markers, spec.theme, role="bars"))
    return [arrow] if len(rows) else []


def _threshold(bars: Bars, spec: FigureSpec, log: bool) -> list[go.Scatter]:
    """The line at which the noise ends; none where there is no bar, or no noise."""
    if not len(bars.values) or bars.threshold <= 0:
        return []
    lines = {theme: {"line": {"color": ink, "width": 1.6, "dash": "dash"}} for theme, ink in INK.items()}
    return [
        go.Scatter(
            x=_drawn(np.full(2, bars.threshold), log),
            y=[-0.8, len(bars.values) - 0.2],
            mode="lines",
            hoverinfo="skip",
            name=f"noise ends at {number_text(bars.threshold, 3)}",
            showlegend=True,
            **themed(lines, spec.theme, role="noise"),
        )
    ]


# ----------------------------------------------------------------------------------------------------


@documented(FigureSpec)
def figure(surface: Surface, kind: str | None = None, **options: Any) -> go.Figure:
    """Draw a landscape.

    Args:
        kind: "curve" for one axis; "topographic" (default), "contour" or "surface" for two; "slices" (default)
            or "volume" for three; "barcode" for any: how far each minimum lies below the saddle to a lower one.
        OPTIONS

    Raises:
        JobError: an unknown kind, observable, colour scale or option, or one that does not fit.

    Example:
        >>> import numpy as np
        >>> from landscape import Axis
        >>> axis = Axis("alpha", np.linspace(-1, 1, 5))
        >>> surface = Surface("line", (axis,), {"loss": axis.coordinates**2}, status=np.ones(5, np.uint8))
        >>> drawn = figure(surface, "curve", log=True, caption=False)
        >>> drawn.layout.title.text, drawn.layout.yaxis.type
        ('line: loss', 'log')
        >>> figure(surface, "contour")
        Traceback (most recent call last):
        landscape.core.errors.JobError: kind: 'contour' does not fit 'line', which has 1 axis; known: curve, barcode
    """
    return draw(surface, FigureSpec.of(kind, options))


def draw(surface: Surface, spec: FigureSpec) -> go.Figure:
    """The figure that is asked for.

    Raises:
        JobError: the kind, the observable or the range does not fit the surface.
    """
    if surface.record.categories(spec.observable) is None:  # what stands for names is not interpolated
        surface = surface.merged()
    kind = KIND_TABLE[choose_kind(surface, spec.kind)]
    data = prepare(surface, replace(spec, extrema=spec.extrema or kind.extrema), kind.beside)
    warning = scale_warning(spec.colour_scale, data.scale) if len(data.axes) > 1 else []
    title = spec.title if isinstance(spec.title, str) else data.title
    data = replace(data, title=title, caption=(*data.caption, *spec.notes, *warning))
    drawn = draw_categories(data, spec) if data.categories and len(data.axes) == 2 else kind.draw(data, spec)
    if spec.is_for_print:
        fit_to_paper(drawn, spec)
    return drawn
