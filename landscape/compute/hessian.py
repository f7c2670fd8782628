"""The Hessian of the mean loss at a setting's origin as a linear operator, its blocks computed by a calculator."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from landscape.compute.algebra import Floats
from landscape.compute.derivatives import ProductOfBlocks, SumOfProducts, TotalsOfBlocks
from landscape.compute.executor import Calculator, Setting
from landscape.core.errors import JobError
from landscape.evaluation.derivatives import Products
from landscape.evaluation.feed import batching_of
from landscape.evaluation.layers import loss_factors
from landscape.model.parameters import ParameterInfo, State, describe_parameters
from landscape.problem.samples import Samples
from landscape.problem.supervised import Supervised
from landscape.problem.terms import Problem
from landscape.surface.record_entries import products_in_float32

# Into so many stretches are the blocks cut at most: each costs a message of P numbers and is the work of one worker.
MOST_STRETCHES = 32


@dataclass(frozen=True)
class Layout:
    """Where each trainable parameter lies in a vector of all of them, one after another in the model's order."""

    infos: tuple[ParameterInfo, ...]

    @property
    def size(self) -> int:
        """P, how many numbers a vector has."""
        return sum(int(np.prod(info.shape, dtype=np.int64)) for info in self.infos)

    def tensors(self, vector: Floats, dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
        """A vector [P] as a tensor per parameter."""
        found, start = dict[str, Tensor](), 0
        for info in self.infos:
            end = start + int(np.prod(info.shape, dtype=np.int64))
            found[info.name] = torch.from_numpy(np.array(vector[start:end])).reshape(info.shape).to(dtype)
            start = end
        return found

    def vector(self, tensors: State) -> Floats:
        """The inverse; a parameter that `tensors` lacks is zero."""
        parts = [
            tensors[info.name].detach().double().reshape(-1).cpu().numpy()
            if info.name in tensors
            else np.zeros(int(np.prod(info.shape, dtype=np.int64)))
            for info in self.infos
        ]
        return np.concatenate(parts)


def layout_of(problem: Problem, origin: State) -> Layout:
    """The trainable parameters of a problem, as derivatives have them."""
    return Layout(tuple(info for info in describe_parameters(problem.model) if info.trainable and info.name in origin))


class HessianOperator:
    """H = ∇²L at θ₀ by its products with vectors.

    The samples lie in the blocks of the plan. Each stretch of blocks is one question, and its parts are added in their
    order; the stretches follow from the number of blocks alone. So any number of workers gives the same bits.

    Args:
        calculator: has the products computed.
        setting: θ₀ and the plan.
        blocks: of which samples; default: all. Means are over these alone.
        method: `autograd` goes over to `differences` where the model has no second derivative; `gauss-newton` gives
            products with JᵀH_ℓJ in place of H, J the derivative of the outputs and H_ℓ the criterion's Hessian, which
            is never negative where the criterion is convex.

    Attributes:
        method: how the products are computed; another one than asked for once that has failed.
        refusal: why it is another one; empty where it is not.
        products: how many products with a vector were computed.
    """

    def __init__(
        self,
        calculator: Calculator,
        setting: Setting,
        problem: Problem,
        samples: Samples,
        blocks: Sequence[int] | None = None,
        method: Products = "autograd",
    ) -> None:
        self.calculator, self.setting, self.method = calculator, setting, method
        self.problem, self.samples = problem, samples
        self.layout = layout_of(problem, setting.origin)
        if not self.layout.infos:
            raise JobError("model: no parameter requires gradients, so the loss has no derivatives; train some")
        self.blocks = tuple(range(block_count(setting, samples)) if blocks is None else blocks)
        if method == "gauss-newton" and not isinstance(problem.observe, Supervised):
            raise JobError(
                "method: gauss-newton needs a model's outputs apart from their criterion, as Problem.supervised has "
                "them; take autograd, or make the problem so"
            )
        self.refusal, self.products = "", 0
        self._factors: Mapping[str, float] | None = None

    @property
    def size(self) -> int:
        """P, how many numbers a vector has."""
        return self.layout.size

    @property
    def in_float32(self) -> bool:
        """Whether products are computed in float32."""
        return products_in_float32(self.method, self.setting.plan.precision)

    @property
    def noise(self) -> float:
        """About the error of a product relative to the largest eigenvalue."""
        if self.method == "differences":
            return math.sqrt(np.finfo(np.float64).eps)
        return float(np.finfo(np.float64 if self.setting.plan.precision == "float64" else np.float32).eps)

    def on(self, blocks: Sequence[int]) -> HessianOperator:
        """The same of some blocks alone."""
        return HessianOperator(self.calculator, self.setting, self.problem, self.samples, blocks, self.method)

    def __call__(self, vectors: Floats) -> Floats:
        """H·v of one vector [P], or of each row of [k, P], in float64."""
        rows = np.atleast_2d(np.ascontiguousarray(vectors, np.float64))
        shared, factors = self.calculator.share(rows), self._known_factors()
        answers = self._parts(
            [ProductOfBlocks(each, factors, shared, self.method) for each in stretches_of(self.blocks)]
        )
        refused = [answer.refusal for answer in answers if answer.total is None]
        if refused:
            if self.method != "autograd":
                raise JobError(f"method: {self.method} needs second derivatives, and {refused[0]}; take differences")
            self.method, self.refusal = "differences", refused[0]
            return self(vectors)
        self.products += len(rows)
        total = np.zeros_like(rows)
        for answer in answers:
            assert answer.total is not None
            total += answer.total
        return total.reshape(np.shape(vectors))

    def _parts(self, questions: Sequence[ProductOfBlocks]) -> list[SumOfProducts]:
        try:
            return self.calculator.ask(self.setting, questions)
        except JobError as error:
            if self.method != "differences":
                raise
            why = f", as there are no second derivatives ({self.refusal})" if self.refusal else ""
            raise JobError(
                f"{error}; differences of gradients are taken in float64{why}: have the model compute in it"
            ) from error

    def _known_factors(self) -> Mapping[str, float]:
        if self._factors is None:
            stretches = stretches_of(self.blocks)
            answers = self.calculator.ask(self.setting, [TotalsOfBlocks(each) for each in stretches])
            self._factors = loss_factors([total for answer in answers for total in answer], self.problem.observe)
        return self._factors


def block_count(setting: Setting, samples: Samples) -> int:
    """How many blocks the plan makes of the samples."""
    return len(batching_of(samples.length, setting.plan, setting.plan.batch_size, samples.cuts).blocks)


def stretches_of(blocks: Sequence[int]) -> list[Sequence[int]]:
    """The blocks cut into at most `MOST_STRETCHES` stretches of nearly equal length, by their number alone.

    >>> [len(each) for each in stretches_of(range(70))][:5]
    [3, 3, 3, 3, 3]
    """
    length = -(-len(blocks) // MOST_STRETCHES)
    return [blocks[start : start + length] for start in range(0, len(blocks), length)]
