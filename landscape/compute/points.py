"""Questions for the observables at points of the setting's axes, and at whole sets of weights."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from landscape.compute.executor import Question, Shared, Station
from landscape.evaluation.values import Values
from landscape.model.parameters import State


@dataclass(frozen=True, eq=False)
class AtPoints(Question[Values]):
    """The observables at points of the plane, their standard errors, and those of the rise.

    Attributes:
        points: coordinates [points, axes].
        keep: whether the losses of the single samples are returned too.
    """

    points: NDArray[np.float64]
    keep: bool = False

    @property
    def label(self) -> str:
        """What messages call it."""
        return f"{len(self.points)} points"

    def answer(self, station: Station) -> Values:
        """Evaluate them, as the points of a tile are."""
        return replace(station.evaluator.evaluate(self.points, rise=True, keep=self.keep), seconds=0.0)


@dataclass(frozen=True, eq=False)
class AtWeights(Question[Values]):
    """The observables at a whole set of weights."""

    weights: Shared[State]

    @property
    def label(self) -> str:
        """What messages call it."""
        return "weights"

    def answer(self, station: Station) -> Values:
        """Evaluate them, as a snapshot of a path is."""
        return replace(station.evaluator.evaluate_states([self.weights.get()]), seconds=0.0)
