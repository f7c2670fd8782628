"""`figure`: from a surface and a kind to a plotly figure. Prepares the data, then lets that kind draw them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import plotly.graph_objects as go

from landscape.core.errors import JobError, nearest, quoted
from landscape.core.grid import Floats
from landscape.surface.surface import Surface
from landscape.views.draw.curve import draw_curve
from landscape.views.draw.layout import TICKS_PX, Style, base_layout, finish, make_frame, text
from landscape.views.draw.plane import draw_categories, draw_contour, draw_topographic
from landscape.views.draw.print import choose_paper, choose_preset, fit_to_paper
from landscape.views.draw.space import draw_slices, draw_surface, draw_volume
from landscape.views.draw.style import CURVES, DARK_CURVES, INK, TEMPLATES, check_scale, scale_warning, themed
from landscape.views.prepare.figure import FigureData, categories_of, prepare_figure
from landscape.views.prepare.scale import nice_ticks, number
from landscape.views.prepare.uncertainty import Bars
from landscape.views.prepare.words import capitalised, file_name, whole

# ----------------------------------------------------------------------------------------------------
# The barcode of a landscape with any number of axes: of each minimum a bar as long as its persistence.


PLOT_PX, SHORTEST_PX, TALLEST_PX, ROW_PX = 620, 130, 560, 26
THICKNESS = 0.62  # of a row
MOST_VALUES = 25  # rows that have their values beside them; of more, those above the noise come first
BELOW_COLOUR = {"light": "#b4bac4", "dark": "#5b6675"}
ABOVE_COLOUR = {"light": CURVES[0], "dark": DARK_CURVES[0]}


def draw_barcode(data: FigureData, style: Style) -> go.Figure:
    """The minima by their persistence, the longest bars above; those that end within the noise are grey."""
    notes_on_values = {capitalised(note) for note in data.scale.notes}  # of a range that is not drawn here
    data = replace(data, caption=tuple(part for part in data.caption if part not in notes_on_values))
    assert data.extrema is not None
    bars, log = data.extrema.bars, data.scale.log
    low, high = bar_range(bars, log)
    below = TICKS_PX + 17
    plot = (PLOT_PX, float(np.clip(ROW_PX * (len(bars.values) + 1), SHORTEST_PX, TALLEST_PX)))
    parts = [_bars(bars, style, log, is_clear) for is_clear in (True, False) if (bars.is_clear == is_clear).any()]
    traces = [*parts, *_endless(bars, style, high), *_threshold(bars, style, log)]
    names = [trace.name for trace in traces if trace.showlegend]
    frame = make_frame(data, style, plot, left=76, right=28, below=below, legend=names)
    layout = base_layout(data, style, frame) | _axes(data, bars, low, high)
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
            "ticktext": [number(float(bars.values[row]), 4) for row in rows],
            "showgrid": False,
            "zeroline": False,
        },
    }


def _bars(bars: Bars, style: Style, log: bool, is_clear: bool) -> go.Bar:
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
        **themed({theme: {"marker": {"color": colour}} for theme, colour in colours.items()}, style.theme, role="bars"),
    )


def _below_name(bars: Bars) -> str:
    left_out = f", {whole(bars.left_out)} of them left out" if bars.left_out else ""
    return f"{whole(bars.below)} below the noise{left_out}"


def _endless(bars: Bars, style: Style, high: float) -> list[go.Scatter]:
    """An arrow at the end of the bar of each minimum from which no way leads to a lower one."""
    rows = np.flatnonzero(np.isinf(bars.persistence))
    look = {"symbol": "triangle-right", "size": 13}
    markers = {theme: {"marker": look | {"color": colour}} for theme, colour in ABOVE_COLOUR.items()}
    ends = {"x": np.full(len(rows), high), "y": rows, "mode": "markers", "cliponaxis": False}
    arrow = go.Scatter(hoverinfo="skip", showlegend=False, **ends, **themed(markers, style.theme, role="bars"))
    return [arrow] if len(rows) else []


def _threshold(bars: Bars, style: Style, log: bool) -> list[go.Scatter]:
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
            name=f"noise ends at {number(bars.threshold, 3)}",
            showlegend=True,
            **themed(lines, style.theme, role="noise"),
        )
    ]


# ----------------------------------------------------------------------------------------------------
# The kinds of drawings: for how many axes each is, what the report calls it, and what draws it.


@dataclass(frozen=True)
class Kind:
    """One way to draw a landscape of `axes` axes, None for any number of them.

    `title` is the report's word for it and `tab` its place among the report's buttons, the lowest first. `beside` are
    observables that are drawn along with the loss, as far as the surface has them. `extrema` says that it draws the
    minima, so that these are prepared unasked.
    """

    axes: int | None
    title: str
    draw: Callable[[FigureData, Style], go.Figure]
    tab: int = 9
    beside: tuple[str, ...] = ()
    extrema: bool = False

    def fits(self, axes: int) -> bool:
        """Whether it draws a landscape of that many axes."""
        return self.axes in (axes, None)


# A kind is a line here and a file that draws it. Of each number of axes the first is the default.
KIND_TABLE = {
    "curve": Kind(1, "Curve", draw_curve, beside=("accuracy",)),
    "topographic": Kind(2, "Topographic", draw_topographic, tab=2),
    "contour": Kind(2, "Contour lines", draw_contour, tab=1),
    "surface": Kind(2, "3-D surface", draw_surface, tab=3),
    "slices": Kind(3, "Slices", draw_slices, tab=1),
    "volume": Kind(3, "Volume", draw_volume, tab=2),
    "barcode": Kind(None, "Barcode", draw_barcode, extrema=True),
}


def kinds_of(axes: int) -> tuple[str, ...]:
    """The kinds for a landscape of that many axes; the first is the default."""
    return tuple(name for name, kind in KIND_TABLE.items() if kind.fits(axes))


KINDS = {axes: kinds_of(axes) for axes in (1, 2, 3)}


# ----------------------------------------------------------------------------------------------------

MOST_TITLE = 300  # characters
SCALE_NAMES = {None: "", True: "log", False: "linear"}  # by what was asked for, as file names have them


def figure(
    surface: Surface,
    kind: str | None = None,
    *,
    observable: str = "loss",
    log: bool | None = None,
    levels: int | None = None,
    exact_levels: bool = False,
    zmin: float | None = None,
    zmax: float | None = None,
    clip: float | None = None,
    uncertainty: bool = False,
    extrema: bool = False,
    colour_scale: str | None = None,
    path: bool = True,
    path_colour: str = "#d6336c",
    path_width: float = 2.5,
    animate: bool = False,
    theme: str = "light",
    title: bool | str | None = None,
    caption: bool | None = None,
    width: str | float | None = None,
    font: str | None = None,
    font_size: str | float | None = None,
    preset: str | None = None,
    max_points: int | None = None,
    notes: Sequence[str] = (),
    **unknown: Any,
) -> go.Figure:
    """Draw a landscape.

    Args:
        kind: "curve" for one axis; "topographic" (default), "contour" or "surface" for two; "slices" (default)
            or "volume" for three; "barcode" for any: how far each minimum lies below the saddle to a lower one.
        observable: which of `surface.observables`; over one axis "loss" brings "accuracy" along.
        log: draw log10, labelled with the real values; values of zero or below are marked as not drawable.
        levels: number of contour lines; default about 12 at round numbers.
        zmin, zmax: ends of the colour range, in real values, for figures that are to be compared.
        uncertainty: mark where the values cannot be told from that of the origin.
        extrema: mark the minima above the noise of sampling, and the saddles at which they merge.
        colour_scale: viridis, cividis and magma are even to the eye and safe for the colour-blind; default: viridis,
            and for values on both sides of 0 rdbu around it.
        path, path_colour, path_width: the trajectory on top; of several runs, the colour is that of the first.
        animate: add buttons that let the path grow.
        theme: "light" or "dark".
        title, caption: whether there is one, or the text of the title; default: both, without a preset.
        width: of the whole figure, as '3.25in', '8cm', '80mm', '240pt', or in pixels; the height follows.
        font, font_size: the family, and the size of its words as a length; 12 px by default.
        preset: "column" or "page", for a figure in one or both columns of a paper: 3.25 and 6.75 in wide, words of 7 to
            9 pt as printed, no title and no caption. Options given beside it count.
        max_points: points per axis to draw at most; the data are never changed, only picked.
        notes: sentences without full stops that the caption has besides.

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
    if unknown:
        wrong = next(iter(unknown))
        raise JobError(f"figure: unknown option {quoted(wrong)}; {nearest(wrong, figure.__kwdefaults__ or ())}")
    if categories_of(surface, observable) is None:  # what stands for names is not interpolated
        surface = surface.merged()
    chosen = KIND_TABLE[choose_kind(surface, kind)]
    if theme not in TEMPLATES:
        raise JobError(f"theme: unknown {quoted(theme)}; {nearest(str(theme), TEMPLATES)}")
    place = choose_preset(preset)
    paper = choose_paper(width, font_size, font, place)
    title = place is None if title is None else title
    if isinstance(title, str) and len(title) > MOST_TITLE:
        raise JobError(f"title: must have at most {MOST_TITLE} characters, not {len(title)}; shorten it")
    caption = place is None if caption is None else caption
    if levels is None and place is not None:
        levels = place.levels
    style = Style(check_scale(colour_scale), theme, path_colour, path_width, bool(title), caption, animate)
    data = prepare_figure(
        surface,
        observable,
        log=log,
        zmin=zmin,
        zmax=zmax,
        clip=clip,
        levels=levels,
        exact_levels=exact_levels,
        path=path,
        uncertainty=uncertainty,
        extrema=extrema or chosen.extrema,
        max_points=max_points,
        beside=chosen.beside,
    )
    if isinstance(title, str):
        data = replace(data, title=title)
    data = replace(data, caption=(*data.caption, *notes))
    if len(data.axes) > 1:
        data = replace(data, caption=(*data.caption, *scale_warning(style.colour_scale, data.scale)))
    drawn = draw_categories(data, style) if data.categories and len(data.axes) == 2 else chosen.draw(data, style)
    if paper is not None:
        fit_to_paper(drawn, paper)
    return drawn


