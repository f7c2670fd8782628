"""The cost of an extension and of a refinement, step by step, before they are computed. Writes nothing."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from landscape.compute.extend import More, extension_job
from landscape.compute.identity import recorded_plan
from landscape.compute.planning import plan_job, plan_text, time_in_words
from landscape.compute.refine import level_job
from landscape.core.grid import as_written
from landscape.core.text import seconds_text
from landscape.job.job import Job
from landscape.store.landscape import LandscapeStore
from landscape.store.levels import points_left
from landscape.store.results import open_run
from landscape.surface.record_parts import LevelRecord

# ----------------------------------------------------------------------------------------------------
# The cost of an extension, step by step: the first step is planned, and the later ones are reckoned from it.

ALL = ""  # the samples of a loss that is no sum of terms


def plan_extension(
    run: str,
    name: str,
    steps: Sequence[More],
    problem: str | Callable[[], Any] | None = None,
    folder: Path | None = None,
    workers: int | None = None,
) -> dict[str, Any]:
    """The plan of the first step, as from `plan_job`, with the cost of every step in `steps`.

    A later step cannot be prepared before the earlier ones are done, but its points and samples are known, and each
    takes as long as in the first step. `levels` are those of the landscape's refinement, in the first step. Without
    steps nothing is left to do.

    Raises:
        JobError: one of the steps is refused.
    """
    if not steps:
        return {"landscape": name, "steps": [], "seconds_of_all_steps": 0.0}
    jobs = [extension_job(run, name, step, problem, folder) for step in steps]
    planned = plan_job(jobs[0], workers)
    first = planned["landscapes"][0]
    path = open_run(run).path
    store = LandscapeStore.open(path, name)
    counts = list(_counts(store, steps, jobs))
    _, new_samples, all_samples = counts[0]
    seconds_per_sample = planned["seconds_per_point"] / sum(all_samples.values()) / _processes(planned)
    records = [level.record.level for level in store.levels() if level.record.level is not None]
    seconds = sum(new_samples.values()) * seconds_per_sample
    planned["levels"] = [_level_cost(path, jobs[0].landscapes[0].name, each, store.shape, seconds) for each in records]
    # A part of the first step may have been computed already.
    left = first["missing_points"] + sum(level["points"] for level in planned["levels"])
    counts[0] = left, new_samples, all_samples
    planned["steps"] = [
        {
            "adds": _option(step),
            "points": points,
            "samples": samples.get(ALL, samples),
            "seconds": points * sum(samples.values()) * seconds_per_sample,
        }
        for step, (points, samples, _) in zip(steps, counts, strict=True)
    ]
    planned["seconds_of_all_steps"] = sum(step["seconds"] for step in planned["steps"])
    return planned


def _counts(
    store: LandscapeStore, steps: Sequence[More], jobs: Sequence[Job]
) -> Iterator[tuple[int, dict[str, int], dict[str, int]]]:
    """For each step the points that it evaluates, path included; the samples evaluated; and all samples after the step.

    Samples are counted by term, under `ALL` if the loss is no sum of terms.
    """
    samples = {name: term.samples or 0 for name, term in store.record.terms.items()}
    samples = samples or {ALL: store.identity.num_samples or 0}
    points = math.prod(store.shape)
    path, batch_size = int(store.counts().sum()) - points, recorded_plan(store).batch_size
    finer = sum(level.arrays.points for level in store.levels())
    for step, job in zip(steps, jobs, strict=True):
        if step.num_samples is not None:
            most = max(samples.values())
            known = most // batch_size * batch_size
            # A term with fewer samples than others has all of its samples already.
            samples = {name: count if count < most else step.num_samples for name, count in samples.items()}
            yield points + path + finer, {name: max(0, count - known) for name, count in samples.items()}, samples
        elif step.ranges is not None:
            wider = math.prod(job.landscapes[0].size)
            yield wider - points, samples, samples
            points = wider
        else:
            yield points + finer, samples, samples


def _samples_text(samples: int | dict[str, int]) -> str:
    if isinstance(samples, int):
        return f"{samples} samples"
    return ", ".join(f"{count} of {name}" for name, count in samples.items())


def _option(step: More) -> str:
    """The option of the command that asks for a step alone."""
    if step.num_samples is not None:
        return f"--samples {step.num_samples}"
    if step.ranges is not None:
        return f"--range={','.join(as_written(end) for ends in step.ranges for end in ends)}"
    return " ".join(f"--observable {name}" for name in step.observables)


def extension_text(planned: dict[str, Any]) -> str:
    """The plan as lines: the first step in full, a line for every later step, and the sum."""
    steps = planned["steps"]
    if not steps:
        return f"{planned['landscape']} has all of this already: nothing is left to do"
    lines = [plan_text(planned), *map(_level_text, planned["levels"])]
    if len(steps) > 1:
        lines.insert(0, f"step 1 of {len(steps)}: {steps[0]['adds']}")
    lines += [
        f"step {number} of {len(steps)}: {step['adds']}: {step['points']} points are evaluated, on "
        f"{_samples_text(step['samples'])} each: about {seconds_text(step['seconds'])}"
        for number, step in enumerate(steps[1:], 2)
    ]
    work = planned["seconds_of_all_steps"] * _processes(planned)
    if len(lines) > 1:
        whole = f"all {len(steps)} steps" if len(steps) > 1 else "with its levels"
        lines.append(f"{whole}: {time_in_words(work, planned['workers'], planned['here'])}")
    return "\n".join(lines)


def _processes(planned: dict[str, Any]) -> int:
    """How many processes compute."""
    return 1 if planned["here"] else int(planned["workers"])


# ----------------------------------------------------------------------------------------------------
# The cost of a refinement, level by level: one point is timed, and the points of each level are counted.


def plan_refinement(
    run: str,
    name: str,
    levels: Sequence[LevelRecord],
    problem: str | Callable[[], Any] | None = None,
    folder: Path | None = None,
    workers: int | None = None,
) -> dict[str, Any]:
    """The plan of the first level, as from `plan_job`, with the cost of every level in `levels`.

    Without levels nothing is left to do.

    Raises:
        JobError: the landscape cannot be refined.
    """
    if not levels:
        return {"landscape": name, "levels": [], "seconds": 0.0}
    path = open_run(run).path
    shape = LandscapeStore.open(path, name).shape
    planned = plan_job(level_job(run, name, levels[0], problem, folder), workers)
    seconds = planned["seconds_per_point"] / _processes(planned)
    planned["levels"] = [_level_cost(path, name, level, shape, seconds) for level in levels]
    planned["seconds"] = sum(level["seconds"] for level in planned["levels"])
    return planned


def _level_cost(run: str, name: str, level: LevelRecord, shape: Sequence[int], seconds: float) -> dict[str, Any]:
    points = points_left(run, name, level, shape)
    size = [(points_before - 1) * level.stride + 1 for points_before in reversed(shape)]
    return {"level": level.number, "size": size, "points": points, "seconds": points * seconds}


def _level_text(level: dict[str, Any]) -> str:
    return (
        f"level {level['level']}: {level['points']} points of {' x '.join(map(str, level['size']))}, "
        f"about {seconds_text(level['seconds'])}"
    )


def refinement_text(planned: dict[str, Any]) -> str:
    """The plan as lines: one for each level, and the sum."""
    if not planned["levels"]:
        return f"{planned['landscape']} is as fine as that already: nothing is left to do"
    workers, points = planned["workers"], sum(level["points"] for level in planned["levels"])
    lines = list(map(_level_text, planned["levels"]))
    work = points * planned["seconds_per_point"]
    lines.append(
        f"all: {points} points on {planned['num_samples']} samples each, "
        f"{time_in_words(work, workers, planned['here'])}"
    )
    return "\n".join(lines)
