"""`figure`: from a surface and a kind to a plotly figure, which is laid out again for print if requested."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from html import unescape
from typing import Any

import numpy as np
import plotly.graph_objects as go

from landscape.core.errors import JobError, quoted
from landscape.core.grid import Floats
from landscape.core.text import count_text, number_text
from landscape.surface.surface import Surface
from landscape.views.draw.labels import lay_labels
from landscape.views.draw.layout import TICKS_PX, axis_title, base_layout, finish, make_frame, text
from landscape.views.draw.plane import draw_categories
from landscape.views.draw.style import CURVES, DARK_CURVES, FONT, INK, scale_warning, themed
from landscape.views.figure_spec import KIND_TABLE, FigureSpec, choose_kind, documented, numbers_of
from landscape.views.prepare.figure import FigureData, prepare
from landscape.views.prepare.scale import nice_ticks
from landscape.views.prepare.uncertainty import Bars
from landscape.views.prepare.words import axis_name, capitalised, latex_text, observable_title, wrap

# ----------------------------------------------------------------------------------------------------
# The layout of a drawn figure for print: a given width and font size, with nothing cut off.

LETTER, LINE = 0.56, 1.3  # the mean width of a letter and the height of a line, in font sizes
ROOMY = 480.0  # pixels: a narrower scene has no room for the long names of its axes
TALLEST = 1.35  # the greatest height of a plot, in widths
TITLE, AXIS, SMALL = 14 / 12, 12.5 / 12, 11 / 12  # sizes of words, in font sizes
ROW_GAP = 6.5  # pixels between two rows of the legend
# Of the legend: pixels of an entry's symbol and gaps, and the width of a letter in font sizes.
KEY_PX, KEY_LETTER = 40.0, 0.46


def fit_to_paper(figure: go.Figure, spec: FigureSpec) -> None:
    """Lay out a drawn figure for the width, the font and the font size of `spec`; changes `figure`.

    Buttons and sliders are removed, since paper has none.
    """
    if spec.font is not None:
        figure.layout.font.family = f"{spec.font}, {FONT}"
    width, font_px = spec.print_size
    if width is None and font_px is None:
        return
    font = font_px or 12.0
    slice_name = _without_controls(figure)
    _set_fonts(figure, font)
    place = _place(figure, width or float(figure.layout.width), font, bool(slice_name))
    marks = min(1.0, max(0.55, place.plot[0] / 560))
    if figure.layout.meta.get("space") and place.plot[0] < ROOMY:
        _narrow_scene(figure.layout.scene)
    for trace in figure.data:
        _scale_marks(trace, marks, font)
        if (trace.meta or {}).get("ends"):
            trace.meta = trace.meta | {"ends": [marks * size for size in trace.meta["ends"]]}
    for bar in colour_bars(figure):
        _lay_bar(bar, place, font)
    _lay_annotations(figure, place, font, slice_name)


@dataclass(frozen=True)
class PrintLayout:
    """Sizes in pixels: the plot area, the margin (left, right, top, bottom), and the start of the caption below it."""

    plot: tuple[float, float]
    margin: tuple[float, float, float, float]
    caption_at: float
    caption: Sequence[str]


def _without_controls(figure: go.Figure) -> str:
    """Remove buttons, slider and frames; returns the slider's text, such as 'gamma = 0', empty without a slider."""
    sliders = figure.layout.sliders
    name = ""
    if sliders:
        name = f"{sliders[0].currentvalue.prefix}{sliders[0].steps[sliders[0].active].label}"
    figure.frames = []
    figure.layout.sliders, figure.layout.updatemenus = [], []
    return name


def axes_of(figure: go.Figure) -> Iterator[Any]:
    """The flat axes of a figure, x before y."""
    for letter in "xy":
        for key in figure.layout.to_plotly_json():
            if re.fullmatch(f"{letter}axis[0-9]*", key):
                yield figure.layout[key]


def colour_bars(figure: go.Figure) -> list[Any]:
    """The visible colour bars."""
    bars = [trace.colorbar for trace in figure.data if trace.type in ("contour", "surface", "heatmap")]
    bars += [trace.marker.colorbar for trace in figure.data if trace.type in ("scatter", "scatter3d")]
    return [bar for bar in bars if bar.tickvals is not None and bar.showticklabels is not False]


