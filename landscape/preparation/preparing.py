"""From a job to what can be evaluated: the problem, its samples, and per landscape origin, axes, grid and path.

Everything that can be wrong with a job is found here, before anything is written. What decides the values is
collected as the landscape's *identity*; a landscape on disk with another identity is refused.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from pydantic import ValidationError

from landscape.devices import cores, device_here
from landscape.digests import digest
from landscape.directions.making import DirectionTensors, cosines
from landscape.errors import JobError, LandscapeError, shown
from landscape.evaluation.choice.questions import Tuned
from landscape.evaluation.first_look import FirstLook, first_look
from landscape.grid import Grid, Index
from landscape.parameters import State, describe_parameters, immobile, in_first_version, layout, refuse_not_finite
from landscape.plan import Engine, Plan, default_plan
from landscape.preparation.axes import make_axes, make_coordinates, make_path
from landscape.preparation.identity import changes, identity_of, refusal
from landscape.preparation.provenance import provenance
from landscape.preparation.recorded import borrowed_plan, recorded_plan
from landscape.preparation.weights import Weights
from landscape.problem.batches import Batch, batch_length, not_finite, samples_digest
from landscape.problem.callback import load_problem
from landscape.problem.observables import ordered_names
from landscape.problem.problem import Problem
from landscape.problem.randomness import Randomness, look_for_randomness
from landscape.problem.selection import select_samples
from landscape.problem.user_code import in_folder
from landscape.spec.job import (
    DEFAULTS,
    CollectLandscape,
    Job,
    Landscape,
    PcaDirection,
    explain,
    names_a_run,
    with_defaults_of,
)
from landscape.store import LandscapeStore, PathPlan, landscape_names, refuse_unwritable
from landscape.trajectory.run_files import read_info
from landscape.trajectory.snapshots import read_trajectory

log = logging.getLogger("landscape")

THREADS_PER_CORE = 4  # above it nothing computes faster, on any machine


@dataclass(frozen=True)
class PreparedLandscape:
    """One landscape, ready to be evaluated: weights, axes, grid, path, and the record of what they are."""

    name: str
    origin: State
    directions: tuple[DirectionTensors, ...]
    grid: Grid
    path: PathPlan | None
    plan: Plan
    identity: Mapping[str, Any]
    attributes: Mapping[str, Any]
    observables: tuple[str, ...]
    snapshot_state: Callable[[int], State] = field(repr=False)

    def in_batches(self, batch_size: int) -> PreparedLandscape:
        """The same landscape in other batches, recorded as such."""
        return self._planned(replace(self.plan, batch_size=batch_size))

    def tuned(self, tuned: Tuned) -> PreparedLandscape:
        """The same landscape with the plan that was chosen by measuring; how is recorded with it."""
        record = {**self.attributes["provenance"], "engine": tuned.record()}
        attributes = {**self.attributes, "provenance": record, "precision_error": tuned.precision_error}
        return replace(self, attributes=attributes)._planned(tuned.plan)

    def on_device(self, device: str, job: Job) -> PreparedLandscape:
        """The same landscape planned for the kind of device that the workers have."""
        samples = int(self.attributes["num_samples"])
        plan = default_plan(samples, device, job.precision, job.batch_norm, job.seed, job.batch_size, job.threads)
        return self._planned(plan)

    def _planned(self, plan: Plan) -> PreparedLandscape:
        return replace(self, plan=plan, attributes={**self.attributes, "plan": plan.record()})

    @property
    def points(self) -> int:
        """Evaluations in all: the grid's points, and two per snapshot of the path."""
        return self.grid.points + (2 * len(self.path.step) if self.path else 0)


@dataclass(frozen=True)
class PreparedJob:
    job: Job
    run: str
    problem: Problem
    samples: Batch
    landscapes: tuple[PreparedLandscape, ...]
    looked: bool = True  # whether `observe` was seen to return the observables, or the first worker must look
    warnings: tuple[str, ...] = ()  # a line each on what may be meant otherwise; each names its remedy
    folder: Path = field(default_factory=Path.cwd)  # the working directory of the user's code, as the callback left it
    borrowed: Plan | None = None  # of the run whose engine the job takes, where none of its own stands on disk

    def log_warnings(self) -> None:
        """Say them once, before the first value."""
        for each in self.warnings:
            log.warning("%s", each)


