"""Surfaces that follow from the mean of an observable, such as perplexity: computed when they are read, not stored.

The exponential of a mean is not the mean of exponentials: `observe` cannot return such a value per sample.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from landscape.core.errors import JobError, nearest, quoted
from landscape.core.grid import Floats
from landscape.core.validation import why_unusable


@dataclass(frozen=True)
class Formula:
    """A function f of means m, and its derivative along each.

    To first order f(m) has the standard error √Σ (∂f/∂mₖ·SE(mₖ))²; of two means, as if their errors were independent.
    """

    value: Callable[..., Floats]
    slopes: tuple[Callable[..., Floats], ...]


FORMULAS = {
    "exp": Formula(np.exp, (np.exp,)),
    "sqrt": Formula(np.sqrt, (lambda mean: 0.5 / np.sqrt(mean),)),
}
RATIO = Formula(
    lambda one, other: np.abs(one / other), (lambda one, other: 1 / np.abs(other), lambda one, other: one / other**2)
)
TEXT = re.compile(r"(\w+)\((\w+)\)")
RATIO_TEXT = re.compile(r"abs\((\w+)/(\w+)\)")


def check_derived(derived: Any, observables: Sequence[str] | None) -> None:
    """Refuse formulas that are unknown, and names that are no words or are observed already.

    Raises:
        JobError: says which, and lists what there is.
    """
    if not isinstance(derived, Mapping):
        raise JobError(f"derived: must be a dict such as {{'perplexity': 'exp(loss)'}}, not {quoted(derived)}")
    for name, text in derived.items():
        if (reason := why_unusable(name)) is not None:
            raise JobError(f"derived: {quoted(name)} cannot name a surface: {reason}")
        sources = sources_of_derived(name, text)
        if name in (observables or ()):
            raise JobError(f"derived: {quoted(name)} is what observe returns; give the derived surface another name")
        for of in sources:
            if observables is not None and of not in observables:
                raise JobError(f"derived: {quoted(name)} is computed from {quoted(of)}; {nearest(of, observables)}")


def sources_of_derived(name: str, text: Any) -> tuple[str, ...]:
    """The observables that a derived surface is computed from.

    Raises:
        JobError: the formula is no known function of observables.

    >>> sources_of_derived("perplexity", "exp(loss)"), sources_of_derived("flatness", "abs(low/high)")
    (('loss',), ('low', 'high'))
    """
    parsed = _parsed(text) if isinstance(text, str) else None
    if parsed is None:
        raise JobError(
            f"derived: {quoted(name)} must be a function of one observable such as 'exp(loss)', not {quoted(text)}; "
            f"functions: {', '.join(FORMULAS)}, and abs(one/other) of two"
        )
    return parsed[1]


RISE = "loss_rise"  # derived for every landscape whose loss at the origin is known; its error is stored


def bases_of(derived: Mapping[str, str], name: str) -> tuple[str, ...]:
    """The observables that a surface of this name is read from: itself, unless it is derived.

    >>> bases_of({"perplexity": "exp(loss)"}, "perplexity"), bases_of({}, "loss")
    (('loss',), ('loss',))
    """
    if name == RISE:
        return ("loss",)
    if ratio := RATIO_TEXT.fullmatch(derived.get(name, "")):
        return (ratio[1], ratio[2])
    match = TEXT.fullmatch(derived.get(name, ""))
    return (name,) if match is None else (match[2],)


def derive(
    derived: Mapping[str, str], observables: Mapping[str, Floats], origin_loss: float | None = None
) -> dict[str, Floats]:
    """The derived surfaces and their standard errors, `NAME` and `NAME_stderr`, as far as what they need is there.

    The rise over the origin, `loss_rise`, is L(point) − L(origin). A formula that this version does not know is left
    out.

    Args:
        derived: name → formula, as `Problem.derived` has it.
        observables: means and standard errors by name, of any shape.
        origin_loss: the loss at the origin, if it is known.

    >>> derive({"perplexity": "exp(loss)"}, {"loss": np.array([0.0]), "loss_stderr": np.array([0.5])})
    {'perplexity': array([1.]), 'perplexity_stderr': array([0.5])}
    """
    values: dict[str, Floats] = {}
    has_rise = "loss" in observables and RISE not in observables  # older runs may have an observable of this name
    if origin_loss is not None and np.isfinite(origin_loss) and has_rise:
        values[RISE] = np.asarray(observables["loss"], np.float64) - origin_loss
    for name, text in derived.items():
        parsed = _parsed(text)
        if parsed is None or name in observables or not set(parsed[1]) <= set(observables):
            continue
        formula, sources = parsed
        means, errors = [observables[of] for of in sources], [f"{of}_stderr" for of in sources]
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            values[name] = formula.value(*means)
            if set(errors) <= set(observables):
                parts = [
                    np.abs(slope(*means)) * observables[of] for slope, of in zip(formula.slopes, errors, strict=True)
                ]
                values[f"{name}_stderr"] = parts[0] if len(parts) == 1 else np.sqrt(sum(part**2 for part in parts))
    return values


def _parsed(text: str) -> tuple[Formula, tuple[str, ...]] | None:
    """The formula of a text, and the observables that it is a function of; None where it is none of this version."""
    if ratio := RATIO_TEXT.fullmatch(text):
        return RATIO, (ratio[1], ratio[2])
    match = TEXT.fullmatch(text)
    return None if match is None or match[1] not in FORMULAS else (FORMULAS[match[1]], (match[2],))
