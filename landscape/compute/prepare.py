"""From a job to what can be evaluated: the problem, its samples, and per landscape origin, axes, grid and path.

Everything that can be wrong with a job is found here, before anything is written. What decides the values is
collected as the landscape's *identity*; a landscape on disk with another identity is refused.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from landscape.compute.auto_range import RangeFinder, not_found, with_found_range, with_range
from landscape.compute.axes import check_tile, cosines_of, make_axes, make_grid
from landscape.compute.dry_run import (
    data_warnings,
    end_warnings,
    look_at,
    losses_of_few,
    origin_warnings,
    rounding_warnings,
    thread_warnings,
)
from landscape.compute.eigen_stores import Solver, foreseen, solving_for
from landscape.compute.extension import Extension, extension_of, refinement_of
from landscape.compute.identity import coordinates_asked, identity_of, refuse_another
from landscape.compute.path import LandscapeContext, path_of, states_on
from landscape.compute.paths import Weights, check_paths, network_of
from landscape.compute.point_extras import (
    convexity_of,
    eigenvalues_of,
    engine_warnings,
    keeps_samples,
    layers_of,
    quantisation_of,
)
from landscape.compute.prepared import PreparedJob, PreparedLandscape, provenance
from landscape.compute.recorded import borrowed_plan, is_of_before, plan_of, recorded_plan
from landscape.compute.requested import asked_of, statistics_warnings, with_batch_norm
from landscape.core.devices import device_here
from landscape.core.digests import digest
from landscape.core.grid import Grid
from landscape.core.plan import Plan, Reduction
from landscape.core.validation import refuse_too_far
from landscape.evaluation.dry_run import FirstLook
from landscape.evaluation.model_rounding import rounded_weights
from landscape.evaluation.reduction import moment_rows, terms_of
from landscape.job.directions.base import DirectionTensors, Workers, in_this_process
from landscape.job.job import Job
from landscape.job.landscape import Landscape
from landscape.job.recorded import DEFAULTS, with_defaults_of
from landscape.model.packed_snapshots import trajectory_of
from landscape.model.parameters import describe_parameters, immobile, in_first_version, refuse_not_finite
from landscape.model.run_files import read_problem
from landscape.problem.callback import load_problem, refuse_inlined, refuse_other_precision
from landscape.problem.collated import length_by_observing
from landscape.problem.randomness import look_for_randomness, randomness_warnings
from landscape.problem.samples import Samples
from landscape.problem.selection import select_samples
from landscape.problem.supervised import Observe, guessing_of
from landscape.problem.terms import PointSets, Problem
from landscape.problem.user_code import in_folder
from landscape.store.landscape import LandscapeStore
from landscape.store.levels import grid_of_level
from landscape.store.runs import landscape_names, refuse_unwritable
from landscape.surface.record import Record
from landscape.surface.record_entries import RATIO
from landscape.surface.record_parts import RandomData, TermRecord

# ----------------------------------------------------------------------------------------------------
# What all landscapes of a job are prepared from.


@dataclass(frozen=True)
class PreparationContext:
    """What all landscapes of a job share."""

    job: Job
    problem: Problem
    weights: Weights
    samples: Samples
    samples_digest: str
    look: FirstLook
    device: str
    randomness: RandomData
    workers: Workers
    reduction: Reduction
    extended: LandscapeStore | None
    bare: PreparedJob
    solver: Solver
    finder: RangeFinder

    @property
    def moment_rows(self) -> tuple[str, ...]:
        """What moments are kept of; nothing in landscapes of earlier versions."""
        if self.reduction == "whole":
            return ()
        return moment_rows(self.observables, terms_of(self.problem.observe))

    @property
    def observables(self) -> tuple[str, ...]:
        """The names of what is observed."""
        return self.look.names

    @property
    def num_samples(self) -> int:
        """How many samples were taken: the data may have fewer than the job asks for."""
        return self.samples.length


# ----------------------------------------------------------------------------------------------------
# The record of a landscape that is prepared: which job began it, what decides its values, what it was made from.


def begun_record(
    common: PreparationContext, spec: Landscape, defaults: int, position: int, identity: Mapping[str, Any]
) -> Record:
    """The record with the entries that say which job began the landscape, and what decides its values."""
    job, extended = common.job.model_dump(mode="json"), common.extended
    if extended is not None:
        # What was asked for when an extended landscape was made is no change, also where its plan is another.
        job |= {key: extended.job.whole.get(key) for key in ("engine", "batch_size")}
    return Record().changed(
        job=job | {"landscapes": [spec.model_dump(mode="json")]},
        defaults=defaults,
        position=position if extended is None else extended.record.position,
        identity=identity,
        digest=digest(identity),
    )


def described(
    record: Record, common: PreparationContext, context: LandscapeContext, directions: tuple[DirectionTensors, ...],
    plan: Plan, observables: tuple[str, ...],
) -> Record:  # fmt: skip
    """The record with the entries that describe the landscape: samples, arithmetic, geometry and provenance."""
    job, origin = common.job, context.reference
    return record.changed(
        num_samples=common.num_samples,
        precision=job.precision,
        batch_norm=job.batch_norm,
        seed=job.seed,
        observables=list(observables),
        moment_rows=list(common.moment_rows),
        cosine=cosines_of(directions, context).tolist(),
        origin=context.name(origin),
        origin_step=origin if isinstance(origin, int) else None,
        plan=plan.record(),
        provenance=provenance(common.problem.model, context.infos, job.folder),
        failures=[],
        random_data=common.randomness,
        **({"went_on_to": later} if (later := common.weights.went_on_to(origin)) else {}),
        **({"snapshots": meant} if (meant := context.meant) else {}),
        **({"derived": dict(common.problem.derived)} if common.problem.derived else {}),
        **({"guessing": guess} if (guess := guessing_of(common.problem.observe, common.samples)) is not None else {}),
        **({"weighted": True} if common.look.weighted else {}),
        **({"terms": terms} if (terms := terms_recorded(common.problem.observe, common.samples)) else {}),
    )


def terms_recorded(observe: Observe, samples: Samples) -> dict[str, TermRecord]:
    """The terms of a loss that is a sum, by name; empty where `observe` returns the loss.

    Args:
        samples: those of the job, which know how many points each term has where they are sets of points.
    """
    sizes = samples.sizes if isinstance(samples, PointSets) else {}
    factors = terms_of(observe) or {}
    return {name: TermRecord(weight=float(factor), samples=sizes.get(name)) for name, factor in factors.items()}


# ----------------------------------------------------------------------------------------------------

log = logging.getLogger("landscape")


def prepare(
    job: Job, workers: Workers = in_this_process, solver: Solver = foreseen, finder: RangeFinder = not_found,
    *, reading: bool = False,
) -> PreparedJob:  # fmt: skip
    """Check the whole job and work out every landscape; reads, and writes nothing but what a solver keeps.

    Where the job leaves the device open it is planned for this machine's; a driver plans anew when its workers
    turn out to have another kind (`PreparedLandscape.on_device`).

    Args:
        workers: where directions that are costly to make may run.
        solver: computes the eigenvectors that are axes; default: random vectors stand in, for a look at the job.
        finder: finds ranges that the job leaves to the loss; default: others stand in, likewise.
        reading: whether nothing will be written to the run, which may then be on a disk that is mounted read-only.

    Raises:
        JobError: something in the job cannot be computed as it stands.
    """
    run = job.run_path
    if not reading:
        refuse_unwritable(run)
    here = torch.device("cpu") if job.device == "cpu" else device_here()
    asked = asked_of(job)
    begun = set(landscape_names(run)) & {spec.name for spec in asked.landscapes}
    extended = None if job.extends is None else LandscapeStore.open(run, job.extends)
    borrowed = None if begun else borrowed_plan(job, asked.num_samples)  # one job has one engine
    if extended is not None:
        borrowed = recorded_plan(extended)
    reduction: Reduction = "whole" if is_of_before(run, begun) else "blocks"
    network = network_of(job, asked.landscapes)
    with in_folder(job.folder):
        problem = load_problem(job.problem, job.folder, network)
        refuse_other_precision(problem.model, job.precision)
        job, of_batch_norm = with_batch_norm(job, problem.model, asked.landscapes)
        chosen = select_samples(
            problem.data, asked.num_samples, job.seed, at_most=asked.at_most, ascending=reduction == "whole",
            length=problem.length, observed=length_by_observing(problem.model, problem.observe),
        )  # fmt: skip
        samples = chosen.samples
        digest_of_samples = samples.digest()
        randomness = _recorded_randomness(run, begun, digest_of_samples)
        if randomness is None:
            randomness = look_for_randomness(problem.data, asked.num_samples, job.seed)
        look, looked = look_at(problem, samples, job, here)
        folder = Path.cwd()
    weights = Weights(problem, trajectory_of(run, job.problem, job.folder), job.folder)
    device = here.type if job.device == "auto" else job.device
    bare = PreparedJob(job, run, problem, samples, (), looked, (), folder)
    common = PreparationContext(
        job, problem, weights, samples, digest_of_samples, look, device, randomness, workers, reduction, extended,
        bare, solver, finder,
    )  # fmt: skip
    landscapes = tuple(_prepare_landscape(common, spec, place) for place, spec in enumerate(asked.landscapes))
    warnings = [*of_batch_norm, *randomness_warnings(randomness), *data_warnings(samples), *look.warnings]
    warnings += statistics_warnings(job, problem.model, asked.landscapes, landscapes)
    warnings += immobile(problem.model, bfloat16_weights=look.bfloat16_weights)
    warnings += rounding_warnings(landscapes) + thread_warnings(job) + engine_warnings(job, landscapes)
    warnings += end_warnings(asked.landscapes, landscapes)
    own = read_problem(run) == job.problem  # as a recipe's
    with in_folder(folder):
        losses = partial(losses_of_few, problem, samples, here)
        guessing = partial(guessing_of, problem.observe, samples)
        warnings += origin_warnings(
            asked.landscapes, weights, losses, guessing, implied=asked.implied, own_callback=own
        )
    return PreparedJob(
        job, run, problem, samples, landscapes, looked, tuple(warnings), folder, borrowed, chosen.indices, network,
        common.observables,
    )  # fmt: skip


def _recorded_randomness(run: str, begun: Collection[str], samples: str) -> RandomData | None:
    """What a landscape of the job has recorded of the same samples; None where none has, and they are to be read."""
    for name in sorted(begun):
        stored = LandscapeStore.find(run, name)
        if stored is not None and stored.identity.samples == samples and stored.record.random_data is not None:
            return stored.record.random_data
    return None


def _prepare_landscape(common: PreparationContext, asked: Landscape, position: int) -> PreparedLandscape:
    job, weights, level = common.job, common.weights, common.job.level
    stored = LandscapeStore.find(job.run_path, asked.name, level=level.number if level else 0)
    # An extension is laid out, and planned, as what it extends; a level has no directions of its own.
    like = common.extended if level else stored or common.extended
    defaults = DEFAULTS if like is None else like.record.defaults or 1
    context = _context(common, with_found_range(asked, like), defaults)
    spec = context.spec
    check_paths(context.paths, weights)
    for direction in spec.directions:
        direction.check(context)
    layers = layers_of(common.bare, spec.layers, context.origin, common.observables, like)
    of_layers = () if layers is None else layers.observables
    observables = (*common.observables, *eigenvalues_of(spec.convexity, like), *of_layers)
    identity = identity_of(job, context, common.samples_digest, common.num_samples, observables)
    if level is not None:
        identity["level"] = level.number
    elif stored is not None:
        refuse_another(stored, identity, job)
    refuse_not_finite(context.origin, context.infos, f"origin: {context.name(context.reference)}")
    plan = plan_of(
        job, like, common.num_samples, common.device,
        bfloat16_weights=common.look.bfloat16_weights, reduction=common.reduction,
    ).rounding(quantisation_of(job, spec, common.problem.model))  # fmt: skip
    refuse_inlined(common.problem.model, plan)
    convexity = convexity_of(common.bare, spec.convexity, context.origin, plan, common.observables, like)
    solve = solving_for(common.solver, common.bare, spec.name, context.origin, plan, identity)
    context = replace(context, solve=solve)
    directions = make_axes(context, like)
    context, found = with_range(common.finder, common.bare, context, directions, plan.rounding(None), like)
    spec = context.spec
    if found is not None:
        identity["coordinates"] = coordinates_asked(spec)
    # What is on disk wins: another machine may round a fitted range or a component differently.
    path = None if level else path_of(context, directions, like)
    grid = _grid(common, like, identity) or make_grid(context, path, defaults)
    for coordinates in grid.coordinates:
        refuse_too_far("range", coordinates, plan.precision)
    check_tile(job, grid)
    extension = _extension(common, identity, grid, plan, spec.name)
    begun = begun_record(common, spec, defaults, position, identity)
    record = described(begun, common, context, directions, plan, observables)
    if plan.quantise is not None and plan.quantise.weights:
        record = record.changed(rounded=[info.name for info in rounded_weights(common.problem.model)])
    if convexity is not None:
        record = record.changed(convexity=convexity, derived={**common.problem.derived, **RATIO})
    if layers is not None:
        record = record.changed(layers=layers)
    if found is not None:
        record = record.changed(found_range=found)
    if level is not None:
        record = record.changed(level=level)
    elif keeps_samples(
        job, spec.name, stored, common.extended, common.problem.observe, common.reduction, grid, common.num_samples
    ):
        record = record.changed(keep_samples=True)
    if extension is not None and extension.blocks is None:
        # The values of the first process stay what every other one must reproduce.
        known = extension.store.record
        record = record.changed(
            check=known.check, origin_loss=known.origin_loss, origin_loss_stderr=known.origin_loss_stderr
        )
    return PreparedLandscape(
        spec.name, context.origin, directions, grid, path, plan, identity, record, observables,
        states_on(path, context), extension,
    )  # fmt: skip


def _grid(common: PreparationContext, like: LandscapeStore | None, identity: Mapping[str, Any]) -> Grid | None:
    """The grid of what is on disk, or the finer one of a level of that; None where it is to be made."""
    if common.job.level is not None and common.extended is not None:
        return grid_of_level(common.extended, common.job.level)
    same = like is not None and like.identity.whole.get("coordinates") == identity["coordinates"]
    return like.grid() if like is not None and same else None


def _extension(
    common: PreparationContext, identity: Mapping[str, Any], grid: Grid, plan: Plan, name: str
) -> Extension | None:
    """What a landscape takes over; None where it extends no other one."""
    if common.extended is None:
        return None
    if common.job.level is not None:
        return refinement_of(common.extended, identity, plan)
    extension = extension_of(common.extended, identity, grid, common.samples, plan, common.job.adds, name)
    extension.refuse_other_moments(common.moment_rows, terms_of(common.problem.observe))
    return extension


def _context(common: PreparationContext, asked: Landscape, defaults: int) -> LandscapeContext:
    """What the landscape is made from, under the defaults that held when it was begun."""
    spec = with_defaults_of(asked, defaults)
    if spec != asked:
        log.info("landscape %s was begun under earlier defaults of what its job leaves out: they hold", spec.name)
    infos = describe_parameters(common.problem.model)
    if defaults == 1:
        infos = in_first_version(infos)
    return LandscapeContext(spec, common.weights, infos, common.problem, common.samples, common.workers)
