"""What a check may look at: what stands on disk, and who answers questions, or why nobody does."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from itertools import product

import numpy as np
import torch

from landscape.checks.asking import Asker
from landscape.checks.evidence import Evidence
from landscape.checks.rules.curvature import AlongAxis
from landscape.checks.rules.words import NotJudged
from landscape.grid import Index
from landscape.problem.supervised import Supervised

# Shares of the norm of the weights. At the first the rounding of float64 makes 1e-7 of a curvature as high as the loss,
# and a smooth loss is a parabola. The others are shorter than the way between kinks: of a LeNet, and of a ResNet-20.
STEPS = (1e-4, 1e-6, 1e-7)
SPOTS = 8
# Samples of each class, on average. The entropy of n labels of K classes is about (K − 1)/2n below that of all labels
# (Miller 1955), with so many by a tenth; of 64 samples of 1,000 classes it is 4.1, and guessing loses 6.9.
LEAST_PER_CLASS = 5
SPOT_SEED = 0


@dataclass
class Scene:
    """A landscape that is checked.

    Attributes:
        asker: None where nothing can be evaluated.
        why_not: then, why.
        deep: whether costly checks are asked for.
    """

    evidence: Evidence
    asker: Asker | None
    why_not: str = ""
    deep: bool = False

    @property
    def asked(self) -> Asker:
        """Who answers questions.

        Raises:
            NotJudged: nobody does.
        """
        if self.asker is None:
            raise NotJudged(self.why_not)
        return self.asker

    @property
    def low_precision(self) -> bool:
        """Whether the landscape was evaluated in bfloat16 or tf32."""
        return self.asked.own.plan.precision in ("bfloat16", "tf32")

    @cached_property
    def origin_loss(self) -> float:
        """The loss at the origin, evaluated where it is not on disk.

        Raises:
            NotJudged: it is neither known nor can be evaluated.
        """
        known = self.evidence.origin_loss
        if math.isfinite(known) or self.evidence.record.states("origin_loss"):
            return known
        zero = [0.0] * len(self.evidence.surface.axes)
        return float(self.asked.losses(self.asked.own, [zero])[0])

    @cached_property
    def chance(self) -> float | None:
        """The loss of the best constant guess; None where it is not known, as of what is no classification."""
        if self.asker is None:
            return None
        observe, rows = self.asker.prepared.problem.observe, self.asker.prepared.samples.rows
        if not isinstance(observe, Supervised) or not observe.classifies or not isinstance(rows, (tuple, list)):
            return None
        labels = rows[1]
        if not isinstance(labels, torch.Tensor) or labels.is_floating_point():
            return None
        return loss_of_guessing(labels)

    @cached_property
    def corners(self) -> list[Index]:
        """The corners of the grid that have a value."""
        ends = [(0, size - 1) for size in self.evidence.values.shape]
        return [index for index in product(*ends) if np.isfinite(self.evidence.values[index])]

    @cached_property
    def spots(self) -> list[Index]:
        """The corners, and eight other cells that a seed chooses, of those that have a value."""
        known = [tuple(map(int, index)) for index in np.argwhere(np.isfinite(self.evidence.values))]
        others = [index for index in known if index not in set(self.corners)]
        chosen = np.random.default_rng(SPOT_SEED).permutation(len(others))[:SPOTS]
        return [*self.corners, *(others[k] for k in sorted(chosen.tolist()))]

    @cached_property
    def along_axes(self) -> tuple[list[AlongAxis], str]:
        """Slope and curvature along each axis, and how the derivatives were computed."""
        return self.asked.along_axes(STEPS)

    @cached_property
    def axis_curvatures(self) -> dict[str, float]:
        """dᵀHd over all samples, by the name of the axis."""
        names = [axis.name for axis in self.evidence.surface.axes]
        return dict(zip(names, self.asked.axis_curvatures().tolist(), strict=True))


def loss_of_guessing(labels: torch.Tensor) -> float | None:
    """The entropy of labels, those below 0 left out; None of a single class, and of few samples for their classes."""
    counts = torch.unique(labels[labels >= 0], return_counts=True)[1].double()
    if len(counts) < 2 or counts.sum() < LEAST_PER_CLASS * len(counts):
        return None
    shares = counts / counts.sum()
    return float(-(shares * shares.log()).sum())
