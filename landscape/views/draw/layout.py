"""The frame around a drawing, the same for every kind: margins in pixels, title, caption, legend, colour bar."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from html import escape
from typing import Any

import numpy as np
import plotly.graph_objects as go
from numpy.typing import NDArray

from landscape.core.grid import Floats
from landscape.views.draw.style import INK, TEMPLATES, typed
from landscape.views.figure_spec import FigureSpec
from landscape.views.prepare.figure import FigureData, why_empty
from landscape.views.prepare.scale import EvenLevels, Scale
from landscape.views.prepare.words import (
    PARENTHESES,
    SMALLEST,
    axis_name,
    fitting_title,
    usual_digits,
    value_with_error,
    wrap,
)

TITLE_PX, TICKS_PX, TITLE_FONT, CAPTION_FONT = 54, 30, 17, 11
LINE = 1.3  # from one line of words to the next, in sizes of their font
MIN_WIDTH = 560
BAR_TITLE_PX, BAR_TITLE_LINES = 84, 4  # of the margin right of the plot, from the bar's left edge
SCENE_TITLE = (260.0, 12.0, 2)  # the width, the font and the most lines of the title of an axis of a scene
HYPHEN = re.compile(r"(?<![^\s(\[±])-(?=\.?\d)")  # that begins a number; those within names stay
NEEDLESS_BUTTONS = ["sendChartToCloud", "lasso2d", "select2d", "autoScale2d"]


@dataclass(frozen=True)
class Frame:
    """Sizes in pixels: the plot area (width, height), the margins (left, right, top, bottom), and the parts below it.

    The legend begins `legend_at` and the caption `caption_at` pixels below the plot area.
    """

    plot: tuple[float, float]
    margins: tuple[float, float, float, float]
    legend_at: float
    caption_at: float
    caption: tuple[str, ...]

    @property
    def width(self) -> float:
        """The width of the whole figure, in pixels."""
        return self.plot[0] + self.margins[0] + self.margins[1]

    @property
    def height(self) -> float:
        """The height of the whole figure, in pixels; legend and caption lie in its lower margin."""
        return self.plot[1] + self.margins[2] + self.margins[3]


def text(plain: str) -> str:
    """Plain text for plotly, which reads a subset of HTML."""
    return escape(plain, quote=False)


def sentence(parts: Sequence[str]) -> str:
    """The parts of a caption in one line, with the minus sign that axes have.

    >>> sentence(["Lowest at alpha -0.5 (-1 to 1)", "Origin: resnet-20"])
    'Lowest at alpha −0.5 (−1 to 1). Origin: resnet-20.'
    """
    return HYPHEN.sub("\u2212", ". ".join(parts) + ".")


def wrapped(plain: str, width: float, font: float = 13) -> str:
    """Plain text as plotly lines that fit `width` pixels."""
    return "<br>".join(text(line) for line in wrap(plain, width, font))


def axis_title(
    plain: str, width: float, font: float = 13, lines: int = 2, smallest: float = SMALLEST
) -> dict[str, Any]:
    """The title of an axis for plotly, in lines of `width` pixels; a long one is smaller, see `fitting_title`.

    Args:
        lines: how many it may have, where it would lose words in one.
        smallest: the least share of the font's size.
    """
    most = max(8, int(width / (0.55 * font)))
    words, share = fitting_title(plain, most, smallest)
    parts, without = [words], PARENTHESES.sub("", plain)
    loses_words = words != plain and words in (without, axis_name(plain))
    if lines > 1 and (loses_words or len(words) * smallest > most):
        tries = [(whole, letters) for whole in (plain, without) for letters in (most, int(most / smallest))]
        wrappings = (textwrap.wrap(whole, letters) for whole, letters in tries)
        parts = next((wrapping for wrapping in wrappings if len(wrapping) <= lines), parts)
        share = min(1.0, most / max(map(len, parts)))
    return {"text": "<br>".join(map(text, parts)), "font": {"size": share * font}}


def more_lines(title: Mapping[str, Any], font: float = 13) -> float:
    """The pixels that a title of an axis needs beside the axis beyond those of one line."""
    return float(title["text"].count("<br>")) * LINE * font


def make_frame(
    data: FigureData,
    spec: FigureSpec,
    plot: tuple[float, float],
    *,
    left: float = 70,
    right: float = 95,
    below: float = 0,
    legend: Sequence[str] = (),
) -> Frame:
    """Place title, axis, legend and caption around a plot area of given size.

    Args:
        plot: width and height of the plot area, in pixels.
        left, right: the margins, in pixels; both grow if the figure would be too narrow for its caption.
        below: pixels of the axis under the plot area.
        legend: the names of the legend's entries.
    """
    spare = max(0.0, MIN_WIDTH - (plot[0] + left + right))
    left, right = left + spare / 2, right + spare / 2
    width = plot[0] + left + right
    rows = legend_rows(legend, plot[0])
    lines = wrap(sentence(data.caption), width - 50, CAPTION_FONT) if spec.has_caption else []
    legend_at = below + 10
    caption_at = legend_at + rows * 22 + (8 if rows else 0)
    bottom = caption_at + len(lines) * (CAPTION_FONT + 4) + (14 if lines else 4)
    more = len(wrap(data.title, width - 40, TITLE_FONT)) - 1  # lines of the title beyond the first
    top = (TITLE_PX + more * LINE * TITLE_FONT if spec.has_title else 26) + (30 if spec.animate else 0)
    return Frame(plot, (left, right, top, bottom), legend_at, caption_at, tuple(lines))


def legend_rows(names: Sequence[str], width: float) -> int:
    """Rows that plotly's horizontal legend takes: one, or columns as wide as the widest entry."""
    if not names:
        return 0
    widths = [len(name) * 5.4 + 48 for name in names]
    return 1 if sum(widths) <= width else -(-len(names) // max(1, int(width / max(widths))))


def base_layout(data: FigureData, spec: FigureSpec, frame: Frame) -> dict[str, Any]:
    """The layout that all kinds start from."""
    left, right, top, bottom = frame.margins
    layout: dict[str, Any] = {
        "template": TEMPLATES[spec.theme],
        "width": round(frame.width),
        "height": round(frame.height),
        "margin": {"l": left, "r": right, "t": top, "b": bottom, "pad": 0, "autoexpand": False},
        "legend": {
            "tracegroupgap": 0,
            "orientation": "h",
            "x": 0,
            "xanchor": "left",
            "y": -frame.legend_at / frame.plot[1],
            "yanchor": "top",
            "itemsizing": "constant",
        },
        "modebar": {"remove": NEEDLESS_BUTTONS},
        "hovermode": "closest",
        "annotations": [*caption_annotations(frame), *empty_annotations(data, frame)],
    }
    if spec.has_title:
        layout["title"] = {"text": wrapped(data.title, frame.width - 40, TITLE_FONT), "y": 1 - 24 / frame.height}
    return layout


def empty_annotations(data: FigureData, frame: Frame) -> list[dict[str, Any]]:
    """A sentence in the middle of a plot that has nothing to draw."""
    sentence = why_empty(data.states)
    if not sentence:
        return []
    return [
        {
            "text": wrapped(sentence, 0.8 * frame.plot[0], 13),
            "xref": "paper",
            "yref": "paper",
            "x": 0.5,
            "y": 0.7,
            "showarrow": False,
            "font": {"size": 13, "color": INK["light"]},  # dark on light on any paper, as a page may change the theme
            "bgcolor": "rgba(255,255,255,0.9)",
            "borderpad": 6,
            "name": "empty",
        }
    ]


def caption_annotations(frame: Frame) -> list[dict[str, Any]]:
    """The caption as an annotation under everything else, from the figure's left edge."""
    if not frame.caption:
        return []
    return [
        {
            "text": "<br>".join(text(line) for line in frame.caption),
            "xref": "paper",
            "yref": "paper",
            "x": 0,
            "y": 0,
            "xshift": -frame.margins[0] + 24,
            "yshift": -frame.caption_at,
            "xanchor": "left",
            "yanchor": "top",
            "align": "left",
            "showarrow": False,
            "font": {"size": CAPTION_FONT},
            "opacity": 0.85,
            "name": "caption",
        }
    ]


def colour_bar(data: FigureData, length: float, even: EvenLevels | None = None) -> dict[str, Any]:
    """The colour bar with real values at its ticks, whatever the scale.

    Args:
        length: of the bar, in pixels.
        even: the evenly spaced units of a trace, if they differ from the drawn ones.
    """
    ticks, texts = spread_ticks(data.scale, length)
    return {
        "title": bar_title(data.quantity),
        "thickness": 14,
        "len": length,
        "lenmode": "pixels",
        "y": 0.5,
        "x": 1.02,
        "xanchor": "left",
        "outlinewidth": 0,
        "ticks": "outside",
        "ticklen": 3,
        "tickfont": {"size": 11},
        "tickmode": "array",
        "tickvals": ticks if even is None else even.values(np.array(ticks)).tolist(),
        "ticktext": texts,
    }


def bar_title(words: str) -> dict[str, Any]:
    """The title of a colour bar in lines that fit the margin beside the plot; in a smaller font for long words."""
    font = 13 if max(map(len, words.split()), default=0) <= BAR_TITLE_PX / (0.52 * 13) else 11
    lines = textwrap.wrap(words, int(BAR_TITLE_PX / (0.52 * font)), max_lines=BAR_TITLE_LINES, placeholder="…")
    return {"text": "<br>".join(text(line) for line in lines), "side": "top", "font": {"size": font}}


def label_carrier(data: FigureData, even: EvenLevels, which: slice) -> dict[str, Any]:
    """An invisible colour bar, from which plotly takes the labels of contour lines."""
    ticks = even.values(np.array(data.scale.ticks[which]))
    return {
        "tickmode": "array",
        "tickvals": ticks.tolist(),
        "ticktext": list(data.scale.texts[which]),
        "showticklabels": False,
        "ticks": "",
        "thickness": 0,
        "outlinewidth": 0,
        "bgcolor": "rgba(0,0,0,0)",
        "len": 1,
        "x": 3,  # outside the figure: even a bar of size 0 leaves a speck
        "lenmode": "pixels",
    }


def spread_ticks(scale: Scale, length: float, spacing: float = 15) -> tuple[list[float], list[str]]:
    """A subset of the scale's ticks at least `spacing` pixels apart, and their texts."""
    most = max(1, int(length / spacing))
    keep = slice(None, None, -(-len(scale.ticks) // most))
    return list(scale.ticks[keep]), list(scale.texts[keep])


def with_levels(data: FigureData) -> FigureData:
    """The same with the number of contour lines in its caption, for drawings with such lines.

    If the values do not fill the scale, such as a shared one, fewer lines than the scale's are drawn.
    """
    note, ticks, drawn = data.scale.levels_note, np.asarray(data.scale.ticks), data.drawn[np.isfinite(data.drawn)]
    if why_empty(data.states):
        return data
    if drawn.size and drawn.min() < drawn.max():
        there = int(((ticks > drawn.min()) & (ticks < drawn.max())).sum())
        note = note if there == len(ticks) else f"{there or 'none'} of the scale's {note}"
    return replace(data, caption=(*data.caption, note[:1].upper() + note[1:]))


def finish(data: FigureData, traces: Sequence[Any], layout: dict[str, Any], meta: dict[str, Any]) -> go.Figure:
    """The figure of these traces and this layout.

    Args:
        meta: for the report's script, which fits the figure to the page.
    """
    layout["meta"] = meta | {"caption": sentence(data.caption)}
    return go.Figure(list(traces), layout)


# ----------------------------------------------------------------------------------------------------
# The pointer's text at a point: its value ± two standard errors, and its rise over the origin ± two of its own.


NOTE = "%{text}"
INTERPOLATED = ", interpolated"  # the page's script recognises interpolated points by this text


def pointer_values(data: FigureData) -> tuple[Floats, str]:
    """The numbers that the pointer shows at each point, and plotly's template for them.

    For a refined landscape the template ends with the text of `pointer_notes`, as plotly has one template for all
    points.

    Returns:
        [..., columns], the shape of the values first; at points that were not evaluated, all but the value are NaN. And
        a template whose part after "|" is the rise.
    """
    columns = pointer_columns(data.values, data.error, data.rise, data.rise_error)
    value = f"%{{customdata[0]:.{usual_digits(data.values, data.error, 5)}g}}"
    if data.interpolated is not None:
        columns[data.interpolated > 0, 1:] = np.nan
        return columns, f"{value}{NOTE}"
    if data.error is not None:
        value += " ± %{customdata[1]:.2g} (2 s.e.)"
    if data.rise is not None and data.rise_error is not None:
        k, digits = columns.shape[-1] - 2, usual_digits(data.rise, data.rise_error, 4)
        value += f"|%{{customdata[{k}]:.{digits}g}} ± %{{customdata[{k + 1}]:.2g}} (2 s.e.)"
    return columns, value


def pointer_notes(data: FigureData) -> NDArray[np.object_] | None:
    """The text after each value of a refined landscape: its errors and its rise, or that it is interpolated.

    Returns:
        Texts in the shape of the values; None if every point was evaluated.
    """
    if data.interpolated is None:
        return None
    notes = np.full(data.values.shape, INTERPOLATED, np.object_)
    for index in zip(*np.nonzero(data.interpolated == 0), strict=True):
        note = "" if data.error is None else f" ± {2 * data.error[index]:.2g} (2 s.e.)"
        if data.rise is not None and data.rise_error is not None:
            rise = value_with_error(float(data.rise[index]), float(data.rise_error[index]))
            note += f"<br>rise over the origin {rise}"
        notes[index] = note
    return notes


def pointer_columns(values: Floats, error: Floats | None, rise: Floats | None, rise_error: Floats | None) -> Floats:
    """The numbers of `pointer_values`, with doubled errors; unknown ones have no column."""
    columns = [values]
    columns += [2 * error] if error is not None else []
    columns += [rise, 2 * rise_error] if rise is not None and rise_error is not None else []
    return np.stack(columns, axis=-1)


def pointer_text(name: str, value: str) -> str:
    """The lines that the pointer shows for one observable; `value` is the template of `pointer_values`.

    Args:
        name: of the observable, plain text; markup and template characters in it are escaped.
    """
    shown, _, rise = value.partition("|")
    plain = text(name).replace("%{", "&#37;{")
    bold, note = shown.removesuffix(NOTE), NOTE if shown.endswith(NOTE) else ""
    return f"<b>{plain} {bold}</b>{note}" + (f"<br>rise over the origin {rise}" if rise else "")


def of_heights(data: FigureData) -> dict[str, Any]:
    """The pointer's text for a surface over two axes, as options of its trace.

    Plotly indexes the numbers and texts of a surface by [x, y], although its heights are [y, x].
    """
    notes = pointer_notes(data)
    return {
        "customdata": typed(pointer_values(data)[0].swapaxes(0, 1)),
        "text": None if notes is None else notes.T,
        "hovertemplate": plane_hover(data),
    }


def plane_hover(data: FigureData) -> str:
    """Plotly's template for a point of two axes."""
    names = [axis.name for axis in data.axes]
    value = pointer_text(data.quantity, pointer_values(data)[1])
    return f"{names[0]} %{{x:.4g}}<br>{names[1]} %{{y:.4g}}<br>{value}<extra></extra>"
