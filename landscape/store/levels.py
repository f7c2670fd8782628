"""The request of `landscape refine`, and the levels that it leaves to compute. Only reads."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from landscape.core.errors import JobError, quoted
from landscape.core.grid import AXIS_NAMES, Grid, as_written, tile_counts
from landscape.core.validation import MAX_SIZE
from landscape.store.documents import LEVELS
from landscape.store.landscape import LandscapeStore
from landscape.store.results import begun_extension
from landscape.surface.record_parts import LevelRecord
from landscape.surface.refinement import (
    BLOCK,
    SLACK,
    Mask,
    blocks_over,
    finer_grid,
    finer_shape,
    from_stretches,
    new_points_per_tile,
    parents_of,
    tile_shape,
    tiles_of_blocks,
    to_stretches,
)
from landscape.surface.surface import QUARANTINED

FACTORS = (2, 4)
Box = Sequence[tuple[float, float]]


@dataclass(frozen=True)
class Finer:
    """A requested refinement.

    Attributes:
        factor: by which each step is divided.
        box: [low, high] of each axis; None for the whole grid.

    Raises:
        JobError: factor or box is malformed.
    """

    factor: int
    box: Box | None = None

    def __post_init__(self) -> None:
        if type(self.factor) is not int or self.factor not in FACTORS:
            raise JobError(f"factor: must be 2 or 4, not {quoted(self.factor)}; a level halves the steps")
        if self.box is None:
            return
        try:
            pairs = tuple((float(low), float(high)) for low, high in self.box)
        except (TypeError, ValueError, OverflowError):
            pairs = ((math.nan, math.nan),)
        for axis, (low, high) in zip(AXIS_NAMES, pairs, strict=False):
            if not (math.isfinite(low) and math.isfinite(high)):
                raise JobError(f"box: must be pairs of finite numbers, such as [(-0.5, 0.5)], not {quoted(self.box)}")
            if low >= high:
                width = f"{as_written(low)} to {as_written(high)}"
                raise JobError(f"box: must have a width along each axis, not {width} along {axis}; low end first")
        object.__setattr__(self, "box", pairs)

    @property
    def levels(self) -> range:
        """The numbers of the levels that the refinement needs."""
        return range(1, self.factor.bit_length())

    def held_already(self, name: str, axes: int) -> str:
        """The message that a landscape holds the whole refinement already, and which requests would add to it.

        Args:
            axes: how many the landscape has.
        """
        where = "everywhere" if self.box is None else "in this box"
        ways = ["for more, give factor 4"] if self.factor != max(FACTORS) else []
        ways += [] if self.box is None else ["choose another box"]
        if self.factor == max(FACTORS) and axes <= 2:  # a job refines no volume
            ways.append("give its job `refine:`, which goes to a sixteenth where the values ask for it")
        more = f"; {', or '.join(ways)}" if ways else ", and is not made finer than that"
        return f"landscape {quoted(name)} is finer by {self.factor} {where} already: nothing is left to do{more}"


def levels_left(run: str, name: str, finer: Finer) -> list[LevelRecord]:
    """The levels of a refinement that are not complete yet, each with the blocks that it will hold.

    Raises:
        NotFoundError: there is no such landscape.
        JobError: the landscape cannot be refined so.
    """
    store = refinable(run, name)
    rule = {"factor": finer.factor} | ({} if finer.box is None else {"box": [list(ends) for ends in finer.box]})
    records = [
        LevelRecord(number=number, stride=2**number, blocks=to_stretches(tiles), rule=rule)
        for number, tiles in _tiles_of(store, finer).items()
    ]
    return [record for level in records if (record := _unfinished(run, name, level)) is not None]


def _tiles_of(store: LandscapeStore, finer: Finer) -> dict[int, Mask]:
    """The tiles of every level that a refinement needs, the coarsest first."""
    tiles: dict[int, Mask] = {}
    above: Mask | None = None
    for number in reversed(finer.levels):
        grid = grid_of_level(store, LevelRecord(number=number, stride=2**number))
        if max(grid.shape) > MAX_SIZE:
            raise JobError(
                f"factor: must leave at most {MAX_SIZE} points per axis, not {max(grid.shape)}; choose a smaller one"
            )
        blocks = blocks_over(grid, *_corners(grid, finer.box))
        if above is not None:
            blocks |= parents_of(above, grid.shape)
        above, tiles[number] = blocks, tiles_of_blocks(blocks, grid.shape)
    return dict(reversed(tiles.items()))


def box_of_blocks(store: LandscapeStore, finer: Finer) -> list[tuple[float, float]]:
    """[low, high] of each axis that a refinement covers: the box, widened to whole blocks of the first level."""
    level = LevelRecord(number=1, stride=2)
    grid = grid_of_level(store, level)
    blocks = blocks_over(grid, *_corners(grid, finer.box))
    ends = []
    for k, axis in enumerate(grid.coordinates):
        others = tuple(dimension for dimension in range(blocks.ndim) if dimension != blocks.ndim - 1 - k)
        places = np.flatnonzero(blocks.any(others))
        ends.append((float(axis[BLOCK * places[0]]), float(axis[min(BLOCK * (places[-1] + 1), len(axis) - 1)])))
    return ends


def grid_of_level(store: LandscapeStore, level: LevelRecord) -> Grid:
    """The grid of a level of a landscape.

    Raises:
        JobError: the coordinates of the landscape are damaged.
    """
    grid = store.grid()
    if grid is None:
        raise JobError(
            f"landscape {quoted(store.name)} cannot be refined: its coordinates are damaged; run its own job first"
        )
    return finer_grid(grid, level.stride)


def _corners(grid: Grid, box: Box | None) -> tuple[list[float], list[float]]:
    """The corners of a box, or of the whole grid.

    Raises:
        JobError: the box has another number of axes, or lies outside of the grid.
    """
    ends = [(float(axis[0]), float(axis[-1])) for axis in grid.coordinates]
    if box is None:
        return [low for low, _ in ends], [high for _, high in ends]
    if len(box) != len(ends):
        raise JobError(f"box: must be LOW,HIGH for each of {len(ends)} axes, not for {len(box)}")
    steps = [float(np.diff(axis).min()) for axis in grid.coordinates]
    for name, (low, high), (first, last), step in zip(grid.names, box, ends, steps, strict=True):
        if low < first - SLACK * step or high > last + SLACK * step:
            wanted, limits = (f"{as_written(a)} to {as_written(b)}" for a, b in ((low, high), (first, last)))
            raise JobError(
                f"box: must lie in the landscape, {limits} along {name}, not {wanted}; `landscape extend --range` "
                "widens it first"
            )
    return [low for low, _ in box], [high for _, high in box]


def _unfinished(run: str, name: str, level: LevelRecord) -> LevelRecord | None:
    """A level with its wanted blocks and those that it holds already; None if it holds all and is complete."""
    stored = LandscapeStore.find(run, name, level=level.number)
    if stored is None or stored.record.level is None:
        return level
    counts = tile_counts(stored.shape, stored.tile_shape)
    held, wanted = from_stretches(stored.record.level.blocks, counts), from_stretches(level.blocks, counts)
    if (wanted & ~held).any():
        return replace(level, blocks=to_stretches(held | wanted))
    return None if stored.examine().complete else stored.record.level


def refinable(run: str, name: str) -> LandscapeStore:
    """Open a landscape for refinement.

    Raises:
        NotFoundError: there is none of this name.
        JobError: it cannot be refined; with the reason.
    """
    store = LandscapeStore.open(run, name)
    called, record = quoted(name), store.record
    if record.is_imported:
        file = quoted((record.imported and record.imported.file) or "a file")
        raise JobError(
            f"landscape {called} cannot be refined: it was imported from {file}, and no job computed it; compute a "
            "landscape of your own under another name"
        )
    if store.refusal:
        raise JobError(store.refusal)
    if not store.job.landscapes:
        raise JobError(f"landscape {called} cannot be refined: its record holds no job; compute it anew")
    if store.record.accuracy is not None:
        raise JobError(
            f"landscape {called} cannot be refined: it has an accuracy, by which its points are chosen; "
            f"`landscape extend {quoted(run, 300)} {called} --accuracy` makes it truer"
        )
    if LEVELS in store.observables:
        raise JobError(
            f"landscape {called} cannot be refined: it has an observable {LEVELS}, the name of the folder of its "
            "levels; compute it anew with another name for that"
        )
    if (extension := begun_extension(run, name)) is not None:
        raise JobError(
            f"landscape {called} is being extended; give that command again first, or remove {quoted(extension)}"
        )
    if (why := why_incomplete(store)) is not None:
        raise JobError(f"landscape {called} cannot be refined: {why}; run its own job first")
    return store


def why_incomplete(store: LandscapeStore) -> str | None:
    """Why a landscape is not complete; None if it is."""
    if store.level and store.record.level is None:
        return "its record is damaged"
    examined = store.examine()
    if examined.complete:
        return None
    if examined.damaged:
        return "a chunk of it is damaged"
    given_up = store.counts()[QUARANTINED]
    return f"{given_up} of its points were given up" if given_up else "it is not complete"


def points_left(run: str, name: str, level: LevelRecord, shape: Sequence[int]) -> int:
    """How many points of a level are still to be computed.

    Args:
        shape: of the landscape.
    """
    finer = finer_shape(shape, level.stride)
    tiles = np.array(from_stretches(level.blocks, tile_counts(finer, tile_shape(finer))))
    stored = LandscapeStore.find(run, name, level=level.number)
    if stored is not None and stored.record.level is not None:
        tiles &= ~from_stretches(stored.record.level.blocks, tiles.shape) | stored.examine().missing_mask
    return int(new_points_per_tile(finer)[tiles].sum())
