"""The kinds of drawings: for how many axes each is, what the report calls it, and what draws it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import plotly.graph_objects as go

from landscape.views.draw.barcode import draw_barcode
from landscape.views.draw.contour import draw_contour
from landscape.views.draw.curve import draw_curve
from landscape.views.draw.layout import Style
from landscape.views.draw.slices import draw_slices
from landscape.views.draw.space import draw_surface
from landscape.views.draw.topographic import draw_topographic
from landscape.views.draw.volume import draw_volume
from landscape.views.prepare.figure import FigureData


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
