"""What the document of a convexity map says of its eigenvalues, and the names of what it holds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field, Strict

from landscape.record.parts import Count, Text

EIG_MAX, EIG_MIN = "eig_max", "eig_min"
EIG_MAX_RESIDUAL, EIG_MIN_RESIDUAL = "eig_max_residual", "eig_min_residual"
EIGENVALUES = (EIG_MAX, EIG_MAX_RESIDUAL, EIG_MIN, EIG_MIN_RESIDUAL)  # observables of a convexity map beside the loss
RATIO = {"eig_ratio": f"abs({EIG_MIN}/{EIG_MAX})"}  # what is derived from them


@dataclass(frozen=True, kw_only=True)
class ConvexityRecord:
    """How the eigenvalues of a convexity map are computed.

    Attributes:
        steps: of the Lanczos method at a point, at most.
        parameters: how many numbers the Hessian is over.
        second_derivatives: `autograd`, or `differences` of gradients where the model has none.
    """

    steps: Annotated[int, Strict(), Field(ge=1)]
    parameters: Count
    second_derivatives: Text

    @property
    def products(self) -> int:
        """Products with the Hessian at a point, at most."""
        return min(self.steps, self.parameters)
