"""The `observe` of `Problem.supervised`: a criterion and metrics of a model's outputs and the targets, per sample."""

from __future__ import annotations

import copy
import inspect
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from numbers import Real
from typing import Any

import torch
from torch import Tensor, nn

from landscape.core.errors import JobError, NotRetried, nearest, quoted
from landscape.core.validation import WEIGHT, why_unusable
from landscape.model.parameters import holds_bfloat16
from landscape.problem.batches import Batch, Samples

# ----------------------------------------------------------------------------------------------------
# The values that `observe` returns.

Observe = Callable[[nn.Module, Batch], Mapping[str, Tensor]]


@dataclass(frozen=True)
class Combination:
    """An `observe` whose loss is a sum over several terms, each the mean over its own samples: L = Σ λ·mean.

    Args:
        observe: `observe(model, batch)` → {term: Tensor[n]}, one value per sample of the term; the numbers of samples
            may differ, and a term without samples in the batch is absent.
        factors: λ of every term.
    """

    observe: Observe
    factors: Mapping[str, float]

    def __call__(self, model: nn.Module, batch: Batch) -> Mapping[str, Tensor]:
        return self.observe(model, batch)


class OtherObservables(NotRetried):
    """`observe` returned other names than for another batch; on another worker it would fail again."""


class OtherWeights(NotRetried):
    """Samples have other weights than at another point, although their weights must not depend on the point."""


def ordered_names(names: Iterable[str]) -> tuple[str, ...]:
    """The observables in the order in which everything lists them: `loss` first, then the others by name.

    Example:
        >>> ordered_names({"top5", "loss", "accuracy"})
        ('loss', 'accuracy', 'top5')
    """
    return ("loss", *sorted(name for name in names if name != "loss"))


def check_observed(values: Any, count: int | None, names: Sequence[str] | None = None) -> dict[str, Tensor]:
    """Check the values of `observe`: real tensors [count] by name, `loss` among them.

    Args:
        count: how many samples the batch holds; None if as many as there are losses.
        names: the names of the previous calls, in order, `weight` last; None at the first call.

    Returns:
        The tensors in the order of `ordered_names`; `weight` last, if there is one.
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
            f"observe: must return the same names for every batch and point, not {quoted(list(names))} for one and "
            f"{quoted(list(returned))} for another"
        )
    # The order is fixed, as later code identifies the columns by their position.
    return {name: values[name] for name in returned}


def check_terms(values: Any, factors: Mapping[str, float]) -> dict[str, Tensor]:
    """Check the values of a `Combination`: real tensors [n] by the names of its terms, some of which may be absent."""
    if not isinstance(values, Mapping) or not values or not set(values) <= set(factors):
        returned = sorted(map(str, values)) if isinstance(values, Mapping) else type(values).__name__
        raise JobError(f"observe: must return a tensor for each of the terms {sorted(factors)}, not {returned}")
    for name, value in values.items():
        if not isinstance(value, Tensor) or value.dim() != 1 or value.is_complex():
            kind = f"shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
            raise JobError(f"observe: {quoted(name)} must be a real tensor with one value per point, not {kind}")
    return {name: values[name] for name in factors if name in values}


def _check_value(name: Any, value: Any, count: int) -> None:
    if name != WEIGHT and (reason := why_unusable(name)) is not None:
        raise JobError(f"observe: {quoted(name)} cannot name an observable: {reason}")
    if not isinstance(value, Tensor):
        raise JobError(
            f"observe: {quoted(name)} must be a tensor with one value per sample, not {type(value).__name__}"
        )
    if tuple(value.shape) != (count,):
        raise JobError(
            f"observe: {quoted(name)} must have shape ({count},), one value per sample, not {tuple(value.shape)}; "
            f"{_shape_remedy(tuple(value.shape), count)}"
        )
    if value.is_complex():
        raise JobError(f"observe: {quoted(name)} must be real, not {value.dtype}")


def _shape_remedy(shape: tuple[int, ...], count: int) -> str:
    """The remedy for losses per token or pixel, flat or with more dimensions: how to average them per sample."""
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
        field: the name of the list, with which an error begins.
        names: they must differ from one another and from the store's own.
        with_loss: whether 'loss' must be among them; otherwise it must not.
    """
    if isinstance(names, str) or not isinstance(names, Iterable):
        raise JobError(f"{field}: must be a list of names, not {type(names).__name__}")
    names = list(names)
    for name in names:
        if (reason := why_unusable(name)) is not None:
            raise JobError(f"{field}: {quoted(name)} cannot name an observable: {reason}")
        if names.count(name) > 1:
            raise JobError(f"{field}: must name each once, not {quoted(name)} {names.count(name)} times")
    if with_loss and "loss" not in names:
        raise JobError(f"{field}: must name 'loss', not only {quoted(names)}; observe returns it")
    if not with_loss and "loss" in names:
        raise JobError(f"{field}: 'loss' is what the criterion gives; give the metric another name")


