"""Choose the engine and the batch size of a landscape by measuring, within a bounded budget, and check what is chosen.

The choice is made once, before any value is kept, and recorded: other engines round differently.
"""

from __future__ import annotations

from dataclasses import dataclass

from landscape.core.grid import Grid
from landscape.core.plan import Plan
from landscape.evaluation.evaluator import Evaluator, key_of
from landscape.evaluation.tuning.protocol import KeptChoices, Limits, Tuned, TunedChoice, TuningScope, follow
from landscape.evaluation.tuning.search import Search, budget_of
from landscape.evaluation.tuning.trials import Peers, Trials


def tune(
    evaluator: Evaluator,
    grid: Grid,
    scope: TuningScope,
    *,
    kept: KeptChoices | None = None,
    limits: Limits | None = None,
    peers: int | None = None,
) -> Tuned:
    """Measure a point, then what may make it faster; leaves the evaluator as the returned plan says.

    A batch that does not fit the memory is halved first. Where user code raises at the measured points nothing is
    chosen: it is reported when the tiles of these points are computed.

    Args:
        kept: where a choice is looked up and kept; default: nowhere.
        limits: how long a search may take.
        peers: processes that compute beside this one while candidates are timed; default: one per idle core.
    """
    trials = Trials(evaluator, grid, kept or KeptChoices(None))
    with Peers(trials, peers) as pool:
        return follow(Search(evaluator.plan, scope, limits).steps(), pool.ask)


@dataclass(frozen=True)
class Outlook:
    """What `tune` is going to do: take the choice that was kept, or search for so many seconds at the most."""

    kept: TunedChoice | None
    search_seconds: float


def outlook(
    evaluator: Evaluator, plan: Plan, scope: TuningScope, seconds_per_point: float, kept: KeptChoices
) -> Outlook:
    """What a job that leaves the engine open will do.

    Args:
        plan: as planned at first.
        seconds_per_point: as measured now; where the cost of an earlier measurement was kept, that is used.
    """
    record = kept.read(key_of(evaluator, plan, scope))
    seconds = record.seconds_per_point if record else seconds_per_point
    budget = budget_of(seconds, scope.points, Limits())
    choice = record.choice_for(budget) if record and budget else None
    return Outlook(choice, 0.0 if choice else budget)
