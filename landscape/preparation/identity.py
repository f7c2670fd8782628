"""The identity of a landscape: what decides its values, without what does not, such as tiles, workers and machine.

A job goes on with a landscape on disk only where the recorded identity is the same. Else the job is refused, and the
error says what changed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from landscape.errors import shown
from landscape.preparation.axes import axis_ranges
from landscape.preparation.context import LandscapeContext
from landscape.spec.job import Job


def identity_of(
    job: Job, context: LandscapeContext, samples: str, num_samples: int, observables: Sequence[str]
) -> dict[str, Any]:
    """The identity of one landscape of a job.

    Args:
        samples: the digest of the chosen samples, of which there are `num_samples`.
    """
    ranges = axis_ranges(context.spec)
    return {
        "origin": context.digest(context.reference),
        "directions": [direction.identity(context) for direction in context.axes],
        "coordinates": [[n, *(limits or ["fitted"])] for n, limits in zip(context.spec.size, ranges, strict=True)],
        "observables": list(observables),
        "num_samples": num_samples,
        "samples": samples,
        "seed": job.seed,
        "precision": job.precision,
        "batch_norm": job.batch_norm,
    }


def refusal(name: str, changed: Sequence[str], remedy: str) -> str:
    """The error of a job that contradicts the landscape on disk.

    Args:
        changed: a phrase per field, as `changes` returns them.
        remedy: what to do to go on.
    """
    return (
        f"landscape {shown(name)} was computed with another job; changed: {'; '.join(changed)}: "
        f"{remedy}, or give it another name or run"
    )


def changes(recorded: Mapping[str, Any], identity: Mapping[str, Any]) -> list[str]:
    """What differs between a recorded identity and this one, a phrase per field; empty where they agree.

    >>> changes({"seed": 0, "precision": "float32"}, {"seed": 1, "precision": "float32"})
    ['seed 0 to 1']
    """
    differ = [key for key, value in identity.items() if recorded.get(key) != value]
    if {"num_samples", "seed"} & set(differ):
        differ = [key for key in differ if key != "samples"]  # other samples follow from these two
    return [_change(key, recorded.get(key), identity[key]) for key in differ]


def _change(key: str, before: Any, now: Any) -> str:
    """What changed in one field of the identity, without digests, which say nothing to a person."""
    if key in ("origin", "samples"):
        return f"{key} (other {'weights' if key == 'origin' else 'data'})"
    if isinstance(before, list) and isinstance(now, list) and len(before) == len(now):
        parts = [
            f"axis {axis}: {_plain(old)} to {_plain(new)}"
            for axis, (old, new) in enumerate(zip(before, now, strict=True), 1)
            if old != new
        ]
        return f"{key} ({', '.join(parts)})"
    return f"{key} {_plain(before)} to {_plain(now)}"


def _plain(value: Any) -> str:
    """A recorded value for a person to read: the fields of a direction, a digest by its beginning."""
    if isinstance(value, Mapping):
        return " ".join(f"{k}={_plain(v)}" for k, v in value.items() if k != "kind") or "none"
    text = str(value)
    return text[:8] if len(text) == 64 and text.isalnum() else text
