"""A replica: loads landscapes, and computes points and derivatives of them, one batch after another.

`deployment` wraps it for Ray Serve; the class itself does not use Ray, so that a test can call it in its own process.
"""

from __future__ import annotations

import asyncio
import logging
import math
import sys
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial, wraps
from typing import Any, Literal, TypeVar
from weakref import WeakValueDictionary

import numpy as np
import torch

from cluster.serving.batching import FEWEST_POINTS, Batcher, BusyTime, run_all, time_work
from cluster.serving.requests import FAILED, LandscapeInfo, Refusal, describe_landscape, refusal_for
from cluster.serving.sources import LandscapeSource
from landscape.compute.executor import (
    Answer,
    BlockGradient,
    EvaluationContext,
    EvaluationSetting,
    Executor,
    GivenUp,
    Shared,
    SharedValue,
    TotalsOfBlocks,
    WorkItem,
    try_computing,
)
from landscape.compute.hessian import HessianOperator, block_count, layout_of, stretches_of
from landscape.compute.plans import make_evaluator
from landscape.compute.prepare import prepare
from landscape.compute.prepared import PreparedJob, PreparedLandscape
from landscape.compute.recorded_job import asked_of, recorded_job
from landscape.compute.reproducibility import refuse_other_values
from landscape.compute.tasks import Outcome, evaluate, work_at
from landscape.core.devices import keep_freed_memory
from landscape.core.errors import JobError, NotFoundError, nearest, quoted
from landscape.core.folders import open_folder
from landscape.core.grid import Floats
from landscape.evaluation.evaluator import Evaluator
from landscape.evaluation.layers import loss_factors
from landscape.evaluation.reduction import SampleValues, Values, terms_of
from landscape.job.job import Job
from landscape.model.parameters import describe_parameters
from landscape.problem.user_code import in_folder
from landscape.store.landscape import LandscapeStore

# ----------------------------------------------------------------------------------------------------
# Derivatives of the loss along the axes of a landscape at one of its points, with errors over the samples.

# Share of an axis's length: over such a step a difference of float32 losses far exceeds their rounding, and the loss is
# still nearly linear.
STEP_SHARE = float(np.finfo(np.float32).eps) ** (1 / 3) / 2


@dataclass(frozen=True)
class Gradient:
    """∂L/∂x of each axis x at a point.

    Attributes:
        stderr: the standard error of each, over the samples: that of the mean of ∂ℓᵢ/∂x, with the same samples at every
            point. NaN if the losses of single samples are not available.
        evaluated: when it was computed.
        revision: that of its landscape.
    """

    point: tuple[float, ...]
    loss: float
    gradient: tuple[float, ...]
    stderr: tuple[float, ...]
    evaluated: tuple[BusyTime, ...] = ()
    revision: str = ""


@dataclass(frozen=True)
class Curvature:
    """∂²L/∂x∂y of the axes x and y at a point, [axes, axes].

    Attributes:
        eigenvalues: of this matrix, the smallest first.
        method: how the derivatives were computed: `autograd`, or `differences` of gradients in float64.
        evaluated: when it was computed.
        revision: that of its landscape.
    """

    point: tuple[float, ...]
    curvature: tuple[tuple[float, ...], ...]
    eigenvalues: tuple[float, ...]
    method: str
    evaluated: tuple[BusyTime, ...] = ()
    revision: str = ""


DerivativeKind = Literal["gradient", "curvature"]


@dataclass
class _ReplicaExecutor(Executor):
    """Computes work items at any weights, by the evaluator of a landscape; the evaluator's origin does not change."""

    evaluator: Evaluator
    _context: EvaluationContext | None = field(default=None, init=False)

    def share(self, value: object) -> Shared[object]:
        """The value itself."""
        return SharedValue(value)

    def ask(self, setting: EvaluationSetting, questions: Sequence[WorkItem[Answer]]) -> list[Answer]:
        """The answers, in the order of the work items."""
        if self._context is None or self._context.origin is not setting.origin:
            self._context = EvaluationContext(self.evaluator, setting.origin)
        return [self.evaluator.within_memory(partial(question.answer, self._context)) for question in questions]

    def ask_apart(self, setting: EvaluationSetting, question: WorkItem[Answer], times: int) -> list[Answer]:
        """The answers, all computed by this process."""
        return [answer for _ in range(times) for answer in self.ask(setting, [question])]


