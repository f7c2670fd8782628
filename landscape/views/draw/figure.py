"""`figure`: from a surface and a kind to a plotly figure. Prepares the data, then lets that kind draw them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import plotly.graph_objects as go

from landscape.core.errors import JobError, nearest, shown
from landscape.surface.surface import Surface
from landscape.views.draw.categories import draw_categories
from landscape.views.draw.kinds import KIND_TABLE, kinds_of
from landscape.views.draw.layout import Style
from landscape.views.draw.paper import choose_paper, choose_preset
from landscape.views.draw.print import fit_to_paper
from landscape.views.draw.style import check_scale, scale_warning
from landscape.views.draw.theme import TEMPLATES
from landscape.views.prepare.categories import categories_of
from landscape.views.prepare.figure import prepare_figure
from landscape.views.prepare.words import file_name

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
        raise JobError(f"figure: unknown option {shown(wrong)}; {nearest(wrong, figure.__kwdefaults__ or ())}")
    if categories_of(surface, observable) is None:  # what stands for names is not interpolated
        surface = surface.merged()
    chosen = KIND_TABLE[choose_kind(surface, kind)]
    if theme not in TEMPLATES:
        raise JobError(f"theme: unknown {shown(theme)}; {nearest(str(theme), TEMPLATES)}")
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
        raise JobError(f"kind: unknown {shown(kind)}; {nearest(str(kind), fitting)} (for {axes} axes)")
    if kind not in fitting:
        raise JobError(
            f"kind: {shown(kind)} does not fit {shown(name)}, which has {axes} "
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
