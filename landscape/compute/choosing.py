"""How the landscapes of a job that are new will be computed: their engine, their batches, the shape of their tiles."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace

from landscape.compute.kept import bytes_of_losses
from landscape.compute.prepared import PreparedJob, PreparedLandscape
from landscape.core.devices import pick_device
from landscape.core.errors import CHOOSING, JobError, shown, stage
from landscape.core.grid import Grid, Index, choose_tile_shape, within
from landscape.core.plan import Plan
from landscape.evaluation.evaluator import Evaluator
from landscape.evaluation.tuning.protocol import Freedom, KeptChoices, Limits
from landscape.evaluation.tuning.tuning import tune
from landscape.job.job import Job
from landscape.problem.user_code import in_folder
from landscape.store.runs import landscape_names

log = logging.getLogger("landscape")

TILE_BYTES = 8 << 20  # of the losses of single samples


def freedom_of(prepared: PreparedJob) -> tuple[Freedom, Plan | None]:
    """What is to be chosen for the landscapes that are new, and the plan of the job's other ones, or of another run.

    One job has one engine: what was chosen for one landscape holds for the rest.
    """
    stored = landscape_names(prepared.run)
    # Of the whole job: what is done already must not make it one that is over sooner.
    points = sum(each.points for each in prepared.landscapes)
    chosen = next((each.plan for each in prepared.landscapes if each.name in stored), prepared.borrowed)
    job = prepared.job
    engine = job.asked_engine or (chosen.engine if chosen else None)
    # In the store the last axis comes first.
    rows = [tile_shape_for(job, each.grid, 1.0, 1)[0] for each in prepared.landscapes if job.tile is not None]
    return Freedom(engine, job.batch_size is None and chosen is None, points, min(rows, default=None)), chosen


def bound_to(freedom: Freedom, plan: Plan) -> Freedom:
    """What is left to choose once a landscape of the job has this plan: neither the engine nor the batch size."""
    return replace(freedom, engine=plan.engine, may_choose_batch_size=False)


def tune_landscape(
    prepared: PreparedJob,
    landscape: PreparedLandscape,
    freedom: Freedom,
    on_point: Callable[[], None],
    limits: Limits | None = None,
) -> tuple[PreparedLandscape, float]:
    """The landscape with the engine and batches that suit it, and the seconds a point costs; before any value."""
    stage(CHOOSING)
    evaluator, kept = make_evaluator(prepared, landscape, on_point), KeptChoices.of_user()
    if freedom.engine is not None:  # the job's one engine, as far as this landscape's rounding lets it
        freedom = replace(freedom, engine=freedom.engine.suiting(landscape.plan.quantise))
    with in_folder(prepared.folder):
        tuned = tune(evaluator, landscape.grid, freedom, kept=kept, limits=limits)
    planned = landscape.tuned(tuned)
    if tuned.warning:
        log.warning("%s", tuned.warning)
    return planned, tuned.seconds_per_point


def make_evaluator(
    prepared: PreparedJob, landscape: PreparedLandscape, on_point: Callable[[], None] = lambda: None
) -> Evaluator:
    """The evaluator of a landscape on this machine's device, its origin and directions loaded.

    Args:
        on_point: is called before each point; what it raises ends the evaluation.

    Raises:
        JobError: the landscape is computed on another kind of device than this machine has.
    """
    problem, device = prepared.problem, pick_device(prepared.job.device)
    if device.type != landscape.plan.device:
        raise JobError(
            f"device: landscape {shown(landscape.name)} is computed on {landscape.plan.device}, here is {device.type}, "
            "and the bits would differ; go on where it was begun, or give it another name or run"
        )
    with in_folder(prepared.folder):
        return Evaluator(
            problem.model, prepared.samples, problem.observe, landscape.plan, device, landscape.origin,
            [each.tensors for each in landscape.directions], on_point,
        )  # fmt: skip


def tile_shape_for(job: Job, grid: Grid, seconds_per_point: float, workers: int, kept_samples: int = 0) -> Index:
    """The job's own tile shape, given per axis, or the one that suits the cost of a point.

    Args:
        kept_samples: of how many samples the losses are stored.
    """
    if job.tile is None:
        return within_tile_bytes(choose_tile_shape(grid.shape, seconds_per_point, workers), kept_samples)
    per_axis = job.tile * len(grid.shape) if len(job.tile) == 1 else job.tile
    return tuple(min(t, n) for t, n in zip(reversed(per_axis), grid.shape, strict=True))


def within_tile_bytes(shape: Index, kept_samples: int) -> Index:
    """The shape of tiles, made smaller where the losses of so many samples would take more than `TILE_BYTES` in a tile.

    A worker hands the losses of a tile over in one piece.
    """
    return within(shape, TILE_BYTES // bytes_of_losses(1, kept_samples) if kept_samples else None)
