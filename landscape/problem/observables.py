"""What `observe` returns, and the check of it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any

from torch import Tensor, nn

from landscape.core.errors import JobError, NotRetried, shown
from landscape.core.validation import WEIGHT, why_unusable
from landscape.problem.batches import Batch

Observe = Callable[[nn.Module, Batch], Mapping[str, Tensor]]


@dataclass(frozen=True)
class Combination:
    """An `observe` whose loss is a sum over several terms, each the mean over samples of its own: L = Σ λ·mean.

    Args:
        observe: `observe(model, batch)` → {term: Tensor[n]}, one value per sample of the term; the numbers of samples
            may differ, and a term of which the batch has no sample is absent.
        factors: λ of every term.
    """

    observe: Observe
    factors: Mapping[str, float]

    def __call__(self, model: nn.Module, batch: Batch) -> Mapping[str, Tensor]:
        return self.observe(model, batch)


class OtherObservables(NotRetried):
    """`observe` returns other names than it did elsewhere; trying again on another worker cannot mend that."""


class OtherWeights(NotRetried):
    """Samples weigh otherwise than at another point, where that must not be."""


def ordered_names(names: Iterable[str]) -> tuple[str, ...]:
    """The observables in the order in which everything lists them: `loss` first, then the others by name.

    Example:
        >>> ordered_names({"top5", "loss", "accuracy"})
        ('loss', 'accuracy', 'top5')
    """
    return ("loss", *sorted(name for name in names if name != "loss"))


def check_observed(values: Any, count: int | None, names: Sequence[str] | None = None) -> dict[str, Tensor]:
    """Check what `observe` returned: real tensors [count] by name, `loss` among them; returned in `ordered_names`.

    Args:
        values: what `observe` returned.
        count: how many samples the batch holds; None where it is as many as there are losses.
        names: the names that it returned before, in order, `weight` last; None at the first call.

    Returns:
        The tensors in the order of `ordered_names`; `weight` last, where there is one.

    Raises:
        OtherObservables: the names are not those of before.
        JobError: something else is wrong; the message says what, and how to mend it.
    """
    if not isinstance(values, Mapping):
        raise JobError(
            "observe: must return a dict of per-sample tensors such as {'loss': Tensor[N]}, "
            f"not {type(values).__name__}"
        )
    if "loss" not in values:
        raise JobError(f"observe: must return 'loss'; it returned {sorted(map(str, values)) or 'nothing'}")
    if count is None:
        loss = values["loss"]
        count = len(loss) if isinstance(loss, Tensor) and loss.dim() else 0
    for name, value in values.items():
        _check_value(name, value, count)
    returned = ordered_names(name for name in values if name != WEIGHT) + ((WEIGHT,) if WEIGHT in values else ())
    if names is not None and returned != tuple(names):
        raise OtherObservables(
            f"observe: must return the same names for every batch and point, not {shown(list(names))} for one and "
            f"{shown(list(returned))} for another"
        )
    # The order is fixed because the code that follows tells the columns apart by their position.
    return {name: values[name] for name in returned}


def check_terms(values: Any, factors: Mapping[str, float]) -> dict[str, Tensor]:
    """Check what a `Combination` returned: real tensors [n] by the names of its terms, some of which may be absent.

    Raises:
        JobError: something is wrong; the message says what.
    """
    if not isinstance(values, Mapping) or not values or not set(values) <= set(factors):
        returned = sorted(map(str, values)) if isinstance(values, Mapping) else type(values).__name__
        raise JobError(f"observe: must return a tensor for each of the terms {sorted(factors)}, not {returned}")
    for name, value in values.items():
        if not isinstance(value, Tensor) or value.dim() != 1 or value.is_complex():
            given = f"shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
            raise JobError(f"observe: {shown(name)} must be a real tensor with one value per point, not {given}")
    return {name: values[name] for name in factors if name in values}


def _check_value(name: Any, value: Any, count: int) -> None:
    if name != WEIGHT and (reason := why_unusable(name)) is not None:
        raise JobError(f"observe: {shown(name)} cannot name an observable: {reason}")
    if not isinstance(value, Tensor):
        raise JobError(f"observe: {shown(name)} must be a tensor with one value per sample, not {type(value).__name__}")
    if tuple(value.shape) != (count,):
        raise JobError(
            f"observe: {shown(name)} must have shape ({count},), one value per sample, not {tuple(value.shape)}; "
            f"{_shape_remedy(tuple(value.shape), count)}"
        )
    if value.is_complex():
        raise JobError(f"observe: {shown(name)} must be real, not {value.dtype}")


def _shape_remedy(shape: tuple[int, ...], count: int) -> str:
    """How to average losses of tokens or pixels, which come flat or with more dimensions, to one value per sample."""
    if len(shape) == 1 and count and shape[0] > count and shape[0] % count == 0:
        return f"{shape[0]} = {count} x {shape[0] // count}: average each sample, such as .view({count}, -1).mean(1)"
    if shape == (count, count):
        return (
            "if output and target broadcast to every pair of samples, as [N, 1] and [N] do, give them one shape; else "
            "average each sample, such as .flatten(1).mean(1)"
        )
    if len(shape) > 1 and shape[0] == count:
        return "average each sample, such as .flatten(1).mean(1)"
    return "use reduction='none'"


def check_names(field: str, names: Any, *, with_loss: bool) -> None:
    """Refuse names that observables or metrics cannot have.

    Args:
        field: what the user called the list; an error begins with it.
        names: the names; they must differ from one another and from the store's own.
        with_loss: whether 'loss' must be among them; otherwise it must not.

    Raises:
        JobError: a name is no identifier, reserved, given twice, or 'loss' where it must not be; or 'loss' is missing.
    """
    if isinstance(names, str) or not isinstance(names, Iterable):
        raise JobError(f"{field}: must be a list of names, not {type(names).__name__}")
    names = list(names)
    for name in names:
        if (reason := why_unusable(name)) is not None:
            raise JobError(f"{field}: {shown(name)} cannot name an observable: {reason}")
        if names.count(name) > 1:
            raise JobError(f"{field}: must name each once, not {shown(name)} {names.count(name)} times")
    if with_loss and "loss" not in names:
        raise JobError(f"{field}: must name 'loss', not only {shown(names)}; observe returns it")
    if not with_loss and "loss" in names:
        raise JobError(f"{field}: 'loss' is what the criterion gives; give the metric another name")


def check_term_weights(weights: Any) -> None:
    """Refuse weights of a loss's terms that are not positive numbers by name.

    Raises:
        JobError: there is no term, a name cannot be stored, or a weight is negative, zero or not finite.
    """
    if not isinstance(weights, Mapping) or not weights:
        raise JobError(f"terms: must be a dict of at least one term, not {shown(weights)}; name each term of the loss")
    check_names("terms", weights, with_loss=False)
    for name, weight in weights.items():
        is_number = isinstance(weight, Real) and not isinstance(weight, bool)
        if not is_number or not math.isfinite(weight) or weight <= 0:
            raise JobError(
                f"terms: the weight of {shown(name)} must be a positive finite number, not {shown(weight)}; leave out "
                "a term that does not count"
            )


def check_expected(expected: Any) -> None:
    """Refuse what is not the expected loss of a network.

    Raises:
        JobError: it is no dict of `loss` alone, or that is no finite number.
    """
    if not isinstance(expected, Mapping) or not set(expected) <= {"loss"}:
        raise JobError(f"expected: must be {{'loss': number}}, or left out, not {shown(expected)}")
    for value in expected.values():
        if isinstance(value, bool) or not isinstance(value, Real) or not math.isfinite(value):
            raise JobError(f"expected: loss must be a finite number, not {shown(value)}")
