"""Choose the engine and the batch size of a landscape by measuring, within a bounded budget, and check what is chosen.

The choice is made once, before any value is kept, and recorded: other engines round differently.
"""

from __future__ import annotations

from landscape.evaluation import Evaluator
from landscape.grid import Grid
from landscape.kept import KeptChoices
from landscape.peers import Peers
from landscape.search import Freedom, Limits, Search, Tuned, follow
from landscape.trials import Trials


def tune(
    evaluator: Evaluator,
    grid: Grid,
    freedom: Freedom,
    *,
    kept: KeptChoices | None = None,
    limits: Limits | None = None,
    peers: int | None = None,
) -> Tuned:
    """Measure a point, then what may make it faster; leaves the evaluator as the returned plan says.

    A batch that does not fit the memory is halved first. User code that raises at the measured points is left to
    the tiles of these points to tell.

    Args:
        kept: where a choice is looked up and kept; default: nowhere.
        limits: how long a search may take.
        peers: processes that compute beside this one while candidates are timed; default: one per idle core.
    """
    trials = Trials(evaluator, grid, kept or KeptChoices(None))
    with Peers(trials, peers) as crew:
        return follow(Search(evaluator.plan, freedom, limits).steps(), crew.ask)
