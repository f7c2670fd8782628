"""The table of rules, each with its target, its formula and its threshold; and the rules that fire.

They are the watchpoints of MindInsight's debugger, most under its names. Its thresholds are the defaults here: all
zeros, abs means of gradients below 1e-9, changes above 0.1 and below 1e-4, no change within 1e-5. It has none for
values that are too large or too small, and for activations at an end of their range; those defaults are this project's.
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

SATURATED = 1e-3  # a value of a sigmoid or tanh that is this near to an end of its range counts as at the end
BOUNDS = {"sigmoid": (SATURATED, 1 - SATURATED), "tanh": (SATURATED - 1, 1 - SATURATED)}


@dataclass(frozen=True)
class Tensors:
    """The values that rules judge: one tensor, or all outputs of a layer over the samples.

    Attributes:
        layer: the name of the layer, operation or parameter.
        statistics: of the values, or of their gradient.
        activation: `relu`, `sigmoid` or `tanh`, if they are its outputs.
        dimensions: of the tensor; biases and the weights of norms have one.
        change: of weights: how far they have moved.
        in_model: whether they belong to the network; values that `observe` computes from its outputs do not.
        from_infinite: whether all infinite values come from infinite inputs, such as masks of attention.
        unmasked: the statistics of values that no mask has made hugely negative; None: as of all.
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
    """A rule that fires if its measure is beyond its threshold.

    Attributes:
        name: as users write it.
        target: the kind of tensors that it judges.
        formula: of the measure, in words.
        side: `>`, `>=`, `<` or `<=`: the side of the threshold on which it fires.
        threshold: the default.
        measure: computes the measure; None if the rule does not apply to the tensors.
        means: the fault, in a few words.
    """

    name: str
    target: Target
    formula: str
    side: Literal[">", ">=", "<", "<="]
    threshold: float
    measure: Callable[[Tensors], float | None]
    means: str

    def fires(self, tensors: Tensors, threshold: float | None = None) -> float | None:
        """The measure of the tensors, if it is beyond the threshold; else None."""
        value, limit = self.measure(tensors), self.threshold if threshold is None else threshold
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
        """The finding as JSON values."""
        value = self.value if math.isfinite(self.value) else None
        return {"layer": self.layer, "rule": self.rule, "value": value, "threshold": self.threshold}


def _not_finite(tensors: Tensors) -> float | None:
    values = tensors.statistics
    return values.share(values.nans if tensors.from_infinite else values.not_finite)


def _zeros(tensors: Tensors) -> float | None:
    # Biases and the running means of norms begin at zero.
    return tensors.statistics.share(tensors.statistics.zeros) if tensors.in_model and tensors.dimensions > 1 else None


def _magnitude(tensors: Tensors) -> float | None:
    return (tensors.unmasked or tensors.statistics).magnitude if tensors.in_model else None


def _small(tensors: Tensors) -> float | None:
    """The mean magnitude, unless all finite values are zero, for which there is another rule."""
    values = tensors.statistics
    applies = tensors.in_model and tensors.dimensions > 1 and values.zeros < values.finite
    return values.magnitude if applies else None


def _gradient(tensors: Tensors) -> float | None:
    # The gradient of a bias before a normalisation is only rounding error.
    return tensors.statistics.magnitude if tensors.dimensions > 1 and tensors.statistics.finite else None


def _zeros_of_relu(tensors: Tensors) -> float | None:
    return tensors.statistics.share(tensors.statistics.zeros) if tensors.activation == "relu" else None


def _at_ends(activation: str) -> Callable[[Tensors], float | None]:
    def share(tensors: Tensors) -> float | None:
        return tensors.statistics.share(tensors.statistics.ends) if tensors.activation == activation else None

    return share


def _ratio(tensors: Tensors) -> float | None:
    # Values that begin at zero, such as biases, change by any ratio.
    return tensors.change.ratio if tensors.change is not None and tensors.dimensions > 1 else None