def _set_fonts(figure: go.Figure, font: float) -> None:
    layout = figure.layout
    layout.font.size = font
    layout.title.font.size = TITLE * font
    layout.legend.font.size = SMALL * font
    for axis in axes_of(figure):
        axis.update(title={"font": {"size": AXIS * font}, "standoff": 0.4 * font}, ticklen=0.3 * font)
        axis.update(tickfont={"size": SMALL * font})
    if (layout.meta or {}).get("space"):
        for axis in (layout.scene.xaxis, layout.scene.yaxis, layout.scene.zaxis):
            axis.update(title={"font": {"size": AXIS * font}}, tickfont={"size": SMALL * font})
            axis.update({} if axis.tickvals is not None else {"nticks": 5})


def _place(figure: go.Figure, width: float, font: float, named_slice: bool) -> PrintLayout:
    """The places of plot, legend and caption; sets the layout's size, margin and legend."""
    layout, meta = figure.layout, figure.layout.meta
    space = bool(meta.get("space"))
    left = right = 0.3 * font if space else 0.8 * font
    below = 0.2 * font
    if not space:
        left = (0.4 + LINE * AXIS + 0.5) * font + _tick_letters(figure) * LETTER * SMALL * font
        below = (0.8 + LINE * SMALL + LINE * AXIS) * font
    right += max((_bar_width(bar, font) for bar in colour_bars(figure)), default=0.0)
    if not space:  # room for second lines of titles
        across, line = width - left - right, LINE * AXIS * font
        upwards = across * meta["plot"][1] / meta["plot"][0]
        left += line * _has_two_lines(figure.layout.yaxis, upwards - line, font)
        below += line * _has_two_lines(figure.layout.xaxis, across - line, font)
    title = wrap(unescape((layout.title.text or "").replace("<br>", " ")), width - 1.5 * font, TITLE * font)
    if layout.title.text:
        layout.title.text = "<br>".join(map(text, title))
    above = TITLE * (1.8 + LINE * (len(title) - 1)) if layout.title.text else 0
    top = (0.8 + above + (LINE if named_slice else 0)) * font
    plot_width = max(width - left - right, 0.3 * width)
    height = plot_width * (0.84 if space else meta["plot"][1] / meta["plot"][0])
    if height > TALLEST * plot_width:  # the remaining width goes to both sides
        narrower = plot_width * (TALLEST * plot_width / height) if meta["equal"] else plot_width
        left, right = left + (plot_width - narrower) / 2, right + (plot_width - narrower) / 2
        height, plot_width = TALLEST * plot_width, narrower
    rows = legend_rows(entries(figure), left + plot_width - font, font)
    legend_at = below + 0.3 * font
    caption_at = legend_at + rows * (LINE * SMALL * font + ROW_GAP) + (0.6 * font if rows else 0)
    has_caption = any(note.name == "caption" for note in layout.annotations)
    caption = wrap(meta["caption"], width - font, SMALL * font) if has_caption else []
    bottom = caption_at + len(caption) * LINE * SMALL * font + 0.4 * font
    layout.update(width=round(width), height=round(height + top + bottom))
    layout.margin = {"l": left, "r": right, "t": top, "b": bottom, "pad": 0, "autoexpand": False}
    layout.title.y = 1 - (0.6 + 0.5 * TITLE) * font / layout.height
    layout.legend.update(x=(0.5 * font - left) / plot_width, y=-legend_at / height, tracegroupgap=0)
    for trace in figure.data:  # plotly fills the rows of its legend only if each entry is a group of its own
        trace.legendgroup = trace.legendgroup or trace.name
    for axis in axes_of(figure):
        if axis.title.text:
            room = height if axis._plotly_name.startswith("y") else plot_width
            axis.title.update(axis_title(_title_of(axis), room, AXIS * font, 2, SMALL / AXIS))
    return PrintLayout((plot_width, height), (left, right, top, bottom), caption_at, caption)


def _has_two_lines(axis: Any, room: float, font: float) -> bool:
    return "<br>" in axis_title(_title_of(axis), room, AXIS * font, 2, SMALL / AXIS)["text"]


def _title_of(axis: Any) -> str:
    return unescape((axis.title.text or "").replace("<br>", " "))


def _tick_letters(figure: go.Figure) -> int:
    """The number of letters of the longest known label of the y axes."""
    labels = [str(label) for axis in axes_of(figure) if axis.ticktext is not None for label in axis.ticktext]
    return max([*map(len, labels), 5])