def gradient_at(
    prepared: PreparedJob, landscape: PreparedLandscape, evaluator: Evaluator, point: Sequence[float]
) -> Gradient:
    """∇L(θ)·d for each axis d at θ = θ₀ + Σ xₖ·dₖ, by one gradient over all samples.

    The errors come from central differences of each sample's loss, by two evaluations for each axis.

    Raises:
        JobError: the loss has no derivatives along the axes.
    """
    setting, vectors = _setting_at(prepared, landscape, evaluator, point)
    executor, samples = _ReplicaExecutor(evaluator), prepared.samples
    blocks = range(block_count(setting, samples))
    totals = executor.ask(setting, [TotalsOfBlocks(stretch) for stretch in stretches_of(blocks)])
    factors = loss_factors([total for answer in totals for total in answer], prepared.problem.observe)
    slopes = np.zeros(len(vectors))
    for block in blocks:
        (part,) = executor.ask(setting, [BlockGradient(block, factors)])
        slopes += vectors @ part
    around = _around(landscape, point)
    values = evaluator.within_memory(lambda: evaluator.evaluate(np.array([point, *around]), keep=True))
    weights = terms_of(prepared.problem.observe)
    errors = tuple(
        _error(values, weights, 1 + 2 * axis, around[2 * axis + 1][axis] - around[2 * axis][axis])
        for axis in range(len(vectors))
    )
    return Gradient(tuple(point), float(values.mean["loss"][0]), tuple(slopes.tolist()), errors)


def curvature_at(
    prepared: PreparedJob, landscape: PreparedLandscape, evaluator: Evaluator, point: Sequence[float]
) -> Curvature:
    """dᵀHd′ for the axes d, d′ at θ = θ₀ + Σ xₖ·dₖ, by a product with the Hessian for each axis.

    Raises:
        JobError: the loss has no derivatives along the axes.
    """
    setting, vectors = _setting_at(prepared, landscape, evaluator, point)
    operator = HessianOperator(_ReplicaExecutor(evaluator), setting, prepared.problem, prepared.samples)
    table = vectors @ operator(vectors).T
    table = (table + table.T) / 2  # symmetric but for rounding
    finite = bool(np.isfinite(table).all())
    eigenvalues = np.linalg.eigvalsh(table) if finite else np.full(len(table), np.nan)
    return Curvature(tuple(point), tuple(map(tuple, table.tolist())), tuple(eigenvalues.tolist()), operator.method)


DERIVATIVES: dict[DerivativeKind, Callable[..., Gradient | Curvature]] = {
    "gradient": gradient_at,
    "curvature": curvature_at,
}


def _setting_at(
    prepared: PreparedJob, landscape: PreparedLandscape, evaluator: Evaluator, point: Sequence[float]
) -> tuple[EvaluationSetting, Floats]:
    """The setting for work items at the weights of a point, and the axes as vectors of trainable parameters."""
    if landscape.plan.quantise is not None:
        raise JobError(
            "derivatives: the weights of this landscape are rounded, so its loss goes in steps and has no derivatives; "
            "ask for points around it"
        )
    trainable = {info.name for info in describe_parameters(prepared.problem.model) if info.trainable}
    tensors = [direction.tensors for direction in landscape.directions]
    if any(not set(direction) <= trainable for direction in tensors):
        raise JobError("derivatives: an axis moves what has no derivative, such as a buffer; ask for points around it")
    with torch.no_grad():
        weights = {name: value.clone() for name, value in evaluator.weights.state_at(point).items()}
    layout = layout_of(prepared.problem, weights)
    return EvaluationSetting(weights, (), landscape.plan), np.stack([layout.vector(direction) for direction in tensors])


