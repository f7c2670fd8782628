"""From a job to its prepared form: the problem, its samples, and per landscape origin, axes, grid and path.

Every error of a job is found here, before anything is written. Everything that decides the values is collected as the
landscape's *identity*; a landscape on disk with another identity is refused.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch

from landscape.compute.auto_range import RangeFinder, leave_range_open, with_found_range, with_range
from landscape.compute.axes_and_paths import check_tile, cosines_of, make_axes, make_grid, path_of, states_on
from landscape.compute.callback_place import copy_in_use, with_source_names
from landscape.compute.eigenpairs import Solver, solving_for, stand_in_spectrum
from landscape.compute.identity import coordinates_asked, identity_of, recorded_plan, refuse_another
from landscape.compute.job_warnings import (
    data_warnings,
    end_warnings,
    engine_warnings,
    moving_weights,
    origin_warnings,
    rounding_warnings,
    statistics_warnings,
    thread_warnings,
    with_batch_norm,
)
from landscape.compute.landscape_context import LandscapeContext, Weights, check_paths, network_of, own_state
from landscape.compute.plans import borrowed_plan, keeps_samples, plan_of, quantisation_of
from landscape.compute.point_extras import convexity_of, eigenvalues_of, layers_of
from landscape.compute.prepared import PreparedJob, PreparedLandscape, provenance
from landscape.compute.recorded_job import JobRequest, as_extended, asked_of
from landscape.compute.reused_values import Extension, extension_of, refinement_of
from landscape.core.devices import device_here
from landscape.core.errors import JobError, quoted
from landscape.core.grid import Grid
from landscape.core.plan import Plan, default_plan
from landscape.core.text import digest
from landscape.core.validation import refuse_too_far
from landscape.evaluation.dry_run import FirstLook, first_look
from landscape.evaluation.evaluator import Evaluator
from landscape.evaluation.feed import Batching, batching_of
from landscape.evaluation.model_rounding import rounded_weights
from landscape.evaluation.reduction import moment_rows, terms_of
from landscape.evaluation.running_model import type_of
from landscape.job.directions.base import Workers, in_this_process
from landscape.job.job import Job
from landscape.job.landscape import Landscape
from landscape.model.packed_file import names_a_file, names_onnx
from landscape.model.packed_snapshots import trajectory_of
from landscape.model.parameters import (
    State,
    describe_parameters,
    holds_bfloat16,
    immobile,
    refuse_not_finite,
)
from landscape.model.run_files import read_problem
from landscape.model.shards import is_sharded, refuse_other_type
from landscape.problem.batches import Samples
from landscape.problem.callback import (
    asks_for_mesh,
    load_problem,
    refuse_inlined,
    refuse_other_precision,
)
from landscape.problem.collated import length_by_observing
from landscape.problem.language import CausalLM
from landscape.problem.mesh import own_mesh, refuse_without_file
from landscape.problem.randomness import look_for_randomness, randomness_warnings
from landscape.problem.selection import select_samples
from landscape.problem.supervised import Observe, guessing_of, ordered_names
from landscape.problem.terms import PointSets, Problem
from landscape.problem.user_code import in_folder, told_if_slow
from landscape.store.documents import ROUNDS
from landscape.store.landscape import LandscapeStore
from landscape.store.levels import grid_of_level
from landscape.store.runs import landscape_names, refuse_unwritable
from landscape.surface.accuracy import first_pass
from landscape.surface.derived import check_derived
from landscape.surface.record import Record
from landscape.surface.record_entries import RATIO
from landscape.surface.record_parts import AccuracyRecord, RandomData, TermRecord

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
    sample_set: str
    look: FirstLook
    device: str
    randomness: RandomData
    workers: Workers
    extended: LandscapeStore | None
    bare: PreparedJob
    solver: Solver
    finder: RangeFinder

    @property
    def moment_rows(self) -> tuple[str, ...]:
        """The rows of kept moments."""
        return moment_rows(self.observables, terms_of(self.problem.observe))

    @property
    def observables(self) -> tuple[str, ...]:
        """The names of what is observed."""
        return self.look.names

    @property
    def num_samples(self) -> int:
        """The number of chosen samples: the data may have fewer than the job asks for."""
        return self.samples.length


# ----------------------------------------------------------------------------------------------------
# The record of a prepared landscape: the job that began it, its identity, its sources.


DEFAULTS = 2  # the version of the defaults of fields that a job leaves out


def begin_record(common: PreparationContext, spec: Landscape, position: int, identity: Mapping[str, Any]) -> Record:
    """The record with the job that began the landscape, and its identity."""
    job, extended = common.job.model_dump(mode="json"), common.extended
    fields, packed = spec.model_dump(mode="json"), None
    if extended is not None:
        # The requests that an extended landscape was begun with are no change, even if its plan differs from them.
        kept = ["engine", "batch_size"]
        if (copy := copy_in_use(common.job.problem, extended)) is not None:
            kept, fields = [*kept, "problem"], with_source_names(fields, copy)
        job |= {key: extended.job.whole.get(key) for key in kept}
        if all(extended.identity.whole.get(key) == identity[key] for key in ("samples", "observables")):
            packed = extended.record.packed  # the copy is of the same problem
    return Record().changed(
        job=job | {"landscapes": [fields]},
        defaults=DEFAULTS,
        position=position if extended is None else extended.record.position,
        identity=identity,
        digest=digest(identity),
        **({} if packed is None else {"packed": packed}),
    )


def describe_record(landscape: PreparedLandscape, common: PreparationContext, context: LandscapeContext) -> Record:
    """The landscape's record with the entries that describe it: samples, arithmetic, geometry and provenance."""
    job, origin = common.job, context.reference
    made = provenance(common.problem.model, context.infos, job.folder)
    if common.extended is not None and copy_in_use(job.problem, common.extended) is not None:
        before = common.extended.record.provenance  # the source, of which the copy only has the values
        made = replace(made, folder=before.folder, sent_from=before.sent_from, sent_host=before.sent_host)
    return landscape.record.changed(
        num_samples=common.num_samples,
        sample_set=common.sample_set,
        precision=job.precision,
        batch_norm=job.batch_norm,
        seed=job.seed,
        observables=list(landscape.observables),
        moment_rows=list(common.moment_rows),
        cosine=cosines_of(landscape.directions, context).tolist(),
        origin=context.name(origin),
        origin_step=origin if isinstance(origin, int) else None,
        plan=landscape.plan.record(),
        provenance=made,
        failures=[],
        random_data=common.randomness,
        **({"went_on_to": later} if (later := common.weights.went_on_to(origin)) else {}),
        **({"snapshots": meant} if (meant := context.meant) else {}),
        **({"derived": dict(common.problem.derived)} if common.problem.derived else {}),
        **({"guessing": guess} if (guess := guessing_of(common.problem.observe, common.samples)) is not None else {}),
        **({"weighted": True} if common.look.weighted else {}),
        **({"terms": terms} if (terms := terms_of_record(common.problem.observe, common.samples)) else {}),
    )


