"""Whether this process would finish a job before a private Ray has started, judged by one measured point."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from dataclasses import replace

import torch

from cluster.runtime import logs
from landscape.compute.planning import is_done_sooner_here
from landscape.compute.plans import make_evaluator, tuning_scope
from landscape.compute.prepared import PreparedJob, PreparedLandscape
from landscape.core.devices import cores, release_memory
from landscape.core.errors import Interrupted
from landscape.core.plan import BASES, Engine
from landscape.evaluation.tuning.choices import KeptChoices, Limits
from landscape.evaluation.tuning.search import Failed, budget_of
from landscape.evaluation.tuning.trials import Trials
from landscape.problem.user_code import in_folder

MEASURING_SECONDS = 3.0  # a point that takes longer is not measured to its end: the job is a long one


class _TooLongError(Exception):
    """A point takes so long that the job is a long one."""


def is_quicker_here(
    prepared: PreparedJob,
    landscape: PreparedLandscape,
    points: int,
    workers: int | None,
    address: str | None,
    *,
    searches: bool = True,
) -> bool:
    """Whether nothing requires Ray, and this process would be done before workers were.

    Args:
        landscape: an unfinished one, of which a point is measured.
        points: how many evaluations are left to do in all.
        workers, address: as given to `run`.
        searches: whether the search for an engine comes before them.
    """
    job = prepared.job
    gpus = torch.cuda.device_count() if job.device != "cpu" else 0
    if (
        prepared.ranks > 1
        or not may_run_here(workers or job.workers, address, job.num_gpus, gpus)
        or job.device_ids is not None
        or job.worker_resources
    ):
        return False
    if job.num_gpus is not None and (job.num_gpus > 0) != (gpus > 0):
        return False  # a worker's device would be another one than this process's
    seconds = _measured(prepared, landscape)
    count = gpus or max(1, cores() // (job.threads or 1))
    return seconds is not None and is_worth_it(seconds, points, count, searches=searches)


def may_run_here(workers: int | None, address: str | None, num_gpus: float | None, gpus: int) -> bool:
    """Whether this process may compute: no workers, cluster or GPUs are requested, and it runs no Ray."""
    wants_ray = workers or address or os.environ.get("RAY_ADDRESS") or (num_gpus or 0) > 1
    running = "ray" in sys.modules and sys.modules["ray"].is_initialized()
    return not wants_ray and not running and not logs.avoid_here and gpus <= 1


def is_worth_it(seconds_per_point: float, points: int, workers: int, *, searches: bool = True) -> bool:
    """Whether workers would save less time than their start costs; the search for an engine counts as work."""
    work = seconds_per_point * points
    search = budget_of(seconds_per_point, points, Limits()) if searches else 0.0
    return is_done_sooner_here(work, search, workers)


def _measured(prepared: PreparedJob, landscape: PreparedLandscape) -> float | None:
    """Seconds of a point by the first engine; None if it takes long or fails: a job outlives its workers."""
    end = time.monotonic() + MEASURING_SECONDS

    def on_point() -> None:
        if time.monotonic() > end:
            raise _TooLongError

    try:
        return _measured_within(prepared, landscape, on_point)
    except Interrupted:
        raise
    except Exception:
        return None
    finally:
        release_memory()  # a worker may need it


def _measured_within(prepared: PreparedJob, landscape: PreparedLandscape, on_point: Callable[[], None]) -> float | None:
    logs.tell(here=True)
    evaluator = make_evaluator(prepared, landscape, on_point)
    with in_folder(prepared.folder):
        scope = replace(tuning_scope(prepared)[0], needs_cost=True)
        if scope.engine is not None and BASES[scope.engine.base].setup_seconds:
            scope = replace(scope, engine=Engine())  # its set-up would be for nothing
        cost = Trials(evaluator, landscape.grid, KeptChoices(None)).measure(scope)
    return None if isinstance(cost, Failed) or cost.seconds > MEASURING_SECONDS else cost.seconds