def _around(landscape: PreparedLandscape, point: Sequence[float]) -> list[list[float]]:
    """The points half a step before and behind along each axis."""
    found = list[list[float]]()
    for axis, coordinates in enumerate(landscape.grid.coordinates):
        step = STEP_SHARE * float(coordinates[-1] - coordinates[0])
        found += [[coordinate + signed * (k == axis) for k, coordinate in enumerate(point)] for signed in (-step, step)]
    return found


def _error(values: Values, terms: Mapping[str, float] | None, row: int, distance: float) -> float:
    """The standard error of the slope between two rows of losses; for a sum of terms √Σλ²SE²."""
    if terms is None:
        return math.nan if values.samples is None else _error_of(values.samples, row, distance)
    parts = [factor * _error_of(values.of_terms[name], row, distance) for name, factor in terms.items()
             if name in values.of_terms]  # fmt: skip
    return math.hypot(*(part for part in parts if math.isfinite(part))) if parts else math.nan


def _error_of(samples: SampleValues, row: int, distance: float) -> float:
    """√(Σw²(sᵢ − s̄)²)/Σw · √(n/(n−1)) for the slopes sᵢ of the samples; NaN for one sample."""
    slopes = (samples.losses[row + 1].astype(np.float64) - samples.losses[row]) / distance
    count, weights = len(slopes), samples.weights
    if count < 2:
        return math.nan
    mean = (weights * slopes).sum() / weights.sum()
    spread = math.sqrt(float((weights**2 * (slopes - mean) ** 2).sum())) / float(weights.sum())
    return spread * math.sqrt(count / (count - 1))


# ----------------------------------------------------------------------------------------------------
# A landscape as a replica holds it: prepared from its job, its recorded values reproduced.


@dataclass(frozen=True)
class ComputedValues:
    """The values of points.

    Attributes:
        table: float64 [P, columns], see `LandscapeInfo.columns`.
        whole: whether the planned batches fitted the memory. If they did not, the values differ in rounding: they are
            sent to the client but not kept.
        evaluated: when they were evaluated, with the other points of their batches.
        revision: that of their landscape, see `revision_of`.
    """

    table: Floats
    whole: bool = True
    evaluated: tuple[BusyTime, ...] = ()
    revision: str = ""

    def split(self, counts: Sequence[int]) -> list[ComputedValues]:
        """The values of each request; `counts` are their numbers of points."""
        return [replace(self, table=part) for part in np.split(self.table, np.cumsum(counts)[:-1])]


def join_values(parts: Sequence[ComputedValues]) -> ComputedValues:
    """The values of all points of several answers, in the order of the answers."""
    if len(parts) == 1:
        return parts[0]
    evaluated = tuple(stretch for part in parts for stretch in part.evaluated)
    revisions = {part.revision for part in parts}
    revision = revisions.pop() if len(revisions) == 1 else ""  # no landscape has this revision
    return ComputedValues(
        np.concatenate([part.table for part in parts]), all(part.whole for part in parts), evaluated, revision
    )


@dataclass(frozen=True)
class LoadedLandscape:
    """A landscape whose points this process evaluates."""

    prepared: PreparedJob
    landscape: PreparedLandscape
    evaluator: Evaluator
    info: LandscapeInfo
    revision: str

    def points(self, points: Floats) -> ComputedValues:
        """The values at points [P, axes]; a repeated point is computed once.

        Raises:
            Refusal: user code raised at a point, at every try.
        """
        places, back = np.unique(points, axis=0, return_inverse=True)
        with in_folder(self.prepared.folder):
            outcome, evaluated = time_work(lambda: self._evaluate(places))
        if isinstance(outcome, GivenUp):
            raise Refusal(FAILED, f"observe: {outcome.cause}")
        arrays = outcome.points.arrays()
        table = np.stack([arrays[name] for name in self.info.columns], axis=1)
        whole = self.evaluator.batch_size == self.evaluator.plan.batch_size
        return ComputedValues(table[back.reshape(-1)], whole, (evaluated,), self.revision)

    def _evaluate(self, places: Floats) -> Outcome | GivenUp:
        work = work_at(self.landscape, places)
        return try_computing(self.evaluator, lambda: evaluate(self.evaluator, work))

    def derivative(self, kind: DerivativeKind, point: Sequence[float]) -> Gradient | Curvature:
        """The first or the second derivatives of the loss along the axes at a point."""
        compute = DERIVATIVES[kind]
        with in_folder(self.prepared.folder):
            found, evaluated = time_work(lambda: compute(self.prepared, self.landscape, self.evaluator, point))
        return replace(found, evaluated=(evaluated,), revision=self.revision)


