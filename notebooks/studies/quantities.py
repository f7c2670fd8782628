"""Numbers beside the pictures: how far lines rise, how much of a plane is low or not convex, means over seeds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from landscape.surface.surface import Surface

LEAST_DEVIATION = 1e-5  # of the mean: below it is rounding


@dataclass(frozen=True)
class OverSeeds:
    """A number of several trainings.

    Attributes:
        values: one for each seed.

    >>> OverSeeds((1.0, 2.0, 3.0))
    2.0 ± 1.0 (3 seeds)
    >>> OverSeeds((0.5,))
    0.5 (1 seed)
    """

    values: tuple[float, ...]

    @property
    def mean(self) -> float:
        """Their mean."""
        return math.fsum(self.values) / len(self.values)

    @property
    def deviation(self) -> float:
        """Their standard deviation, with n − 1 below; NaN of a single one."""
        return float(np.std(self.values, ddof=1)) if len(self.values) > 1 else math.nan

    def __str__(self) -> str:
        mean, deviation = self.mean, self.deviation
        if math.isnan(deviation):
            return f"{mean:.3g}"
        if deviation < LEAST_DEVIATION * abs(mean) or deviation == 0:
            return f"{mean:.3g} ± 0"
        places = max(0, 1 - math.floor(math.log10(deviation)))  # two digits of the deviation that count
        return f"{mean:.{places}f} ± {deviation:.{places}f}"

    def __repr__(self) -> str:
        return f"{self} ({len(self.values)} seed{'s' if len(self.values) > 1 else ''})"


def mean_rise(lines: Sequence[Surface], distance: float) -> float:
    """The mean of ½(L(d) + L(−d)) − L(0) over the lines, d the `distance` on each.

    >>> from landscape import Axis
    >>> axis = Axis("alpha", np.array([-0.5, 0.0, 0.5]))
    >>> line = Surface("line", (axis,), {"loss": np.array([3.0, 1.0, 2.0])}, status=np.ones(3, np.uint8))
    >>> mean_rise([line], 0.5)
    1.5
    """
    rises = []
    for line in lines:
        sides = [float(line.loss[np.argmin(np.abs(line.alpha - place))]) for place in (-distance, distance)]
        rises.append(math.fsum(sides) / 2 - float(line.loss[np.argmin(np.abs(line.alpha))]))
    return math.fsum(rises) / len(rises)


def low_share(plane: Surface, rise: float) -> float:
    """The share of a plane's points whose loss lies less than `rise` above that at its middle."""
    middle = float(plane.loss[plane.loss.shape[0] // 2, plane.loss.shape[1] // 2])
    return float((plane.loss < middle + rise).mean())


def hollow_share(plane: Surface) -> float:
    """The share of a plane's inner points at which the Hessian by second differences has a negative eigenvalue.

    >>> from landscape import Axis
    >>> axes = tuple(Axis(name, np.linspace(-1, 1, 5)) for name in ("alpha", "beta"))
    >>> x, y = np.meshgrid(axes[0].coordinates, axes[1].coordinates)
    >>> bowl, saddle = (Surface("plane", axes, {"loss": z}, status=np.ones((5, 5), np.uint8)) for z in (x*x + y*y, x*y))
    >>> hollow_share(bowl), hollow_share(saddle)
    (0.0, 1.0)
    """
    z, a, b = plane.loss, float(plane.alpha[1] - plane.alpha[0]), float(plane.beta[1] - plane.beta[0])
    along = (z[1:-1, 2:] - 2 * z[1:-1, 1:-1] + z[1:-1, :-2]) / a**2
    across = (z[2:, 1:-1] - 2 * z[1:-1, 1:-1] + z[:-2, 1:-1]) / b**2
    mixed = (z[2:, 2:] - z[2:, :-2] - z[:-2, 2:] + z[:-2, :-2]) / (4 * a * b)
    lowest = (along + across) / 2 - np.hypot((along - across) / 2, mixed)
    return float((lowest < -1e-9).mean())


def in_how_many(first: OverSeeds, second: OverSeeds, *, larger: bool = True) -> str:
    """Whether the second number is larger than the first (or smaller), seed by seed: `yes`, `no`, `in 2 of 3 seeds`.

    >>> in_how_many(OverSeeds((1.0, 2.0)), OverSeeds((2.0, 1.0)))
    'in 1 of 2 seeds'
    """
    pairs = list(zip(first.values, second.values, strict=True))
    count = sum((b > a) if larger else (b < a) for a, b in pairs)
    return {0: "no", len(pairs): "yes"}.get(count, f"in {count} of {len(pairs)} seeds")
