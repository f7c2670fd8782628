"""Which rules a user asks for: names of rules or of what they look at, or thresholds by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from landscape.core.errors import JobError, nearest, shown
from landscape.core.validation import is_number
from landscape.model.layer_rules import DEFAULTS, RULES, TARGETS

ALL = "all"


def asked_rules(field: str, value: Any) -> dict[str, float]:
    """The thresholds of the rules that are asked for, by their names, in the order of the table.

    Args:
        field: what an error calls the value.
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
        raise JobError(f"{field}: must list rules, such as [weights, tensor_overflow], not {shown(value)}")
    given = value.items() if isinstance(value, Mapping) else [(name, None) for name in value]
    asked: dict[str, float] = {}
    for name, threshold in given:
        if threshold is not None and (not is_number(threshold) or threshold < 0):
            raise JobError(f"{field}.{name}: must be a finite number of at least 0, not {shown(threshold)}")
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
            raise JobError(f"{field}.{rule}: must be a finite number of at least 0, not {shown(threshold)}") from None
    return found


def _named(field: str, name: Any) -> list[str]:
    _refuse_unless_known(field, name)
    return [rule.name for rule in RULES.values() if name in (rule.name, rule.target, ALL)]


def _refuse_unless_known(field: str, name: Any) -> None:
    if not isinstance(name, str) or name not in (*RULES, *TARGETS, ALL):
        raise JobError(f"{field}: unknown rule {shown(name)}; {nearest(str(name), [*RULES, *TARGETS, ALL])}")