def _largest(tensors: Tensors) -> float | None:
    return tensors.change.largest if tensors.change is not None and tensors.dimensions > 1 else None


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
    """The rules that fire, ordered by tensors, then by the table.

    >>> from landscape.model.layer_statistics import statistics_of
    >>> import torch
    >>> [found] = findings("weights", [Tensors("fc1.weight", statistics_of(torch.zeros(2, 3)))])
    >>> found.text
    'fc1.weight: weight_all_zero (all zero: share of zeros 1 >= 1)'
    """
    rules = [RULES[name] for name in thresholds if RULES[name].target == target]
    result = []
    for tensors in seen:
        for rule in rules:
            value = rule.fires(tensors, thresholds[rule.name])
            if value is not None:
                result.append(LayerFinding(tensors.layer, rule.name, value, thresholds[rule.name]))
    return result


def others_in_words(others: Sequence[tuple[str, str]]) -> str:
    """The other findings of a step, which often have the same cause, in words: layers by rule; '' if there are none.

    >>> others_in_words([("fc1", "tensor_all_zero"), ("fc2.weight", "gradient_vanishing"), ("fc2", "tensor_all_zero")])
    ', and 3 more: tensor_all_zero of fc1, fc2; gradient_vanishing of fc2.weight'
    """
    by_rule: dict[str, list[str]] = {}
    for layer, rule in others:
        by_rule.setdefault(rule, []).append(layer)
    parts = []
    for rule, layers in by_rule.items():
        rest = f" and {len(layers) - NAMED} more" if len(layers) > NAMED else ""
        parts.append(f"{rule} of {', '.join(layers[:NAMED])}{rest}")
    return f", and {len(others)} more: {'; '.join(parts)}" if others else ""


# ----------------------------------------------------------------------------------------------------
# The rules that a user requests: by name, by target, or with thresholds.

ALL = "all"


def asked_rules(field: str, value: Any) -> dict[str, float]:
    """The thresholds of the requested rules, by name, in the order of the table.

    Args:
        value: names of rules, of targets (`weights`, `outputs`, `gradients`, `changes`), or `all`; or {name:
            threshold}, None for the default; or a text of names and `NAME=THRESHOLD`, separated by commas. True means
            `all`; False and None mean no rules.

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
        value = _parse_text(field, value)
    if not isinstance(value, (Mapping, list, tuple, set, frozenset)):
        raise JobError(f"{field}: must list rules, such as [weights, tensor_overflow], not {quoted(value)}")
    pairs = value.items() if isinstance(value, Mapping) else [(name, None) for name in value]
    thresholds: dict[str, float] = {}
    for name, threshold in pairs:
        if threshold is not None and (not is_number(threshold) or threshold < 0):
            raise JobError(f"{field}.{name}: must be a finite number of at least 0, not {quoted(threshold)}")
        if threshold is not None and name not in RULES:
            _refuse_unless_known(field, name)
            raise JobError(f"{field}.{name}: must be left without a threshold, as it names several rules")
        for rule in _rules_named(field, name):
            thresholds[rule] = DEFAULTS[rule] if threshold is None else float(threshold)
    return {name: thresholds[name] for name in RULES if name in thresholds}


def _parse_text(field: str, text: str) -> dict[str, float | None]:
    thresholds: dict[str, float | None] = {}
    for part in text.split(","):
        rule, equals, threshold = part.strip().partition("=")
        try:
            thresholds[rule] = float(threshold) if equals else None
        except ValueError:
            raise JobError(f"{field}.{rule}: must be a finite number of at least 0, not {quoted(threshold)}") from None
    return thresholds


def _rules_named(field: str, name: Any) -> list[str]:
    _refuse_unless_known(field, name)
    return [rule.name for rule in RULES.values() if name in (rule.name, rule.target, ALL)]


def _refuse_unless_known(field: str, name: Any) -> None:
    if not isinstance(name, str) or name not in (*RULES, *TARGETS, ALL):
        raise JobError(f"{field}: unknown rule {quoted(name)}; {nearest(str(name), [*RULES, *TARGETS, ALL])}")


def inspect_command(run: str, name: str, axes: int | None = None) -> str:
    """The command `landscape inspect` for a landscape.

    Args:
        axes: their number, to inspect the network at their origin; None leaves the point to the command.

    >>> inspect_command("runs/mine", "minimum", 2)
    'landscape inspect runs/mine minimum --at=0,0'
    """
    at = [] if axes is None else [f"--at={','.join('0' * axes)}"]
    return shlex.join(["landscape", "inspect", run, name, *at])
