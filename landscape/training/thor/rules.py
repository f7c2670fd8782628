"""When the factors of layers are looked at, and which layers then get a new inverse."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Decision = Literal["update", "keep", "freeze"]


@dataclass(frozen=True)
class TraceRule:
    """THOR's rule for one layer (Chen et al. 2021, section 4.1), by the relative change Δ of tr(F + λI).

    Δ > ω₁ makes a new inverse, ω₂ ≤ Δ ≤ ω₁ keeps the old one until the next look, Δ < ω₂ keeps it for good. Before
    the first inverse there is nothing to compare with, and one is made. ω₁ = 0 makes one every time.

    >>> rule = TraceRule(0.01, 0.001)
    >>> [rule.decide(now, before) for now, before in ((1.0, None), (1.02, 1.0), (1.005, 1.0), (1.0005, 1.0))]
    ['update', 'update', 'keep', 'freeze']

    Attributes:
        update_above: ω₁.
        freeze_below: ω₂.
    """

    update_above: float
    freeze_below: float

    def decide(self, now: float, before: float | None) -> Decision:
        """What happens to a layer whose inverse in use was made at the trace `before`."""
        if before is None or self.update_above == 0:
            return "update"
        change = abs(now - before) / abs(before)
        if change < self.freeze_below:
            return "freeze"
        return "update" if change > self.update_above else "keep"


# `frequency` is what MindSpore ships: a new inverse for every layer each time.
RULES = {
    "frequency": TraceRule(0.0, 0.0),
    "thor": TraceRule(0.01, 0.0),
    "thor_stop": TraceRule(0.01, 0.001),
    "thor_nt": TraceRule(0.0, 0.0),
}


@dataclass
class Calendar:
    """The steps at whose end factors are looked at: 0, then after intervals that grow.

    >>> calendar, looks = Calendar(interval=2, growth=2, longest=5), []
    >>> for step in range(20):
    ...     if calendar.is_due(step):
    ...         looks.append(step)
    ...         calendar.move_on()
    >>> looks
    [0, 2, 6, 11, 16]

    Attributes:
        interval: steps to the look after the next one.
        growth: multiplies the interval after each look.
        longest: no interval is longer.
        due: the step of the next look.
    """

    interval: float
    growth: float = 1.0
    longest: float = float("inf")
    due: int = 0

    def is_due(self, step: int) -> bool:
        return step >= self.due

    def move_on(self) -> None:
        self.due += round(self.interval)
        self.interval = min(self.interval * self.growth, self.longest)
