"""What the samples cannot tell: where a landscape differs from its origin by no more than its error."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from landscape.surface.surface import RISE_STDERR, Surface
from landscape.views.prepare.origin import origin_index
from landscape.views.prepare.statuses import is_evaluated

Floats = NDArray[np.float64]

CLEAR = 10.0  # beyond that the ratio says no more, and a steep rise would bend the outline between two points


def rise_over_origin(surface: Surface, observable: str) -> tuple[Floats | None, Floats | None]:
    """L(point) − L(origin) and its standard error, of the loss; None where they were not kept."""
    error = surface.observables.get(RISE_STDERR)
    if observable != "loss" or error is None or not np.isfinite(surface.origin_loss):
        return None, None
    return np.asarray(surface.loss, np.float64) - surface.origin_loss, np.asarray(error, np.float64)


def standard_error(surface: Surface, observable: str) -> Floats | None:
    """The standard error of the mean per point, None where it was not kept."""
    error = surface.observables.get(f"{observable}_stderr")
    return None if error is None else np.asarray(error, np.float64)


def where_evaluated(surface: Surface, error: Floats | None) -> Floats | None:
    """The errors without those of interpolated points, whose values are off by how far the loss bends there, too."""
    return error if error is None else np.where(is_evaluated(surface), error, np.nan)


def difference_in_errors(surface: Surface, observable: str) -> Floats | None:
    """How many times two standard errors each value differs from that at the origin: |difference| / (2·error).

    Below 1, the value cannot be told from that of the origin. The error of the rise is used where it was kept: over
    the same samples, what all points share cancels. Elsewhere the error of the difference is at most the sum of both
    errors, which is used in its place.

    Returns:
        An array of the surface's shape, 10 at most, NaN where the value is not known; None where no error was kept, or
        no value at the origin.
    """
    rise, error = rise_over_origin(surface, observable)
    if rise is None or error is None:
        value, at_origin = _at_origin(surface, observable)
        own = standard_error(surface, observable)
        if own is None or not (math.isfinite(value) and math.isfinite(at_origin)):
            return None
        rise, error = np.asarray(surface[observable], np.float64) - value, own + at_origin
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        ratio = np.abs(rise) / (2 * error)
    ratio = np.where(rise == 0, 0.0, ratio)
    return np.where(np.isfinite(rise), np.minimum(np.nan_to_num(ratio, nan=CLEAR, posinf=CLEAR), CLEAR), np.nan)


def _at_origin(surface: Surface, observable: str) -> tuple[float, float]:
    """The value at the origin and its standard error, NaN where they are not known."""
    if observable == "loss" and math.isfinite(surface.origin_loss):
        return surface.origin_loss, surface.origin_loss_stderr
    index, error = origin_index(surface), standard_error(surface, observable)
    if index is None or error is None:
        return math.nan, math.nan
    return float(surface[observable][index]), float(error[index])