def terms_of_record(observe: Observe, samples: Samples) -> dict[str, TermRecord]:
    """The terms of a loss that is a sum, by name; empty where `observe` returns the loss.

    Args:
        samples: of the job; sets of points know how many points each term has.
    """
    sizes = samples.sizes if isinstance(samples, PointSets) else {}
    factors = terms_of(observe) or {}
    return {name: TermRecord(weight=float(factor), samples=sizes.get(name)) for name, factor in factors.items()}


def prepare(
    job: Job, workers: Workers = in_this_process, solver: Solver = stand_in_spectrum,
    finder: RangeFinder = leave_range_open, *, reading: bool = False,
) -> PreparedJob:  # fmt: skip
    """Check the whole job and prepare every landscape; writes nothing, except the steps that a solver keeps.

    If the job leaves the device open, it is planned for this machine's; a driver plans anew if its workers have another
    kind of device (`PreparedLandscape.on_device`).

    Args:
        workers: compute costly directions.
        solver: computes eigenvectors for axes; default: random vectors instead, for a dry run.
        finder: finds ranges that the job leaves to the loss; default: preliminary ranges, likewise.
        reading: whether the caller will not write to the run, which may then be on a read-only disk.

    Raises:
        JobError: something in the job cannot be computed as it stands.
    """
    run = job.run_path
    if not reading:
        refuse_unwritable(run)
    here = torch.device("cpu") if job.device == "cpu" else device_here()
    job, asked = as_extended(job, asked_of(job))
    begun = set(landscape_names(run)) & {spec.name for spec in asked.landscapes}
    base = job.extends if job.level is None else job.landscapes[0].name  # a level is computed from its own landscape
    extended = None if base is None else LandscapeStore.open(run, base)
    borrowed = None if begun else borrowed_plan(job, asked.num_samples)  # one job has one engine
    if extended is not None:
        borrowed = recorded_plan(extended)
    network = network_of(job, asked.landscapes)
    with in_folder(job.folder):
        of_file = names_a_file(job.problem) or names_onnx(job.problem)  # without a callback to say anything of
        with contextlib.nullcontext() if of_file else told_if_slow(job.problem):
            problem = load_problem(job.problem, job.folder, network, lambda: own_mesh(here))
        refuse_other_precision(problem.model, job.precision)
        ranks = job.processes if asks_for_mesh(job.problem, job.folder) else 1
        if job.resources is not None and (job.resources.cpus or 1) > ranks:
            raise JobError(
                f"resources: {job.resources.cpus} processes need a callback that takes their device mesh, def "
                "problem(mesh); `threads` gives one process more cores"
            )
        if job.resources is not None and (job.resources.nodes or 1) > ranks:
            raise JobError(
                f"resources: {job.resources.nodes} nodes need a callback that takes the device mesh of processes, def "
                "problem(mesh)"
            )
        if ranks > 1 and is_sharded(problem.model):
            refuse_without_file(problem.weights)
            refuse_other_type(problem.model, type_of(job.precision), rounds=job.precision == "bfloat16")
        job, of_batch_norm = with_batch_norm(job, problem.model, asked.landscapes)
        chosen = select_samples(
            problem.data, asked.num_samples, job.seed, at_most=asked.at_most, length=problem.length,
            observed=length_by_observing(problem.model, problem.observe),
        )  # fmt: skip
        samples = chosen.samples
        digest_of_samples = samples.digest()
        randomness = _recorded_randomness(run, begun, digest_of_samples)
        if randomness is None:
            randomness = look_for_randomness(problem.data, asked.num_samples, job.seed)
        look, looked = first_look_at(problem, samples, job, here, ranks)
        folder = Path.cwd()
    weights = Weights(problem, trajectory_of(run, job.problem, job.folder), job.folder)
    device = here.type if job.device == "auto" else job.device
    bare = PreparedJob(job, run, problem, samples, (), looked, (), folder, ranks=ranks)
    common = PreparationContext(
        job, problem, weights, samples, digest_of_samples, samples.set_digest(chosen.indices), look, device, randomness,
        workers, extended, bare, solver, finder,
    )  # fmt: skip
    landscapes = tuple(_prepare_landscape(common, spec, place) for place, spec in enumerate(asked.landscapes))
    warnings = (*of_batch_norm, *_warnings_of(common, asked, landscapes, here))
    return PreparedJob(
        job, run, problem, samples, landscapes, looked, warnings, folder, borrowed, chosen.indices, network,
        common.observables, ranks,
    )  # fmt: skip


