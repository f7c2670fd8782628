"""Options of a landscape that are objects of their own, from `quantise` to `accuracy`."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, WithJsonSchema, field_validator, model_validator

from landscape.core.errors import JobError, quoted
from landscape.core.quantisation import MOST_BITS, Quantisation
from landscape.core.validation import Count, Frozen, between
from landscape.job.directions.file import STEPS
from landscape.model.layer_rules import RULES, asked_rules
from landscape.surface.record_entries import LAYER_STATISTICS

NO_CURVATURE = (
    "convexity must be left out where weights are rounded: the loss then moves in steps, between which its second "
    "derivatives are zero"
)
GEOMETRY = ("origin", "directions", "trajectory", "paths", "axes", "plane", "curve", "size", "range")


def switch(kind: type[Frozen], choices: str, *, plain: bool = False) -> BeforeValidator:
    """The rule of an option that is written as its fields, or as false or null for none.

    Args:
        choices: the values that may be written, in words for the error.
        plain: whether true means the option with its defaults.
    """

    def fields(value: Any) -> Any:
        if value is None or value is False:
            return None
        if plain and value is True:
            return kind()
        if isinstance(value, (Mapping, kind)):
            return value
        raise ValueError(f"must be {choices}, not {quoted(value)}")

    return BeforeValidator(fields)


def switch_schema(kind: type[Frozen], plain: dict[str, Any]) -> WithJsonSchema:
    """The JSON schema of an option with a `switch`; `plain` is the schema of its truth values."""
    return WithJsonSchema({"anyOf": [plain, {"type": "null"}, kind.model_json_schema()]})


Bits = Annotated[
    int, BeforeValidator(between(1, MOST_BITS)), WithJsonSchema({"type": "integer", "minimum": 1, "maximum": MOST_BITS})
]


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"must be true or false, not {quoted(value)}")
    return value


Flag = Annotated[bool, BeforeValidator(_flag)]


class Quantise(Frozen):
    """Weights, and inputs of layers, rounded to a few bits at every point, as quantisation after training does."""

    bits: Bits
    """Of a weight and of an activation, 1 to 16; weights of one bit are plus or minus the mean size of their row."""
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
        """The same as a value of the evaluation."""
        return Quantisation(self.bits, self.scheme, self.weights, self.activations is not None, self.scale)


MaybeQuantise = Annotated[
    Quantise | None, switch(Quantise, "false, or such as {bits: 8}"), switch_schema(Quantise, {"const": False})
]


def refuse_with_like(data: Mapping[str, Any]) -> None:
    """Refuse a landscape with `like` and a field that it takes from the other landscape.

    Raises:
        ValueError: names the first such field.
    """
    field = next((name for name in GEOMETRY if data.get("like") is not None and data.get(name) is not None), None)
    if field is not None:
        raise ValueError(
            f"like and {field} exclude each other: leave out {field}, which is that of {quoted(data['like'])}"
        )


# ----------------------------------------------------------------------------------------------------
# `convexity:` makes a landscape a convexity map.

DEFAULT_SIZE = 11  # points per axis: each costs some hundreds of forward passes
DEFAULT_SAMPLES = 256


class Convexity(Frozen):
    """The largest and the smallest eigenvalue of the Hessian at every point (Li et al. 2018, section 6)."""

    steps: Count = STEPS
    """Steps of the Lanczos method at each point at most, a product with the Hessian each."""


MaybeConvexity = Annotated[
    Convexity | None,
    switch(Convexity, f"true, false or {{steps: {STEPS}}}", plain=True),
    switch_schema(Convexity, {"type": "boolean"}),
]


# ----------------------------------------------------------------------------------------------------
# `layers:` finds the layer that breaks at each point.

NEVER = ("gradients", "changes")  # targets of rules that need a training
OF_POINTS = {name: rule.threshold for name, rule in RULES.items() if rule.target not in NEVER}

RULES_SCHEMA = {"anyOf": [{"type": "array", "items": {"type": "string"}}, {"type": "object"}]}


class Layers(Frozen):
    """Which layer breaks first at every point and by which rule; and statistics of each layer on request."""

    rules: Annotated[dict[str, float], WithJsonSchema(RULES_SCHEMA)] = Field(default_factory=lambda: dict(OF_POINTS))
    """Names of rules, or {name: threshold}; default: all those of weights and outputs."""
    statistics: tuple[str, ...] = ()
    """Of each layer, as further observables: min, max, mean, spread, abs_mean, zeros, not_finite; default: none."""

    @field_validator("rules", mode="before")
    @classmethod
    def _asked(cls, value: Any) -> Any:
        try:
            rules = asked_rules("rules", value)
        except JobError as error:
            raise ValueError(str(error).removeprefix("rules").removeprefix(": ").removeprefix(".")) from None
        of_points = {name: threshold for name, threshold in rules.items() if name in OF_POINTS}
        if not of_points:
            raise ValueError(f"must name rules of weights or outputs, not {quoted(value)}; others need a training")
        return of_points

    @field_validator("statistics", mode="before")
    @classmethod
    def _known(cls, value: Any) -> Any:
        names = [value] if isinstance(value, str) else value
        if names is not None and not isinstance(names, (list, tuple)):
            raise ValueError(f"must list some of {', '.join(LAYER_STATISTICS)}, not {quoted(value)}")
        wrong = [name for name in names or () if name not in LAYER_STATISTICS]
        if wrong:
            raise ValueError(f"must be of {', '.join(LAYER_STATISTICS)}, not {quoted(wrong[0])}")
        return tuple(name for name in LAYER_STATISTICS if name in (names or ()))


MaybeLayers = Annotated[
    Layers | None,
    switch(Layers, "true, false or {statistics: [abs_mean]}", plain=True),
    switch_schema(Layers, {"type": "boolean"}),
]


# ----------------------------------------------------------------------------------------------------
# `refine:` makes a landscape finer where its values require it.

DEFAULT_TOLERANCE = 0.01
SHARE: dict[str, Any] = {  # as an editor checks it
    "anyOf": [
        {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1},
        {"type": "string", "pattern": "^ *[0-9.eE+-]+ *%? *$"},
    ]
}


def _percent(value: Any) -> float | None:
    """The share that a text such as `1%` stands for; None for other values.

    >>> _percent(" 2.5 %"), _percent("0.1")
    (0.025, None)
    """
    if not isinstance(value, str) or not value.strip().endswith("%"):
        return None
    try:
        return float(value.strip()[:-1]) / 100
    except ValueError:
        return math.nan


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
        share = _percent(value)
        if share is None:
            try:
                share = math.nan if isinstance(value, bool) else float(value)
            except (TypeError, ValueError):
                share = math.nan
        if not 0 < share < 1:
            raise ValueError(f"must be a share of the relief between 0 and 1, such as 1% or 0.01, not {quoted(value)}")
        return share


# ----------------------------------------------------------------------------------------------------
# `accuracy:` and `budget:` take the place of size, samples and refinement.

FIELDS_OF_GRID = ("refine", "convexity", "layers")  # which an accuracy leaves no room for, beside size
ACCURACY_SCHEMA = {
    "anyOf": [
        {"type": "number", "exclusiveMinimum": 0},
        {"type": "string", "pattern": "^ *[0-9.eE+-]+ *%? *$"},
        {"type": "object"},
        {"type": "null"},
    ]
}


EXCLUDED = "accuracy and {field} exclude each other: leave out {field}; points go where they are needed"


class Accuracy(Frozen):
    """How true a picture shall be: points and samples are added where they are needed until it is."""

    error: Annotated[float, WithJsonSchema(ACCURACY_SCHEMA["anyOf"][0])]
    """The 95th percentile over the area of |shown − true|: `1%` of the relief, or a number in units of the loss (of its
    decimal logarithm with `scale: log`). *Shown* is the interpolated rise of the loss over the origin, *true* its mean
    over all samples of the problem.
    """
    relative: bool = False
    """Whether `error` is a share of the relief; a text such as `1%` sets it."""
    scale: Literal["linear", "log"] = "linear"
    """Whether the error and the relief are those of the loss or of its decimal logarithm."""

    @model_validator(mode="before")
    @classmethod
    def _of_percent(cls, data: Any) -> Any:
        if not isinstance(data, Mapping) or "error" not in data:
            return data
        share = _percent(data["error"])
        if share is None or share <= 0:
            return data
        if data.get("relative", True) is not True:
            raise ValueError("error is in per cent of the relief: leave out relative")
        return {**data, "error": share, "relative": True}

    @field_validator("error", mode="before")
    @classmethod
    def _positive(cls, value: Any) -> float:
        try:
            number = math.nan if isinstance(value, bool) else float(value)
        except (TypeError, ValueError):
            number = math.nan
        if not 0 < number < math.inf:
            raise ValueError(f"must be a share of the relief such as 1%, or a positive number, not {quoted(value)}")
        return number

    @model_validator(mode="after")
    def _below_the_relief(self) -> Self:
        if self.relative and self.error >= 1:
            raise ValueError(f"must be below 100% of the relief, not {quoted(f'{100 * self.error:.4g}%')}")
        return self


def refuse_with_accuracy(data: Mapping[str, Any]) -> None:
    """Refuse a landscape with `accuracy` and a field that it takes the place of, or with `budget` alone.

    Raises:
        ValueError: names the first such field.
    """
    if data.get("accuracy") is None:
        if data.get("budget") is not None:
            raise ValueError("budget goes with accuracy only: accuracy: 1%; a fixed grid costs size and num_samples")
        return
    field = next((name for name in FIELDS_OF_GRID if data.get(name) not in (None, False)), None)
    if field is not None:
        raise ValueError(EXCLUDED.format(field=field))


def _accuracy_fields(value: Any) -> Any:
    """An accuracy written as a number or per cent, as its fields."""
    if value is None or isinstance(value, (Mapping, Accuracy)):
        return value
    return {"error": value}


MaybeAccuracy = Annotated[Accuracy | None, BeforeValidator(_accuracy_fields), WithJsonSchema(ACCURACY_SCHEMA)]

UNITS = {"s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_BUDGET = re.compile(rf" *([0-9.eE+]+) *({'|'.join(UNITS)}|evaluations?) *")


class Budget(Frozen):
    """What a landscape may cost, after which the accuracy that was reached is kept."""

    seconds: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    evaluations: Count | None = None

    @model_validator(mode="after")
    def _one_of_them(self) -> Self:
        if (self.seconds is None) == (self.evaluations is None):
            raise ValueError("must be a time or a number of evaluations, such as 10 min or 1e6 evaluations")
        return self


def budget_fields(value: Any) -> Any:
    """A budget such as `10 min` or `4000 evaluations` as its fields.

    >>> budget_fields("10 min"), budget_fields("4e3 evaluations")
    ({'seconds': 600.0}, {'evaluations': 4000})
    """
    if value is None or isinstance(value, (Mapping, Budget)):
        return value
    match, number = _BUDGET.fullmatch(value) if isinstance(value, str) else None, math.nan
    if match is not None:
        try:
            number = float(match[1])
        except ValueError:
            match = None
    if match is None or not 0 < number < math.inf:
        raise ValueError(
            f"must be a time or a number of evaluations, such as 10 min or 1e6 evaluations, not {quoted(value)}"
        )
    if match[2] in UNITS:
        return {"seconds": number * UNITS[match[2]]}
    return {"evaluations": max(1, round(number))}


BUDGET_SCHEMA = {"anyOf": [{"type": "string", "pattern": _BUDGET.pattern}, {"type": "object"}, {"type": "null"}]}
MaybeBudget = Annotated[Budget | None, BeforeValidator(budget_fields), WithJsonSchema(BUDGET_SCHEMA)]
