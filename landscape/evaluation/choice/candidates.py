"""Which engines a search tries, given what could be done to the model: from the rules of options and bases alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from landscape.evaluation.choice.questions import Facts
from landscape.plan import OPTIONS, Engine, Plan

COMPILE_SECONDS, COMPILE_SECONDS_PER_MODULE = 8.0, 0.4
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
    """Other ways to run the best rewrites that are set up at once."""
    if plan.batch_norm == "recalibrate" or plan.device != "cuda":
        return
    if facts.resident:
        yield best.on("cudagraph")
    if facts.moved_parameters < STACKED_PARAMETERS:
        yield from (best.on("vmap", points) for points in STACKED_POINTS)


def compiled(best: Engine, facts: Facts) -> tuple[Engine, float]:
    """The best rewrites compiled, and about how many seconds that takes."""
    return best.on("compile"), COMPILE_SECONDS + COMPILE_SECONDS_PER_MODULE * facts.modules