def _warnings_of(
    common: PreparationContext, asked: JobRequest, landscapes: Sequence[PreparedLandscape], here: torch.device
) -> list[str]:
    """The warnings about the job, a line each."""
    job, problem, samples, look = common.job, common.problem, common.samples, common.look
    warnings = [*randomness_warnings(common.randomness), *data_warnings(samples), *look.warnings]
    warnings += statistics_warnings(job, problem.model, asked.landscapes, landscapes)
    warnings += immobile(problem.model, bfloat16_weights=look.bfloat16_weights)
    warnings += rounding_warnings(landscapes) + thread_warnings(job) + engine_warnings(job, landscapes)
    warnings += end_warnings(asked.landscapes, landscapes)
    if common.bare.ranks > 1:
        return warnings  # no process here holds the model
    own = read_problem(job.run_path) == job.problem  # such as a recipe's
    with in_folder(common.bare.folder):
        losses = partial(losses_of_few, problem, samples, here)
        guessing = partial(guessing_of, problem.observe, samples)
        warnings += origin_warnings(
            asked.landscapes, common.weights, losses, guessing, implied=asked.implied, own_callback=own
        )
    return warnings


def _recorded_randomness(run: str, begun: Collection[str], samples: str) -> RandomData | None:
    """The randomness data that a landscape of the job has recorded for the same samples; None if none has."""
    for name in sorted(begun):
        stored = LandscapeStore.find(run, name)
        if stored is not None and stored.identity.samples == samples and stored.record.random_data is not None:
            return stored.record.random_data
    return None


