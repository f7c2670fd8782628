"""The table of rules: what each looks at, its formula and its threshold; and which of them fire.

They are the watchpoints of MindInsight's debugger, most under its names. Where it ships a threshold, that is the
default here: all zeros, abs means of gradients below 1e-9, changes above 0.1 and below 1e-4, no change within 1e-5. It
leaves to the user what is too large or too small, and how many activations may lie at an end of their range; those
defaults are this project's.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from landscape.core.errors import JobError, nearest, quoted
from landscape.core.validation import is_number

if TYPE_CHECKING:
    from landscape.model.layer_statistics import ValueChange, ValueStatistics

Target = Literal["weights", "outputs", "gradients", "changes"]
Thresholds = Mapping[str, float]  # by the names of rules

SATURATED = 1e-3  # how near an end a value of a sigmoid or tanh lies that counts as at it
BOUNDS = {"sigmoid": (SATURATED, 1 - SATURATED), "tanh": (SATURATED - 1, 1 - SATURATED)}


@dataclass(frozen=True)
class Tensors:
    """What rules are asked about: one tensor, or all that a layer gave over the samples.

    Attributes:
        layer: its name: of a layer, an operation, or a parameter.
        statistics: of its values; of a gradient, those of the gradient.
        activation: `relu`, `sigmoid` or `tanh`, where it is the output of one.
        dimensions: how many it has; biases and the weights of norms have one.
        change: how far it has moved, of weights.
        in_model: whether it is part of the network; what `observe` computes of its outputs is not.
        from_infinite: whether all that is infinite came so from what was given, as the masks of attention do.
        unmasked: the statistics of what a mask has not set to next to -Inf; None: of all.
    """

    layer: str
    statistics: ValueStatistics
    activation: str = ""
    dimensions: int = 2
    change: ValueChange | None = None
    in_model: bool = True
    from_infinite: bool = False
    unmasked: ValueStatistics | None = None


@dataclass(frozen=True)
class LayerRule:
    """A rule fires where its measure is beyond its threshold.

    Attributes:
        name: as users write it.
        target: what it looks at.
        formula: what is measured, in words.
        side: `>`, `>=`, `<` or `<=`: on which side of the threshold it fires.
        threshold: the default.
        measure: the number; None where the rule says nothing of this tensor.
        means: what is wrong, in a few words.
    """

    name: str
    target: Target
    formula: str
    side: Literal[">", ">=", "<", "<="]
    threshold: float
    measure: Callable[[Tensors], float | None]
    means: str

    def fires(self, seen: Tensors, threshold: float | None = None) -> float | None:
        """What is measured of the tensor, where that is beyond the threshold; else None."""
        value, limit = self.measure(seen), self.threshold if threshold is None else threshold
        if value is None or math.isnan(value):
            return None
        beyond = {">": value > limit, ">=": value >= limit, "<": value < limit, "<=": value <= limit}
        return value if beyond[self.side] else None


@dataclass(frozen=True)
class LayerFinding:
    """A rule that fired."""

    layer: str
    rule: str
    value: float
    threshold: float

    @property
    def text(self) -> str:
        """In words: `fc2: weight_overflow (NaN or Inf: share not finite 0.25 > 0)`."""
        rule = RULES[self.rule]
        measured = f"{rule.formula} {self.value:.4g} {rule.side} {self.threshold:.4g}"
        return f"{self.layer}: {self.rule} ({rule.means}: {measured})"

    def plain(self) -> dict[str, Any]:
        """As JSON holds it."""
        value = self.value if math.isfinite(self.value) else None
        return {"layer": self.layer, "rule": self.rule, "value": value, "threshold": self.threshold}


def _not_finite(seen: Tensors) -> float | None:
    known = seen.statistics
    return known.share(known.nans if seen.from_infinite else known.not_finite)


def _zeros(seen: Tensors) -> float | None:
    # Biases begin at zero, and so do the running means of norms.
    return seen.statistics.share(seen.statistics.zeros) if seen.in_model and seen.dimensions > 1 else None


def _magnitude(seen: Tensors) -> float | None:
    return (seen.unmasked or seen.statistics).magnitude if seen.in_model else None


def _small(seen: Tensors) -> float | None:
    """The mean magnitude, unless all that is finite is zero: of all values that is a rule of its own."""
    known = seen.statistics
    told = seen.in_model and seen.dimensions > 1 and known.zeros < known.finite
    return known.magnitude if told else None


def _gradient(seen: Tensors) -> float | None:
    # A bias before a normalisation has a gradient of rounding alone.
    return seen.statistics.magnitude if seen.dimensions > 1 and seen.statistics.finite else None


def _zeros_of_relu(seen: Tensors) -> float | None:
    return seen.statistics.share(seen.statistics.zeros) if seen.activation == "relu" else None


def _at_ends(activation: str) -> Callable[[Tensors], float | None]:
    def share(seen: Tensors) -> float | None:
        return seen.statistics.share(seen.statistics.ends) if seen.activation == activation else None

    return share


def _ratio(seen: Tensors) -> float | None:
    # What begins at zero, as biases do, changes by any ratio.
    return seen.change.ratio if seen.change is not None and seen.dimensions > 1 else None


def _largest(seen: Tensors) -> float | None:
    return seen.change.largest if seen.change is not None and seen.dimensions > 1 else None


_ABS, _SHARE, _MOVED = "mean abs", "share not finite", "mean abs(Δw) / mean abs(w)"
_TABLE = (
    LayerRule("weight_overflow", "weights", _SHARE, ">", 0.0, _not_finite, "NaN or Inf"),
    LayerRule("weight_all_zero", "weights", "share of zeros", ">=", 1.0, _zeros, "all zero"),
    LayerRule("weight_too_large", "weights", _ABS, ">", 100.0, _magnitude, "too large"),
    LayerRule("weight_too_small", "weights", _ABS, "<", 1e-8, _small, "too small"),
    LayerRule("tensor_overflow", "outputs", _SHARE, ">", 0.0, _not_finite, "NaN or Inf"),
    LayerRule("relu_zeros", "outputs", "share of zeros", ">", 0.99, _zeros_of_relu, "dead ReLU"),
    LayerRule("sigmoid_saturated", "outputs", "share at the ends", ">", 0.99, _at_ends("sigmoid"), "saturated"),
    LayerRule("tanh_saturated", "outputs", "share at the ends", ">", 0.99, _at_ends("tanh"), "saturated"),
    LayerRule("tensor_all_zero", "outputs", "share of zeros", ">=", 1.0, _zeros, "all zero"),
    LayerRule("tensor_too_large", "outputs", _ABS, ">", 1e4, _magnitude, "exploding"),
    LayerRule("tensor_too_small", "outputs", _ABS, "<", 1e-7, _small, "vanishing"),
    LayerRule("gradient_exploding", "gradients", _SHARE, ">", 0.0, _not_finite, "NaN or Inf"),
    LayerRule("gradient_too_large", "gradients", _ABS, ">", 100.0, _magnitude, "too large"),
    LayerRule("gradient_vanishing", "gradients", _ABS, "<", 1e-9, _gradient, "vanishing"),
    LayerRule("weight_not_changed", "changes", "largest abs(Δw) / abs(w)", "<=", 1e-5, _largest, "unchanged"),
    LayerRule("weight_change_too_large", "changes", _MOVED, ">", 0.1, _ratio, "changes too much"),
    LayerRule("weight_change_too_small", "changes", _MOVED, "<", 1e-4, _ratio, "changes too little"),
)
RULES: dict[str, LayerRule] = {rule.name: rule for rule in _TABLE}
TARGETS: tuple[Target, ...] = ("weights", "outputs", "gradients", "changes")
DEFAULTS: dict[str, float] = {rule.name: rule.threshold for rule in _TABLE}
NAMED = 3  # layers of a rule that a line names


def findings(target: Target, seen: Sequence[Tensors], thresholds: Thresholds = DEFAULTS) -> list[LayerFinding]:
    """The rules that fire, in the order of the tensors, of each in the order of the table.

    >>> from landscape.model.layer_statistics import statistics_of
    >>> import torch
    >>> [found] = findings("weights", [Tensors("fc1.weight", statistics_of(torch.zeros(2, 3)))])
    >>> found.text
    'fc1.weight: weight_all_zero (all zero: share of zeros 1 >= 1)'
    """
    rules = [RULES[name] for name in thresholds if RULES[name].target == target]
    found = []
    for tensors in seen:
        for rule in rules:
            value = rule.fires(tensors, thresholds[rule.name])
            if value is not None:
                found.append(LayerFinding(tensors.layer, rule.name, value, thresholds[rule.name]))
    return found


def others_in_words(others: Sequence[tuple[str, str]]) -> str:
    """The other findings of a step, which often have one cause, in words: layers by their rules; '' without any.

    >>> others_in_words([("fc1", "tensor_all_zero"), ("fc2.weight", "gradient_vanishing"), ("fc2", "tensor_all_zero")])
    ', and 3 more: tensor_all_zero of fc1, fc2; gradient_vanishing of fc2.weight'
    """
    by_rule: dict[str, list[str]] = {}
    for layer, rule in others:
        by_rule.setdefault(rule, []).append(layer)
    parts = []
    for rule, layers in by_rule.items():
        more = f" and {len(layers) - NAMED} more" if len(layers) > NAMED else ""
        parts.append(f"{rule} of {', '.join(layers[:NAMED])}{more}")
    return f", and {len(others)} more: {'; '.join(parts)}" if others else ""


# ----------------------------------------------------------------------------------------------------
# The rules that a user asks for: by their names, by what they look at, or with thresholds.

ALL = "all"


def asked_rules(field: str, value: Any) -> dict[str, float]:
    """The thresholds of the rules that are asked for, by their names, in the order of the table.

    Args:
        value: names, of rules, of targets (`weights`, `outputs`, `gradients`, `changes`), or `all`; or {name:
            threshold}, None for the default; or a text of such names, `NAME=THRESHOLD` among them, with commas
            between. True is `all`, and False or None none.

    Example:
        >>> asked_rules("watch", {"gradient_vanishing": 1e-12, "tensor_overflow": None})
        {'tensor_overflow': 0.0, 'gradient_vanishing': 1e-12}

    Raises:
        JobError: there is no such rule, or a threshold is no number.
    """
    if value is None or value is False:
        return {}
    if value is True:
        value = [ALL]
    if isinstance(value, str):
        value = _of_text(field, value)
    if not isinstance(value, (Mapping, list, tuple, set, frozenset)):
        raise JobError(f"{field}: must list rules, such as [weights, tensor_overflow], not {quoted(value)}")
    given = value.items() if isinstance(value, Mapping) else [(name, None) for name in value]
    asked: dict[str, float] = {}
    for name, threshold in given:
        if threshold is not None and (not is_number(threshold) or threshold < 0):
            raise JobError(f"{field}.{name}: must be a finite number of at least 0, not {quoted(threshold)}")
        if threshold is not None and name not in RULES:
            _refuse_unless_known(field, name)
            raise JobError(f"{field}.{name}: must be left without a threshold, as it names several rules")
        for rule in _named(field, name):
            asked[rule] = DEFAULTS[rule] if threshold is None else float(threshold)
    return {name: asked[name] for name in RULES if name in asked}


def _of_text(field: str, text: str) -> dict[str, float | None]:
    found: dict[str, float | None] = {}
    for part in text.split(","):
        rule, equals, threshold = part.strip().partition("=")
        try:
            found[rule] = float(threshold) if equals else None
        except ValueError:
            raise JobError(f"{field}.{rule}: must be a finite number of at least 0, not {quoted(threshold)}") from None
    return found


def _named(field: str, name: Any) -> list[str]:
    _refuse_unless_known(field, name)
    return [rule.name for rule in RULES.values() if name in (rule.name, rule.target, ALL)]


def _refuse_unless_known(field: str, name: Any) -> None:
    if not isinstance(name, str) or name not in (*RULES, *TARGETS, ALL):
        raise JobError(f"{field}: unknown rule {quoted(name)}; {nearest(str(name), [*RULES, *TARGETS, ALL])}")


def inspect_command(run: str, name: str, axes: int | None = None) -> str:
    """`landscape inspect` of a landscape.

    Args:
        axes: how many it has, to go through the network at their origin; None leaves the point to the command.

    >>> inspect_command("runs/mine", "minimum", 2)
    'landscape inspect runs/mine minimum --at=0,0'
    """
    at = [] if axes is None else [f"--at={','.join('0' * axes)}"]
    return shlex.join(["landscape", "inspect", run, name, *at])
