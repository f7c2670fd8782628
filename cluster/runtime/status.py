"""The state of a run: what is done, missing and failed, and whether every chunk of it is sound. Only reads."""

from __future__ import annotations

import math
from typing import Any

from landscape.core.errors import DONE, FAILED, PARTIAL, StoreError, flat, printable
from landscape.core.lock import driver_alive
from landscape.core.text import seconds_text
from landscape.core.validation import ranges
from landscape.model.history import log_end, read_lines, training_state, went_on_to
from landscape.model.layer_rules import inspect_command
from landscape.model.run_files import DONE as TRAINED
from landscape.model.run_files import FAILED as TRAINING_FAILED
from landscape.store.landscape import LandscapeStore
from landscape.store.results import open_run
from landscape.store.runs import root_problems
from landscape.store.state import (
    COMPLETE,
    DAMAGED,
    UNREADABLE,
    finite,
    is_whole,
    landscape_status,
    read_landscapes,
    read_or_note,
    unreadable_in_words,
    unreadable_status,
)
from landscape.views.prepare.words import value_with_error

# How the lowest loss is called, by the state of the landscape; where points are missing, one of them may be lower.
_LOWEST = {COMPLETE: "lowest loss", DAMAGED: "lowest loss that can be read"}


def run_status(run: str) -> dict[str, Any]:
    """The state of every landscape of a run, and of its training.

    Raises:
        NotFoundError: there is no such run.
    """
    opened = open_run(run)
    alive = driver_alive(opened.path)
    problems: list[str] = []
    trajectory = read_or_note(lambda: [opened.trajectory], problems)
    ends = read_or_note(lambda: [log_end(opened.path)], problems)
    last = [snapshot for entry in trajectory for snapshot in entry.snapshots[-1:]]
    status = {
        "run": opened.path,
        "driver": alive,
        "training": next(
            iter(read_or_note(lambda: [training_state(opened.path, end) for end in ends], problems)), None
        ),
        "snapshots": [number for entry in trajectory for number in entry.numbers],
        "unit": trajectory[0].unit if trajectory else None,
        "went_on_to": next((went_on_to(end, snapshot) for end in ends for snapshot in last), "") or None,
        "landscapes": read_landscapes(opened.path, lambda store: landscape_status(store, alive), unreadable_status),
        "problems": list(dict.fromkeys(problems)),  # run.json is read twice
    }
    return dict(finite(status))


def is_readable(status: dict[str, Any]) -> bool:
    """Whether everything that a status asked for could be read."""
    return is_whole(status["problems"], status["landscapes"])


def code_of_run(status: dict[str, Any]) -> int:
    """The exit code that says how complete a run is: landscapes that no job has begun yet are not known."""
    training = (status["training"] or {}).get("state")
    if not is_readable(status) or training == TRAINING_FAILED:
        return FAILED
    is_empty = not (status["landscapes"] or status["training"] or status["snapshots"])
    whole = all(landscape["state"] == COMPLETE for landscape in status["landscapes"])
    return DONE if whole and training in (None, TRAINED) and not status["driver"] and not is_empty else PARTIAL


def status_text(status: dict[str, Any]) -> str:
    """The status as aligned lines."""
    lines = [f"run {status['run']}", *status["problems"]]
    if status["training"]:
        lines += training_lines(status["training"])
    if status["snapshots"]:
        numbers, plural = status["snapshots"], "s" * (len(status["snapshots"]) > 1)
        went_on = f"; training went on to {status['went_on_to']}, which no snapshot has" if status["went_on_to"] else ""
        lines.append(
            f"trajectory: {len(numbers)} snapshot{plural}, {status['unit']}{plural} {ranges(numbers)}{went_on}"
        )
    landscapes = status["landscapes"]
    width = max((len(flat(each["name"])) for each in landscapes), default=0)
    for each in landscapes:
        lines += _landscape_lines(each, width, status["run"])
    if not landscapes:
        lines.append("no landscapes yet")
    inspected = [each for each in landscapes if each["engine"]]  # no network of an imported one is known
    for each in [one for one in inspected if one["not_finite"] and not one["missing"]][:1]:
        lines.append(f"why not finite: {inspect_command(status['run'], each['name'])}")
    for each in [one for one in inspected if one["constant"]][:1]:
        axes = len(each["minimum"]) - 1  # beside the loss
        lines.append(f"why the same loss: {inspect_command(status['run'], each['name'], axes)}")
    return printable("\n".join(lines))


def _landscape_lines(landscape: dict[str, Any], width: int, run: str) -> list[str]:
    """A line for a landscape, and below it what else there is to say.

    Args:
        width: of the column of names.
    """
    if landscape["state"] == UNREADABLE:
        return [f"{flat(landscape['name']):{width}}  {UNREADABLE}: {'; '.join(landscape['problems'])}"]
    own = landscape["own_model"] or {}
    parts = [f"{landscape['name']:{width}}  {landscape['state']:11}  {_points_text(landscape)}", *_progress(landscape)]
    if landscape["state"] == DAMAGED:
        parts.append(unreadable_in_words(landscape["unreadable"], flat(run)))
    parts += _findings(landscape)
    parts += ["not compared with your own model"] if own.get("state") == "not compared" else []
    accepted = [f"accepted: {own['text']}"] if own.get("state") == "accepted" else []
    ending = [landscape["accuracy"]["ending"]] if (landscape["accuracy"] or {}).get("ending") else []
    below = (*accepted, *ending, *landscape["problems"], *_failure_lines(landscape), *_worker_lines(landscape))
    return [", ".join(parts), *(f"{'':{width}}  {flat(line, 1000)}" for line in below)]