def prepare(job: Job) -> PreparedJob:
    """Check the whole job and work out every landscape; reads, and writes nothing.

    Where the job leaves the device open it is planned for this machine's; a driver plans anew when its workers
    turn out to have another kind (`PreparedLandscape.on_device`).

    Raises:
        JobError: something in the job cannot be computed as it stands.
    """
    run = job.run_path
    refuse_unwritable(run)
    here = torch.device("cpu") if job.device == "cpu" else device_here()
    kind = here.type if job.device == "auto" else job.device
    specs, at_most, num_samples = _landscapes_of(job, run)
    begun = set(landscape_names(run)) & {each.name for each in specs}
    borrowed = None if begun else borrowed_plan(job, num_samples)  # one job has one engine
    with in_folder(job.folder):
        problem = load_problem(job.problem, job.folder)
        samples = select_samples(problem.data, num_samples, job.seed, at_most=at_most)
        digest_of_samples = samples_digest(samples)
        randomness = _recorded_randomness(run, begun, digest_of_samples)
        if randomness is None:
            randomness = look_for_randomness(problem.data, num_samples, job.seed)
        look, looked = _look(problem, samples, job, here)
        folder = Path.cwd()
    weights = Weights(problem, read_trajectory(run), job.folder)
    common = _Common(job, run, problem, weights, digest_of_samples, batch_length(samples), look.names, kind, randomness)
    landscapes = tuple(_prepare_landscape(common, spec, position) for position, spec in enumerate(specs))
    warnings = [*randomness.warnings(), *_data_warnings(samples), *look.warnings, *immobile(problem.model)]
    warnings += [*_origin_warnings(specs, weights, implied=not job.landscapes), *_thread_warnings(job)]
    return PreparedJob(job, run, problem, samples, landscapes, looked, tuple(warnings), folder, borrowed)


def _recorded_randomness(run: str, begun: Collection[str], samples: str) -> Randomness | None:
    """What a landscape of the job has recorded of the same samples; None where none has, and they are to be read."""
    for name in sorted(begun):
        stored = LandscapeStore.find(run, name)
        if stored is not None and stored.record("identity").get("samples") == samples:
            found = Randomness.of_record(stored.attributes.get("random_data"))
            if found is not None:
                return found
    return None


def _look(problem: Problem, samples: Batch, job: Job, here: torch.device) -> tuple[FirstLook, bool]:
    """What `observe` returns, and whether it was seen to: code for GPUs alone fails on a driver that has none.

    Raises:
        JobError: it fails where it should run, or returns something else than one value per sample, or than it names.
    """
    named = ordered_names(problem.observables) if problem.observables else None
    try:
        found = first_look(problem.model, problem.observe, samples, job.precision, here)
    except JobError as error:
        # A cause says that it did not run; without one it ran, and what it returned is wrong on any device.
        elsewhere = job.device == "cuda" and here.type == "cpu" and error.__cause__ is not None
        if elsewhere and named:
            return FirstLook(named), False
        if elsewhere:
            raise JobError(
                f"{error}; if it runs on GPUs alone, name what it returns for the workers to look: "
                "Problem(..., observables=('loss', ...))"
            ) from error
        raise
    if named and found.names != named:
        raise JobError(
            f"observables: the problem names {', '.join(named)}, observe returns {', '.join(found.names)}; "
            "mend one of them"
        )
    return found, True


def _landscapes_of(job: Job, run: str) -> tuple[tuple[Landscape, ...], bool, int]:
    """The landscapes to compute, whether fewer samples will do, and their number: the job's, else the collector's."""
    options = job.collect_landscape or _collected(run)
    asked = "num_samples" in job.model_fields_set
    num_samples = job.num_samples if asked or options is None else options.num_samples
    if job.landscapes:
        return job.landscapes, not asked, num_samples
    if options is None:
        return (Landscape(name="result"),), not asked, num_samples
    found = options.landscapes()
    if not found:
        raise JobError(
            "create_landscape: both train and result are false: nothing to compute; set one of them or list landscapes"
        )
    return found, not asked, num_samples


def collected_landscapes(run: str) -> tuple[Landscape, ...]:
    """What a run stands for by the options of its collector; empty where it has none."""
    options = _collected(run)
    return () if options is None else options.landscapes()


def _collected(run: str) -> CollectLandscape | None:
    options = read_info(run).get("collect_landscape")
    try:
        return CollectLandscape.model_validate(options) if options else None
    except ValidationError as error:
        raise LandscapeError(
            f"run {shown(run, 300)}: its run.json is damaged: {explain(error, CollectLandscape).splitlines()[0]}; "
            "restore it, or list landscapes in the job"
        ) from None


