"""What a check may look at: what stands on disk, and who answers questions, or why nobody does."""

from __future__ import annotations

import math
import textwrap
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import product

import numpy as np

from landscape.analysis.checks.evaluations import Asker
from landscape.analysis.checks.evidence import Evidence
from landscape.analysis.checks.geometry import AlongAxis
from landscape.analysis.checks.statistics import OnPath
from landscape.analysis.checks.values import NotJudged
from landscape.core.errors import JobError
from landscape.core.grid import Floats, Index
from landscape.core.quantisation import Quantisation
from landscape.problem.supervised import guessing_of
from landscape.surface.record_entries import MARKS, Checks

# Shares of the norm of the weights. At the first the rounding of float64 makes 1e-7 of a curvature as high as the loss,
# and a smooth loss is a parabola. The others are shorter than the way between kinks: of a LeNet, and of a ResNet-20.
STEPS = (1e-4, 1e-6, 1e-7)
SPOTS = 8
FURTHEST = 6  # snapshots at whose projections statistics are taken anew, beside the ends of a path
ROUNDED = (
    "the loss of rounded weights has steps, between which gradients and curvature are zero; those of the network "
    "before rounding are judged by the check of its landscape"
)
ACTIVATIONS = (
    "a plain forward pass does not round the inputs of layers, whose ranges the evaluation takes at the origin"
)
SPOT_SEED = 0


@dataclass
class CheckContext:
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
    def quantise(self) -> Quantisation | None:
        """How the network is rounded at every point; None where it is not."""
        return self.evidence.record.quantisation

    @property
    def plainly(self) -> Asker:
        """Who answers questions by a plain forward pass.

        Raises:
            NotJudged: nobody does, or not with activations that are rounded.
        """
        if self.asker is not None and self.quantise is not None and self.quantise.activations:
            raise NotJudged(ACTIVATIONS)
        return self.asked

    @property
    def differentiable(self) -> Asker:
        """Who answers questions for derivatives.

        Raises:
            NotJudged: nobody does, or rounded weights have none.
        """
        if self.asker is not None and self.quantise is not None:
            raise NotJudged(ROUNDED)
        return self.asked

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
        known, record = self.evidence.origin_loss, self.evidence.record
        # Null stands for a loss that is not finite; of an imported surface, for one that nobody knows.
        if math.isfinite(known) or (record.states("origin_loss") and not record.is_imported):
            return known
        zero = [0.0] * len(self.evidence.surface.axes)
        return float(self.asked.losses(self.asked.own, [zero])[0])

    @cached_property
    def chance(self) -> float | None:
        """The loss of the best constant guess; None where there are no classes, or nobody answers."""
        if self.asker is None:
            return None
        return guessing_of(self.asker.prepared.problem.observe, self.asker.prepared.samples)

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
    def uses_centres_statistics(self) -> bool:
        """Whether batch norm has the running statistics of the origin wherever nothing moves them.

        Raises:
            NotJudged: nobody answers questions.
        """
        return bool(self.evidence.record.provenance.batch_norm_layers) and self.asked.own.plan.statistics.fixed

    @cached_property
    def renewed_corners(self) -> list[float]:
        """The losses at the corners with the other statistics of batch norm."""
        points = [self.evidence.point(each) for each in self.corners]
        if not points:
            return []
        return [float(loss) for loss in self.asked.losses(self.asked.other_statistics, points)]

    @cached_property
    def renewed_on_paths(self) -> dict[tuple[int, int], OnPath]:
        """By path and snapshot, the plane below some snapshots with both kinds of statistics of batch norm.

        Of all paths together those whose own losses are furthest from the plane's, and the ends of the path of the
        first of these; none where the landscape's statistics are those of each point.
        """
        surface = self.evidence.surface
        paths = {k: surface.along(path) for k, path in enumerate(surface.paths)}
        ranked = sorted(
            (
                (gap, -k, -at)
                for k, each in paths.items()
                for at, gap in enumerate(each.gaps.tolist())
                if math.isfinite(each.losses[at])
            ),
            reverse=True,
        )
        if not self.uses_centres_statistics or not ranked:
            return {}
        worst = -ranked[0][1]
        chosen = [(-k, -at) for _, k, at in ranked[:FURTHEST]]
        chosen += [(worst, at) for at in (0, len(paths[worst].losses) - 1) if (worst, at) not in chosen]
        names = [axis.name for axis in surface.axes]
        points = [[float(surface.paths[k].coordinates[name][at]) for name in names] for k, at in chosen]
        pairs = self.asked.by_statistics(points)
        found = {}
        for place, (k, at) in enumerate(chosen):
            each, run = paths[k], surface.paths[k].label
            found[k, at] = OnPath(
                f"{each.names[at]} of {run}" if run else each.names[at], float(each.losses[at]), float(each.plane[at]),
                float(pairs.second[place]), float(pairs.stderr[place]), each.height,
            )  # fmt: skip
        return found

    @cached_property
    def along_axes(self) -> tuple[list[AlongAxis], str]:
        """Slope and curvature along each axis, and how the derivatives were computed."""
        return self.differentiable.along_axes(STEPS)

    @cached_property
    def unlike_differences(self) -> str:
        """Why derivatives do not tell how the loss curves along some axis; '' where they do, or nobody can say."""
        try:
            along, _ = self.along_axes
        except JobError:  # check 8 says why
            return ""
        return next((each.unlike_differences for each in along if each.is_finite and each.unlike_differences), "")

    @cached_property
    def axis_curvatures(self) -> dict[str, float]:
        """dᵀHd over all samples, by the name of the axis."""
        names = [axis.name for axis in self.evidence.surface.axes]
        return dict(zip(names, np.diag(self.hessian_of_axes).tolist(), strict=True))

    @cached_property
    def hessian_of_axes(self) -> Floats:
        """dᵢᵀHdⱼ over all samples [axes, axes]."""
        return self.differentiable.hessian_of_axes()


# ----------------------------------------------------------------------------------------------------
# What the checks of a landscape found, as text.

WIDTH = 92

_wrapped = partial(textwrap.fill, width=WIDTH, subsequent_indent="   ", break_on_hyphens=False)


def checks_text(name: str, checks: Checks) -> str:
    """The verdict, and what each check found."""
    lines = [_wrapped(f"{name}: can this picture be trusted? {checks.verdict}")]
    for check in checks.told:
        said = f"{check.text}; {check.remedy}" if check.remedy else check.text
        lines.append(_wrapped(said, initial_indent=f" {MARKS[check.state]} "))
    return "\n".join(lines)
