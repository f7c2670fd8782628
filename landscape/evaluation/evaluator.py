"""Evaluate points: θ(α, β) = θ₀ + α·d₁ + β·d₂, the observables there, their mean and standard error."""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from landscape.draws import seed_draws
from landscape.errors import Interrupted
from landscape.evaluation.arithmetic import arithmetic
from landscape.evaluation.checksum import checksums
from landscape.evaluation.engines.forward import Stacked
from landscape.evaluation.feed import make_feed
from landscape.evaluation.loaded import LoadedModel, Observed, SamplesChanged
from landscape.memory import is_out_of_memory
from landscape.parameters import State
from landscape.plan import Engine, Plan
from landscape.problem.batches import Batch, batch_length, tensors_of
from landscape.problem.observables import Observe
from landscape.surface import RISE_STDERR

Floats = NDArray[np.float64]
Result = TypeVar("Result")
LARGEST_GROUP = 1 << 22  # values of an observable that are kept while a group of points is computed
Samples = tuple[list[str], Tensor]  # the names of the observables; their values at one point, float64 [names, samples]


@dataclass(frozen=True)
class Values:
    """Observables at P points: mean and standard error, float64 [P] each, by name; and the seconds they took.

    `rise_stderr` is the standard error of the loss's rise over the origin, sd(ℓᵢ(p) − ℓᵢ(0)) / √N over the N samples,
    which all points share: what they have in common is no noise of the shape. None where it was not asked for.
    """

    mean: Mapping[str, Floats]
    stderr: Mapping[str, Floats]
    seconds: float = 0.0
    rise_stderr: Floats | None = None

    def arrays(self) -> dict[str, Floats]:
        """As the store names them: `loss`, `loss_stderr`, …, `loss_rise_stderr`."""
        found = {
            name: values
            for key in self.mean
            for name, values in ((key, self.mean[key]), (f"{key}_stderr", self.stderr[key]))
        }
        return found if self.rise_stderr is None else found | {RISE_STDERR: self.rise_stderr}


class _UnseenWriteError(Exception):
    """User code has written to the model past torch's counters: what was computed so far is computed again."""


