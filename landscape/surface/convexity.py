"""What the document of a convexity map says of its eigenvalues, and the names of what it holds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, Strict

from landscape.surface.record_parts import Count, Text

EIG_MAX, EIG_MIN = "eig_max", "eig_min"
EIG_MAX_RESIDUAL, EIG_MIN_RESIDUAL = "eig_max_residual", "eig_min_residual"
EIG_MIN_BOUND, EIG_NEGATIVE = "eig_min_bound", "eig_negative"
ENDS = (EIG_MAX, EIG_MAX_RESIDUAL, EIG_MIN, EIG_MIN_RESIDUAL)  # all that maps of earlier versions have beside the loss
EIGENVALUES = (*ENDS, EIG_MIN_BOUND, EIG_NEGATIVE)  # observables of a convexity map beside the loss
RATIO = {"eig_ratio": f"abs({EIG_MIN}/{EIG_MAX})"}  # what is derived from them
NO, YES, UNDECIDED = range(3)  # values of `eig_negative`
ANSWERS = ("no", "yes", "undecided")  # what they stand for

# Of the largest eigenvalue in size: what is nearer to zero counts as zero, as eigenvalues that are zero by a symmetry,
# or of dead units, come out on either side of it.
ZERO = 1e-6
# Likewise, of products in float32: what a smallest eigenvalue may be off by. In eight small networks those near zero
# were off by up to 5e-6, where the loss is small and made of differences of larger numbers, in a ResNet-20 by 6e-8.
ZERO_IN_FLOAT32 = 1e-5

Floats = NDArray[np.float64]


def products_in_float32(how: str, precision: str | None) -> bool:
    """Whether products with the Hessian are computed in float32: differences of gradients are in float64 always.

    Args:
        how: they are computed: `autograd`, `gauss-newton` or `differences`.
        precision: of the plan.
    """
    return how != "differences" and precision != "float64"


def is_negative(largest: Floats, smallest: Floats, bound: Floats, in_float32: bool) -> NDArray[np.uint8]:
    """Whether the Hessian has an eigenvalue below zero, beyond rounding: `YES`, `NO`, or `UNDECIDED`.

    Args:
        largest, smallest: θmax and θmin of Lanczos. λmin ≤ θmin always, as θmin is a Rayleigh quotient: one below zero
            proves an eigenvalue below zero, whatever its residual, and one above zero proves nothing.
        bound: what no eigenvalue is below, see `Krylov.lower_bound`; NaN where it is not known.
        in_float32: whether the products were computed in it.

    >>> found = np.full(4, 4.0), np.array([-0.1, 1e-9, 0.1, -1e-5]), np.array([-0.2, -1e-9, -0.3, -0.2])
    >>> is_negative(*found, in_float32=False).tolist(), is_negative(*found, in_float32=True).tolist()
    ([1, 0, 2, 1], [1, 0, 2, 2])
    """
    scale = np.maximum(np.abs(largest), np.abs(smallest))
    proven = smallest < -(ZERO_IN_FLOAT32 if in_float32 else ZERO) * scale
    return np.where(proven, YES, np.where(bound >= -ZERO * scale, NO, UNDECIDED)).astype(np.uint8)


@dataclass(frozen=True, kw_only=True)
class ConvexityRecord:
    """How the eigenvalues of a convexity map are computed.

    Attributes:
        steps: of the Lanczos method at a point, at most.
        parameters: how many numbers the Hessian is over.
        second_derivatives: `autograd`, or `differences` of gradients where the model has none.
        most: steps at most where the sign of the smallest eigenvalue is open after `steps`; none in maps of earlier
            versions, which do not go on, and hold `ENDS` alone.
    """

    steps: Annotated[int, Strict(), Field(ge=1)]
    parameters: Count
    second_derivatives: Text
    most: Count | None = None

    @property
    def products(self) -> int:
        """Products with the Hessian at a point, at most, where the sign of the smallest eigenvalue is found in them."""
        return min(self.steps, self.parameters)

    @property
    def most_products(self) -> int:
        """Products with the Hessian at a point, at most."""
        return max(self.products, min(self.most or 0, self.parameters))

    @property
    def observables(self) -> tuple[str, ...]:
        """The names of what is stored at every point."""
        return ENDS if self.most is None else EIGENVALUES

    def categories(self, observable: str) -> tuple[str, ...] | None:
        """What the values 0, 1, 2 of an observable stand for; None of one that holds plain numbers."""
        return ANSWERS if observable == EIG_NEGATIVE and self.most is not None else None
