"""Lanczos with full reorthogonalisation: both ends of the spectrum of a symmetric operator from its products alone."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from landscape.compute.algebra import Floats, combination, dot, length, without
from landscape.job.directions.file import STEPS
from landscape.surface.record_entries import UNDECIDED, ZERO, is_negative

TOLERANCE = 0.01  # of an eigenvalue: what a residual may be; the noise of sampling is larger
ROUNDING = 10  # times the operator's noise: a residual below that is rounding
RESOLVED = 0.1  # of a negative smallest eigenvalue: what its residual may be where its size is asked for
CHANCE = 1e-6  # that a random start lies so badly that an eigenvalue is below `Krylov.lower_bound`

Product = Callable[[Floats], Floats]


@dataclass(frozen=True)
class Step:
    """What one step adds: αⱼ, βⱼ and the next basis vector q_{j+1}, float64 [P]."""

    alpha: float
    beta: float
    following: Floats


@dataclass(frozen=True)
class Ritz:
    """An approximate eigenpair.

    Attributes:
        value: θ = xᵀHx.
        residual: ‖Hx − θx‖; an eigenvalue lies that near to θ.
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
        alphas, betas: of the tridiagonal T: its diagonal, and what lies beside it, with β_m last.
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
        """Whether all products were finite; where one was not, no eigenvalue is known."""
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
        """What no eigenvalue is below, except with this probability over the random start q₁, which must be Gaussian.

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
        """Whether more steps may tell whether there is a negative eigenvalue.

        They do not where one is within rounding, nor where a product was not finite.
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
    """Where the eigenvalue of a rank stands among so many in ascending order."""
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
    """The Krylov space in which the eigenpairs of the asked ranks have converged, or of `steps` steps.

    Where ranks are asked for it also ends, with Ritz values that are NaN, where a product is not finite.

    αⱼ = qⱼᵀHqⱼ, βⱼq_{j+1} = (I − QᵀQ)²Hqⱼ. It stops when abs(β_m·s_mi) ≤ tolerance·abs(θᵢ) for each rank i, where the
    left side is the residual (Paige 1971). Without reorthogonalisation converged eigenvalues would come back as ghosts.

    Args:
        product: H·v, the same bits each time.
        size: P.
        ranks: which eigenpairs must have converged: 1 the largest eigenvalue, -1 the smallest; none: all steps.
        seed: of the Gaussian q₁, where `start` is left out, and of every vector that goes on from an invariant space.
        noise: the error of a product relative to the largest eigenvalue; residuals below ten times that are rounding.
        known: the first steps of an earlier call with the same arguments, which go on to the same bits.
        keep: is called with the number and the content of each new step.
        is_open: whether a question stays open that more steps may answer: then it goes on, to `most` steps in all.
    """
    steps, usual = min(max(steps, most), size), min(steps, size)
    # Steps mostly end early: the array grows as the operating system hands out its pages.
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
    rest = without(basis, image)
    beta = length(rest)
    if beta > np.finfo(np.float64).eps * max(scale, abs(alpha)) * len(rest) ** 0.5:
        return Step(alpha, beta, rest / beta)
    if last:
        return Step(alpha, 0.0, np.zeros_like(rest))
    # The space is invariant: what is left of the spectrum shows from another vector.
    fresh = without(basis, _normal(len(rest), seed, len(basis)))
    return Step(alpha, 0.0, fresh / length(fresh))


def least_steps(ranks: Sequence[int]) -> int:
    """How many steps give these ranks different eigenvalues, those from the top and those from the bottom.

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
