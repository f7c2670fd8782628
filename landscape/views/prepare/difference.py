"""The difference of two landscapes, point by point, with its standard error, on a scale centred on no difference.

On a linear scale it is B − A, and on a logarithmic one the ratio B / A.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from landscape.core.errors import JobError, quoted
from landscape.core.grid import Floats
from landscape.core.text import count_text, number_text
from landscape.surface.derived import RISE
from landscape.surface.surface import NOT_COMPUTED, OK, RISE_STDERR, Axis, Surface, stored_stderr
from landscape.views.figure_spec import DEFAULT_SPEC, FigureSpec
from landscape.views.prepare import words
from landscape.views.prepare.comparison import ComparedLandscape, check_mode, contrasts, same_origin, same_samples
from landscape.views.prepare.figure import MAX_POINTS, AxisView, FigureData, scales_note, thinned
from landscape.views.prepare.paths import DrawnPath, OriginMark, prepare_paths
from landscape.views.prepare.scale import STATES, Scale, choose_scale, point_states
from landscape.views.prepare.uncertainty import shared_text, standard_error

# ----------------------------------------------------------------------------------------------------
# Two grids resampled to common points: the shared coordinates, and the values of both there.

States = NDArray[np.uint8]

ROUNDING = 1e-9  # of an axis: coordinates that differ by less are the same
RANKS = (OK, *STATES)  # of several reasons for a missing point the last one here counts, as it is the rarest


@dataclass(frozen=True, eq=False)
class GridValues:
    """Values on a grid, their standard errors or None, and per point OK or the reason why it has no value."""

    values: Floats
    error: Floats | None
    states: States


def coordinates_agree(one: Sequence[Floats], other: Sequence[Floats]) -> bool:
    """Whether two grids have the same points, up to rounding."""
    return all(
        len(a) == len(b) and np.allclose(a, b, rtol=0, atol=ROUNDING * _span(a, b))
        for a, b in zip(one, other, strict=True)
    )


def common_grid(
    one: Sequence[Floats], other: Sequence[Floats], axes: Sequence[str], labels: tuple[str, str]
) -> list[Floats]:
    """The coarser grid's coordinates along each axis, within the range that both grids cover.

    Args:
        axes, labels: the names of the axes and of the grids, for the error.

    Raises:
        JobError: along an axis the grids overlap in fewer than two points.

    >>> common_grid([np.array([-1.0, 0.0, 1.0])], [np.array([0.0, 0.5, 1.0, 1.5])], ["alpha"], ("a", "b"))
    [array([0., 1.])]
    """
    grid = []
    for a, b, name in zip(one, other, axes, strict=True):
        slack = ROUNDING * _span(a, b)
        low, high = max(a[0], b[0]) - slack, min(a[-1], b[-1]) + slack
        inside = [points[(points >= low) & (points <= high)] for points in (a, b)]
        usable = [points for points in inside if len(points) >= 2]
        if not usable:
            raise JobError(
                f"compare: {quoted(labels[1])} and {quoted(labels[0])} have no common range of {name}: "
                f"{_range(b)} and {_range(a)}; compute one of them over the range of the other, or tile them"
            )
        grid.append(min(usable, key=len))
    return grid


def _range(points: Floats) -> str:
    return f"[{points[0]:.4g}, {points[-1]:.4g}]"


def _span(one: Floats, other: Floats) -> float:
    return float(max(one[-1] - one[0], other[-1] - other[0]))


def resampled(given: GridValues, coordinates: Sequence[Floats], targets: Sequence[Floats]) -> GridValues:
    """The values at other points, by linear interpolation along each axis.

    A target that coincides with a grid point keeps its value. An interpolated point has a value only if all its
    neighbours have one. Its error is the same weighted mean of their errors, which is an upper bound.

    Args:
        given: arrays indexed by the axes in reverse, [beta, alpha] for two.
        coordinates, targets: per axis, alpha first, the grid's points and the wanted ones, all within the grid.

    >>> given = GridValues(np.array([0.0, 4.0, np.nan]), None, np.array([1, 1, 0], np.uint8))
    >>> resampled(given, [np.array([0.0, 1.0, 2.0])], [np.array([0.5, 1.0, 1.5])]).values
    array([ 2.,  4., nan])
    """
    values, error = np.where(given.states == OK, given.values, np.nan), given.error
    ranks = _ranks(given.states)
    for k, (points, wanted) in enumerate(zip(coordinates, targets, strict=True)):
        dimension = values.ndim - 1 - k
        left, share = _places(points, wanted)
        values = _mean(values, dimension, left, share)
        error = None if error is None else _mean(error, dimension, left, share)
        ranks = _worst(ranks, dimension, left, share)
    states = np.array(RANKS, np.uint8)[ranks]
    return GridValues(values, error, states)


def worse(one: States, other: States) -> States:
    """Per point the combined state: OK if both are, else the rarer reason."""
    return np.array(RANKS, np.uint8)[np.maximum(_ranks(one), _ranks(other))]


def _ranks(states: States) -> NDArray[np.intp]:
    """The places of the states in `RANKS`; an unknown code counts as not computed."""
    ranks = np.full(256, RANKS.index(NOT_COMPUTED), np.intp)
    ranks[list(RANKS)] = np.arange(len(RANKS))
    return ranks[states]


def _places(points: Floats, wanted: Floats) -> tuple[NDArray[np.intp], Floats]:
    """For each wanted point the index of its left neighbour, and its share of the way to the next one."""
    left = np.clip(np.searchsorted(points, wanted, side="right") - 1, 0, len(points) - 2)
    share = (wanted - points[left]) / (points[left + 1] - points[left])
    share = np.where(np.abs(share - np.round(share)) < 1e-6, np.round(share), share)
    return left, np.clip(share, 0.0, 1.0)


def _neighbours(
    array: NDArray[Any], dimension: int, left: NDArray[np.intp], share: Floats
) -> tuple[NDArray[Any], NDArray[Any], Floats]:
    shape = [1] * array.ndim
    shape[dimension] = len(share)
    return array.take(left, dimension), array.take(left + 1, dimension), share.reshape(shape)


def _mean(array: Floats, dimension: int, left: NDArray[np.intp], share: Floats) -> Floats:
    low, high, weight = _neighbours(array, dimension, left, share)
    with np.errstate(invalid="ignore"):
        between = (1 - weight) * low + weight * high
    return np.where(weight == 0, low, np.where(weight == 1, high, between))


def _worst(ranks: NDArray[np.intp], dimension: int, left: NDArray[np.intp], share: Floats) -> NDArray[np.intp]:
    low, high, weight = _neighbours(ranks, dimension, left, share)
    return np.where(weight == 0, low, np.where(weight == 1, high, np.maximum(low, high)))


# ----------------------------------------------------------------------------------------------------
# The standard error of the difference of two landscapes: paired by sample if possible, else of both combined.

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
    exact = _of_stored_losses(one, other, observable, grid) if observable in ("loss", RISE) else None
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
    """An upper bound of the paired standard error of the difference; None if there is none."""
    errors = [surface.observables.get(RISE_STDERR) for surface in (one, other)]
    if observable not in ("loss", RISE) or errors[0] is None or errors[1] is None:
        return None
    if not (same_samples(one, other) and (observable == RISE or same_origin(one, other))):
        return None
    given = zip((one, other), errors, strict=True)
    sides = [
        moved_to(GridValues(np.asarray(error, np.float64), None, surface.status), surface, grid).values
        for surface, error in given
    ]
    return sides[0] + sides[1]


def _of_stored_losses(one: Surface, other: Surface, observable: str, grid: Sequence[Floats]) -> Floats | None:
    """The exact paired error, if both landscapes keep the losses of their samples at these points; else None."""
    shape, losses = tuple(len(points) for points in reversed(grid)), one.loss_samples
    places = ([axis.coordinates for axis in surface.axes] for surface in (one, other))
    if losses is None or losses.shape[:-1] != shape or not all(coordinates_agree(own, grid) for own in places):
        return None
    return stored_stderr(one, other, rises=observable == RISE)


def moved_to(given: GridValues, surface: Surface, grid: Sequence[Floats]) -> GridValues:
    """The values at the points of `grid`; unchanged if these are the surface's own points."""
    coordinates = [axis.coordinates for axis in surface.axes]
    return given if coordinates_agree(coordinates, grid) else resampled(given, coordinates, grid)


