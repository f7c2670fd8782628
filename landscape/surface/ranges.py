"""What the document of a landscape says of the range of its axes where that was found and not given."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field, Strict

from landscape.surface.record_parts import Count, Real

# How an axis ends: where the loss has changed by the target, before it is no longer finite, or where nobody looks on.
AxisEnd = Literal["target", "finite", "farthest"]
# What the target follows from: the loss of guessing, the loss at the origin, or the least change that is worth showing.
TargetRule = Literal["guessing", "origin", "least"]


@dataclass(frozen=True, kw_only=True)
class FoundAxis:
    """How far an axis runs, from -radius to radius.

    Attributes:
        change: abs(L − L₀) there, the larger one of both ends.
        end: why there.
    """

    radius: Annotated[float, Strict(), Field(gt=0)]
    change: Real
    end: AxisEnd


@dataclass(frozen=True, kw_only=True)
class FoundRange:
    """The range that was found, axis by axis.

    Attributes:
        target: the change of the loss that was looked for.
        evaluations: how many were made, of all samples each.
    """

    target: Real
    rule: TargetRule
    axes: tuple[FoundAxis, ...]
    evaluations: Count
