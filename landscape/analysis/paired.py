"""The difference of two mean losses over the same samples, and its standard error, pair by pair.

Noise that both losses of a sample share cancels, so the paired error is far below √(se_A² + se_B²), the error of a
difference of means over independent samples.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from landscape.compute.executor import AtPoints, EvaluationSetting, Executor
from landscape.core.grid import Floats
from landscape.evaluation.reduction import SampleValues, Values, terms_of
from landscape.problem.supervised import Observe
from landscape.surface.surface import paired_stderr


@dataclass(frozen=True)
class Pairs:
    """Two mean losses at P points, their difference, and its paired error: [P] each."""

    first: Floats
    second: Floats
    stderr: Floats
    unpaired: Floats

    @property
    def difference(self) -> Floats:
        """The second minus the first."""
        return self.second - self.first


def evaluated(executor: Executor, settings: Sequence[EvaluationSetting], points: Floats, observe: Observe) -> Pairs:
    """Evaluate the loss at points with each of two settings.

    Args:
        settings: those of the first and of the second landscape, over the same samples.
        points: [P, axes].
    """
    answers = [answers_at(executor, setting, points) for setting in settings]
    factors = terms_of(observe) or {}
    rows = [
        [
            np.concatenate([answer.mean["loss"] for answer in values]),
            np.concatenate([answer.stderr["loss"] for answer in values]),
        ]
        for values in answers
    ]
    errors = [of_pair(one, two, factors) for one, two in zip(*answers, strict=True)]
    (first, one), (second, two) = rows
    return Pairs(first, second, np.concatenate(errors), np.hypot(one, two))


def answers_at(executor: Executor, setting: EvaluationSetting, points: Floats) -> list[Values]:
    """The values at points, by one work item for each point, with the losses of all samples."""
    return executor.ask(setting, [AtPoints(points[k : k + 1], keep=True) for k in range(len(points))])


def of_pair(one: Values, two: Values, factors: Mapping[str, float]) -> Floats:
    """The paired error at the points of two answers; for a loss of terms, which have separate samples, √Σ(λ·se)²."""
    if one.samples is not None and two.samples is not None:
        return _of_samples(one.samples, two.samples)
    terms = [factors[name] * _of_samples(one.of_terms[name], two.of_terms[name]) for name in one.of_terms]
    return np.sqrt(np.square(terms).sum(0)) if terms else np.full(len(one.mean["loss"]), np.nan)


def _of_samples(one: SampleValues, two: SampleValues) -> Floats:
    return paired_stderr(two.losses.astype(np.float64) - one.losses, one.weights)
