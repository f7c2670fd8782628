"""Lanczos with full reorthogonalisation: both ends of a symmetric operator's spectrum, from products with vectors."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TypeVar

import numpy as np
from torch import Tensor

from landscape.compute.executor import AtPoints, CurvaturesAlong, EvaluationSetting, Executor, WorkItem
from landscape.compute.hessian import HessianOperator, combination, dot, length, orthogonal_part, rayleigh
from landscape.core.errors import JobError
from landscape.core.grid import Floats
from landscape.core.plan import Engine, Precision
from landscape.evaluation.reduction import SampleValues
from landscape.job.directions.base import DirectionTensors
from landscape.job.directions.file import STEPS
from landscape.surface.record_entries import UNDECIDED, ZERO, is_negative

TOLERANCE = 0.01  # of an eigenvalue: the largest residual; the noise of sampling is larger

ROUNDING = 10  # times the operator's noise: a smaller residual is rounding

RESOLVED = 0.1  # of a negative smallest eigenvalue: its largest residual, if its size is wanted

CHANCE = 1e-6  # of a random start so unlucky that an eigenvalue is below `Krylov.lower_bound`

Product = Callable[[Floats], Floats]


@dataclass(frozen=True)
class Step:
    """The result of one step: αⱼ, βⱼ and the next basis vector q_{j+1}, float64 [P]."""

    alpha: float
    beta: float
    following: Floats


@dataclass(frozen=True)
class Ritz:
    """An approximate eigenpair.

    Attributes:
        value: θ = xᵀHx.
        residual: ‖Hx − θx‖; some eigenvalue lies within this distance of θ.
        vector: x, of unit length, float64 [P]; its largest component is positive.
    """

    value: float
    residual: float
    vector: Floats


@dataclass(frozen=True)
class Krylov:
    """H·Qᵀ = Qᵀ·T + β_m q_{m+1} e_mᵀ.

    Attributes:
        basis: Q, orthonormal rows, float64 [m, P].
        alphas, betas: the diagonal and the off-diagonal of T; β_m is last.
    """

    basis: Floats
    alphas: Floats
    betas: Floats

    @property
    def steps(self) -> int:
        """m."""
        return len(self.alphas)

    @property
    def is_finite(self) -> bool:
        """Whether all products were finite; otherwise no eigenvalue is known."""
        return bool(np.isfinite(self.alphas).all() and np.isfinite(self.betas).all())

    def ritz_values(self) -> tuple[Floats, Floats, Floats]:
        """θ ascending, the residuals abs(β_m·s_mi), and the eigenvectors s of T as columns."""
        return self._ritz_values

    @cached_property
    def _ritz_values(self) -> tuple[Floats, Floats, Floats]:
        if not self.is_finite:
            return np.full(self.steps, np.nan), np.full(self.steps, np.nan), np.full((self.steps, self.steps), np.nan)
        matrix = np.diag(self.alphas) + np.diag(self.betas[:-1], 1) + np.diag(self.betas[:-1], -1)
        values, vectors = np.linalg.eigh(matrix)
        return values, np.abs(self.betas[-1] * vectors[-1]), vectors

    def lower_bound(self, chance: float = CHANCE) -> float:
        """A lower bound of all eigenvalues, wrong with this probability over the random start q₁, a Gaussian.

        The Lanczos polynomial p(λ) = Π(λ − θᵢ)/Πβⱼ maps q₁ to q_{m+1}, which has length 1, so that γ² p(λmin)² ≤ 1 for
        the component γ of q₁ along the eigenvector of λmin. It is below √(π/2P)·chance in size with less than that
        probability, and below all θᵢ abs(p) falls with λ: λmin is above the λ where abs(p) = 1/γ (van Dorsselaer,
        Hochstenbach, van der Vorst 2000, "Computing probabilistic bounds for extreme eigenvalues of symmetric matrices
        with the Lanczos method"). It holds at all steps together, and up to the rounding of the products.
        """
        values, _, _ = self.ritz_values()
        smallest, scale = float(values[0]), float(np.abs(values).max())
        # An invariant space holds an eigenvector of each eigenvalue.
        if scale == 0 or not (np.isfinite(scale) and (self.betas > 0).all()):
            return smallest
        needed = math.log(math.sqrt(2 * self.basis.shape[1] / math.pi) / chance) + float(np.log(self.betas).sum())

        def is_far_enough(distance: float) -> bool:
            return float(np.log(values - smallest + distance).sum()) >= needed

        near, far = 1e-18 * scale, scale
        if is_far_enough(near):
            return smallest
        while not is_far_enough(far):
            far *= 4
        while far > 1.001 * near:
            middle = math.sqrt(near * far)
            near, far = (near, middle) if is_far_enough(middle) else (middle, far)
        return smallest - far

    def negative(self, in_float32: bool) -> int:
        """Whether the operator has a negative eigenvalue: `YES`, `NO` or `UNDECIDED`, see `is_negative`."""
        values, _, _ = self.ritz_values()
        return int(is_negative(values[-1], values[0], np.array(self.lower_bound()), in_float32))

    def has_open_sign(self, in_float32: bool) -> bool:
        """Whether more steps may decide if there is a negative eigenvalue.

        They cannot if the smallest one is zero up to rounding, or a product was not finite.
        """
        if not self.is_finite:
            return False
        values, residuals, _ = self.ritz_values()
        within_rounding = values[0] < -ZERO * np.abs(values).max() and residuals[0] < RESOLVED * abs(values[0])
        return self.negative(in_float32) == UNDECIDED and not within_rounding

    def pair(self, rank: int) -> Ritz:
        """The eigenpair of a rank: 1 the largest eigenvalue, 2 the next, -1 the smallest."""
        values, residuals, vectors = self.ritz_values()
        place = place_of(rank, len(values))
        vector = combination(vectors[:, place], self.basis)
        vector /= length(vector)
        vector *= np.sign(vector[np.argmax(np.abs(vector))])
        return Ritz(float(values[place]), float(residuals[place]), vector)


def place_of(rank: int, count: int) -> int:
    """The index of a rank's eigenvalue among `count` ascending ones."""
    assert 0 < abs(rank) <= count
    return count - rank if rank > 0 else -rank - 1


def lanczos(
    product: Product,
    size: int,
    ranks: Sequence[int],
    *,
    seed: int = 0,
    start: Floats | None = None,
    steps: int = STEPS,
    tolerance: float = TOLERANCE,
    noise: Callable[[], float] = lambda: float(np.finfo(np.float64).eps),
    known: Sequence[Step] = (),
    keep: Callable[[int, Step], None] = lambda number, step: None,
    is_open: Callable[[Krylov], bool] = lambda krylov: False,
    most: int = 0,
) -> Krylov:
    """The Krylov space in which the eigenpairs of these ranks have converged, or that of `steps` steps.

    With ranks, it also ends at a product that is not finite, with NaN Ritz values.

    αⱼ = qⱼᵀHqⱼ, βⱼq_{j+1} = (I − QᵀQ)²Hqⱼ. It stops when abs(β_m·s_mi) ≤ tolerance·abs(θᵢ) for each rank i, where the
    left side is the residual (Paige 1971). Without reorthogonalisation converged eigenvalues would come back as ghosts.

    Args:
        product: H·v, the same bits each time.
        size: P.
        ranks: which eigenpairs must have converged: 1 the largest eigenvalue, -1 the smallest; none: all steps.
        seed: of the Gaussian q₁, unless `start` is given, and of every vector that leaves an invariant space.
        noise: the error of a product relative to the largest eigenvalue; residuals below ten times that are rounding.
        known: the first steps of an earlier call with the same arguments, which are continued to the same bits.
        keep: is called with the number and the content of each new step.
        is_open: whether the caller needs more steps: then up to `most` steps are taken in all.
    """
    steps, usual = min(max(steps, most), size), min(steps, size)
    # Mostly fewer steps are taken: the operating system allocates pages only when they are written.
    basis = np.empty((steps + 1, size))
    basis[0] = _normal(size, seed, 0) if start is None else start
    basis[0] /= length(basis[0])
    alphas, betas = np.empty(steps), np.empty(steps)
    for j in range(steps):
        if j < len(known):
            step = known[j]
        else:
            step = _step(product, basis[: j + 1], np.abs(alphas[:j]).max(initial=0.0), seed, last=j + 1 == size)
            keep(j, step)
        alphas[j], betas[j], basis[j + 1] = step.alpha, step.beta, step.following
        krylov = Krylov(basis[: j + 1], alphas[: j + 1], betas[: j + 1])
        if ranks and not krylov.is_finite and j + 1 >= least_steps(ranks):
            break
        enough = j + 1 >= usual or (bool(ranks) and _has_converged(krylov, ranks, tolerance, noise()))
        if enough and not is_open(krylov):
            break
    return krylov


def _step(product: Product, basis: Floats, scale: float, seed: int, *, last: bool) -> Step:
    image = product(basis[-1])
    alpha = dot(basis[-1], image)
    rest = orthogonal_part(basis, image)
    beta = length(rest)
    if beta > np.finfo(np.float64).eps * max(scale, abs(alpha)) * len(rest) ** 0.5:
        return Step(alpha, beta, rest / beta)
    if last:
        return Step(alpha, 0.0, np.zeros_like(rest))
    # The space is invariant: the rest of the spectrum needs another vector.
    fresh = orthogonal_part(basis, _normal(len(rest), seed, len(basis)))
    return Step(alpha, 0.0, fresh / length(fresh))


def least_steps(ranks: Sequence[int]) -> int:
    """The number of steps from which ranks from the top and ranks from the bottom are different eigenvalues.

    >>> least_steps([1, 2]), least_steps([2, -1])
    (2, 3)
    """
    return max(0, *ranks) + max(0, *(-rank for rank in ranks))


def _has_converged(krylov: Krylov, ranks: Sequence[int], tolerance: float, noise: float) -> bool:
    if krylov.steps < least_steps(ranks):
        return False
    values, residuals, _ = krylov.ritz_values()
    rounding = ROUNDING * noise * np.abs(values).max()
    places = [place_of(rank, len(values)) for rank in ranks]
    return all(residuals[place] <= max(tolerance * abs(values[place]), rounding) for place in places)


def _normal(size: int, seed: int, number: int) -> Floats:
    return np.random.default_rng([seed, number]).standard_normal(size)


# ----------------------------------------------------------------------------------------------------
# The density of the spectrum by stochastic Lanczos quadrature.

RUNS = 10


@dataclass(frozen=True)
class Density:
    """Nodes θ and weights of several quadratures: φ(t) ≈ mean over runs of Σₖ wₖ·δ(t − θₖ), with Σₖ wₖ = 1.

    Attributes:
        nodes, weights: float64 [runs, steps].
    """

    nodes: Floats
    weights: Floats

    def smooth(self, places: Floats, width: float) -> Floats:
        """φ at some places, each node smoothed to a normal density of standard deviation `width`, for drawing."""
        distance = (places[:, None] - self.nodes.reshape(1, -1)) / width
        height = np.exp(-0.5 * distance**2) / (width * np.sqrt(2 * np.pi))
        return np.asarray((height * self.weights.reshape(1, -1)).sum(1) / len(self.nodes), np.float64)

    def share(self, low: float, high: float) -> float:
        """The share of the eigenvalues between two values."""
        inside = (self.nodes >= low) & (self.nodes <= high)
        return float((self.weights * inside).sum() / len(self.nodes))


def density(
    product: Callable[[Floats], Floats], size: int, runs: int = RUNS, steps: int = STEPS, seed: int = 0
) -> Density:
    """Nodes and weights of `runs` Lanczos quadratures of `steps` steps from random unit vectors.

    T = YΘYᵀ of each run; θₖ are the nodes, y₁ₖ² the weights (Ubaru, Chen, Saad 2017; Ghorbani et al. 2019).
    """
    steps = min(steps, size)
    nodes, weights = np.zeros((runs, steps)), np.zeros((runs, steps))
    for k in range(runs):
        # Signs instead of Gaussians: unbiased for the trace of every power of H, and all of the same length.
        start: Floats = np.random.default_rng([seed, k, 2]).integers(0, 2, size).astype(np.float64) * 2 - 1
        krylov = lanczos(product, size, (), seed=seed, start=start, steps=steps)
        values, _, vectors = krylov.ritz_values()
        nodes[k], weights[k] = values, vectors[0] ** 2
    return Density(nodes, weights)


# ----------------------------------------------------------------------------------------------------
# How much an eigenvalue depends on the samples: its standard error, and a bracket from two halves of the samples.

# The losses of single samples are float32: at this share of the half width, the rise (proportional to its square) is
# well above their rounding, and the fourth derivative is negligible.
STEP_SHARE = float(np.finfo(np.float32).eps) ** 0.25

SAME_ERROR = 0.1  # of an error: how far the results of two difference steps may be apart

Answer = TypeVar("Answer", covariant=True)


@dataclass(frozen=True)
class SampledCurvature:
    """vᵀHᵢv over the samples i: the mean, its standard error, the number of samples, and all values [N].

    For a loss of several terms, mean and error are those of the sum, and `by_sample` is empty.
    """

    mean: float
    stderr: float
    samples: int
    by_sample: Floats = field(repr=False, compare=False)


def sampled_curvature(
    executor: Executor, setting: EvaluationSetting, direction: Mapping[str, Tensor], value: float, loss: float,
    terms: Mapping[str, float] | None = None,
) -> SampledCurvature | None:  # fmt: skip
    """vᵀHᵢv of every sample by derivatives of its loss, in float64 if possible.

    To first order, the standard error of an eigenvalue with eigenvector v is that of the mean of these values, sd/√n.

    If the model cannot be differentiated so often, they are (ℓᵢ(θ + hv) − 2ℓᵢ(θ) + ℓᵢ(θ − hv))/h², and accepted only if
    h/2 gives the same: no h suits samples whose curvature differs much from λ in size.

    Args:
        value: λ, which determines h.
        loss: L(θ), likewise.
        terms: the terms of the loss, each with its factor, see `reduction.terms_of`.

    Returns:
        None if λ is 0, there is one sample, or h and h/2 disagree.
    """
    if not value or not math.isfinite(value):
        return None
    asked = [CurvaturesAlong(executor.share(dict(direction)))]
    (answer,) = _in_float64(executor, setting, asked)
    if answer.found is None:
        return _by_differences(executor, setting, direction, value, loss, terms)
    return _sum_terms(answer.found, terms)


def _in_float64(executor: Executor, setting: EvaluationSetting, items: Sequence[WorkItem[Answer]]) -> list[Answer]:
    try:
        return executor.ask(_in_precision(setting, "float64"), items)
    except JobError:  # many models name float32 in their code
        return executor.ask(_in_precision(setting, "float32"), items)


def _by_differences(
    executor: Executor, setting: EvaluationSetting, direction: Mapping[str, Tensor], value: float, loss: float,
    terms: Mapping[str, float] | None,
) -> SampledCurvature | None:  # fmt: skip
    h = STEP_SHARE * math.sqrt(2 * max(abs(loss), float(np.finfo(np.float32).tiny)) / abs(value))
    line = EvaluationSetting(setting.origin, (DirectionTensors(direction),), setting.plan)
    around = AtPoints(h * np.array([[-1.0], [-0.5], [0.0], [0.5], [1.0]]), keep=True)
    (values,) = _in_float64(executor, line, [around])
    kept = {"loss": values.samples} if terms is None else values.of_terms
    sampled = {name: losses for name, losses in kept.items() if losses is not None}
    far = _sum_terms({name: _second_difference(losses, (0, 2, 4), h) for name, losses in sampled.items()}, terms)
    near = _sum_terms({name: _second_difference(losses, (1, 2, 3), h / 2) for name, losses in sampled.items()}, terms)
    if far is None or near is None or not math.isfinite(far.stderr):
        return far
    return far if math.isclose(far.stderr, near.stderr, rel_tol=SAME_ERROR) else None


def _second_difference(found: SampleValues, places: tuple[int, int, int], h: float) -> tuple[Floats, Floats]:
    before, at, after = found.losses.astype(np.float64)[list(places)]
    return (after - 2 * at + before) / h**2, found.weights


def _sum_terms(
    found: Mapping[str, tuple[Floats, Floats]], terms: Mapping[str, float] | None
) -> SampledCurvature | None:
    """Σλ·mean and √Σλ²·SE² over the terms, whose samples are independent; a term of one sample has no error."""
    if terms is None:
        return _over_samples(*found["loss"]) if "loss" in found else None
    parts = [(factor, _over_samples(*found[name])) for name, factor in terms.items() if name in found]
    known = [(factor, part) for factor, part in parts if part is not None]
    if not known:
        return None
    mean = sum(factor * part.mean for factor, part in known)
    stderr = math.hypot(*(factor * part.stderr for factor, part in known))
    return SampledCurvature(mean, stderr, sum(part.samples for _, part in known), np.empty(0))


def _over_samples(curvatures: Floats, weights: Floats) -> SampledCurvature | None:
    if len(curvatures) < 2:
        return None
    mean = float((weights * curvatures).sum() / weights.sum())
    count = len(curvatures)
    if not math.isfinite(mean):  # such as for a loss that is infinite beside the weights
        return SampledCurvature(math.nan, math.nan, count, curvatures)
    spread = math.sqrt(float((weights**2 * (curvatures - mean) ** 2).sum())) / float(weights.sum())
    return SampledCurvature(mean, spread * math.sqrt(count / (count - 1)), count, curvatures)


def _in_precision(setting: EvaluationSetting, precision: Precision) -> EvaluationSetting:
    return replace(setting, plan=replace(setting.plan, precision=precision, engine=Engine(), bfloat16_weights=False))


@dataclass(frozen=True)
class Bracket:
    """Bounds of λmax of all data, in the mean over draws of samples.

    Attributes:
        low: vᵀHv over the samples that v was not computed from: at most the true λmax.
        high: λmax of the samples that v was computed from: v also fits their noise.
    """

    low: float
    high: float


def half_sample_bracket(
    operator: HessianOperator, steps: int = STEPS, tolerance: float = TOLERANCE, seed: int = 0
) -> Bracket | None:
    """λmax of every other block, and the Rayleigh quotient of its eigenvector on the rest; None of one block."""
    if len(operator.blocks) < 2:
        return None
    one, other = operator.on(operator.blocks[::2]), operator.on(operator.blocks[1::2])
    found = lanczos(one, one.size, [1], seed=seed, steps=steps, tolerance=tolerance, noise=lambda: one.noise).pair(1)
    return Bracket(rayleigh(other, found.vector), found.value)
