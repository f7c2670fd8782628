"""The plans of landscapes: recorded, borrowed from another run, or chosen by measuring."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import replace

from torch import nn

from landscape.compute.identity import recorded_plan, refusal_of_job
from landscape.compute.job_warnings import raising_warning
from landscape.compute.prepared import PreparedJob, PreparedLandscape
from landscape.core.devices import KEPT_BYTES, kept_limit, pick_device
from landscape.core.errors import JobError, quoted
from landscape.core.folders import locate
from landscape.core.grid import Grid, Index, choose_tile_shape, within
from landscape.core.plan import Engine, Plan, default_plan
from landscape.core.progress import CHOOSING, stage
from landscape.core.quantisation import Quantisation
from landscape.evaluation.evaluator import Evaluator
from landscape.evaluation.model_rounding import rounded_layers, rounded_weights
from landscape.evaluation.reduction import terms_of
from landscape.evaluation.running_model import refuse_unrounded
from landscape.evaluation.tuning.choices import KeptChoices, Limits, TuningScope
from landscape.evaluation.tuning.local_search import tune
from landscape.job.job import Job, names_a_run
from landscape.job.landscape import Landscape
from landscape.model.shards import is_sharded
from landscape.problem.supervised import Observe
from landscape.problem.user_code import in_folder
from landscape.store.landscape import LandscapeStore
from landscape.store.runs import landscape_names
from landscape.surface.record import Record
from landscape.surface.surface import SampleLosses

log = logging.getLogger("landscape")


def borrowed_plan(job: Job, num_samples: int) -> Plan | None:
    """The plan of the run that the job's `engine` names; None if it names an engine, or leaves it open.

    Args:
        num_samples: the samples of the job, at most those of a batch.

    Raises:
        JobError: that run has no landscape, or its arithmetic is not the one that the job asks for.
    """
    if not names_a_run(job.engine):
        return None
    place = locate(job.engine, job.folder)
    name = quoted(job.engine)
    stores = [LandscapeStore.open(place, landscape) for landscape in landscape_names(place)]
    plans = [recorded_plan(store) for store in stores if not store.record.is_imported]
    if not plans:
        raise JobError(f"engine: must be a run that has landscapes, not {name}; name another one, or an engine")
    choices = {(plan.engine, plan.batch_size) for plan in plans}
    if len(choices) > 1:
        several = "; ".join(f"{engine}, batch_size {size}" for engine, size in sorted(choices, key=str))
        raise JobError(f"engine: run {name} has several ({several}); name one of them, and batch_size")
    (engine, size), plan = choices.pop(), plans[0]
    asked = {
        "precision": job.precision, "batch_norm": job.batch_norm, "threads": job.threads or 1,
        "batch_size": job.batch_size or size, "device": plan.device if job.device == "auto" else job.device,
    }  # fmt: skip
    other = [f"{field} {getattr(plan, field)}" for field, value in asked.items() if getattr(plan, field) != value]
    if other:
        mine = ", ".join(str(value) for field, value in asked.items() if getattr(plan, field) != value)
        raise JobError(
            f"engine: run {name} computes with {', '.join(other)}, the job with {mine}; make them agree, or name one"
        )
    return replace(plan, engine=engine, batch_size=min(size, num_samples))


def plan_of(
    job: Job,
    stored: LandscapeStore | None,
    num_samples: int,
    device: str,
    *,
    bfloat16_weights: bool = False,
) -> Plan:
    """The recorded plan of a landscape on disk, else the default.

    Args:
        num_samples: the samples of the job, the upper limit of a batch.
        device: the kind of device that a new landscape is planned for.
        bfloat16_weights: whether a new landscape keeps bfloat16 weights in bfloat16.

    Raises:
        JobError: the job contradicts the record.
    """
    if stored is None:
        return default_plan(
            num_samples, device, job.precision, job.batch_norm, job.seed, job.batch_size, job.threads, bfloat16_weights
        )
    plan = recorded_plan(stored)
    changed = _contradictions(job, stored, plan, num_samples)
    if changed:
        raise JobError(refusal_of_job(stored.name, changed, "leave it out to go on as before"))
    return plan


def _contradictions(job: Job, stored: LandscapeStore, plan: Plan, num_samples: int) -> list[str]:
    """The changed requests of the job that the landscape's plan does not fulfil, a phrase each."""
    asked = {
        "batch_size": job.batch_size and min(job.batch_size, num_samples),
        "threads": job.threads,
        "engine": job.asked_engine,
    }
    # A request that the landscape was begun with is no change, even if memory allowed less.
    before = stored.job
    changed = [
        f"{field} {getattr(plan, field)} to {value}"
        for field, value in asked.items()
        if value is not None and value != getattr(plan, field) and getattr(job, field) != getattr(before, field)
    ]
    if job.engine != before.engine and (other := borrowed_plan(job, num_samples)) is not None:
        both = (("engine", plan.engine, other.engine), ("batch_size", plan.batch_size, other.batch_size))
        changed += [f"{field} {mine} to {theirs}" for field, mine, theirs in both if mine != theirs]
    return changed


