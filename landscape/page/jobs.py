"""The ordinary job for a part of a landscape: the same directions and origin, another range, and what it costs."""

from __future__ import annotations

import math
import shlex
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import yaml

from landscape.core.errors import JobError, LandscapeError, quoted
from landscape.core.validation import LONGEST_LANDSCAPE_NAME
from landscape.job.job import Job
from landscape.job.recorded import spec_as_computed
from landscape.page.content import View
from landscape.page.queries import BoxQuery, round_end
from landscape.page.runs import RunReader
from landscape.store.landscape import LandscapeStore
from landscape.store.levels import FACTORS, Finer, box_of_blocks, levels_left, points_left
from landscape.store.state import cause_of
from landscape.surface.surface import Axis

# ----------------------------------------------------------------------------------------------------
# The commands that refine a box of a landscape: what each computes, and why one has nothing to do.

BOX_DIGITS = 6  # of the ends of a box that a hand has drawn


def finer_steps(
    run: RunReader, landscape: str, axes: Sequence[Axis], box: Sequence[tuple[float, float]], problem: str | None
) -> list[dict[str, Any]]:
    """A command per factor, for a box cut off where it leaves the landscape.

    Args:
        problem: what stands for the callback in the command; None for the recorded one.

    Returns:
        For each factor `command`, how many `points` it computes, and what it `covers` as [low, high] of each axis; or
        the `reason` why there is no such command.
    """
    return [{"factor": factor} | _finer(run, landscape, axes, box, factor, problem) for factor in FACTORS]


def _finer(
    run: RunReader,
    landscape: str,
    axes: Sequence[Axis],
    box: Sequence[tuple[float, float]],
    factor: int,
    problem: str | None,
) -> dict[str, Any]:
    try:
        inside = [snap_to_axis(*ends, axis) for ends, axis in zip(box, axes, strict=False)]
        inside += [(float(axis.coordinates[0]), float(axis.coordinates[-1])) for axis in axes[len(box) :]]
        finer = Finer(factor, inside)
        if run.alive():
            return {"reason": "a job writes this run now; refine when it has ended"}
        path, store = run.found.path, LandscapeStore.open(run.found.path, landscape)
        points = sum(points_left(path, landscape, each, store.shape) for each in levels_left(path, landscape, finer))
        covers = [list(ends) for ends in box_of_blocks(store, finer)]
    except LandscapeError as error:
        return {"reason": cause_of(error)}
    return {"command": _command(path, landscape, inside, factor, problem), "points": points, "covers": covers}


def snap_to_axis(low: float, high: float, axis: Axis) -> tuple[float, float]:
    """The ends of a box along an axis in a few digits, within the landscape.

    >>> import numpy as np
    >>> snap_to_axis(-3.0, 0.123456789, Axis("alpha", np.array([-1.0, 0.0, 1.0])))
    (-1.0, 0.123457)
    """
    first, last = float(axis.coordinates[0]), float(axis.coordinates[-1])
    rounded = [float(f"{end:.{BOX_DIGITS}g}") for end in (low, high)]
    return max(first, min(last, rounded[0])), max(first, min(last, rounded[1]))


def _command(run: str, landscape: str, box: Sequence[tuple[float, float]], factor: int, problem: str | None) -> str:
    ends = ",".join(repr(end) for pair in box for end in pair)
    more = ["--problem", problem] if problem is not None else []
    words = ["landscape", "refine", run, landscape, f"--box={ends}", "--factor", str(factor), *more]
    return " ".join(map(shlex.quote, words))


# ----------------------------------------------------------------------------------------------------

WEIGHTS = (".safetensors", ".pt", ".pth", ".ckpt", ".bin")  # how the names of files of weights end
PLACEHOLDER = "my_problem:problem"
KEPT = (
    "num_samples", "seed", "batch_size", "precision", "batch_norm", "engine", "device", "threads", "workers",
    "num_gpus",
)  # fmt: skip


