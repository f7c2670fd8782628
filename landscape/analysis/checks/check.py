"""The context of the checks: a landscape on disk, its network if it can be evaluated, and shared measurements."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property, wraps
from itertools import product
from typing import Any, TypeVar

import numpy as np

from landscape.analysis.checks.evaluations import ExtraEvaluations
from landscape.analysis.checks.evidence import Evidence, NotJudged, shown_features
from landscape.core.grid import Index
from landscape.core.quantisation import Quantisation
from landscape.problem.supervised import guessing_of
from landscape.surface.surface import NOT_COMPUTED

SPOTS = 8
SPOT_SEED = 0
ROUNDED = (
    "the loss of rounded weights has steps, between which gradients and curvature are zero; to judge them, check a "
    "landscape of the network before rounding"
)
ACTIVATIONS = (
    "a plain forward pass does not round the inputs of layers, since their ranges are those that the evaluation took "
    "at the origin"
)

T = TypeVar("T")


@dataclass
class CheckContext:
    """A landscape that is checked.

    Attributes:
        extra: evaluates further points; None if the network cannot be evaluated.
        why_not: why the network cannot be evaluated.
        deep: whether costly checks run too.
        measured: the measurements that several checks share, by the function that makes them, see `once`.
    """

    evidence: Evidence
    extra: ExtraEvaluations | None
    why_not: str = ""
    deep: bool = False
    measured: dict[Callable[[CheckContext], Any], Any] = field(default_factory=dict, init=False)

    @property
    def evaluations(self) -> ExtraEvaluations:
        """The evaluations of further points.

        Raises:
            NotJudged: the network cannot be evaluated.
        """
        if self.extra is None:
            raise NotJudged(self.why_not)
        return self.extra

    @property
    def quantise(self) -> Quantisation | None:
        """How the network is rounded at every point; None if it is not rounded."""
        return self.evidence.record.quantisation

    @property
    def plain_evaluations(self) -> ExtraEvaluations:
        """The evaluations of further points, for a check that uses a plain forward pass.

        Raises:
            NotJudged: the network cannot be evaluated, or activations are rounded.
        """
        if self.extra is not None and self.quantise is not None and self.quantise.activations:
            raise NotJudged(ACTIVATIONS)
        return self.evaluations

    @property
    def derivatives(self) -> ExtraEvaluations:
        """The evaluations of further points, for a check that uses derivatives.

        Raises:
            NotJudged: the network cannot be evaluated, or the loss of rounded weights has no useful derivatives.
        """
        if self.extra is not None and self.quantise is not None:
            raise NotJudged(ROUNDED)
        return self.evaluations

    @property
    def low_precision(self) -> bool:
        """Whether the landscape was evaluated in bfloat16 or tf32."""
        return self.evaluations.own.plan.precision in ("bfloat16", "tf32")

    @cached_property
    def origin_loss(self) -> float:
        """The loss at the origin; evaluated if it is not on disk.

        Raises:
            NotJudged: the loss is not known, and the network cannot be evaluated.
        """
        recorded, record = self.evidence.origin_loss, self.evidence.record
        # A recorded null is a loss that is not finite; in an imported surface it may also be an unknown one.
        if math.isfinite(recorded) or (record.states("origin_loss") and not record.is_imported):
            return recorded
        zero = [0.0] * len(self.evidence.surface.axes)
        return float(self.evaluations.losses(self.evaluations.own, [zero])[0])

    @cached_property
    def chance(self) -> float | None:
        """The loss of the best constant guess; None if there are no classes, or the network cannot be evaluated."""
        if self.extra is None:
            return None
        return guessing_of(self.extra.prepared.problem.observe, self.extra.prepared.samples)

    @cached_property
    def corners(self) -> list[Index]:
        """The corners of the grid with a finite loss."""
        ends = [(0, size - 1) for size in self.evidence.values.shape]
        return [index for index in product(*ends) if np.isfinite(self.evidence.values[index])]

    @cached_property
    def spots(self) -> list[Index]:
        """The corners and eight other cells, chosen by a seed, all with a finite loss."""
        finite = [tuple(map(int, index)) for index in np.argwhere(np.isfinite(self.evidence.values))]
        others = [index for index in finite if index not in set(self.corners)]
        chosen = np.random.default_rng(SPOT_SEED).permutation(len(others))[:SPOTS]
        return [*self.corners, *(others[k] for k in sorted(chosen.tolist()))]


def once(measure: Callable[[CheckContext], T]) -> Callable[[CheckContext], T]:
    """Decorate a measurement that several checks share, so that each landscape is measured once."""

    @wraps(measure)
    def measure_once(context: CheckContext) -> T:
        if measure_once not in context.measured:
            context.measured[measure_once] = measure(context)
        result: T = context.measured[measure_once]
        return result

    return measure_once


def refuse_few_points(context: CheckContext) -> None:
    """Refuse to judge the whole grid by a few points.

    Raises:
        NotJudged: some points are computed, but fewer than half.
    """
    status = context.evidence.surface.status
    done = int((status != NOT_COMPUTED).sum())
    if 0 < done < status.size / 2:
        raise NotJudged(f"{done} of {status.size:,} points are computed, and this check needs half of them")


def refuse_no_values(context: CheckContext) -> None:
    """Refuse to judge a grid without a value.

    Raises:
        NotJudged: no cell has a finite loss.
    """
    if not np.isfinite(context.evidence.values).any():
        started = (context.evidence.surface.status != NOT_COMPUTED).any()
        raise NotJudged("no cell that is computed has a finite loss" if started else "no cell has a value yet")


def features_beyond_half(context: CheckContext) -> str:
    """The features that half the range would cut off, such as 'the path'; '' for none."""
    shown = shown_features(context.evidence.surface)
    reach = max(float(np.abs(axis.coordinates).max()) for axis in context.evidence.surface.axes)
    return shown.name if shown.reach > reach / 2 else ""
