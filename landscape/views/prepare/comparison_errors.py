"""The standard error of the difference of two landscapes: of pairs of samples where it can be known, else of both."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from landscape.surface.surface import RISE_STDERR, Surface, stored_stderr
from landscape.views.prepare.comparison import same_origin, same_samples
from landscape.views.prepare.comparison_grid import GridValues, coordinates_agree, resampled

Floats = NDArray[np.float64]

EXACT, PAIRED, COMBINED, UNPAIRED = "exact", "paired", "combined", "unpaired"
IN_WORDS = {
    EXACT: "of the pairs of the same samples",
    PAIRED: "paired over the same samples, an upper bound",
    COMBINED: "of both combined",
    UNPAIRED: "of both combined, though the samples are the same (keep_samples: true of the job gives that of the "
    "pairs, which is smaller)",
}


def error_of(
    one: Surface,
    other: Surface,
    observable: str,
    sides: tuple[GridValues, GridValues],
    log: bool,
    grid: Sequence[Floats],
) -> tuple[Floats | None, str]:
    """The standard error of the difference, or of the ratio to first order, and its kind."""
    exact = _of_stored_losses(one, other, grid) if observable == "loss" else None
    paired = exact if exact is not None else _paired(one, other, observable, grid)
    (a, b), errors = sides, (sides[0].error, sides[1].error)
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        if paired is not None:
            return paired / np.abs(a.values) if log else paired, PAIRED if exact is None else EXACT
        if errors[0] is None or errors[1] is None:
            return None, ""
        kind = UNPAIRED if observable == "loss" and same_samples(one, other) else COMBINED
        if not log:
            return np.hypot(errors[0], errors[1]), kind
        return np.abs(b.values / a.values) * np.hypot(errors[0] / a.values, errors[1] / b.values), kind


def _paired(one: Surface, other: Surface, observable: str, grid: Sequence[Floats]) -> Floats | None:
    """The bound of the paired standard error of the difference; None where it cannot be known."""
    errors = [surface.observables.get(RISE_STDERR) for surface in (one, other)]
    if observable != "loss" or errors[0] is None or errors[1] is None:
        return None
    if not (same_samples(one, other) and same_origin(one, other)):
        return None
    given = zip((one, other), errors, strict=True)
    sides = [
        moved_to(GridValues(np.asarray(error, np.float64), None, surface.status), surface, grid).values
        for surface, error in given
    ]
    return sides[0] + sides[1]


def _of_stored_losses(one: Surface, other: Surface, grid: Sequence[Floats]) -> Floats | None:
    """The paired error itself, where both landscapes keep the losses of their samples at these points; else None."""
    shape = tuple(len(points) for points in reversed(grid))
    kept = [each.loss_samples for each in (one, other)]
    places = ([axis.coordinates for axis in each.axes] for each in (one, other))
    if (
        not same_samples(one, other)
        or kept[0] is None
        or kept[1] is None
        or not all(coordinates_agree(own, grid) for own in places)
    ):
        return None
    if any(each is not None and (each.shape[:-1] != shape or each.shape != kept[0].shape) for each in kept):
        return None
    return stored_stderr(kept[0], kept[1])


def moved_to(given: GridValues, surface: Surface, grid: Sequence[Floats]) -> GridValues:
    """The values at the points of `grid`, which are untouched where these are the surface's own."""
    coordinates = [axis.coordinates for axis in surface.axes]
    return given if coordinates_agree(coordinates, grid) else resampled(given, coordinates, grid)
