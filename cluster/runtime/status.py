"""The state of a run: what is done, missing and failed, and whether every chunk of it is sound. Only reads."""

from __future__ import annotations

from typing import Any

from landscape.core.errors import StoreError, flat, printable
from landscape.core.lock import driver_alive
from landscape.core.text import seconds_text
from landscape.core.validation import ranges
from landscape.model.history import log_end, read_lines, training_state, went_on_to
from landscape.model.layer_rules import inspect_command
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

# How the lowest loss is called by the state of its landscape; of one that is not whole, another may be lower.
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
    last = [snapshot for each in trajectory for snapshot in each.snapshots[-1:]]
    found = {
        "run": opened.path,
        "driver": alive,
        "training": next(
            iter(read_or_note(lambda: [training_state(opened.path, end) for end in ends], problems)), None
        ),
        "snapshots": [number for each in trajectory for number in each.numbers],
        "unit": trajectory[0].unit if trajectory else None,
        "went_on_to": next((went_on_to(end, snapshot) for end in ends for snapshot in last), "") or None,
        "landscapes": read_landscapes(opened.path, lambda store: landscape_status(store, alive), unreadable_status),
        "problems": list(dict.fromkeys(problems)),  # run.json is read twice
    }
    return dict(finite(found))


def is_readable(status: dict[str, Any]) -> bool:
    """Whether everything that a status asked for could be read."""
    return is_whole(status["problems"], status["landscapes"])


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


def _landscape_lines(each: dict[str, Any], width: int, run: str) -> list[str]:
    """A line for a landscape, and what there is to say of it below.

    Args:
        width: of the column of names.
    """
    if each["state"] == UNREADABLE:
        return [f"{flat(each['name']):{width}}  {UNREADABLE}: {'; '.join(each['problems'])}"]
    own = each["own_model"] or {}
    parts = [f"{each['name']:{width}}  {each['state']:11}  {_points_text(each)}", *_progress(each)]
    if each["state"] == DAMAGED:
        parts.append(unreadable_in_words(each["unreadable"], flat(run)))
    parts += _findings(each)
    parts += ["not compared with your own model"] if own.get("state") == "not compared" else []
    accepted = [f"accepted: {own['text']}"] if own.get("state") == "accepted" else []
    below = (*accepted, *each["problems"], *_failure_lines(each), *_worker_lines(each))
    return [", ".join(parts), *(f"{'':{width}}  {flat(line, 1000)}" for line in below)]


def _points_text(each: dict[str, Any]) -> str:
    """How many points are done, how many of them lie on paths, and at which levels it is refined."""
    text = f"{each['done']}/{each['points']} points"
    if each["path_points"]:
        of = f"s of {', '.join(each['paths'])}" if each["paths"] else ""
        text += f" ({each['path_points']} of them on the path{of}, beside the grid)"
    if each["levels"]:
        finer = ", ".join(f"{level['points']} at level {level['level']}" for level in each["levels"])
        text += f" (refined: {finer})"
    return text


def _progress(each: dict[str, Any]) -> list[str]:
    """How fast it is computed, with what precision, and what went wrong."""
    error = (each["precision_error"] or {}).get("max_rel_error")
    facts = (
        each["rate"] and each["missing"] and f"{each['rate']:.3g} points/s",
        each["eta_seconds"] is not None and f"ETA {seconds_text(each['eta_seconds'])}",
        each["quantised"],
        error is not None and f"{each['precision']} within {100 * error:.2g} % of float32",
        each["not_finite"] and f"{each['not_finite']} not finite",
        each["failed"] and f"{each['failed']} given up",
    )
    return [str(fact) for fact in facts if fact]


def _findings(each: dict[str, Any]) -> list[str]:
    """What the values say: the range that was found, the loss at the origin, the lowest loss."""
    parts = []
    if each["found_range"]:
        ends = ", ".join(f"{axis} ±{radius:g}" for axis, radius in each["found_range"].items())
        parts.append(f"range found: {ends}")
    if each["origin_loss"] is not None:
        error = each["origin_loss_stderr"]
        within = "" if error is None else f" ± {2 * error:.2g} (2 s.e.)"
        which = f" ({flat(each['origin'])})" if each["origin"] else ""
        parts.append(f"loss at the origin{which} {each['origin_loss']:.5g}{within}")
        if each["no_better_than_guessing"]:
            parts.append(f"no better than guessing ({each['guessing']:.4g})")
    if each["minimum"]:
        loss = f"{each['minimum']['loss']:.4g}"
        place = ", ".join(f"{k} {v:.3g}" for k, v in each["minimum"].items() if k != "loss")
        lowest = f"{_LOWEST.get(each['state'], 'lowest so far')} {loss} at {place}"
        parts.append(f"the same loss {loss} at all points" if each["constant"] else lowest)
    return parts


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
        f"{each['task']}: {each['cause']} ({each['attempts']} tries, {' '.join(filter(None, _place(each)))})"
        for each in landscape["failures"]
    ]


