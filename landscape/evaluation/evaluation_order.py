"""The orders in which points are computed: one by one, row by row within each batch, or several at once.

Evaluating and timing use the same order, so the measured time is that of the landscape.
"""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from landscape.core.plan import Engine
from landscape.core.random_state import seed_draws
from landscape.evaluation.reduction import Observed, Pieces
from landscape.evaluation.running_model import RunningModel
from landscape.model.parameters import State
from landscape.problem.batches import Batch
from landscape.problem.sources import seed_of

LARGEST_GROUP = 1 << 22  # values of one observable in a group of points: all are kept until the group ends

Point = Sequence[float]


@dataclass(frozen=True)
class Walk(ABC):
    """An order in which a running model computes points.

    Args:
        batches: returns a new iterator over all numbered batches of samples.
        samples: how many samples the batches hold.
        begins: the number of the block that begins with a batch, by the number of the batch.
        on_point: is called before points, for progress; an exception that it raises ends the walk.
        recalibrates: whether running statistics are recomputed at every point, in a separate pass.
        shared_over: a device mesh over which the batches are shared out; None: this process observes them all.
    """

    running: RunningModel
    batches: Callable[[], Iterator[tuple[int, Batch]]]
    samples: int
    begins: Mapping[int, int]
    on_point: Callable[[], None]
    recalibrates: bool = False
    shared_over: Any = None

    @abstractmethod
    def points(self, points: Sequence[Point]) -> Iterator[Pieces]:
        """The observables at every point, in the order of the points.

        A value depends on its point alone: neither on the points before it nor on how points are grouped.
        """

    def states(self, states: Sequence[State]) -> Iterator[Pieces]:
        """The observables at whole sets of weights, one by one."""
        for state in states:
            self.on_point()
            self.running.set_state(state)
            yield self._observed(is_point=False)

    def take_ranges(self) -> None:
        """Measure the ranges of activations at the origin, over all batches."""
        self.on_point()
        with self.running.taking_ranges():
            self._observed(is_point=False)

    def _observed(self, *, is_point: bool) -> Pieces:
        if self.recalibrates:
            self.running.recalibrate(self._seeded())
        if self.shared_over is not None:
            return self._observed_together(is_point=is_point)
        return [self.running.observe(index if is_point else None, batch) for index, batch in self._seeded()]

    def _observed_together(self, *, is_point: bool) -> Pieces:
        """The observables of all batches, of which rank r of n observes numbers r, r + n, r + 2n, …

        All ranks observe equally many, as a model whose parameters are gathered needs all of them in every pass; the
        last batch is observed again where one has none. All batches are then put in their order, so that the sums over
        samples are those of a single process, unless `observe` draws random numbers: generators are seeded at the
        beginning of a block, and every rank draws for its own batches.
        """
        mesh, own = self.shared_over, list[Observed]()
        rank, ranks, count = mesh.get_local_rank(), mesh.size(), 0
        for index, batch in self._seeded():
            if count % ranks == rank:
                own.append(self.running.observe(index if is_point else None, batch))
            count += 1
        if len(own) < -(-count // ranks):
            self.running.observe(index if is_point else None, batch)
        here = [{name: values.cpu() for name, values in piece.items()} for piece in own]
        gathered: list[list[Observed]] = [[] for _ in range(ranks)]
        torch.distributed.all_gather_object(gathered, here, group=mesh.get_group())
        device = self.running.target.device
        ordered = (gathered[place % ranks][place // ranks] for place in range(count))
        return [{name: values.to(device) for name, values in piece.items()} for piece in ordered]

    def _seeded(self) -> Iterator[tuple[int, Batch]]:
        """The batches; the random generators are seeded at the beginning of every block.

        Common random numbers: a stochastic `observe` draws the same numbers at every point, in every order, and for a
        block the same ones whatever samples come before it.
        """
        seed = self.running.plan.seed
        for index, batch in self.batches():
            block = self.begins.get(index)
            if block is not None:
                seed_draws(seed_of(seed, "block", block) if block else seed)
            yield index, batch


@dataclass(frozen=True)
class Singles(Walk):
    """One point after the other, over all batches."""

    def points(self, points: Sequence[Point]) -> Iterator[Pieces]:
        """One point after the other, each over all batches."""
        for point in points:
            self.on_point()
            self.running.set_point(point)
            yield self._observed(is_point=True)


@dataclass(frozen=True)
class RowOrder(Walk):
    """Row by row, all points of a row on each batch, for engines that compute the shared part of a row once."""

    def points(self, points: Sequence[Point]) -> Iterator[Pieces]:
        """Row by row; all points of a row are evaluated on one batch before the next batch."""
        at_once = max(1, LARGEST_GROUP // self.samples)
        for _, neighbours in itertools.groupby(points, lambda point: point[:-1]):
            row = list(neighbours)
            for start in range(0, len(row), at_once):
                yield from self._group(row[start : start + at_once])

    def _group(self, points: Sequence[Point]) -> Sequence[Pieces]:
        """The observables at points of one row."""
        pieces: list[list[Observed]] = [[] for _ in points]
        try:
            for index, batch in self._seeded():
                self.running.forget()
                for point, observed in zip(points, pieces, strict=True):
                    self.on_point()
                    self.running.set_point(point)
                    observed.append(self.running.observe(index, batch))
        finally:
            self.running.forget()
        return pieces


@dataclass(frozen=True)
class Stacks(Walk):
    """As many points at once as the engine stacks; the last group is filled up, as another shape gives other bits."""

    def points(self, points: Sequence[Point]) -> Iterator[Pieces]:
        """Group by group; the last one is filled up with its last point, whose values are dropped."""
        at_once = self.running.plan.engine.points
        for start in range(0, len(points), at_once):
            self.on_point()
            group = points[start : start + at_once]
            pieces = self._stack([*group, *[group[-1]] * (at_once - len(group))])
            for place in range(len(group)):
                yield [{name: values[place] for name, values in piece.items()} for piece in pieces]

    def _stack(self, points: Sequence[Point]) -> Pieces:
        """The observables of every batch at several points, float64 [points, samples] each."""
        weights = self.running.stacked(points)
        return [self.running.observe_stacked(weights, batch) for _, batch in self._seeded()]


def walk_of(engine: Engine) -> type[Walk]:
    """The order in which an engine computes points."""
    if engine.stacks:
        return Stacks
    return RowOrder if engine.shares_rows else Singles
