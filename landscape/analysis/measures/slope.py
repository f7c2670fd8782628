"""The mean loss and its gradient beside the origin, their blocks computed by a calculator."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch

from landscape.analysis.measures.lines import Floats
from landscape.compute.executor import Calculator, Question, Setting, Shared, Station, TotalsOfBlocks
from landscape.compute.hessian import Layout, block_count, layout_of, stretches_of
from landscape.core.errors import JobError
from landscape.evaluation.layers import loss_factors
from landscape.problem.samples import Samples
from landscape.problem.terms import Problem


@dataclass(frozen=True, eq=False)
class SlopeOfBlocks(Question[tuple[float, Floats]]):
    """The part of several blocks in L and ∇L at θ₀ + ε, added in the order of the blocks.

    Attributes:
        offset: ε, float64 [P].
    """

    blocks: Sequence[int]
    factors: Mapping[str, float]
    offset: Shared[Floats]

    @property
    def label(self) -> str:
        """What messages call it."""
        return f"gradient over the samples of blocks {self.blocks[0]} to {self.blocks[-1]}"

    def answer(self, station: Station) -> tuple[float, Floats]:
        """Differentiate once, block by block."""
        derivatives = station.differentiation
        derivatives.use_batches(station.evaluator.batch_size)
        value, total = 0.0, np.zeros(derivatives.size)
        with derivatives.moved(torch.from_numpy(np.array(self.offset.get()))):
            for block in self.blocks:
                part, gradient = derivatives.value_and_gradient(block, self.factors)
                value, total = value + part, total + gradient.numpy()
        return value, total


@dataclass
class Slope:
    """L and ∇L over the trainable parameters, as vectors of P numbers.

    Attributes:
        setting: θ₀ and the plan.
        gradients: how many were computed.
    """

    calculator: Calculator
    setting: Setting
    problem: Problem
    samples: Samples
    gradients: int = 0

    @cached_property
    def layout(self) -> Layout:
        """Where each parameter lies in a vector.

        Raises:
            JobError: none is trainable.
        """
        found = layout_of(self.problem, self.setting.origin)
        if not found.infos:
            raise JobError("model: no parameter requires gradients, so the loss has no derivatives; train some")
        return found

    @cached_property
    def _stretches(self) -> list[Sequence[int]]:
        return stretches_of(range(block_count(self.setting, self.samples)))

    @cached_property
    def _factors(self) -> Mapping[str, float]:
        answers = self.calculator.ask(self.setting, [TotalsOfBlocks(each) for each in self._stretches])
        return loss_factors([total for answer in answers for total in answer], self.problem.observe)

    def __call__(self, offset: Floats) -> tuple[float, Floats]:
        """L and ∇L at θ₀ + ε; the same bits for any number of workers.

        Raises:
            JobError: the loss has no gradient; says why.
        """
        shared, factors = self.calculator.share(offset), self._factors
        questions = [SlopeOfBlocks(each, factors, shared) for each in self._stretches]
        value, total = 0.0, np.zeros(self.layout.size)
        for part, gradient in self.calculator.ask(self.setting, questions):
            value, total = value + part, total + gradient
        self.gradients += 1
        return value, total
