"""Whether a job is over in this process sooner than a private Ray starts: from one measured point."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Sequence

import torch

from cluster.driver.landscape_state import LandscapeState
from cluster.process import supervisor_pipe
from landscape.choosing import make_evaluator
from landscape.devices import cores
from landscape.errors import Interrupted
from landscape.evaluation.choice.questions import Limits
from landscape.evaluation.choice.statistics import budget_of
from landscape.evaluation.choice.trials import measure_point
from landscape.memory import release_memory
from landscape.preparation import PreparedJob
from landscape.problem.user_code import in_folder

# From the end of the preparation to the first tile committed by a worker, less the tile: 7.1 to 9.4 s on 2 idle cores
# (import 1.6, ray.init 3.0 to 4.5, worker processes with torch and the problem 2.5 to 3.3), and 0.6 s for its end.
# Two cores that five others used took 18 to 25 s longer with Ray than without. The number is that of an idle machine
# all the same, as a busy one makes the point that is measured slower as well: what is near the edge gains little.
RAY_SECONDS = 8.0
LONGEST_HERE = 30.0  # beyond it workers are worth their start even where there is but one: they survive what kills them
MEASURING_SECONDS = 3.0  # a point that takes longer is not measured to its end: the job is long


class _TooLongError(Exception):
    """A point takes longer than it is worth to measure it."""


def is_quicker_here(
    prepared: PreparedJob, works: Sequence[LandscapeState], workers: int | None, address: str | None
) -> bool:
    """Whether nobody asked for Ray and this process is done before workers would be."""
    job = prepared.job
    gpus = torch.cuda.device_count() if job.device != "cpu" else 0
    if not may_run_here(workers or job.workers, address, job.num_gpus, gpus) or job.device_ids is not None:
        return False
    if job.num_gpus is not None and (job.num_gpus > 0) != (gpus > 0):
        return False  # a worker's device would be another one than this process's
    missing = sum(each.landscape.points if each.store is None else each.tasks.points for each in works)
    seconds = _measured(prepared, next(each for each in works if not each.finished))
    return seconds is not None and is_worth_it(seconds, missing, gpus or max(1, cores() // (job.threads or 1)))


def may_run_here(workers: int | None, address: str | None, num_gpus: float | None, gpus: int) -> bool:
    """Whether the choice is free: no workers, cluster or GPUs are asked for, and there is no Ray that runs already."""
    asked = workers or address or os.environ.get("RAY_ADDRESS") or (num_gpus or 0) > 1
    running = "ray" in sys.modules and sys.modules["ray"].is_initialized()
    return not asked and not running and not supervisor_pipe.avoid_here and gpus <= 1


def is_worth_it(seconds_per_point: float, points: int, workers: int) -> bool:
    """Whether what workers would save is less than what their start costs; the search for an engine counts in."""
    work = seconds_per_point * points
    search = budget_of(seconds_per_point, points, Limits())
    return work + search < LONGEST_HERE and work * (1 - 1 / workers) < RAY_SECONDS


def _measured(prepared: PreparedJob, work: LandscapeState) -> float | None:
    """Seconds of a point as it is planned; None where it takes long, or fails, which workers are there to outlive."""
    end = time.monotonic() + MEASURING_SECONDS

    def on_point() -> None:
        if time.monotonic() > end:
            raise _TooLongError

    try:
        return _measured_within(prepared, work, on_point)
    except Interrupted:
        raise
    except Exception:
        return None
    finally:
        release_memory()  # a worker may need it


def _measured_within(prepared: PreparedJob, work: LandscapeState, on_point: Callable[[], None]) -> float | None:
    supervisor_pipe.tell(supervisor_pipe.HERE)
    evaluator = make_evaluator(prepared, work.landscape, on_point)
    with in_folder(prepared.folder):
        point = [float(axis[len(axis) // 2]) for axis in work.landscape.grid.coordinates]
        if evaluator.time_batches(1, point) * evaluator.batches > MEASURING_SECONDS:
            return None
        return evaluator.within_memory(lambda: measure_point(evaluator, work.landscape.grid))
