"""`plan`: the cost of a job before it is computed: points, tiles, bytes, time, engine. Writes nothing."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from landscape.compute import auto_range
from landscape.compute.axes_and_paths import origin_remedy, target_remedy, without_zero
from landscape.compute.eigenpairs import bytes_of_bases
from landscape.compute.hessian import layout_of
from landscape.compute.job_warnings import not_finite_warning, raising_warning
from landscape.compute.memory import DeviceBytes, bytes_of_landscape
from landscape.compute.plans import bytes_of_losses, make_evaluator, tile_shape_for, tuning_scope
from landscape.compute.point_extras import convexity_cost, convexity_text, layers_cost
from landscape.compute.prepare import prepare
from landscape.compute.prepared import PreparedJob, PreparedLandscape, kept_samples
from landscape.compute.reproducibility import recorded_reference_point, why_not_compared
from landscape.compute.rounds import shape_of
from landscape.core.devices import cores, is_out_of_memory
from landscape.core.errors import Interrupted, JobError, one_line
from landscape.core.grid import tile_counts
from landscape.core.plan import Plan
from landscape.core.text import bytes_text, count_text, number_text, seconds_text
from landscape.core.validation import AUTO, ranges
from landscape.evaluation.evaluator import Evaluator
from landscape.evaluation.tuning.choices import KeptChoices, Limits, Tuned, TuningScope
from landscape.evaluation.tuning.local_search import tune
from landscape.evaluation.tuning.trials import Outlook, outlook
from landscape.job.directions.file import PRODUCT_EVALUATIONS
from landscape.job.directions.random import DrawnTensors
from landscape.job.job import Job
from landscape.model.parameters import LARGE
from landscape.problem.batches import Samples
from landscape.problem.terms import PointSets
from landscape.problem.user_code import in_folder
from landscape.store.format import PathPlan
from landscape.store.landscape import LandscapeStore
from landscape.surface.accuracy import first_pass
from landscape.surface.record import plain
from landscape.surface.record_parts import AccuracyRecord
from landscape.surface.refinement import MOST_LEVELS, finer_shape
from landscape.surface.surface import MOMENT_PARTS

VALUE_BYTES = 8  # float64

# ----------------------------------------------------------------------------------------------------
# Whether to start workers for a job, and how much time their start adds.

# From the end of the preparation to the first tile committed by a worker, without the tile itself: 7.1 to 9.4 s on 2
# idle cores (import 1.6, ray.init 3.0 to 4.5, worker processes with torch and the problem 2.5 to 3.3). Ending Ray takes
# 0.6 s more. On 2 cores that five other people used, Ray cost 18 to 25 s. The value is still that of an idle machine: a
# busy one also makes the measured point slower, so that the comparison stays about right.
RAY_SECONDS = 8.0
LONGEST_HERE = 30.0  # longer jobs get workers even where there is only one: the job outlives a worker that is killed


def is_done_sooner_here(work: float, search: float, workers: int) -> bool:
    """Whether workers would save less time than their start costs; the search for an engine counts as work.

    Args:
        work: seconds that one process computes.
        search: seconds that the search for an engine takes before.
    """
    return work + search < LONGEST_HERE and work * (1 - 1 / workers) < RAY_SECONDS


def times_of(work: float, search: float, workers: int, *, alone: bool) -> dict[str, Any]:
    """How long a plan takes: `seconds` of computing, `start_seconds` of Ray, and whether it runs `here` without it.

    Args:
        alone: whether this process may compute alone, as no workers are requested.
    """
    stays = alone and is_done_sooner_here(work, search, workers)
    return {"seconds": work / workers, "here": stays, "start_seconds": 0.0 if stays else RAY_SECONDS}


def time_in_words(work: float, workers: int, here: bool) -> str:
    """How long a job takes, and how long the start of Ray.

    >>> time_in_words(12.0, 2, True)
    'about 12 s in this process: Ray, of 2 workers, would take about 8 s to start'
    >>> time_in_words(90.0, 2, False)
    'about 45 s on 2 workers, and about 8 s until Ray has started them'
    >>> time_in_words(6.0, 2, False)
    'about 3 s on 2 workers, and about 8 s until Ray has started them; about 6 s with --serial'
    """
    if not work:
        return "nothing is left to compute"
    several = f"{workers} worker{'s' * (workers != 1)}"
    start = seconds_text(RAY_SECONDS)
    if here:
        return f"about {seconds_text(work)} in this process: Ray, of {several}, would take about {start} to start"
    serial = f"; about {seconds_text(work)} with --serial" if work < work / workers + RAY_SECONDS else ""
    return f"about {seconds_text(work / workers)} on {several}, and about {start} until Ray has started them{serial}"


# ----------------------------------------------------------------------------------------------------
# The plan.


@dataclass(frozen=True)
class JobPlan:
    """What a job will cost, and what speaks against it.

    Attributes:
        points: evaluations of all samples, those of paths included.
        bytes: that it takes on disk, about.
        seconds: of computing, with so many `workers`; without the start of Ray, which takes `start_seconds`.
        here: whether it is computed in one process, as Ray would take longer to start.
        engine: how points are evaluated; None where that is chosen when the job runs.
        warnings: a line for each setting that may be a mistake; each names its remedy.
        document: everything, as `landscape plan --json` prints it.
    """

    points: int
    bytes: int
    seconds: float
    start_seconds: float
    workers: int
    here: bool
    engine: str | None
    warnings: tuple[str, ...]
    document: dict[str, Any] = field(repr=False)

    def __str__(self) -> str:
        return plan_text(self.document)


def plan(job: Job, workers: int | None = None) -> JobPlan:
    """Check a job as `run` does, time one point on this machine, and reckon the rest; writes nothing.

    Args:
        workers: on Ray; default: one per GPU, else one per core.

    Returns:
        The plan; `print` shows it as `landscape plan` does.

    Raises:
        JobError: `run` would refuse the job.

    Example:
        >>> import torch
        >>> from landscape import Job, Problem, plan
        >>> def problem():
        ...     return Problem.supervised(torch.nn.Linear(2, 2), (torch.ones(8, 2), torch.zeros(8).long()))
        >>> plan(Job(run="runs/planned", problem=problem, landscapes=[{"name": "minimum", "size": 5}])).points
        25
    """
    document = plan_job(job, workers)
    names = [entry.name for entry in fields(JobPlan) if entry.name not in ("document", "engine", "warnings")]
    values = {name: document[name] for name in names}
    return JobPlan(
        **values, engine=document["engine"]["engine"], warnings=tuple(document["warnings"]), document=document
    )


def plan_job(job: Job, workers: int | None = None) -> dict[str, Any]:
    """Check the job as `run` does, time one point on this machine, and reckon the rest.

    Raises:
        JobError: `run` would refuse the job.
    """
    prepared = prepare(job)
    cores_of_worker = prepared.ranks * (job.threads or 1)
    count = workers or job.workers or max(1, torch.cuda.device_count() // prepared.ranks or cores() // cores_of_worker)
    first = prepared.landscapes[0]
    # A plan for GPUs may be made on a machine without one; its seconds are a guess.
    measured = prepared.ranks == 1 and (first.plan.device == "cpu" or torch.cuda.is_available())
    scope, chosen = tuning_scope(prepared)
    tuned, expected, remarks = Tuned(first.plan), None, list[str]()
    if measured:
        with in_folder(prepared.folder):
            evaluator = make_evaluator(prepared, first)
            # Timed with the engine that the job starts from; a faster one is searched for when it runs.
            tuned = tune(evaluator, first.grid, replace(scope, needs_cost=True), limits=Limits(share=0.0))
            remarks = _remarks(evaluator, first, tuned)
            if scope.engine is None:
                expected = outlook(evaluator, first.plan, scope, tuned.seconds_per_point, KeptChoices.of_user())
        if first.extension is not None and _stored(prepared.run, first) is None:
            first.tuned(tuned)  # raises if the plan of the extended landscape cannot compute it
    engine = _engine(scope, chosen, tuned, expected)
    if expected is not None and (kept := expected.kept) is not None:
        plan = replace(tuned.plan, engine=kept.engine, batch_size=kept.batch_size)
        tuned = replace(tuned, plan=plan, seconds_per_point=kept.seconds_per_point)
    seconds = tuned.seconds_per_point
    landscapes = [_plan_landscape(prepared, landscape) for landscape in prepared.landscapes]
    missing = sum(planned["missing_points"] * planned["sample_share"] for planned in landscapes)
    for part, prefix in (("curvature", ""), ("convexity", "all_"), ("layers", "all_")):
        missing += sum(planned[part][f"{prefix}evaluations"] for planned in landscapes if planned[part])
    missing += sum(planned["range_evaluations"] + planned["own_model"]["evaluations"] for planned in landscapes)
    maps = [planned["convexity"] for planned in landscapes if planned["convexity"]]
    further = sum(cost["all_most_evaluations"] - cost["all_evaluations"] for cost in maps)
    wants_ray = (
        workers
        or job.workers
        or job.device_ids
        or os.environ.get("RAY_ADDRESS")
        or torch.cuda.device_count() > 1
        or prepared.ranks > 1
    )
    times = times_of(missing * seconds, engine["search_seconds"] or 0.0, count, alone=not wants_ray)
    for planned, landscape in zip(landscapes, prepared.landscapes, strict=True):
        planned |= _tiles(prepared, landscape, tuned, 1 if times["here"] else count)
    return {
        "run": prepared.run,
        "num_samples": prepared.landscapes[0].record.num_samples,
        "samples": prepared.landscapes[0].record.samples_in_words,
        "plan": tuned.plan.record(),
        "engine": engine,
        "seconds_per_point": seconds,
        "measured": measured,
        "timed": measured and not tuned.raised,
        "precision_error": tuned.precision_error,
        "workers": count,
        "landscapes": landscapes,
        "points": sum(planned["points"] for planned in landscapes),
        "bytes": sum(planned["bytes"] for planned in landscapes),
        **times,
        "times_as_long_where_signs_stay_open": 1 + further / missing if missing else 1.0,
        "warnings": [*prepared.warnings, *remarks],
    }


def _remarks(evaluator: Evaluator, landscape: PreparedLandscape, tuned: Tuned) -> list[str]:
    """Warnings of errors and losses that are not finite, at the timed point and at the origin."""
    remarks = []
    if tuned.raised:
        remarks.append(raising_warning(landscape.name, tuned.raised))
    try:
        values = evaluator.evaluate(np.zeros((1, len(landscape.directions))))
    except Exception as error:  # of user code
        if isinstance(error, (Interrupted, JobError)) or is_out_of_memory(error):
            raise
        return [*remarks, f"landscape {landscape.name!r}: its origin raises {one_line(error)}"]
    not_finite = not_finite_warning(landscape.name, float(values.mean["loss"][0]))
    return [*remarks, *filter(None, [not_finite])]


def _engine(scope: TuningScope, chosen: Plan | None, tuned: Tuned, expected: Outlook | None) -> dict[str, Any]:
    """How new landscapes will be computed, and why; `engine` is None if it is chosen when the job runs.

    Args:
        chosen: the plan of the landscapes that are stored, or of the run that the job names.
        tuned: the engine that was timed, by which the job starts; in the batches of the job where none was.
        expected: what a job that leaves the engine open will do; None if nothing was measured.
    """
    if scope.engine is not None:
        why, size = ("the job's", tuned.plan.batch_size) if chosen is None else ("as recorded", chosen.batch_size)
        return {"engine": str(scope.engine), "batch_size": size, "why": why, "search_seconds": 0.0}
    if expected is None:
        return {"engine": None, "batch_size": None, "why": "chosen on the workers", "search_seconds": None}
    if expected.kept is not None:
        kept, why = expected.kept, f"kept choice of {expected.kept.since[:10]}"
        return {"engine": str(kept.engine), "batch_size": kept.batch_size, "why": why, "search_seconds": 0.0}
    if expected.search_seconds:
        why = f"to be searched: up to {expected.search_seconds:g} s and the candidate then at hand"
        return {"engine": None, "batch_size": None, "why": why, "search_seconds": expected.search_seconds}
    first = {"engine": str(tuned.plan.engine), "batch_size": tuned.plan.batch_size}
    return {**first, "why": "by rule, as the job is too short to search", "search_seconds": 0.0}


def _tiles(prepared: PreparedJob, landscape: PreparedLandscape, tuned: Tuned, workers: int) -> dict[str, Any]:
    """The tiles of a landscape, as stored, or as its job would make them with this many workers."""
    stored, kept = _stored(prepared.run, landscape), kept_samples(prepared, landscape)
    if stored is not None:
        shape = stored.tile_shape
    else:
        cost, engine = tuned.seconds_per_point * landscape.evaluations_per_point, tuned.plan.engine
        shape = tile_shape_for(prepared.job, landscape.grid, engine, cost, workers, kept)
    return {"tile_shape": list(shape), "tiles": math.prod(tile_counts(landscape.grid.shape, shape))}


def _plan_landscape(prepared: PreparedJob, landscape: PreparedLandscape) -> dict[str, Any]:
    """The plan of a landscape, without its tiles."""
    grid = landscape.grid
    stored, kept = _stored(prepared.run, landscape), kept_samples(prepared, landscape)
    missing = _missing_points(landscape, stored)
    # Per point: each observable and its error, the error of the rise, the moments, and one byte for the status.
    numbers = 2 * len(landscape.observables) + 1 + MOMENT_PARTS * len(landscape.record.moment_rows)
    values = grid.points * (numbers * VALUE_BYTES + 1)
    elements = sum(tensor.numel() for tensor in landscape.origin.values())
    stored_axes = sum(not isinstance(axis.tensors, DrawnTensors) for axis in landscape.directions)
    extension = landscape.extension
    line = [axis.record.kind for axis in landscape.directions] == ["towards"]
    sample_share, new_samples = _samples_left(prepared.samples, 0 if extension is None else extension.known_samples)
    return {
        "name": landscape.name,
        "origin": landscape.record.origin,
        "origin_in_words": landscape.record.origin_in_words,
        "axes": _axes(landscape),
        "curvature": _curvature(prepared, landscape),
        "convexity": convexity_cost(landscape, missing),
        "layers": layers_cost(landscape, missing),
        "quantised": landscape.record.rounding_in_words or None,
        "rounded": list(landscape.record.rounded),
        "range_evaluations": _range_evaluations(landscape),
        "own_model": _own_model(landscape, stored, missing),
        "origin_on_grid": not without_zero(grid),
        # No remedy for a grid that is already begun, nor for the landscapes of the collector, whose size no job sets.
        "origin_remedy": origin_remedy(grid, line=line) if stored is None and prepared.job.landscapes else None,
        "target_remedy": target_remedy(grid) if stored is None and line else None,
        "cosine": plain(landscape.record.cosine),
        "observables": list(landscape.observables),
        "points": landscape.points,
        "missing_points": missing,
        "extends": None if extension is None else extension.store.name,
        "sample_share": sample_share,
        "new_samples": new_samples,
        "path_points": 0 if landscape.level or landscape.path is None else 2 * len(landscape.path.step),
        "accuracy": None
        if landscape.record.accuracy is None
        else _accuracy(landscape.record.accuracy, len(grid.names), shape_of(prepared, landscape).ends),
        "paths": [] if landscape.path is None else _snapshots(landscape.path),
        "refined_points": _refined_points(prepared.job, landscape),
        "kept_bytes": bytes_of_losses(grid.points, kept),
        "bytes": values + bytes_of_losses(grid.points, kept) + 4 * elements * stored_axes,
        "device_bytes": _device_bytes(prepared, landscape).document(),
        "ranks": prepared.ranks,
    }


def _device_bytes(prepared: PreparedJob, landscape: PreparedLandscape) -> DeviceBytes:
    directions = [axis.tensors for axis in landscape.directions]
    return bytes_of_landscape(
        prepared.problem.model, landscape.plan, directions, prepared.job.origin_in, prepared.ranks
    )


def _memory_text(row: Mapping[str, Any]) -> list[str]:
    """What a large model takes on each device, before its activations; nothing for a small one."""
    held = row["device_bytes"]
    if held["weights"] * row["ranks"] <= LARGE:
        return []
    parts = [f"weights {bytes_text(held['weights'])}"]
    parts.append(f"origin {bytes_text(held['origin'])}" if held["origin"] else "the origin stays where it is read from")
    parts.append(f"directions {bytes_text(held['directions'])}" if held["directions"] else "directions take none")
    gathered = f", and {bytes_text(held['gathered'])} of gathered blocks" if held["gathered"] else ""
    devices = f"each of {row['ranks']} devices" if row["ranks"] > 1 else "the device"
    return [
        f"  on {devices}: {', '.join(parts)}; {bytes_text(held['staging'])} more while a point is set{gathered}; "
        "activations come on top"
    ]


def _accuracy(asked: AccuracyRecord, axes: int, ends: NDArray[np.int64]) -> dict[str, Any]:
    """What is asked for, and what has been reached and is left, or the cost of the first pass."""
    first = first_pass(axes, ends)
    text = f"points and samples are added until it is true to {asked.amount(asked.error)} on 95 % of the area"
    if asked.rounds:
        left = f"about {number_text(float(asked.expected_rest), 2)} more evaluations are left"
        text += f"; so far {asked.text}; {left if asked.expected_rest else asked.ending or 'nothing is left'}"
    else:
        text += (
            f"; the first pass costs {count_text(first)} evaluations, each of one sample at one point; what follows, "
            "and so the time below, is a guess"
        )
    return {**plain(asked), "first_evaluations": first, "text": text}


def _snapshots(path: PathPlan) -> list[str]:
    """The paths of the runs that the job names, such as 'sgd (epochs 0-10)'; not the path of its own run."""
    numbers = {k: [step for step, run in zip(path.step, path.run, strict=True) if run == k] for k in set(path.run)}
    runs = enumerate(path.runs[: len(path.labels)])  # the networks of a plane follow after these
    return [f"{run.label} ({run.unit}{'s' * (len(numbers[k]) > 1)} {ranges(numbers[k])})" for k, run in runs]


def _refined_points(job: Job, landscape: PreparedLandscape) -> int:
    """The most points of the landscape with its refinement, its own included; 0 if the job does not refine it."""
    refine = next((spec.refine for spec in job.landscapes if spec.name == landscape.name), None)
    if refine is None or landscape.level is not None:
        return 0
    most = math.prod(finer_shape(landscape.grid.shape, 2**MOST_LEVELS))
    return most if refine.points is None else max(landscape.grid.points, min(most, refine.points))


def _axes(landscape: PreparedLandscape) -> list[dict[str, Any]]:
    axes = zip(landscape.grid.names, landscape.grid.coordinates, landscape.directions, strict=True)
    return [
        {
            "name": name,
            "size": len(coordinates),
            "low": float(coordinates[0]),
            "high": float(coordinates[-1]),
            "what": axis.record.label,
            "foreseen": bool(axis.attributes.get("foreseen")),
        }
        for name, coordinates, axis in axes
    ]


def _range_evaluations(landscape: PreparedLandscape) -> int:
    """About how many evaluations find the range of the axes; 0 if the job gives it, or it has been found."""
    is_unknown = any(AUTO in axis for axis in landscape.identity["coordinates"])
    return 1 + auto_range.EVALUATIONS * len(landscape.directions) if is_unknown else 0


def _own_model(landscape: PreparedLandscape, stored: LandscapeStore | None, missing: int) -> dict[str, Any]:
    """How many forward passes of the user's own model are compared with the landscape, or why none is."""
    record = landscape.record if stored is None else stored.record
    known = record.own_model
    if known is not None:
        return {"evaluations": 0, "why_not": known.text if known.state == "not compared" else "it has been compared"}
    reason = why_not_compared(record, extends=landscape.extension is not None)
    if record.states("own_model"):
        reason = "its record of the comparison is damaged"
    elif not reason and (
        not missing or (stored is not None and recorded_reference_point(stored, landscape.grid) is not None)
    ):
        reason = "it was begun by a version that did not compare"
    return {"evaluations": 0 if reason else 2, "why_not": reason}


