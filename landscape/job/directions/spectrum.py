"""Eigenpairs of the Hessian at an origin, as directions are made from them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Eigenpair:
    """An eigenvalue and its vector.

    Attributes:
        residual: ‖Hv − λv‖.
        stderr: the standard error of λ by the samples; None where no sample has a loss of its own.
        vector: of unit length, a float32 tensor per trainable parameter.
    """

    value: float
    residual: float
    stderr: float | None
    vector: Mapping[str, Tensor]

    @property
    def is_resolved(self) -> bool:
        """Whether the residual is smaller than the value; else that may have the other sign, or another size."""
        return self.residual < abs(self.value)


@dataclass(frozen=True)
class Spectrum:
    """Eigenpairs of the Hessian of the mean loss.

    Attributes:
        pairs: by rank: 1 the largest eigenvalue, 2 the second largest, -1 the smallest.
        loss: L₀.
        steps: how many products with the Hessian were taken.
        method: `autograd`, or `differences` where the model has no second derivative.
        foreseen: whether nothing was computed: the vectors are others, and the numbers say nothing.
    """

    pairs: Mapping[int, Eigenpair]
    loss: float
    steps: int
    method: str
    foreseen: bool = False
