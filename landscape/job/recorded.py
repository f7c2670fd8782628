"""The landscape of a record with its snapshots by their numbers, as its runs may have trained on since."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from landscape.core.validation import OF_RUN, RangesOrAuto
from landscape.job.directions.base import DirectionSpec, Range
from landscape.job.landscape import Landscape
from landscape.surface.record import Record


def spec_as_computed(record: Record) -> dict[str, Any]:
    """The fields of the landscape's own job, in which `all`, `last` and `first` mean what they meant then.

    Of a landscape of a version that did not record these numbers the words stay, but for its origin.
    """
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
    """The directions, of which components of `all` snapshots list these."""
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
    """Each of a list with what an identity says of it; with None where that has another length."""
    parts = recorded if isinstance(recorded, list) and len(recorded) == len(listed) else [None] * len(listed)
    return list(zip(listed, parts, strict=True))


def _numbers(digests: Any) -> list[int]:
    """The numbers of snapshots whose digests an identity holds; none where it is malformed."""
    if not isinstance(digests, Mapping) or not all(isinstance(key, str) and key.isdecimal() for key in digests):
        return []
    return sorted(map(int, digests))


def _by_number(name: str, number: int) -> int | str:
    """The snapshot that `last` or RUN@last stood for.

    >>> _by_number("last", 12), _by_number("runs/sgd@last", 12)
    (12, 'runs/sgd@12')
    """
    match = OF_RUN.fullmatch(name)
    return number if match is None else f"{match[1]}@{number}"


def _replaced(key: str, value: Any, meant: Mapping[str, int | str]) -> Any:
    """A field of a landscape, or of a direction of it, with the references in it by their numbers."""
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


# ----------------------------------------------------------------------------------------------------
# What a landscape stood for under earlier defaults: one that was begun then is gone on with as it was.

DEFAULTS = 2  # the version of what a landscape means that leaves fields out
SIZE_IN_VERSION_1 = 40


def with_defaults_of(spec: Landscape, version: int) -> Landscape:
    """What a landscape stood for when `version` of the defaults filled in the fields that its job leaves out.

    Version 1 (0.1.0): 40 points per axis, a random direction that was written out ignored nothing, and a `towards`
    axis ran from -0.2 to 1.2 whether or not 0 and 1 were points of it.
    """
    if version >= DEFAULTS:
        return spec
    size = spec.size if "size" in spec.model_fields_set else (SIZE_IN_VERSION_1,) * len(spec.directions)
    directions = tuple(direction.under_defaults(version) for direction in spec.directions)
    return spec.model_copy(update={"size": size, "directions": directions, "range": _range_in_version_1(spec)})


def _range_in_version_1(spec: Landscape) -> RangesOrAuto | None:
    """The ranges of all axes where version 1 gave one of them another range than now; else as the job leaves them.

    They are left open too where an axis is fitted to the path.
    """
    if spec.range is not None or all(direction.version_1_range is None for direction in spec.directions):
        return spec.range
    limits = [_limits_in_version_1(direction) for direction in spec.directions]
    return None if None in limits else tuple(pair for pair in limits if pair is not None)


def _limits_in_version_1(direction: DirectionSpec) -> Range | None:
    return direction.version_1_range or direction.default_range
