"""The user's problem: a model, its data and what to observe per sample; and the fixed choice of samples.

A callback takes no argument and returns a `Problem`. Everything the system evaluates goes through
`observe(model, batch)`, so any model fits that gives one loss per sample.
"""

from __future__ import annotations

import copy
import hashlib
import importlib
import inspect
import itertools
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset, SubsetRandomSampler, default_collate

from landscape.errors import JobError, nearest

Batch = Any  # a tensor, or tuples, lists and dicts of tensors that share their first dimension
Observe = Callable[[nn.Module, Batch], Mapping[str, Tensor]]
Metric = Callable[[Any, Any], Tensor]


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
    """

    model: nn.Module
    data: Any
    observe: Observe

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
        return cls(model, data, Supervised(criterion, metrics))


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


def _named_metrics(metrics: Mapping[str, Metric] | Sequence[str]) -> dict[str, Metric]:
    if isinstance(metrics, Mapping):
        return dict(metrics)
    for name in metrics:
        if name not in BUILT_IN_METRICS:
            raise JobError(
                f"metrics: unknown metric {name!r}; {nearest(name, BUILT_IN_METRICS)}; or pass name: function"
            )
    return {name: BUILT_IN_METRICS[name] for name in metrics}


def load_problem(reference: str | Callable[[], Any], folder: Path | None = None) -> Problem:
    """Call the callback `reference`, a callable or 'module:function' with the module looked up in `folder` first.

    Raises:
        JobError: it does not import, raises, or returns something that is not a `Problem`.
    """
    callback = import_callback(reference, folder) if isinstance(reference, str) else reference
    name = reference if isinstance(reference, str) else getattr(callback, "__qualname__", repr(callback))
    try:
        problem = callback()
    except JobError:
        raise
    except Exception as cause:
        raise JobError(
            f"problem: {name} raised {one_line(cause)}; it must return a Problem when called alone"
        ) from cause
    if not isinstance(problem, Problem):
        raise JobError(
            f"problem: {name} must return a landscape.Problem, not {type(problem).__name__}; "
            "end it with `return Problem(model, data, observe)`"
        )
    if not isinstance(problem.model, nn.Module):
        raise JobError(f"problem: {name}: model must be a torch.nn.Module, not {type(problem.model).__name__}")
    if not callable(problem.observe):
        raise JobError(f"problem: {name}: observe must be callable, not {type(problem.observe).__name__}")
    return problem


def import_callback(reference: str, folder: Path | None = None) -> Callable[[], Any]:
    """Import 'module:function'; a file beside the job wins over an installed module of the same name."""
    module_name, _, function = reference.partition(":")
    if folder is not None:
        _prefer(folder, module_name.partition(".")[0])
    try:
        module = importlib.import_module(module_name)
    except Exception as cause:
        beside = f" beside the job file ({folder}) or" if folder else ""
        raise JobError(
            f"problem: module {module_name!r} does not import: {one_line(cause)}; it is looked up{beside} on sys.path"
        ) from cause
    callback = getattr(module, function, None)
    if not callable(callback):
        names = [name for name, value in vars(module).items() if callable(value) and not name.startswith("_")]
        raise JobError(f"problem: module {module_name!r} has no function {function!r}; {nearest(function, names)}")
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


def one_line(error: BaseException) -> str:
    """An exception as 'Type: message' on one line of at most 300 characters."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}"[:300] if text else type(error).__name__


def map_tensors(function: Callable[[Tensor], Tensor], batch: Batch) -> Batch:
    """Apply `function` to every tensor of a batch and keep its structure."""
    if isinstance(batch, Tensor):
        return function(batch)
    if isinstance(batch, Mapping):
        return {key: map_tensors(function, value) for key, value in batch.items()}
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(map_tensors(function, value) for value in batch))
    if isinstance(batch, (tuple, list)):
        return type(batch)(map_tensors(function, value) for value in batch)
    raise JobError(f"data: batches must hold tensors in tuples, lists and dicts, not {type(batch).__name__}")


def tensors_of(batch: Batch) -> list[Tensor]:
    """The tensors of a batch in a fixed order."""
    found: list[Tensor] = []
    map_tensors(lambda tensor: found.append(tensor) or tensor, batch)  # type: ignore[func-returns-value]
    return found


