"""Surfaces that follow from the mean of an observable, such as perplexity: computed when they are read, not stored.

The exponential of a mean is not the mean of exponentials: `observe` cannot return such a value per sample.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from landscape.errors import JobError, nearest, shown
from landscape.problem.names import why_unusable

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Formula:
    """A function f of a mean m, and its derivative: f(m) has the standard error |f'(m)|·SE(m), to first order."""

    value: Callable[[Floats], Floats]
    slope: Callable[[Floats], Floats]


FORMULAS = {
    "exp": Formula(np.exp, np.exp),
    "sqrt": Formula(np.sqrt, lambda mean: 0.5 / np.sqrt(mean)),
}
TEXT = re.compile(r"(\w+)\((\w+)\)")


def check_derived(derived: Any, observables: Sequence[str] | None) -> None:
    """Refuse formulas that are unknown, and names that are no words or are observed already.

    Raises:
        JobError: says which, and lists what there is.
    """
    if not isinstance(derived, Mapping):
        raise JobError(f"derived: must be a dict such as {{'perplexity': 'exp(loss)'}}, not {shown(derived)}")
    for name, text in derived.items():
        if (reason := why_unusable(name)) is not None:
            raise JobError(f"derived: {shown(name)} cannot name a surface: {reason}")
        of = source_of_derived(name, text)
        if name in (observables or ()):
            raise JobError(f"derived: {shown(name)} is what observe returns; give the derived surface another name")
        if observables is not None and of not in observables:
            raise JobError(f"derived: {shown(name)} is computed from {shown(of)}; {nearest(of, observables)}")


def source_of_derived(name: str, text: Any) -> str:
    """The observable that a derived surface is computed from.

    Raises:
        JobError: the formula is no known function of one observable.

    >>> source_of_derived("perplexity", "exp(loss)")
    'loss'
    """
    match = TEXT.fullmatch(text) if isinstance(text, str) else None
    if match is None or match[1] not in FORMULAS:
        raise JobError(
            f"derived: {shown(name)} must be a function of one observable such as 'exp(loss)', not {shown(text)}; "
            f"functions: {', '.join(FORMULAS)}"
        )
    return match[2]


def base_of(derived: Mapping[str, str], name: str) -> str:
    """The observable that a surface of this name is read from: itself, unless it is derived.

    >>> base_of({"perplexity": "exp(loss)"}, "perplexity"), base_of({}, "loss")
    ('loss', 'loss')
    """
    match = TEXT.fullmatch(derived.get(name, ""))
    return name if match is None else match[2]


def derive(derived: Mapping[str, str], observables: Mapping[str, Floats]) -> dict[str, Floats]:
    """The derived surfaces and their standard errors, `NAME` and `NAME_stderr`, as far as what they need is there.

    A formula that this version does not know is left out.

    Args:
        derived: name → formula, as `Problem.derived` has it.
        observables: means and standard errors by name, of any shape.

    >>> derive({"perplexity": "exp(loss)"}, {"loss": np.array([0.0]), "loss_stderr": np.array([0.5])})
    {'perplexity': array([1.]), 'perplexity_stderr': array([0.5])}
    """
    values: dict[str, Floats] = {}
    for name, text in derived.items():
        match = TEXT.fullmatch(text)
        if match is None or match[1] not in FORMULAS or name in observables:
            continue
        formula, of = FORMULAS[match[1]], match[2]
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            if of in observables:
                values[name] = formula.value(observables[of])
            if f"{of}_stderr" in observables:
                values[f"{name}_stderr"] = np.abs(formula.slope(observables[of])) * observables[f"{of}_stderr"]
    return values
