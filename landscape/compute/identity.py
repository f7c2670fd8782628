"""The identity of a landscape: everything that decides its values; tiles, workers and machine are no part of it.

A job continues a landscape on disk only if the recorded identity is the same. Otherwise the job is refused, and the
error says what changed.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Collection, Mapping, Sequence
from typing import Any, get_args

from landscape.compute.axes_and_paths import axis_ranges
from landscape.compute.landscape_context import LandscapeContext
from landscape.core.errors import ComputedOtherwise, JobError, LandscapeError, quoted
from landscape.core.grid import as_written
from landscape.core.plan import BatchNorm, Plan, Precision
from landscape.core.validation import AUTO, ranges
from landscape.job.directions.kinds import KINDS
from landscape.job.job import Job
from landscape.job.landscape import Landscape
from landscape.model.snapshots import read_trajectory
from landscape.store.landscape import LandscapeStore

FOLLOW_SAMPLES = {kind.word() for kind in KINDS if kind.follows_samples}

SLACK = 1e-6  # of a step: how far rounding may have moved the end of a range


def identity_of(
    job: Job, context: LandscapeContext, samples: str, num_samples: int, observables: Sequence[str]
) -> dict[str, Any]:
    """The identity of one landscape of a job.

    Args:
        samples: the digest of the chosen samples, of which there are `num_samples`.
    """
    convexity = context.spec.convexity
    return {
        "origin": context.digest(context.reference),
        "directions": [direction.identity(context) for direction in context.axes],
        "coordinates": coordinates_asked(context.spec),
        "observables": list(observables),
        "num_samples": num_samples,
        "samples": samples,
        "seed": job.seed,
        "precision": job.precision,
        "batch_norm": job.batch_norm,
        **({"quantise": context.spec.quantise.value.record()} if context.spec.quantise else {}),
        **({} if convexity is None else {"convexity": convexity.model_dump(mode="json")}),
        **({} if context.spec.layers is None else {"layers": context.spec.layers.model_dump(mode="json")}),
        **({"paths": _paths(context)} if context.paths else {}),
        **({"accuracy": context.spec.accuracy.scale} if context.spec.accuracy else {}),
    }


def _paths(context: LandscapeContext) -> list[dict[str, str]]:
    """The digests of the snapshots of each path."""
    return [{str(snapshot.number): context.digest(snapshot) for snapshot in path.snapshots} for path in context.paths]


def coordinates_asked(spec: Landscape) -> list[list[Any]]:
    """Per axis its number of points and its range, in numbers or as a word."""
    if spec.finds_range:
        return [[size, AUTO] for size in spec.size]
    return [[size, *(ends or ["fitted"])] for size, ends in zip(spec.size, axis_ranges(spec), strict=True)]


def refusal_of_job(name: str, changed: Sequence[str], remedy: str) -> str:
    """The error of a job that contradicts the landscape on disk.

    Args:
        changed: a phrase per field, from `changes`.
        remedy: how to go on.
    """
    return (
        f"landscape {quoted(name)} was computed with another job; changed: {'; '.join(changed)}: "
        f"{remedy}, or give it another name or run"
    )


def refuse_another(stored: LandscapeStore, identity: Mapping[str, Any], job: Job) -> None:
    """Raises JobError for a landscape on disk with another identity; the message says what changed."""
    changed = changes(stored.identity.whole, identity)
    if changed:
        if job.extends is not None:
            raise JobError(
                f"extend: another extension of landscape {quoted(job.extends)} is under way ({'; '.join(changed)}); "
                f"finish it as it was begun, or drop it by {command_text('rm', job.run_path, stored.name)}"
            )
        raise ComputedOtherwise(refusal_of_job(stored.name, changed, remedy_of(stored, identity, job.run_path)))


def remedy_of(stored: LandscapeStore, identity: Mapping[str, Any], run: str) -> str:
    """How to resolve a difference between job and landscape: if possible by the command that extends it."""
    if not stored.record.has_check and stored.computed_point(lambda tile: True) is None:
        return f"none of it is computed yet: drop it by {command_text('rm', run, stored.name)}"
    recorded = stored.identity.whole
    differ = {key for key, value in identity.items() if recorded.get(key) != value}
    if remedy := (
        _remedy_of_less(stored, identity, differ)
        or _remedy_of_more_snapshots(stored, identity, differ)
        or _remedy_of_later_end(stored, differ, run)
    ):
        return remedy
    options = _options_that_extend(recorded, identity, differ)
    explained = {*options, "samples"} if "num_samples" in options else set(options)
    if options and not differ - explained and stored.record.moment_rows:
        words = [word for words in options.values() for word in words]
        return f"change it back, keep its values by {command_text('extend', run, stored.name, *words)}"
    finer = differ == {"coordinates"} and _is_finer(recorded.get("coordinates"), identity["coordinates"])
    refine = f", keep its values by {command_text('refine', run, stored.name)}" if finer else ""
    return f"change it back{refine}, compute it anew after {command_text('rm', run, stored.name)}"


FUNCTIONS = {"rm": "remove_landscape"}  # of a command in Python, where that has another name


def command_text(command: str, *words: str) -> str:
    """A command, with the function that does the same in Python."""
    return f"`{shlex.join(['landscape', command, *words])}` (`landscape.{FUNCTIONS.get(command, command)}`)"


def _is_finer(before: Any, now: Any) -> bool:
    """Whether coordinates [size, *ends] have the same ends as others, and more points on each axis."""
    if not isinstance(before, list) or len(before) != len(now):
        return False
    return all(old[1:] == new[1:] and old[0] < new[0] for old, new in zip(before, now, strict=True))


def _options_that_extend(
    recorded: Mapping[str, Any], identity: Mapping[str, Any], differ: Collection[str]
) -> dict[str, list[str]]:
    """The options of `landscape extend` for each field of the identity in which a job only asks for more."""
    options: dict[str, list[str]] = {}
    has, asks = recorded.get("num_samples"), identity["num_samples"]
    fixed = not any(kind in FOLLOW_SAMPLES for kind in _kinds(recorded.get("directions")))
    quantise = identity.get("quantise") or {}
    fixed = fixed and not {"convexity", "layers"} & set(identity) and not quantise.get("activations")
    if isinstance(has, int) and asks > has and recorded.get("batch_norm") == "eval" and fixed:
        options["num_samples"] = ["--samples", str(asks)]
    held, returned = set(recorded.get("observables", [])), set(identity["observables"])
    if held < returned:
        options["observables"] = [word for name in sorted(returned - held) for word in ("--observable", name)]
    if "coordinates" in differ and is_wider(recorded.get("coordinates"), identity["coordinates"]):
        ends = (as_written(end) for _, *ends in identity["coordinates"] for end in ends)
        options["coordinates"] = [f"--range={','.join(ends)}"]
    return options


def _kinds(directions: Any) -> list[Any]:
    """The kinds of the axes in an identity."""
    return [direction.get("kind") for direction in directions or [] if isinstance(direction, Mapping)]


def _remedy_of_less(stored: LandscapeStore, identity: Mapping[str, Any], differ: Collection[str]) -> str:
    """What to write in a job that asks for fewer samples than the landscape has; empty for other differences."""
    has, asks = stored.identity.whole.get("num_samples"), identity["num_samples"]
    if not isinstance(has, int) or has <= asks or set(differ) - {"num_samples", "samples"}:
        return ""
    return f"it holds more than the job asks for: write num_samples: {has} in the job"


def _remedy_of_more_snapshots(stored: LandscapeStore, identity: Mapping[str, Any], differ: Collection[str]) -> str:
    """The snapshots to list if trainings went on, so that `all` now means more; empty for other differences."""
    recorded, pairs = stored.identity.whole, dict[str, tuple[Any, Any]]()
    for k, pair in enumerate(zip(recorded.get("paths") or (), identity.get("paths", ()), strict=False), 1):
        pairs[f"of path {k}"] = pair
    for before, now in zip(recorded.get("directions") or (), identity["directions"], strict=False):
        pair = _snapshots_of(before), _snapshots_of(now)
        if pair[0] != pair[1]:  # other axes may have no snapshots, or the same ones
            pairs["of trajectory"] = pair
    grown = {whose: before for whose, (before, now) in pairs.items() if before != now}
    only_grown = bool(grown) and all(_has_more(*pairs[whose]) for whose in grown)
    if not only_grown or set(differ) - {"origin", "directions", "paths"}:
        return ""
    words = [f"{ranges(sorted(map(int, before)))} {whose}" for whose, before in grown.items()]
    words += [f"{name} was {number}" for name, number in stored.record.snapshots.items()]
    return f"training has gone on since; list the snapshots that it had ({'; '.join(words)})"


def _remedy_of_later_end(stored: LandscapeStore, differ: Collection[str], run: str) -> str:
    """The origin to name if the last snapshot is a later one by now; empty for other differences."""
    before, specs = stored.record.origin_step, stored.job.landscapes
    if set(differ) != {"origin"} or not specs:
        return ""
    origin, chosen = specs[0].get("origin"), specs[0].get("snapshots")
    other, _, which = str(origin).rpartition("@")
    if before is None and other and which == "last":
        then = str(stored.record.origin).rpartition(" ")[2]
        return f"the last snapshot of {other} was {then} then; write `origin: {other}@{then}` in the job"
    if before is None or (origin != "last" and not (origin is None and chosen in (None, "all"))):
        return ""
    trajectory = read_trajectory(run)
    if before not in trajectory.numbers or trajectory.numbers[-1] == before:
        return ""
    unit, last = trajectory.unit, trajectory.numbers[-1]
    return f"the last snapshot was {unit} {before} then, and is {unit} {last} now; write `origin: {before}` in the job"


def _snapshots_of(axis: Any) -> Any:
    """The digests of the snapshots that an axis is made from, by number; None for other kinds of axes."""
    snapshots = axis.get("snapshots") if isinstance(axis, Mapping) else None
    return snapshots if isinstance(snapshots, Mapping) else None


def _has_more(before: Any, now: Any) -> bool:
    """Whether `now` has all snapshots of `before`, with the same weights."""
    both = isinstance(before, Mapping) and isinstance(now, Mapping)
    return both and all(number.isdecimal() and now.get(number) == digest for number, digest in before.items())


def is_wider(before: Any, now: Any) -> bool:
    """Whether all axes reach at least as far as before, by whole steps of the same length."""
    if not isinstance(before, list) or not isinstance(now, list) or len(before) != len(now):
        return False
    for old, new in zip(before, now, strict=True):
        if len(old) != 3 or len(new) != 3:
            return False
        step, other = ((high - low) / (size - 1) for size, low, high in (old, new))
        steps = (old[1] - new[1]) / step, (new[2] - old[2]) / step
        whole = all(count > -SLACK and abs(count - round(count)) < SLACK for count in steps)
        if not (whole and math.isclose(step, other, rel_tol=1e-9)):
            return False
    return True


def changes(recorded: Mapping[str, Any], identity: Mapping[str, Any]) -> list[str]:
    """What differs between a recorded identity and this one, a phrase per field; empty where they agree.

    >>> changes({"seed": 0, "precision": "float32"}, {"seed": 1, "precision": "float32"})
    ['seed 0 to 1']
    """
    keys = dict.fromkeys([*identity, "quantise", "paths", "accuracy"])  # the last are in some identities only
    differ = [key for key in keys if recorded.get(key) != identity.get(key)]
    if {"num_samples", "seed"} & set(differ):
        differ = [key for key in differ if key != "samples"]  # other samples follow from these two
    return [_change(key, recorded.get(key), identity.get(key)) for key in differ]


def _change(key: str, before: Any, now: Any) -> str:
    """The change of one field of the identity, without digests."""
    if key in ("origin", "samples"):
        return f"{key} (other {'weights' if key == 'origin' else 'data'})"
    if key == "paths":
        return f"paths ({_change_of_paths(before or [], now or [])})"
    if isinstance(before, list) and isinstance(now, list) and len(before) == len(now):
        parts = [
            f"axis {axis}: {_change_of_axis(old, new)}"
            for axis, (old, new) in enumerate(zip(before, now, strict=True), 1)
            if old != new
        ]
        return f"{key} ({', '.join(parts)})"
    return f"{key} {_plain(before)} to {_plain(now)}"


def _change_of_axis(before: Any, now: Any) -> str:
    """The change of an axis; one word if only its snapshots changed."""
    old, new = _snapshots_of(before), _snapshots_of(now)
    if old is None or new is None or {**before, "snapshots": None} != {**now, "snapshots": None}:
        return f"{_plain(before)} to {_plain(now)}"
    return f"other {'weights' if set(old) == set(new) else 'snapshots'}"


def _change_of_paths(before: Any, now: Any) -> str:
    """The change of the paths' snapshots; paths are numbered from 1 in the order of the job."""
    if len(before) != len(now):
        return f"{len(before)} of them to {len(now)}"
    parts = [
        f"path {k}: other {'weights' if set(old) == set(new) else 'snapshots'}"
        for k, (old, new) in enumerate(zip(before, now, strict=True), 1)
        if old != new
    ]
    return ", ".join(parts)