# ----------------------------------------------------------------------------------------------------

MOST_DECADES = 300.0  # of a ratio on either side, within the range of a float


@dataclass(frozen=True, eq=False)
class DifferenceData:
    """The data of a figure of the difference of `labels[1]` from `labels[0]`.

    The values of `field` are differences, or ratios if its scale is logarithmic. Its error is their standard error, of
    the kind `error_kind`; "" if it is not known. `within` are the points at which the two differ by at most two
    standard errors. `paths` are the trajectories of both, if any.
    """

    field: FigureData
    labels: tuple[str, str]
    error_kind: str
    within: NDArray[np.bool_]
    paths: tuple[tuple[DrawnPath, ...], tuple[DrawnPath, ...]]
    is_resampled: bool


def prepare_difference(
    first: ComparedLandscape, other: ComparedLandscape, spec: FigureSpec = DEFAULT_SPEC, limit: float | None = None
) -> DifferenceData:
    """The difference of `other` from `first`, at their common points or, if the grids differ, at the coarser grid's.

    The standard error is paired if both landscapes have the same samples: exactly, from the losses of the samples, if
    both keep them; else by a bound, if the errors of their rises are known, and the difference is that of the rises, or
    they have the same origin, rounded alike: then d = R_B − R_A, and se(d) <= se(R_A) + se(R_B), whatever their
    covariance. Otherwise it is √(se_A² + se_B²), which is right for independent samples.

    Args:
        spec: its observable, the number of contour lines, and `log`: the ratio in place of the difference.
        limit: the end of the scale on either side: a difference, or a ratio above 1; default: by the values.

    Raises:
        JobError: the landscapes have different numbers of axes, no such observable, or no common range.
    """
    observable, log = spec.observable, bool(spec.log)
    check_mode("difference", (first, other), observable)
    one, two = (thinned(item.surface, spec.max_points or MAX_POINTS[len(item.surface.axes)]) for item in (first, other))
    grid, agree = _grid(one, two, (first.label, other.label))
    sides = tuple(_on_grid(surface, observable, log, grid) for surface in (one, two))
    states = worse(sides[0].states, sides[1].states)
    values = np.where(states == OK, _difference(sides[0], sides[1], log), np.nan)
    error, kind = error_of(one, two, observable, (sides[0], sides[1]), log, grid)
    field = replace(_field(first, other, observable, one, grid, log), fill=spec.proportions == "fill")
    drawn = _log_ratio(sides[0], sides[1]) if log else values
    limit = _limit_without_difference(drawn, error, log) if limit is None else limit
    between = _interpolated((one, two), grid)
    field = replace(field, values=values, drawn=drawn, error=error, states=states, interpolated=between)
    field = replace(field, scale=symmetric_scale(drawn, log, spec.levels, limit), origin=_known_origin(field))
    paths = (prepare_paths(one, observable, log), prepare_paths(two, observable, log))
    within = _within(values, error, log) & (states == OK)
    data = DifferenceData(field, (first.label, other.label), kind, within, paths, not agree)
    return replace(data, field=replace(field, caption=tuple(_caption(data, (first, other), observable))))


