"""How a landscape is quantised: the bits, the scheme, what is rounded, and where the scales come from."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

MOST_BITS = 16

Scheme = Literal["per-channel", "per-tensor"]
Scale = Literal["point", "origin"]


@dataclass(frozen=True)
class Quantisation:
    """What is rounded at every point of a landscape, and how. With the plan, it decides the bits of the values.

    Args:
        bits: those of a weight, and of an activation; 1 to 16.
        scheme: whether the weights of each output channel have a scale of their own, or those of a tensor share one.
        weights: whether weights are rounded.
        activations: whether the inputs of linear layers and convolutions are rounded, over their ranges at the origin.
        scale: `point` takes the scales from the weights at each point, as if that network were quantised; `origin`
            takes them from the weights at the origin, and cuts off weights beyond.
    """

    bits: int
    scheme: Scheme = "per-channel"
    weights: bool = True
    activations: bool = False
    scale: Scale = "point"

    @property
    def is_int8(self) -> bool:
        """Whether both weights and activations have 8 bits, as integer kernels take them."""
        return self.bits == 8 and self.weights and self.activations

    def record(self) -> dict[str, Any]:
        """The fields as they are recorded with a landscape."""
        return dict(vars(self))

    @classmethod
    def from_record(cls, record: Any) -> Quantisation:
        """The quantisation that `record` describes.

        Raises:
            TypeError, ValueError: it describes no quantisation of this version.
        """
        if not isinstance(record, Mapping):
            raise TypeError("quantise: must be an object")
        quantisation = cls(**record)
        flags = type(quantisation.weights) is bool and type(quantisation.activations) is bool
        words = quantisation.scheme in get_args(Scheme) and quantisation.scale in get_args(Scale)
        if type(quantisation.bits) is not int or not 1 <= quantisation.bits <= MOST_BITS or not flags or not words:
            raise ValueError("quantise: must be a quantisation of this version")
        return quantisation

    def __str__(self) -> str:
        """Such as `weights rounded to 4 bits per channel`."""
        bits = f"{self.bits} bit{'s' if self.bits > 1 else ''}"
        per = self.scheme.replace("-", " ")
        frozen = ", scales of the origin" if self.scale == "origin" and self.weights else ""
        if not self.weights:
            return f"activations rounded to {bits} per tensor"
        if self.activations:
            return f"weights rounded to {bits} {per} and activations per tensor{frozen}"
        return f"weights rounded to {bits} {per}{frozen}"


# ----------------------------------------------------------------------------------------------------
# What may be quantised under an option of an engine: a rule for each kind of option, and the words of its refusal.


@dataclass(frozen=True)
class Suiting:
    """Which quantisations an option goes with; None stands for none.

    Attributes:
        against: where the option cannot be used, in words.
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
