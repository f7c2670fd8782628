"""That a landscape is a convexity map: `convexity:` of a landscape."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from landscape.core.errors import shown
from landscape.core.validation import Count, Frozen
from landscape.job.directions.eigen import STEPS

DEFAULT_SIZE = 11  # points per axis: each costs some hundreds of forward passes
DEFAULT_SAMPLES = 256


class Convexity(Frozen):
    """The largest and the smallest eigenvalue of the Hessian at every point (Li et al. 2018, section 6)."""

    steps: Count = STEPS
    """Steps of the Lanczos method at each point at most, a product with the Hessian each."""


# As an editor checks it: `asked_convexity` takes true and false, too.
CONVEXITY_SCHEMA: dict[str, Any] = {"anyOf": [{"type": "boolean"}, {"type": "null"}, Convexity.model_json_schema()]}


def asked_convexity(value: Any) -> Any:
    """What a user wrote, as the fields of `Convexity`; None where none is asked for."""
    if value is None or value is False:
        return None
    if value is True:
        return Convexity()
    if isinstance(value, (Mapping, Convexity)):
        return value
    raise ValueError(f"must be true, false or {{steps: {STEPS}}}, not {shown(value)}")