@dataclass(frozen=True)
class _Common:
    """What all landscapes of a job share."""

    job: Job
    run: str
    problem: Problem
    weights: Weights
    samples: str
    num_samples: int
    observables: tuple[str, ...]
    device: str
    randomness: Randomness


def _prepare_landscape(common: _Common, asked: Landscape, position: int) -> PreparedLandscape:
    job, weights = common.job, common.weights
    stored = _stored(common, asked.name)
    defaults = DEFAULTS if stored is None else int(stored.attributes.get("defaults", 1))
    spec = with_defaults_of(asked, defaults)
    if spec != asked:
        log.info("landscape %s was begun under earlier defaults of what its job leaves out: they hold", spec.name)
    _refuse_short(spec, weights)
    origin = _origin_of(spec, weights)
    identity = identity_of(job, spec, weights, origin, common.samples, common.num_samples, common.observables)
    if stored is not None:
        _refuse_another(stored, identity)
    infos = describe_parameters(weights.model)
    if defaults == 1:
        infos = in_first_version(infos)
    refuse_not_finite(weights.state(origin), infos, f"origin: {weights.label(origin)}")
    directions = make_axes(spec, weights, origin, infos, stored)
    # What is on disk wins: another machine may round a fitted range or a component differently.
    path = (stored.path_plan() if stored else None) or make_path(spec, weights, origin, directions, infos)
    grid = (stored.grid() if stored else None) or Grid(spec.axis_names, make_coordinates(spec, path, defaults))
    plan = _plan(common, stored)
    check_tile(job, grid)
    attributes = {
        "job": job.model_dump(mode="json") | {"landscapes": [spec.model_dump(mode="json")]},
        "defaults": defaults,
        "position": position,
        "identity": identity,
        "digest": digest(identity),
        "num_samples": common.num_samples,
        "precision": job.precision,
        "batch_norm": job.batch_norm,
        "seed": job.seed,
        "observables": list(common.observables),
        "cosine": cosines([each.tensors for each in directions]).tolist(),
        "origin": weights.label(origin),
        "origin_step": origin if isinstance(origin, int) else None,
        "plan": plan.record(),
        "provenance": provenance(weights.model, infos),
        "failures": [],
        "random_data": common.randomness.record(),
    }
    state = weights.state(origin)
    return PreparedLandscape(
        spec.name, state, directions, grid, path, plan, identity, attributes, common.observables, weights.state
    )


def _refuse_short(spec: Landscape, weights: Weights) -> None:
    """`all` may stand for fewer snapshots than PCA needs, or for none."""
    for each in spec.directions:
        if isinstance(each, PcaDirection) and len(weights.trajectory.select(each.trajectory).numbers) < 3:
            raise JobError(
                f"trajectory: PCA needs at least 3 snapshots, the run has {len(weights.trajectory.numbers)}; collect "
                "more, or `landscape import` checkpoints"
            )


def _origin_of(spec: Landscape, weights: Weights) -> int | str:
    numbers = weights.trajectory.numbers
    if spec.origin is not None:
        return weights.resolve(spec.origin)
    pca = _along_trajectory(spec)
    if pca:
        return weights.trajectory.select(pca[0].trajectory).numbers[-1]
    return numbers[-1] if numbers else "problem"


def _along_trajectory(spec: Landscape) -> list[PcaDirection]:
    return [each for each in spec.directions if isinstance(each, PcaDirection)]


def _thread_warnings(job: Job) -> list[str]:
    """The workers may have more cores than this machine, so many threads are not refused here."""
    if (job.threads or 1) <= THREADS_PER_CORE * cores():
        return []
    return [
        f"threads: {job.threads} per worker are more than {THREADS_PER_CORE} times the {cores()} cores here, which "
        "makes points slower unless the workers' machines are larger; leave threads out, or name fewer"
    ]


def _origin_warnings(specs: Sequence[Landscape], weights: Weights, *, implied: bool) -> list[str]:
    """Where the trajectory's last weights are taken though nobody named them, and the callback's are others.

    Args:
        implied: whether the landscapes are those that the collector's options stand for, and none is in the job.
    """
    unnamed = [each.name for each in specs if (each.origin is None or implied) and not _along_trajectory(each)]
    if not unnamed or not weights.trajectory.numbers or weights.digest("last") == weights.digest("problem"):
        return []
    return [
        f"origin: {weights.label('last')} of the trajectory is the origin of {', '.join(unnamed)}, and the callback "
        "returns other weights; `origin: problem` in a landscape takes the callback's, `origin: last` says that these "
        "are meant"
    ]


