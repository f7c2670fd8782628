"""The figure that a plot is drawn on: the user's, a new one, or one laid out for a column or a page of a paper."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import ExitStack
from textwrap import wrap
from typing import Any

import numpy as np
from matplotlib import pyplot, rc_context

from landscape.core.errors import JobError
from landscape.views.figure_spec import FigureSpec
from landscape.views.plots.space import lay_scenes
from landscape.views.plots.style import SMALL, preset_settings, sized, width_in_inches
from landscape.views.prepare.words import fitting_title

MOST_COLUMNS = 5  # of a legend
KEY = 2.6  # the width of a symbol of a legend and its gap, in sizes of its font
TALLEST = 1.35  # the height of the axes of a plot at most, in widths
USUAL = 0.75  # the height of a figure whose axes have no units in common, in widths
SCENES = 0.9  # the same of scenes side by side, whose legend is below both
NUMBER = 4.5  # the width of a number at an axis and its gap, in sizes of its font
EDGE = 0.03  # inches around a figure for print


class Page:
    """A context in which to draw: `figure` has `axes`, and is laid out for print at the end if a preset is asked for.

    Args:
        axes: those of the user, whose figure and settings are left as they are; None makes a new figure.
        in_space: whether the axes have three dimensions.
        panels: the rows and columns of new axes.

    Raises:
        JobError: the user's axes do not fit, or a preset is given beside them.
    """

    def __init__(
        self,
        spec: FigureSpec,
        axes: Sequence[Any] | None = None,
        in_space: bool = False,
        panels: tuple[int, int] = (1, 1),
    ):
        self.spec: Any = sized(spec, panels[1])
        self.in_space, self.panels, self._stack = in_space, panels, ExitStack()
        self.is_own = axes is None
        self.axes: list[Any] = [] if axes is None else list(np.ravel(np.array(axes, object)))
        if self.axes and spec.preset is not None:
            raise JobError(
                f"preset: makes a figure of its own, so must not be given with axes, not {spec.preset!r}; leave one out"
            )
        if any(in_space != hasattr(ax, "plot_surface") for ax in self.axes):
            remedy = 'make them with projection="3d"' if in_space else "make them without a projection"
            wanted = "three-dimensional axes for 'surface'" if in_space else f"two-dimensional axes for {spec.kind!r}"
            raise JobError(f"ax: must be {wanted}; {remedy}")
        self.figure: Any = self.axes[0].figure if self.axes else None

    def __enter__(self) -> Page:
        settings = preset_settings(self.spec)
        if settings:
            self._stack.enter_context(rc_context(settings))
        if self.is_own:
            size: dict[str, Any] = {}
            if settings:
                rows, columns = self.panels
                width = width_in_inches(self.spec)
                height = SCENES if self.in_space and columns > 1 else USUAL
                size = {"figsize": (width, height * width * rows / columns)}
            elif self.panels != (1, 1):
                width, height = pyplot.rcParams["figure.figsize"]
                size = {"figsize": (0.75 * width * self.panels[1], 0.75 * height * self.panels[0])}
            self.figure = pyplot.figure(layout="constrained", **size)
            projection = {"projection": "3d"} if self.in_space else {}
            grid = self.figure.subplots(*self.panels, squeeze=False, subplot_kw=projection)
            self.axes = list(grid.ravel())
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        try:
            if kind is None and self.is_own and self.spec.preset is not None:
                _lay_out(self.figure, self.axes, self.spec)
            elif kind is not None and self.is_own:
                pyplot.close(self.figure)
        finally:
            self._stack.close()


def _lay_out(figure: Any, axes: Sequence[Any], spec: FigureSpec) -> None:
    """Give a figure its legend, words that fit, and the height that its axes need; its width is that of the preset."""
    size = (spec.print_size[1] or 0.0) * 72 / 96
    figure.get_layout_engine().set(w_pad=EDGE, h_pad=EDGE, wspace=0.02, hspace=0.02)
    for ax in figure.axes:  # ticks are made when first drawn, after the settings are those of the user again
        ax.tick_params(labelsize=SMALL * size)
        for axis in (ax.xaxis, ax.yaxis):
            axis.get_offset_text().set_fontsize(SMALL * size)
    for ax in axes:
        if not hasattr(ax, "plot_surface") and ax.get_xscale() == "linear":
            points = ax.get_position().width * figure.get_figwidth() * 72
            ax.locator_params(axis="x", nbins=max(3, int(points / (NUMBER * SMALL * size))))
    _add_legend(figure, axes)
    titles = {(ax, name): getattr(ax, f"get_{name}label")() for ax in figure.axes for name in "xy"}
    bars = [ax for ax in figure.axes if ax not in axes]
    figure.draw_without_rendering()
    for _ in range(3):
        titles_changed = _fit_titles(figure, axes, titles) | _fit_bars(figure, bars, titles)
        if not (_fit_height(figure, axes) | titles_changed):
            break
        figure.draw_without_rendering()
    else:
        _fit_titles(figure, axes, titles)
    if scenes := [ax for ax in axes if hasattr(ax, "plot_surface")]:
        lay_scenes(figure, scenes, bars)


def _add_legend(figure: Any, axes: Sequence[Any]) -> None:
    """One legend below all axes, in as many columns as the width holds."""
    entries: dict[str, Any] = {}
    for ax in axes:
        for handle, name in zip(*ax.get_legend_handles_labels(), strict=True):
            entries.setdefault(name, handle)
    if not entries:
        return
    place = {"loc": "outside lower center", "borderaxespad": 0.2}
    trial = figure.legend(list(entries.values()), list(entries), **place)
    widths = [text.get_window_extent(figure.canvas.get_renderer()).width for text in trial.get_texts()]
    trial.remove()
    size = pyplot.rcParams["legend.fontsize"] * figure.dpi / 72
    key, gap = KEY * size, pyplot.rcParams["legend.columnspacing"] * size
    room = 0.97 * figure.bbox.width - size

    def fits(columns: int) -> bool:
        parts = [part.max() for part in np.array_split(np.array(widths), columns)]
        return bool(sum(parts) + columns * key + (columns - 1) * gap <= room)

    columns = next((count for count in range(min(len(widths), MOST_COLUMNS), 1, -1) if fits(count)), 1)
    letters = [int(len(name) * (room - key) / width) for name, width in zip(entries, widths, strict=True)]
    names = ["\n".join(wrap(name, max(8, most))) for name, most in zip(entries, letters, strict=True)]
    figure.legend(list(entries.values()), names, ncols=columns, **place)


def _fit_titles(figure: Any, axes: Sequence[Any], titles: dict[Any, str]) -> bool:
    """Shorten the titles of axes that are longer than their axes, alike in all panels; they lose words, not size.

    Returns:
        Whether any changed.
    """
    renderer = figure.canvas.get_renderer()
    shown = {(ax, name): getattr(ax, f"{name}axis") for ax in axes for name in "xy"}
    before = [(axis.get_label_text(), axis.label.get_size()) for axis in shown.values()]
    forms: dict[str, str] = {}
    for (ax, name), axis in shown.items():
        title = titles[ax, name]
        axis.label.set_fontsize(pyplot.rcParams["axes.labelsize"])
        axis.set_label_text(title)
        fitting = title
        if title and not hasattr(ax, "plot_surface"):
            room, extent = _room(figure, ax, name), axis.label.get_window_extent(renderer)
            length = extent.width if name == "x" else extent.height
            if length > room:
                fitting = fitting_title(title, int(len(title) * room / length), 1.0)[0]
        forms[title] = min(forms.get(title, fitting), fitting, key=len)
    for key, axis in shown.items():
        axis.set_label_text(forms[titles[key]])
    return before != [(axis.get_label_text(), axis.label.get_size()) for axis in shown.values()]


def _fit_bars(figure: Any, bars: Sequence[Any], titles: dict[Any, str]) -> bool:
    """Break the titles of colour bars into lines no longer than the figure is high; whether any changed."""
    changed = False
    for bar in bars:
        before, title = bar.get_ylabel(), titles[bar, "y"]
        bar.set_ylabel(title)
        length, room = bar.yaxis.label.get_window_extent().height, _room(figure, bar, "y")
        if title and length > room:
            bar.set_ylabel("\n".join(wrap(title, max(4, int(len(title) * room / length)))))
        changed |= before != bar.get_ylabel()
    return changed


def _room(figure: Any, ax: Any, name: str) -> float:
    """The pixels that the title of an axis may take: the length of the axes, and their margins within the figure."""
    box, pad = ax.get_window_extent(), EDGE * figure.dpi
    low, high, end = (box.x0, box.x1, figure.bbox.width) if name == "x" else (box.y0, box.y1, figure.bbox.height)
    middle = (low + high) / 2
    if name == "x" and ax.xaxis.get_offset_text().get_text():  # the power of ten, at the end of the same line
        power = ax.xaxis.get_offset_text().get_window_extent(figure.canvas.get_renderer())
        return float(high - low - 2.3 * power.width)
    if len(figure.axes) > 2:  # panels: the next one begins where these axes end
        return float(high - low)
    return float(2 * min(middle, end - middle) - 2 * pad)


def _fit_height(figure: Any, axes: Sequence[Any]) -> bool:
    """Change the height of the figure so that axes of equal units fill their places; whether it changed by much."""
    flat = [ax for ax in axes if ax.get_aspect() != "auto" and not hasattr(ax, "plot_surface")]
    if not flat:
        return False
    rows = len({ax.get_subplotspec().rowspan.start for ax in axes})
    width, height = figure.get_size_inches()
    spare = math.inf
    for ax in flat:
        place, drawn = ax.get_position(original=True), ax.get_position()
        ratio = drawn.height * height / (drawn.width * width)
        wanted = min(ratio, TALLEST) * place.width * width
        spare = min(spare, place.height * height - wanted)
    figure.set_size_inches(width, max(height - rows * spare, 0.35 * width))
    return abs(spare) > 0.01