def batch_length(batch: Batch) -> int:
    """How many samples a batch holds: the one first dimension of its tensors."""
    lengths = {tensor.shape[0] if tensor.dim() else None for tensor in tensors_of(batch)}
    if len(lengths) != 1 or None in lengths:
        shapes = [tuple(tensor.shape) for tensor in tensors_of(batch)]
        raise JobError(
            f"data: all tensors of a batch must share their first dimension, the samples; got shapes {shapes}"
        )
    return int(lengths.pop() or 0)


def select_samples(data: Any, num_samples: int, seed: int, *, at_most: bool = False) -> Batch:
    """Choose `num_samples` different samples by the seed alone and return them as one batch on the CPU.

    Tensors and map-style data sets keep the samples' order in the data. An iterable is read once, batch by
    batch, and only the chosen samples are kept: each sample gets a uniform key and the smallest keys win.

    Args:
        at_most: take all there are where `num_samples` is more; otherwise that is refused.

    Raises:
        JobError: there are fewer samples than asked for, or the data is none of the known kinds.
    """
    if isinstance(data, DataLoader):
        return _from_loader(data, num_samples, seed, at_most)
    if isinstance(data, IterableDataset):
        raise JobError(
            f"data: {type(data).__name__} yields samples without a number; wrap it in a DataLoader, which makes batches"
        )
    if isinstance(data, (Tensor, tuple, Mapping)) or _is_list_of_tensors(data):
        data = map_tensors(lambda tensor: tensor.detach().cpu(), _numpy_to_tensors(data))
        index = _choose(batch_length(data), num_samples, seed, at_most)
        return map_tensors(lambda tensor: tensor[index].contiguous(), data)
    if isinstance(data, Dataset) or (
        hasattr(data, "__getitem__") and hasattr(data, "__len__") and not _holds_batches(data)
    ):
        return _from_dataset(data, num_samples, seed, at_most, default_collate)
    if isinstance(data, Iterable):
        return _from_batches(data, num_samples, seed, at_most)
    raise JobError(f"data: must be tensors, a map-style Dataset or an iterable of batches, not {type(data).__name__}")


def _is_list_of_tensors(data: Any) -> bool:
    return (
        isinstance(data, list)
        and bool(data)
        and all(isinstance(each, Tensor) for each in data)
        and (len({each.shape[:1] for each in data}) == 1 and len(data) <= 8)
    )


def _holds_batches(data: Any) -> bool:
    """Whether a plain list holds batches (tuples of tensors with a sample dimension) rather than samples."""
    return (
        isinstance(data, list)
        and bool(data)
        and any(tensor.dim() > 0 for tensor in tensors_of(_numpy_to_tensors(data[0])))
    )


def _numpy_to_tensors(data: Any) -> Any:
    if isinstance(data, np.ndarray):
        return torch.from_numpy(data)
    if isinstance(data, Mapping):
        return {key: _numpy_to_tensors(value) for key, value in data.items()}
    return type(data)(_numpy_to_tensors(each) for each in data) if type(data) in (tuple, list) else data


def _choose(available: int, num_samples: int, seed: int, at_most: bool) -> Tensor:
    _check_enough(available, num_samples, at_most)
    order = torch.randperm(available, generator=torch.Generator().manual_seed(seed))
    return order[:num_samples].sort().values


def _check_enough(available: int, num_samples: int, at_most: bool) -> None:
    if available == 0:
        raise JobError("data: holds no samples; num_samples needs at least 1")
    if num_samples > available and not at_most:
        raise JobError(f"num_samples: must be at most the {available} samples that the data has, not {num_samples}")


def _from_loader(data: DataLoader[Any], num_samples: int, seed: int, at_most: bool) -> Batch:
    """From the data set behind a loader, whose own shuffling and drop_last depend on who reads it."""
    dataset = data.dataset
    if isinstance(dataset, IterableDataset):
        return _from_batches(data, num_samples, seed, at_most)
    if data.batch_sampler is None:  # batch_size=None: the data set's items are batches
        items = (data.collate_fn(dataset[i]) for i in range(len(dataset)))  # type: ignore[arg-type]
        return _from_batches(items, num_samples, seed, at_most)
    if isinstance(data.sampler, SubsetRandomSampler):
        dataset = Subset(dataset, sorted({int(i) for i in data.sampler.indices}))
    return _from_dataset(dataset, num_samples, seed, at_most, data.collate_fn)


