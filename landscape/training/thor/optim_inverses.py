"""Dampings of Kronecker factors, and the inverses of what is damped, by Cholesky, block by block."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from landscape.training.thor.blocks import Blocks, left_product, right_product, size_of
from landscape.training.thor.statistics import Factors

TRIES = 6  # of dampings, each ten times the one before


@dataclass(frozen=True)
class Inverse:
    """The inverses of damped A and G in diagonal blocks."""

    a: Blocks
    g: Blocks

    def between(self, gradient: Tensor) -> Tensor:
        """G⁻¹·∇W·A⁻¹, both damped, for ∇W [O, I]."""
        return right_product(left_product(self.g, gradient), self.a)


@dataclass(frozen=True)
class Damping:
    """How λ is shared between the two factors, A + π√λ and G + √λ/π.

    THOR adds √λ to either, π = 1. Inputs are mostly of another size than gradients, and then it is the smaller factor
    alone that is damped. Balanced, π² = (tr A/I)/(tr G/O) shares λ by the mean eigenvalues (Martens and Grosse 2015,
    section 6.3), so that it is compared with those of F.

    >>> Damping(0.04).shifts((8.0, 2.0), (2, 2)), Damping(0.04, balanced=True).shifts((8.0, 2.0), (2, 2))
    ((0.2, 0.2), (0.4, 0.1))
    """

    value: float
    balanced: bool = False

    def shifts(self, traces: tuple[float, float], sizes: tuple[int, int]) -> tuple[float, float]:
        """What is added to the diagonals of A and G, given tr A and tr G and their sizes I and O."""
        root, (mean_a, mean_g) = (
            math.sqrt(self.value),
            (trace / size for trace, size in zip(traces, sizes, strict=True)),
        )
        if not self.balanced or not (mean_a > 0 and mean_g > 0):
            return root, root
        ratio = math.sqrt(mean_a / mean_g)
        return root * ratio, root / ratio

    def damped_trace(self, traces: tuple[float, float], sizes: tuple[int, int]) -> float:
        """tr of the damped A ⊗ G, which is the product of the traces of both."""
        shifts = self.shifts(traces, sizes)
        a, g = (trace + size * shift for trace, size, shift in zip(traces, sizes, shifts, strict=True))
        return a * g


def invert(factors: Factors, damping: Damping) -> tuple[Inverse, float] | None:
    """The inverse of factors with the smallest damping λ, 10λ, 100λ, … that gives a finite one, and that damping.

    Returns:
        None where the factors are not finite, or no damping tried helps.
    """
    if not factors.are_finite:
        return None
    sizes = size_of(factors.a), size_of(factors.g)
    for number in range(TRIES):
        used = replace(damping, value=damping.value * 10**number)
        shift_a, shift_g = used.shifts(factors.traces, sizes)
        a, g = _inverse_of(factors.a, shift_a), _inverse_of(factors.g, shift_g)
        if a is not None and g is not None:
            return Inverse(a, g), used.value
    return None


def _inverse_of(blocks: Blocks, shift: float) -> Blocks | None:
    """(B + shift·I)⁻¹ per block; None where one is not positive definite in the arithmetic at hand."""
    inverses = []
    for block in blocks:
        damped = block.clone()
        damped.diagonal(dim1=-2, dim2=-1).add_(shift)
        if block.shape[-1] == 1:
            inverse = damped.reciprocal()
        else:
            triangle, failed = torch.linalg.cholesky_ex(damped)
            if bool(failed.any()):
                return None
            inverse = torch.cholesky_inverse(triangle)
        if not bool(inverse.isfinite().all()):
            return None
        inverses.append(inverse)
    return tuple(inverses)