def _grid(one: Surface, other: Surface, labels: tuple[str, str]) -> tuple[list[Floats], bool]:
    """The coordinates of the difference along each axis, and whether both landscapes have them."""
    first, second = ([axis.coordinates for axis in surface.axes] for surface in (one, other))
    if coordinates_agree(first, second):
        return first, True
    return common_grid(first, second, [axis.name for axis in one.axes], labels), False


def _field(
    first: ComparedLandscape, other: ComparedLandscape, observable: str, one: Surface, grid: list[Floats], log: bool
) -> FigureData:
    """The words and the axes of the difference, without values yet."""
    name, relation = words.observable_title(observable), "over" if log else "less"
    axes = zip(one.axes, grid, strict=True)
    inside = all(points[0] <= 0 <= points[-1] for points in grid)
    empty = np.full(tuple(len(points) for points in reversed(grid)), np.nan)
    return FigureData(
        name=f"{other.label} {relation} {first.label}",
        observable=f"{name} ratio" if log else f"Δ {name}",
        title=f"{words.capitalised(name)} of {other.label} {relation} {first.label}",
        caption=(),
        axes=tuple(_axis(axis, points) for axis, points in axes),
        values=empty,
        drawn=empty,
        error=None,
        states=np.zeros(empty.shape, np.uint8),
        scale=choose_scale(empty, log),
        paths=(),
        origin=OriginMark(_at_origin(first, other, observable, log), "<b>origin</b> of both") if inside else None,
    )