# ----------------------------------------------------------------------------------------------------
# Whether a landscape keeps the losses of single samples, and the refusal if it cannot.

BYTES = SampleLosses.dtype.itemsize  # of one loss


def keeps_samples(
    job: Job, name: str, stored: LandscapeStore | None, extended: LandscapeStore | None, observe: Observe,
    grid: Grid, num_samples: int,
) -> bool:  # fmt: skip
    """Whether the losses of single samples are stored: as in the landscape on disk, else as the job says.

    Args:
        stored: the landscape of this name; None if there is none yet.
        extended: the landscape that it extends.

    Raises:
        JobError: the job asks for them, and they cannot be kept.
    """
    if stored is not None:
        if job.keep_samples and not stored.record.keep_samples:
            raise JobError(
                f"keep_samples: landscape {quoted(name)} holds no losses of single samples, as it was begun without; "
                "leave keep_samples out, or give the landscape another name"
            )
        return stored.record.keep_samples
    if not (job.keep_samples if extended is None else extended.record.keep_samples):
        return False
    if terms_of(observe) is not None:
        raise JobError(
            "keep_samples: the loss is a sum of terms, each over points of its own, and no sample has a loss; leave "
            "keep_samples out"
        )
    _refuse_too_many(name, grid, num_samples)
    return True


def bytes_of_losses(points: int, num_samples: int) -> int:
    """Bytes that the losses of so many samples take at so many points."""
    return BYTES * points * num_samples


def _refuse_too_many(name: str, grid: Grid, num_samples: int) -> None:
    needed, limit = bytes_of_losses(grid.points, num_samples), kept_limit()
    if needed > limit:
        fits = limit // (BYTES * grid.points)
        fewer = f"take num_samples: {fits}, fewer points" if fits > 1 else "take fewer samples or points"
        raise JobError(
            f"keep_samples: must take at most {limit} bytes, not the {needed} of landscape {quoted(name)} "
            f"({grid.points} points x {num_samples} samples x {BYTES} bytes); {fewer}, or set {KEPT_BYTES}={needed}"
        )


# ----------------------------------------------------------------------------------------------------
# How new landscapes of a job will be computed: engine, batches, shape of tiles.

TILE_BYTES = 8 << 20  # of the losses of single samples


def tuning_scope(prepared: PreparedJob) -> tuple[TuningScope, Plan | None]:
    """The tuning scope for new landscapes, and the plan of the job's last stored one, or of another run.

    One job has one engine: the choice for one landscape holds for the rest.
    """
    stored = landscape_names(prepared.run)
    # Of the whole job: a resumed job must get the same search as a new one.
    points = sum(landscape.points for landscape in prepared.landscapes)
    # The last one: an earlier one may have an engine that a later one could not use.
    latest = next((landscape for landscape in reversed(prepared.landscapes) if landscape.name in stored), None)
    chosen = prepared.borrowed if latest is None else latest.plan
    by = "given" if latest is None else _chosen_by(LandscapeStore.open(prepared.run, latest.name).record)
    job = prepared.job
    engine = job.asked_engine or (chosen.engine if chosen else None)
    if prepared.ranks > 1 or is_sharded(prepared.problem.model):
        engine = engine or Engine()  # the processes of a group would measure different times, and choose differently
    # In the store the last axis comes first.
    grids = [landscape.grid for landscape in prepared.landscapes] if job.tile is not None else []
    rows = [tile_shape_for(job, grid, Engine(), 1.0, 1)[0] for grid in grids]
    same_moved = len({frozenset(_moved_matrices(landscape)) for landscape in prepared.landscapes}) < 2
    may_choose_batch_size = job.batch_size is None and chosen is None
    needs_cost = engine is None or job.tile is None
    row = min(rows, default=None)
    return TuningScope(engine, may_choose_batch_size, points, row, same_moved, needs_cost, by), chosen


def _moved_matrices(landscape: PreparedLandscape) -> Iterator[str]:
    """The names of the moved tensors that are weights of layers."""
    for axis in landscape.directions:
        yield from (name for name in axis.tensors if landscape.origin[name].dim() > 1)


