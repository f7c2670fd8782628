"""Sums over long vectors in one order, whatever the number of threads.

A BLAS splits long sums among its threads, so that another number of cores rounds them otherwise. `einsum` without its
optimisation is one plain loop.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def dot(first: Floats, second: Floats) -> float:
    """⟨a, b⟩."""
    return float(np.einsum("i,i->", first, second))


def length(vector: Floats) -> float:
    """‖a‖."""
    return float(np.sqrt(dot(vector, vector)))


def coefficients(rows: Floats, vector: Floats) -> Floats:
    """⟨row, vector⟩ for each row of [k, P]."""
    return np.asarray(np.einsum("ij,j->i", rows, vector), np.float64)


def combination(weights: Floats, rows: Floats) -> Floats:
    """Σ wᵢ·rowᵢ, added in the order of the rows."""
    total = np.zeros(rows.shape[1])
    for weight, row in zip(weights, rows, strict=True):
        total += weight * row
    return total


def without(rows: Floats, vector: Floats) -> Floats:
    """The part of a vector that is orthogonal to orthonormal rows; twice, as once leaves what rounding leaves.

    Giraud et al. 2005, "The loss of orthogonality in the Gram-Schmidt orthogonalization process".
    """
    for _ in range(2):
        vector = vector - combination(coefficients(rows, vector), rows)
    return vector
