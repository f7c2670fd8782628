"""That a landscape tells which layer breaks at each of its points: `layers:` of a landscape."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field, WithJsonSchema, field_validator

from landscape.core.errors import JobError, shown
from landscape.core.validation import Frozen
from landscape.model.layer_rules import RULES, asked_rules
from landscape.surface.record_entries import LAYER_STATISTICS

NEVER = ("gradients", "changes")  # what a point has none of
OF_POINTS = {name: rule.threshold for name, rule in RULES.items() if rule.target not in NEVER}

RULES_SCHEMA = {"anyOf": [{"type": "array", "items": {"type": "string"}}, {"type": "object"}]}


class Layers(Frozen):
    """Which layer breaks first at every point and by which rule; and statistics of each layer, where they are asked."""

    rules: Annotated[dict[str, float], WithJsonSchema(RULES_SCHEMA)] = Field(default_factory=lambda: dict(OF_POINTS))
    """Names of rules, or {name: threshold}; default: all those of weights and outputs."""
    statistics: tuple[str, ...] = ()
    """Of each layer, as further observables: min, max, mean, spread, abs_mean, zeros, not_finite; default: none."""

    @field_validator("rules", mode="before")
    @classmethod
    def _asked(cls, value: Any) -> Any:
        try:
            asked = asked_rules("rules", value)
        except JobError as error:
            raise ValueError(str(error).removeprefix("rules").removeprefix(": ").removeprefix(".")) from None
        looked_at = {name: threshold for name, threshold in asked.items() if name in OF_POINTS}
        if not looked_at:
            raise ValueError(f"must name rules of weights or outputs, not {shown(value)}; others need a training")
        return looked_at

    @field_validator("statistics", mode="before")
    @classmethod
    def _known(cls, value: Any) -> Any:
        names = [value] if isinstance(value, str) else value
        if names is not None and not isinstance(names, (list, tuple)):
            raise ValueError(f"must list some of {', '.join(LAYER_STATISTICS)}, not {shown(value)}")
        wrong = [name for name in names or () if name not in LAYER_STATISTICS]
        if wrong:
            raise ValueError(f"must be of {', '.join(LAYER_STATISTICS)}, not {shown(wrong[0])}")
        return tuple(name for name in LAYER_STATISTICS if name in (names or ()))


# As an editor checks it: `asked_layers` takes true and false, too.
LAYERS_SCHEMA: dict[str, Any] = {"anyOf": [{"type": "boolean"}, {"type": "null"}, Layers.model_json_schema()]}


def asked_layers(value: Any) -> Any:
    """What a user wrote, as the fields of `Layers`; None where none is asked for."""
    if value is None or value is False:
        return None
    if value is True:
        return Layers()
    if isinstance(value, (Mapping, Layers)):
        return value
    raise ValueError(f"must be true, false or {{statistics: [abs_mean]}}, not {shown(value)}")
