"""`figure`: from a surface and a kind to a plotly figure. Prepares, then hands over to the drawing of that kind."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import plotly.graph_objects as go

from landscape.errors import JobError, nearest, shown
from landscape.surface import Surface
from landscape.views.figures.curve import draw_curve
from landscape.views.figures.flat import draw_contour, draw_slices, draw_topographic
from landscape.views.figures.layout import Style
from landscape.views.figures.relief import draw_surface, draw_volume
from landscape.views.figures.theme import COLOUR_SCALES, DEFAULT_SCALE, TEMPLATES
from landscape.views.prepared.prepare import Grid, means, prepare
from landscape.views.prepared.wording import file_name

# The first of each is the default.
KINDS: dict[int, tuple[str, ...]] = {1: ("curve",), 2: ("topographic", "contour", "surface"), 3: ("slices", "volume")}
DRAW: dict[str, Callable[[Grid, Style], go.Figure]] = {
    "contour": draw_contour,
    "topographic": draw_topographic,
    "surface": draw_surface,
    "slices": draw_slices,
    "volume": draw_volume,
}


def figure(
    surface: Surface,
    kind: str | None = None,
    *,
    observable: str = "loss",
    log: bool = False,
    levels: int | None = None,
    zmin: float | None = None,
    zmax: float | None = None,
    colour_scale: str = DEFAULT_SCALE,
    path: bool = True,
    path_colour: str = "#d6336c",
    path_width: float = 2.5,
    animate: bool = False,
    theme: str = "light",
    title: bool = True,
    caption: bool = True,
    max_points: int | None = None,
    **unknown: Any,
) -> go.Figure:
    """Draw a landscape.

    Args:
        kind: "curve" for one axis; "topographic" (default), "contour" or "surface" for two; "slices" (default)
            or "volume" for three.
        observable: which of `surface.observables`; over one axis "loss" brings "accuracy" along.
        log: draw log10, labelled with the real values; values of zero or below are marked as not drawable.
        levels: number of contour lines; default about 12 at round numbers.
        zmin, zmax: ends of the colour range, in real values, for figures that are to be compared.
        colour_scale: viridis, cividis and magma are even to the eye and safe for the colour-blind.
        path, path_colour, path_width: the trajectory on top.
        animate: add buttons that let the path grow.
        theme: "light" or "dark".
        max_points: points per axis to draw at most; the data are never changed, only picked.

    Raises:
        JobError: an unknown kind, observable, colour scale or option, or one that does not fit.
    """
    if unknown:
        wrong = next(iter(unknown))
        raise JobError(f"figure: unknown option {shown(wrong)}; {nearest(wrong, figure.__kwdefaults__ or ())}")
    chosen = choose_kind(surface, kind)
    if theme not in TEMPLATES:
        raise JobError(f"theme: unknown {shown(theme)}; {nearest(str(theme), TEMPLATES)}")
    if colour_scale not in COLOUR_SCALES:
        raise JobError(f"colour_scale: unknown {shown(colour_scale)}; {nearest(str(colour_scale), COLOUR_SCALES)}")
    style = Style(colour_scale, theme, path_colour, path_width, title, caption, animate)
    options: dict[str, Any] = {"log": log, "levels": levels, "path": path, "max_points": max_points}
    grid = prepare(surface, observable, zmin=zmin, zmax=zmax, **options)
    if chosen != "curve":
        return DRAW[chosen](grid, style)
    beside = [name for name in ("accuracy",) if observable == "loss" and name in means(surface)]
    options["log"] = False  # the panels beside the loss are fractions
    return draw_curve([grid, *(prepare(surface, name, **options) for name in beside)], style)


def choose_kind(surface: Surface, kind: str | None) -> str:
    """The kind to draw: the given one if it fits the number of axes, the default without one."""
    fitting = KINDS[len(surface.axes)]
    if kind is None:
        return fitting[0]
    if kind not in {each for kinds in KINDS.values() for each in kinds}:
        raise JobError(f"kind: unknown {shown(kind)}; {nearest(str(kind), fitting)} (for {len(surface.axes)} axes)")
    if kind not in fitting:
        raise JobError(
            f"kind: {shown(kind)} does not fit {shown(surface.name)}, which has {len(surface.axes)} "
            f"{'axis' if len(surface.axes) == 1 else 'axes'}; known: {', '.join(fitting)}"
        )
    return kind


def figure_name(surface: Surface, kind: str | None = None, observable: str = "loss", log: bool = False) -> str:
    """A file name, without its ending, that says what the figure shows."""
    shown = "" if observable == "loss" else observable
    return file_name(surface.name, choose_kind(surface, kind), shown, "log" if log else "")
