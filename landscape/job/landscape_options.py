"""How a landscape is quantised, as a user writes it: `quantise:` of a landscape or of a job."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, WithJsonSchema, field_validator, model_validator

from landscape.core.errors import shown
from landscape.core.quantisation import MOST_BITS, Quantisation
from landscape.core.validation import Frozen, between

NO_CURVATURE = (
    "convexity must be left out where weights are rounded: the loss then moves in steps, between which its second "
    "derivatives are zero"
)
GEOMETRY = ("origin", "directions", "trajectory", "paths", "axes", "plane", "curve", "size", "range")

Bits = Annotated[
    int, BeforeValidator(between(1, MOST_BITS)), WithJsonSchema({"type": "integer", "minimum": 1, "maximum": MOST_BITS})
]


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"must be true or false, not {shown(value)}")
    return value


Flag = Annotated[bool, BeforeValidator(_flag)]


class Quantise(Frozen):
    """Weights, and inputs of layers, rounded to a few bits at every point, as quantisation after training does."""

    bits: Bits
    """Of a weight and of an activation, 1 to 16; weights of one bit are the mean size of their row, or minus that."""
    scheme: Literal["per-channel", "per-tensor"] = "per-channel"
    """Whether the weights of each output channel have a scale of their own, or those of a tensor share one."""
    weights: Flag = True
    """Whether weights are rounded: those of two dimensions or more, without normalisation layers."""
    activations: Annotated[Literal["calibrated"] | None, WithJsonSchema({"enum": ["calibrated", False, None]})] = None
    """`calibrated`: the inputs of linear layers and convolutions are rounded too, per tensor, over the range that they
    have at the origin before anything is rounded; default: not.
    """
    scale: Literal["point", "origin"] = "point"
    """Whether the scales of weights are those of the weights at each point, or at the origin for all points."""

    @field_validator("activations", mode="before")
    @classmethod
    def _activations(cls, value: Any) -> Any:
        return None if value is False else value

    @model_validator(mode="after")
    def _something(self) -> Self:
        if not self.weights and self.activations is None:
            raise ValueError("must round weights or activations, not neither of them; write false to round nothing")
        return self

    @property
    def value(self) -> Quantisation:
        """What the evaluation is told."""
        return Quantisation(self.bits, self.scheme, self.weights, self.activations is not None, self.scale)


# As an editor checks it: `asked_quantise` takes false, too.
QUANTISE_SCHEMA: dict[str, Any] = {"anyOf": [{"const": False}, {"type": "null"}, Quantise.model_json_schema()]}


def asked_quantise(value: Any) -> Any:
    """What a user wrote, as the fields of `Quantise`; None where nothing is to be rounded."""
    if value is None or value is False:
        return None
    if isinstance(value, (Mapping, Quantise)):
        return value
    raise ValueError(f"must be false, or such as {{bits: 8}}, not {shown(value)}")


def refuse_with_like(given: Mapping[str, Any]) -> None:
    """Refuse a landscape that is like another one, and says itself what it takes from that.

    Raises:
        ValueError: names the first such field.
    """
    both = next((name for name in GEOMETRY if given.get("like") is not None and given.get(name) is not None), None)
    if both is not None:
        raise ValueError(
            f"like and {both} exclude each other: leave out {both}, which is that of {shown(given['like'])}"
        )
