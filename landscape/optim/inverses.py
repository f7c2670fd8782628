"""Inverses of damped Kronecker factors, by Cholesky, block by block."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from landscape.optim.blocks import Blocks, left_product, right_product
from landscape.optim.statistics import Factors

TRIES = 6  # of dampings, each ten times the one before


@dataclass(frozen=True)
class Inverse:
    """(A + √λ)⁻¹ and (G + √λ)⁻¹ in diagonal blocks."""

    a: Blocks
    g: Blocks

    def between(self, gradient: Tensor) -> Tensor:
        """(G + √λ)⁻¹·∇W·(A + √λ)⁻¹ for ∇W [O, I]."""
        return right_product(left_product(self.g, gradient), self.a)


def invert(factors: Factors, damping: float) -> tuple[Inverse, float] | None:
    """The inverse of factors with the smallest damping λ, 10λ, 100λ, … that gives a finite one, and that damping.

    Returns:
        None where the factors are not finite, or no damping tried helps.
    """
    if not factors.are_finite:
        return None
    for _ in range(TRIES):
        a, g = (_inverse_of(blocks, math.sqrt(damping)) for blocks in (factors.a, factors.g))
        if a is not None and g is not None:
            return Inverse(a, g), damping
        damping *= 10
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
