"""How fine a landscape is to become where its values ask for it: `refine:` of a landscape."""

from __future__ import annotations

import math
from typing import Annotated, Any

from pydantic import WithJsonSchema, field_validator

from landscape.core.errors import shown
from landscape.core.validation import Count, Frozen

DEFAULT_TOLERANCE = 0.01
SHARE: dict[str, Any] = {  # as an editor checks it
    "anyOf": [
        {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1},
        {"type": "string", "pattern": "^ *[0-9.eE+-]+ *%? *$"},
    ]
}


class Refine(Frozen):
    """Finer steps where interpolation between the points is off, chosen level by level from the values alone."""

    tolerance: Annotated[float, WithJsonSchema(SHARE)] = DEFAULT_TOLERANCE
    """By how much interpolation may be off, as a share of the relief (5th to 95th percentile), such as `1%` or 0.01."""
    points: Count | None = None
    """How many points the landscape may have in all, its own among them; default: as many as the tolerance asks for, in
    up to four levels, each of half the steps.
    """

    @field_validator("tolerance", mode="before")
    @classmethod
    def _share(cls, value: Any) -> float:
        try:
            percent = isinstance(value, str) and value.strip().endswith("%")
            share = float(value.strip()[:-1]) / 100 if percent else float(value)
        except (TypeError, ValueError):
            share = math.nan
        if isinstance(value, bool) or not 0 < share < 1:
            raise ValueError(f"must be a share of the relief between 0 and 1, such as 1% or 0.01, not {shown(value)}")
        return share
