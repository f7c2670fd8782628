"""What a refinement costs, level by level: one point is measured, and the points of each level are counted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from cluster.commands.planning import plan_job
from cluster.driver.short_jobs import time_in_words
from cluster.runtime.console import seconds_text
from landscape.compute.refine import level_job
from landscape.store.landscape import LandscapeStore
from landscape.store.levels import points_left
from landscape.store.results import open_run
from landscape.surface.record_parts import LevelRecord


def plan_refinement(
    run: str,
    name: str,
    levels: Sequence[LevelRecord],
    problem: str | Callable[[], Any] | None = None,
    folder: Path | None = None,
    workers: int | None = None,
) -> dict[str, Any]:
    """The plan of the first level, as `plan_job` gives it, and what every level costs, in `levels`.

    Raises:
        JobError: the landscape cannot be refined.
    """
    path = open_run(run).path
    shape = LandscapeStore.open(path, name).shape
    planned = plan_job(level_job(run, name, levels[0], problem, folder), workers)
    each = planned["seconds_per_point"] / (1 if planned["here"] else planned["workers"])
    planned["levels"] = [_cost(path, name, level, shape, each) for level in levels]
    planned["seconds"] = sum(level["seconds"] for level in planned["levels"])
    return planned


def _cost(run: str, name: str, level: LevelRecord, shape: Sequence[int], seconds: float) -> dict[str, Any]:
    points = points_left(run, name, level, shape)
    size = [(size - 1) * level.stride + 1 for size in reversed(shape)]
    return {"level": level.number, "size": size, "points": points, "seconds": points * seconds}


def refinement_text(planned: dict[str, Any]) -> str:
    """The plan as lines: one for each level, and the sum."""
    workers, points = planned["workers"], sum(level["points"] for level in planned["levels"])
    lines = [
        f"level {level['level']}: {level['points']} points of {' x '.join(map(str, level['size']))}, "
        f"about {seconds_text(level['seconds'])}"
        for level in planned["levels"]
    ]
    work = points * planned["seconds_per_point"]
    lines.append(
        f"all: {points} points on {planned['num_samples']} samples each, "
        f"{time_in_words(work, workers, planned['here'])}"
    )
    return "\n".join(lines)