def load_landscape(source: LandscapeSource, beside: Sequence[LoadedLandscape] = ()) -> LoadedLandscape:
    """Prepare a landscape and reproduce the values in its record.

    Args:
        beside: other landscapes that this process holds; one with the same samples shares them.

    Raises:
        NotFoundError: the run or the landscape is gone.
        JobError: it cannot be computed here; `NotReproduced` if this process computes other values.
    """
    refuse_gone(source)
    store = LandscapeStore.find(source.run, source.landscape)
    prepared = prepare(_job_of(source, store), reading=True)
    landscape = prepared.landscapes[0]
    held = next((other for other in beside if _same_samples(other, prepared, landscape)), None)
    if held is not None:
        prepared = replace(prepared, samples=held.evaluator.held_samples)
    evaluator = make_evaluator(prepared, landscape)
    if store is not None:
        with in_folder(prepared.folder):
            refuse_other_values(store, landscape.grid, evaluator)
    info = describe_landscape(landscape.grid, landscape.observables, landscape.record, landscape.plan.record())
    return LoadedLandscape(prepared, landscape, evaluator, info, revision_of(source, info, store))


def revision_of(source: LandscapeSource, info: LandscapeInfo, store: LandscapeStore | None) -> str:
    """A text that distinguishes a landscape from another one of its name, even one that differs by its code alone.

    A run's landscape has the time of its computation in its record. A job has the same values whenever it is computed.
    """
    if source.job is not None or store is None:
        return info.identity
    return f"{info.identity} {store.record.provenance.created}"


def refuse_gone(source: LandscapeSource) -> None:
    """Refuse a landscape whose run no longer exists.

    Raises:
        NotFoundError: the run is gone; then even values that are still in memory are not sent.
    """
    if source.job is None and not open_folder(source.run).exists():
        raise NotFoundError(f"run: {quoted(source.run, 300)} is gone; put it back, or serve another one")


def _job_of(source: LandscapeSource, store: LandscapeStore | None) -> Job:
    """A job with the served landscape as its only one."""
    if source.job is None:
        opened = store or LandscapeStore.open(source.run, source.landscape)
        return recorded_job(source.run, opened, source.problem, source.folder)
    asked = asked_of(source.job)
    named = [spec for spec in asked.landscapes if spec.name == source.landscape]
    if not named:
        known = nearest(source.landscape, [spec.name for spec in asked.landscapes])
        raise NotFoundError(f"landscape {quoted(source.landscape)} is not in the job; {known}")
    return source.job.replace(landscapes=tuple(named))


def _same_samples(other: LoadedLandscape, prepared: PreparedJob, landscape: PreparedLandscape) -> bool:
    """Whether another landscape has the same callback, samples and arithmetic."""
    one, two = other.prepared.job, prepared.job
    return (
        (one.problem, one.folder) == (two.problem, two.folder)
        and other.landscape.identity["samples"] == landscape.identity["samples"]
        and other.evaluator.plan == landscape.plan
    )


# ----------------------------------------------------------------------------------------------------

Result = TypeVar("Result")
Load = Callable[[str], Awaitable[LoadedLandscape]]

log = logging.getLogger("landscape")