def _place(failure: dict[str, Any]) -> tuple[str, str, str]:
    node = failure.get("node", "")
    return failure["worker"], failure.get("host", ""), f"node {node[:8]}" if node else ""


def _worker_lines(landscape: dict[str, Any]) -> list[str]:
    """A line for what each worker has done, while the job runs."""
    return [_worker_line(worker) for worker in landscape["by_worker"]] if landscape["state"] == "running" else []


def _worker_line(worker: dict[str, Any]) -> str:
    """What a worker has done, as far as the record says; another version may have recorded less of it."""
    where = f" on {worker['host']}" if worker["host"] else ""
    device = f" ({worker['device']})" if worker["device"] else ""
    counted = (("tasks", "tiles"), ("points", "points"))
    done = [f"{worker[name]} {noun}" for name, noun in counted if worker[name] is not None]
    if worker["points"] is not None and worker["seconds"] is not None:
        rate = worker["points"] / worker["seconds"] if worker["seconds"] else 0
        done.append(f"{rate:.3g} points/s")
    return f"{worker['name']}{where}{device}: {', '.join(done) or 'unknown'}"


def validate_run(run: str) -> dict[str, Any]:
    """Read every chunk of every landscape; check checksums, schema, recorded digests, and what training left.

    Raises:
        NotFoundError: there is no such run.
    """
    opened = open_run(run)
    found = read_landscapes(opened.path, _validate, _unreadable_validation)
    problems: list[str] = []
    read_or_note(lambda: [opened.info], problems)
    problems += root_problems(opened.path)
    problems += read_or_note(lambda: _history_problems(opened.path), problems)
    trajectory = read_or_note(lambda: list(opened.trajectory.snapshots), problems)
    snapshots = [_validate_snapshot(each) for each in trajectory]
    damaged = sum(len(each["damaged"]) for each in found) + sum(each is not None for each in snapshots)
    problems = list(dict.fromkeys(problems))  # run.json is read twice
    result = {
        "run": opened.path,
        "damaged": damaged + len(problems),
        "landscapes": found,
        "damaged_snapshots": [each for each in snapshots if each],
        "problems": problems,
    }
    return dict(finite(result))


def _unreadable_validation(name: str, cause: str) -> dict[str, Any]:
    unknown = {"schema_version": None, "digest": None, "tiles": 0, "missing_tiles": 0}
    return {"name": name, **unknown, "damaged": [cause], "refused": True}


def _history_problems(run: str) -> list[str]:
    bad = read_lines(run).damaged
    more = f" and {len(bad) - 5} more" if len(bad) > 5 else ""
    return [f"history.jsonl: lines that are no JSON object: {', '.join(map(str, bad[:5]))}{more}"] if bad else []


def _validate(store: LandscapeStore) -> dict[str, Any]:
    damaged, missing, tiles = list[str](), 0, 0
    for level in (store, *store.levels()):
        below, problem = (f"levels/{level.level}/", f"level {level.level}: ") if level is not store else ("", "")
        examined = level.examine()
        damaged += [f"{problem}{each}" for each in level.problems()]
        damaged += [f"{below}{array} chunk {'/'.join(map(str, index))}" for array, index in examined.damaged]
        damaged += [f"{below}{array}: does not read" for array in level.check_constants()]
        damaged += store.check_directions() if level is store else []
        missing, tiles = missing + int(examined.missing_mask.sum()), tiles + level.tile_count
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


def validation_text(found: dict[str, Any]) -> str:
    """The result of `validate_run` as lines."""
    lines = [f"run {found['run']}", *found["problems"]]
    for each in found["landscapes"]:
        if not each["tiles"]:
            lines += [f"{flat(each['name'])}: {UNREADABLE}", *(f"  {line}" for line in each["damaged"])]
            continue
        verdict = f"{len(each['damaged'])} damaged" if each["damaged"] else "sound"
        lines.append(
            f"{flat(each['name'])}: {verdict}, {each['tiles'] - each['missing_tiles']} of {each['tiles']} tiles there"
        )
        lines += [f"  {line}" for line in each["damaged"]]
    lines += [f"trajectory: {line}" for line in found["damaged_snapshots"]]
    if any(each["damaged"] and not each["refused"] for each in found["landscapes"]):
        lines.append("running the job again computes what is damaged anew, and nothing else")
    return printable("\n".join(lines))