def _bar_width(bar: Any, font: float) -> float:
    letters = max((len(str(label)) for label in bar.ticktext), default=0)
    ticks = (1.0 + 0.3 + 0.3) * font + letters * LETTER * SMALL * font
    title = max(map(len, (bar.title.text or "").split("<br>"))) * LETTER * AXIS * font
    return 0.6 * font + max(ticks, title)


def _narrow_scene(scene: Any) -> None:
    """Move the camera back, and name the axes by their first words: the caption has their full names."""
    for axis in (scene.xaxis, scene.yaxis, scene.zaxis):
        axis.title.text = axis_name(axis.title.text or "")
    if scene.zaxis.tickvals is not None:
        scene.zaxis.title.text = ""  # the colour bar has these ticks and the name
    eye = scene.camera.eye
    scene.camera.eye = {"x": eye.x * 1.3, "y": eye.y * 1.3, "z": eye.z * 1.3}


def _lay_bar(bar: Any, place: PrintLayout, font: float) -> None:
    most = max(2, int(place.plot[1] / (1.5 * SMALL * font)))
    every = -(-len(bar.tickvals) // most)
    bar.update(tickvals=bar.tickvals[::every], ticktext=bar.ticktext[::every])
    bar.update(thickness=font, lenmode="pixels", len=place.plot[1], ticklen=0.25 * font, x=1.0, xpad=0.5 * font, ypad=0)
    bar.update(title={"font": {"size": AXIS * font}}, tickfont={"size": SMALL * font})


def entries(figure: go.Figure) -> list[str]:
    """The names in the legend."""
    return [trace.name for trace in figure.data if trace.showlegend is not False and trace.name]


def legend_rows(names: Sequence[str], width: float, font: float) -> int:
    """The number of rows of plotly's legend below the plot; a row is filled while the next entry fits.

    The legend may be as wide as the plot and its left margin.
    """
    rows, filled = 0, math.inf
    for name in names:
        entry = len(name) * KEY_LETTER * SMALL * font + KEY_PX
        rows, filled = (rows + 1, entry) if filled + entry > width else (rows, filled + entry)
    return rows


def _scale_marks(trace: Any, marks: float, font: float) -> None:
    """Enlarge lines and symbols of a trace by `marks`; labels of its lines get the size of small text."""
    if trace.type == "contour":
        trace.line.width = (trace.line.width or 1.0) * marks
        if trace.contours.showlabels:
            trace.contours.labelfont.size = SMALL * font
    elif trace.type in ("scatter", "scatter3d"):
        size = trace.marker.size
        if size is not None:
            trace.marker.size = [length * marks for length in size] if isinstance(size, (tuple, list)) else size * marks
        for line in (trace.line, trace.marker.line):
            if line.width:
                line.width *= marks
        if trace.type == "scatter" and trace.fillpattern.size:
            trace.fillpattern.size *= marks


def _lay_annotations(figure: go.Figure, place: PrintLayout, font: float, slice_name: str) -> None:
    """Place the caption, the name of a slice, and the labels of snapshots and networks."""
    layout = figure.layout
    notes = [note for note in layout.annotations if note.name != "caption"]
    for note in notes:
        note.update(font={"size": SMALL * font})
        if note.name == "empty":
            words = note.text.replace("<br>", " ")
            note.text = "<br>".join(wrap(words, 0.8 * place.plot[0], SMALL * font))
    at_left = {"xref": "paper", "yref": "paper", "x": 0, "xanchor": "left", "align": "left", "showarrow": False}
    small = {"font": {"size": SMALL * font}}
    if place.caption:
        words = "<br>".join(text(line) for line in place.caption)
        shift = {"y": 0, "yanchor": "top", "xshift": -place.margin[0] + 0.5 * font, "yshift": -place.caption_at}
        notes.append(go.layout.Annotation(text=words, name="caption", **at_left, **small, **shift))
    if slice_name:
        notes.append(go.layout.Annotation(text=text(slice_name), y=1, yanchor="bottom", **at_left, **small))
    layout.annotations = notes
    lay_labels(figure, place.plot, SMALL * font)


# ----------------------------------------------------------------------------------------------------
# The barcode of a landscape with any number of axes: for each minimum a bar as long as its persistence.

PLOT_PX, SHORTEST_PX, TALLEST_PX, ROW_PX = 620, 130, 560, 26
THICKNESS = 0.62  # of a row
MOST_VALUES = 25  # rows with their values beside them; if there are more, those above the noise come first
BELOW_COLOUR = {"light": "#b4bac4", "dark": "#5b6675"}
ABOVE_COLOUR = {"light": CURVES[0], "dark": DARK_CURVES[0]}


def draw_barcode(data: FigureData, spec: FigureSpec) -> go.Figure:
    """The minima by their persistence, the longest bars at the top; those that end within the noise are grey."""
    notes_on_values = {capitalised(note) for note in data.scale.notes}  # on a range that is not drawn here
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
    """The ends of the axis of persistence, in drawn units: it holds all finite bars and the threshold, with some room.

    On a logarithmic axis the shortest bar has a length, too.
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
    count, what = len(bars.values), text(data.quantity)
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
    """An arrow at the end of the bar of each minimum from which no path leads to a lower one."""
    rows = np.flatnonzero(np.isinf(bars.persistence))
    look = {"symbol": "triangle-right", "size": 13}
    markers = {theme: {"marker": look | {"color": colour}} for theme, colour in ABOVE_COLOUR.items()}
    ends = {"x": np.full(len(rows), high), "y": rows, "mode": "markers", "cliponaxis": False}
    arrow = go.Scatter(hoverinfo="skip", showlegend=False, **ends, **themed(markers, spec.theme, role="bars"))
    return [arrow] if len(rows) else []


def _threshold(bars: Bars, spec: FigureSpec, log: bool) -> list[go.Scatter]:
    """The line at which the noise ends; empty without bars or without noise."""
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


@documented(FigureSpec)
def caption(surface: Surface, kind: str | None = None, *, latex: bool = False, **options: Any) -> str:
    """The caption of a figure as text, to stand beside a picture that has none, such as one for print.

    It begins with the title, and then has the words that stand below the figure on screen.

    Args:
        kind: as for `figure`.
        latex: in LaTeX, with its special characters escaped.
        OPTIONS

    Raises:
        JobError: as for `figure`.
    """
    if not isinstance(surface, Surface):
        raise JobError(
            f"caption: must be given one surface, not {quoted(type(surface).__name__)}; the captions of a comparison "
            "are those of its figures: [figure.caption for figure in landscape.views.compare_figures(…)]"
        )
    spec = FigureSpec.of(kind, options)
    title = spec.title if isinstance(spec.title, str) else f"{surface.name}: {observable_title(spec.observable)}"
    words = f"{title}. {draw(surface, spec).layout.meta['caption']}"
    return latex_text(words) if latex else words


def draw(surface: Surface, spec: FigureSpec) -> go.Figure:
    """The figure of a `FigureSpec`.

    Raises:
        JobError: the kind, the observable or the range does not fit the surface.
    """
    if surface.record.categories(spec.observable) is None:  # values that are numbers of names are not interpolated
        surface = surface.merged()
    kind = KIND_TABLE[choose_kind(surface, spec.kind)]
    data = prepare(surface, replace(spec, extrema=spec.extrema or kind.extrema), kind.beside)
    warning = scale_warning(spec.colour_scale, data.scale) if len(data.axes) > 1 else []
    title = spec.title if isinstance(spec.title, str) else data.title
    data = replace(data, title=title, caption=(*data.caption, *spec.notes, *warning))
    drawn = draw_categories(data, spec) if data.categories and len(data.axes) == 2 else kind.draw(data, spec)
    show_part(drawn, spec)
    if spec.is_for_print:
        fit_to_paper(drawn, spec)
    return drawn


def show_part(drawn: go.Figure, spec: FigureSpec) -> None:
    """Zoom a drawn curve or plane, and turn the camera of a scene, as the options ask; changes `drawn`."""
    layout = drawn.layout
    if (layout.meta or {}).get("space"):
        if spec.camera is not None:
            numbers = numbers_of("camera", spec.camera, (3, 6))
            layout.scene.camera.eye = dict(zip("xyz", numbers, strict=False))
            layout.scene.camera.center = dict(zip("xyz", numbers[3:], strict=False)) or layout.scene.camera.center
    elif spec.zoom is not None:
        numbers = numbers_of("zoom", spec.zoom, (2, 4))
        for axis, ends in zip((layout.xaxis, layout.yaxis), (numbers[:2], numbers[2:]), strict=True):
            log = axis.type == "log"
            if ends and log and min(ends) <= 0:
                raise JobError(f"zoom: must be above 0 on a logarithmic scale, not {quoted(spec.zoom)}")
            axis.range = [math.log10(end) if log else end for end in ends] or axis.range