def _chosen_by(record: Record) -> str:
    """What chose the engine of a landscape."""
    choice = None if record.provenance is None else record.provenance.engine
    return (choice and choice.by) or "given"


def bound_to(scope: TuningScope, landscape: PreparedLandscape) -> TuningScope:
    """The scope once a landscape of the job is planned: neither engine nor batch size may be chosen."""
    by = _chosen_by(landscape.record)
    return replace(scope, engine=landscape.plan.engine, may_choose_batch_size=False, by=by)


def tune_landscape(
    prepared: PreparedJob,
    landscape: PreparedLandscape,
    scope: TuningScope,
    on_point: Callable[[], None],
    limits: Limits | None = None,
) -> tuple[PreparedLandscape, float]:
    """The landscape with its tuned engine and batches, and the seconds per point; call it before any value."""
    stage(CHOOSING)
    evaluator, kept = make_evaluator(prepared, landscape, on_point), KeptChoices.of_user()
    if scope.engine is not None:  # the job's one engine, as far as this landscape's rounding allows
        scope = replace(scope, engine=scope.engine.suiting(landscape.plan.quantise))
    with in_folder(prepared.folder):
        tuned = tune(evaluator, landscape.grid, scope, kept=kept, limits=limits)
    planned = landscape.tuned(tuned)
    if tuned.warning:
        log.warning("%s", tuned.warning)
    if tuned.raised:
        log.warning("%s", raising_warning(landscape.name, tuned.raised))
    return planned, tuned.seconds_per_point


def make_evaluator(
    prepared: PreparedJob, landscape: PreparedLandscape, on_point: Callable[[], None] = lambda: None
) -> Evaluator:
    """The evaluator of a landscape on this machine's device, its origin and directions loaded.

    Args:
        on_point: is called before each point; an exception that it raises ends the evaluation.

    Raises:
        JobError: the landscape was begun on another kind of device than this machine has.
    """
    problem, device = prepared.problem, pick_device(prepared.job.device)
    if device.type != landscape.plan.device:
        raise JobError(
            f"device: landscape {quoted(landscape.name)} is computed on {landscape.plan.device}, here is "
            f"{device.type}, and the bits would differ; resume on such a device, or give it another name or run"
        )
    with in_folder(prepared.folder):
        return Evaluator(
            problem.model, prepared.samples, problem.observe, landscape.plan, device, landscape.origin,
            [direction.tensors for direction in landscape.directions], on_point, origin_in=prepared.job.origin_in,
            shared_over=problem.shared_over,
        )  # fmt: skip


def tile_shape_for(
    job: Job, grid: Grid, engine: Engine, seconds_per_point: float, workers: int, kept_samples: int = 0
) -> Index:  # fmt: skip
    """The job's own tile shape, or the one that suits the cost of a point and the engine.

    Args:
        kept_samples: the number of samples whose losses are stored.
    """
    if job.tile is None:
        shape = choose_tile_shape(
            grid.shape, seconds_per_point, workers, in_rows=engine.shares_rows, at_once=engine.points
        )
        return within_tile_bytes(shape, kept_samples)
    per_axis = job.tile * len(grid.shape) if len(job.tile) == 1 else job.tile
    return tuple(min(t, n) for t, n in zip(reversed(per_axis), grid.shape, strict=True))


def within_tile_bytes(shape: Index, kept_samples: int) -> Index:
    """The shape of tiles, reduced until a tile's losses of so many samples take at most `TILE_BYTES`.

    A worker sends the losses of a tile in one message.
    """
    return within(shape, TILE_BYTES // bytes_of_losses(1, kept_samples) if kept_samples else None)


# ----------------------------------------------------------------------------------------------------
# Checks of quantised landscapes before anything is computed.


def quantisation_of(job: Job, spec: Landscape, model: nn.Module) -> Quantisation | None:
    """The landscape's quantisation; None if it is not quantised.

    Raises:
        JobError: the model has nothing to round, or the job's engine would not round it.
    """
    if not spec.quantise:
        return None
    asked = spec.quantise.value
    if asked.weights and not rounded_weights(model):
        raise JobError(
            f"quantise: landscape {quoted(spec.name)} must have weights to round, floating-point parameters of two "
            "dimensions or more outside of normalisation layers, and the model has none; leave quantise out"
        )
    if asked.activations and not rounded_layers(model):
        raise JobError(
            "quantise.activations: the model must have linear layers or convolutions, whose inputs are rounded; it has "
            "none; leave activations out"
        )
    if job.asked_engine is not None:
        try:
            refuse_unrounded(job.asked_engine, asked)
        except ValueError as error:
            raise JobError(f"engine: {error}") from None
    return asked
