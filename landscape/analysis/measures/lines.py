"""The losses along directions through one set of weights, of every sample where it has one."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from landscape.compute.executor import AtPoints, Calculator, Setting
from landscape.core.plan import Plan
from landscape.evaluation.reduction import terms_of
from landscape.evaluation.values import Values
from landscape.job.directions.base import DirectionTensors
from landscape.model.parameters import State
from landscape.problem.terms import Problem

Floats = NDArray[np.float64]
Draw = Callable[[], Mapping[str, Tensor]]

# So many axes of one setting at most, and so many bytes of them: a setting costs a process one loading of the model,
# and every axis a copy of the parameters that it moves.
MOST_AXES = 16
AXES_BYTES = 256 << 20


@dataclass(frozen=True)
class Base:
    """What lines go through: weights, how they are evaluated, and who evaluates.

    Attributes:
        origin: θ₀.
        numbers: how many numbers a direction has at most.
        terms: what the loss is the sum of, each with its factor; None where every sample has a loss of its own.
    """

    calculator: Calculator
    plan: Plan
    origin: State
    numbers: int
    terms: Mapping[str, float] | None = None

    @classmethod
    def of(cls, calculator: Calculator, plan: Plan, origin: State, problem: Problem) -> Base:
        """At some weights of a problem."""
        numbers = sum(tensor.numel() for tensor in origin.values())
        return cls(calculator, plan, origin, numbers, terms_of(problem.observe))

    def along(self, draws: Sequence[Draw], coordinates: Sequence[Sequence[float]]) -> list[Values]:
        """The values at θ₀ + c·d for each direction d and each of its coordinates c.

        Args:
            draws: each makes a direction; what is left out of it stays still.
            coordinates: of each direction.
        """
        found: list[Values] = []
        for start, setting in self._settings(draws):
            axes = len(setting.directions)
            questions = []
            for axis in range(axes):
                points = np.zeros((len(coordinates[start + axis]), axes))
                points[:, axis] = coordinates[start + axis]
                questions.append(AtPoints(points, keep=True))
            found += self.calculator.ask(setting, questions)
        return found

    def _settings(self, draws: Sequence[Draw]) -> Iterator[tuple[int, Setting]]:
        """Settings of some of the directions each, with the number of the first."""
        together = max(1, min(MOST_AXES, AXES_BYTES // (4 * self.numbers)))
        for start in range(0, len(draws), together):
            axes = tuple(DirectionTensors(draw()) for draw in draws[start : start + together])
            yield start, Setting(self.origin, axes, self.plan)


def mean_of(values: Values) -> Floats:
    """The mean loss at each coordinate of a line."""
    return np.asarray(values.mean["loss"], np.float64)


def samples_of(values: Values) -> Floats | None:
    """ℓᵢ at each coordinate of a line, [coordinates, samples]; None where samples have none of their own."""
    return None if values.samples is None else values.samples.losses.astype(np.float64)


def weights_of(values: Values) -> Floats | None:
    """How much each sample counts."""
    return None if values.samples is None else values.samples.weights


def stderr_over(samples: Floats, weights: Floats) -> float:
    """The standard error of Σwx/Σw over n samples: √(Σw²(x−m)²)/Σw·√(n/(n−1)); NaN where a sample is not finite."""
    if not np.isfinite(samples).all():
        return math.nan
    total, count = float(weights.sum()), len(samples)
    mean = float((weights * samples).sum()) / total
    spread = math.sqrt(float((weights**2 * (samples - mean) ** 2).sum())) / total
    return spread * math.sqrt(count / (count - 1))
