"""What `Problem.supervised` observes: a criterion and metrics of a model's outputs and the targets, per sample."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from landscape.core.errors import JobError, nearest, shown
from landscape.model.parameters import holds_bfloat16
from landscape.problem.batches import Batch
from landscape.problem.observables import check_names

Metric = Callable[[Any, Any], Tensor]
# Losses of one output and its target: given other shapes torch broadcasts them, and pairs outputs with foreign targets.
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
        # Whether the loss is the negative logarithm of the probability that the target class is given.
        self.classifies = bool(_default_metrics(criterion)) and getattr(criterion, "weight", None) is None

    def __call__(self, model: nn.Module, batch: Batch) -> dict[str, Tensor]:
        outputs = self.outputs(model, batch)
        values = {"loss": self.losses(outputs, batch)}
        for name, metric in self.metrics.items():
            values[name] = mean_per_sample(_of_samples("metrics", metric, metric(outputs, batch[1])))
        return values

    def outputs(self, model: nn.Module, batch: Batch) -> Any:
        """What the criterion gets of the model."""
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
    """What a criterion or metric returned, unless that is one number for the whole batch.

    Raises:
        JobError: it is.
    """
    if isinstance(values, Tensor) and values.dim() == 0:
        name = getattr(function, "__name__", type(function).__name__)
        raise JobError(
            f"{field}: {name} must return one value per sample, Tensor[N], not one number for the batch; reduce over "
            "the dimensions after the first alone, as .flatten(1).mean(1) does"
        )
    return values


def for_loss(model: nn.Module, outputs: Any) -> Any:
    """The outputs in float32 where a model that holds weights in bfloat16 returns bfloat16, else as they are.

    A loss computed in bfloat16 has three digits. torch's own losses compute in float32 under autocast; a criterion of
    the user's own may not.
    """
    rounded = isinstance(outputs, Tensor) and outputs.dtype is torch.bfloat16
    return outputs.float() if rounded and holds_bfloat16(model) else outputs


def _is_elementwise(criterion: Callable[..., Tensor]) -> bool:
    """Whether it is one of torch's elementwise losses; not a subclass, which may compare what it likes."""
    function = criterion.func if isinstance(criterion, partial) else criterion
    return type(criterion) in ELEMENTWISE_MODULES or function in ELEMENTWISE_FUNCTIONS


def _refuse_other_shape(outputs: Any, targets: Any) -> None:
    """Refuse targets that torch would broadcast against the outputs; from shapes alone, so it waits for no device.

    Raises:
        JobError: the shapes differ.
    """
    if not isinstance(outputs, Tensor) or not isinstance(targets, Tensor) or outputs.shape == targets.shape:
        return
    remedy = "give one target for each output"
    if outputs.numel() == targets.numel():
        more = targets.dim() - outputs.dim()
        remedy = "unsqueeze them" if more < 0 else "squeeze them" if more > 0 else "reshape them"
    expected, given = (_shape_in_words(tensor, targets.shape[:1]) for tensor in (outputs, targets))
    raise JobError(f"data: targets must have the shape of the outputs {expected}, not {given}; {remedy}")


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

    A loss module is copied and its `reduction` set to "none"; a function that has the option is called with it; any
    other function is returned as it is.

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
            f"criterion: must be a loss module or a function (outputs, targets) -> Tensor[N], not {shown(criterion)}"
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
                raise JobError(f"metrics: {shown(name)} must be a function (outputs, targets) -> Tensor[N], not {kind}")
        return dict(metrics)
    for name in metrics:
        if name not in BUILT_IN_METRICS:
            raise JobError(
                f"metrics: unknown metric {shown(name)}; {nearest(name, BUILT_IN_METRICS)}; or pass name: function"
            )
    return {name: BUILT_IN_METRICS[name] for name in metrics}