class Evaluator:
    """The model of a problem, its samples on the device, and the means to set weights and observe.

    Args:
        model: is copied; the caller's is never touched.
        samples: one batch that holds all chosen samples.
        plan: the arithmetic, see `Plan`.
        device: where to compute, such as `cpu` or `cuda:0`.
        on_point: is called before each point, for signs of life; what it raises ends the evaluation.
        limit: bytes of samples on the device above which they stream to it, see `make_feed`.
    """

    def __init__(
        self, model: nn.Module, samples: Batch, observe: Observe, plan: Plan, device: torch.device,
        on_point: Callable[[], None] = lambda: None, limit: int | None = None,
    ) -> None:  # fmt: skip
        self.plan, self.device, self._observe, self._on_point = plan, device, observe, on_point
        self._given, self._loaded = model, LoadedModel(model, observe, plan, device)
        self._limit, self._feed = limit, make_feed(samples, device, self._loaded.dtype, limit)
        self._sums: list[int] = []  # of the samples, before the first value
        self._set_batches(plan.batch_size)

    def load(self, origin: State, directions: Sequence[State]) -> None:
        """Set θ₀ and the axes; coordinates given later are relative to them."""
        self._origin, self._directions = origin, directions
        self._set_engine()

    def origin(self) -> Values:
        """The observables at θ₀, computed as a point of the landscape is; computed once.

        Raises:
            Exception: whatever user code raises there.
        """
        return self._settled(lambda: self._gather(lambda: iter([self._samples_at_origin()]), np.arange(1)))

    def use(self, engine: Engine, batch_size: int | None = None) -> None:
        """Go on with another engine, and in other batches."""
        self.plan = replace(self.plan, engine=engine, batch_size=batch_size or self.plan.batch_size)
        self._loaded.plan = self.plan
        self._set_batches(self.plan.batch_size)
        self._set_engine()

    def evaluate(self, points: Floats, *, rise: bool = False) -> Values:
        """The observables at `points` [P, axes]; with `rise` the standard error of the loss's rise over the origin."""
        # Row by row, as the points of one share most of the work of setting their weights.
        order = np.lexsort(points.T[::-1]) if points.shape[1] else np.arange(len(points))

        def compute() -> Values:
            origin_losses = self._losses_at_origin() if rise else None
            return self._gather(partial(self._samples_of, points[order].tolist()), np.argsort(order), origin_losses)

        found = self._settled(compute)
        return found if rise else replace(found, rise_stderr=None)

    def evaluate_states(self, states: Sequence[State]) -> Values:
        """The observables at whole sets of weights, such as the snapshots of a trajectory."""
        try:
            return self._settled(lambda: self._gather(partial(self._samples_of_states, states), np.arange(len(states))))
        finally:
            self._loaded.weights.restore()

    def within_memory(self, compute: Callable[[], Result]) -> Result:
        """Call `compute`; where the memory does not suffice, again with half the batch, as often as it takes.

        Each call starts from the planned batch size. `batch_size` tells afterwards what was used: the values are
        the same up to rounding only.
        """
        if self.batch_size != self.plan.batch_size:
            self._use_batches(self.plan.batch_size)
        while True:
            try:
                return compute()
            except (torch.OutOfMemoryError, MemoryError, RuntimeError) as error:
                if self.batch_size == 1 or not is_out_of_memory(error):
                    raise
            self._use_batches(self.batch_size // 2)

    # -- for measuring ----------------------------------------------------------------------------------------

    def time_batches(self, count: int, point: Sequence[float], neighbours: int = 1) -> float:
        """Seconds per point that the first `count` batches take, the setting of weights among them.

        Args:
            neighbours: points of a row that are computed together, where the engine gains by it.
        """
        with arithmetic(self.plan, self.device), torch.no_grad():
            self._wait()
            start = time.perf_counter()
            seed_draws(self.plan.seed)
            points, batches = [list(point)], self._feed.batches(count)
            if isinstance(self._loaded.forward, Stacked):
                points *= self.plan.engine.points
                self._observe_stacked(points, batches)
            elif self._loaded.superposed is not None:
                points *= neighbours
                self._observe_superposed(points, batches)
            else:
                self._loaded.set_point(point)
                for index, batch in batches:
                    self._loaded.observe(index, batch)
            self._wait()
            return (time.perf_counter() - start) / len(points)

    def twin(self, plan: Plan) -> Evaluator:
        """Another evaluator of the same landscape, with another plan; the samples are shared where it can be."""
        samples = self._feed.samples
        found = Evaluator(self._given, samples, self._observe, plan, self.device, self._on_point, self._limit)
        found.load(self._origin, self._directions)
        return found

    def give_sign_of_life(self) -> None:
        """As before each point; what it raises ends what is going on."""
        self._on_point()

    @property
    def model(self) -> nn.Module:
        """The one given, as it was given."""
        return self._given

    @property
    def observe(self) -> Observe:
        return self._observe

    @property
    def directions(self) -> Sequence[State]:
        return self._directions

    @property
    def held_samples(self) -> Batch:
        return self._feed.samples

    @property
    def samples(self) -> int:
        return batch_length(self._feed.samples)

    @property
    def batches(self) -> int:
        return len(self._feed)

    @property
    def resident(self) -> bool:
        """Whether all samples are on the device, and stay where they are."""
        return self._feed.resident

    @property
    def evaluated_model(self) -> nn.Module:
        """The private copy of the model, which is what is evaluated."""
        return self._loaded.model

    @property
    def modules(self) -> int:
        return sum(1 for _ in self._loaded.model.modules())

    @property
    def moved_parameters(self) -> int:
        return self._loaded.weights.parameters

    def possible_options(self) -> tuple[str, ...]:
        """The options of an engine that change anything for this model."""
        return self._loaded.possible_options(self._first_batch())

    # -- batches and engine -----------------------------------------------------------------------------------

    def _use_batches(self, batch_size: int) -> None:
        self._set_batches(batch_size)
        self._loaded.set_batches(self._first_batch, resident=self.resident)

    def _set_batches(self, batch_size: int) -> None:
        self.batch_size = batch_size
        self._feed.split(batch_size)

    def _set_engine(self) -> None:
        self._origin_samples: dict[int, Samples] = {}  # by batch size, as other batches round differently
        self._loaded.load(self._origin, self._directions)
        self._loaded.set_batches(self._first_batch, resident=self.resident)

    def _first_batch(self) -> Batch:
        return next(self._feed.batches(1))[1]

    # -- points -----------------------------------------------------------------------------------------------

    def _samples_of(self, points: Sequence[Sequence[float]]) -> Iterator[Samples]:
        if isinstance(self._loaded.forward, Stacked):
            return self._stacked(points)
        return self._one_by_one(points) if self._loaded.superposed is None else self._superposed(points)

    def _one_by_one(self, points: Sequence[Sequence[float]]) -> Iterator[Samples]:
        for point in points:
            self._on_point()
            self._loaded.set_point(point)
            yield self._observe_point(is_point=True)

    def _samples_of_states(self, states: Sequence[State]) -> Iterator[Samples]:
        for state in states:
            self._on_point()
            self._loaded.set_state(state)
            yield self._observe_point(is_point=False)

    def _superposed(self, points: Sequence[Sequence[float]]) -> Iterator[Samples]:
        """Row by row, the points of a row within each batch. The values are the same however points are grouped."""
        at_once = max(1, LARGEST_GROUP // self.samples)
        for _, each in itertools.groupby(points, lambda point: point[:-1]):
            row = list(each)
            for start in range(0, len(row), at_once):
                for pieces in self._observe_superposed(row[start : start + at_once], self._feed.batches()):
                    yield _joined(pieces)

    def _stacked(self, points: Sequence[Sequence[float]]) -> Iterator[Samples]:
        """Several points at once; a last group is filled up, as other shapes would give other bits."""
        at_once = self.plan.engine.points
        for start in range(0, len(points), at_once):
            self._on_point()
            group = points[start : start + at_once]
            names, samples = self._observe_stacked(
                [*group, *[group[-1]] * (at_once - len(group))], self._feed.batches()
            )
            for each in samples.unbind(1)[: len(group)]:
                yield names, each

    def _samples_at_origin(self) -> Samples:
        if self.batch_size not in self._origin_samples:
            with arithmetic(self.plan, self.device), torch.no_grad():
                ((names, samples),) = self._samples_of([[0.0] * len(self._directions)])
            self._origin_samples[self.batch_size] = names, samples.clone()
        return self._origin_samples[self.batch_size]

    def _losses_at_origin(self) -> Tensor | None:
        """ℓᵢ(0) of every sample, what rises are measured from; None where user code raises there.

        That is left to the tiles around the origin to tell.
        """
        try:
            names, samples = self._samples_at_origin()
        except Exception as error:
            if isinstance(error, (Interrupted, SamplesChanged)) or is_out_of_memory(error):
                raise
            return None
        return samples[names.index("loss")]

    def _settled(self, compute: Callable[[], Values]) -> Values:
        """What is computed; once more where it turns out that user code wrote to the model in a way unnoticed so far.

        Raises:
            SamplesChanged: it wrote to the samples.
        """
        self._sums = self._sums or self._sums_of_samples()
        while True:
            with contextlib.suppress(_UnseenWriteError):
                found = compute()
                self._look_for_writes()
                return found
            self._origin_samples.clear()

    def _look_for_writes(self) -> None:
        self._check_samples()
        if self._loaded.hides_writes():
            raise _UnseenWriteError

    def _check_samples(self) -> None:
        if self._sums_of_samples() != self._sums:
            raise SamplesChanged

    def _sums_of_samples(self) -> list[int]:
        # Streamed batches are copies.
        return checksums(tensors_of(self._feed.samples)) if self.resident else []

    def _gather(
        self, samples: Callable[[], Iterator[Samples]], places: NDArray[np.int64], origin_losses: Tensor | None = None
    ) -> Values:
        """What the samples of all points say, put in its places; one transfer from the device for all of them."""
        start = time.perf_counter()
        names: list[str] = []
        found: list[Tensor] = []
        with arithmetic(self.plan, self.device), torch.no_grad():
            for names, each in samples():
                if not found and len(places) > 1:
                    self._look_for_writes()  # one that undoes itself every second point would be missed at the end
                found.append(summary(each, each[names.index("loss")], origin_losses))
            table = torch.stack(found).cpu().numpy()[places] if found else np.zeros((0, 1))
        mean = {name: np.ascontiguousarray(table[:, 2 * k]) for k, name in enumerate(names)}
        stderr = {name: np.ascontiguousarray(table[:, 2 * k + 1]) for k, name in enumerate(names)}
        return Values(mean, stderr, time.perf_counter() - start, np.ascontiguousarray(table[:, -1]))

    def _observe_point(self, *, is_point: bool) -> Samples:
        # Common random numbers: a stochastic `observe` draws the same ones at every point, in every order.
        seed_draws(self.plan.seed)
        if self.plan.batch_norm == "recalibrate":
            self._loaded.recalibrate(self._feed.batches())
        numbered = self._feed.batches()
        return _joined([self._loaded.observe(index if is_point else None, batch) for index, batch in numbered])

    def _observe_superposed(
        self, points: Sequence[Sequence[float]], batches: Iterator[tuple[int, Batch]]
    ) -> list[list[Observed]]:
        """The observables of the batches' samples at points of one row, a list for each point."""
        superposed = self._loaded.superposed
        assert superposed is not None
        seed_draws(self.plan.seed)
        found: list[list[Observed]] = [[] for _ in points]
        try:
            for index, batch in batches:
                superposed.forget()
                for point, pieces in zip(points, found, strict=True):
                    self._on_point()
                    self._loaded.set_point(point)
                    pieces.append(self._loaded.observe(index, batch))
        finally:
            superposed.begin(None)
            superposed.forget()
        return found

    def _observe_stacked(
        self, points: Sequence[Sequence[float]], batches: Iterator[tuple[int, Batch]]
    ) -> tuple[list[str], Tensor]:
        """Names, and the observables of the batches' samples at several points: float64 [names, points, samples]."""
        seed_draws(self.plan.seed)
        weights = self._loaded.stacked(points)
        pieces = [self._loaded.observe_stacked(weights, batch) for _, batch in batches]
        names = list(pieces[0])
        return names, torch.stack([torch.cat([piece[name] for piece in pieces], dim=1) for name in names])

    def _wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


def _joined(pieces: Sequence[Mapping[str, Tensor]]) -> Samples:
    """One point, from the observables of its batches."""
    names = list(pieces[0])
    return names, torch.stack([torch.cat([piece[name] for piece in pieces]) for name in names])


def summary(samples: Tensor, losses: Tensor, origin_losses: Tensor | None) -> Tensor:
    """[2K + 1]: mean and standard error of each of the K observables, then the standard error of the loss's rise.

    SE_rise = sd(ℓᵢ(p) − ℓᵢ(0)) / √N over the samples i; NaN where the losses at the origin are not known.
    """
    values = mean_and_stderr(samples).reshape(-1)
    if origin_losses is None:
        return torch.cat([values, values.new_full((1,), torch.nan)])
    return torch.cat([values, mean_and_stderr((losses - origin_losses)[None])[0, 1:]])


def mean_and_stderr(samples: Tensor) -> Tensor:
    """Mean and standard error of the mean of float64 [K, N], as [K, 2].

    m = Σx/N, SE = √(Σ(x−m)²/(N−1)) / √N. NaN in, NaN out; the standard error of one sample is NaN.
    """
    count = samples.shape[1]
    mean = samples.mean(1)
    # Two passes: the difference of large sums would lose the small spread near a minimum.
    spread = (samples - mean[:, None]).square().sum(1) / (count - 1) if count > 1 else torch.full_like(mean, torch.nan)
    return torch.stack([mean, (spread / count).sqrt()], dim=1)
