"""The fifteen checks in their order: what each asks of a scene, and the rule that judges the numbers."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from landscape import __version__
from landscape.analysis.checks import geometry, reproducibility, statistics, values
from landscape.analysis.checks import geometry as curvature
from landscape.analysis.checks import geometry as lines
from landscape.analysis.checks import values as centre
from landscape.analysis.checks import values as resolution
from landscape.analysis.checks.check import CheckContext
from landscape.analysis.checks.evaluations import Asker
from landscape.analysis.checks.evidence import Evidence, at_centre, held_by, highest_share, resolution_of, ways_between
from landscape.analysis.checks.values import NotJudged, check
from landscape.compute.executor import Executors, here
from landscape.compute.prepare import prepare
from landscape.compute.recorded import Callback, recorded_job
from landscape.core.errors import ClusterUnreachableError, Interrupted, JobError, LandscapeError, message_of
from landscape.core.grid import Floats, Index
from landscape.job.directions.random import RandomDirection
from landscape.job.recorded import with_defaults_of
from landscape.model.layer_rules import inspect_command
from landscape.store.results import keep_with_landscape, open_run
from landscape.surface.record_entries import Check, Checks
from landscape.surface.surface import NOT_COMPUTED, NOT_FINITE, ProjectedPath, Surface

SEEDS = range(1001, 1001 + lines.LINES)  # the same for all networks, so that lines of two are paired
POINTS_OF_LINE = (-1.0, -0.75, -0.5, -0.25, 0.25, 0.5, 0.75, 1.0)  # of the range; the origin is known
DOUBLE = 2  # points computed again so, unless all are; convolutions in float64 take twenty times as long on a CPU
HALF = (2, 5)  # the places of both sides at half the range


def _centre(context: CheckContext) -> Check:
    recorded, plan = context.origin_loss, context.plainly.landscape.plan
    return centre.centre(
        centre.Centre(
            recorded=recorded,
            own=context.asked.own_loss(),
            samples=context.asked.prepared.samples.length,
            plain=str(plan.engine) == "eager",
            low_precision=context.low_precision,
            batch_norm=plan.batch_norm,
            stderr=context.evidence.origin_stderr,
            rounding=context.evidence.record.rounding_in_words,
            accepted=context.evidence.record.accepted_in_words,
        )
    )


def _expectation(context: CheckContext) -> Check:
    evidence = context.evidence
    given = context.asker.prepared.problem.expected.get("loss") if context.asker is not None else None
    logged = None if given is not None else evidence.logged
    expected, error = (given, 0.0) if logged is None else (logged.loss, logged.stderr)
    source = "the problem expects" if logged is None else logged.words
    went_on = f"the centre's training went on to {evidence.origin_went_on_to}" if evidence.origin_went_on_to else ""
    ended = (logged.ended if logged is not None else "") or went_on
    found = centre.Expectation(
        context.origin_loss, evidence.origin_stderr, expected, error, source, context.chance, evidence.origin_is_start,
        evidence.record.rounding_in_words, "; ".join(filter(None, (evidence.log_not_finite, ended))),
        bool(evidence.log_not_finite),
    )  # fmt: skip
    return centre.expectation(found)


def _spot(context: CheckContext) -> Check:
    evidence, asker = context.evidence, context.plainly
    _refuse_no_values(context)
    precision, points = asker.own.plan.precision, [evidence.point(each) for each in context.spots]
    double = len(points) if precision == "float64" else 0 if context.low_precision else DOUBLE
    computed, kind = asker.plain_losses(points, double)
    axes = "stored axes" if asker.stored is not None else "axes drawn from their seeds"
    return reproducibility.spot(
        reproducibility.Spot(
            stored=np.array([evidence.values[each] for each in context.spots]),
            computed=computed,
            places=[evidence.place(each) for each in context.spots],
            relief=evidence.relief,
            noise=evidence.noise,
            low_precision=context.low_precision,
            how=f"weights rebuilt from the {axes}{' and rounded' if context.quantise else ''}, plain {kind}",
        )
    )


def _repetition(context: CheckContext) -> Check:
    _refuse_no_values(context)
    losses, processes = context.asked.repeated(context.evidence.point(context.spots[0]))
    return reproducibility.repetition(reproducibility.Repetition(losses, processes, context.evidence.relief))


def _sampling(context: CheckContext) -> Check:
    evidence = context.evidence
    command = inspect_command(evidence.run, evidence.surface.name, len(evidence.surface.axes))
    command = "" if evidence.record.is_imported else command
    _refuse_few_points(context)
    most = None if context.asker is None else context.asker.samples_of_problem
    found = values.Sampling(evidence.relief, evidence.noise, evidence.record.num_samples or 0, command, most)
    return values.sampling(found)


def _refuse_few_points(context: CheckContext) -> None:
    """Leave open what the values of a few points say of the whole grid.

    Raises:
        NotJudged: less than half of the points are computed.
    """
    status = context.evidence.surface.status
    done = int((status != NOT_COMPUTED).sum())
    if 0 < done < status.size / 2:
        raise NotJudged(f"{done} of {status.size:,} points are computed; it is judged from half of them on")


def _refuse_no_values(context: CheckContext) -> None:
    """Leave open what needs a value.

    Raises:
        NotJudged: no cell has one that is finite.
    """
    if not np.isfinite(context.evidence.values).any():
        started = (context.evidence.surface.status != NOT_COMPUTED).any()
        raise NotJudged("no cell that is computed has a finite loss" if started else "no cell has a value yet")


def _resolution(context: CheckContext) -> Check:
    _refuse_few_points(context)
    found = resolution_of(context.evidence)
    if found is None:
        raise NotJudged("the grid is flat, or has fewer than 5 points along an axis")
    return resolution.resolution(replace(found, held=_cut_off(context)))


def _other_seeds(context: CheckContext) -> Check:
    asker, axes = context.asked, context.evidence.surface.axes
    job = asker.prepared.job.landscapes[0]
    specs = with_defaults_of(job, asker.landscape.record.defaults or 1).directions
    drawn = {axis.name: spec for axis, spec in zip(axes, specs, strict=True) if isinstance(spec, RandomDirection)}
    if not drawn:
        raise NotJudged("no axis is a random direction")
    if context.evidence.relief == 0:
        raise NotJudged("the relief is 0: the check of sampling says what to do")
    reach = min(float(np.abs(axis.coordinates).max()) for axis in axes if axis.name in drawn)
    spec = next(iter(drawn.values()))
    places = reach * np.array(POINTS_OF_LINE)
    losses, errors = asker.line_losses(spec, SEEDS, places.tolist())
    rises = losses[:, HALF].mean(axis=1) - context.origin_loss
    names = [axis.name for axis in axes]
    # Axes of another kind or scale are no draws of the same.
    alike = [name for name, each in drawn.items() if each.model_copy(update={"seed": spec.seed}) == spec]
    points = [[sign * reach / 2 if each == name else 0.0 for each in names] for name in alike for sign in (-1, 1)]
    own = asker.losses(asker.own, points).reshape(len(alike), 2).mean(axis=1) - context.origin_loss
    noise = float(np.median(errors[:, HALF]))
    along = dict(zip(alike, own.tolist(), strict=True))
    return lines.other_lines(lines.OtherLines(rises, along, reach / 2, noise, places, losses))


def _curvature(context: CheckContext) -> Check:
    return curvature.curvature(*context.along_axes, *context.differentiable.samples_of_few)


def _centre_cell(context: CheckContext) -> Check:
    if context.unlike_differences:
        raise NotJudged(context.unlike_differences)
    found = [at_centre(context.evidence, *each) for each in context.axis_curvatures.items()]
    known = [each for each in found if each is not None and each.curvature > 0]
    if not known:
        raise NotJudged("the grid has no point at the origin with neighbours, or the loss is not convex there")
    known = [each for each in known if each.stands_out(context.origin_loss, context.low_precision)]
    if not known:
        raise NotJudged("the cells beside the centre rise by less than the rounding of their losses")
    return curvature.of_grid(known, held_by(context.evidence.surface).name)


def _hidden(context: CheckContext) -> Check:
    if not context.deep and context.quantise is None:
        raise NotJudged("the steepest direction is not looked for; --deep does, at about 60 Hessian products")
    norms = {axis.name: axis.record.norm or math.nan for axis in context.evidence.surface.axes}
    axes = [value / norms[name] ** 2 for name, value in context.axis_curvatures.items()]
    largest, smallest, bound, products = context.differentiable.spectrum_ends()
    return curvature.hidden(curvature.Hidden(largest, smallest, bound, axes, products))


def _batch_norm(context: CheckContext) -> Check:
    asker, evidence = context.asked, context.evidence
    if not evidence.record.provenance.batch_norm_layers:
        raise NotJudged("the model has no batch norm layers")
    path = list(context.renewed_on_paths.values())
    at_origin = asker.by_statistics([[0.0] * len(evidence.surface.axes)])
    between, other = _between(context), np.array([float(at_origin.second[0]), *context.renewed_corners])
    shown = np.array([context.origin_loss, *(evidence.values[each] for each in context.corners)])
    trained, renewed = (shown, other) if asker.own.plan.batch_norm == "eval" else (other, shown)
    pairs = list(zip(trained.tolist(), renewed.tolist(), strict=True))
    places = [evidence.place(each) for each in context.corners]
    corners = dict(zip(places, pairs[1:], strict=True))
    error = float(at_origin.stderr[0])
    return statistics.stale(statistics.Stale(pairs[0], corners, error, asker.own.plan.batch_norm, path, between))


def _between(context: CheckContext) -> list[statistics.Between]:
    """How high the loss is between the networks that axes run through: half-way, of a line at its highest point.

    There the running statistics are mixed from those of both ends, and belong to no network.
    """
    surface = context.evidence.surface
    ways = ways_between(surface) if context.uses_centres_statistics else []
    if not ways:
        return []
    ends = context.asked.by_statistics([point.tolist() for way in ways for point in (way.start, way.end)])
    pairs = [(float(ends.first[2 * k]), float(ends.first[2 * k + 1])) for k in range(len(ways))]
    highest = [highest_share(surface, way, losses) for way, losses in zip(ways, pairs, strict=True)]
    shares = [0.5 if share is None else share for share in highest]
    points = [way.at(share) for way, share in zip(ways, shares, strict=True)]
    there = context.asked.by_statistics([point.tolist() for point in points])
    found = []
    for k, (way, share) in enumerate(zip(ways, shares, strict=True)):
        above = [
            float(at[k] - (1 - share) * of_ends[2 * k] - share * of_ends[2 * k + 1])
            for at, of_ends in ((there.first, ends.first), (there.second, ends.second))
        ]
        place = (
            f"at alpha {points[k][0]:.3g}, between {way.name},"
            if len(surface.axes) == 1
            else f"half-way between {way.name}"
        )
        found.append(
            statistics.Between(way.name, place, above[0], above[1], float(there.stderr[k]), context.evidence.relief)
        )
    return found


def _path(context: CheckContext) -> Check:
    evidence = context.evidence
    gram = evidence.gram
    if not evidence.surface.paths:
        raise NotJudged("no path is drawn")
    if gram is None:
        raise NotJudged("the norms of the axes or their cosines are not recorded")
    try:
        renewed = context.renewed_on_paths
    except (NotJudged, JobError):  # check 10 says why
        renewed = {}
    found = {}
    for k, path in enumerate(evidence.surface.paths):
        of_path = {at: place.renewed for (of, at), place in renewed.items() if of == k}
        shape = _shape(evidence.surface, path, gram)
        found[path.label] = geometry.OnPlane(evidence.surface.along(path), *shape, len(evidence.surface.axes), of_path)
    return geometry.paths(found)


def _shape(surface: Surface, path: ProjectedPath, gram: Floats) -> tuple[Floats, float, float]:
    """How far a path lies off the plane, and the shares of its variance that the axes explain, and would of a walk.

    Of one of several the variance that counts is its own, about its own mean.
    """
    away = _away(path, gram, [axis.name for axis in surface.axes])
    off = path.distance[away > 0] / away.max(initial=0.0)
    if path.label:
        return off, _total([path.runs[0].shown]), _total([path.runs[0].shown_of_walk])
    axes = [axis.record for axis in surface.axes]
    explained = _total([share.explained_variance for share in axes])
    return off, explained, _total([share.random_walk_variance for share in axes])


def _away(path: ProjectedPath, gram: Floats, names: list[str]) -> Floats:
    """‖θᵢ − θ₀‖ of the snapshots: the projection is orthogonal."""
    places = np.stack([path.coordinates[name] for name in names], axis=1)
    inside = np.einsum("sa,ab,sb->s", places, gram, places)
    return np.asarray(np.sqrt(np.maximum(inside, 0.0) + path.distance**2), np.float64)


def _total(shares: list[float | None]) -> float:
    return math.nan if None in shares else float(sum(share or 0.0 for share in shares))


def _range(context: CheckContext) -> Check:
    evidence, chance = context.evidence, context.chance
    _refuse_no_values(context)
    _refuse_few_points(context)
    finite = np.isfinite(evidence.values)
    found = values.Range(evidence.relief, evidence.noise, None, math.nan)
    if chance is not None and not context.origin_loss < chance:
        found = replace(found, why="the centre itself loses as much as guessing")
    elif chance is not None:
        alive = finite & (evidence.values < chance)
        dead = 1 - float(alive.sum() / finite.sum())
        held = held_by(evidence.surface)
        found = replace(
            found, dead=dead, chance=chance, within=_alive_within(context, alive, finite), held=held.name,
            reach=held.reach, renewed=_renewed_spots(context, chance) if dead > values.DEAD else 0.0,
            typical=float(np.median(evidence.values[finite])),
        )  # fmt: skip
    return values.range_of_axes(found)


def _renewed_spots(context: CheckContext, chance: float) -> float:
    """Of the corners and some cells that lose as much as guessing the share that does not with statistics taken anew.

    The corners alone would not do: furthest from the origin, they may lose so much with any statistics.
    """
    if not context.uses_centres_statistics:
        return 0.0
    dead = [each for each in context.spots if context.evidence.values[each] >= chance]
    others = [context.evidence.point(each) for each in dead if each not in set(context.corners)]
    try:
        anew = dict(zip(context.corners, context.renewed_corners, strict=True))
        known = [anew[each] for each in dead if each in anew]
        if others:
            known += context.asked.losses(context.asked.other_statistics, others).tolist()
        return float((np.array(known) < chance).mean()) if known else 0.0
    except JobError:  # check 10 says why
        return 0.0


def _alive_within(context: CheckContext, alive: np.ndarray, finite: np.ndarray) -> float:
    """The largest distance, along an axis, within which most cells lose less than guessing."""
    grids = np.meshgrid(*(np.abs(axis.coordinates) for axis in reversed(context.evidence.surface.axes)), indexing="ij")
    distance = np.max(grids, axis=0)
    radii = [radius for radius in np.unique(distance[finite]) if alive[(distance <= radius) & finite].mean() > 0.5]
    return float(max(radii, default=0.0))


def _lowest(context: CheckContext) -> Check:
    evidence = context.evidence
    _refuse_no_values(context)
    index = tuple(map(int, np.unravel_index(np.nanargmin(evidence.values), evidence.values.shape)))
    noise = math.nan if evidence.rise_errors is None else float(evidence.rise_errors[index])
    fall = context.origin_loss - float(evidence.values[index])
    found = values.Lowest(fall, noise, evidence.place(index), context.origin_loss, evidence.origin_stderr)
    if noise > 0 and fall > values.CLEARLY * noise:
        logged, stretches = evidence.logged, evidence.last_stretches
        slope, curvature = (math.nan, math.nan) if logged is not None else _towards(context, evidence.point(index))
        found = replace(
            found, log=evidence.log_in_words, stretches=tuple(stretches), slope=slope, curvature=curvature
        )  # fmt: skip
        if logged is not None:
            unit, number = evidence.until
            where = f"at {unit} {number}" if evidence.origin_went_on_to else "at its end"
            found = replace(found, ended=(logged.loss, logged.stderr), ended_in_words=logged.words, where=where)
        found = replace(found, rounding=evidence.record.rounding_in_words, renewed=_renewed_lowest(context, index))
    return values.lowest(found)


def _renewed_lowest(context: CheckContext, index: Index) -> tuple[float, float] | None:
    """The losses at the centre and at a cell with batch norm's statistics taken anew; None where they are already.

    None, too, where the cell is not lower as evaluated now: the value on disk is then what needs a reason.
    """
    try:
        if not context.uses_centres_statistics:
            return None
        zero = [0.0] * len(context.evidence.surface.axes)
        pairs = context.asked.by_statistics([zero, list(context.evidence.point(index))])
    except (NotJudged, JobError):  # check 10 says why
        return None
    return (float(pairs.second[0]), float(pairs.second[1])) if pairs.first[1] < pairs.first[0] else None


def _towards(context: CheckContext, point: Sequence[float]) -> tuple[float, float]:
    """−g·x of a point x by the derivatives of the first few samples, and xᵀHx of all; NaN where there are none."""
    try:
        along, _ = context.along_axes
        curvature = float(np.array(point) @ context.hessian_of_axes @ np.array(point))
    except (NotJudged, JobError):
        return math.nan, math.nan
    return -sum(each.slope * coordinate for each, coordinate in zip(along, point, strict=True)), curvature


def _axes(context: CheckContext) -> Check:
    evidence = context.evidence
    kinds = {axis.name: axis.attributes for axis in evidence.surface.axes}
    unscaled = [
        name for name, each in kinds.items() if each.get("kind") == "random" and each.get("normalise") == "none"
    ]
    if not any(axis.record.kind for axis in evidence.surface.axes):
        raise NotJudged("what the axes are is not recorded")
    if len(kinds) > 1 and not evidence.cosines:
        raise NotJudged("the cosines of the axes are not recorded")
    return geometry.axes(geometry.Axes(evidence.cosines, tuple(unscaled), _moved(context), *_unused(context)))


def _moved(context: CheckContext) -> float | None:
    """The share of the model's parameters that some axis moves."""
    total = context.evidence.record.provenance.parameters
    if context.asker is None or not total:
        return None
    return min(1.0, sum(_moved_sizes(context.asker).values()) / total)


