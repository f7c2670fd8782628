"""The rounds of a landscape with an accuracy: evaluated item by item, stored, and turned into the picture so far.

A round begins when the one before is complete, and its items follow from the stored values alone. After each round the
picture is written over the landscape's grid, so that readers see the whole surface early, and see it sharpen.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby
from typing import Any

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from landscape.compute.prepared import PreparedJob, PreparedLandscape
from landscape.core.errors import JobError, quoted
from landscape.core.grid import Floats, tile_at
from landscape.evaluation.evaluator import Evaluator
from landscape.evaluation.feed import batching_of
from landscape.evaluation.reduction import (
    PARTS,
    BlockMoments,
    SampleValues,
    Values,
    mean_of_moments,
    merge_moments,
    moment_rows,
    rise_of,
    stderr_of_moments,
)
from landscape.problem.terms import PointSets
from landscape.store.landscape import LandscapeStore
from landscape.store.rounds import ItemValues, RoundPlan
from landscape.surface.accuracy import (
    FIRST,
    PILOT,
    KnownValues,
    NextRound,
    Picture,
    blocks_with,
    evaluations_of,
    first_round,
    judge,
    levels_of,
    next_round,
)
from landscape.surface.adaptive_grid import Places, interpolate, levels_above
from landscape.surface.nested_samples import DRAWS, Known, random_signs
from landscape.surface.record_parts import AccuracyRecord
from landscape.surface.surface import INTERPOLATED, INTERPOLATION_ERROR, QUARANTINED, RISE_STDERR, SAMPLES_KNOWN

log = logging.getLogger("landscape")

TASK_SECONDS = 10.0  # of a task at most
TASKS_PER_ROUND = 128  # at least, so that workers end a round together, but for tasks shorter than
SHORTEST_TASK = 0.25  # seconds

Items = tuple[NDArray[np.int64], NDArray[np.int64]]  # places [items, dimensions] and blocks


# ----------------------------------------------------------------------------------------------------
# The evaluation of items, in whatever process.


def evaluate_items(evaluator: Evaluator, points: Floats, blocks: NDArray[np.int64]) -> Values:
    """The values of items, each a point on a block of samples.

    Args:
        points: coordinates [items, axes]; the blocks of a point follow one another, unless the engine stacks points.

    Returns:
        Values with an entry per item: `moments` of the block, with the rises of all observables, and in `samples` the
        rise of the loss, or of its terms, for every sample: float32 [items, terms · largest block], padded with NaN.
    """
    sizes = block_sizes(evaluator.block_ends, samples_of_terms(evaluator))
    width = int(sizes.max())
    tables, rises, weights, seconds = {}, {}, {}, 0.0
    # An engine that stacks points takes each block by itself, of as many points as it can.
    apart = evaluator.plan.engine.stacks
    runs = [list(run) for _, run in groupby(range(len(blocks)), lambda item: item if apart else tuple(points[item]))]
    by_blocks: dict[range, list[int]] = {}
    for run in runs:
        by_blocks.setdefault(range(int(blocks[run[0]]), int(blocks[run[-1]]) + 1), []).append(run[0])
    rows: tuple[str, ...] = ()
    weighted = False
    parts = [(points[first], part) for part, first in by_blocks.items()]
    for (part, first), values in zip(by_blocks.items(), evaluator.evaluate_blocks(parts), strict=True):
        assert values.moments is not None
        assert values.of_blocks is not None
        rows, weighted, seconds = values.moments.rows, values.weighted, seconds + values.seconds
        kept = [values.samples] if values.samples is not None else list(values.of_terms.values())
        for row, item in enumerate(first):
            for step, block in enumerate(part):
                tables[item + step] = values.of_blocks[row, step]
                rises[item + step] = _padded([one.losses[row] for one in kept], sizes, part, block, width)
                weights[item + step] = _padded([one.weights for one in kept], sizes, part, block, width)
    items = range(len(blocks))
    table = np.stack([tables[item] for item in items])
    observables = [name for name in rows if not name.endswith("-rise")]
    mean = {name: mean_of_moments(table[:, rows.index(name)]) for name in observables}
    stderr = {name: stderr_of_moments(table[:, rows.index(name)]) for name in observables}
    if "loss" not in mean:  # a sum of terms; only whether it is finite matters here
        has = {name: table[:, rows.index(name), 0] > 0 for name in observables}  # a term may end before others
        mean["loss"] = np.asarray(sum(np.where(has[name], mean[name], 0.0) for name in observables), np.float64)
        stderr["loss"] = np.zeros(len(blocks))
    samples = SampleValues(
        np.stack([rises[item] for item in items]).astype(np.float32), np.empty(0, np.float32),
        np.stack([weights[item] for item in items]) if weighted else np.empty(0),
    )  # fmt: skip
    return Values(mean, stderr, seconds, None, BlockMoments(rows, table), samples, weighted)


def _padded(
    parts: Sequence[NDArray[np.floating]], sizes: NDArray[np.int64], blocks: range, block: int, width: int
) -> Floats:
    """The values of one block, of every term, each padded with NaN to the width of the largest block."""
    padded = np.full((len(parts), width), np.nan)
    for term, values in enumerate(parts):
        start = int(sizes[term, blocks.start : block].sum())
        count = int(sizes[term, block])
        padded[term, :count] = values[start : start + count]
    return padded.reshape(-1)


def samples_of_terms(evaluator: Evaluator) -> list[int]:
    """How many samples each term of the loss has; of a loss that is no sum, its own."""
    samples = evaluator.held_samples
    return list(samples.sizes.values()) if isinstance(samples, PointSets) else [samples.length]


def block_sizes(ends: Sequence[int], populations: Sequence[int]) -> NDArray[np.int64]:
    """How many samples of each term every block holds [terms, blocks].

    >>> block_sizes([64, 256, 300], [300, 100]).tolist()
    [[64, 192, 44], [64, 36, 0]]
    """
    edges = np.minimum(np.array([0, *ends])[None, :], np.array(populations)[:, None])
    return np.asarray(np.diff(edges, axis=1), np.int64)


# ----------------------------------------------------------------------------------------------------
# The rounds of an open landscape.


@dataclass(frozen=True)
class AccuracyShape:
    """What is fixed about a landscape with an accuracy.

    Attributes:
        ends: the samples up to the end of each block.
        factors, populations: of the terms of the loss; of a loss that is no sum, 1 and its samples.
        rows: of the moments; those of the terms, or of the loss, come first.
    """

    ends: NDArray[np.int64]
    factors: tuple[float, ...]
    populations: tuple[int, ...]
    rows: tuple[str, ...]
    weighted: bool

    @cached_property
    def terms(self) -> tuple[str, ...]:
        """The terms of the loss, or the loss alone."""
        return tuple(name for name in self.rows if rise_of(name) in self.rows)[: len(self.factors)]

    def population_of(self, name: str) -> int:
        """How many samples an observable has."""
        return dict(zip(self.terms, self.populations, strict=True)).get(name, max(self.populations))

    @cached_property
    def sizes(self) -> NDArray[np.int64]:
        """Samples of each term in every block."""
        return block_sizes(self.ends.tolist(), self.populations)


def shape_of(prepared: PreparedJob, landscape: PreparedLandscape) -> AccuracyShape:
    """The blocks, terms and moments of a prepared landscape."""
    samples, record, plan = prepared.samples, landscape.record, landscape.plan
    ends = batching_of(samples.length, plan, plan.batch_size, samples.cuts).ends
    terms = {
        name: (1.0 if term.weight is None else term.weight, term.samples or samples.length)
        for name, term in record.terms.items()
    }
    factors = tuple(factor for factor, _ in terms.values()) or (1.0,)
    populations = tuple(count for _, count in terms.values()) or (samples.length,)
    rows = moment_rows(landscape.observables, dict.fromkeys(terms, 1.0) or None, of_all=True)
    return AccuracyShape(np.array(ends, np.int64), factors, populations, rows, record.weighted)


class OpenRounds:
    """The rounds of a landscape that is open for writing."""

    def __init__(self, store: LandscapeStore, landscape: PreparedLandscape, shape: AccuracyShape) -> None:
        self._store, self._landscape, self._shape = store, landscape, shape
        self._levels, self._disk = levels_of(len(landscape.grid.names)), store.rounds()
        self._rounds = self._disk.read()
        for number, round_ in enumerate(self._rounds):
            for chunk in round_.damaged:
                log.warning("landscape %r: round %d part %d is damaged and computed again", store.name, number, chunk)
        if not self._rounds:
            self._begin(first_round(self._levels, shape.ends))

    def missing(self) -> list[tuple[int, int]]:
        """The chunks that are not committed, each as its round and its number; those given up are tried again.

        The most expensive of a round come first, so that workers end it together.
        """
        missing = [
            (number, chunk)
            for number, round_ in enumerate(self._rounds)
            for chunk in range(round_.plan.chunks)
            if (round_.status[round_.plan.rows(chunk)] != 1).any()
        ]
        return sorted(missing, key=lambda part: (part[0], -self.evaluations(*part)))

    def items(self, number: int, chunk: int) -> Items:
        """The places and the blocks of the items of a chunk."""
        plan = self._rounds[number].plan
        return plan.places[plan.rows(chunk)], plan.blocks[plan.rows(chunk)]

    def coordinates(self, places: Places) -> Floats:
        """The coordinates [items, axes] of places, which count the last axis first."""
        grid = self._landscape.grid
        return np.stack([axis[places[:, -1 - k]] for k, axis in enumerate(grid.coordinates)], axis=1)

    def evaluations(self, number: int, chunk: int) -> int:
        """The cost of a chunk: samples times points."""
        return evaluations_of(NextRound(*self.items(number, chunk)), self._shape.ends)

    @property
    def planned(self) -> int:
        """The cost of all rounds so far, those that are not computed too."""
        return sum(evaluations_of(NextRound(r.plan.places, r.plan.blocks), self._shape.ends) for r in self._rounds)

    @property
    def _spent(self) -> int:
        """The cost of all that is committed."""
        sizes = np.diff(np.concatenate([[0], self._shape.ends]))
        return sum(int(sizes[round_.plan.blocks[round_.status == 1]].sum()) for round_ in self._rounds)

    @property
    def chunks(self) -> int:
        """How many chunks all rounds have."""
        return sum(round_.plan.chunks for round_ in self._rounds)

    @property
    def population(self) -> int:
        """How many samples there are."""
        return int(self._shape.ends[-1])

    @property
    def is_settled(self) -> bool:
        """Whether the stored picture is the end of all rounds that it was made from, for the same request."""
        asked, stored = self._record, self._store.record.accuracy
        ended = asked.stopped in ("reached", "budget", "exhausted")
        return ended and asked == stored and len(self._rounds) >= asked.rounds

    def reopen(self) -> None:
        """Record what is asked for now, and that the rounds go on."""
        self._record_accuracy(replace(self._record, stopped=""))

    def commit(self, outcomes: Sequence[tuple[tuple[int, int], Values]]) -> None:
        """Write the values of chunks, those of one round with two syncs in all."""
        by_round: dict[int, list[tuple[int, ItemValues]]] = {}
        for (number, chunk), values in outcomes:
            assert values.moments is not None
            assert values.samples is not None
            wide = (len(values.moments.table), len(self._shape.factors), -1)
            weights = values.samples.weights.reshape(wide) if self._shape.weighted else None
            items = ItemValues(values.moments.table, values.samples.losses.reshape(wide), weights)
            by_round.setdefault(number, []).append((chunk, items))
        for number, chunks in by_round.items():
            self._disk.write(number, self._rounds[number], chunks)

    def quarantine(self, number: int, chunk: int) -> None:
        """Give a chunk up."""
        self._disk.quarantine(number, self._rounds[number], chunk)

    def advance(self, seconds: float, workers: int = 1) -> bool:
        """Write the picture of the values so far, and begin the next round unless the picture is true enough.

        Args:
            seconds: that the landscape has taken so far.

        Returns:
            Whether another round was begun.
        """
        with threadpool_limits(1, user_api="blas"):  # the bits of its sums depend on their number
            known, spent = self._known_values(), self._spent
            picture = judge(known)
            following, stopped = self._follows(picture, spent, seconds)
            self._write(known, picture, spent, stopped)
        if following is None:
            return False
        self._begin(following, seconds * workers / max(1, spent))
        return True

    def _follows(self, picture: Picture, spent: int, seconds: float) -> tuple[NextRound | None, str]:
        """The next round; None with the reason if there is none: the accuracy, the budget, or that nothing is left."""
        budget = self._record.budget
        if picture.error <= self._record.error * self._unit(picture) and not picture.wide_edges:
            return None, "reached"
        if any(QUARANTINED in round_.status for round_ in self._rounds):
            return None, "given up"
        following = next_round(picture)
        cost = evaluations_of(following, self._shape.ends)
        of_time, of_evaluations = budget.get("seconds"), budget.get("evaluations")
        if not len(following.blocks):
            return None, "exhausted"
        if of_evaluations is not None and spent + cost > of_evaluations:
            return None, "budget"
        if of_time is not None and seconds * (1.0 + cost / max(1, spent)) > of_time:
            return None, "budget"
        return following, ""

    @property
    def _record(self) -> AccuracyRecord:
        assert self._landscape.record.accuracy is not None
        return self._landscape.record.accuracy

    def _unit(self, picture: Picture) -> float:
        """The unit of the errors in the record."""
        return picture.relief if self._record.relative else 1.0

    def _begin(self, items: NextRound, seconds: float = 0.0) -> None:
        """Begin a round.

        Args:
            seconds: of a worker for one evaluation, so far; 0 if it is not known.
        """
        if self._landscape.plan.engine.stacks:  # it fills its stacks with points of one block
            order = np.argsort(items.blocks, kind="stable")
            items = NextRound(items.places[order], items.blocks[order])
        cost = evaluations_of(items, self._shape.ends) * seconds
        wanted = min(TASK_SECONDS, max(SHORTEST_TASK, cost / TASKS_PER_ROUND))
        count = len(items.blocks)
        chunk = (
            max(1, -(-count // TASKS_PER_ROUND)) if not cost else max(1, min(count, math.ceil(count * wanted / cost)))
        )
        plan = RoundPlan(items.places, items.blocks, chunk)
        self._rounds.append(self._disk.begin(len(self._rounds), plan))

    # -- the known values ---------------------------------------------------------------------------------------

    def _known_values(self) -> KnownValues:
        """All committed values; a point counts up to its first block that is missing."""
        shape, of_point = self._shape, dict[tuple[int, ...], list[tuple[int, int]]]()
        for number, round_ in enumerate(self._rounds):
            for item in np.flatnonzero(round_.status == 1).tolist():
                of_point.setdefault(tuple(round_.plan.places[item].tolist()), []).append((number, item))
        base = dict.fromkeys(tuple(place) for place in self._levels.places(0).tolist())
        places = [*base, *(place for place in of_point if place not in base)]
        self._items_of = [list(self._in_order(of_point.get(place, []))) for place in places]
        terms = []
        for term, (factor, population) in enumerate(zip(shape.factors, shape.populations, strict=True)):
            rises = [self._rises(items, term) for items in self._items_of]
            weights = self._weights(term) if shape.weighted else None
            terms.append(Known(rises, population, factor, weights))
        log_of = self._pilot_loss() if self._record.scale == "log" else None
        return KnownValues(self._levels, np.array(places, np.int64), terms, shape.ends, log_of)

    def _pilot_loss(self) -> float | None:
        """The loss at the origin over the samples of the first pass; over its fewer samples at finer points if no
        point of level 0 is finite; None if no point is.

        Raises:
            JobError: it is not positive, so that it has no logarithm.
        """
        losses = (
            self._origin_loss(self._merged(items[:first]))
            for first in (blocks_with(samples, self._shape.ends) for samples in (PILOT, FIRST))
            for items in self._items_of
            if len(items) >= first
        )
        loss = next(filter(math.isfinite, losses), None)
        if loss is not None and loss <= 0:
            raise JobError(
                f"accuracy.scale: log needs a positive loss at the origin, not {loss:.4g}; compute the landscape "
                f"{quoted(self._store.name)} with scale: linear under another name"
            )
        return loss

    def _in_order(self, items: list[tuple[int, int]]) -> Iterator[tuple[int, int]]:
        """The items of a point in the order of their blocks, up to the first that is missing."""
        by_block = {int(self._rounds[number].plan.blocks[item]): (number, item) for number, item in items}
        block = 0
        while block in by_block:
            yield by_block[block]
            block += 1

    def _rises(self, items: Sequence[tuple[int, int]], term: int) -> NDArray[np.float32]:
        sizes = self._shape.sizes[term]
        parts = [self._rounds[number].rises[item, term, : sizes[block]] for block, (number, item) in enumerate(items)]
        return np.concatenate(parts) if parts else np.empty(0, np.float32)

    def _weights(self, term: int) -> Floats:
        """The weights of the samples, which all points share, from the point that knows most."""
        items, sizes = max(self._items_of, key=len), self._shape.sizes[term]
        parts = []
        for block, (number, item) in enumerate(items):
            kept = self._rounds[number].weights
            assert kept is not None
            parts.append(kept[item, term, : sizes[block]])
        return np.concatenate(parts) if parts else np.empty(0)

    # -- the picture --------------------------------------------------------------------------------------------

    def _write(self, known: KnownValues, picture: Picture, spent: int, stopped: str) -> None:
        """Write the picture over the whole grid, and what is known of its errors into the record."""
        store, counts = self._store, known.counts
        tables = np.stack([self._merged(items) for items in self._items_of])
        best, near = int(counts.argmax()), self._nearest_to_origin(known)
        origin = self._origin_loss(tables[best])
        of_terms = [self._origin_error(name, tables[best], tables[near]) for name in self._shape.terms]
        origin_stderr = math.hypot(*(f * error for f, error in zip(self._shape.factors, of_terms, strict=True)))
        arrays = self._observables(known, tables, best, near)
        arrays["loss"] = origin + picture.rise
        arrays["loss_stderr"] = np.hypot(picture.stderr, origin_stderr)
        above = levels_above(self._levels, known.places[counts > 0])
        samples = np.zeros(picture.rise.shape, np.int64)
        samples[tuple(known.places.T)] = counts
        beside: dict[str, NDArray[Any]] = {
            RISE_STDERR: picture.stderr, INTERPOLATION_ERROR: picture.interpolation, INTERPOLATED: above,
            SAMPLES_KNOWN: samples,
        }  # fmt: skip
        tile = tile_at((0,) * picture.rise.ndim, picture.rise.shape, picture.rise.shape)
        store.write_tiles(
            [(tile, {name: np.asarray(values).reshape(-1) for name, values in (arrays | beside).items()})]
        )
        record = replace(
            self._record, reached=_finite(_ratio(picture.error, self._unit(picture))),
            sampling=_finite(picture.sampling), interpolation=_finite(picture.between), relief=_finite(picture.relief),
            evaluations=spent, points=int((counts > 0).sum()), most_samples=int(counts.max(initial=0)),
            rounds=len(self._rounds), stopped=stopped,
        )  # fmt: skip
        record = replace(record, rest=record.expected_rest)
        self._record_accuracy(record, origin_loss=origin, origin_loss_stderr=origin_stderr)

    def _record_accuracy(self, record: AccuracyRecord, **others: float) -> None:
        self._landscape = replace(self._landscape, record=self._landscape.record.changed(accuracy=record))
        if record != self._store.record.accuracy or others:
            self._store.update_attributes(accuracy=record, **others)

    def _merged(self, items: Sequence[tuple[int, int]]) -> Floats:
        """The moments [rows, 6] of the blocks of a point together."""
        whole = np.zeros((len(self._shape.rows), PARTS))
        for number, item in items:
            whole = merge_moments(whole, self._rounds[number].moments[item])
        return whole

    def _origin_loss(self, table: Floats) -> float:
        """The loss at the origin over the samples of a point: its loss less its rise there."""
        means, rows = mean_of_moments(table), self._shape.rows
        losses = {name: means[rows.index(name)] - means[rows.index(rise_of(name))] for name in self._shape.terms}
        return float(sum(factor * losses[name] for factor, name in zip(self._shape.factors, losses, strict=True)))

    def _origin_error(self, name: str, best: Floats, near: Floats) -> float:
        """The standard error of an observable at the origin over the samples of the best known point.

        Args:
            near: the moments of the point nearest to the origin, whose samples spread about as they do there.
        """
        row = self._shape.rows.index(name)
        spread = np.nan_to_num(stderr_of_moments(near[row])) ** 2 * near[row, 0]
        left = 1.0 / max(1.0, best[row, 0]) - 1.0 / self._shape.population_of(name)
        return math.sqrt(max(0.0, float(spread) * left))

    def _observables(self, known: KnownValues, tables: Floats, best: int, near: int) -> dict[str, Floats]:
        """The other observables over the grid: the origin's mean over all known samples, and the rise of each point."""
        shape, arrays, has = self._shape, {}, known.counts > 0
        signs = random_signs(len(tables), DRAWS, 0)
        for name in shape.rows:
            if name.endswith("-rise") or name == "loss":
                continue
            own, risen = tables[:, shape.rows.index(name)], tables[:, shape.rows.index(rise_of(name))]
            origin = float(mean_of_moments(own[best]) - mean_of_moments(risen[best]))
            unknown = np.sqrt(np.maximum(0.0, 1.0 - own[:, 0] / shape.population_of(name)))
            values = np.where(has, origin + mean_of_moments(risen), np.nan)
            errors = np.where(has, np.nan_to_num(stderr_of_moments(risen) * unknown), np.nan)
            of_origin = self._origin_error(name, tables[best], tables[near])
            # As if the errors of points were independent: what little many of them add counts for noise.
            found = interpolate(self._levels, known.places, values, np.nan_to_num(errors)[:, None] * signs)
            fraction = bool((np.nan_to_num(values) >= 0).all() and (np.nan_to_num(values) <= 1).all())
            arrays[name] = np.clip(found.values, 0.0, 1.0) if fraction else found.values
            arrays[f"{name}_stderr"] = np.hypot(np.sqrt(np.square(found.errors).mean(axis=-1)), of_origin)
        return arrays

    def _nearest_to_origin(self, known: KnownValues) -> int:
        """The known point that is nearest to the origin; the first one if none is finite."""
        apart = np.square(self.coordinates(known.places)).sum(axis=1)
        return int(np.where(known.counts > 0, apart, np.inf).argmin())


def _ratio(error: float, unit: float) -> float:
    """An error in units of the relief, which is 0 where all points have one loss."""
    return error / unit if unit else (0.0 if error == 0 else math.inf)


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