def _known_origin(field: FigureData) -> OriginMark | None:
    """The origin at the height of a curve, if the losses at the origin were not evaluated."""
    if field.origin is None or math.isfinite(field.origin.height) or len(field.axes) > 1:
        return field.origin
    return replace(field.origin, height=float(np.interp(0.0, field.axes[0].coordinates, field.drawn)))


def _at_origin(first: ComparedLandscape, other: ComparedLandscape, observable: str, log: bool) -> float:
    """The drawn difference of the losses at the origin; NaN if one is unknown, and for other observables."""
    a, b = first.surface.origin_loss, other.surface.origin_loss
    if observable == RISE and not log:
        return 0.0
    if observable != "loss" or (log and not min(a, b) > 0):
        return math.nan
    return math.log10(b / a) if log else b - a


def _axis(axis: Axis, points: Floats) -> AxisView:
    return AxisView(axis.name, words.short_axis_title(axis), points, words.axis_title(axis))


def _on_grid(surface: Surface, observable: str, log: bool, grid: Sequence[Floats]) -> GridValues:
    values = np.asarray(surface[observable], np.float64)
    given = GridValues(values, standard_error(surface, observable), point_states(values, surface.status, log))
    return moved_to(given, surface, grid)


def _interpolated(pair: tuple[Surface, Surface], grid: Sequence[Floats]) -> NDArray[np.uint8] | None:
    """The larger `Surface.interpolated` of both at each point; None if all values of both were evaluated."""
    found = np.zeros(tuple(len(points) for points in reversed(grid)))
    for surface in pair:
        if surface.interpolated is not None:
            levels = GridValues(surface.interpolated.astype(np.float64), None, np.full_like(surface.status, OK))
            found = np.maximum(found, np.ceil(moved_to(levels, surface, grid).values))
    return found.astype(np.uint8) if found.any() else None


def _difference(one: GridValues, other: GridValues, log: bool) -> Floats:
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        return other.values / one.values if log else other.values - one.values


def _log_ratio(one: GridValues, other: GridValues) -> Floats:
    """log10 of the ratio, even if the ratio itself overflows a float; NaN if a side is missing."""
    known = (one.states == OK) & (other.states == OK)
    return np.log10(np.where(known, other.values, np.nan)) - np.log10(np.where(known, one.values, np.nan))


def _within(values: Floats, error: Floats | None, log: bool) -> NDArray[np.bool_]:
    if error is None:
        return np.zeros(values.shape, bool)
    with np.errstate(invalid="ignore"):
        return np.asarray(np.abs(values - 1.0 if log else values) <= 2 * error)


