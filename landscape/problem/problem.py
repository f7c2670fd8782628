"""The user's problem: a model, its data and what to observe per sample.

A callback takes no argument and returns a `Problem`. Everything the system evaluates goes through
`observe(model, batch)`, so any model fits that gives one loss per sample.
"""

from __future__ import annotations

import copy
import importlib
import inspect
import itertools
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from landscape.draws import fixed_seeds
from landscape.errors import JobError, nearest, shown
from landscape.problem.samples import Batch
from landscape.problem.user_code import calling

Observe = Callable[[nn.Module, Batch], Mapping[str, Tensor]]
Metric = Callable[[Any, Any], Tensor]
CALLBACK_SEED = 0  # weights that a callback draws without a seed of its own are the same in every process


@dataclass(frozen=True)
class Problem:
    """What a landscape is computed of.

    Args:
        model: the network; its weights as returned are the origin unless the job names a snapshot. It is
            never changed: all work is done on a copy.
        data: tensors with one first dimension (a tensor, or tuples, lists, dicts of them), a map-style
            `Dataset`, a `DataLoader`, or an iterable of batches.
        observe: `observe(model, batch)` → {"loss": Tensor[N], …}, one value per sample of the batch, `loss`
            required. It runs under `torch.no_grad`; one that needs derivatives with respect to its inputs
            (physics-informed networks) opens `torch.enable_grad` itself. It must use the model it is given.
        observables: the names that `observe` returns. Needed only where `observe` runs on GPUs alone and the driver
            has none: a job with `device: cuda` then leaves the first look to the workers.
    """

    model: nn.Module
    data: Any
    observe: Observe
    observables: Sequence[str] | None = None

    def __post_init__(self) -> None:
        if self.observables is not None:
            _check_names("observables", self.observables, loss=True)

    @classmethod
    def supervised(
        cls,
        model: nn.Module,
        data: Any,
        criterion: Callable[..., Tensor] = nn.functional.cross_entropy,
        metrics: Mapping[str, Metric] | Sequence[str] | None = None,
    ) -> Problem:
        """The common case: batches (inputs, targets), outputs = model(inputs), a criterion and metrics.

        Args:
            criterion: a loss module or function with a `reduction` option, or any function
                (outputs, targets) → Tensor[N, …]; dimensions after the first are averaged.
            metrics: name → function (outputs, targets) → Tensor[N], or the names of built-in ones
                (`accuracy`, `top5`, `error`). Default: `accuracy` for a cross-entropy or NLL criterion, else none.
        """
        observe = Supervised(criterion, metrics)
        return cls(model, data, observe, ("loss", *observe.metrics))


class Supervised:
    """`observe` for batches (inputs, targets); see `Problem.supervised`."""

    def __init__(self, criterion: Callable[..., Tensor], metrics: Mapping[str, Metric] | Sequence[str] | None) -> None:
        self.criterion = per_sample(criterion)
        self.metrics = _named_metrics(_default_metrics(criterion) if metrics is None else metrics)

    def __call__(self, model: nn.Module, batch: Batch) -> dict[str, Tensor]:
        if not isinstance(batch, (tuple, list)) or len(batch) != 2:
            raise JobError(
                f"data: Problem.supervised needs batches (inputs, targets), not {type(batch).__name__}; "
                "write an observe(model, batch) of your own for other batches"
            )
        inputs, targets = batch
        outputs = model(inputs)
        values = {"loss": _mean_per_sample(self.criterion(outputs, targets))}
        for name, metric in self.metrics.items():
            values[name] = _mean_per_sample(metric(outputs, targets))
        return values


def _mean_per_sample(values: Tensor) -> Tensor:
    """[N, …] → [N], the mean over all dimensions after the first."""
    if values.dim() <= 1:
        return values
    return (values if values.is_floating_point() else values.double()).flatten(1).mean(1)


