"""The landscape of a record, its snapshots named by numbers: its runs may have trained on since."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from landscape.core.validation import OF_RUN
from landscape.surface.record import Record


def spec_as_computed(record: Record) -> dict[str, Any]:
    """The fields of the landscape in its job; `all`, `last` and `first` are replaced by the recorded numbers."""
    assert record.job is not None
    spec, identity = dict(record.job.landscapes[0]), {} if record.identity is None else record.identity.whole
    if isinstance(spec.get("directions"), list):
        spec["directions"] = _directions(spec["directions"], identity.get("directions"))
    if spec.get("trajectory") == "all":
        listed = (each.get("trajectory") for each in spec.get("directions", ()) if isinstance(each, Mapping))
        spec["trajectory"] = next(listed, "all")
    if isinstance(spec.get("paths"), list):
        spec["paths"] = _paths(spec["paths"], identity.get("paths"))
    meant = {name: _by_number(name, number) for name, number in record.snapshots.items()}
    if record.origin_step is not None:
        meant |= {name: record.origin_step for name in ("first", "last") if spec.get("origin") == name}
        spec["origin"] = record.origin_step
    return {key: _replaced(key, value, meant) for key, value in spec.items()}


def _directions(axes: Sequence[Any], recorded: Any) -> list[Any]:
    """The directions; principal components of `all` snapshots list their numbers."""
    return [
        {**axis, "trajectory": _numbers(part.get("snapshots")) or "all"}
        if isinstance(axis, Mapping) and axis.get("trajectory") == "all" and isinstance(part, Mapping)
        else axis
        for axis, part in _beside(axes, recorded)
    ]


def _paths(paths: Sequence[Any], recorded: Any) -> list[Any]:
    """The paths, each with the numbers of its snapshots."""
    return [
        {**path, "snapshots": _numbers(part) or path.get("snapshots", "all")} if isinstance(path, Mapping) else path
        for path, part in _beside(paths, recorded)
    ]


def _beside(listed: Sequence[Any], recorded: Any) -> list[tuple[Any, Any]]:
    """Each element of a list with its part of an identity; with None where the lengths differ."""
    parts = recorded if isinstance(recorded, list) and len(recorded) == len(listed) else [None] * len(listed)
    return list(zip(listed, parts, strict=True))


def _numbers(digests: Any) -> list[int]:
    """The numbers of the snapshots in an identity; none where it is malformed."""
    if not isinstance(digests, Mapping) or not all(isinstance(key, str) and key.isdecimal() for key in digests):
        return []
    return sorted(map(int, digests))


def _by_number(name: str, number: int) -> int | str:
    """The reference by number of what `last` or RUN@last stood for.

    >>> _by_number("last", 12), _by_number("runs/sgd@last", 12)
    (12, 'runs/sgd@12')
    """
    match = OF_RUN.fullmatch(name)
    return number if match is None else f"{match[1]}@{number}"


def _replaced(key: str, value: Any, meant: Mapping[str, int | str]) -> Any:
    """A field of a landscape or of a direction, its references replaced by numbers."""
    if key in ("origin", "target"):
        return meant.get(value, value) if isinstance(value, str) else value
    if key in ("plane", "models") and isinstance(value, (list, tuple)):
        return [meant.get(each, each) if isinstance(each, str) else each for each in value]
    if key == "directions" and isinstance(value, (list, tuple)):
        return [
            {name: _replaced(name, part, meant) for name, part in each.items()} if isinstance(each, Mapping) else each
            for each in value
        ]
    return value