def check_term_weights(weights: Any) -> None:
    """Refuse weights of a loss's terms that are not positive numbers by name."""
    if not isinstance(weights, Mapping) or not weights:
        raise JobError(f"terms: must be a dict of at least one term, not {quoted(weights)}; name each term of the loss")
    check_names("terms", weights, with_loss=False)
    for name, weight in weights.items():
        is_number = isinstance(weight, Real) and not isinstance(weight, bool)
        if not is_number or not math.isfinite(weight) or weight <= 0:
            raise JobError(
                f"terms: the weight of {quoted(name)} must be a positive finite number, not {quoted(weight)}; leave "
                "out a term that does not count"
            )


def check_expected(expected: Any) -> None:
    """Refuse any `expected` but the loss of a network."""
    if not isinstance(expected, Mapping) or not set(expected) <= {"loss"}:
        raise JobError(f"expected: must be {{'loss': number}}, or left out, not {quoted(expected)}")
    for value in expected.values():
        if isinstance(value, bool) or not isinstance(value, Real) or not math.isfinite(value):
            raise JobError(f"expected: loss must be a finite number, not {quoted(value)}")


Metric = Callable[[Any, Any], Tensor]
# Losses of one output and its target: torch broadcasts other shapes, pairing outputs with targets of other samples.
ELEMENTWISE_MODULES = (
    nn.MSELoss, nn.L1Loss, nn.SmoothL1Loss, nn.HuberLoss, nn.PoissonNLLLoss, nn.KLDivLoss, nn.SoftMarginLoss,
)  # fmt: skip
ELEMENTWISE_FUNCTIONS = (
    nn.functional.mse_loss, nn.functional.l1_loss, nn.functional.smooth_l1_loss, nn.functional.huber_loss,
    nn.functional.poisson_nll_loss, nn.functional.kl_div, nn.functional.soft_margin_loss,
)  # fmt: skip


class Supervised:
    """`observe` for batches (inputs, targets); `Problem.supervised` describes the arguments."""

    def __init__(self, criterion: Callable[..., Tensor], metrics: Mapping[str, Metric] | Sequence[str] | None) -> None:
        self.criterion, self._same_shape = per_sample(criterion), _is_elementwise(criterion)
        self.metrics = _named_metrics(_default_metrics(criterion) if metrics is None else metrics)
        # Whether the loss is the negative logarithm of the probability that the model gives the target class.
        self.classifies = bool(_default_metrics(criterion)) and getattr(criterion, "weight", None) is None

    def __call__(self, model: nn.Module, batch: Batch) -> dict[str, Tensor]:
        outputs = self.outputs(model, batch)
        values = {"loss": self.losses(outputs, batch)}
        for name, metric in self.metrics.items():
            values[name] = mean_per_sample(_of_samples("metrics", metric, metric(outputs, batch[1])))
        return values

    def outputs(self, model: nn.Module, batch: Batch) -> Any:
        """The outputs of the model in the form that the criterion takes."""
        if not isinstance(batch, (tuple, list)) or len(batch) != 2:
            raise JobError(
                f"data: Problem.supervised needs batches (inputs, targets), not {type(batch).__name__}; "
                "write an observe(model, batch) of your own for other batches"
            )
        return for_loss(model, model(batch[0]))

    def losses(self, outputs: Any, batch: Batch) -> Tensor:
        """The criterion of outputs and a batch's targets: Tensor[N]."""
        targets = batch[1]
        if self._same_shape:
            _refuse_other_shape(outputs, targets)
        return mean_per_sample(_of_samples("criterion", self.criterion, self.criterion(outputs, targets)))


