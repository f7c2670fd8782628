"""What is known of the values of a tensor: counts, ends, mean, spread; of several batches, one after another."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import reduce
from typing import Any

import torch
from torch import Tensor

AT_ONCE = 1 << 22  # values that are taken to float64 together
ABSOLUTE_TOLERANCE = 1e-8  # of a weight that has not changed


@dataclass(frozen=True)
class ValueStatistics:
    """Of n values the counts, and of those that are finite the ends, the mean and the spread.

    Attributes:
        count: n; of a sparse tensor the zeros that it does not store are among them.
        nans: how many are NaN.
        infinite: how many are Inf or −Inf.
        zeros: how many are 0.
        low, high: the least and the largest finite value; NaN where there is none, as the means then are.
        mean: of the finite values.
        squares: Σ(x − mean)² of them.
        magnitude: the mean of abs(x) of them.
        ends: how many lie at an end of their range, where one was given, see `statistics_of`.
    """

    count: int = 0
    nans: int = 0
    infinite: int = 0
    zeros: int = 0
    low: float = math.nan
    high: float = math.nan
    mean: float = math.nan
    squares: float = math.nan
    magnitude: float = math.nan
    ends: int = 0

    @property
    def finite(self) -> int:
        """How many are finite."""
        return self.count - self.nans - self.infinite

    @property
    def not_finite(self) -> int:
        """How many are not."""
        return self.nans + self.infinite

    @property
    def spread(self) -> float:
        """The standard deviation of the finite values, over their number."""
        return math.sqrt(self.squares / self.finite) if self.finite else math.nan

    def share(self, count: int) -> float:
        """So many of the values, as a share of them; NaN of none."""
        return count / self.count if self.count else math.nan

    def plain(self) -> dict[str, Any]:
        """As JSON holds it; None for NaN."""
        means = {
            "min": self.low,
            "max": self.high,
            "mean": self.mean,
            "spread": self.spread,
            "abs_mean": self.magnitude,
        }
        counts = {"count": self.count, "zeros": self.zeros, "nan": self.nans, "inf": self.infinite}
        return counts | {name: value if math.isfinite(value) else None for name, value in means.items()}


def statistics_of(tensor: Tensor, bounds: tuple[float, float] | None = None) -> ValueStatistics:
    """The statistics of a tensor's values, summed in float64.

    Complex values count as two, their real and their imaginary part. Quantised ones count as what they stand for.

    Args:
        bounds: values not above the first, or not below the second, are at an end of their range.
    """
    values, unstored = _values_of(tensor)
    parts = (_of_some(part, bounds) for part in torch.split(values, AT_ONCE))
    return merge_statistics([*parts, _of_zeros(unstored, bounds)])


def _values_of(tensor: Tensor) -> tuple[Tensor, int]:
    """The values in one dimension, and how many zeros beside these are not stored."""
    tensor = tensor.detach()
    if tensor.is_quantized:
        tensor = tensor.dequantize()
    if tensor.is_nested:
        tensor = torch.cat([each.flatten() for each in tensor.unbind()])
    unstored = 0
    if tensor.layout is not torch.strided:
        sparse = tensor.coalesce() if tensor.layout is torch.sparse_coo else tensor
        whole, tensor = tensor.numel(), sparse.values()
        unstored = max(0, whole - tensor.numel())
    if tensor.is_complex():
        tensor, unstored = torch.view_as_real(tensor.resolve_conj()), 2 * unstored
    return tensor.flatten(), unstored


def _of_zeros(count: int, bounds: tuple[float, float] | None) -> ValueStatistics:
    if not count:
        return ValueStatistics()
    at_an_end = bounds is not None and not bounds[0] < 0 < bounds[1]
    return ValueStatistics(count, 0, 0, count, 0.0, 0.0, 0.0, 0.0, 0.0, count if at_an_end else 0)


def _of_some(values: Tensor, bounds: tuple[float, float] | None) -> ValueStatistics:
    if not values.numel():
        return ValueStatistics()
    values = values.double()
    finite, nans = torch.isfinite(values), int(values.isnan().sum())
    kept = values if bool(finite.all()) else values[finite]
    count, infinite = values.numel(), values.numel() - kept.numel() - nans
    if not kept.numel():
        return ValueStatistics(count, nans, infinite)
    low, high = torch.aminmax(kept)
    mean = float(kept.sum()) / kept.numel()
    if not math.isfinite(mean):  # the sum is beyond float64, the mean is not
        mean = float((kept / kept.numel()).sum())
    ends = 0 if bounds is None else int(((kept <= bounds[0]) | (kept >= bounds[1])).sum())
    magnitude = float((kept.abs() / kept.numel()).sum())
    squares, zeros = float((kept - mean).square().sum()), int((kept == 0).sum())
    return ValueStatistics(count, nans, infinite, zeros, float(low), float(high), mean, squares, magnitude, ends)


def merge_statistics(parts: Iterable[ValueStatistics]) -> ValueStatistics:
    """The statistics of all values of several parts, by the formulas of Chan, Golub and LeVeque (1983).

    >>> both = merge_statistics([statistics_of(torch.tensor([1.0, 2.0])), statistics_of(torch.tensor([6.0, math.inf]))])
    >>> both.mean, round(both.spread ** 2, 6), both.infinite
    (3.0, 4.666667, 1)
    """
    return reduce(_together, parts, ValueStatistics())


def _together(one: ValueStatistics, other: ValueStatistics) -> ValueStatistics:
    counts = one.count + other.count, one.nans + other.nans, one.infinite + other.infinite, one.zeros + other.zeros
    ends = one.ends + other.ends
    if not other.finite or not one.finite:
        known = one if one.finite else other
        return ValueStatistics(*counts, known.low, known.high, known.mean, known.squares, known.magnitude, ends)
    whole = one.finite + other.finite
    share, apart = other.finite / whole, other.mean - one.mean
    return ValueStatistics(
        *counts, min(one.low, other.low), max(one.high, other.high), one.mean + apart * share,
        one.squares + other.squares + apart * apart * one.finite * share,
        one.magnitude + (other.magnitude - one.magnitude) * share, ends,
    )  # fmt: skip


@dataclass(frozen=True)
class ValueChange:
    """How far the values of a tensor have moved.

    Attributes:
        ratio: mean abs(Δw) / mean abs(w), w the values before; NaN where all of these are zero.
        largest: the largest (abs(Δw) − a) / abs(w) of any value, a the absolute tolerance; 0 where none moved farther.
    """

    ratio: float
    largest: float


def change_of(before: Tensor, after: Tensor, tolerance: float = ABSOLUTE_TOLERANCE) -> ValueChange:
    """How far a tensor's values have moved from `before` to `after`.

    >>> change_of(torch.tensor([1.0, 3.0]), torch.tensor([1.0, 3.5]), tolerance=0.0)
    ValueChange(ratio=0.125, largest=0.16666666666666666)
    """
    old, new = (_values_of(tensor)[0].double() for tensor in (before, after))
    if not old.numel() or old.shape != new.shape:
        return ValueChange(math.nan, math.nan)
    moved, size = (new - old).abs(), old.abs()
    beyond = (moved - tolerance).clamp_min(0.0)
    shares = torch.where(beyond > 0, beyond / size, beyond)
    mean = float(size.mean())
    return ValueChange(float(moved.mean()) / mean if mean else math.nan, float(shares.max()))
