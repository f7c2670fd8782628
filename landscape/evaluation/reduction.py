"""The values of points, and their reduction from the observables of every sample, block by block.

Values of landscapes from earlier versions are reduced as they were then.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from landscape.core.errors import JobError
from landscape.core.grid import Floats
from landscape.core.validation import WEIGHT
from landscape.evaluation.feed import Batching
from landscape.problem.supervised import Combination, Observe, OtherWeights, ordered_names
from landscape.surface.surface import LOSS_SAMPLES, MOMENT_PARTS, MOMENTS, ORIGIN_SAMPLES, RISE_STDERR, SAMPLE_WEIGHTS

# ----------------------------------------------------------------------------------------------------
# The values of points: means and standard errors over the samples of every observable.

Observed = dict[str, Tensor]  # per observable, float64 [samples]; with `weight` if samples have different weights
Pieces = Sequence[Observed]  # the observables of one point, of every batch


@dataclass(frozen=True)
class BlockMoments:
    """Moments of the complete blocks of samples at P points, from which an extension continues, see `moments`.

    Attributes:
        rows: the names of the R quantities, see `moment_rows`.
        table: float64 [P, R, 6].
    """

    rows: tuple[str, ...]
    table: Floats

    def of_losses(self) -> Floats:
        """The moments of the loss, or of its terms: float64 [P, T, 6]."""
        names = [row.removesuffix("-rise") for row in self.rows if row.endswith("-rise")]
        return self.table[:, [self.rows.index(name) for name in names]]

    def flat(self) -> Floats:
        """The table as stored: float64 [P, 6·R]."""
        return np.ascontiguousarray(self.table.reshape(len(self.table), -1))


@dataclass(frozen=True)
class SampleValues:
    """The losses of N samples at P points, and the samples' losses at the origin and weights.

    Attributes:
        losses: float32 [P, N].
        origin: float32 [N], at the origin; NaN if unknown.
        weights: float64 [N], the same at every point; 1 where `observe` returns none.
    """

    losses: NDArray[np.float32]
    origin: NDArray[np.float32]
    weights: Floats

    def arrays(self) -> dict[str, NDArray[Any]]:
        """The arrays by their names in the store."""
        return {LOSS_SAMPLES: self.losses, ORIGIN_SAMPLES: self.origin, SAMPLE_WEIGHTS: self.weights}


@dataclass(frozen=True)
class Values:
    """Observables at P points: mean and standard error, float64 [P] each, by name; and the seconds of the evaluation.

    `rise_stderr` is the standard error of the loss's rise over the origin, that of the mean of ℓᵢ(p) − ℓᵢ(0) over the
    samples i. All points share the samples, so that their common noise cancels. None if it was not requested.
    `moments` and `samples` are None if they are not kept.
    `of_blocks` are the moments [P, blocks, R, 6] of each block alone, if blocks are kept apart.
    `weighted` says whether `observe` returned a weight for each sample. For a loss that is a sum of terms, `of_terms`
    holds the samples of each term by name, if they are kept; then `samples` is None.
    """

    mean: Mapping[str, Floats]
    stderr: Mapping[str, Floats]
    seconds: float = 0.0
    rise_stderr: Floats | None = None
    moments: BlockMoments | None = None
    samples: SampleValues | None = None
    weighted: bool = False
    of_terms: Mapping[str, SampleValues] = field(default_factory=dict)
    of_blocks: Floats | None = None

    def arrays(self) -> dict[str, NDArray[Any]]:
        """The values by their names in the store, `loss`, `loss_stderr`, …, `loss_rise_stderr`: float64 [P] each."""
        arrays: dict[str, NDArray[Any]] = {
            name: values
            for key in self.mean
            for name, values in ((key, self.mean[key]), (f"{key}_stderr", self.stderr[key]))
        }
        if self.moments is not None:
            arrays[MOMENTS] = self.moments.flat()
        if self.samples is not None:
            arrays |= self.samples.arrays()
        return arrays if self.rise_stderr is None else arrays | {RISE_STDERR: self.rise_stderr}


# ----------------------------------------------------------------------------------------------------
# The losses of single samples, collected point by point.

SAMPLES_AT_ONCE = 1 << 20  # losses that are copied to the host at once


class SampleKeeper:
    """Keeps the losses of every point in float32, and the weights of the samples, which all points share.

    Args:
        origin: the observables at the origin, of every batch; None if they are not known.
        name: of the loss, or of one of its terms; a term may have samples in the first batches only.
        rises: whether to keep what each loss is above that at the origin, instead of the loss.
    """

    def __init__(self, origin: Pieces | None, name: str = "loss", *, rises: bool = False) -> None:
        self._origin, self._name = origin, name
        self._below = self._of(origin) if rises and origin is not None else None
        self._losses: list[NDArray[np.float32]] = []
        self._pending: list[tuple[Tensor, Tensor | None]] = []  # of points, on the device
        self._size = 0
        self._weights: Floats | None = None

    def add(self, pieces: Pieces) -> None:
        """Add the observables of the next point.

        Raises:
            OtherWeights: the sample weights differ from those of earlier points.
        """
        losses = self._of(pieces)
        losses = (losses if self._below is None else losses - self._below).float()
        weights = torch.cat([piece[WEIGHT] for piece in pieces]).double() if WEIGHT in pieces[0] else None
        self._pending.append((losses, weights))
        self._size += len(losses)
        if self._size >= SAMPLES_AT_ONCE:
            self._take()

    def _take(self) -> None:
        """Copy the pending losses to the host."""
        pending, self._pending, self._size = self._pending, [], 0
        if not pending:
            return
        self._losses.append(torch.stack([losses for losses, _ in pending]).cpu().numpy())
        given = [weights for _, weights in pending if weights is not None]
        table = torch.stack(given).cpu().numpy() if given else np.ones((1, len(pending[0][0])))
        self._weights = table[0] if self._weights is None else self._weights
        if not (table == self._weights).all():
            raise OtherWeights(
                "observe: 'weight' must be the same at every point where keep_samples is set; return weights that "
                "depend on the data alone, or leave keep_samples out"
            )

    def values(self, places: NDArray[np.int64]) -> SampleValues | None:
        """The losses of the points, in their places; None without points."""
        self._take()
        if self._weights is None:
            return None
        losses = np.concatenate(self._losses)[places]
        origin = np.full(losses.shape[1], np.nan, np.float32)
        if self._origin is not None:
            origin = self._of(self._origin).float().cpu().numpy()
        return SampleValues(losses, origin, self._weights)

    def _of(self, pieces: Pieces) -> Tensor:
        held = [piece[self._name] for piece in pieces if self._name in piece]
        return torch.cat(held) if held else next(iter(pieces[0].values())).new_empty(0)


# ----------------------------------------------------------------------------------------------------
# Moments of weighted samples, merged block by block in a fixed order: means and standard errors that can be extended.
#
# A *block* is a planned batch. For every block and observable six numbers are kept,
#
# n, W = Σw, V = Σw², S = Σwℓ, B = Σw²(ℓ − m), A = Σw²(ℓ − m)²  with the block's own mean m = S/W,
#
# and the blocks are merged one after the other. More samples are more blocks, so the moments merged so far need not be
# computed again. Additions have a fixed order in float64, on any device and for any number of points reduced at once,
# so the bits are the same.

PARTS = MOMENT_PARTS  # n, W, V, S, B, A


def tree_sum(values: Tensor) -> Tensor:
    """The sum over the last dimension [..., n] → [...], halves added to halves.

    torch's own sum may use another order for other shapes or numbers of threads; this one never does. Its error grows
    with log n.

    Example:
        >>> tree_sum(torch.tensor([1.0, 2.0, 3.0]))
        tensor(6.)
    """
    count = values.shape[-1]
    while count > 1:
        half = 1 << ((count - 1).bit_length() - 1)  # the largest power of two below the count
        first, second = values[..., :half], values[..., half:]
        more = count - half
        values = first + second if more == half else torch.cat([first[..., :more] + second, first[..., more:]], -1)
        count = half
    return values[..., 0] if count else values.sum(-1)


def block_moments(values: Tensor, weights: Tensor | None) -> Tensor:
    """The moments of one block.

    Args:
        values: float64 [points, rows, n].
        weights: float64 [points, n]; None for weights of 1, which gives the same bits as ones.

    Returns:
        [points, rows, 6].
    """
    count = values.shape[-1]
    weight = weights[:, None] if weights is not None else values.new_ones(())
    sums = tree_sum(weight * values)
    if weights is None:
        weighted = squares = torch.full_like(sums, count)
    else:
        totals = tree_sum(torch.stack([weights, weights * weights]))[:, :, None]
        weighted, squares = totals.expand(-1, -1, values.shape[1])
    # Two passes: the difference of large sums would lose the small spread near a minimum.
    away = weight * (values - (sums / weighted)[..., None])
    lean, spread = tree_sum(torch.stack([weight * away, away * away]))
    return torch.stack([torch.full_like(sums, count), weighted, squares, sums, lean, spread], -1)


def merge_moments(before: Floats, block: Floats) -> Floats:
    """The moments [..., 6] of the union of two sets of samples; an empty set changes nothing."""
    with np.errstate(all="ignore"):
        total = before + block  # n, W, V and S
        mean = total[..., 3] / total[..., 1]
        lean, spread = np.zeros_like(mean), np.zeros_like(mean)
        for moments in (before, block):
            _, weights, squares, sums, own_lean, own_spread = np.moveaxis(moments, -1, 0)
            shift = sums / weights - mean
            lean = lean + (own_lean + shift * squares)
            spread = spread + (own_spread + 2.0 * shift * own_lean + shift * shift * squares)
        total[..., 4], total[..., 5] = lean, spread
    total = np.where(before[..., :1] == 0, block, total)
    return np.asarray(np.where(block[..., :1] == 0, before, total), np.float64)


def mean_of_moments(moments: Floats) -> Floats:
    """The mean m = Σwℓ / Σw, [..., 6] → [...]; NaN of no samples."""
    with np.errstate(all="ignore"):
        return np.asarray(moments[..., 3] / moments[..., 1], np.float64)


def stderr_of_moments(moments: Floats) -> Floats:
    """The standard error of the mean, √(Σw²(ℓ−m)²)/Σw · √(n/(n−1)), [..., 6] → [...]; NaN of one sample.

    With weights of 1 it is s/√n, s being the standard deviation of the sample.
    """
    count = moments[..., 0]
    with np.errstate(all="ignore"):
        spread = np.maximum(moments[..., 5], 0.0)  # merging may round the spread of equal samples below zero
        error = np.sqrt(spread) / moments[..., 1] * np.sqrt(count / (count - 1.0))
    return np.asarray(np.where(count > 1, error, np.nan), np.float64)


# ----------------------------------------------------------------------------------------------------

AT_ONCE = 1 << 18  # values that are reduced at once: enough to hide the cost of a call, few enough for the caches
LEAST_SQUARES = 1e-200  # the least sum of squared weights of a block; the largest is its inverse


@dataclass(frozen=True)
class Before:
    """Known moments of points over the first blocks of samples, before the points are evaluated.

    Attributes:
        blocks: the number of these blocks.
        moments: [points, rows, 6], see `moment_rows`.
    """

    blocks: int
    moments: Floats


Places = NDArray[np.int64]


class Reduction:
    """Reduces the observables of point after point to moments of blocks, merged in the order of the blocks.

    Args:
        batching: how the batches make blocks.
        origin: the observables at the origin, of every batch, for the error of the rise; None if they are not known.
        terms: the terms of the loss, each with its factor; None if `observe` returns the loss.
        before: known moments of earlier blocks, in the order of the points; None if there are none.
        keep: whether the losses of all these samples are returned too.
        apart: whether the blocks are kept apart, with the rises of every observable; `keep` then returns rises.
    """

    def __init__(
        self, batching: Batching, origin: Pieces | None, terms: Mapping[str, float] | None = None,
        before: Before | None = None, keep: bool = False, apart: bool = False,
    ) -> None:  # fmt: skip
        self._batching, self._terms, self._before, self.apart = batching, terms, before, apart
        self._origin = None if origin is None else self._in_blocks(origin)
        kept = (terms or ("loss",)) if keep else ()
        self._keepers = {name: SampleKeeper(origin, name, rises=apart) for name in kept}
        self._tables: list[Floats] = []
        self._names: tuple[str, ...] = ()
        self._pending: list[list[Observed]] = []
        self._size, self._weighted = 0, False
        self._whole: list[Floats] = []  # of points, over all blocks
        self._prefix: list[Floats] = []  # of points, over the complete blocks

    def add(self, pieces: Pieces) -> None:
        """Add the observables of the next point, of every batch."""
        observed = self._in_blocks(pieces)
        self._weighted = WEIGHT in observed[0]
        for keeper in self._keepers.values():
            keeper.add(pieces)
        self._pending.append(observed)
        self._size += sum(tensor.numel() for block in observed for tensor in block.values())
        if self._size >= AT_ONCE:
            self._reduce()

    def _in_blocks(self, pieces: Pieces) -> list[Observed]:
        """The observables of one point, of every block."""
        return [_join(pieces[start:stop]) for start, stop in self._batching.split(len(pieces))]

    def _reduce(self) -> None:
        points, self._pending, self._size = self._pending, [], 0
        if not points:
            return
        names = dict.fromkeys(name for block in points[0] for name in block if name != WEIGHT)
        self._names = tuple(self._terms or ordered_names(names))
        table = torch.stack([self._moments(points, number) for number in range(len(points[0]))]).cpu().numpy()
        _refuse_weights(table)
        if self.apart:
            self._tables.append(np.moveaxis(table[..., :PARTS], 0, 1))
        start = sum(map(len, self._whole))
        whole = np.zeros((*table.shape[1:-1], PARTS))
        if self._before is not None:
            whole = self._before.moments[start : start + len(points)]
        prefix, first = whole, self._before.blocks if self._before else 0
        for number, block in enumerate(table[..., :PARTS]):
            whole = merge_moments(whole, block)
            if first + number < self._batching.complete:
                prefix = whole
        self._whole.append(whole)
        self._prefix.append(prefix)

    @property
    def _rows(self) -> tuple[str, ...]:
        """The rows of the moments: the observables, then the rises."""
        return moment_rows(self._names, self._terms, of_all=self.apart)

    def _moments(self, points: Sequence[Sequence[Observed]], number: int) -> Tensor:
        """The moments of one block at some points [points, rows, 7]; the last column is the least weight."""
        blocks = [point[number] for point in points]
        stacked = {name: torch.stack([block[name] for block in blocks]) for name in blocks[0]}
        weights = stacked.pop(WEIGHT, None)
        if self._origin is not None:
            rises = self._origin[number]
            names = [name for name in self._terms or (self._names if self.apart else ("loss",)) if name in stacked]
            stacked |= {rise_of(name): stacked[name] - rises[name] for name in names}
        first = next(iter(stacked.values()))
        table = first.new_zeros(len(points), len(self._rows), PARTS + 1)
        table[..., PARTS] = 1.0
        for rows in _of_one_length(self._rows, stacked):
            values = torch.stack([stacked[self._rows[row]] for row in rows], 1)
            table[:, rows, :PARTS] = block_moments(values, weights)
        if weights is not None:
            table[..., PARTS] = weights.min(1).values[:, None]
        return table

    def values(self, places: Places) -> Values:
        """The values of the points, in their places; one transfer from the device for many points."""
        self._reduce()
        if not self._whole:
            return Values({}, {})
        whole, prefix = np.concatenate(self._whole)[places], np.concatenate(self._prefix)[places]
        mean = {name: np.ascontiguousarray(mean_of_moments(whole[:, row])) for row, name in enumerate(self._names)}
        errors = {
            row: np.ascontiguousarray(stderr_of_moments(whole[:, number])) for number, row in enumerate(self._rows)
        }
        if self._terms:
            mean["loss"] = _sum_terms(self._terms, mean)
            # A term of one point, such as the beginning of a curve, is a condition, not a sample: it adds no error.
            several = {name for row, name in enumerate(self._names) if (whole[:, row, 0] > 1).any()}
            drawn = {name: factor for name, factor in self._terms.items() if name in several or not several}
            errors["loss"] = _join_errors(drawn, [errors[name] for name in drawn])
            errors[rise_of("loss")] = _join_errors(drawn, [errors[rise_of(name)] for name in drawn])
        names = ordered_names(mean)
        kept = {name: values for name, keeper in self._keepers.items() if (values := keeper.values(places)) is not None}
        of_terms = kept if self._terms else {}
        return Values(
            {name: mean[name] for name in names}, {name: errors[name] for name in names}, 0.0,
            errors[rise_of("loss")], BlockMoments(self._rows, prefix), None if of_terms else kept.get("loss"),
            self._weighted, of_terms, np.concatenate(self._tables)[places] if self.apart else None,
        )  # fmt: skip


def terms_of(observe: Observe) -> Mapping[str, float] | None:
    """The terms whose sum is the loss, each with its factor; None if `observe` returns the loss."""
    return observe.factors if isinstance(observe, Combination) else None


def moment_rows(
    observables: Sequence[str], terms: Mapping[str, float] | None = None, *, of_all: bool = False
) -> tuple[str, ...]:
    """The rows of kept moments: every observable that `observe` returns, and the rise of the loss or of its terms.

    Args:
        of_all: whether the rise of every observable is a row.

    Example:
        >>> moment_rows(["loss", "accuracy"])
        ('loss', 'accuracy', 'loss-rise')
    """
    names = tuple(terms or observables)
    return (*names, *(rise_of(name) for name in terms or (names if of_all else ("loss",))))


def rise_of(name: str) -> str:
    """The name of an observable's rise among the moments; names of observables have no hyphen."""
    return f"{name}-rise"