def _prepare_landscape(common: PreparationContext, asked: Landscape, position: int) -> PreparedLandscape:
    job, weights, level = common.job, common.weights, common.job.level
    stored = LandscapeStore.find(job.run_path, asked.name, level=level.number if level else 0)
    # An extension has the layout and the plan of the extended landscape; a level has no directions of its own.
    like = common.extended if level else stored or common.extended
    spec = with_found_range(asked, like)
    infos = describe_parameters(common.problem.model)
    context = LandscapeContext(spec, common.weights, infos, common.problem, common.samples, common.workers)
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
        job, like, common.num_samples, common.device, bfloat16_weights=common.look.bfloat16_weights,
    ).rounding(quantisation_of(job, spec, common.problem.model))  # fmt: skip
    if spec.accuracy is not None:
        plan = _plan_of_rounds(spec.name, plan, common)
    refuse_inlined(common.problem.model, plan)
    convexity = convexity_of(common.bare, spec.convexity, context.origin, plan, common.observables, like)
    solve = solving_for(common.solver, common.bare, spec.name, context.origin, plan, identity)
    context = replace(context, solve=solve)
    directions = make_axes(context, like)
    context, found = with_range(common.finder, common.bare, context, directions, plan.rounding(None), like)
    spec = context.spec
    if found is not None:
        identity["coordinates"] = coordinates_asked(spec)
    # The stored grid takes precedence: another machine may round a fitted range or a component differently.
    path = None if level else path_of(context, directions, like)
    grid = _grid(common, like, identity) or make_grid(context, path)
    for coordinates in grid.coordinates:
        refuse_too_far("range", coordinates, plan.precision)
    check_tile(job, grid)
    extension = _extension(common, identity, grid, plan, spec.name)
    begun = begin_record(common, spec, position, identity)
    landscape = PreparedLandscape(
        spec.name, context.origin, directions, grid, path, plan, identity, begun, observables,
        states_on(path, context), extension,
    )  # fmt: skip
    entries: dict[str, Any] = {}
    if convexity is not None:
        entries |= {"convexity": convexity, "derived": {**common.problem.derived, **RATIO}}
    if layers is not None:
        entries["layers"] = layers
    if found is not None:
        entries["found_range"] = found
    if spec.accuracy is not None:
        entries |= {"accuracy": _accuracy_of(spec, stored, landscape, common), "moment_rows": []}
    return replace(landscape, record=_record_of(landscape, common, context, stored, entries))


