"""What an extension costs, step by step: the first step is planned, the later ones are reckoned from it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from cluster.commands.planning import plan_job, plan_text
from cluster.driver.short_jobs import time_in_words
from cluster.runtime.console import seconds_text
from landscape.compute.extend import More, extension_job
from landscape.compute.recorded import recorded_plan
from landscape.core.grid import as_written
from landscape.job.job import Job
from landscape.store.landscape import LandscapeStore
from landscape.store.results import open_run

ALL = ""  # the samples of a loss that is no sum of terms


def plan_extension(
    run: str,
    name: str,
    steps: Sequence[More],
    problem: str | Callable[[], Any] | None = None,
    folder: Path | None = None,
    workers: int | None = None,
) -> dict[str, Any]:
    """The plan of the first step, as `plan_job` gives it, and what every step costs, in `steps`.

    A later step cannot be prepared before those ahead of it are done. Its points and samples are known all the same,
    and take as long as those of the first one.

    Raises:
        JobError: one of the steps is refused.
    """
    jobs = [extension_job(run, name, step, problem, folder) for step in steps]
    planned = plan_job(jobs[0], workers)
    first = planned["landscapes"][0]
    counts = list(_counts(LandscapeStore.open(open_run(run).path, name), steps, jobs))
    _, of_first, held = counts[0]
    # Of the first one, a part may have been computed already.
    counts[0] = first["missing_points"], of_first, held
    of_one_sample = planned["seconds_per_point"] / sum(held.values()) / _at_once(planned)
    planned["steps"] = [
        {
            "adds": _option(step),
            "points": points,
            "samples": samples.get(ALL, samples),
            "seconds": points * sum(samples.values()) * of_one_sample,
        }
        for step, (points, samples, _) in zip(steps, counts, strict=True)
    ]
    planned["seconds_of_all_steps"] = sum(step["seconds"] for step in planned["steps"])
    return planned


def _counts(
    store: LandscapeStore, steps: Sequence[More], jobs: Sequence[Job]
) -> Iterator[tuple[int, dict[str, int], dict[str, int]]]:
    """How many points each step evaluates, snapshots of the path among them, on how many samples, and of how many.

    Samples are counted by term, under `ALL` where the loss is no sum of terms.
    """
    held = {name: term.samples or 0 for name, term in store.record.terms.items()}
    held = held or {ALL: store.identity.num_samples or 0}
    points = math.prod(store.shape)
    path, batch_size = int(store.counts().sum()) - points, recorded_plan(store).batch_size
    for step, job in zip(steps, jobs, strict=True):
        if step.num_samples is not None:
            most = max(held.values())
            known = most // batch_size * batch_size
            # A term that has fewer samples than others has no more.
            held = {name: count if count < most else step.num_samples for name, count in held.items()}
            yield points + path, {name: max(0, count - known) for name, count in held.items()}, held
        elif step.ranges is not None:
            wider = math.prod(job.landscapes[0].size)
            yield wider - points, held, held
            points = wider
        else:
            yield points, held, held


def _in_words(samples: int | dict[str, int]) -> str:
    if isinstance(samples, int):
        return f"{samples} samples"
    return ", ".join(f"{count} of {name}" for name, count in samples.items())


def _option(step: More) -> str:
    """A step as it is asked for."""
    if step.num_samples is not None:
        return f"--samples {step.num_samples}"
    if step.ranges is not None:
        return f"--range={','.join(as_written(end) for ends in step.ranges for end in ends)}"
    return " ".join(f"--observable {name}" for name in step.observables)


def extension_text(planned: dict[str, Any]) -> str:
    """The plan as lines: that of the first step in full, a line for every later one, and the sum."""
    steps, text = planned["steps"], plan_text(planned)
    if len(steps) == 1:
        return text
    lines = [f"step 1 of {len(steps)}: {steps[0]['adds']}", text]
    lines += [
        f"step {number} of {len(steps)}: {step['adds']}: {step['points']} points are evaluated, on "
        f"{_in_words(step['samples'])} each: about {seconds_text(step['seconds'])}"
        for number, step in enumerate(steps[1:], 2)
    ]
    work = planned["seconds_of_all_steps"] * _at_once(planned)
    lines.append(f"all {len(steps)} steps: {time_in_words(work, planned['workers'], planned['here'])}")
    return "\n".join(lines)


def _at_once(planned: dict[str, Any]) -> int:
    """How many processes compute."""
    return 1 if planned["here"] else int(planned["workers"])