def _missing_points(landscape: PreparedLandscape, stored: LandscapeStore | None) -> int:
    """How many points, evaluations of the path included, are still to be computed."""
    grid, extension = landscape.grid, landscape.extension
    if stored is not None:
        examined = stored.examine()
        path = sum(2 * (window.stop - window.start) for window in examined.path_missing)
        asked = landscape.record.accuracy
        if asked is not None and asked.rounds:
            return int(path) + -(-asked.expected_rest // max(1, asked.population))
        return int(path) + stored.arrays.points_in(examined.missing_mask)
    if extension is None or landscape.level:
        return landscape.points
    path = 0 if extension.gives_path else landscape.points - grid.points
    return path + grid.points - extension.points_known


def _samples_left(samples: Samples, known: int) -> tuple[float, str]:
    """The share of the samples after the first `known` ones, of every set of points; and their number, in words.

    >>> from landscape.problem.batches import TensorSamples
    >>> _samples_left(TensorSamples(torch.zeros(8)), 6)
    (0.25, '2 samples')
    """
    if not isinstance(samples, PointSets):
        return (samples.length - known) / samples.length, f"{samples.length - known} samples"
    left = {name: max(0, size - known) for name, size in samples.sizes.items()}
    words = ", ".join(f"{count} of {name}" for name, count in left.items())
    return sum(left.values()) / sum(samples.sizes.values()), words


def _curvature(prepared: PreparedJob, landscape: PreparedLandscape) -> dict[str, Any] | None:
    """The cost of the eigenvectors that are axes and not yet computed; None if there are none."""
    axes = [axis for axis in landscape.directions if axis.attributes.get("foreseen")]
    runs = {(axis.attributes["steps"], axis.attributes["seed"]) for axis in axes}
    if not runs:
        return None
    size = layout_of(prepared.problem, landscape.origin).size
    products = sum(min(steps, size) for steps, _ in runs)
    stored = sum(bytes_of_bases(size, steps) for steps, _ in runs)
    return {"products": products, "evaluations": products * PRODUCT_EVALUATIONS, "bytes": stored}


def _stored(run: str, landscape: PreparedLandscape) -> LandscapeStore | None:
    return LandscapeStore.find(run, landscape.name, level=landscape.level.number if landscape.level else 0)


def plan_text(plan: dict[str, Any]) -> str:
    """The plan as lines."""
    lines = [f"run {plan['run']}"]
    for row in plan["landscapes"]:
        size = " x ".join(str(axis["size"]) for axis in row["axes"])
        missing = row["missing_points"]
        if row["accuracy"]:
            lines.append(f"{row['name']}: {size} around {row['origin_in_words']}, {', '.join(row['observables'])}")
            lines.append(f"  {row['accuracy']['text']}")
            lines += [f"  {axis['name']}: {_ends(axis, row)}, {axis['what']}" for axis in row["axes"]]
            continue
        done = f", {missing or 'none'} of them still to compute" if missing < row["points"] else ""
        tile = " x ".join(map(str, reversed(row["tile_shape"])))
        path = f" ({row['path_points']} of them on paths, beside the grid)" if row["path_points"] else ""
        lines.append(
            f"{row['name']}: {size} around {row['origin_in_words']}: {row['points']} points{path}{done}, "
            f"{row['tiles']} tiles of {tile}, {bytes_text(row['bytes'])}, {', '.join(row['observables'])}"
        )
        lines += [f"  {axis['name']}: {_ends(axis, row)}, {axis['what']}" for axis in row["axes"]]
        lines += [f"  paths: {', '.join(row['paths'])}"] if row["paths"] else []
        lines += [f"  {row['quantised']}: {len(row['rounded'])} tensors"] if row["quantised"] else []
        if row["curvature"]:
            lines.append(
                f"  eigenvectors: at most {row['curvature']['products']} products with the Hessian, each about "
                f"{PRODUCT_EVALUATIONS} points' time; {bytes_text(row['curvature']['bytes'])} of memory, and in the "
                "run's folder meanwhile"
            )
        map_lines = convexity_text(row["convexity"]) if row["convexity"] else []
        lines += [f"  {line}" for line in [*map_lines, *(row["layers"]["text"] if row["layers"] else [])]]
        if row["own_model"]["evaluations"]:
            lines.append(
                "  compared with your own model first, at the centre and at one point beside it: 2 forward passes"
            )
        if row["range_evaluations"]:
            lines.append(f"  range: found first, by bisection: about {row['range_evaluations']} evaluations")
        if row["refined_points"]:
            lines.append(f"  refined where its values ask for it, to {row['refined_points']} points in all at most")
        lines += _memory_text(row)
        if row["kept_bytes"]:
            lines.append(f"  keeps the loss of every sample: {bytes_text(row['kept_bytes'])} of these")
        if row["extends"]:
            share = row["missing_points"] * row["sample_share"] / row["points"]
            lines.append(
                f"  extends {row['extends']}: {row['missing_points']} points are evaluated, on {row['new_samples']} "
                f"each: {100 * share:.3g} % of what all of it costs at once"
            )
        lines += [f"  no point of the grid is at the origin; {row['origin_remedy']}"] if row["origin_remedy"] else []
        if row["target_remedy"]:
            lines.append(f"  no point of the grid is at 1, so its barrier is not known; {row['target_remedy']}")
    lines.append(
        f"samples a point: {plan['samples']}; {plan['seconds_per_point']:.3g} s a point {_where_timed(plan)} "
        f"({plan['plan']['device']}, {_precision(plan)}, batches of {plan['plan']['batch_size']}): "
        f"{time_in_words(plan['seconds'] * plan['workers'], plan['workers'], plan['here'])}{_where_open(plan)}"
    )
    lines.append(_engine_text(plan["engine"]))
    lines += [f"warning: {warning}" for warning in plan["warnings"]]
    return "\n".join(lines)


def _ends(axis: dict[str, Any], landscape: dict[str, Any]) -> str:
    if landscape["range_evaluations"]:
        return "as far as the loss changes visibly"
    # Without a range in the job, these ends are placeholders until the eigenvalue is known.
    if axis["foreseen"] and (axis["low"], axis["high"]) == (-1.0, 1.0):
        return "as far as its eigenvalue says"
    return f"{axis['low']:g} to {axis['high']:g}"


def _where_timed(plan: dict[str, Any]) -> str:
    if not plan["measured"]:
        grouped = any(landscape["ranks"] > 1 for landscape in plan["landscapes"])
        return "as a guess, since a group computes it" if grouped else "as a guess, since there is no GPU here"
    return "here" if plan["timed"] else "as a guess, not timed, since the point raises"


def _precision(plan: dict[str, Any]) -> str:
    error = (plan["precision_error"] or {}).get("max_rel_error")
    within = "" if error is None else f" within {100 * error:.2g} % of float32"
    return f"{plan['plan']['precision']}{within}"


def _where_open(plan: dict[str, Any]) -> str:
    """How many times as long convexity maps take if the signs of the smallest eigenvalues stay open; else ''."""
    times = plan["times_as_long_where_signs_stay_open"]
    return f"; up to {times:.2g} times as long where signs stay open" if times >= 1.05 else ""


def _engine_text(engine: dict[str, Any]) -> str:
    if engine["engine"] is None:
        return f"engine: {engine['why']}"
    return f"engine: {engine['engine']}, batches of {engine['batch_size']} ({engine['why']})"