def _plan_of_rounds(name: str, plan: Plan, common: PreparationContext) -> Plan:
    """The plan with growing blocks, for points that know different numbers of samples.

    Raises:
        JobError: the values of a sample depend on the others in its batch, the job gives a number of samples, or an
            observable has a name that the store needs.
    """
    if not plan.statistics.fixed:
        raise JobError(
            f"accuracy: landscape {quoted(name)} has batch_norm: {plan.batch_norm}, whose values depend on all samples "
            "of a batch, and points know different samples; take batch_norm: eval, or a fixed size"
        )
    job = common.job
    if "num_samples" in job.model_fields_set and job.num_samples < common.num_samples:
        raise JobError(
            f"num_samples: must be left out with accuracy, which takes what it needs of all {common.num_samples} "
            f"samples, not {job.num_samples}; give the problem less data to mean less"
        )
    if ROUNDS in common.observables:
        raise JobError(
            f"accuracy: landscape {quoted(name)} has an observable {ROUNDS}, the name of the folder of its rounds; "
            "give it another name, or take a fixed size"
        )
    return replace(plan, reduction="growing")


def _accuracy_of(
    spec: Landscape, stored: LandscapeStore | None, landscape: PreparedLandscape, common: PreparationContext
) -> AccuracyRecord:
    """The record of the accuracy that is asked for, with what the landscape on disk has reached."""
    assert spec.accuracy is not None
    asked, budget = spec.accuracy, spec.budget
    reached = None if stored is None else stored.record.accuracy
    if reached is not None and reached.reached is not None and reached.relative != asked.relative and reached.relief:
        unit = reached.relief if reached.relative else 1.0 / reached.relief
        reached = replace(reached, reached=reached.reached * unit)
    blocks = batching_of(common.num_samples, landscape.plan, landscape.plan.batch_size, common.samples.cuts)
    _refuse_small_budget(spec, len(landscape.grid.names), blocks)
    return replace(
        reached or AccuracyRecord(error=asked.error),
        error=asked.error, relative=asked.relative, scale=asked.scale, population=common.num_samples,
        width=max(end - start for start, end in pairwise((0, *blocks.ends))),
        budget={} if budget is None else budget.model_dump(exclude_none=True),
    )  # fmt: skip


def _refuse_small_budget(spec: Landscape, axes: int, blocks: Batching) -> None:
    """Refuse a budget that the first pass exceeds, without which nothing is known."""
    if spec.budget is None or spec.budget.evaluations is None:
        return
    least = first_pass(axes, np.array(blocks.ends))
    if spec.budget.evaluations < least:
        raise JobError(
            f"budget: must be at least {least} evaluations for landscape {quoted(spec.name)}, which its first pass "
            f"takes, not {spec.budget.evaluations}"
        )


def _record_of(
    landscape: PreparedLandscape, common: PreparationContext, context: LandscapeContext, stored: LandscapeStore | None,
    entries: Mapping[str, Any],
) -> Record:  # fmt: skip
    """The complete record of a landscape.

    Args:
        stored: the landscape on disk.
        entries: about the extras that are computed at its points, and a range that was found.
    """
    record = describe_record(landscape, common, context)
    if landscape.plan.rounds_weights:
        record = record.changed(moving_weights=moving_weights(landscape))
    if landscape.plan.quantise is not None and landscape.plan.quantise.weights:
        record = record.changed(rounded=[info.name for info in rounded_weights(common.problem.model)])
    record = record.changed(**entries)
    if common.job.level is not None:
        record = record.changed(level=common.job.level)
    elif landscape.plan.reduction == "blocks" and keeps_samples(
        common.job, landscape.name, stored, common.extended, common.problem.observe, landscape.grid,
        common.num_samples,
    ):  # fmt: skip
        record = record.changed(keep_samples=True)
    extension = landscape.extension
    if extension is not None and (common.job.level is not None or extension.blocks is None):
        # Every process must reproduce the values of the first process.
        known = extension.store.record
        record = record.changed(
            check=known.check, origin_loss=known.origin_loss, origin_loss_stderr=known.origin_loss_stderr
        )
    return record