def _of_samples(field: str, function: Callable[..., Any], values: Any) -> Any:
    """The values of a criterion or metric; one number for the whole batch is refused."""
    if isinstance(values, Tensor) and values.dim() == 0:
        name = getattr(function, "__name__", type(function).__name__)
        raise JobError(
            f"{field}: {name} must return one value per sample, Tensor[N], not one number for the batch; reduce over "
            "the dimensions after the first alone, as .flatten(1).mean(1) does"
        )
    return values


def for_loss(model: nn.Module, outputs: Any) -> Any:
    """The outputs, in float32 if a model with weights in bfloat16 returns bfloat16.

    A loss computed in bfloat16 has three digits. torch's own losses compute in float32 under autocast; a criterion of
    the user may not.
    """
    rounded = isinstance(outputs, Tensor) and outputs.dtype is torch.bfloat16
    return outputs.float() if rounded and holds_bfloat16(model) else outputs


def _is_elementwise(criterion: Callable[..., Tensor]) -> bool:
    """Whether it is one of torch's elementwise losses; a subclass is not, since it may compare other parts."""
    function = criterion.func if isinstance(criterion, partial) else criterion
    return type(criterion) in ELEMENTWISE_MODULES or function in ELEMENTWISE_FUNCTIONS


def _refuse_other_shape(outputs: Any, targets: Any) -> None:
    """Refuse targets that torch would broadcast against the outputs; reads shapes alone, so it waits for no device."""
    if not isinstance(outputs, Tensor) or not isinstance(targets, Tensor) or outputs.shape == targets.shape:
        return
    remedy = "give one target for each output"
    if outputs.numel() == targets.numel():
        extra = targets.dim() - outputs.dim()
        remedy = "unsqueeze them" if extra < 0 else "squeeze them" if extra > 0 else "reshape them"
    expected, actual = (_shape_in_words(tensor, targets.shape[:1]) for tensor in (outputs, targets))
    raise JobError(f"data: targets must have the shape of the outputs {expected}, not {actual}; {remedy}")


def _shape_in_words(tensor: Tensor, samples: torch.Size) -> str:
    """The shape with N for the number of samples: `(N, 1)`, or `(N,)`."""
    first = ["N"] if tensor.shape[:1] == samples else map(str, tensor.shape[:1])
    sizes = [*first, *map(str, tensor.shape[1:])]
    return f"({', '.join(sizes)}{',' if len(sizes) == 1 else ''})"


def mean_per_sample(values: Tensor) -> Tensor:
    """[N, …] → [N], the mean over all dimensions after the first."""
    if values.dim() <= 1:
        return values
    return (values if values.is_floating_point() else values.double()).flatten(1).mean(1)


