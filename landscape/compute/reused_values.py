"""The values and moments that a landscape takes over from the one that it extends or refines."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from landscape.compute.identity import changes, command_text, recorded_plan
from landscape.core.errors import JobError, LandscapeError, quoted
from landscape.core.grid import Floats, Grid, Index, Tile
from landscape.core.plan import Plan
from landscape.evaluation.feed import batching_of
from landscape.evaluation.reduction import PARTS, Before
from landscape.problem.batches import Samples
from landscape.store.format import path_moment_rows
from landscape.store.landscape import LandscapeStore
from landscape.surface.record_parts import LevelRecord
from landscape.surface.refinement import from_stretches, in_coarser_level, to_stretches
from landscape.surface.surface import LOSS_SAMPLES, MOMENTS, PATH_MOMENTS


@dataclass(frozen=True)
class Extension:
    """A complete landscape, and what its extension (a new landscape) takes over from it.

    Attributes:
        store: the complete landscape.
        offset: where its first point lies in the extension's grid, per array dimension.
        shape: of its grid.
        plan: its plan, which the extension must keep.
        blocks: how many blocks of its samples are complete; None if the extension has no more samples.
        more_observables: whether the extension has more observables, so that every point is evaluated again.
        known_samples: how many samples the complete blocks have; 0 if the extension has no more samples.
    """

    store: LandscapeStore
    offset: Index
    shape: Index
    plan: Plan
    blocks: int | None
    more_observables: bool
    known_samples: int = 0

    @property
    def rows(self) -> tuple[str, ...]:
        """The rows of kept moments."""
        return self.store.record.moment_rows

    @property
    def source(self) -> LandscapeStore:
        """The store of the known values and moments."""
        return self.store

    @property
    def gives_values(self) -> bool:
        """Whether values are taken over unchanged."""
        return self.blocks is None and not self.more_observables

    @property
    def points_known(self) -> int:
        """The number of points whose values are taken over."""
        return math.prod(self.shape) if self.gives_values else 0

    @property
    def gives_path(self) -> bool:
        """Whether the losses along the path are taken over unchanged."""
        return self.blocks is None

    def known(self, tile: Tile) -> NDArray[np.bool_]:
        """Which points of a tile take over their values, in C order."""
        mask = np.full(tile.shape, self.gives_values)
        for dimension, (start, size) in enumerate(zip(self.offset, self.shape, strict=True)):
            places = np.arange(tile.start[dimension], tile.stop[dimension]) - start
            inside = (places >= 0) & (places < size)
            mask &= inside.reshape([-1 if k == dimension else 1 for k in range(len(self.shape))])
        return mask.reshape(-1)

    def values(self, tile: Tile) -> dict[str, Floats]:
        """Its values over a tile, by the names of the arrays, as `store.write_tiles` has them; NaN outside its grid."""
        return {name: self.values_of(name, tile) for name in self.store.arrays.tile_names} | self._over_samples

    @cached_property
    def _over_samples(self) -> dict[str, NDArray[Any]]:
        """The arrays over its samples, if it keeps their losses."""
        return {name: self._whole(name) for name in self.store.arrays.over_samples}

    @cached_property
    def _over_path(self) -> dict[str, NDArray[Any]]:
        """The values of its whole path, cached for reading it stretch by stretch."""
        return {name: self._whole(name) for name in self.store.arrays.path_value_names}

    def _whole(self, name: str) -> NDArray[Any]:
        """A whole array, read anew.

        Raises:
            LandscapeError: a chunk of it is damaged.
        """
        values, damaged, present = self.store.arrays.reader(name).whole()
        spoilt = [*damaged, *map(tuple, np.argwhere(~present).tolist())]
        if spoilt:
            raise self._damaged(name, spoilt[0])
        return values

    def _damaged(self, name: str, index: Index) -> LandscapeError:
        return LandscapeError(
            f"landscape {quoted(self.source.name)} cannot be extended: {name} chunk {'/'.join(map(str, index))} is "
            "damaged; run its own job, which mends it"
        )

    def samples_before(self, tile: Tile) -> dict[str, NDArray[Any]]:
        """The kept arrays of the complete blocks' samples: losses at the points of a tile, and the others."""
        if self.blocks is None or not self.store.record.keep_samples:
            return {}
        kept = self._over_samples | {LOSS_SAMPLES: self.values_of(LOSS_SAMPLES, tile)}
        return {name: values[..., : self.known_samples] for name, values in kept.items()}

    @property
    def exact(self) -> bool:
        """Whether every process must compute the same bits: kernels without a fixed order of additions cannot."""
        check = self.store.record.check
        return check is None or check.repeatable

    def refuse_other_plan(self, plan: Plan) -> None:
        """Refuse to extend values in another arithmetic.

        Raises:
            JobError: the device or the batch size would differ from those of the extended landscape.
        """
        recorded, name = self.plan, quoted(self.store.name)
        if plan.device != recorded.device:
            raise JobError(
                f"device: landscape {name} was computed on {recorded.device}, here is {plan.device}, and the bits "
                "would differ; extend it where it was computed"
            )
        if plan.batch_size < recorded.batch_size:
            raise JobError(
                f"batch_size: {recorded.batch_size}, in which landscape {name} was computed, does not fit the memory "
                f"here, only {plan.batch_size} does, and the bits would differ; free memory, or extend it where there "
                "is more"
            )
        assert plan == recorded, "an extension keeps the plan"

    def refuse_other_moments(self, rows: Sequence[str], terms: Mapping[str, float] | None) -> None:
        """Refuse to add samples to moments of other observables.

        Args:
            rows: the expected rows of the moments, in order.
            terms: the current terms of the loss, each with its weight; None if `observe` returns the loss.

        Raises:
            JobError: the record is damaged, or the terms of the loss or their weights have changed.
        """
        if self.blocks is None:
            return
        name, was = quoted(self.store.name), ", ".join(self.rows)
        remedy = "bring back the terms of then in their order, or compute it anew under another name"
        if tuple(rows) != self.rows:
            raise JobError(
                f"landscape {name} cannot be extended: it keeps moments of {was}, not of {', '.join(rows)}; {remedy}"
            )
        loss, total = self._loss_and_sum(terms or {})
        if not np.isclose(total, loss, rtol=1e-9, atol=0.0, equal_nan=True):
            raise JobError(
                f"landscape {name} cannot be extended: its loss is {loss:.9g} where its terms with the weights of now "
                f"make {total:.9g}; {remedy}"
            )

    def _loss_and_sum(self, terms: Mapping[str, float]) -> tuple[float, float]:
        """The stored loss at one point, and the sum of its terms there with these weights."""
        check = self.store.record.check
        try:
            values = {} if check is None else {name: float.fromhex(text) for name, text in check.values.items()}
        except (ValueError, OverflowError):
            values = {}
        if not terms or "loss" not in values or not set(terms) <= set(values):
            return 0.0, 0.0
        return values["loss"], sum(weight * values[name] for name, weight in terms.items())

    def before(self, tile: Tile) -> Before:
        """The moments over the complete blocks at the points of a tile that are evaluated."""
        assert self.blocks is not None
        moments = self.values_of(MOMENTS, tile).reshape(tile.points, -1, PARTS)
        return Before(self.blocks, moments[~self.known(tile)])

    def before_at(self, grid: Grid, point: Sequence[float]) -> Before | None:
        """The same at one point of the grid; None if no samples are added."""
        if self.blocks is None:
            return None
        pairs = zip(grid.coordinates, point, strict=True)
        index = tuple(int(np.flatnonzero(axis == coordinate)[0]) for axis, coordinate in pairs)[::-1]
        return self.before(Tile((), index, tuple(place + 1 for place in index)))

    def path_values(self, window: slice) -> dict[str, Floats]:
        """The values of a stretch of the path, as `store.write_path` has them."""
        return {name: values[window] for name, values in self._over_path.items()}

    def before_path(self, window: slice) -> tuple[Before, Before]:
        """The moments over the complete blocks, at the snapshots and at their projections."""
        assert self.blocks is not None
        table = self._over_path[PATH_MOMENTS][window]
        kept = table.reshape(len(table), -1, PARTS)
        names = path_moment_rows(self.rows)[: kept.shape[1] // 2]
        rows = [self.rows.index(name) for name in names]
        both = []
        for part in np.split(kept, 2, axis=1):
            moments = np.zeros((len(part), len(self.rows), PARTS))  # rows that the path does not keep are not needed
            moments[:, rows] = part
            both.append(Before(self.blocks, moments))
        return both[0], both[1]

    def values_of(self, name: str, tile: Tile) -> Floats:
        """The values of an array over a tile, flat over its points; NaN outside the complete landscape's grid."""
        arrays = self.source.arrays
        beside = arrays[name].shape[len(self.shape) :]
        values = np.full((*tile.shape, *beside), np.nan, arrays[name].dtype)
        starts, stops = (
            [place - first for place, first in zip(ends, self.offset, strict=True)] for ends in (tile.start, tile.stop)
        )
        low = tuple(max(start, 0) for start in starts)
        high = tuple(min(stop, size) for stop, size in zip(stops, self.shape, strict=True))
        if all(a < b for a, b in zip(low, high, strict=True)):
            inside = tuple(slice(a - first, b - first) for a, b, first in zip(low, high, starts, strict=True))
            values[inside] = arrays.over(name, low, high)
        return values.reshape(tile.points, *beside)


# ----------------------------------------------------------------------------------------------------
# Whether a landscape can be extended to a job, and what the extension takes over.

EXTENDED = ("num_samples", "samples", "observables", "coordinates")  # fields of an identity that may change


def extension_of(
    store: LandscapeStore, identity: Mapping[str, Any], grid: Grid, samples: Samples, plan: Plan, adds: Sequence[str],
    begun: str,
) -> Extension:  # fmt: skip
    """What an extension with this identity takes over from `store`.

    Args:
        plan: of the extension; the recorded one if it is on disk already.
        adds: its additional observables.
        begun: its name.

    Raises:
        JobError: it differs from `store` in fields that cannot be extended.
    """
    count, name = store.identity.num_samples or 0, quoted(store.name)
    _refuse_another_job(store, identity)
    if samples.length < count or samples.few(count).digest() != store.identity.samples:
        raise JobError(
            f"landscape {name} cannot be extended: its {count} samples are not the first of those that are there now; "
            "bring back the data of then"
        )
    before, now = store.identity.whole["observables"], list(identity["observables"])
    _refuse_other_observables(name, before, now, adds)
    if plan != recorded_plan(store):
        raise JobError(
            f"extend: landscape {name} was computed again by another plan since {quoted(begun)} was begun; drop that "
            f"by {command_text('rm', 'RUN', begun)}"
        )
    old = store.grid()
    if old is None:
        raise JobError(f"landscape {name} cannot be extended: its coordinates are damaged; run its job again first")
    offset, more_observables = _offset(name, old, grid), before != now
    if samples.length == count:
        return Extension(store, offset, old.shape, plan, None, more_observables)
    blocks, known = _complete_blocks(samples, count, plan)
    return Extension(store, offset, old.shape, plan, blocks, more_observables, known)


def _refuse_another_job(store: LandscapeStore, identity: Mapping[str, Any]) -> None:
    other = changes(store.identity.whole, {key: value for key, value in identity.items() if key not in EXTENDED})
    if other:
        raise JobError(
            f"landscape {quoted(store.name)} cannot be extended: it was computed with another job; changed: "
            f"{'; '.join(other)}: change it back"
        )


def _refuse_other_observables(name: str, before: Sequence[str], now: Sequence[str], adds: Sequence[str]) -> None:
    """Refuse observables that are gone, requested ones that `observe` lacks, and new ones that nobody requested."""
    if gone := sorted(set(before) - set(now)):
        raise JobError(
            f"landscape {name} cannot be extended: observe returns no {', '.join(gone)} any more; return it again"
        )
    if absent := sorted(set(adds) - set(now)):
        raise JobError(
            f"observables: observe returns no {', '.join(absent)}, only {', '.join(now)}; have it return them"
        )
    if unasked := sorted(set(now) - set(before) - set(adds)):
        raise JobError(
            f"landscape {name} cannot be extended: observe returns {', '.join(unasked)} by now, which it does not "
            f"hold; extend it by --observable {' --observable '.join(unasked)} too"
        )


def _complete_blocks(samples: Samples, count: int, plan: Plan) -> tuple[int, int]:
    """How many blocks of the first `count` samples stay the same when more follow, and how many samples they have.

    Moments are kept over exactly these blocks.
    """
    cuts = samples.cuts and [edge for edge in samples.cuts if edge[1] <= count]
    batching = batching_of(count, plan, plan.batch_size, cuts)
    return batching.complete, batching.edges[batching.complete - 1][1] if batching.complete else 0


def _offset(name: str, old: Grid, grid: Grid) -> Index:
    """Where the first point of the old grid lies in the new one.

    Raises:
        JobError: a coordinate of the old grid is not one of the new, to the bit.
    """
    offset = []
    for axis, before, now in zip(grid.names, old.coordinates, grid.coordinates, strict=True):
        start = int(np.searchsorted(now, before[0]))
        if not np.array_equal(now[start : start + len(before)], before):
            raise JobError(
                f"ranges: landscape {name} cannot be extended along {axis}: its coordinates would not be those of the "
                "wider range; compute the wider range under another name"
            )
        offset.append(start)
    return tuple(reversed(offset))


# ----------------------------------------------------------------------------------------------------
# What a level of refinement takes over from its landscape: everything except points and values.


@dataclass(frozen=True)
class Refinement(Extension):
    """A complete landscape for a level that refines it: points of coarser levels are not evaluated again.

    The level does not hold their values either: they read as NaN there.

    Attributes:
        before_extension: the same level before its landscape was extended, whose values or moments are taken over; None
            if the level extends none.
    """

    before_extension: LandscapeStore | None = None

    @property
    def source(self) -> LandscapeStore:
        """The level that this one extends, else the landscape."""
        return self.before_extension or self.store

    def before_at(self, grid: Grid, point: Sequence[float]) -> Before | None:
        """None: every process reproduces the landscape's own value, which has all samples already."""
        return None

    @property
    def gives_values(self) -> bool:
        """False: each value lives in one level only."""
        return False

    def known(self, tile: Tile) -> NDArray[np.bool_]:
        """Which points of a tile live in a coarser level, in C order."""
        return in_coarser_level(tile).reshape(-1)

    def values(self, tile: Tile) -> dict[str, Floats]:
        """NaN for every array over a tile."""
        arrays = self.store.arrays
        beside = {name: arrays[name].shape[len(self.shape) :] for name in arrays.tile_names}
        return {name: np.full((tile.points, *width), np.nan) for name, width in beside.items()}


def refinement_of(
    store: LandscapeStore, identity: Mapping[str, Any], plan: Plan, before: LandscapeStore | None, samples: Samples
) -> Refinement:
    """What a level takes over from its landscape, and from the same level before the landscape was extended.

    Args:
        identity: of the level: the landscape's identity and the number of the level.
        before: that level; None if the level extends none.

    Raises:
        JobError: the landscape, or the level before, was computed with another job than the level.
    """
    name = quoted(store.name)
    if changed := changes(store.identity.whole, {key: value for key, value in identity.items() if key != "level"}):
        raise JobError(
            f"landscape {name} cannot be refined: it was computed with another job; changed: {'; '.join(changed)}: "
            "change it back"
        )
    if plan != recorded_plan(store):
        raise JobError(f"landscape {name} was computed by another plan since it was refined; give it another name")
    zero = (0,) * len(store.shape)
    if before is None:
        return Refinement(store, zero, store.shape, plan, None, more_observables=False)
    _refuse_another_job(before, identity)
    more, count = before.identity.whole["observables"] != list(identity["observables"]), before.identity.num_samples
    blocks, known = (None, 0) if count == samples.length else _complete_blocks(samples, count or 0, plan)
    return Refinement(store, zero, before.shape, plan, blocks, more, known, before)


def join_levels(one: LevelRecord, other: LevelRecord) -> LevelRecord:
    """A level with the blocks of both; it keeps the first one's rule if that level holds all blocks."""
    if one.blocks == other.blocks:
        return one
    numbers = max(end for level in (one, other) for _, end in (*level.blocks, (0, 0)))
    mask = from_stretches(one.blocks, (numbers,)) | from_stretches(other.blocks, (numbers,))
    blocks = to_stretches(mask)
    if blocks in (one.blocks, other.blocks):
        return one if blocks == one.blocks else other
    return LevelRecord(number=one.number, stride=one.stride, blocks=blocks, rule=other.rule, chosen_by=other.chosen_by)
