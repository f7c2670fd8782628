"""Which blocks of which level are worth computing: a function of the values that are there, and of nothing else.

So any crew, order or interruption chooses the same blocks. The levels so far are merged, one grid per level; where a
point of a level is far from what the level above foretells by bilinear interpolation, the steps there are too coarse.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from landscape.core.grid import Floats, Index
from landscape.surface.grids import (
    BLOCK,
    Mask,
    block_counts,
    finer_shape,
    grown,
    new_points_per_tile,
    parents_of,
    tiles_of_blocks,
)
from landscape.surface.merging import spread

MOST_LEVELS = 4  # 16 steps for one: beyond, a block of 8 cells is half a step of the landscape
# A level is off by about half of what the one above it was off by at a kink, and by a quarter where the loss is smooth.
HALVED = 0.5
# All points share their samples, so that the error of sampling is smooth, as the loss is, and finer steps show the
# surface of these samples well below its standard error. A surface is rough where finer steps do not bring neighbours
# together: the median of what level 0 is off by is more than so much of that at twice its steps (1 for white noise, 1/2
# for kinks, 1/4 for smooth losses). Then the standard error is that of each point alone, and what is off by less than
# some of them is noise: of white noise, a point and the mean of two beside it differ by 5 once in 20 000 times.
ROUGH = 0.75
STANDARD_ERRORS = 5.0
MARKED_LEVELS = 1  # so far down, where a minimum, a saddle or the path lies: there pictures are read closely


@dataclass(frozen=True)
class Values:
    """What is known when blocks are chosen.

    Attributes:
        merged: the values of all levels so far on the grid of each level, level 0 first; log10 where the figure is.
        losses: the losses themselves on the same grids.
        errors: the standard errors of the rise there; NaN where they are not known, which counts as none.
        held: which blocks of the levels from 1 on are held.
        relief: of level 0, in the units of `merged`.
        marked: indices of the finest grid in `merged`, of points that are read closely.
    """

    merged: Sequence[Floats]
    losses: Sequence[Floats]
    errors: Sequence[Floats]
    held: Sequence[Mask]
    relief: float
    marked: Sequence[Index] = ()

    @cached_property
    def rough(self) -> bool:
        """Whether neighbours differ as much as points farther apart do, as those of white noise: see `ROUGH`."""
        return is_rough(self.losses[0])


@dataclass(frozen=True)
class Wanted:
    """The blocks that a level should hold, and of every block of it what interpolation was off by where it was seen."""

    level: int
    blocks: Mask
    eta: Floats


def surprises(values: Values, level: int) -> Floats:
    """By how much each point of a level differs from what the level above foretells, as a share of the relief.

    η = |f(L) − bilinear|/relief, and 0 where the point is not new, where either is not finite, and on a rough surface
    where |L − bilinear| ≤ 5·SE of the rise. Above level 0 lies every second point of it; what that does not surround is
    not judged.
    """
    off = np.abs(values.merged[level] - _foretold(values.merged, level))
    raw = np.abs(values.losses[level] - _foretold(values.losses, level))
    noise = STANDARD_ERRORS * np.nan_to_num(values.errors[level], nan=0.0, posinf=math.inf) if values.rough else 0.0
    with np.errstate(invalid="ignore"):
        usable = np.isfinite(off) & (raw > noise)
    return np.where(usable, off, 0.0) / values.relief


def _foretold(grids: Sequence[Floats], level: int) -> Floats:
    """What interpolation from the level above gives at the points of a level; NaN where nothing is above."""
    if level:
        return spread(grids[level - 1])
    whole = grids[0]
    odd = tuple(slice(0, size - (size + 1) % 2) for size in whole.shape)
    foretold = np.full(whole.shape, np.nan)
    foretold[odd] = spread(whole[odd][tuple(slice(None, None, 2) for _ in whole.shape)])
    return foretold


def is_rough(losses: Floats) -> bool:
    """Whether what a grid is off by at its steps is about what it is off by at twice its steps.

    >>> x = np.linspace(-1, 1, 17)
    >>> is_rough(np.add.outer(x**2, x**2)), is_rough(np.random.default_rng(0).normal(size=(17, 17)))
    (False, True)
    """
    every, coarse = tuple(slice(None, None, 2) for _ in losses.shape), []
    for grid in (losses, losses[every]):
        off = np.abs(grid - _foretold([grid], 0))
        new = np.ones(grid.shape, np.bool_)
        new[every] = False
        off = off[new & np.isfinite(off)]
        coarse.append(float(np.median(off)) if off.size else 0.0)
    return coarse[0] > ROUGH * coarse[1] > 0


def block_maxima(points: Floats) -> Floats:
    """The largest value in each block of the next level, of the points of a level in it and on its sides."""
    counts, half = block_counts(finer_shape(points.shape, 2)), BLOCK // 2
    for dimension, count in enumerate(counts):
        along = np.moveaxis(points, dimension, 0)
        largest = np.stack([along[k * half : (k + 1) * half + 1].max(axis=0) for k in range(count)])
        points = np.moveaxis(largest, 0, dimension)
    return points


def _marks(values: Values, level: int) -> Mask:
    """The blocks of a level in which a marked point lies."""
    base = values.merged[0].shape
    mask = np.zeros(block_counts(finer_shape(base, 2**level)), np.bool_)
    finest = len(values.merged) - 1
    for index in values.marked:
        places = (place * 2.0 ** (level - finest) // BLOCK for place in index)
        mask[tuple(min(int(place), count - 1) for place, count in zip(places, mask.shape, strict=True))] = True
    return mask


def wanted(values: Values, tolerance: float, most_levels: int = MOST_LEVELS) -> list[Wanted]:
    """The blocks that every level should hold by what is known, those that it holds among them; the coarsest first.

    A block is wanted where half of η exceeds the tolerance at a point in it; of level 1 also where it holds a marked
    point and η is not 0.
    So that neighbours differ by one level at most, the blocks around one of level ℓ are wanted in level ℓ − 1.
    """
    if not values.relief > 0:
        return []
    base, found = values.merged[0].shape, list[Wanted]()
    for level in range(1, min(len(values.merged), most_levels) + 1):
        eta = block_maxima(surprises(values, level - 1))
        blocks = HALVED * eta > tolerance
        if level <= MARKED_LEVELS:
            blocks |= (eta > 0) & _marks(values, level)
        if level <= len(values.held):
            blocks |= values.held[level - 1]
        found.append(Wanted(level, blocks, eta))
    for finer, coarser in zip(reversed(found), list(reversed(found))[1:], strict=False):
        coarser.blocks[...] |= parents_of(grown(finer.blocks), finer_shape(base, 2**coarser.level))
    return found


def next_blocks(values: Values, tolerance: float, points: int | None, most_levels: int = MOST_LEVELS) -> Wanted | None:
    """The coarsest level that lacks a wanted block, with all that it is to hold; None where there is nothing to do.

    Args:
        points: how many more may be evaluated. Where the blocks have more, those of the largest η are taken, ties by
            their index, as many as fit.
    """
    for level in wanted(values, tolerance, most_levels):
        held = values.held[level.level - 1] if level.level <= len(values.held) else np.zeros_like(level.blocks)
        missing = level.blocks & ~held
        if not missing.any():
            continue
        chosen = _within(level, held, missing, finer_shape(values.merged[0].shape, 2**level.level), points)
        return Wanted(level.level, held | chosen, level.eta) if chosen.any() else None
    return None


def _within(level: Wanted, held: Mask, missing: Mask, shape: Index, points: int | None) -> Mask:
    """Those of the missing blocks that a budget has room for, by η."""
    if points is None:
        return missing
    per_tile, taken = new_points_per_tile(shape), np.zeros_like(missing)
    numbers = np.flatnonzero(missing)
    spent = int(per_tile[tiles_of_blocks(held, shape)].sum())
    for number in numbers[np.argsort(-level.eta.reshape(-1)[numbers], kind="stable")]:
        taken.flat[number] = True
        if int(per_tile[tiles_of_blocks(held | taken, shape)].sum()) - spent > points:
            taken.flat[number] = False
            break
    return taken