def _returning_refusals(
    answer: Callable[..., Awaitable[Result]],
) -> Callable[..., Coroutine[Any, Any, Result | Refusal]]:
    """Wrap a method: it returns a `Refusal` instead of raising it, since Ray would wrap an exception."""

    @wraps(answer)
    async def call(self: Replica, *asked: Any) -> Result | Refusal:
        try:
            return await answer(self, *asked)
        except Exception as error:
            refusal = refusal_for(error)
            if refusal.status >= FAILED:
                log.warning("%s", refusal, exc_info=error)
            return refusal

    return call


class Replica:
    """Computes values of landscapes, named by their keys. For a request that it refuses it returns a `Refusal`.

    One thread computes, so that all of torch's settings hold for one evaluation at a time; meanwhile the event loop
    takes requests.

    Args:
        sources: all landscapes that clients may ask for.
        path: the module path of the serving process, where callbacks are found.
    """

    def __init__(self, sources: Sequence[LandscapeSource], path: Sequence[str] = ()) -> None:
        sys.path[:0] = [folder for folder in path if folder not in sys.path]
        keep_freed_memory()
        self._sources = {source.key: source for source in sources}
        self._thread = ThreadPoolExecutor(1, "computing")
        self._batcher = Batcher(self._compute)
        self._loaded: dict[str, LoadedLandscape] = {}
        self._alive: WeakValueDictionary[str, LoadedLandscape] = WeakValueDictionary()
        self.loading: Load = self.load  # a deployment bounds how many are held at once

    async def load(self, key: str) -> LoadedLandscape:
        """A landscape that is ready to be evaluated; raises an error if it cannot be."""
        found = self._loaded.get(key)
        if found is None:
            found = self._loaded[key] = await self.in_thread(self.make, key)
        return found

    def make(self, key: str) -> LoadedLandscape:
        """Prepare a landscape, which takes seconds. The caller keeps it."""
        found = self._alive[key] = load_landscape(self._sources[key], list(self._alive.values()))
        return found

    async def in_thread(self, work: Callable[..., Result], *arguments: object) -> Result:
        """Call `work`, which computes or loads, in the computing thread; returns its result."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, work, *arguments)

    # -- what clients ask for ----------------------------------------------------------------------------------------

    @_returning_refusals
    async def points(self, key: str, points: Floats) -> ComputedValues:
        """The values at points [P, axes], in batches with those of other requests.

        Few points are submitted at a time: if the client no longer waits, the others are never computed.
        """
        parts = [points[start : start + FEWEST_POINTS] for start in range(0, len(points), FEWEST_POINTS)]
        return join_values(await run_all([self._part(key, part) for part in parts]))

    async def _part(self, key: str, points: Floats) -> ComputedValues:
        answer = await self._batcher.add(key, points)
        assert isinstance(answer, ComputedValues)
        return answer

    @_returning_refusals
    async def derivative(self, key: str, kind: DerivativeKind, point: Sequence[float]) -> Gradient | Curvature:
        """The first or the second derivatives of the loss along the axes at a point."""
        return await self.in_thread((await self._landscape(key)).derivative, kind, point)

    @_returning_refusals
    async def describe(self, key: str) -> LandscapeInfo:
        """The description of a landscape, which is loaded if needed."""
        return (await self._landscape(key)).info

    async def _landscape(self, key: str) -> LoadedLandscape:
        """A landscape that is ready. Loading takes seconds, so it is finished even if no client waits any more."""
        return await asyncio.shield(self.loading(key))

    async def _compute(self, key: str, asked: Sequence[Floats]) -> Sequence[object]:
        """The values of each request of a batch; if user code raises, each request is computed by itself."""
        loaded = await self._landscape(key)
        try:
            whole = await self.in_thread(loaded.points, np.concatenate(asked))
        except Exception as error:
            if len(asked) == 1:
                return [error]
            return [(await self._compute(key, [points]))[0] for points in asked]
        return whole.split([len(points) for points in asked])
