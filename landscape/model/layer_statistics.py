"""The statistics of the values of a tensor: counts, ends, mean, spread; also of several batches, merged."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import reduce
from typing import Any

import torch
from torch import Tensor

AT_ONCE = 1 << 22  # values that are converted to float64 together
ABSOLUTE_TOLERANCE = 1e-8  # a weight that moves less has not changed


@dataclass(frozen=True)
class ValueStatistics:
    """The counts of n values, and the ends, the mean and the spread of the finite ones.

    Attributes:
        count: n; for a sparse tensor, including the zeros that it does not store.
        nans: how many are NaN.
        infinite: how many are Inf or −Inf.
        zeros: how many are 0.
        low, high: the least and the largest finite value; NaN if there is none, as are the means.
        mean: of the finite values.
        squares: Σ(x − mean)² over the finite values.
        magnitude: the mean of abs(x) over the finite values.
        ends: how many lie at an end of the range `bounds` of `statistics_of`.
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
        """How many values are finite."""
        return self.count - self.nans - self.infinite

    @property
    def not_finite(self) -> int:
        """How many values are not finite."""
        return self.nans + self.infinite

    @property
    def spread(self) -> float:
        """The standard deviation of the finite values, over their number."""
        return math.sqrt(self.squares / self.finite) if self.finite else math.nan

    def share(self, count: int) -> float:
        """`count` as a share of all values; NaN without values."""
        return count / self.count if self.count else math.nan

    def plain(self) -> dict[str, Any]:
        """The statistics as JSON values; None for NaN."""
        means = {
            "min": self.low, "max": self.high, "mean": self.mean, "spread": self.spread, "abs_mean": self.magnitude,
        }  # fmt: skip
        counts = {"count": self.count, "zeros": self.zeros, "nan": self.nans, "inf": self.infinite}
        return counts | {name: value if math.isfinite(value) else None for name, value in means.items()}


def statistics_of(tensor: Tensor, bounds: tuple[float, float] | None = None) -> ValueStatistics:
    """The statistics of a tensor's values, summed in float64.

    A complex value counts as two, its real and its imaginary part. Quantised values are dequantised.

    Args:
        bounds: values not above the first, or not below the second, are at an end of their range.
    """
    values, unstored = _values_of(tensor)
    parts = (_statistics_of_part(part, bounds) for part in torch.split(values, AT_ONCE))
    return merge_statistics([*parts, _of_zeros(unstored, bounds)])


def _values_of(tensor: Tensor) -> tuple[Tensor, int]:
    """The values in one dimension, and the number of further zeros that are not stored."""
    tensor = tensor.detach()
    if tensor.is_quantized:
        tensor = tensor.dequantize()
    if tensor.is_nested:
        tensor = torch.cat([part.flatten() for part in tensor.unbind()])
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


def _statistics_of_part(values: Tensor, bounds: tuple[float, float] | None) -> ValueStatistics:
    if not values.numel():
        return ValueStatistics()
    values = values.double()
    finite, nans = torch.isfinite(values), int(values.isnan().sum())
    count, total = values.numel(), int(finite.sum())
    infinite = count - total - nans
    if not total:
        return ValueStatistics(count, nans, infinite)
    values = values if total == count else values[finite]
    low, high = torch.aminmax(values)
    mean = float(values.sum()) / total
    if not math.isfinite(mean):  # the sum is beyond float64, the mean is not
        mean = float((values / total).sum())
    ends = 0 if bounds is None else int(((values <= bounds[0]) | (values >= bounds[1])).sum())
    magnitude = float((values.abs() / total).sum())
    squares, zeros = float((values - mean).square().sum()), int((values == 0).sum())
    return ValueStatistics(count, nans, infinite, zeros, float(low), float(high), mean, squares, magnitude, ends)


def merge_statistics(parts: Iterable[ValueStatistics]) -> ValueStatistics:
    """The statistics of all values of several parts, by the formulas of Chan, Golub and LeVeque (1983).

    >>> both = merge_statistics([statistics_of(torch.tensor([1.0, 2.0])), statistics_of(torch.tensor([6.0, math.inf]))])
    >>> both.mean, round(both.spread ** 2, 6), both.infinite
    (3.0, 4.666667, 1)
    """
    return reduce(_merge_two, parts, ValueStatistics())


def _merge_two(first: ValueStatistics, second: ValueStatistics) -> ValueStatistics:
    counts = (
        first.count + second.count,
        first.nans + second.nans,
        first.infinite + second.infinite,
        first.zeros + second.zeros,
    )
    ends = first.ends + second.ends
    if not second.finite or not first.finite:
        not_empty = first if first.finite else second
        return ValueStatistics(
            *counts, not_empty.low, not_empty.high, not_empty.mean, not_empty.squares, not_empty.magnitude, ends
        )
    whole = first.finite + second.finite
    share, apart = second.finite / whole, second.mean - first.mean
    return ValueStatistics(
        *counts, min(first.low, second.low), max(first.high, second.high), first.mean + apart * share,
        first.squares + second.squares + apart * apart * first.finite * share,
        first.magnitude + (second.magnitude - first.magnitude) * share, ends,
    )  # fmt: skip


@dataclass(frozen=True)
class ValueChange:
    """How far the values of a tensor have moved.

    Attributes:
        ratio: mean abs(Δw) / mean abs(w), w the values before; NaN if all of these are zero.
        largest: the largest (abs(Δw) − a) / abs(w) of any value, a the absolute tolerance; 0 if none moved farther.
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