def _plain(value: Any) -> str:
    """A recorded value as readable text: the fields of a direction, the beginning of a digest."""
    if isinstance(value, Mapping):
        return " ".join(f"{k}={_plain(v)}" for k, v in value.items() if k != "kind") or "none"
    text = str(value)
    return text[:8] if len(text) == 64 and text.isalnum() else text


def recorded_plan(stored: LandscapeStore) -> Plan:
    """The plan of a landscape on disk.

    Raises:
        LandscapeError: its record is damaged, or was written by a later version.
    """
    record = stored.plan.whole
    try:
        plan = Plan.from_record(record)
    except (TypeError, ValueError):
        plan = None
    if plan is None or not _is_sound(plan):
        raise LandscapeError(
            f"landscape {quoted(stored.name)}: its recorded plan {quoted(record)} is not one of this version; update "
            "the software, or give the landscape another name or run"
        )
    return plan


def _is_sound(plan: Plan) -> bool:
    """Whether every field has its type and range: a record on disk may hold anything."""
    counts = (plan.batch_size, plan.threads)
    return (
        all(type(number) is int for number in (*counts, plan.seed))
        and min(counts) >= 1
        and plan.device in ("cpu", "cuda")
        and plan.precision in get_args(Precision)
        and plan.reduction in ("blocks", "growing")
        and plan.batch_norm in get_args(BatchNorm)
        and type(plan.bfloat16_weights) is bool
    )
