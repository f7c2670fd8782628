"""The origin as a figure marks it: the weights where the axes cross, at 0 on all of them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from html import escape

import numpy as np
from numpy.typing import NDArray

from landscape.surface.surface import Surface
from landscape.views.prepare import words as wording
from landscape.views.prepare.comparable import Comparable
from landscape.views.prepare.levels import number

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Origin(Comparable):
    """The origin of a landscape; `height` is its value in drawn units, NaN where that is not known."""

    height: float
    hover: str  # in plotly's markup

    name = "origin"


def prepare_origin(surface: Surface, observable: str, drawn: Floats, log: bool) -> Origin | None:
    """The origin as a figure of `observable` shows it; None where it lies outside the axes.

    The loss is evaluated there for every landscape. Another observable is known where the grid has a point there, and
    interpolated along a single axis.

    Args:
        drawn: the values of the surface in drawn units.
    """
    if not all(axis.coordinates[0] <= 0 <= axis.coordinates[-1] for axis in surface.axes):
        return None
    value = surface.origin_loss if observable == "loss" else math.nan
    if math.isfinite(value) and (value > 0 or not log):
        height = math.log10(value) if log else value
    else:
        height = _on_grid(surface, drawn)
    known = surface.origin_loss if observable == "loss" and math.isfinite(surface.origin_loss) else None
    if known is None and math.isfinite(height) and origin_index(surface) is not None:
        known = 10.0**height if log else height
    what, title = (
        escape(words, quote=False) for words in (surface.record.origin_name, wording.observable_title(observable))
    )
    lines = [f"<b>origin</b>{f' ({what})' if what else ''}"]
    lines += [f"{title} {number(known, 5)}"] if known is not None else []
    went_on_to = surface.record.went_on_to
    lines += [f"training went on to {escape(went_on_to, quote=False)}"] if went_on_to else []
    return Origin(height, "<br>".join(lines))


def _on_grid(surface: Surface, drawn: Floats) -> float:
    index = origin_index(surface)
    if index is not None:
        return float(drawn[index])
    if len(surface.axes) == 1:
        return float(np.interp(0.0, surface.axes[0].coordinates, drawn))
    return math.nan


def origin_index(surface: Surface) -> tuple[int, ...] | None:
    """The index of the grid point at exactly 0 on all axes, None where the grid has none."""
    zeros = [np.flatnonzero(axis.coordinates == 0) for axis in surface.axes]
    return tuple(int(places[0]) for places in reversed(zeros)) if all(places.size for places in zeros) else None
