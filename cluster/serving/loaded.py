"""A landscape as a replica holds it: prepared from its job, its recorded values reproduced."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from cluster.serving.derivatives import Curvature, Gradient, curvature_at, gradient_at
from cluster.serving.described import Described, describe
from cluster.serving.refusals import FAILED, Refusal
from cluster.serving.sources import Source
from cluster.serving.timing import Stretch, timed
from landscape.compute.point_extras import make_evaluator
from landscape.compute.prepare import prepare
from landscape.compute.prepared import PreparedJob, PreparedLandscape
from landscape.compute.recorded import recorded_job
from landscape.compute.reproducibility import bear_witness, recorded, refusal
from landscape.compute.requested import asked_of
from landscape.compute.reuse import work_at
from landscape.compute.tasks import GivenUp, try_task
from landscape.core.errors import JobError, NotFoundError, NotRetried, nearest, shown
from landscape.core.folders import open_folder
from landscape.evaluation.evaluator import Evaluator
from landscape.evaluation.values import Floats
from landscape.job.job import Job
from landscape.problem.user_code import in_folder
from landscape.store.landscape import LandscapeStore


@dataclass(frozen=True)
class Computed:
    """The values of points.

    Attributes:
        table: float64 [P, columns], see `Described.columns`.
        whole: whether the planned batches fitted the memory. Where they did not, values differ in rounding, and are
            answered but not kept.
        evaluated: when they were evaluated, with the other points of their batches.
        mark: of the landscape that they are of, see `mark_of`.
    """

    table: Floats
    whole: bool = True
    evaluated: tuple[Stretch, ...] = ()
    mark: str = ""

    def split(self, counts: Sequence[int]) -> list[Computed]:
        """The values of as many requests, of so many points each."""
        return [replace(self, table=part) for part in np.split(self.table, np.cumsum(counts)[:-1])]


def joined(parts: Sequence[Computed]) -> Computed:
    """The values of all points of several answers, in their order."""
    if len(parts) == 1:
        return parts[0]
    evaluated = tuple(stretch for each in parts for stretch in each.evaluated)
    marks = {each.mark for each in parts}
    mark = marks.pop() if len(marks) == 1 else ""  # which no landscape has
    return Computed(np.concatenate([each.table for each in parts]), all(each.whole for each in parts), evaluated, mark)


@dataclass(frozen=True)
class LoadedLandscape:
    """A landscape that this process evaluates points of."""

    prepared: PreparedJob
    landscape: PreparedLandscape
    evaluator: Evaluator
    described: Described
    mark: str

    def points(self, points: Floats) -> Computed:
        """The values at points [P, axes], those that stand several times computed once.

        Raises:
            Refusal: user code raised there, as often as it was tried.
        """
        places, back = np.unique(points, axis=0, return_inverse=True)
        with in_folder(self.prepared.folder):
            outcome, evaluated = timed(lambda: try_task(self.evaluator, work_at(self.landscape, places)))
        if isinstance(outcome, GivenUp):
            raise Refusal(FAILED, f"observe: {outcome.cause}")
        arrays = outcome.points.arrays()
        table = np.stack([arrays[name] for name in self.described.columns], axis=1)
        whole = self.evaluator.batch_size == self.evaluator.plan.batch_size
        return Computed(table[back.reshape(-1)], whole, (evaluated,), self.mark)

    def gradient(self, point: Sequence[float]) -> Gradient:
        """The slope of the loss along each axis at a point."""
        with in_folder(self.prepared.folder):
            found, evaluated = timed(lambda: gradient_at(self.prepared, self.landscape, self.evaluator, point))
        return replace(found, evaluated=(evaluated,), mark=self.mark)

    def curvature(self, point: Sequence[float]) -> Curvature:
        """The second derivatives of the loss along the axes at a point."""
        with in_folder(self.prepared.folder):
            found, evaluated = timed(lambda: curvature_at(self.prepared, self.landscape, self.evaluator, point))
        return replace(found, evaluated=(evaluated,), mark=self.mark)


def load(source: Source, beside: Sequence[LoadedLandscape] = ()) -> LoadedLandscape:
    """Prepare a landscape and reproduce the values that its record holds.

    Args:
        beside: others that this process holds: the samples are shared with one that has the same.

    Raises:
        NotFoundError: the run or the landscape is gone.
        JobError: it cannot be computed here; `NotReproduced` where this process computes other values.
    """
    refuse_gone(source)
    store = LandscapeStore.find(source.run, source.landscape)
    prepared = prepare(_job_of(source, store), reading=True)
    landscape = prepared.landscapes[0]
    held = next((each for each in beside if _same_samples(each, prepared, landscape)), None)
    if held is not None:
        prepared = replace(prepared, samples=held.evaluator.held_samples)
    evaluator = make_evaluator(prepared, landscape)
    if store is not None:
        with in_folder(prepared.folder):
            refuse_other_values(store, landscape, evaluator)
    described = describe(landscape.grid, landscape.observables, landscape.record, landscape.plan.record())
    return LoadedLandscape(prepared, landscape, evaluator, described, mark_of(source, described, store))


def mark_of(source: Source, described: Described, store: LandscapeStore | None) -> str:
    """What tells a landscape that is served from another one of its name, computed by other code too.

    A run is served as it was computed, and its record says when. A job has the same values whenever it is computed.
    """
    if source.job is not None or store is None:
        return described.identity
    return f"{described.identity} {store.record.provenance.created}"


def refuse_gone(source: Source) -> None:
    """Refuse a landscape whose run is not there any more.

    Raises:
        NotFoundError: it is gone; nothing of it is answered then, not even what is known still.
    """
    if source.job is None and not open_folder(source.run).exists():
        raise NotFoundError(f"run: {shown(source.run, 300)} is gone; put it back, or serve another one")


def _job_of(source: Source, store: LandscapeStore | None) -> Job:
    """The job whose one landscape is the one that is served."""
    if source.job is None:
        opened = store or LandscapeStore.open(source.run, source.landscape)
        return recorded_job(source.run, opened, source.problem, source.folder)
    asked = asked_of(source.job)
    named = [each for each in asked.landscapes if each.name == source.landscape]
    if not named:
        known = nearest(source.landscape, [each.name for each in asked.landscapes])
        raise NotFoundError(f"landscape {shown(source.landscape)} is not in the job; {known}")
    return source.job.replace(landscapes=tuple(named))


def _same_samples(other: LoadedLandscape, prepared: PreparedJob, landscape: PreparedLandscape) -> bool:
    """Whether another landscape is of the same callback and samples, in the same arithmetic."""
    one, two = other.prepared.job, prepared.job
    return (
        (one.problem, one.folder) == (two.problem, two.folder)
        and other.landscape.identity["samples"] == landscape.identity["samples"]
        and other.evaluator.plan == landscape.plan
    )


def refuse_other_values(store: LandscapeStore, landscape: PreparedLandscape, evaluator: Evaluator) -> None:
    """Refuse a process that computes other values than the landscape holds. Writes nothing.

    Raises:
        NotReproduced: it does.
    """
    expected = recorded(store, landscape.grid)
    if expected is None:
        return
    try:
        witness = bear_witness(evaluator, expected.point)
    except NotRetried as error:
        raise JobError(str(error)) from error
    difference = "" if witness is None else witness.differs_from(expected)
    if witness is None:
        raise JobError(
            f"landscape {shown(store.name)}: the point ({expected.place}) that its record holds cannot be computed "
            "here; run `landscape check` to see why"
        )
    if difference:
        raise refusal(store.name, expected, witness, difference)
