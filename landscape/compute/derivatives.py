"""Questions for derivatives of the loss at the setting's origin, each about a block of the samples or several."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from landscape.compute.executor import Question, Shared, Station
from landscape.evaluation.derivatives import Differentiation, NoSecondDerivative, Products

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class BlockGradient(Question[Floats]):
    """The part of a block in ∇L, float64 [P], see `Differentiation.gradient`."""

    block: int
    factors: Mapping[str, float]

    @property
    def label(self) -> str:
        """What messages call it."""
        return f"gradient over the samples of block {self.block}"

    def answer(self, station: Station) -> Floats:
        """Differentiate once."""
        return _of(station).gradient(self.block, self.factors).numpy()


@dataclass(frozen=True, eq=False)
class UnusedParameters(Question[set[str]]):
    """The names of the parameters that no loss of a block depends on, see `Differentiation.unused`."""

    block: int
    factors: Mapping[str, float]

    @property
    def label(self) -> str:
        """What messages call it."""
        return f"parameters without a gradient over the samples of block {self.block}"

    def answer(self, station: Station) -> set[str]:
        """Differentiate once."""
        return _of(station).unused(self.block, self.factors)


@dataclass(frozen=True, eq=False)
class TotalsOfBlocks(Question[list[dict[str, float]]]):
    """Σ wᵢ over each of several blocks, of the loss or of each of its terms."""

    blocks: Sequence[int]

    @property
    def label(self) -> str:
        """What messages call it."""
        return f"sums over the samples of {_named(self.blocks)}"

    def answer(self, station: Station) -> list[dict[str, float]]:
        """Observe each block once."""
        derivatives = _of(station)
        return [derivatives.totals(block) for block in self.blocks]


@dataclass(frozen=True)
class SumOfProducts:
    """The answer to `ProductOfBlocks`.

    Attributes:
        total: float64 [k, P]; None where the model has no second derivative.
        refusal: why it has none.
    """

    total: Floats | None
    refusal: str = ""


@dataclass(frozen=True, eq=False)
class ProductOfBlocks(Question[SumOfProducts]):
    """The part of several blocks in H·V, added in the order of the blocks.

    What is added in one answer decides how the whole is rounded: cut the blocks by their number alone, never by who
    answers. That the model has no second derivative is an answer and no error, as differences can be asked for then;
    these are of gradients in float64.

    Attributes:
        vectors: V, float64 [k, P].
    """

    blocks: Sequence[int]
    factors: Mapping[str, float]
    vectors: Shared[Floats]
    how: Products = "autograd"

    @property
    def label(self) -> str:
        """What messages call it."""
        return f"Hessian product over the samples of {_named(self.blocks)}"

    def answer(self, station: Station) -> SumOfProducts:
        """Differentiate twice, or two gradients for each vector, block by block."""
        derivatives = _of(station, in_double=self.how == "differences")
        vectors = [torch.from_numpy(np.array(row)) for row in self.vectors.get()]
        total = np.zeros((len(vectors), derivatives.size))
        try:
            for block in self.blocks:
                for row, part in zip(total, derivatives.products(block, self.factors, vectors, self.how), strict=True):
                    row += part.numpy()
        except NoSecondDerivative as error:
            return SumOfProducts(None, str(error))
        return SumOfProducts(total)


@dataclass(frozen=True)
class CurvaturesOfSamples:
    """The answer to `CurvaturesAlong`.

    Attributes:
        found: vᵀ∇²ℓᵢv and wᵢ of all samples, of the loss or of each of its terms; None where there are no such
            derivatives.
    """

    found: Mapping[str, tuple[Floats, Floats]] | None


@dataclass(frozen=True, eq=False)
class CurvaturesAlong(Question[CurvaturesOfSamples]):
    """vᵀ∇²ℓᵢv of every sample, see `Differentiation.curvatures`."""

    direction: Shared[Mapping[str, torch.Tensor]]

    @property
    def label(self) -> str:
        """What messages call it."""
        return "curvature of each sample's loss along an eigenvector"

    def answer(self, station: Station) -> CurvaturesOfSamples:
        """Differentiate three times, block by block."""
        derivatives, direction = _of(station), self.direction.get()
        try:
            blocks = [derivatives.curvatures(block, direction) for block in range(derivatives.blocks)]
        except NoSecondDerivative:
            return CurvaturesOfSamples(None)

        def whole(name: str, k: int) -> Floats:
            return np.concatenate([block[name][k].numpy() for block in blocks if name in block])

        names = dict.fromkeys(name for block in blocks for name in block)  # a term may have samples in few blocks
        return CurvaturesOfSamples({name: (whole(name, 0), whole(name, 1)) for name in names})


def _named(blocks: Sequence[int]) -> str:
    return f"blocks {blocks[0]} to {blocks[-1]}" if len(blocks) > 1 else f"block {blocks[0]}"


def _of(station: Station, *, in_double: bool = False) -> Differentiation:
    """The derivatives of the station, in batches that fit the memory as those of the evaluator do."""
    found = station.differentiation_in_double if in_double else station.differentiation
    found.use_batches(station.evaluator.batch_size)
    return found
