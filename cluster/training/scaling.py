"""How a training speeds up with its workers: one global batch and a fixed number of steps, with each number of them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

from cluster.runtime.logs import graceful_stop
from cluster.runtime.options import checked_workers
from cluster.runtime.placement import refuse_too_few_places
from cluster.runtime.session import ray_session, supply
from cluster.training.job import TrainingJob, plan_of
from cluster.training.report import Report
from cluster.training.settings import ray_train_settings
from cluster.training.train import named_as_here, refuse_without_ray_train
from landscape.core.errors import JobError, LandscapeError, shown, stage

WARM_STEPS = 3  # which make buffers and pools of memory


@dataclass(frozen=True)
class Scaling:
    """What some workers reach.

    Attributes:
        samples_per_second: of whole batches, over the median step of rank 0.
        step_seconds: that median.
        speedup: over the first number of workers.
        efficiency: T₁/(W·T_W): the share of W workers' time that a perfect division of the work would take.
        communication: the share of each rank's time that passed while ranks exchanged gradients and means.
    """

    workers: int
    steps: int
    step_seconds: float
    samples_per_second: float
    speedup: float
    efficiency: float
    communication: tuple[float, ...]


def measure_scaling(
    job: TrainingJob, workers: Sequence[int], steps: int = 20, *, address: str | None = None, allow_open: bool = False
) -> list[Scaling]:
    """Train for some steps with each number of workers, in folders that are removed; nothing of it is kept.

    The first of the numbers is what the others are compared with.

    Raises:
        JobError: the numbers make no sense, or the cluster has no room for so many workers.
        LandscapeError: the function raised, or ended before a step was measured.
    """
    for number in workers:
        checked_workers(number)
    if steps < 1:
        raise JobError(f"measure_steps: must be at least 1, not {steps}")
    refuse_without_ray_train()
    measured: list[dict[int, dict[str, Any]]] = []
    most = replace(job, workers=max(workers))
    with (
        ray_train_settings(bool(address or os.environ.get("RAY_ADDRESS"))),
        named_as_here(),
        ray_session(most, address, most.workers, allow_open) as placed,
        graceful_stop() as signalled,
    ):
        from cluster.training.trainer import train_on_ray

        for number in workers:
            placement = replace(placed, workers=number)
            refuse_too_few_places(placement, supply())
            stage(f"measuring {number} worker{'s' if number > 1 else ''}")
            report = Report(shown=False)
            plan = replace(plan_of(job), run="", steps=steps, warm=WARM_STEPS)
            train_on_ray(plan, placement, report, signalled)
            if not report.ranks or not report.ranks[0]["step_seconds"]:
                raise LandscapeError(
                    f"measure_workers: {shown(job.what.name)} ended before a step was measured; "
                    f"have it take more than {WARM_STEPS} steps"
                )
            measured.append(report.ranks)
    return compared(measured)


def compared(measured: Sequence[dict[int, dict[str, Any]]]) -> list[Scaling]:
    """The summaries of the ranks of each measurement, compared with the first."""
    found = []
    first: tuple[int, float] | None = None
    for ranks in measured:
        one, world = ranks[0], int(ranks[0]["world"])
        times = one["step_seconds"]
        seconds = median(times)
        pace = one["samples"] / len(times) / seconds
        first = first or (world, seconds)
        shares = tuple(each["communication"] for _, each in sorted(ranks.items()) if each["communication"] is not None)
        speedup = first[1] / seconds
        found.append(Scaling(world, len(times), seconds, pace, speedup, speedup * first[0] / world, shares))
    return found


def scaling_text(measured: Sequence[Scaling]) -> str:
    """The measurements as a table."""
    lines = ["workers  samples/s  ms a step  speed-up  efficiency  communication"]
    for each in measured:
        shares = " ".join(f"{share:.0%}" for share in each.communication) or "-"
        lines.append(
            f"{each.workers:7d}  {each.samples_per_second:9,.1f}  {1000 * each.step_seconds:9.1f}  "
            f"{each.speedup:8.2f}  {each.efficiency:10.0%}  {shares}"
        )
    return "\n".join(lines)
