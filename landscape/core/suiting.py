"""What may be quantised under an option of an engine: a rule for each kind of option, with the words of its refusal."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from landscape.core.quantisation import Quantisation


@dataclass(frozen=True)
class Suiting:
    """Which quantisations an option goes with; None stands for none.

    Attributes:
        against: where it does not go, for messages.
    """

    allows: Callable[[Quantisation | None], bool]
    against: str = ""


ANYTHING = Suiting(lambda quantise: True)
# Outputs are summed as though weights were linear in the coordinates, which rounded ones are not.
NOTHING = Suiting(lambda quantise: quantise is None, "where anything is quantised")
# A kernel that takes over a layer's call does not round its input.
WEIGHTS = Suiting(lambda quantise: quantise is None or not quantise.activations, "where activations are quantised")
INTEGERS = Suiting(
    lambda quantise: quantise is not None and quantise.is_int8,
    "where not both weights and activations are quantised to 8 bits",
)