def _join(pieces: Pieces) -> Observed:
    """The observables of several batches joined; a term without samples is absent from a batch."""
    if len(pieces) == 1:
        return dict(pieces[0])
    names = dict.fromkeys(name for piece in pieces for name in piece)
    return {name: torch.cat([piece[name] for piece in pieces if name in piece]) for name in names}


def _of_one_length(rows: Sequence[str], stacked: Mapping[str, Tensor]) -> Iterator[list[int]]:
    """Row numbers, grouped by equal numbers of samples, in which terms may differ."""
    lengths: dict[int, list[int]] = {}
    for number, row in enumerate(rows):
        if row in stacked and stacked[row].shape[1]:
            lengths.setdefault(stacked[row].shape[1], []).append(number)
    yield from lengths.values()


def _sum_terms(terms: Mapping[str, float], means: Mapping[str, Floats]) -> Floats:
    """Σ λ·mean over the terms, in their order."""
    return np.asarray(sum(factor * means[name] for name, factor in terms.items()), np.float64)


def _join_errors(terms: Mapping[str, float], errors: Sequence[Floats]) -> Floats:
    """√Σ λ²·SE² of terms whose samples are drawn independently."""
    return np.sqrt(sum((factor * error) ** 2 for factor, error in zip(terms.values(), errors, strict=True)))


def _refuse_weights(table: Floats) -> None:
    """Raises JobError for a weight that is not a positive number."""
    least, total, squares = table[..., PARTS], table[..., 1], table[..., 2]
    wrong = ~(least > 0)
    if wrong.any() or not np.isfinite(total).all():
        value = least[wrong].flat[0] if wrong.any() else total[~np.isfinite(total)].flat[0]
        raise JobError(
            f"observe: 'weight' must be a positive number for every sample, not {value:.6g}; leave out samples that "
            "weigh nothing"
        )
    # Beyond these limits the squares, from which standard errors follow, would round to zero or infinity.
    far = ((squares < LEAST_SQUARES) | (squares > 1 / LEAST_SQUARES)) & (table[..., 0] > 0)
    if far.any():
        raise JobError(
            f"observe: 'weight' must have a sum of squares from {LEAST_SQUARES:g} to {1 / LEAST_SQUARES:g}, not "
            f"{squares[far].flat[0]:.6g}; scale all weights by one number"
        )
