"""`plot`: a surface on matplotlib axes."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

from landscape.core.errors import JobError, LandscapeError, nearest, quoted
from landscape.surface.surface import Surface
from landscape.views.draw.figure import choose_kind
from landscape.views.draw.style import check_scale
from landscape.views.matplotlib import PlotStyle, plot_contour, plot_curve, plot_surface, plot_topographic
from landscape.views.prepare.figure import FigureData, prepare_figure, slice_at, slice_nearest

# A kind is a line here and a function that draws it; the names are those of the kinds of figures.
PLOTS: dict[str, Callable[[FigureData, Any, PlotStyle], None]] = {
    "curve": plot_curve,
    "topographic": plot_topographic,
    "contour": plot_contour,
    "surface": plot_surface,
    "slices": plot_topographic,
}


def plot(
    surface: Surface,
    ax: Any = None,
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
    path_width: float = 1.5,
    colour_bar: bool = True,
    max_points: int | None = None,
    **unknown: Any,
) -> Any:
    """Draw a landscape with matplotlib.

    Words and lines have the sizes that matplotlib's settings say. All that is drawn has a label, for `ax.legend()`.

    Args:
        ax: axes to draw on, with `projection="3d"` for a surface; default: those of a new figure.
        kind: "curve" for one axis; "topographic" (default), "contour" or "surface" for two; "slices" for three, which
            draws the slice nearest to 0.
        colour_bar: draw one beside the axes, where the kind has one.
        observable, log, levels, exact_levels, zmin, zmax, clip, uncertainty, extrema, colour_scale, path, max_points:
            as for `landscape.views.figure`.
        path_colour, path_width: the trajectory on top, of several runs the colour of the first; the width in points.

    Returns:
        The axes.

    Raises:
        JobError: an unknown kind, observable, colour scale or option, or one that does not fit.
        LandscapeError: matplotlib is not installed.
    """
    if unknown:
        wrong = next(iter(unknown))
        raise JobError(f"plot: unknown option {quoted(wrong)}; {nearest(wrong, plot.__kwdefaults__ or ())}")
    surface = surface.merged()
    chosen = choose_kind(surface, kind)
    if chosen not in PLOTS:
        raise JobError(
            f"kind: {quoted(chosen)} is not drawn with matplotlib; take {', '.join(PLOTS)}, or surface.figure()"
        )
    style = PlotStyle(check_scale(colour_scale), path_colour, path_width, colour_bar)
    data = prepare_figure(
        surface.merged(),
        observable,
        log=log,
        zmin=zmin,
        zmax=zmax,
        clip=clip,
        levels=levels,
        exact_levels=exact_levels,
        path=path,
        uncertainty=uncertainty,
        extrema=extrema,
        max_points=max_points,
    )
    if chosen == "slices":
        data = slice_at(data, slice_nearest(data))
    axes = _checked_axes(ax, chosen)
    PLOTS[chosen](data, axes, style)
    return axes


def _checked_axes(ax: Any, kind: str) -> Any:
    """The axes as given, or those of a new figure.

    Raises:
        JobError: they are flat where a surface needs three dimensions, or the other way round.
        LandscapeError: matplotlib is not installed.
    """
    try:
        from matplotlib import pyplot
    except ImportError:
        raise LandscapeError("plot needs the package matplotlib; `pip install loss-landscape-cluster[plot]`") from None
    needs_space = kind == "surface"
    if ax is None:
        projection = {"projection": "3d"} if needs_space else {}
        return pyplot.figure(layout="constrained").add_subplot(**projection)
    if needs_space != hasattr(ax, "plot_surface"):
        remedy = 'make them with projection="3d"' if needs_space else "make them without a projection"
        raise JobError(f"ax: must be {'three' if needs_space else 'two'}-dimensional axes for {quoted(kind)}; {remedy}")
    return ax


# ----------------------------------------------------------------------------------------------------
# A surface as a PNG by matplotlib, without a window and without a change of the caller's settings.


def png_picture(surface: Surface, kind: str, max_points: int) -> bytes:
    """The picture, with its title; kinds that matplotlib does not draw are refused."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    assert kind in PLOTS
    figure = Figure(figsize=(5, 4), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot(projection="3d") if kind == "surface" else figure.add_subplot()
    plot(surface, axes, kind, max_points=max_points)
    axes.set_title(f"{surface.name}: loss", fontsize="medium")
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=100)
    return file.getvalue()