def _moved_sizes(asker: Asker) -> dict[str, int]:
    """How many numbers each tensor has that some axis moves."""
    sizes: dict[str, int] = {}
    for each in asker.landscape.directions:
        sizes |= {name: tensor.numel() for name, tensor in each.tensors.items() if bool((tensor != 0).any())}
    return sizes


def _unused(context: CheckContext) -> tuple[tuple[str, ...], int, int]:
    """The tensors that move and that the loss does not depend on, how many numbers they have, and all that move.

    Where the loss has no derivatives, it is not known that any takes no part.
    """
    if context.asker is None:
        return (), 0, 0
    moved = _moved_sizes(context.asker)
    try:
        unused = context.asker.unused_parameters()
    except (Interrupted, ClusterUnreachableError):
        raise
    except LandscapeError:
        return (), 0, 0
    names = tuple(name for name in moved if name in unused)
    return names, sum(moved[name] for name in names), sum(moved.values())


def _holes(context: CheckContext) -> Check:
    evidence = context.evidence
    found = values.Holes(evidence.values.size, evidence.missing, _cut_off(context), _renewed_hole(context))
    return values.holes(replace(found, refused=context.asker is None and not evidence.record.is_imported))


def _renewed_hole(context: CheckContext) -> str:
    """A cell that is not finite but with batch norm's statistics taken anew; '' where there is none.

    Running variances that move along a line between networks are negative beyond its ends.
    """
    holes = np.argwhere(context.evidence.surface.status == NOT_FINITE)
    if context.asker is None or not len(holes) or not context.uses_centres_statistics:
        return ""
    hole = tuple(map(int, holes[0]))
    try:
        loss = float(context.asked.losses(context.asked.other_statistics, [context.evidence.point(hole)])[0])
    except JobError:  # check 10 says why
        return ""
    return context.evidence.place(hole) if math.isfinite(loss) else ""


