"""Choose the engine and the batch size of a landscape by measuring, within a bounded budget, and check what is chosen.

The choice is made once, before any value is kept, and recorded: other engines round differently.
"""

from __future__ import annotations

import logging
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from landscape.arithmetic import is_out_of_memory
from landscape.engine import Engine
from landscape.errors import Interrupted, JobError, one_line
from landscape.evaluation import Evaluator
from landscape.grid import Grid
from landscape.search import Freedom, Search, Tuned, in_float32

log = logging.getLogger("landscape")

SHARE_OF_JOB, LONGEST, SHORTEST = 0.05, 60.0, 1.0  # seconds of measuring: at most, and not worth beginning


def tune(evaluator: Evaluator, grid: Grid, freedom: Freedom) -> Tuned:
    """Measure a point, then what may make it faster; leaves the evaluator as the returned plan says.

    A batch that does not fit the memory is halved first. User code that raises at the measured points is left to
    the tiles of these points to tell.
    """
    asked = evaluator.plan.batch_size
    try:
        seconds = evaluator.within_memory(lambda: measure_point(evaluator, grid))
        first = evaluator.plan = replace(evaluator.plan, batch_size=evaluator.batch_size)
    except Exception as error:
        if isinstance(error, (Interrupted, JobError)) or is_out_of_memory(error):
            raise
        return Tuned(evaluator.plan)
    warning = f"batch_size: {asked} does not fit the memory; {first.batch_size} is used"
    found = Tuned(first, seconds, warning=warning if first.batch_size < asked else "")
    try:
        found = _chosen(evaluator, grid, freedom, found)
        return replace(found, precision_error=precision_error(evaluator, probe_points(grid)))
    except Interrupted:
        raise
    except Exception as error:
        # Nothing that is tried here may end a job that runs without it.
        log.info("engine: nothing is chosen: %s", one_line(error))
        evaluator.use(Engine.parse(first.engine), first.batch_size)
        return replace(found, plan=first)


def _chosen(evaluator: Evaluator, grid: Grid, freedom: Freedom, measured: Tuned) -> Tuned:
    budget = min(LONGEST, SHARE_OF_JOB * measured.seconds_per_point * freedom.points)
    search = Search(evaluator, probe_points(grid), freedom, budget, measured)
    if freedom.engine != "auto":
        search.force(Engine.parse(freedom.engine))
    elif budget >= SHORTEST:
        search.run()
    return search.tuned()


def measure_point(evaluator: Evaluator, grid: Grid) -> float:
    """Seconds per point, from one real point in the middle of the grid after a warm-up beside it."""
    points = np.array([[axis[len(axis) // 2 - before] for axis in grid.coordinates] for before in (1, 0)])
    evaluator.evaluate(points[:1])
    return evaluator.evaluate(points[1:]).seconds


def probe_points(grid: Grid) -> NDArray[np.float64]:
    """The middle of the grid and its two far corners: [3, axes]."""
    return np.array([[axis[place(len(axis))] for axis in grid.coordinates] for place in _PLACES])


_PLACES = (lambda count: count // 2, lambda count: 0, lambda count: count - 1)


def precision_error(evaluator: Evaluator, points: NDArray[np.float64]) -> dict[str, float | int | None] | None:
    """What the plan's precision costs against float32: max |Δ| of the mean loss over the points, and max |Δ|/|L|."""
    if evaluator.plan.precision in ("float32", "float64"):
        return None
    exact = evaluator.twin(in_float32(evaluator.plan)).evaluate(points).mean["loss"]
    error = np.abs(evaluator.evaluate(points).mean["loss"] - exact)
    relative = error / np.maximum(np.abs(exact), np.finfo(np.float64).tiny)
    return {
        "max_abs_error": _finite(error.max()), "max_rel_error": _finite(relative.max()), "points": len(points),
    }  # fmt: skip


def _finite(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None
