"""What lies on the line and on the curve between two networks, as the document of their plane keeps it."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from landscape.surface.curves import Curve
from landscape.surface.record_parts import AnyReal, AnyText, Count, Object, Real, Text

Numbers = tuple[AnyReal, ...]


@dataclass(frozen=True, kw_only=True)
class BarrierRecord:
    """A barrier: its height, where it is, and its error; None where that is not known."""

    height: Real
    alpha: Real
    stderr: AnyReal = None


@dataclass(frozen=True, kw_only=True)
class WayRecord:
    """What was evaluated on one way from network to network.

    Attributes:
        values: means and standard errors by name, one per place; None where they are not finite.
        columns: least, largest, mean and integral of the loss.
        barriers: by definition: `entezari`, `git_re_basin`, `frankle`; none where no loss is finite.
    """

    values: dict[Text, Numbers] = field(default_factory=dict)
    columns: dict[Text, AnyReal] = field(default_factory=dict)
    barriers: dict[Text, BarrierRecord] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class ConnectionRecord:
    """The straight line between two networks, and the curve that was trained between them.

    Attributes:
        when: a time in ISO format.
        version: of this software.
        curve: its kind.
        t: the places on both ways, from 0 to 1.
        epochs: the mean training loss of each.
        evaluations: how many it cost, one of all samples each.
        settings: what decides these numbers beside the identity of the landscape.
    """

    curve: Curve
    t: tuple[Real, ...]
    on_line: WayRecord
    on_curve: WayRecord
    when: AnyText = None
    version: AnyText = None
    epochs: Numbers = ()
    evaluations: Count = 0
    settings: Object = field(default_factory=dict)

    @property
    def gone(self) -> float | None:
        """The share of the line's barrier (Entezari's) that the curve does not have; None where the line has none."""
        line, curve = (way.barriers.get("entezari") for way in (self.on_line, self.on_curve))
        if line is None or curve is None or line.height == 0:
            return None
        return 1 - curve.height / line.height


def finite_or_none(value: float) -> float | None:
    """A number as it is; None for NaN and infinity, which JSON has not."""
    return value if math.isfinite(value) else None
