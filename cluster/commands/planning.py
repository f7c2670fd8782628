"""The cost of a job before it is computed: points, tiles, bytes, time. Writes nothing."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from cluster.driver.short_jobs import time_in_words, times_of
from landscape.compute import auto_range
from landscape.compute.axes_and_paths import origin_remedy, target_remedy, without_zero
from landscape.compute.eigenpairs import bytes_of_bases
from landscape.compute.extend import More, extension_job
from landscape.compute.hessian import layout_of
from landscape.compute.identity import recorded_plan
from landscape.compute.job_warnings import not_finite_warning, raising_warning
from landscape.compute.plans import bytes_of_losses, make_evaluator, tile_shape_for, tuning_scope
from landscape.compute.point_extras import convexity_cost, convexity_text, layers_cost
from landscape.compute.prepare import prepare
from landscape.compute.prepared import PreparedJob, PreparedLandscape, kept_samples
from landscape.compute.refine import level_job
from landscape.compute.reproducibility import recorded_reference_point, why_not_compared
from landscape.core.devices import cores, is_out_of_memory
from landscape.core.errors import Interrupted, JobError, one_line
from landscape.core.grid import as_written, tile_counts
from landscape.core.text import bytes_text, seconds_text
from landscape.core.validation import AUTO, ranges
from landscape.evaluation.evaluator import Evaluator
from landscape.evaluation.tuning.choices import KeptChoices, Tuned, TuningScope
from landscape.evaluation.tuning.trials import outlook, tune
from landscape.job.directions.file import PRODUCT_EVALUATIONS
from landscape.job.job import Job
from landscape.problem.batches import Samples
from landscape.problem.terms import PointSets
from landscape.problem.user_code import in_folder
from landscape.store.format import PathPlan
from landscape.store.landscape import LandscapeStore
from landscape.store.levels import points_left
from landscape.store.results import open_run
from landscape.surface.record import plain
from landscape.surface.record_parts import LevelRecord
from landscape.surface.refinement import MOST_LEVELS, finer_shape
from landscape.surface.surface import MOMENT_PARTS

VALUE_BYTES = 8  # float64


def plan_job(job: Job, workers: int | None = None) -> dict[str, Any]:
    """Check the job as `run` does, time one point on this machine, and reckon the rest.

    Raises:
        JobError: `run` would refuse the job.
    """
    prepared = prepare(job)
    count = workers or job.workers or max(1, torch.cuda.device_count() or cores() // (job.threads or 1))
    first = prepared.landscapes[0]
    # A plan for GPUs may be made on a machine without one; its seconds are a guess.
    measured = first.plan.device == "cpu" or torch.cuda.is_available()
    # Timed with the engine of the plan; a faster one is searched for when the job runs.
    scope, tuned, evaluator, remarks = TuningScope(first.plan.engine), Tuned(first.plan), None, list[str]()
    if measured:
        with in_folder(prepared.folder):
            evaluator = make_evaluator(prepared, first)
            tuned = tune(evaluator, first.grid, scope)
            remarks = _remarks(evaluator, first, tuned)
        if first.extension is not None and _stored(prepared.run, first) is None:
            first.tuned(tuned)  # raises if the plan of the extended landscape cannot compute it
    seconds = tuned.seconds_per_point
    landscapes = [_plan_landscape(prepared, landscape) for landscape in prepared.landscapes]
    missing = sum(planned["missing_points"] * planned["sample_share"] for planned in landscapes)
    for part, prefix in (("curvature", ""), ("convexity", "all_"), ("layers", "all_")):
        missing += sum(planned[part][f"{prefix}evaluations"] for planned in landscapes if planned[part])
    missing += sum(planned["range_evaluations"] + planned["own_model"]["evaluations"] for planned in landscapes)
    maps = [planned["convexity"] for planned in landscapes if planned["convexity"]]
    further = sum(cost["all_most_evaluations"] - cost["all_evaluations"] for cost in maps)
    engine = _engine(prepared, evaluator, seconds)
    wants_ray = (
        workers or job.workers or job.device_ids or os.environ.get("RAY_ADDRESS") or torch.cuda.device_count() > 1
    )
    times = times_of(missing * seconds, engine["search_seconds"] or 0.0, count, alone=not wants_ray)
    for planned, landscape in zip(landscapes, prepared.landscapes, strict=True):
        planned |= _tiles(prepared, landscape, seconds, 1 if times["here"] else count)
    return {
        "run": prepared.run,
        "num_samples": prepared.landscapes[0].record.num_samples,
        "samples": prepared.landscapes[0].record.samples_in_words,
        "plan": prepared.landscapes[0].plan.record(),
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


def _engine(prepared: PreparedJob, evaluator: Evaluator | None, seconds: float) -> dict[str, Any]:
    """How new landscapes will be computed, and why; `engine` is None if it is chosen when the job runs."""
    scope, chosen = tuning_scope(prepared)
    plan = prepared.landscapes[0].plan
    size = (chosen or plan).batch_size
    if scope.engine is not None:
        why = "the job's" if chosen is None else "as recorded"
        return {"engine": str(scope.engine), "batch_size": size, "why": why, "search_seconds": 0.0}
    if evaluator is None:
        return {"engine": None, "batch_size": None, "why": "chosen on the workers", "search_seconds": None}
    expected = outlook(evaluator, plan, scope, seconds, KeptChoices.of_user())
    if expected.kept is not None:
        kept, why = expected.kept, f"kept choice of {expected.kept.since[:10]}"
        return {"engine": str(kept.engine), "batch_size": kept.batch_size, "why": why, "search_seconds": 0.0}
    if expected.search_seconds:
        why = f"to be searched: up to {expected.search_seconds:g} s and the candidate then at hand"
        return {"engine": None, "batch_size": None, "why": why, "search_seconds": expected.search_seconds}
    return {"engine": str(plan.engine), "batch_size": size, "why": "too short a job to search", "search_seconds": 0.0}


def _tiles(prepared: PreparedJob, landscape: PreparedLandscape, seconds: float, workers: int) -> dict[str, Any]:
    """The tiles of a landscape, as stored, or as its job would make them with this many workers."""
    stored, kept = _stored(prepared.run, landscape), kept_samples(prepared, landscape)
    cost = seconds * landscape.evaluations_per_point
    shape = stored.tile_shape if stored else tile_shape_for(prepared.job, landscape.grid, cost, workers, kept)
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
        "path_points": 0 if landscape.level else landscape.points - grid.points,
        "paths": [] if landscape.path is None else _snapshots(landscape.path),
        "refined_points": _refined_points(prepared.job, landscape),
        "kept_bytes": bytes_of_losses(grid.points, kept),
        "bytes": values + bytes_of_losses(grid.points, kept) + 4 * elements * len(landscape.directions),
    }


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
        return "as a guess, since there is no GPU here"
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


# ----------------------------------------------------------------------------------------------------
# The cost of an extension, step by step: the first step is planned, and the later ones are reckoned from it.

ALL = ""  # the samples of a loss that is no sum of terms


def plan_extension(
    run: str,
    name: str,
    steps: Sequence[More],
    problem: str | Callable[[], Any] | None = None,
    folder: Path | None = None,
    workers: int | None = None,
) -> dict[str, Any]:
    """The plan of the first step, as from `plan_job`, with the cost of every step in `steps`.

    A later step cannot be prepared before the earlier ones are done, but its points and samples are known, and each
    takes as long as in the first step. `levels` are those of the landscape's refinement, in the first step. Without
    steps nothing is left to do.

    Raises:
        JobError: one of the steps is refused.
    """
    if not steps:
        return {"landscape": name, "steps": [], "seconds_of_all_steps": 0.0}
    jobs = [extension_job(run, name, step, problem, folder) for step in steps]
    planned = plan_job(jobs[0], workers)
    first = planned["landscapes"][0]
    path = open_run(run).path
    store = LandscapeStore.open(path, name)
    counts = list(_counts(store, steps, jobs))
    _, new_samples, all_samples = counts[0]
    seconds_per_sample = planned["seconds_per_point"] / sum(all_samples.values()) / _processes(planned)
    records = [level.record.level for level in store.levels() if level.record.level is not None]
    seconds = sum(new_samples.values()) * seconds_per_sample
    planned["levels"] = [_level_cost(path, jobs[0].landscapes[0].name, each, store.shape, seconds) for each in records]
    # A part of the first step may have been computed already.
    left = first["missing_points"] + sum(level["points"] for level in planned["levels"])
    counts[0] = left, new_samples, all_samples
    planned["steps"] = [
        {
            "adds": _option(step),
            "points": points,
            "samples": samples.get(ALL, samples),
            "seconds": points * sum(samples.values()) * seconds_per_sample,
        }
        for step, (points, samples, _) in zip(steps, counts, strict=True)
    ]
    planned["seconds_of_all_steps"] = sum(step["seconds"] for step in planned["steps"])
    return planned


def _counts(
    store: LandscapeStore, steps: Sequence[More], jobs: Sequence[Job]
) -> Iterator[tuple[int, dict[str, int], dict[str, int]]]:
    """For each step the points that it evaluates, path included; the samples evaluated; and all samples after the step.

    Samples are counted by term, under `ALL` if the loss is no sum of terms.
    """
    samples = {name: term.samples or 0 for name, term in store.record.terms.items()}
    samples = samples or {ALL: store.identity.num_samples or 0}
    points = math.prod(store.shape)
    path, batch_size = int(store.counts().sum()) - points, recorded_plan(store).batch_size
    finer = sum(level.arrays.points for level in store.levels())
    for step, job in zip(steps, jobs, strict=True):
        if step.num_samples is not None:
            most = max(samples.values())
            known = most // batch_size * batch_size
            # A term with fewer samples than others has all of its samples already.
            samples = {name: count if count < most else step.num_samples for name, count in samples.items()}
            yield points + path + finer, {name: max(0, count - known) for name, count in samples.items()}, samples
        elif step.ranges is not None:
            wider = math.prod(job.landscapes[0].size)
            yield wider - points, samples, samples
            points = wider
        else:
            yield points + finer, samples, samples


def _samples_text(samples: int | dict[str, int]) -> str:
    if isinstance(samples, int):
        return f"{samples} samples"
    return ", ".join(f"{count} of {name}" for name, count in samples.items())


def _option(step: More) -> str:
    """The option of the command that asks for a step alone."""
    if step.num_samples is not None:
        return f"--samples {step.num_samples}"
    if step.ranges is not None:
        return f"--range={','.join(as_written(end) for ends in step.ranges for end in ends)}"
    return " ".join(f"--observable {name}" for name in step.observables)


def extension_text(planned: dict[str, Any]) -> str:
    """The plan as lines: the first step in full, a line for every later step, and the sum."""
    steps = planned["steps"]
    if not steps:
        return f"{planned['landscape']} has all of this already: nothing is left to do"
    lines = [plan_text(planned), *map(_level_text, planned["levels"])]
    if len(steps) > 1:
        lines.insert(0, f"step 1 of {len(steps)}: {steps[0]['adds']}")
    lines += [
        f"step {number} of {len(steps)}: {step['adds']}: {step['points']} points are evaluated, on "
        f"{_samples_text(step['samples'])} each: about {seconds_text(step['seconds'])}"
        for number, step in enumerate(steps[1:], 2)
    ]
    work = planned["seconds_of_all_steps"] * _processes(planned)
    if len(lines) > 1:
        whole = f"all {len(steps)} steps" if len(steps) > 1 else "with its levels"
        lines.append(f"{whole}: {time_in_words(work, planned['workers'], planned['here'])}")
    return "\n".join(lines)


def _processes(planned: dict[str, Any]) -> int:
    """How many processes compute."""
    return 1 if planned["here"] else int(planned["workers"])


# ----------------------------------------------------------------------------------------------------
# The cost of a refinement, level by level: one point is timed, and the points of each level are counted.


def plan_refinement(
    run: str,
    name: str,
    levels: Sequence[LevelRecord],
    problem: str | Callable[[], Any] | None = None,
    folder: Path | None = None,
    workers: int | None = None,
) -> dict[str, Any]:
    """The plan of the first level, as from `plan_job`, with the cost of every level in `levels`.

    Without levels nothing is left to do.

    Raises:
        JobError: the landscape cannot be refined.
    """
    if not levels:
        return {"landscape": name, "levels": [], "seconds": 0.0}
    path = open_run(run).path
    shape = LandscapeStore.open(path, name).shape
    planned = plan_job(level_job(run, name, levels[0], problem, folder), workers)
    seconds = planned["seconds_per_point"] / _processes(planned)
    planned["levels"] = [_level_cost(path, name, level, shape, seconds) for level in levels]
    planned["seconds"] = sum(level["seconds"] for level in planned["levels"])
    return planned


def _level_cost(run: str, name: str, level: LevelRecord, shape: Sequence[int], seconds: float) -> dict[str, Any]:
    points = points_left(run, name, level, shape)
    size = [(points_before - 1) * level.stride + 1 for points_before in reversed(shape)]
    return {"level": level.number, "size": size, "points": points, "seconds": points * seconds}


def _level_text(level: dict[str, Any]) -> str:
    return (
        f"level {level['level']}: {level['points']} points of {' x '.join(map(str, level['size']))}, "
        f"about {seconds_text(level['seconds'])}"
    )


def refinement_text(planned: dict[str, Any]) -> str:
    """The plan as lines: one for each level, and the sum."""
    if not planned["levels"]:
        return f"{planned['landscape']} is as fine as that already: nothing is left to do"
    workers, points = planned["workers"], sum(level["points"] for level in planned["levels"])
    lines = list(map(_level_text, planned["levels"]))
    work = points * planned["seconds_per_point"]
    lines.append(
        f"all: {points} points on {planned['num_samples']} samples each, "
        f"{time_in_words(work, workers, planned['here'])}"
    )
    return "\n".join(lines)
