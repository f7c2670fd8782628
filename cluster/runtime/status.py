"""The state of a run: what is done, missing and failed, and whether every chunk of it is sound. Only reads."""

from __future__ import annotations

from typing import Any

from cluster.runtime.console import seconds_text
from landscape.core.errors import StoreError, flat, printable
from landscape.core.lock import driver_alive
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
    all_read,
    each_landscape,
    finite,
    landscape_status,
    or_note,
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
    trajectory = or_note(lambda: [opened.trajectory], problems)
    ends = or_note(lambda: [log_end(opened.path)], problems)
    last = [snapshot for each in trajectory for snapshot in each.snapshots[-1:]]
    found = {
        "run": opened.path,
        "driver": alive,
        "training": next(iter(or_note(lambda: [training_state(opened.path, end) for end in ends], problems)), None),
        "snapshots": [number for each in trajectory for number in each.numbers],
        "unit": trajectory[0].unit if trajectory else None,
        "went_on_to": next((went_on_to(end, snapshot) for end in ends for snapshot in last), "") or None,
        "landscapes": each_landscape(opened.path, lambda store: landscape_status(store, alive), unreadable_status),
        "problems": list(dict.fromkeys(problems)),  # run.json is read twice
    }
    return dict(finite(found))


def is_readable(status: dict[str, Any]) -> bool:
    """Whether everything that a status asked for could be read."""
    return all_read(status["problems"], status["landscapes"])


def status_text(status: dict[str, Any]) -> str:
    """The status as aligned lines."""
    lines = [f"run {status['run']}", *status["problems"]]
    if status["training"]:
        lines += training_lines(status["training"])
    if status["snapshots"]:
        numbers, plural = status["snapshots"], "s" * (len(status["snapshots"]) > 1)
        lines.append(f"trajectory: {len(numbers)} snapshot{plural}, {status['unit']}{plural} {ranges(numbers)}")
        if status["went_on_to"]:
            lines[-1] += f"; training went on to {status['went_on_to']}, which no snapshot has"
    width = max((len(flat(each["name"])) for each in status["landscapes"]), default=0)
    for each in status["landscapes"]:
        if each["state"] == UNREADABLE:
            lines.append(f"{flat(each['name']):{width}}  {UNREADABLE}: {'; '.join(each['problems'])}")
            continue
        parts = [f"{each['name']:{width}}  {each['state']:11}  {each['done']}/{each['points']} points"]
        if each["path_points"]:
            of = f"s of {listed}" if (listed := ", ".join(each["paths"])) else ""
            where = f"on the path{of}, beside the grid"
            parts[0] += f" ({each['path_points']} of them {where})"
        if each["levels"]:
            finer = ", ".join(f"{level['points']} at level {level['level']}" for level in each["levels"])
            parts[0] += f" (refined: {finer})"
        if each["rate"] and each["missing"]:
            parts.append(f"{each['rate']:.3g} points/s")
        if each["eta_seconds"] is not None:
            parts.append(f"ETA {seconds_text(each['eta_seconds'])}")
        if each["quantised"]:
            parts.append(each["quantised"])
        error = (each["precision_error"] or {}).get("max_rel_error")
        if error is not None:
            parts.append(f"{each['precision']} within {100 * error:.2g} % of float32")
        if each["not_finite"]:
            parts.append(f"{each['not_finite']} not finite")
        if each["failed"]:
            parts.append(f"{each['failed']} given up")
        if each["state"] == DAMAGED:
            parts.append(unreadable_in_words(each["unreadable"], flat(status["run"])))
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
            place = ", ".join(f"{k} {v:.3g}" for k, v in each["minimum"].items() if k != "loss")
            lowest = f"{_LOWEST.get(each['state'], 'lowest so far')} {each['minimum']['loss']:.4g} at {place}"
            parts.append(f"the same loss {each['minimum']['loss']:.4g} at all points" if each["constant"] else lowest)
        own = each["own_model"] or {}
        parts += ["not compared with your own model"] if own.get("state") == "not compared" else []
        lines.append(", ".join(parts))
        accepted = [f"accepted: {own['text']}"] if own.get("state") == "accepted" else []
        below = (*accepted, *each["problems"], *_failure_lines(each), *_worker_lines(each))
        lines += [f"{'':{width}}  {flat(line, 1000)}" for line in below]
    if not status["landscapes"]:
        lines.append("no landscapes yet")
    inspected = [each for each in status["landscapes"] if each["engine"]]  # no network of an imported one is known
    grey = next((each for each in inspected if each["not_finite"] and not each["missing"]), None)
    if grey is not None:
        lines.append(f"why not finite: {inspect_command(status['run'], grey['name'])}")
    same = next((each for each in inspected if each["constant"]), None)
    if same is not None:
        axes = len(same["minimum"]) - 1  # beside the loss
        lines.append(f"why the same loss: {inspect_command(status['run'], same['name'], axes)}")
    return printable("\n".join(lines))


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
    if landscape["state"] != "running":
        return []
    return [_worker_line(worker) for worker in landscape["by_worker"]]


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
    found = each_landscape(opened.path, _validate, _unreadable_validation)
    problems: list[str] = []
    or_note(lambda: [opened.info], problems)
    problems += root_problems(opened.path)
    problems += or_note(lambda: _history_problems(opened.path), problems)
    trajectory = or_note(lambda: list(opened.trajectory.snapshots), problems)
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
    damaged = store.problems()
    examined = store.examine()
    damaged += [f"{array} chunk {'/'.join(map(str, index))}" for array, index in examined.damaged]
    damaged += [f"{array}: does not read" for array in store.check_constants()]
    damaged += store.check_directions()
    missing, tiles = int(examined.missing_mask.sum()), store.tile_count
    for level in store.levels():
        of_level = level.examine()
        damaged += [f"level {level.level}: {problem}" for problem in level.problems()]
        damaged += [
            f"levels/{level.level}/{array} chunk {'/'.join(map(str, index))}" for array, index in of_level.damaged
        ]
        damaged += [f"levels/{level.level}/{array}: does not read" for array in level.check_constants()]
        missing, tiles = missing + int(of_level.missing_mask.sum()), tiles + level.tile_count
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
