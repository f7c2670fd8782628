"""What is plotted with matplotlib: a landscape, several compared, a path alone, a spectrum; without loading it."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from landscape.core.errors import JobError, quoted
from landscape.surface.surface import Surface
from landscape.views.figure_spec import (
    KIND_TABLE,
    PLOTTED,
    ComparisonPlotSpec,
    PlotSpec,
    SpectralDensity,
    choose_kind,
    documented,
)
from landscape.views.prepare.comparison import Given
from landscape.views.prepare.figure import prepare, slice_at, slice_nearest


@documented(PlotSpec)
def plot(surface: Surface, ax: Any = None, kind: str | None = None, **options: Any) -> Any:
    """Draw a landscape with matplotlib.

    Words and lines have the sizes of matplotlib's settings, or those of `preset`. Everything drawn has a label, for
    `ax.legend()`; with a preset the legend is there.

    Args:
        ax: axes to draw on, with `projection="3d"` for a surface; default: those of a new figure.
        kind: "curve" for one axis; "topographic" (default), "contour" or "surface" for two; "slices" for three, which
            draws the slice nearest to 0.
        OPTIONS

    Returns:
        The axes.

    Raises:
        JobError: an unknown kind, observable, colour scale or option, or one that does not fit.
    """
    spec, surface = PlotSpec.of(kind, options), surface.merged()
    chosen = choose_kind(surface, kind)
    if chosen not in PLOTTED:
        raise JobError(
            f"kind: {quoted(chosen)} is not drawn with matplotlib; take {', '.join(PLOTTED)}, or surface.figure()"
        )
    data = prepare(surface, spec)
    if chosen == "slices":
        data = slice_at(data, slice_nearest(data))
    from landscape.views.plots.pages import Page

    with Page(replace(spec, kind=chosen), None if ax is None else [ax], chosen == "surface") as page:
        KIND_TABLE[chosen].plot(data, page.axes[0], page.spec)
        return page.axes[0]


@documented(ComparisonPlotSpec)
def plot_compare(
    landscapes: Sequence[Given],
    mode: str = "tiled",
    axes: Sequence[Any] | None = None,
    kind: str | None = None,
    **options: Any,
) -> list[Any]:
    """Compare landscapes with matplotlib, as `landscape.views.compare` does with plotly.

    Args:
        landscapes: surfaces, or pairs of a label and a surface, of any runs.
        mode: "tiled", a panel each on one scale with one colour bar; "overlay", all over one another; "difference",
            each less the first.
        axes: those to draw on, one per panel; default: those of a new figure.
        kind: as for `plot`, where it fits the mode.
        OPTIONS

    Returns:
        The axes, one per panel.

    Raises:
        JobError: the landscapes cannot be compared so; or an unknown mode, kind, observable or option.
    """
    spec = ComparisonPlotSpec.of(kind, options)
    from landscape.views.plots.comparison import draw_comparison

    return draw_comparison(landscapes, mode, axes, spec)


def plot_path(surface: Surface, ax: Any = None, **options: Any) -> Any:
    """Draw the trajectory alone on the axes of a landscape, each snapshot in the colour of its own loss.

    Args:
        ax: axes to draw on; default: those of a new figure.
        options: those of `plot`.

    Returns:
        The axes.

    Raises:
        JobError: the landscape has no trajectory on two axes, or an option is impossible.
    """
    spec = PlotSpec.of(None, options)
    from landscape.views.plots.alone import draw_path

    return draw_path(surface.merged(), ax, spec)


def plot_hessian(
    density: SpectralDensity, ax: Any = None, *, width: float | None = None, preset: str | None = None
) -> Any:
    """Draw the density of the Hessian's eigenvalues, on a logarithmic axis of the density.

    Args:
        density: from `landscape.curvature.density`.
        ax: axes to draw on; default: those of a new figure.
        width: the standard deviation that each node is smoothed by; default: a hundredth of the range.
        preset: as for `plot`.

    Returns:
        The axes.

    Raises:
        JobError: a width that is not above 0, or an unknown preset.
    """
    spec = PlotSpec.of("curve", {"preset": preset})
    from landscape.views.plots.alone import draw_density

    return draw_density(density, ax, width, spec)


# ----------------------------------------------------------------------------------------------------
# A surface as a PNG by matplotlib, without a window and without changing the caller's settings.


def png_picture(surface: Surface, kind: str, max_points: int) -> bytes:
    """The picture, with its title; refuses kinds that matplotlib does not draw."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    assert kind in PLOTTED
    figure = Figure(figsize=(5, 4), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot(projection="3d") if kind == "surface" else figure.add_subplot()
    plot(surface, axes, kind, max_points=max_points)
    axes.set_title(f"{surface.name}: loss", fontsize="medium")
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=100)
    return file.getvalue()
