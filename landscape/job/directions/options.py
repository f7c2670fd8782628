"""Options that several kinds of direction share: how a direction is scaled to the weights, and what it leaves still."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

# A new name here is computed in `scaling.normalise_direction`; those whose formula looks at one tensor at a time stand
# below too, so that a large direction is scaled without a float64 copy of the whole.
Normalise = Literal["filter", "layer", "model", "none"]
TENSOR_BY_TENSOR: tuple[Normalise, ...] = ("filter", "layer", "none")
Ignored = Literal["bias", "norm"]
Numbers = Literal["float32", "bfloat16"]
DEFAULT_IGNORE: tuple[Ignored, ...] = ("bias", "norm")  # of random directions, as in Li et al. 2018


def scaling_label(normalise: Normalise, ignore: Sequence[Ignored]) -> str:
    """How a direction was scaled, for its label.

    >>> scaling_label("filter", ("bias", "norm"))
    'filter-normalised, bias and norm ignored'
    """
    scaled = "not normalised" if normalise == "none" else f"{normalise}-normalised"
    return f"{scaled}, {' and '.join(ignore)} ignored" if ignore else scaled