def _data_warnings(samples: Batch) -> list[str]:
    return [
        f"data: {name} hold NaN or infinity in {count} of the {batch_length(samples)} samples, and so may the loss at "
        "every point; leave these samples out, or mask what is missing"
        for name, count in not_finite(samples).items()
    ]


def _plan(common: _Common, stored: LandscapeStore | None) -> Plan:
    """The recorded plan of a landscape on disk, else the default; refused where the job contradicts the record."""
    job = common.job
    if stored is None:
        return default_plan(
            common.num_samples, common.device, job.precision, job.batch_norm, job.seed, job.batch_size, job.threads
        )
    plan = recorded_plan(stored)
    asked = {
        "batch_size": job.batch_size and min(job.batch_size, common.num_samples),
        "threads": job.threads,
        "engine": None if job.engine == "auto" or names_a_run(job.engine) else Engine.parse(job.engine),
    }
    # What was asked for when it was made is no change, also where the memory allowed less.
    before = stored.record("job")
    changed = [
        f"{k} {getattr(plan, k)} to {v}"
        for k, v in asked.items()
        if v is not None and v != getattr(plan, k) and getattr(job, k) != before.get(k)
    ]
    if job.engine != before.get("engine") and (other := borrowed_plan(job, common.num_samples)) is not None:
        both = (("engine", plan.engine, other.engine), ("batch_size", plan.batch_size, other.batch_size))
        changed += [f"{k} {mine} to {theirs}" for k, mine, theirs in both if mine != theirs]
    if changed:
        raise JobError(refusal(stored.name, changed, "leave it out to go on as before"))
    return plan


def _stored(common: _Common, name: str) -> LandscapeStore | None:
    """The landscape on disk where there is one."""
    return LandscapeStore.find(common.run, name)


def _refuse_another(stored: LandscapeStore, identity: Mapping[str, Any]) -> None:
    """
    Raises:
        JobError: the landscape on disk was computed from something else; says from what.
    """
    changed = changes(stored.record("identity"), identity)
    if changed:
        raise JobError(refusal(stored.name, changed, "change it back"))


def check_tile(job: Job, grid: Grid) -> None:
    if job.tile is not None and len(job.tile) not in (1, len(grid.shape)):
        raise JobError(f"tile: must be one number or one per axis ({len(grid.shape)}), not {list(job.tile)}")


def existing_store(prepared: PreparedJob, landscape: PreparedLandscape) -> LandscapeStore | None:
    """The landscape on disk, open for going on, its coordinates and directions mended where damaged."""
    store = LandscapeStore.find(prepared.run, landscape.name, write=True)
    if store is None:
        return None
    if store.refusal:
        raise LandscapeError(store.refusal)
    changed = changes(store.record("identity"), landscape.identity)
    if changed or store.record("plan") != landscape.plan.record():
        raise JobError(
            f"run: landscape {shown(landscape.name)} was made by another driver meanwhile; give the command again"
        )
    recomputed = [each.attributes["digest"] for each in landscape.directions]
    if recomputed != store.direction_digests():
        raise JobError(
            f"directions: those of landscape {shown(landscape.name)} had to be made anew, and this machine rounds them "
            "differently; go on where it was begun, or give it another name or run"
        )
    if store.check_constants():
        store.repair_constants(landscape.grid, [each.tensors for each in landscape.directions], landscape.path)
    return store


def create_store(prepared: PreparedJob, landscape: PreparedLandscape, tile_shape: Index) -> LandscapeStore:
    states = [each.tensors for each in landscape.directions]
    moved = [name for name in landscape.origin if any(name in state for state in states)]
    parameters = [info.name for info in describe_parameters(prepared.problem.model)]
    names = [*parameters, *(name for name in moved if name not in parameters)]
    return LandscapeStore.create(
        prepared.run, landscape.name, landscape.grid, tile_shape, landscape.observables,
        axes=[each.attributes for each in landscape.directions], directions=states,
        layout=layout(landscape.origin, names), path=landscape.path, attributes=landscape.attributes,
    )  # fmt: skip