def _points_text(landscape: dict[str, Any]) -> str:
    """How many points are done, how many of them lie on paths, and how many each level of refinement has."""
    text = f"{landscape['done']}/{landscape['points']} {landscape['unit']}"
    if landscape["accuracy"] is not None:
        text += f", {landscape['accuracy']['text']}"
    if landscape["path_points"]:
        of = f"s of {', '.join(landscape['paths'])}" if landscape["paths"] else ""
        text += f" ({landscape['path_points']} of them on the path{of}, beside the grid)"
    if landscape["levels"]:
        finer = ", ".join(f"{level['points']} at level {level['level']}" for level in landscape["levels"])
        text += f" (refined: {finer})"
    return text


def _progress(landscape: dict[str, Any]) -> list[str]:
    """How fast the landscape is computed, with what precision, and what went wrong."""
    error = (landscape["precision_error"] or {}).get("max_rel_error")
    facts = (
        landscape["rate"] and landscape["missing"] and f"{landscape['rate']:.3g} {landscape['unit']}/s",
        landscape["eta_seconds"] is not None and f"ETA {seconds_text(landscape['eta_seconds'])}",
        landscape["quantised"],
        error is not None and f"{landscape['precision']} within {100 * error:.2g} % of float32",
        landscape["not_finite"] and f"{landscape['not_finite']} not finite",
        landscape["failed"] and f"{landscape['failed']} given up",
    )
    return [str(fact) for fact in facts if fact]


def _findings(landscape: dict[str, Any]) -> list[str]:
    """What the values say: the range that was found, the loss at the origin, the lowest loss."""
    parts = []
    if landscape["found_range"]:
        ends = ", ".join(f"{axis} ±{radius:g}" for axis, radius in landscape["found_range"].items())
        parts.append(f"range found: {ends}")
    if landscape["origin_loss"] is not None:
        value = _with_error(landscape["origin_loss"], landscape["origin_loss_stderr"])
        origin = f" ({flat(landscape['origin'])})" if landscape["origin"] else ""
        parts.append(f"loss at the origin{origin} {value}")
        if landscape["no_better_than_guessing"]:
            parts.append(f"no better than guessing ({landscape['guessing']:.4g})")
    if landscape["minimum"]:
        loss = _with_error(landscape["minimum"]["loss"], landscape["minimum_stderr"])
        place = ", ".join(f"{k} {v:.3g}" for k, v in landscape["minimum"].items() if k != "loss")
        lowest = f"{_LOWEST.get(landscape['state'], 'lowest so far')} {loss} at {place}"
        parts.append(f"the same loss {loss} at all points" if landscape["constant"] else lowest)
    return parts


def _with_error(value: float, error: float | None) -> str:
    return value_with_error(value, math.nan if error is None else error)


def training_lines(training: dict[str, Any]) -> list[str]:
    """How far a training is, and what to give next."""
    head = " ".join(filter(None, (training["state"], training["function"] and f"({flat(training['function'])})")))
    parts = [head] if head else []
    counts = ((training["workers"], "worker"), (training["steps"], "step"), (training["epochs"], "epoch"))
    parts += [f"{count} {noun}{'' if count == 1 else 's'}" for count, noun in counts if count is not None]
    if training["loss_not_finite"]:
        parts.append(training["loss_not_finite"])
    elif training["loss"] is not None:
        parts.append(f"loss at its log's end {training['loss']:.4g}")
    if training["checkpoint"] is not None:
        parts.append(f"last checkpoint at step {training['checkpoint']}")
    elif training["state"]:
        parts.append("no checkpoint yet")
    lines = [f"training: {', '.join(parts)}"]
    if training["reason"]:
        lines.append(f"  {flat(training['reason'], 1000)}")
    return [*lines, f"  next: {training['next']}"] if training["next"] else lines


def _failure_lines(landscape: dict[str, Any]) -> list[str]:
    """A line for each failure: the task, the cause, how often and where it was tried."""
    return [
        f"{failure['task']}: {failure['cause']} ({failure['attempts']} tries, {_place(failure)})"
        for failure in landscape["failures"]
    ]


def _place(failure: dict[str, Any]) -> str:
    """Where a failure happened: the worker, and the host and node where they are recorded."""
    node = failure.get("node", "")
    return " ".join(filter(None, (failure["worker"], failure.get("host", ""), f"node {node[:8]}" if node else "")))


def _worker_lines(landscape: dict[str, Any]) -> list[str]:
    """A line for what each worker has done, while the job runs."""
    return [_worker_line(worker) for worker in landscape["by_worker"]] if landscape["state"] == "running" else []