def _from_dataset(data: Any, num_samples: int, seed: int, at_most: bool, collate: Callable[[list[Any]], Any]) -> Batch:
    index = _choose(len(data), num_samples, seed, at_most)
    return map_tensors(lambda tensor: tensor.detach().cpu().contiguous(), collate([data[int(i)] for i in index]))


def _from_batches(data: Iterable[Any], num_samples: int, seed: int, at_most: bool) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    kept: Batch = None
    keys = torch.empty(0, dtype=torch.float64)
    seen = 0
    for batch in _batches(data):
        count = batch_length(batch)
        seen += count
        keys = torch.cat([keys, torch.rand(count, generator=generator, dtype=torch.float64)])
        kept = batch if kept is None else _concatenate(kept, batch)
        if len(keys) > num_samples:
            best = keys.topk(num_samples, largest=False).indices.sort().values
            keys, kept = keys[best], map_tensors(lambda tensor, best=best: tensor[best], kept)  # type: ignore[misc]
    _check_enough(seen, num_samples, at_most)
    return map_tensors(lambda tensor: tensor.contiguous(), kept)


def _batches(data: Iterable[Any]) -> Iterator[Batch]:
    for batch in data:
        yield map_tensors(lambda tensor: tensor.detach().cpu(), _numpy_to_tensors(batch))


def _concatenate(first: Batch, second: Batch) -> Batch:
    if isinstance(first, Tensor) and isinstance(second, Tensor):
        try:
            return torch.cat([first, second])
        except RuntimeError as error:
            raise JobError(f"data: batches must have samples of one shape to be joined: {one_line(error)}") from None
    if isinstance(first, Mapping) and isinstance(second, Mapping) and set(first) == set(second):
        return {key: _concatenate(value, second[key]) for key, value in first.items()}
    if isinstance(first, (tuple, list)) and type(first) is type(second) and len(first) == len(second):
        joined = [_concatenate(*pair) for pair in zip(first, second, strict=True)]
        return type(first)(*joined) if hasattr(first, "_fields") else type(first)(joined)
    raise JobError(
        f"data: batches must have one structure to be joined, not {type(first).__name__} and {type(second).__name__} "
        "with other keys or lengths"
    )


def samples_digest(samples: Batch) -> str:
    """SHA-256 over shape, type and bytes of the chosen samples."""
    found = hashlib.sha256()
    for tensor in tensors_of(samples):
        found.update(f"{tensor.dtype} {tuple(tensor.shape)};".encode())
        found.update(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return found.hexdigest()


def split_batches(samples: Batch, batch_size: int) -> list[Batch]:
    """All samples in consecutive batches of at most `batch_size`, their sizes differing by one at most."""
    count = batch_length(samples)
    parts = -(-count // batch_size)
    edges = [count * part // parts for part in range(parts + 1)]
    return [
        map_tensors(lambda tensor, a=a, b=b: tensor[a:b], samples)  # type: ignore[misc]
        for a, b in itertools.pairwise(edges)
    ]


def check_observed(values: Any, count: int) -> dict[str, Tensor]:
    """What `observe` returned, checked: a dict of real tensors [count] with `loss` among them.

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
        if not isinstance(name, str) or not name.isidentifier() or _is_reserved(name):
            raise JobError(f"observe: {name!r} cannot name an observable; use a plain word that the store does not use")
        if not isinstance(value, Tensor):
            raise JobError(f"observe: {name!r} must be a tensor with one value per sample, not {type(value).__name__}")
        if tuple(value.shape) != (count,):
            raise JobError(
                f"observe: {name!r} must have shape ({count},), one value per sample, not {tuple(value.shape)}; "
                "use reduction='none'"
            )
        if value.is_complex():
            raise JobError(f"observe: {name!r} must be real, not {value.dtype}")
    return dict(values)


def _is_reserved(name: str) -> bool:
    return name in RESERVED or name.startswith("path_") or name.endswith("_stderr")


RESERVED = frozenset({"status", "directions", "alpha", "beta", "gamma", "axis", "parameter", "snapshot"})