def _cut_off(context: CheckContext) -> str:
    """What a range of half the size would cut off, such as 'the path'; '' for nothing."""
    held = held_by(context.evidence.surface)
    reach = max(float(np.abs(axis.coordinates).max()) for axis in context.evidence.surface.axes)
    return held.name if held.reach > reach / 2 else ""


CHECKS: Mapping[str, tuple[str, Callable[[CheckContext], Check]]] = {
    "1": ("centre", _centre),
    "2": ("expectation", _expectation),
    "3": ("spot check", _spot),
    "4": ("repetition", _repetition),
    "5": ("sampling", _sampling),
    "6": ("resolution", _resolution),
    "7": ("other seeds", _other_seeds),
    "8": ("curvature", _curvature),
    "8b": ("centre cell", _centre_cell),
    "9": ("hidden", _hidden),
    "10": ("batch norm", _batch_norm),
    "11": ("path", _path),
    "12": ("range", _range),
    "13": ("lowest", _lowest),
    "14": ("axes", _axes),
    "15": ("holes", _holes),
}
"""Each by its number: its name and what carries it out."""


# ----------------------------------------------------------------------------------------------------
# A landscape that is checked from its beginning to its end: its job made anew, the checks, and their record.

EVALUATIONS = 130  # of the default checks of a plane, about; those of Hessian products among them
CHECK_AGAIN = "mend that and check again; --problem and --folder name the callback where it is another one now"
IMPORTED = "the landscape was imported: no job computed it, so nothing of it can be evaluated"

