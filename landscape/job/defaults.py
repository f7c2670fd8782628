"""What a landscape stood for under earlier defaults: one that was begun then is gone on with as it was."""

from __future__ import annotations

from landscape.core.validation import RangesOrAuto
from landscape.job.directions.base import DirectionSpec, Range
from landscape.job.landscape import Landscape

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