def _limit_without_difference(drawn: Floats, error: Floats | None, log: bool) -> float | None:
    """The end of the scale if nothing differs: two standard errors, else 1; None if something does."""
    if (drawn[np.isfinite(drawn)] != 0).any():
        return None
    known = np.empty(0) if error is None else error[np.isfinite(error) & (error > 0)]
    return (2 * float(np.median(known)) if known.size else 1.0) + (1.0 if log else 0.0)


def symmetric_scale(drawn: Floats, log: bool, levels: int | None = None, limit: float | None = None) -> Scale:
    """A scale that is symmetric around no difference, with the same contour lines on either side.

    Args:
        drawn: differences, or with `log` log10 of ratios.
        levels: the number of contour lines; default about 12.
        limit: the end of the scale on either side: a difference, or a ratio above 1; default: by the values.

    Raises:
        JobError: levels or limit is impossible.
    """
    if limit is not None and not (math.isfinite(limit) and limit > (1 if log else 0)):
        rule = "a ratio above 1" if log else "a difference above 0"
        raise JobError(f"limit: must be {rule}, not {quoted(limit)}")
    end = None if limit is None else math.log10(limit) if log else limit
    # Absolute values begin at 0, so the rules of a linear scale choose the end; it may leave out a few far ones.
    high = min(choose_scale(np.abs(drawn), False, 0.0, end).high, MOST_DECADES if log else math.inf)
    reach = high * (1 + ROUNDING)  # otherwise the farthest point may count as beyond the end
    low, top = (10.0**-reach, 10.0**reach) if log else (-reach, reach)
    return replace(choose_scale(drawn, log, low, top, levels), low=-high, high=high)


def _caption(data: DifferenceData, pair: tuple[ComparedLandscape, ComparedLandscape], observable: str) -> list[str]:
    """The caption of the difference: sentences without full stops."""
    field, (first, other) = data.field, data.labels
    relation = "over" if field.scale.log else "less"
    name = words.observable_title(observable)
    size = " × ".join(str(len(axis.coordinates)) for axis in field.axes) + " points" + shared_text(field.interpolated)
    facts = [f"{name} of {other} {relation} that of {first}", size, *_resampling_note(data), *_error_notes(data)]
    facts += [*contrasts(pair), *field.scale.notes]
    facts += [axis.meaning for axis in field.axes if axis.meaning != axis.title]
    facts += scales_note(field.axes, field.fill)
    states = [(item.label, words.state_text(item.surface)) for item in pair]
    unfinished = [f"{label}: {state}" for label, state in states if state != "complete"]
    origins = [(item.label, words.origin_text(item.surface)) for item in pair if observable == RISE]
    at_origins = [f"loss at the origin of {label}: {text}" for label, text in origins if text]
    return [*map(words.capitalised, [*facts, *at_origins]), *unfinished]


def _resampling_note(data: DifferenceData) -> list[str]:
    if not data.is_resampled:
        return []
    ranges = ", ".join(
        f"{axis.name} {number_text(float(axis.coordinates[0]), 3)} to {number_text(float(axis.coordinates[-1]), 3)}"
        for axis in data.field.axes
    )
    return [f"the grids differ: resampled linearly onto the coarser one within the common range, {ranges}"]


def _error_notes(data: DifferenceData) -> list[str]:
    field, drawn = data.field, data.field.drawn[np.isfinite(data.field.drawn)]
    if drawn.size and not drawn.any():
        return ["the values are equal at every point"]
    if field.error is None:
        return ["standard error not known"]
    there = (field.states == OK) & (True if field.interpolated is None else field.interpolated == 0)
    known = field.error[np.isfinite(field.error) & there]
    if not known.size:
        return ["standard error not known"]
    how = IN_WORDS[data.error_kind]
    middle = number_text(float(np.median(known)), 2)
    count, total = int((data.within & there).sum()), int(there.sum())
    return [
        f"standard error {how}, median {middle}",
        f"within two standard errors of no difference at {count_text(count)} of {count_text(total)} points",
    ]
