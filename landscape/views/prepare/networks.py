"""The networks that a plane runs through as a figure marks them, and the curve between two of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

import numpy as np
from numpy.typing import NDArray

from landscape.surface.barriers import curve_places
from landscape.surface.surface import Surface
from landscape.views.prepare.comparable import Comparable
from landscape.views.prepare.levels import number
from landscape.views.prepare.path_on_surface import bilinear
from landscape.views.prepare.paths import DrawnPath
from landscape.views.prepare.words import shortened

Floats = NDArray[np.float64]

CURVE_POINTS = 121
NAME_LETTERS = 24  # of a label beside its mark
SAME_PLACE = 1e-3  # of the axes' spans


@dataclass(frozen=True, eq=False)
class Networks(Comparable):
    """The networks at their places on the first two axes.

    Attributes:
        places: [2, n].
        names: short enough to stand beside the marks.
        hover: in plotly's markup.
        heights: in drawn units [n], interpolated between points of the grid; NaN beyond it.
        curve: places of the curve's points [2, m]; none where there is no curve.
        curve_heights: [m].
    """

    places: Floats
    names: tuple[str, ...]
    hover: tuple[str, ...]
    heights: Floats
    curve: Floats
    curve_heights: Floats
    curve_name: str = ""

    title = "networks"


def prepare_networks(surface: Surface, drawn: Floats, paths: Sequence[DrawnPath] = ()) -> Networks | None:
    """The networks of a plane as a figure shows them; None for every other landscape.

    Args:
        drawn: the values of the surface in drawn units.
        paths: those that are drawn too: a network that is a snapshot of one is marked as that alone.
    """
    if len(surface.axes) != 2:
        return None
    known = [axis.record.networks for axis in surface.axes]
    if known[0] is None or known[1] is None or [each.name for each in known[0]] != [each.name for each in known[1]]:
        return None
    places = np.array([[network.at for network in axis] for axis in known if axis is not None])
    x, y = (axis.coordinates for axis in surface.axes)

    kind = surface.axes[0].record.curve
    curve = np.empty((2, 0))
    if kind is not None and places.shape[1] == 3:
        curve = curve_places(kind, places.T, np.linspace(0, 1, CURVE_POINTS)).T
    losses = network_losses(surface)
    hover = tuple(
        f"<b>{escape(network.name, quote=False)}</b><br>"
        + ", ".join(f"{axis.name} {number(float(at), 4)}" for axis, at in zip(surface.axes, place, strict=True))
        + (f"<br>loss {number(loss)}" if np.isfinite(loss) else "")
        for network, place, loss in zip(known[0], places.T, losses, strict=True)
    )
    names = tuple(shortened(network.name, NAME_LETTERS) for network in known[0])
    heights, of_curve = (bilinear(x, y, drawn, at[0], at[1]) for at in (places, curve))
    shown = [k for k, place in enumerate(places.T) if not _is_on(paths, place, (x[-1] - x[0], y[-1] - y[0]))]
    if not shown and not curve.size:
        return None
    names, hover = (tuple(words[k] for k in shown) for words in (names, hover))
    return Networks(
        places[:, shown], names, hover, heights[shown], curve, of_curve, f"{kind} curve" if curve.size else ""
    )


def _is_on(paths: Sequence[DrawnPath], place: Floats, spans: tuple[float, float]) -> bool:
    """Whether a snapshot of a path lies there, as far as can be seen."""
    away = [np.hypot(*((path.places[k] - place[k]) / spans[k] for k in (0, 1))) for path in paths]
    return any(bool((far < SAME_PLACE).any()) for far in away)


def network_notes(surface: Surface) -> list[str]:
    """What a caption says of the losses of the networks; nothing where none is known."""
    names = [network.name for network in surface.axes[0].record.networks or ()]
    known = [
        f"{shortened(name, NAME_LETTERS)} {number(loss)}"
        for name, loss in zip(names, network_losses(surface), strict=True)
        if np.isfinite(loss)
    ]
    return [f"loss at the networks: {', '.join(known)}"] if known else []


def network_losses(surface: Surface) -> Floats:
    """The loss at each network that the axes run through, as it is by itself; NaN where it is not known."""
    known = surface.axes[0].record.networks or ()
    evaluated = surface.networks
    if evaluated is None or len(evaluated.loss) != len(known):
        return np.full(len(known), np.nan)
    return np.asarray(evaluated.loss, np.float64)
