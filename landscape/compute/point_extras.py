"""Convexity maps: what is refused before anything is computed, and how their second derivatives are taken."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from landscape.compute.eigen_stores import bytes_of_bases, most_steps, refuse_large_bases
from landscape.compute.prepared import WATCHED_EVALUATIONS, PreparedJob, PreparedLandscape
from landscape.core.devices import KEPT_BYTES, device_here, kept_limit, pick_device
from landscape.core.errors import CHOOSING, JobError, LandscapeError, message_of, quoted, stage
from landscape.core.grid import Grid, Index, choose_tile_shape, within
from landscape.core.plan import OPTIONS, Plan, Reduction, default_plan
from landscape.core.quantisation import Quantisation
from landscape.evaluation.derivatives import RECALIBRATED, Differentiation, NoSecondDerivative, Products
from landscape.evaluation.dry_run import SAMPLES
from landscape.evaluation.evaluator import Evaluator
from landscape.evaluation.layers import layers_at, loss_factors
from landscape.evaluation.model_rounding import rounded_layers, rounded_weights
from landscape.evaluation.reduction import terms_of
from landscape.evaluation.running_model import refuse_unrounded
from landscape.evaluation.tuning.choices import KeptChoices, Limits, TuningScope
from landscape.evaluation.tuning.trials import tune
from landscape.job.directions.file import PRODUCT_EVALUATIONS
from landscape.job.job import Job
from landscape.job.landscape import Landscape
from landscape.job.landscape_options import Convexity, Layers
from landscape.model.parameters import State, trainable_matrices
from landscape.problem.supervised import Observe
from landscape.problem.terms import Problem
from landscape.problem.user_code import in_folder, in_words
from landscape.store.landscape import LandscapeStore
from landscape.store.runs import landscape_names
from landscape.surface.record_entries import BREAKING, EIGENVALUES, RATIO, ConvexityRecord, LayersRecord
from landscape.surface.surface import SampleLosses


def convexity_of(
    prepared: PreparedJob, asked: Convexity | None, origin: State, plan: Plan, observables: tuple[str, ...],
    stored: LandscapeStore | None,
) -> ConvexityRecord | None:  # fmt: skip
    """How the eigenvalues of a convexity map are computed; None where none is asked for.

    Args:
        prepared: the job, without its landscapes.
        observables: what `observe` returns.
        stored: the landscape on disk, which says how it was begun.

    Raises:
        JobError: they cannot be computed.
    """
    if asked is None:
        return None
    if plan.statistics.recalibrated:
        raise JobError(RECALIBRATED)
    taken = {*observables, *prepared.problem.derived} & {*EIGENVALUES, *RATIO}
    if taken:
        raise JobError(f"convexity: {quoted(min(taken))} is what observe returns already; give that another name")
    infos = [info for info in trainable_matrices(prepared.problem.model) if info.name in origin]
    size = sum(math.prod(info.shape) for info in infos)
    if not size:
        raise JobError(
            "convexity: the model must have a trainable parameter of two dimensions or more, as biases and norms are "
            "left out; it has none"
        )
    refuse_large_bases(size, asked.steps)
    if stored is not None and stored.record.convexity is not None:
        return replace(stored.record.convexity, steps=asked.steps, parameters=size)
    how = _second_derivatives(prepared, origin, plan) if prepared.looked else "autograd"
    most = most_steps(size, asked.steps)
    return ConvexityRecord(steps=asked.steps, parameters=size, second_derivatives=how, most=most)


def eigenvalues_of(asked: Convexity | None, stored: LandscapeStore | None) -> tuple[str, ...]:
    """The observables of a convexity map: those that it was begun with, if it was."""
    if asked is None:
        return ()
    begun = None if stored is None else stored.record.convexity
    return EIGENVALUES if begun is None else begun.observables


def _second_derivatives(prepared: PreparedJob, origin: State, plan: Plan) -> str:
    """How a product with the Hessian of a few samples can be computed here.

    Raises:
        JobError: in no way.
    """
    few, problem = prepared.samples.few(SAMPLES), prepared.problem
    here = torch.device("cpu") if prepared.job.device == "cpu" else device_here()
    with in_folder(prepared.folder):
        try:
            plan = replace(plan, batch_size=SAMPLES)
            names = [info.name for info in trainable_matrices(problem.model)]
            try:
                _try_product(Differentiation(problem.model, few, problem.observe, plan, here, origin, names), problem)
            except NoSecondDerivative:
                plan = replace(plan, precision="float64")
                found = Differentiation(problem.model, few, problem.observe, plan, here, origin, names)
                _try_product(found, problem, "differences")
                return "differences"
        except JobError:
            raise
        except Exception as error:
            raise JobError(
                f"convexity: the loss must have derivatives, and taking them {in_words(error)}; leave convexity out, "
                "or mend it"
            ) from error
    return "autograd"


def _try_product(derivatives: Differentiation, problem: Problem, how: Products = "autograd") -> None:
    factors = loss_factors([derivatives.totals(block) for block in range(derivatives.blocks)], problem.observe)
    derivatives.products(0, factors, [torch.ones(derivatives.size, dtype=torch.float64)], how)


def convexity_cost(landscape: PreparedLandscape, missing: int) -> dict[str, Any] | None:
    """What the eigenvalues of a convexity map cost at most, for `landscape plan`; None where it is none.

    Args:
        missing: how many points are left to compute.
    """
    record = landscape.record.convexity
    if record is None:
        return None
    differs = record.second_derivatives == "differences"
    return {
        "parameters": record.parameters,
        "second_derivatives": record.second_derivatives,
        "precision": "float64" if landscape.plan.precision == "float64" or differs else "float32",
        "products": record.products,
        "most_products": record.most_products,
        "evaluations": record.products * PRODUCT_EVALUATIONS,
        "all_products": missing * record.products,
        "all_evaluations": missing * record.products * PRODUCT_EVALUATIONS,
        "all_most_evaluations": missing * record.most_products * PRODUCT_EVALUATIONS,
        "bytes": bytes_of_bases(record.parameters, record.most_products),
    }


def convexity_text(cost: Mapping[str, Any]) -> list[str]:
    """That cost in words, a line each."""
    how = "double backward" if cost["second_derivatives"] == "autograd" else "differences of gradients"
    further = (
        [f"up to {cost['most_products']} at a point where the sign of the smallest eigenvalue is open after these"]
        if cost["most_products"] > cost["products"]
        else []
    )
    return [
        f"eigenvalues of the Hessian over {cost['parameters']} weights: at each point at most {cost['products']} "
        f"products, about {cost['evaluations']} forward passes' time beside the one of the loss",
        *further,
        f"{cost['all_products']} products in all, about {cost['all_evaluations']} forward passes' time; by {how} in "
        f"{cost['precision']}, whatever the engine; {cost['bytes'] / 1e6:.3g} MB of memory a worker",
    ]


# ----------------------------------------------------------------------------------------------------
# Whether a landscape keeps the losses of single samples, and the refusal where it cannot.

BYTES = SampleLosses.dtype.itemsize  # of one loss


def keeps_samples(
    job: Job, name: str, stored: LandscapeStore | None, extended: LandscapeStore | None, observe: Observe,
    reduction: Reduction, grid: Grid, num_samples: int,
) -> bool:  # fmt: skip
    """Whether the losses of single samples are stored: as the landscape on disk has it, else as the job says.

    Args:
        stored: the landscape of this name; None where there is none yet.
        extended: the one that it extends.

    Raises:
        JobError: they are to be kept, and cannot be.
    """
    if stored is not None:
        if job.keep_samples and not stored.record.keep_samples:
            why = "an earlier version began it" if not stored.record.moment_rows else "it was begun without"
            raise JobError(
                f"keep_samples: landscape {quoted(name)} holds no losses of single samples, as {why}; leave "
                "keep_samples out, or give the landscape another name"
            )
        return stored.record.keep_samples
    if not (job.keep_samples if extended is None else extended.record.keep_samples):
        return False
    if reduction == "whole":
        raise JobError(
            "keep_samples: an earlier version began a landscape of this job, whose samples stand in another order; "
            "leave keep_samples out, or give the landscapes a run of their own"
        )
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
# How the landscapes of a job that are new will be computed: their engine, their batches, the shape of their tiles.

log = logging.getLogger("landscape")

TILE_BYTES = 8 << 20  # of the losses of single samples


def tuning_scope(prepared: PreparedJob) -> tuple[TuningScope, Plan | None]:
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
    return TuningScope(engine, job.batch_size is None and chosen is None, points, min(rows, default=None)), chosen


def bound_to(scope: TuningScope, plan: Plan) -> TuningScope:
    """What is left to choose once a landscape of the job has this plan: neither the engine nor the batch size."""
    return replace(scope, engine=plan.engine, may_choose_batch_size=False)


def tune_landscape(
    prepared: PreparedJob,
    landscape: PreparedLandscape,
    scope: TuningScope,
    on_point: Callable[[], None],
    limits: Limits | None = None,
) -> tuple[PreparedLandscape, float]:
    """The landscape with the engine and batches that suit it, and the seconds a point costs; before any value."""
    stage(CHOOSING)
    evaluator, kept = make_evaluator(prepared, landscape, on_point), KeptChoices.of_user()
    if scope.engine is not None:  # the job's one engine, as far as this landscape's rounding lets it
        scope = replace(scope, engine=scope.engine.suiting(landscape.plan.quantise))
    with in_folder(prepared.folder):
        tuned = tune(evaluator, landscape.grid, scope, kept=kept, limits=limits)
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
            f"device: landscape {quoted(landscape.name)} is computed on {landscape.plan.device}, here is "
            f"{device.type}, and the bits would differ; go on where it was begun, or give it another name or run"
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


# ----------------------------------------------------------------------------------------------------
# Which layer breaks at each point: what is refused before anything is computed, and which layers there are.


def layers_of(
    prepared: PreparedJob, asked: Layers | None, origin: State, observables: tuple[str, ...],
    stored: LandscapeStore | None,
) -> LayersRecord | None:  # fmt: skip
    """The layers that are watched at every point, as they are at the origin; None where none are asked for.

    Args:
        prepared: the job, without its landscapes.
        observables: what `observe` returns.
        stored: the landscape on disk, which says which they are.

    Raises:
        JobError: they cannot be watched.
    """
    if asked is None:
        return None
    taken = {*observables, *prepared.problem.derived} & set(BREAKING)
    if taken:
        raise JobError(f"layers: {quoted(min(taken))} is what observe returns already; give that another name")
    if stored is not None and stored.record.layers is not None:
        return stored.record.layers
    if not prepared.looked:
        raise JobError(
            "layers: the network must be run where the job is prepared, to see which layers it has, and this machine "
            "has not the device for it; begin the landscape on one that has"
        )
    here = torch.device("cpu") if prepared.job.device == "cpu" else device_here()
    job, problem, few = prepared.job, prepared.problem, prepared.samples.few(SAMPLES)
    plan = default_plan(SAMPLES, here.type, job.precision, job.batch_norm, job.seed, None, None)
    try:
        with in_folder(prepared.folder):
            seen = layers_at(Evaluator(problem.model, few, problem.observe, plan, here, origin, ()), ())
    except LandscapeError as error:
        raise JobError(f"layers: {message_of(error)}; leave layers out, or mend it") from error
    names = [layer.name for layer in seen.layers]
    return LayersRecord(
        layers=tuple(names),
        weights=tuple(each.layer for each in seen.weights),
        rules=asked.rules,
        statistics=asked.statistics,
    )


def layers_text(landscape: PreparedLandscape) -> list[str]:
    """What the layers of a landscape cost, in words for `landscape plan`; nothing where none are watched."""
    record = landscape.record.layers
    if record is None:
        return []
    more = f", {len(record.statistics)} statistics of each stored" if record.statistics else ""
    return [
        f"{len(record.layers)} layers and operations watched at each point, about {WATCHED_EVALUATIONS} forward "
        f"passes' time beside the one of the loss{more}"
    ]


def layers_cost(landscape: PreparedLandscape, missing: int) -> dict[str, Any] | None:
    """The same as plain values; None where none are watched.

    Args:
        missing: how many points are left to compute.
    """
    record = landscape.record.layers
    if record is None:
        return None
    return {
        "layers": len(record.layers),
        "observables": len(record.observables),
        "evaluations": WATCHED_EVALUATIONS,
        "all_evaluations": missing * WATCHED_EVALUATIONS,
        "text": layers_text(landscape),
    }


# ----------------------------------------------------------------------------------------------------
# What is refused of a landscape that is quantised, before anything is computed, and told of one that is not.


def quantisation_of(job: Job, spec: Landscape, model: nn.Module) -> Quantisation | None:
    """How the landscape is quantised; None where it is not.

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


def engine_warnings(job: Job, landscapes: Sequence[PreparedLandscape]) -> list[str]:
    """A warning where an option of the job's engine is for quantised landscapes alone, and others are in the job."""
    engine = job.asked_engine
    plain = [each.name for each in landscapes if engine is not None and engine.against(each.plan.quantise)]
    if engine is None or not plain:
        return []
    names = engine.against(None)
    where = "; ".join(f"{name} does nothing {OPTIONS[name].suits.against}" for name in names)
    verb = "is" if len(plain) == 1 else "are"
    return [f"engine: {', '.join(plain)} {verb} computed by {engine.suiting(None)} in place of {engine}: {where}"]