def _worker_line(worker: dict[str, Any]) -> str:
    """What a worker has done, as far as the record says; another version may have recorded less."""
    where = f" on {worker['host']}" if worker["host"] else ""
    device = f" ({worker['device']})" if worker["device"] else ""
    counted = (("tasks", "tiles"), ("points", "points"))
    facts = [f"{worker[name]} {noun}" for name, noun in counted if worker[name] is not None]
    if worker["points"] is not None and worker["seconds"] is not None:
        rate = worker["points"] / worker["seconds"] if worker["seconds"] else 0
        facts.append(f"{rate:.3g} points/s")
    return f"{worker['name']}{where}{device}: {', '.join(facts) or 'unknown'}"


def validate_run(run: str) -> dict[str, Any]:
    """Read every chunk of every landscape; check checksums, schema, recorded digests, and the files of training.

    Raises:
        NotFoundError: there is no such run.
    """
    opened = open_run(run)
    landscapes = read_landscapes(opened.path, _validate, _unreadable_validation)
    problems: list[str] = []
    read_or_note(lambda: [opened.info], problems)
    problems += root_problems(opened.path)
    problems += read_or_note(lambda: _history_problems(opened.path), problems)
    trajectory = read_or_note(lambda: list(opened.trajectory.snapshots), problems)
    snapshots = [_validate_snapshot(snapshot) for snapshot in trajectory]
    damaged_snapshots = [cause for cause in snapshots if cause]
    damaged = sum(len(landscape["damaged"]) for landscape in landscapes) + len(damaged_snapshots)
    problems = list(dict.fromkeys(problems))  # run.json is read twice
    result = {
        "run": opened.path,
        "damaged": damaged + len(problems),
        "landscapes": landscapes,
        "damaged_snapshots": damaged_snapshots,
        "problems": problems,
    }
    return dict(finite(result))


def _unreadable_validation(name: str, cause: str) -> dict[str, Any]:
    unknown = {"schema_version": None, "digest": None, "tiles": 0, "missing_tiles": 0}
    return {"name": name, **unknown, "damaged": [cause], "refused": True}


def _history_problems(run: str) -> list[str]:
    bad = read_lines(run).damaged
    others = f" and {len(bad) - 5} more" if len(bad) > 5 else ""
    return [f"history.jsonl: lines that are no JSON object: {', '.join(map(str, bad[:5]))}{others}"] if bad else []


def _validate(store: LandscapeStore) -> dict[str, Any]:
    damaged, missing, tiles = list[str](), 0, 0
    for level in (store, *store.levels()):
        folder, prefix = (f"levels/{level.level}/", f"level {level.level}: ") if level is not store else ("", "")
        examined = level.examine()
        damaged += [f"{prefix}{problem}" for problem in level.problems()]
        damaged += [f"{folder}{array} chunk {'/'.join(map(str, index))}" for array, index in examined.damaged]
        damaged += [f"{folder}{array}: does not read" for array in level.check_constants()]
        damaged += store.check_directions() if level is store else []
        missing, tiles = missing + int(examined.missing_mask.sum()), tiles + level.tile_count
    if store.record.accuracy is not None:
        rounds = store.rounds().read()
        damaged += [
            f"rounds/{number} part {chunk}: does not read" for number, one in enumerate(rounds) for chunk in one.damaged
        ]
        if len(rounds) < store.record.accuracy.rounds:
            damaged.append(f"rounds/{len(rounds)}: does not read; it and those after it are computed again")
        tiles += sum(one.plan.chunks for one in rounds)
        missing += sum(one.missing for one in rounds)
    return {
        "name": store.name,
        "schema_version": store.record.schema_version,
        "digest": store.record.digest,
        "tiles": tiles,
        "missing_tiles": missing,
        "damaged": damaged,
        "refused": bool(store.refusal),
    }


def _validate_snapshot(snapshot: Any) -> str | None:
    try:
        snapshot.load()
    except StoreError:
        raise  # the store does not answer, which says nothing about the snapshot
    except Exception as error:
        return flat(str(error), 1000)
    return None


def validation_text(validation: dict[str, Any]) -> str:
    """The result of `validate_run` as lines."""
    lines = [f"run {validation['run']}", *validation["problems"]]
    for landscape in validation["landscapes"]:
        if not landscape["tiles"]:
            lines += [f"{flat(landscape['name'])}: {UNREADABLE}", *(f"  {line}" for line in landscape["damaged"])]
            continue
        verdict = f"{len(landscape['damaged'])} damaged" if landscape["damaged"] else "sound"
        there = landscape["tiles"] - landscape["missing_tiles"]
        lines.append(f"{flat(landscape['name'])}: {verdict}, {there} of {landscape['tiles']} tiles there")
        lines += [f"  {line}" for line in landscape["damaged"]]
    lines += [f"trajectory: {line}" for line in validation["damaged_snapshots"]]
    if any(landscape["damaged"] and not landscape["refused"] for landscape in validation["landscapes"]):
        lines.append("running the job again computes what is damaged anew, and nothing else")
    return printable("\n".join(lines))