def _grid(common: PreparationContext, like: LandscapeStore | None, identity: Mapping[str, Any]) -> Grid | None:
    """The grid of the landscape on disk, or the finer grid of a level of it; None if there is none yet."""
    if common.job.level is not None and common.extended is not None:
        return grid_of_level(common.extended, common.job.level)
    same = like is not None and like.identity.whole.get("coordinates") == identity["coordinates"]
    return like.grid() if like is not None and same else None


def _extension(
    common: PreparationContext, identity: Mapping[str, Any], grid: Grid, plan: Plan, name: str
) -> Extension | None:
    """What a landscape takes over; None if it extends no other landscape."""
    if common.extended is None:
        return None
    if common.job.level is not None:
        return refinement_of(common.extended, identity, plan, _level_before(common.job, name), common.samples)
    extension = extension_of(common.extended, identity, grid, common.samples, plan, common.job.adds, name)
    extension.refuse_other_moments(common.moment_rows, terms_of(common.problem.observe))
    return extension


def _level_before(job: Job, name: str) -> LandscapeStore | None:
    """The level that a level of this landscape extends; None if it only refines its landscape."""
    assert job.level is not None
    assert job.extends is not None
    return None if job.extends == name else LandscapeStore.open(job.run_path, job.extends, level=job.level.number)


# ----------------------------------------------------------------------------------------------------
# Trying out a problem's `observe` on this machine before anything is written.

FEW, AT_ONCE = 16, 2  # samples that show whether a network is trained; samples at once, as in the first look


def first_look_at(
    problem: Problem, samples: Samples, job: Job, here: torch.device, ranks: int
) -> tuple[FirstLook, bool]:
    """The result of trying out `observe`, and whether it ran: code for GPUs only fails on a driver without a GPU.

    Raises:
        JobError: `observe` fails although it should run here, or does not return one value per sample, or returns
            other observables than the problem names.
    """
    named = ordered_names(problem.observables) if problem.observables else None
    try:
        if ranks > 1:
            return _named_look(problem, named, job), False
        in_file = own_state(problem) if problem.weights is not None else None
        look = first_look(problem.model, problem.observe, samples, job.precision, here, in_file)
    except JobError as error:
        # With a cause, `observe` raised; without one, its return value is wrong on any device.
        elsewhere = job.device == "cuda" and here.type == "cpu" and error.__cause__ is not None
        if elsewhere and named:
            return _named_look(problem, named, job), False
        if elsewhere:
            raise JobError(
                f"{error}; if it runs on GPUs alone, name what it returns for the workers to look: "
                "Problem(..., observables=('loss', ...))"
            ) from error
        raise
    if named and look.names != named:
        raise JobError(
            f"observables: the problem names {', '.join(named)}, observe returns {', '.join(look.names)}; "
            "mend one of them"
        )
    check_derived(problem.derived, look.names)
    return look, True


def _named_look(problem: Problem, named: tuple[str, ...] | None, job: Job) -> FirstLook:
    """What the problem itself says of its observables, where only workers can call `observe`.

    Raises:
        JobError: it says nothing.
    """
    if not named:
        raise JobError(
            "observables: a model over several processes is first called by the workers; name what observe returns: "
            "Problem(..., observables=('loss', ...))"
        )
    rounds = job.precision == "bfloat16" and holds_bfloat16(problem.model)
    return FirstLook(named, bfloat16_weights=rounds, weighted=isinstance(problem.observe, CausalLM))


def losses_of_few(problem: Problem, samples: Samples, here: torch.device, states: Sequence[State]) -> list[float]:
    """The mean loss of the first few samples at several sets of weights, in float32.

    Raises:
        LandscapeError, RuntimeError: they cannot be computed; user code may raise other exceptions.
    """
    few = samples.few(FEW)
    plan = default_plan(AT_ONCE, here.type, "float32", Plan.batch_norm, 0, None, None)
    evaluator = Evaluator(problem.model, few, problem.observe, plan, here, states[0], ())
    return [float(evaluator.evaluate_states([state]).mean["loss"][0]) for state in states]
