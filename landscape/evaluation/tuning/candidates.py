"""Which engines a search tries, given what could be done to the model: from the rules of options and bases alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from landscape.core.plan import BASES, OPTIONS, Engine, Plan
from landscape.evaluation.tuning.questions import Facts

STACKED_PARAMETERS = 4_000_000  # above it one point fills a GPU
STACKED_POINTS = (8, 32)


def combined_options(facts: Facts) -> tuple[str, ...]:
    """The options whose every combination is tried first."""
    return tuple(name for name in facts.options if OPTIONS[name].combined)


def single_options(facts: Facts) -> tuple[str, ...]:
    """The options that are tried after those, each by itself on the best engine so far."""
    return tuple(name for name in facts.options if not OPTIONS[name].combined)


def with_option(best: Engine, name: str, facts: Facts) -> Engine:
    """The best engine so far with one more option, and with those that go along with it where the model allows them."""
    along: Sequence[str] = [other for other in OPTIONS[name].along if other in facts.options]
    return best.adding(name, *along)


def quick_bases(best: Engine, plan: Plan, facts: Facts) -> Iterator[Engine]:
    """The best rewrites on the other bases that are set up at once."""
    for name, base in BASES.items():
        if base.setup_seconds or not _suits(name, plan, facts):
            continue
        if not base.stacks:
            yield best.on(name)
        elif facts.moved_parameters < STACKED_PARAMETERS:
            yield from (best.on(name, points) for points in STACKED_POINTS)


def slow_bases(best: Engine, plan: Plan, facts: Facts) -> Iterator[tuple[Engine, float]]:
    """The best rewrites on the other bases, such as compiled, and about how many seconds each takes to set up."""
    for name, base in BASES.items():
        if base.setup_seconds and _suits(name, plan, facts):
            yield best.on(name), base.setup_seconds + base.setup_seconds_per_module * facts.modules


def _suits(name: str, plan: Plan, facts: Facts) -> bool:
    """Whether a search tries the base at all."""
    base = BASES[name]
    resident = facts.resident or not base.needs_resident
    return not plan.statistics.recalibrated and plan.device in base.tried_on and resident
