"""The worst case near a set of weights: the largest rise of the loss within a ball or a box, by gradient ascent."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

import numpy as np

from landscape.analysis.measures.lines import Base, Draw, Floats, mean_of, samples_of, stderr_over, weights_of
from landscape.analysis.measures.rows import Row, row_of
from landscape.analysis.measures.slope import Slope
from landscape.compute.hessian import Layout, length

# The radii at which SAM (Foret et al. 2021) and ASAM (Kwon et al. 2021) are trained with on CIFAR.
SAM_RHO, ASAM_RHO = 0.05, 0.5
STEPS = 20
KESKAR_EPSILON, KESKAR_STEPS = 1e-3, 10  # Keskar et al. 2017, who take as many iterations of L-BFGS-B
MOMENTUM = 0.75  # Croce and Hein 2020, as in Andriushchenko et al. 2023; so are the first step and when it is halved
NO_GRADIENT = Row(None, note="the gradient of the loss is not finite there")
FIRST_STEP = 2.0  # of the radius
FIRST_CHECK, LEAST_CHECK, CHECK_SHORTER, ENOUGH_RISES = 0.22, 0.06, 0.03, 0.75

Norm = Literal["l2", "linf"]
Ascended = tuple[Floats, Floats, int]


@dataclass(frozen=True)
class Region:
    """Where ε may lie: ‖ε / scale‖ ≤ 1.

    Attributes:
        scale: float64 [P]; zeros stay still.
    """

    scale: Floats
    norm: Norm = "l2"

    def uphill(self, gradient: Floats) -> Floats:
        """The step of length 1, in units of the scale, that climbs most; zeros where nothing does, or none is known."""
        scaled = self.scale * gradient
        if not np.isfinite(scaled).all():
            return np.zeros_like(scaled)
        if self.norm == "linf":
            return np.asarray(np.sign(scaled), np.float64)
        size = length(scaled)
        return scaled / size if size > 0 else np.zeros_like(scaled)

    def inside(self, step: Floats) -> Floats:
        """The nearest step within the region."""
        if self.norm == "linf":
            return np.clip(step, -1.0, 1.0)
        return step / max(1.0, length(step))


class NotFiniteGradient(ArithmeticError):
    """The loss has no direction in which it climbs most."""


def ascend(slope: Callable[[Floats], tuple[float, Floats]], region: Region, steps: int, seed: int = 0) -> Ascended:
    """ε after one step, scale·uphill(∇L(θ)), and the best ε of as many as asked for, by APGD (Croce and Hein 2020).

    x' = P(x + s·uphill(∇L(θ + ε))), x ← P(x + ¾(x' − x) + ¼(x − x₋₁)), ε = scale·x. The step s is halved, and x put
    back to the best one, where too few of the last steps rose.

    Returns:
        Both, and at how many of the steps the loss was not finite: what is best there is a bound of the worst.

    Raises:
        NotFiniteGradient: ∇L(θ) holds NaN or infinity, as that of a root at zero does.
    """
    _, gradient = slope(np.zeros_like(region.scale))
    if not np.isfinite(gradient).all():
        raise NotFiniteGradient
    first = region.uphill(gradient)
    if not first.any():  # a flat origin: any direction is as good
        first = region.uphill(np.random.default_rng(seed).standard_normal(len(region.scale)))
    x = before = best = first
    uphill = first
    size, highest, value_before, rises, check = FIRST_STEP, -np.inf, -np.inf, 0, FIRST_CHECK
    interval, last_check, unchanged = FIRST_CHECK, 0, (np.inf, -np.inf)
    broken = 0
    for number in range(1, steps + 1):
        value, gradient = slope(region.scale * x)
        broken += not math.isfinite(value)
        rises += value > value_before
        value_before = value
        if math.isfinite(value) and value > highest:
            highest, best, uphill = value, x, region.uphill(gradient)
        if number == steps:
            break
        if number >= check * steps:
            if rises < ENOUGH_RISES * (number - last_check) or unchanged == (size, highest):
                size, x, before = size / 2, best, best
            unchanged = (size, highest)
            interval = max(interval - CHECK_SHORTER, LEAST_CHECK)
            check, last_check, rises = check + interval, number, 0
        onward = uphill if x is best else region.uphill(gradient)
        if not math.isfinite(value):  # back to where it was, by a shorter step
            size, onward = size / 2, uphill
            x = before = best if highest > -np.inf else np.zeros_like(best)
        ahead = region.inside(x + size * onward)
        x, before = region.inside(x + MOMENTUM * (ahead - x) + (1 - MOMENTUM) * (x - before)), x
    return region.scale * first, region.scale * best, broken


@dataclass(frozen=True)
class Worst:
    """The rises of some fixed ε: their rows, and the rise of every sample where it has one.

    Attributes:
        samples: float32 [N] by the name of the row.
    """

    rows: dict[str, Row]
    samples: dict[str, Floats]


def sharpness(base: Base, slope: Slope) -> Worst:
    """SAM's and ASAM's rises, after one step and after 20, ε found on all samples at once.

    SAM: ‖ε‖ ≤ 0.05. ASAM: ‖ε/|θ|‖ ≤ 0.5, elementwise, which no rescaling of the layers that keeps the network changes.
    """
    theta = np.abs(slope.layout.vector(slope.setting.origin))
    offsets, without, broken = dict[str, Floats](), dict[str, Row](), dict[str, int]()
    for name, region in (("sam", Region(np.full(len(theta), SAM_RHO))), ("asam", Region(ASAM_RHO * theta))):
        names = f"{name} 1 step", f"{name} {STEPS} steps"
        try:
            *found, broken[names[1]] = ascend(slope, region, STEPS)
            offsets |= dict(zip(names, found, strict=True))
        except NotFiniteGradient:
            without |= dict.fromkeys(names, NO_GRADIENT)
    at = rises_at(base, slope.layout, offsets)
    bounds = {name: _bound(at.rows[name], count, STEPS) for name, count in broken.items() if count}
    samples = {name: each for name, each in at.samples.items() if name not in bounds}
    return Worst(at.rows | bounds | without, samples)


def _bound(row: Row, broken: int, steps: int) -> Row:
    """The row of a worst case on whose way the loss was not finite: the largest rise that was is a bound of it."""
    note = f"the loss is not finite at {broken} of the {steps} steps"
    return replace(row, value=None, stderr=None, note=note, above=row.value)


def keskar(base: Base, slope: Slope) -> Worst:
    """100·(max L(θ + ε) − L(θ))/(1 + L(θ)) over |εᵢ| ≤ 10⁻³·(|θᵢ| + 1) (Keskar et al. 2017, A = I)."""
    theta = np.abs(slope.layout.vector(slope.setting.origin))
    name = f"keskar {KESKAR_EPSILON:g}"
    try:
        _, best, broken = ascend(slope, Region(KESKAR_EPSILON * (theta + 1), "linf"), KESKAR_STEPS)
    except NotFiniteGradient:
        return Worst({name: NO_GRADIENT}, {})
    (values,) = base.along([partial(slope.layout.tensors, best)], [(0.0, 1.0)])
    loss, high = mean_of(values).tolist()
    factor = 100 / (1 + loss)
    row = rises_at(base, slope.layout, {name: best}).rows[name]
    stderr = None if row.stderr is None else factor * row.stderr
    found = row_of(factor * (high - loss), stderr)
    return Worst({name: _bound(found, broken, KESKAR_STEPS) if broken else found}, {})


def rises_at(base: Base, layout: Layout, offsets: dict[str, Floats]) -> Worst:
    """The rises at θ + ε of some ε, with their standard errors over the samples."""
    draws: list[Draw] = [partial(layout.tensors, offset) for offset in offsets.values()]
    rows, samples = dict[str, Row](), dict[str, Floats]()
    for name, values in zip(offsets, base.along(draws, [(0.0, 1.0)] * len(draws)), strict=True):
        loss, high = mean_of(values).tolist()
        kept, weights = samples_of(values), weights_of(values)
        stderr = None if values.rise_stderr is None else float(values.rise_stderr[1])  # also of a loss of several terms
        if kept is not None and weights is not None:
            samples[name] = kept[1] - kept[0]
            stderr = stderr_over(samples[name], weights)
        rows[name] = row_of(high - loss, stderr)
    return Worst(rows, samples)
