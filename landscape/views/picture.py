"""A surface as a PNG by matplotlib, without a window and without a change of the caller's settings."""

from __future__ import annotations

import io

from landscape.surface.surface import Surface
from landscape.views.plots import PLOTS, plot


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
