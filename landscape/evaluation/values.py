"""The values of points: means and standard errors over the samples of every observable."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from landscape.core.grid import Floats
from landscape.surface.surface import LOSS_SAMPLES, MOMENTS, ORIGIN_SAMPLES, RISE_STDERR, SAMPLE_WEIGHTS

Observed = dict[str, Tensor]  # per observable, float64 [samples]; `weight` among them where samples weigh differently
Pieces = Sequence[Observed]  # the observables of one point, of every batch


@dataclass(frozen=True)
class BlockMoments:
    """Moments of the complete blocks of samples at P points, from which an extension goes on, see `moments`.

    Attributes:
        rows: what they are of, R names, see `reduction.moment_rows`.
        table: float64 [P, R, 6].
    """

    rows: tuple[str, ...]
    table: Floats

    def of_losses(self) -> Floats:
        """Those of the loss, or of its terms: float64 [P, T, 6]."""
        names = [row.removesuffix("-rise") for row in self.rows if row.endswith("-rise")]
        return self.table[:, [self.rows.index(name) for name in names]]

    def flat(self) -> Floats:
        """As they are stored: float64 [P, 6·R]."""
        return np.ascontiguousarray(self.table.reshape(len(self.table), -1))


@dataclass(frozen=True)
class SampleValues:
    """The loss of every one of N samples at P points, and what belongs to the samples.

    Attributes:
        losses: float32 [P, N].
        origin: float32 [N], at the origin; NaN where that is not known.
        weights: float64 [N], the same at every point; 1 where `observe` returns none.
    """

    losses: NDArray[np.float32]
    origin: NDArray[np.float32]
    weights: Floats

    def arrays(self) -> dict[str, NDArray[Any]]:
        """By their names in the store."""
        return {LOSS_SAMPLES: self.losses, ORIGIN_SAMPLES: self.origin, SAMPLE_WEIGHTS: self.weights}


@dataclass(frozen=True)
class Values:
    """Observables at P points: mean and standard error, float64 [P] each, by name; and the seconds they took.

    `rise_stderr` is the standard error of the loss's rise over the origin, that of the mean of ℓᵢ(p) − ℓᵢ(0) over the
    samples i. All points share the samples, so that noise which they have in common cancels. None where it was not
    asked for.
    `moments` are None for landscapes of earlier versions, which keep none; `samples` where they are not to be kept.
    `weighted` says whether `observe` returned how much each sample counts. `of_terms` are, by name, the samples of each
    term of a loss that is the sum of several, where they are to be kept; then `samples` is None.
    """

    mean: Mapping[str, Floats]
    stderr: Mapping[str, Floats]
    seconds: float = 0.0
    rise_stderr: Floats | None = None
    moments: BlockMoments | None = None
    samples: SampleValues | None = None
    weighted: bool = False
    of_terms: Mapping[str, SampleValues] = field(default_factory=dict)

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


def values_of(names: Sequence[str], table: Floats) -> Values:
    """The values of points from their summaries [points, 2K + 1], see `summary`."""
    mean = {name: np.ascontiguousarray(table[:, 2 * k]) for k, name in enumerate(names)}
    stderr = {name: np.ascontiguousarray(table[:, 2 * k + 1]) for k, name in enumerate(names)}
    return Values(mean, stderr, 0.0, np.ascontiguousarray(table[:, -1]))


def summary(samples: Tensor, losses: Tensor, origin_losses: Tensor | None) -> Tensor:
    """[2K + 1]: mean and standard error of each of the K observables, then the standard error of the loss's rise.

    For landscapes of earlier versions.

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