def per_sample(criterion: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """The criterion without its reduction over samples: a copied module, or the function with reduction='none'."""
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
    classifying = (nn.CrossEntropyLoss, nn.NLLLoss)
    functions = (nn.functional.cross_entropy, nn.functional.nll_loss)
    return ("accuracy",) if isinstance(criterion, classifying) or criterion in functions else ()


def _named_metrics(metrics: Mapping[str, Any] | Sequence[str]) -> dict[str, Metric]:
    _check_names("metrics", metrics, loss=False)
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


def load_problem(reference: str | Callable[[], Any], folder: Path | None = None) -> Problem:
    """Call the callback `reference`, a callable or 'module:function' with the module looked up in `folder` first.

    Raises:
        JobError: it does not import, raises, or returns something that is not a `Problem`.
    """
    with fixed_seeds(CALLBACK_SEED):  # also while it is imported: a module may make its model
        callback = import_callback(reference, folder) if isinstance(reference, str) else reference
    name = reference if isinstance(reference, str) else getattr(callback, "__qualname__", repr(callback))
    with calling(f"problem: {name}", "it must return a Problem when called alone"), fixed_seeds(CALLBACK_SEED):
        problem = callback()
    if not isinstance(problem, Problem):
        raise JobError(
            f"problem: {name} must return a landscape.Problem, not {type(problem).__name__}; "
            "end it with `return Problem(model, data, observe)`"
        )
    if not isinstance(problem.model, nn.Module):
        raise JobError(f"problem: {name}: model must be a torch.nn.Module, not {type(problem.model).__name__}")
    for name_, tensor in itertools.chain(problem.model.named_parameters(), problem.model.named_buffers()):
        if nn.parameter.is_lazy(tensor) or tensor.is_meta:
            raise JobError(
                f"problem: {name}: model: {shown(name_)} holds no numbers (a lazy layer, or the meta device); load its "
                "weights, and run one batch through lazy layers"
            )
    if not callable(problem.observe):
        raise JobError(f"problem: {name}: observe must be callable, not {type(problem.observe).__name__}")
    return problem


def import_callback(reference: str, folder: Path | None = None) -> Callable[[], Any]:
    """Import 'module:function'; a file beside the job wins over an installed module of the same name."""
    module_name, _, function = reference.partition(":")
    if folder is not None:
        _prefer(folder, module_name.partition(".")[0])
    beside = f" beside the job file ({folder}) or" if folder else ""
    with calling(f"problem: module {shown(module_name)} does not import: it", f"it is looked up{beside} on sys.path"):
        module = importlib.import_module(module_name)
    callback = getattr(module, function, None)
    if not callable(callback):
        names = [name for name, value in vars(module).items() if callable(value) and not name.startswith("_")]
        raise JobError(
            f"problem: module {shown(module_name)} has no function {shown(function)}; {nearest(function, names)}"
        )
    return callback  # type: ignore[no-any-return]


def _prefer(folder: Path, top: str) -> None:
    """Put `folder` first where modules are looked up, and forget one of the same name that came from elsewhere."""
    if sys.path[:1] != [str(folder)]:
        sys.path.insert(0, str(folder))
    importlib.invalidate_caches()
    beside = [folder / f"{top}.py", folder / top / "__init__.py"]
    known = getattr(sys.modules.get(top), "__file__", None) or ""
    if any(each.is_file() for each in beside) and Path(known).resolve() not in {each.resolve() for each in beside}:
        for name in [name for name in sys.modules if name == top or name.startswith(f"{top}.")]:
            del sys.modules[name]


def _per_sample_remedy(shape: tuple[int, ...], count: int) -> str:
    """Losses of tokens or pixels come flat, or with further dimensions, and want a mean over each sample."""
    if len(shape) == 1 and count and shape[0] > count and shape[0] % count == 0:
        return f"{shape[0]} = {count} x {shape[0] // count}: average each sample, such as .view({count}, -1).mean(1)"
    if len(shape) > 1 and shape[0] == count:
        return "average each sample, such as .flatten(1).mean(1)"
    return "use reduction='none'"


class OtherObservables(JobError):
    """`observe` returns other names here than elsewhere: the landscape has no place for them, wherever it is tried."""


def check_observed(values: Any, count: int, names: Sequence[str] | None = None) -> dict[str, Tensor]:
    """What `observe` returned, checked: a dict of real tensors [count] with `loss` among them, in the order of names.

    Args:
        names: what it returned before.

    Raises:
        JobError: it is something else; says what and how to mend it.
    """
    if not isinstance(values, Mapping):
        raise JobError(
            "observe: must return a dict of per-sample tensors such as {'loss': Tensor[N]}, "
            f"not {type(values).__name__}"
        )
    if "loss" not in values:
        raise JobError(f"observe: must return 'loss'; it returned {sorted(map(str, values)) or 'nothing'}")
    for name, value in values.items():
        if (reason := _unfit(name)) is not None:
            raise JobError(f"observe: {shown(name)} cannot name an observable: {reason}")
        if not isinstance(value, Tensor):
            raise JobError(
                f"observe: {shown(name)} must be a tensor with one value per sample, not {type(value).__name__}"
            )
        if tuple(value.shape) != (count,):
            raise JobError(
                f"observe: {shown(name)} must have shape ({count},), one value per sample, not {tuple(value.shape)}; "
                f"{_per_sample_remedy(tuple(value.shape), count)}"
            )
        if value.is_complex():
            raise JobError(f"observe: {shown(name)} must be real, not {value.dtype}")
    found = ordered_names(values)
    if names is not None and found != tuple(names):
        raise OtherObservables(
            f"observe: must return the same names for every batch and point, not {shown(list(names))} for one and "
            f"{shown(list(found))} for another"
        )
    # In one order, as what follows tells columns by their place.
    return {name: values[name] for name in found}


def ordered_names(names: Iterable[str]) -> tuple[str, ...]:
    """The observables as everything lists them: `loss`, then the others by name."""
    return ("loss", *sorted(name for name in names if name != "loss"))


def _check_names(field: str, names: Any, *, loss: bool) -> None:
    """Names of metrics or observables, each once and none that is taken; `loss` is asked for or is none of them."""
    if isinstance(names, str) or not isinstance(names, Iterable):
        raise JobError(f"{field}: must be a list of names, not {type(names).__name__}")
    names = list(names)
    for name in names:
        if (reason := _unfit(name)) is not None:
            raise JobError(f"{field}: {shown(name)} cannot name an observable: {reason}")
        if names.count(name) > 1:
            raise JobError(f"{field}: must name each once, not {shown(name)} {names.count(name)} times")
    if loss and "loss" not in names:
        raise JobError(f"{field}: must name 'loss', not only {shown(names)}; observe returns it")
    if not loss and "loss" in names:
        raise JobError(f"{field}: 'loss' is what the criterion gives; give the metric another name")


def _unfit(name: Any) -> str | None:
    """Why this cannot name an observable."""
    if not isinstance(name, str):
        return f"it must be a word, not {type(name).__name__}"
    if not name.isidentifier():
        return "it must be a plain word of letters, digits and underscores"
    taken = name in RESERVED or name.startswith("path_") or name.endswith("_stderr")
    return "the store uses it itself; take another word" if taken else None


RESERVED = frozenset({"status", "directions", "alpha", "beta", "gamma", "axis", "parameter", "snapshot"})
