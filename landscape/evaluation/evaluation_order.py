"""The orders in which points are computed: one by one, row by row within each batch, or several at once.

Evaluating and timing use the same order, so that the time measured is the time that a landscape takes.
"""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from landscape.core.plan import Engine
from landscape.core.random_state import seed_draws
from landscape.evaluation.running_model import RunningModel
from landscape.evaluation.values import Observed, Pieces
from landscape.model.parameters import State
from landscape.problem.batches import Batch
from landscape.problem.sources import seed_of

LARGEST_GROUP = 1 << 22  # values of one observable that a group of points may have, as all are kept until its end

Point = Sequence[float]


@dataclass(frozen=True)
class Walk(ABC):
    """An order in which a running model computes points.

    Args:
        batches: returns an iterator over all numbered batches of samples, at every call.
        samples: how many samples the batches hold.
        begins: the number of the block that begins with a batch, by the number of the batch.
        on_point: is called before points, so that a caller sees progress; what it raises ends the walk.
        recalibrates: whether running statistics are computed anew at every point, in a pass of its own.
    """

    running: RunningModel
    batches: Callable[[], Iterator[tuple[int, Batch]]]
    samples: int
    begins: Mapping[int, int]
    on_point: Callable[[], None]
    recalibrates: bool = False

    @abstractmethod
    def points(self, points: Sequence[Point]) -> Iterator[Pieces]:
        """The observables at every point, in the order of the points.

        A value depends on its point alone: neither on the points before it nor on how points are grouped.
        """

    @abstractmethod
    def together(self, neighbours: int) -> int:
        """How many points are computed together, where a row has this many of them."""

    def states(self, states: Sequence[State]) -> Iterator[Pieces]:
        """The observables at whole sets of weights, one by one."""
        for state in states:
            self.on_point()
            self.running.set_state(state)
            yield self._observed(is_point=False)

    def take_ranges(self) -> None:
        """Take the ranges that activations have at the origin, over all batches."""
        self.on_point()
        with self.running.taking_ranges():
            self._observed(is_point=False)

    def _observed(self, *, is_point: bool) -> Pieces:
        if self.recalibrates:
            self.running.recalibrate(self._seeded())
        return [self.running.observe(index if is_point else None, batch) for index, batch in self._seeded()]

    def _seeded(self) -> Iterator[tuple[int, Batch]]:
        """The batches, the generators seeded at the beginning of every block.

        Common random numbers: a stochastic `observe` draws the same ones at every point, in every order; and the same
        for a block, whatever samples come before it.
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

    def together(self, neighbours: int) -> int:
        """1, as no point shares anything with another."""
        return 1


@dataclass(frozen=True)
class RowOrder(Walk):
    """Row by row, the points of a row within each batch, for engines that compute once what a row shares."""

    def points(self, points: Sequence[Point]) -> Iterator[Pieces]:
        """Row by row; the points of a row are evaluated within each batch."""
        at_once = max(1, LARGEST_GROUP // self.samples)
        for _, neighbours in itertools.groupby(points, lambda point: point[:-1]):
            row = list(neighbours)
            for start in range(0, len(row), at_once):
                yield from self._group(row[start : start + at_once])

    def together(self, neighbours: int) -> int:
        """All points of the row."""
        return neighbours

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
    """As many points at once as the engine stacks; a last group is filled up, as another shape gives other bits."""

    def points(self, points: Sequence[Point]) -> Iterator[Pieces]:
        """Group by group; the last one is filled up with its last point, whose values are dropped."""
        at_once = self.together(1)
        for start in range(0, len(points), at_once):
            self.on_point()
            group = points[start : start + at_once]
            pieces = self._stack([*group, *[group[-1]] * (at_once - len(group))])
            for place in range(len(group)):
                yield [{name: values[place] for name, values in piece.items()} for piece in pieces]

    def together(self, neighbours: int) -> int:
        """As many as the engine stacks."""
        return self.running.plan.engine.points

    def _stack(self, points: Sequence[Point]) -> Pieces:
        """The observables of every batch at several points, float64 [points, samples] each."""
        weights = self.running.stacked(points)
        return [self.running.observe_stacked(weights, batch) for _, batch in self._seeded()]


def walk_of(engine: Engine) -> type[Walk]:
    """The order in which an engine computes points."""
    if engine.stacks:
        return Stacks
    return RowOrder if engine.shares_rows else Singles
