"""What the checks look at: a landscape on disk, its network where it can be evaluated, and what several ask for."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property, partial, wraps
from itertools import product
from typing import Any, TypeVar

import numpy as np

from landscape.analysis.checks.evaluations import ExtraEvaluations
from landscape.analysis.checks.evidence import Evidence, NotJudged, held_by
from landscape.core.grid import Index
from landscape.core.quantisation import Quantisation
from landscape.problem.supervised import guessing_of
from landscape.surface.record_entries import MARKS, Checks
from landscape.surface.surface import NOT_COMPUTED

SPOTS = 8
SPOT_SEED = 0
ROUNDED = (
    "the loss of rounded weights has steps, between which gradients and curvature are zero; those of the network "
    "before rounding are judged by the check of its landscape"
)
ACTIVATIONS = (
    "a plain forward pass does not round the inputs of layers, whose ranges the evaluation takes at the origin"
)
WIDTH = 92

T = TypeVar("T")


@dataclass
class CheckContext:
    """A landscape that is checked.

    Attributes:
        extra: what evaluates further points; None where nothing can.
        why_not: why nothing can.
        deep: whether costly checks are asked for.
        measured: what several checks ask for, by the function that measures it: see `once`.
    """

    evidence: Evidence
    extra: ExtraEvaluations | None
    why_not: str = ""
    deep: bool = False
    measured: dict[Callable[[CheckContext], Any], Any] = field(default_factory=dict, init=False)

    @property
    def evaluations(self) -> ExtraEvaluations:
        """What evaluates further points.

        Raises:
            NotJudged: nothing can be evaluated.
        """
        if self.extra is None:
            raise NotJudged(self.why_not)
        return self.extra

    @property
    def quantise(self) -> Quantisation | None:
        """How the network is rounded at every point; None where it is not."""
        return self.evidence.record.quantisation

    @property
    def plain_evaluations(self) -> ExtraEvaluations:
        """What evaluates further points by a plain forward pass.

        Raises:
            NotJudged: nothing can be evaluated, or activations are rounded.
        """
        if self.extra is not None and self.quantise is not None and self.quantise.activations:
            raise NotJudged(ACTIVATIONS)
        return self.evaluations

    @property
    def derivatives(self) -> ExtraEvaluations:
        """What evaluates further points and the derivatives there.

        Raises:
            NotJudged: nothing can be evaluated, or weights are rounded, so that the loss has no derivatives.
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
        """The loss at the origin, evaluated where it is not on disk.

        Raises:
            NotJudged: it is neither known nor can be evaluated.
        """
        known, record = self.evidence.origin_loss, self.evidence.record
        # Null stands for a loss that is not finite; of an imported surface, for one that nobody knows.
        if math.isfinite(known) or (record.states("origin_loss") and not record.is_imported):
            return known
        zero = [0.0] * len(self.evidence.surface.axes)
        return float(self.evaluations.losses(self.evaluations.own, [zero])[0])

    @cached_property
    def chance(self) -> float | None:
        """The loss of the best constant guess; None where there are no classes, or nothing can be evaluated."""
        if self.extra is None:
            return None
        return guessing_of(self.extra.prepared.problem.observe, self.extra.prepared.samples)

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


def once(measure: Callable[[CheckContext], T]) -> Callable[[CheckContext], T]:
    """A measurement that several checks of a landscape ask for: the first of them has it computed."""

    @wraps(measure)
    def known(context: CheckContext) -> T:
        if known not in context.measured:
            context.measured[known] = measure(context)
        result: T = context.measured[known]
        return result

    return known


def refuse_few_points(context: CheckContext) -> None:
    """Leave open what the values of a few points say of the whole grid.

    Raises:
        NotJudged: less than half of the points are computed.
    """
    status = context.evidence.surface.status
    done = int((status != NOT_COMPUTED).sum())
    if 0 < done < status.size / 2:
        raise NotJudged(f"{done} of {status.size:,} points are computed; it is judged from half of them on")


def refuse_no_values(context: CheckContext) -> None:
    """Leave open what needs a value.

    Raises:
        NotJudged: no cell has one that is finite.
    """
    if not np.isfinite(context.evidence.values).any():
        started = (context.evidence.surface.status != NOT_COMPUTED).any()
        raise NotJudged("no cell that is computed has a finite loss" if started else "no cell has a value yet")


def cut_off(context: CheckContext) -> str:
    """What a range of half the size would cut off, such as 'the path'; '' for nothing."""
    held = held_by(context.evidence.surface)
    reach = max(float(np.abs(axis.coordinates).max()) for axis in context.evidence.surface.axes)
    return held.name if held.reach > reach / 2 else ""


# -- the results as text -------------------------------------------------------------------------------------

_wrapped = partial(textwrap.fill, width=WIDTH, subsequent_indent="   ", break_on_hyphens=False)


def checks_text(name: str, checks: Checks) -> str:
    """The verdict, and what each check found."""
    lines = [_wrapped(f"{name}: can this picture be trusted? {checks.verdict}")]
    for check in checks.told:
        said = f"{check.text}; {check.remedy}" if check.remedy else check.text
        lines.append(_wrapped(said, initial_indent=f" {MARKS[check.state]} "))
    return "\n".join(lines)
