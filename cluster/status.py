"""What is done, missing and failed in a run, and whether every chunk of it is sound. Reads only."""

from __future__ import annotations

from typing import Any

from cluster.console import seconds_text
from landscape.errors import StoreError
from landscape.lock import driver_alive
from landscape.snapshots import ranges
from landscape.spec import digest
from landscape.store import LandscapeStore, landscape_names
from landscape.surface import NOT_COMPUTED, QUARANTINED, open_run

MOST_TILES = 10_000  # whose lowest loss is looked for: that reads one more chunk of each


def run_status(run: str) -> dict[str, Any]:
    """The state of every landscape of a run.

    Raises:
        NotFoundError: there is no such run.
    """
    opened = open_run(run)
    trajectory = opened.trajectory
    alive = driver_alive(opened.path)
    return {
        "run": opened.path,
        "driver": alive,
        "snapshots": list(trajectory.numbers),
        "unit": trajectory.unit,
        "landscapes": [
            _landscape_status(LandscapeStore.open(opened.path, name), alive) for name in landscape_names(opened.path)
        ],
    }


def _landscape_status(store: LandscapeStore, alive: bool) -> dict[str, Any]:
    """Counted from the committed status of the points, not from what the driver last said."""
    progress = dict(store.attributes.get("progress", {}))
    counts = store.counts()
    missing, failed = counts[NOT_COMPUTED], counts[QUARANTINED]
    finished = "partial" if failed else "complete"
    state = ("running" if alive else "interrupted") if missing else finished
    rate = progress.get("rate") or 0.0
    running = state == "running"
    return {
        "name": store.name,
        "state": state,
        "points": int(sum(counts)),
        "done": int(counts[1] + counts[2]),
        "not_finite": int(counts[2]),
        "missing": int(missing),
        "failed": int(failed),
        "rate": rate,
        "eta_seconds": missing / rate if running and rate else None,
        "seconds": progress.get("seconds"),
        "engine": store.attributes.get("plan", {}).get("engine"),
        "precision": store.attributes.get("precision"),
        "precision_error": store.attributes.get("precision_error"),
        "workers": progress.get("workers"),
        "by_worker": progress.get("by_worker", []),
        "reduced_batches": progress.get("reduced_batches", {}),
        "retries": progress.get("retries", 0),
        "updated": progress.get("updated"),
        "minimum": store.minimum() if store.tile_count <= MOST_TILES else {},
        "origin_loss": store.attributes.get("origin_loss"),
        "origin_loss_stderr": store.attributes.get("origin_loss_stderr"),
        "failures": list(store.attributes.get("failures", [])),
    }


def status_text(status: dict[str, Any]) -> str:
    """The status as aligned lines."""
    lines = [f"run {status['run']}"]
    if status["snapshots"]:
        numbers = status["snapshots"]
        lines.append(f"trajectory: {len(numbers)} snapshots, {status['unit']}s {ranges(numbers)}")
    width = max((len(each["name"]) for each in status["landscapes"]), default=0)
    for each in status["landscapes"]:
        parts = [f"{each['name']:{width}}  {each['state']:11}  {each['done']}/{each['points']} points"]
        if each["rate"] and each["missing"]:
            parts.append(f"{each['rate']:.3g} points/s")
        if each["eta_seconds"] is not None:
            parts.append(f"ETA {seconds_text(each['eta_seconds'])}")
        error = (each["precision_error"] or {}).get("max_rel_error")
        if error is not None:
            parts.append(f"{each['precision']} within {100 * error:.2g} % of float32")
        if each["not_finite"]:
            parts.append(f"{each['not_finite']} not finite")
        if each["failed"]:
            parts.append(f"{each['failed']} given up")
        if each["origin_loss"] is not None:
            error = each["origin_loss_stderr"]
            within = "" if error is None else f" ± {2 * error:.2g}"
            parts.append(f"loss at the origin {each['origin_loss']:.5g}{within}")
        if each["minimum"]:
            place = ", ".join(f"{k} {v:.3g}" for k, v in each["minimum"].items() if k != "loss")
            parts.append(f"lowest loss {each['minimum']['loss']:.4g} at {place}")
        lines.append(", ".join(parts))
        lines += [f"{'':{width}}  {line}" for line in (*_failure_lines(each), *_worker_lines(each))]
    if not status["landscapes"]:
        lines.append("no landscapes yet")
    return "\n".join(lines)


def _failure_lines(landscape: dict[str, Any]) -> list[str]:
    """Task, cause, how often and where it was tried."""
    return [
        f"{each['task']}: {each['cause']} ({each['attempts']} tries, {' '.join(filter(None, _place(each)))})"
        for each in landscape["failures"]
    ]


def _place(failure: dict[str, Any]) -> tuple[str, str, str]:
    node = failure.get("node", "")
    return failure["worker"], failure.get("host", ""), f"node {node[:8]}" if node else ""


def _worker_lines(landscape: dict[str, Any]) -> list[str]:
    """What each worker has done, while they are at it."""
    if landscape["state"] != "running":
        return []
    return [
        f"{each['name']} on {each['host']} ({each['device']}): {each['tasks']} tiles, {each['points']} points, "
        f"{each['points'] / each['seconds'] if each['seconds'] else 0:.3g} points/s"
        for each in landscape["by_worker"]
    ]


def validate_run(run: str) -> dict[str, Any]:
    """Read every chunk of every landscape; check checksums, schema and recorded digests.

    Raises:
        NotFoundError: there is no such run.
    """
    opened = open_run(run)
    found = [_validate(LandscapeStore.open(opened.path, name)) for name in landscape_names(opened.path)]
    snapshots = [_validate_snapshot(opened.trajectory.snapshot(number)) for number in opened.trajectory.numbers]
    damaged = sum(len(each["damaged"]) for each in found) + sum(each is not None for each in snapshots)
    return {
        "run": opened.path,
        "damaged": damaged,
        "landscapes": found,
        "damaged_snapshots": [each for each in snapshots if each],
    }


def _validate(store: LandscapeStore) -> dict[str, Any]:
    examined = store.examine()
    damaged = [f"{array} chunk {'/'.join(map(str, index))}" for array, index in examined.damaged]
    damaged += [f"{array}: does not read" for array in store.check_constants()]
    if digest(store.attributes["identity"]) != store.attributes["digest"]:
        damaged.append("digest: does not match the recorded identity")
    damaged += store.check_directions()
    return {
        "name": store.name,
        "schema_version": store.attributes["schema_version"],
        "digest": store.attributes["digest"],
        "tiles": store.tile_count,
        "missing_tiles": int(examined.missing_mask.sum()),
        "damaged": damaged,
    }


def _validate_snapshot(snapshot: Any) -> str | None:
    try:
        snapshot.load()
    except StoreError:
        raise  # no answer says nothing of the snapshot
    except Exception as error:
        return str(error)
    return None


def validation_text(found: dict[str, Any]) -> str:
    lines = [f"run {found['run']}"]
    for each in found["landscapes"]:
        verdict = f"{len(each['damaged'])} damaged" if each["damaged"] else "sound"
        lines.append(
            f"{each['name']}: {verdict}, {each['tiles'] - each['missing_tiles']} of {each['tiles']} tiles there"
        )
        lines += [f"  {line}" for line in each["damaged"]]
    lines += [f"trajectory: {line}" for line in found["damaged_snapshots"]]
    if found["damaged"]:
        lines.append("running the job again computes what is damaged anew, and nothing else")
    return "\n".join(lines)