def box_job(run: RunReader, asked: BoxQuery) -> dict[str, Any]:
    """The answer of `api/job`.

    Returns:
        `yaml`, the job file; `seconds` that it takes at the recorded rate, None where there is none; `command`;
        `note`, what must be known before it is run, '' for nothing; `finer`, the commands that refine the box, as
        `finer_steps` gives them, with the seconds that each takes.

    Raises:
        JobError: the box or the size does not fit the landscape's axes.
        LandscapeError: the landscape does not record the job that began it.
    """
    view = run.view(asked.landscape)
    record, axes = view.record, view.surface.axes
    if record.job is None or not record.job.landscapes:
        raise LandscapeError(
            f"landscape {quoted(asked.landscape)} does not record the job that began it, so no job can be made of it"
        )
    if len(asked.box) > len(axes) or (len(asked.size) > 1 and len(asked.size) != len(axes)):
        raise JobError(
            f"box: {quoted(asked.landscape)} has {len(axes)} axes; give as many pairs, and one size or as many"
        )
    name = free_name(asked.landscape, run.names())
    own = tuple(reversed(run.reader(asked.landscape).store().shape))
    landscape = _landscape(view, spec_as_computed(record), asked, name, own)
    problem, notes = _problem(record.job.whole)
    notes += _file_notes(landscape)
    fields = {key: value for key in KEPT if (value := record.job.whole.get(key)) is not None}
    document = {"run": run.found.path, "problem": problem, **fields, "landscapes": [landscape]}
    Job(**document)  # which refuses what this version does not know
    text = yaml.safe_dump(document, sort_keys=False, default_flow_style=None, allow_unicode=True, width=100)
    points = math.prod(landscape["size"])
    finer = finer_steps(
        run, asked.landscape, axes, asked.box, None if problem == record.job.whole.get("problem") else problem
    )
    return {
        "yaml": text,
        "seconds": _seconds(view, points),
        "points": points,
        "command": f"landscape run {name}.yaml",
        "note": " ".join(notes),
        "finer": [{**each, "seconds": _seconds(view, each["points"]) if "points" in each else None} for each in finer],
    }


def free_name(name: str, taken: Collection[str]) -> str:
    """A name for a part of a landscape that no landscape of the run has, whatever the case of its letters."""
    used = {each.lower() for each in taken}
    base = f"{name[: LONGEST_LANDSCAPE_NAME - 10]}-box"
    number = 1
    while (found := base if number == 1 else f"{base}-{number}").lower() in used:
        number += 1
    return found


def _landscape(
    view: View, recorded: Mapping[str, Any], asked: BoxQuery, name: str, own: tuple[int, ...]
) -> dict[str, Any]:
    """The landscape's own part of the job: the recorded directions, from the same origin, over the box.

    Args:
        recorded: its own fields, with every snapshot by its number: the training may have gone on since.
        own: points per axis of the landscape itself, without its levels.
    """
    axes = view.surface.axes
    boxes = [*asked.box, *(_range(axis) for axis in axes[len(asked.box) :])]
    sizes = asked.size or own
    found: dict[str, Any] = {"name": name}
    found |= {"origin": recorded["origin"]} if recorded.get("origin") is not None else {}
    if recorded.get("trajectory") is not None:
        found["trajectory"] = recorded["trajectory"]
        found["axes"] = len(axes)
    else:
        found["directions"] = [
            {key: value for key, value in each.items() if value is not None} for each in recorded.get("directions", ())
        ]
    if recorded.get("paths"):
        found["paths"] = [
            {key: value for key, value in each.items() if value is not None} for each in recorded["paths"]
        ]
    found["size"] = list(sizes if len(sizes) > 1 else sizes * len(axes))
    found["range"] = [list(box) for box in boxes]
    return found


def _range(axis: Axis) -> tuple[float, float]:
    return round_end(float(axis.coordinates[0])), round_end(float(axis.coordinates[-1]))


def _problem(job: Mapping[str, Any]) -> tuple[str, list[str]]:
    """The callback's name, and what must be known of it."""
    recorded = job.get("problem")
    module, _, function = recorded.partition(":") if isinstance(recorded, str) else ("", "", "")
    named = all(part.isidentifier() for part in (*module.split("."), *function.split(".")))
    if module == "__main__" or not named:
        return PLACEHOLDER, [
            f"The callback was a function of a program, {quoted(recorded)}: "
            f"put module:function of your own in place of {PLACEHOLDER}."
        ]
    return str(recorded), [f"Save the file in the folder from which {module} can be imported."]


def _file_notes(landscape: Mapping[str, Any]) -> list[str]:
    """What must be known of the files and runs that the job names."""
    named = [landscape.get("origin"), *(value for each in landscape.get("directions", ()) for value in each.values())]
    files = [value for value in named if isinstance(value, str) and ("/" in value or value.endswith(WEIGHTS))]
    files += [each["run"] for each in landscape.get("paths", ())]
    return ["Paths in it are relative to the folder of the job that began the landscape."] if files else []


def _seconds(view: View, points: int) -> float | None:
    """Seconds for so many points at the speed that all workers of the landscape had together; None if unknown."""
    progress = view.record.progress
    if progress.rate:
        return points / progress.rate
    if progress.seconds and progress.points_done:
        return points * progress.seconds / progress.points_done
    return None
