"""How far the axes of a landscape run: to where the loss has changed visibly, found by bisection.

Along each axis, the change at a distance r is the larger of abs(L(r) − L₀) and abs(L(−r) − L₀). The first distance is
doubled or halved until two neighbours bracket a target; then the bracket is bisected. All distances are numbers of two
digits. The axis ends at the smallest distance that reaches the target: along a parabola of curvature κ, for a target
τ, that is √(2τ/κ), rounded up.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Generator, Sequence
from dataclasses import replace
from typing import TypeAlias

import numpy as np

from landscape.compute.executor import AtPoints, Executor, Executors, setting_of
from landscape.compute.landscape_context import LandscapeContext
from landscape.compute.prepared import PreparedJob, PreparedLandscape
from landscape.core.errors import JobError
from landscape.core.grid import AXIS_NAMES, Floats, Grid, as_written
from landscape.core.plan import Plan
from landscape.core.progress import stage
from landscape.job.directions.base import DirectionTensors, Range
from landscape.job.landscape import Landscape
from landscape.model.parameters import norm
from landscape.problem.supervised import guessing_of
from landscape.store.landscape import LandscapeStore
from landscape.surface.record import Record
from landscape.surface.record_entries import AxisEnd, FoundAxis, FoundRange, TargetRule

log = logging.getLogger("landscape")


# ----------------------------------------------------------------------------------------------------
# The range of axes that a job leaves to the loss: taken from the record, or searched for.

# In lengths of the weights: a landscape farther out shows noise, not this network.
FARTHEST = 4.0


# Finds how far axes run, given a job with one landscape, whose grid is preliminary, and the start and end of the search
# along each axis. It raises as `find_range` does, and returns None in a dry run.
RangeFinder: TypeAlias = Callable[[PreparedJob, Sequence[float], Sequence[float]], FoundRange | None]


def leave_range_open(prepared: PreparedJob, starts: Sequence[float], farthest: Sequence[float]) -> None:
    """Find nothing, for a dry run: the range is then where the search would begin."""


def recorded_range(stored: LandscapeStore | None) -> FoundRange | None:
    """The range that was found when a landscape was begun; None if none was."""
    return None if stored is None else stored.record.found_range


def with_found_range(spec: Landscape, stored: LandscapeStore | None) -> Landscape:
    """The landscape with the range that was found when it was begun, in numbers; unchanged if none was found."""
    found = recorded_range(stored)
    if found is None or not spec.finds_range or len(found.axes) != len(spec.directions):
        return spec
    return _with_ends(spec, [axis.radius for axis in found.axes])


def with_range(
    finder: RangeFinder,
    prepared: PreparedJob,
    context: LandscapeContext,
    directions: tuple[DirectionTensors, ...],
    plan: Plan,
    stored: LandscapeStore | None,
) -> tuple[LandscapeContext, FoundRange | None]:
    """The landscape with its range in numbers, and how it was found; None if it is given, or not found yet.

    Args:
        prepared: the job, without its landscapes.
        stored: the landscape on disk; `context` has its range already.

    Raises:
        JobError: as `find_range` does.
    """
    if not context.spec.finds_range:
        return context, recorded_range(stored)
    lengths = [_length(context, axis) for axis in directions]
    hints = [axis.range_at(context) for axis in context.axes]
    starts = [length if hint is None else _reach(hint) for hint, length in zip(hints, lengths, strict=True)]
    farthest = [max(start, FARTHEST * length) for start, length in zip(starts, lengths, strict=True)]
    grid = Grid(
        AXIS_NAMES[: len(starts)], tuple(np.array([-start, 0.0, start]) for start in starts)
    )  # around which a point can be timed
    landscape = PreparedLandscape(
        context.spec.name, context.origin, directions, grid, None, plan, {}, Record(), ("loss",),
        lambda number: context.origin,
    )  # fmt: skip
    found = finder(replace(prepared, landscapes=(landscape,)), starts, farthest)
    radii = starts if found is None else [axis.radius for axis in found.axes]
    return replace(context, spec=_with_ends(context.spec, radii)), found


def _with_ends(spec: Landscape, radii: Sequence[float]) -> Landscape:
    return spec.model_copy(update={"range": tuple((-radius, radius) for radius in radii)})


def _reach(ends: Range) -> float:
    return max(abs(end) for end in ends)


def _length(context: LandscapeContext, axis: DirectionTensors) -> float:
    """The coordinate at which an axis moves its weights by their own length; 1 if either is zero."""
    whole = norm({name: context.origin[name] for name in axis.tensors})
    step = norm(axis.tensors)
    return whole / step if whole and step else 1.0


# A third of the way to a network that only guesses: a picture then shows the basin, not the plain around it.
SHARE_OF_GUESSING = 1 / 3
LEAST_RISE = 0.1  # that is looked for where the loss of guessing is not known
EVALUATIONS = 16  # of an axis, about: two per distance, for three distances of the bracket and five within it
MOST_HALVINGS = 40
FLAT = 1e-6  # relative to the loss: smaller changes are rounding of float32
IN_NUMBERS = "range: must be given in numbers, not auto"

Search = Generator[float, float, FoundAxis]


def distance_of(number: int) -> float:
    """The distance of two digits with this number: 1.0 has 0, and there are 90 from one power of ten to the next.

    >>> [distance_of(number) for number in (-1, 0, 1, 89, 90)]
    [0.99, 1.0, 1.1, 9.9, 10.0]
    """
    power, digits = divmod(number, 90)
    return float(f"{digits + 10}e{power - 1}")


def number_of(distance: float) -> int:
    """The number of the largest two-digit distance that is not above this one.

    >>> [number_of(distance) for distance in (0.999, 1.0, 1.05, 1.1, 10.0)]
    [-1, 0, 0, 1, 90]
    """
    digits, _, power = f"{distance:.17e}".partition("e")
    return 90 * int(power) + int(float(digits) * 10 + 1e-9) - 10


def search(start: float, farthest: float, target: float) -> Search:
    """Find how far one axis runs: yields distances, and is sent the change of the loss at each.

    Raises:
        JobError: even next to the origin the change exceeds the target, or is not finite.
    """
    changes = dict[int, float]()

    def change(number: int) -> Generator[float, float, bool]:
        if number not in changes:
            changes[number] = yield distance_of(number)
        return not changes[number] < target

    last = number_of(farthest)
    low = high = min(number_of(start), last)
    if (yield from change(high)):
        for _ in range(MOST_HALVINGS):
            low = number_of(distance_of(high) / 2)
            if not (yield from change(low)):
                break
            high = low
        else:
            raise JobError(f"changes by {changes[high]:.3g} as close as {as_written(distance_of(high))} to the origin")
    else:
        while not (yield from change(high)):
            if high == last:
                return FoundAxis(radius=distance_of(high), change=changes[high], end="farthest")
            low, high = high, min(number_of(2 * distance_of(high)), last)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if (yield from change(middle)) else (middle, high)
    end: AxisEnd = "target" if math.isfinite(changes[high]) else "finite"
    at = high if end == "target" else low
    return FoundAxis(radius=distance_of(at), change=changes[at], end=end)


def find_range(
    executor: Executor, prepared: PreparedJob, starts: Sequence[float], farthest: Sequence[float]
) -> FoundRange:
    """The range of the axes of the job's one landscape; all axes are searched together.

    Args:
        starts: per axis, where the search begins.
        farthest: per axis, where the search ends.

    Raises:
        JobError: the loss is flat along an axis, or not finite at the origin or close to it.
    """
    (landscape,) = prepared.landscapes
    setting, names = setting_of(landscape), landscape.grid.names

    def losses(points: Floats) -> list[float]:
        answers = executor.ask(setting, [AtPoints(point[None]) for point in points])
        return [float(values.mean["loss"][0]) for values in answers]

    (origin_loss,) = losses(np.zeros((1, len(names))))
    if not math.isfinite(origin_loss):
        raise JobError(f"{IN_NUMBERS}, as the loss at the origin is {origin_loss}")
    target, rule = target_of(origin_loss, guessing_of(prepared.problem.observe, prepared.samples))
    searches = dict(enumerate(search(start, end, target) for start, end in zip(starts, farthest, strict=True)))
    asked, found, evaluations = {axis: next(search) for axis, search in searches.items()}, dict[int, FoundAxis](), 1
    while asked:
        points = np.array([
            sign * distance * np.eye(len(names))[axis] for axis, distance in asked.items() for sign in (1.0, -1.0)
        ])  # fmt: skip
        changes = np.abs(np.array(losses(points)) - origin_loss).reshape(-1, 2)
        evaluations += len(points)
        for axis, (one, other) in zip(list(asked), changes.tolist(), strict=True):
            # NaN counts as reaching the target, so a maximum must not drop it.
            larger = max(one, other) if math.isfinite(one) and math.isfinite(other) else math.inf
            try:
                asked[axis] = searches[axis].send(larger)
            except StopIteration as ended:
                del asked[axis]
                found[axis] = ended.value
            except JobError as error:
                raise JobError(f"{IN_NUMBERS}, as the loss along {names[axis]} {error}") from None
    axes = tuple(found[axis] for axis in range(len(names)))
    for name, how_far in zip(names, axes, strict=True):
        _refuse_flat(landscape.name, name, how_far, target, origin_loss)
    ends = ", ".join(f"{name} ±{as_written(axis.radius)}" for name, axis in zip(names, axes, strict=True))
    stage(f"range of landscape {landscape.name}: {ends}, found by {evaluations} evaluations")
    return FoundRange(target=target, rule=rule, axes=axes, evaluations=evaluations)


def target_of(origin_loss: float, guessing: float | None) -> tuple[float, TargetRule]:
    """The target change of the loss, and the rule that gives it.

    With classes, a third of the loss of guessing; otherwise max(L₀, 0.1), as for the radius of `landscape measure`.
    """
    if guessing:
        return SHARE_OF_GUESSING * guessing, "guessing"
    return (origin_loss, "origin") if origin_loss > LEAST_RISE else (LEAST_RISE, "least")


def _refuse_flat(landscape: str, name: str, axis: FoundAxis, target: float, origin_loss: float) -> None:
    """Refuse a loss that is flat along an axis, and log where it does not reach the target.

    Raises:
        JobError: it is flat.
    """
    if axis.end == "target":
        return
    radius = as_written(axis.radius)
    if axis.end == "finite":
        log.warning(
            "range of landscape %r: the loss along %s is not finite beyond %s, and has changed by %.3g there, not by "
            "%.3g", landscape, name, radius, axis.change, target,
        )  # fmt: skip
        return
    if axis.change <= FLAT * abs(origin_loss):
        raise JobError(f"{IN_NUMBERS}, as the loss is flat along {name}: at ±{radius} it is what it is at 0")
    log.warning(
        "range of landscape %r: the loss along %s has changed by %.3g at %s, not by %.3g, and nothing farther is "
        "tried; give the range in numbers for another", landscape, name, axis.change, radius, target,
    )  # fmt: skip


def finder_of(executors: Executors) -> RangeFinder:
    """The finder that asks an executor."""

    def find(prepared: PreparedJob, starts: Sequence[float], farthest: Sequence[float]) -> FoundRange:
        (landscape,) = prepared.landscapes
        stage(f"finding the range of landscape {landscape.name}")
        with executors(prepared, landscape, EVALUATIONS * len(starts)) as executor:
            return find_range(executor, prepared, starts, farthest)

    return find
