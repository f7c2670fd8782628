"""Questions for derivatives of the loss at the setting's origin, a block of the samples each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from landscape.calculation.calculator import Question, Shared, Station
from landscape.evaluation.differentiation import Differentiation, Products

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class BlockTotals(Question[dict[str, float]]):
    """Σ wᵢ over a block, of the loss or of each of its terms."""

    block: int

    @property
    def label(self) -> str:
        """What messages call it."""
        return f"weights of block {self.block}"

    def answer(self, station: Station) -> dict[str, float]:
        """Observe the block once."""
        return _of(station).totals(self.block)


@dataclass(frozen=True, eq=False)
class BlockGradient(Question[Floats]):
    """The part of a block in ∇L, float64 [P], see `Differentiation.gradient`."""

    block: int
    factors: Mapping[str, float]

    @property
    def label(self) -> str:
        """What messages call it."""
        return f"gradient of block {self.block}"

    def answer(self, station: Station) -> Floats:
        """Differentiate once."""
        return _of(station).gradient(self.block, self.factors).numpy()


@dataclass(frozen=True, eq=False)
class BlockProduct(Question[Floats]):
    """The part of a block in H·V, float64 [k, P], see `Differentiation.products`.

    Attributes:
        vectors: V, float64 [k, P].
    """

    block: int
    factors: Mapping[str, float]
    vectors: Shared[Floats]
    how: Products = "autograd"

    @property
    def label(self) -> str:
        """What messages call it."""
        return f"Hessian product of block {self.block}"

    def answer(self, station: Station) -> Floats:
        """Differentiate twice, or two gradients for each vector."""
        vectors = [torch.from_numpy(np.array(row)) for row in self.vectors.get()]
        return torch.stack(_of(station).products(self.block, self.factors, vectors, self.how)).numpy()


def _of(station: Station) -> Differentiation:
    """The derivatives of the station, in batches that fit the memory as those of the evaluator do."""
    found = station.differentiation
    found.use_batches(station.evaluator.batch_size)
    return found
