"""How wide the basin around some weights is: the distance along random lines at which the loss has risen by so much."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from landscape.core.grid import Floats
from landscape.core.statistics import interval_of
from landscape.surface.surface import Surface


@dataclass(frozen=True)
class Rises:
    """The rises ½(ℓ(r) + ℓ(−r)) − ℓ(0) of each sample along random lines through the same weights.

    Attributes:
        distance: r [distances], ascending; 1 is the length of each filter.
        values: [lines, distances, samples].
        weights: how much each sample counts [samples].
        loss: that of each sample at the weights [samples].
    """

    distance: Floats
    values: Floats
    weights: Floats
    loss: Floats

    @classmethod
    def of(cls, directions: Sequence[Sequence[Surface]], labels: Sequence[str] | None = None, label: str = "") -> Rises:
        """Those along random directions, each of one line or of several with other ranges, their middle at the weights.

        Args:
            labels: of the items of the data; then over the samples of one `label` alone.
        """
        first = directions[0][0]
        losses = [np.concatenate([_sides(line)[1] for line in lines]) for lines in directions]
        distance = np.concatenate([_sides(line)[0] for line in directions[0]])
        order, middle = np.argsort(distance), len(first.alpha) // 2
        assert first.loss_samples is not None
        assert first.sample_index is not None
        chosen = np.ones(len(first.sample_index), bool)
        if labels is not None:
            chosen = np.asarray(labels)[first.sample_index] == label
        weights = np.asarray(first.loss_samples.weights, np.float64)[chosen]
        loss = np.asarray(first.loss_samples[middle], np.float64)[chosen]
        return cls(distance[order], np.stack(losses)[:, order][..., chosen], weights, loss)

    @property
    def mean_loss(self) -> float:
        """The mean loss at the weights."""
        return float(np.average(self.loss, weights=self.weights))

    def mean(self) -> Floats:
        """The mean over samples [lines, distances]."""
        return np.asarray(np.average(self.values, axis=-1, weights=self.weights), np.float64)

    def curve(self) -> tuple[Floats, Floats]:
        """The distances, and the mean rise over lines and samples at each."""
        return self.distance, self.mean().mean(0)

    def width(self, rise: float) -> Width:
        """The distance at which the mean loss has risen by `rise`."""
        found = interval_of([reach(self.distance, means, rise) for means in self.mean()])
        return Width(found.mean, found.high - found.mean, self._error(rise), float(self.distance[-1]), len(self.values))

    def _error(self, rise: float) -> float:
        """The standard error of a width over the samples, by the jackknife; NaN of one sample or no width."""
        without = [
            np.average(np.delete(self.values, one, -1), axis=-1, weights=np.delete(self.weights, one))
            for one in range(len(self.weights) if len(self.weights) > 1 else 0)
        ]
        left = np.array([np.mean([reach(self.distance, means, rise) for means in each]) for each in without])
        if len(left) < 2 or not np.isfinite(left).all():
            return math.nan
        return math.sqrt((len(left) - 1) / len(left) * float(np.square(left - left.mean()).sum()))


def _sides(line: Surface) -> tuple[Floats, Floats]:
    """The distances from the middle of a line, and the rises there, a mean of both sides: [distances, samples]."""
    assert line.loss_samples is not None, "computed with keep_samples"
    middle, losses = len(line.alpha) // 2, np.asarray(line.loss_samples, np.float64)
    return line.alpha[middle + 1 :], (losses[middle + 1 :] + losses[:middle][::-1]) / 2 - losses[middle]


@dataclass(frozen=True)
class Width:
    """The width of a basin.

    Attributes:
        value: the mean over the lines; infinite where the loss of a line does not rise as far.
        half: half of the 95 % interval of that mean, by Student's t over the lines.
        stderr: its standard error over the samples, by the jackknife.
        farthest: the distance that was looked at.

    >>> Width(0.25, 0.02, 0.004, 1.0, 8)
    0.250 ± 0.020 over 8 lines, ± 0.0040 over samples
    """

    value: float
    half: float
    stderr: float
    farthest: float
    lines: int

    def __repr__(self) -> str:
        if math.isinf(self.value):
            return f"> {self.farthest:g} on some of {self.lines} lines"
        return f"{self.value:.3f} ± {self.half:.3f} over {self.lines} lines, ± {self.stderr:.4f} over samples"


def reach(distance: Floats, rises: Floats, rise: float) -> float:
    """The distance at which a rise is reached first, along straight lines between the logarithms of the points.

    Before the first point the rise grows by the square of the distance. Infinite if it is not reached.

    >>> round(reach(np.array([0.1, 0.2, 0.4]), np.array([0.1, 0.4, 1.6]), 0.9), 9)
    0.3
    >>> round(reach(np.array([0.1, 0.2]), np.array([0.1, 0.4]), 0.025), 9)
    0.05
    """
    higher = np.flatnonzero(rises >= rise)
    if not len(higher):
        return math.inf
    k = int(higher[0])
    if k == 0:
        return float(distance[0] * math.sqrt(rise / rises[0]))
    if rises[k - 1] <= 0:  # it has no logarithm
        share = (rise - rises[k - 1]) / (rises[k] - rises[k - 1])
        return float(distance[k - 1] + share * (distance[k] - distance[k - 1]))
    share = math.log(rise / rises[k - 1]) / math.log(rises[k] / rises[k - 1])
    return float(distance[k - 1] * (distance[k] / distance[k - 1]) ** share)