def choose_kind(surface: Surface, kind: str | None) -> str:
    """The given kind, or the default for this number of axes.

    Raises:
        JobError: the kind is unknown, or for another number of axes.
    """
    return kind_for(surface.name, len(surface.axes), kind)


def kind_for(name: str, axes: int, kind: str | None) -> str:
    """The same of the landscape `name`, which has so many axes.

    Raises:
        JobError: the kind is unknown, or for another number of axes.
    """
    fitting = kinds_of(axes)
    if kind is None:
        return fitting[0]
    if kind not in KIND_TABLE:
        raise JobError(f"kind: unknown {quoted(kind)}; {nearest(str(kind), fitting)} (for {axes} axes)")
    if kind not in fitting:
        raise JobError(
            f"kind: {quoted(kind)} does not fit {quoted(name)}, which has {axes} "
            f"{'axis' if axes == 1 else 'axes'}; known: {', '.join(fitting)}"
        )
    return kind


def figure_name(surface: Surface, kind: str | None = None, observable: str = "loss", log: bool | None = None) -> str:
    """The name of a file, without its ending, that shows this figure: 'minimum-contour-accuracy-log'.

    The scale is named where it was asked for. Otherwise a name would change while the values are computed.

    Raises:
        JobError: the kind is unknown, or for another number of axes.
    """
    shown = "" if observable == "loss" else observable
    return file_name(surface.name, choose_kind(surface, kind), shown, SCALE_NAMES[log])