def per_sample(criterion: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """The criterion without its reduction over samples.

    A loss module is copied and its `reduction` set to "none"; a function with that option is called with "none"; any
    other function is returned unchanged.

    Example:
        >>> import torch
        >>> loss = per_sample(torch.nn.MSELoss())
        >>> loss(torch.tensor([1.0, 2.0]), torch.tensor([0.0, 0.0]))
        tensor([1., 4.])

    Raises:
        JobError: the criterion is not callable.
    """
    if isinstance(criterion, nn.Module):
        if hasattr(criterion, "reduction"):
            criterion = copy.deepcopy(criterion)
            vars(criterion)["reduction"] = "none"
        return criterion
    if not callable(criterion):
        raise JobError(
            "criterion: must be a loss module, such as nn.CrossEntropyLoss(), or a function (outputs, targets) -> "
            f"Tensor[N], not {quoted(criterion)}"
        )
    try:
        takes_reduction = "reduction" in inspect.signature(criterion).parameters
    except (TypeError, ValueError):
        takes_reduction = False
    if not takes_reduction:
        return criterion
    function = criterion
    return lambda outputs, targets: function(outputs, targets, reduction="none")


def accuracy(outputs: Tensor, targets: Tensor) -> Tensor:
    """1 where the largest output (dimension 1) is the target class, else 0: Tensor[N, …]."""
    return (outputs.argmax(1) == targets).to(torch.float64)


def error(outputs: Tensor, targets: Tensor) -> Tensor:
    """1 where the largest output (dimension 1) is not the target class, else 0: Tensor[N, …]."""
    return 1 - accuracy(outputs, targets)


def top5(outputs: Tensor, targets: Tensor) -> Tensor:
    """1 where the target class is among the five largest outputs (dimension 1), else 0: Tensor[N, …]."""
    best = outputs.topk(min(5, outputs.shape[1]), 1).indices
    return (best == targets.unsqueeze(1)).any(1).to(torch.float64)


BUILT_IN_METRICS: dict[str, Metric] = {"accuracy": accuracy, "error": error, "top5": top5}


def _default_metrics(criterion: Callable[..., Tensor]) -> Sequence[str]:
    modules = (nn.CrossEntropyLoss, nn.NLLLoss)
    functions = (nn.functional.cross_entropy, nn.functional.nll_loss)
    return ("accuracy",) if isinstance(criterion, modules) or criterion in functions else ()


def _named_metrics(metrics: Mapping[str, Any] | Sequence[str]) -> dict[str, Metric]:
    check_names("metrics", metrics, with_loss=False)
    if isinstance(metrics, Mapping):
        for name, metric in metrics.items():
            if not callable(metric):
                kind = type(metric).__name__
                raise JobError(
                    f"metrics: {quoted(name)} must be a function (outputs, targets) -> Tensor[N], not {kind}"
                )
        return dict(metrics)
    for name in metrics:
        if name not in BUILT_IN_METRICS:
            raise JobError(
                f"metrics: unknown metric {quoted(name)}; {nearest(name, BUILT_IN_METRICS)}; or pass name: function"
            )
    return {name: BUILT_IN_METRICS[name] for name in metrics}


# ----------------------------------------------------------------------------------------------------
# The loss of guessing: of a classifier that only knows the frequencies of the classes.

# Samples per class, on average. The entropy of n labels of K classes is about (K − 1)/2n below that of all labels
# (Miller 1955): by 0.1 with 5 per class. For 64 samples of 1,000 classes it is 4.1, and the loss of guessing is 6.9.
LEAST_PER_CLASS = 5


def guessing_of(observe: Any, samples: Samples) -> float | None:
    """The loss of the best constant guess; None if unknown, as for a problem that is no classification."""
    rows = samples.rows
    if not isinstance(observe, Supervised) or not observe.classifies or not isinstance(rows, (tuple, list)):
        return None
    labels = rows[1]
    return loss_of_guessing(labels) if isinstance(labels, torch.Tensor) and not labels.is_floating_point() else None


def loss_of_guessing(labels: torch.Tensor) -> float | None:
    """The entropy of the labels that are not negative; None for a single class, or too few samples per class."""
    classes = labels[labels >= 0].long()
    if classes.numel() and int(classes.max()) < classes.numel():  # then the counts take no more memory than the labels
        counts = torch.bincount(classes)
    else:
        counts = torch.unique(classes, return_counts=True)[1]
    counts = counts[counts > 0].double()
    if len(counts) < 2 or counts.sum() < LEAST_PER_CLASS * len(counts):
        return None
    shares = counts / counts.sum()
    return float(-(shares * shares.log()).sum())