HERE = here()


def check_landscape(
    run: str | Path,
    name: str,
    *,
    deep: bool = False,
    problem: Callback | None = None,
    folder: Path | None = None,
    executor: Executors = HERE,
) -> Checks:
    """Check a landscape of a run; `keep_checks` then keeps what was found with it.

    Where its job cannot be made anew, the checks that evaluate are not judged and say why, and neither is the landscape
    (`Checks.not_judged`). Of an imported one the values are all that is judged.

    Args:
        deep: look for the steepest direction too, by Lanczos: about 60 Hessian products.
        problem: the callback; default: the one that the landscape was computed with, by its name.
        folder: where the callback is looked up first; default: where it was then.
        executor: gives who answers questions about the landscape; default: this process.

    Raises:
        NotFoundError: there is no such run or landscape.
        LandscapeError: the landscape cannot be read.
        JobError: the callback that was named does not give this landscape.
        ClusterUnreachableError, Interrupted: as computing does.
    """
    path, begin = open_run(run).path, time.monotonic()
    evidence = Evidence.of(path, name)
    try:
        prepared = prepare(recorded_job(path, evidence.store, problem, folder))
    except LandscapeError as error:
        if problem is not None or folder is not None:
            raise
        why_not = IMPORTED if evidence.record.is_imported else message_of(error)
        context = CheckContext(evidence, None, why_not, deep)
        results = _carried_out(context)
    else:
        landscape = prepared.landscapes[0]
        with executor(prepared, landscape, EVALUATIONS * (5 if deep else 1)) as answers:
            context = CheckContext(evidence, Asker(prepared, landscape, answers, evidence.store.directions()), "", deep)
            results = _carried_out(context)
    return Checks(
        when=datetime.now(UTC).isoformat(timespec="seconds"),
        version=__version__,
        points=evidence.points_done,
        evaluations=0 if context.asker is None else context.asker.evaluations,
        seconds=round(time.monotonic() - begin, 3),
        deep=deep,
        imported=evidence.record.is_imported,
        eigenvalues=evidence.record.convexity is not None,
        results=tuple(results),
    )


def _carried_out(context: CheckContext) -> list[Check]:
    results = []
    for number, (name, carry_out) in CHECKS.items():
        try:
            results.append(carry_out(context))
        except NotJudged as reason:
            remedy = CHECK_AGAIN if str(reason) == context.why_not and not context.evidence.record.is_imported else ""
            results.append(check(number, name, "unjudged", f"{name}: {reason}", remedy))
        except (Interrupted, ClusterUnreachableError):
            raise
        except LandscapeError as error:
            results.append(check(number, name, "unjudged", f"{name}: {message_of(error)}"))
    return results


def keep_checks(run: str | Path, name: str, checks: Checks) -> None:
    """Keep what the checks of a landscape found with it, where figures, report and page show it; no part of its values.

    Raises:
        LandscapeError: another process writes the run, or it cannot be written.
    """
    keep_with_landscape(open_run(run).path, name, checks=checks)
