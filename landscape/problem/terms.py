"""`Problem`, the value that a callback returns; and losses of several terms, each at points of its own."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from landscape.core.errors import JobError, quoted
from landscape.problem.batches import (
    Batch,
    Samples,
    batch_bytes,
    batch_length,
    map_tensors,
    not_finite,
    samples_digest,
    tensors_of,
)
from landscape.problem.language import CausalLM, language_data, refuse_other_models
from landscape.problem.large_models import cut_over, read_language_model, read_tokens
from landscape.problem.sources import as_rows
from landscape.problem.supervised import (
    Combination,
    Metric,
    Observe,
    Supervised,
    check_expected,
    check_names,
    check_term_weights,
    mean_per_sample,
)
from landscape.surface.derived import check_derived

# ----------------------------------------------------------------------------------------------------
# Losses of several terms, with one set of points for every term.


@dataclass(frozen=True)
class PointData:
    """The `Problem.data` of a loss of several terms: all points of every term, by its name."""

    sets: Mapping[str, Batch]

    @property
    def length(self) -> int:
        """The number of points of the largest set."""
        return max(map(batch_length, self.sets.values()))


@dataclass(frozen=True)
class PointSets(Samples):
    """Points by the name of their term. Batch k holds the points [k·B, (k+1)·B) of every set that has that many."""

    sets: Mapping[str, Batch]

    @property
    def length(self) -> int:
        """The number of points of the largest set, which is the last to be used up by batches."""
        return max(self.sizes.values())

    @property
    def sizes(self) -> dict[str, int]:
        """The number of points of every set."""
        return {name: batch_length(points) for name, points in self.sets.items()}

    @property
    def rows(self) -> None:
        """None: the sets have different sizes."""

    @property
    def nbytes(self) -> int:
        """Of all sets."""
        return sum(map(batch_bytes, self.sets.values()))

    def batch(self, start: int, stop: int) -> dict[str, Batch]:
        """The points from `start` to before `stop` of every set; sets that are used up are absent."""
        return {
            name: map_tensors(lambda tensor: tensor[start:stop], points)
            for name, points in self.sets.items()
            if batch_length(points) > start
        }

    def count(self, start: int, stop: int, batch: Batch) -> None:
        """None: every term has its own number of points."""

    def few(self, count: int) -> PointSets:
        """The first `count` points of every set."""
        return PointSets(self.batch(0, count))

    def digest(self) -> str:
        """SHA-256 over the names and points of all sets."""
        text = " ".join(f"{name}:{samples_digest(points)}" for name, points in self.sets.items())
        return hashlib.sha256(text.encode()).hexdigest()

    def set_digest(self, numbers: NDArray[np.int64]) -> str:
        """SHA-256 over the names of all sets and the sorted digests of their points; `numbers` are those of one set."""
        text = ";".join(f"{name}:{' '.join(sorted(_digests(points)))}" for name, points in self.sets.items())
        return hashlib.sha256(text.encode()).hexdigest()

    def not_finite(self) -> dict[str, int]:
        """How many points hold NaN or infinity, by term."""
        counts = {name: sum(not_finite(points).values()) for name, points in self.sets.items()}
        return {name: count for name, count in counts.items() if count}


def _digests(points: Batch) -> list[str]:
    """The digest of every point."""
    rows = zip(*(tensor.unsqueeze(1) for tensor in tensors_of(points)), strict=True)
    return [samples_digest(list(row)) for row in rows]


Residual = Callable[[nn.Module, Any], Tensor]


@dataclass(frozen=True)
class Terms:
    """`observe` for batches {term: points}; `Problem.terms` describes the arguments.

    Args:
        functions: `function(model, points)` → Tensor[n, …] of every term.
    """

    functions: Mapping[str, Residual]

    def __call__(self, model: nn.Module, batch: Mapping[str, Batch]) -> dict[str, Tensor]:
        """The losses [n] of every term with points in the batch."""
        return {name: self._losses(name, model, points) for name, points in batch.items()}

    def _losses(self, name: str, model: nn.Module, points: Batch) -> Tensor:
        """The losses of one term; unless the caller takes gradients, its graph is freed before the next is made."""
        takes_gradients = torch.is_grad_enabled()
        with torch.enable_grad():
            losses = self.functions[name](model, map_tensors(_differentiable, points))
        count = tensors_of(points)[0].shape[0]  # not from `batch_length`: during export, lengths are symbols
        if not isinstance(losses, Tensor) or not losses.dim() or losses.shape[0] != count:
            returned = tuple(losses.shape) if isinstance(losses, Tensor) else type(losses).__name__
            raise JobError(
                f"terms: the function of {quoted(name)} must return a loss per point, shape ({count},), not "
                f"{returned}; do not average over the points"
            )
        return mean_per_sample(losses if takes_gradients else losses.detach())


def _differentiable(points: Tensor) -> Tensor:
    """The same numbers as a leaf for derivatives with respect to them; whole numbers have none."""
    return points.detach().requires_grad_(points.is_floating_point())


def parse_terms(terms: Any) -> tuple[PointData, Terms, dict[str, float]]:
    """The points, the functions and the weights of `Problem.terms`.

    Raises:
        JobError: a term is not (points, function, weight), has no points, or an impossible name or weight.
    """
    if not isinstance(terms, Mapping):
        raise JobError(f"terms: must be a dict {{name: (points, function, weight)}}, not {type(terms).__name__}")
    for name, term in terms.items():
        if not isinstance(term, (tuple, list)) or len(term) not in (2, 3):
            kind = f"{len(term)} values" if isinstance(term, (tuple, list)) else type(term).__name__
            raise JobError(f"terms: {quoted(name)} must be (points, function, weight), not {kind}")
        if not callable(term[1]):
            raise JobError(
                f"terms: the function of {quoted(name)} must be function(model, points) -> Tensor[n], not "
                f"{quoted(term[1])}; give (points, function, weight) in this order"
            )
    factors = {name: term[2] if len(term) == 3 else 1.0 for name, term in terms.items()}
    check_term_weights(factors)
    weights = {name: float(factor) for name, factor in factors.items()}
    points = PointData({name: _points(name, term[0]) for name, term in terms.items()})
    return points, Terms({name: term[1] for name, term in terms.items()}), weights


def _points(name: str, value: Any) -> Batch:
    """The points of a term as tensors on the CPU that share their first dimension."""
    try:
        points = as_rows(value)
        count = batch_length(points)
    except JobError as error:
        raise JobError(f"terms: the points of {quoted(name)}: {str(error).removeprefix('data: ')}") from None
    if not count:
        raise JobError(
            f"terms: {quoted(name)} must have at least one point, not 0; leave out the term, or give it points"
        )
    return points


# ----------------------------------------------------------------------------------------------------
# The value that the user's callback returns.


@dataclass(frozen=True)
class Problem:
    """The model, the data and the observables of a landscape.

    Each classmethod builds one common kind of problem and only chooses `observe`.

    Args:
        model: the network. Its weights as returned are the origin, unless the job names a snapshot. It is never
            changed: all work is done on a copy.
        data: tensors with one first dimension (a tensor, or tuples, lists and dicts of them), a map-style `Dataset`,
            a `DataLoader`, or an iterable of batches. A batch of a loader is what its `collate_fn` returns, of any
            structure.
        observe: `observe(model, batch)` → {"loss": Tensor[N], …}, one value per sample of the batch; `loss` is
            required. It must use the model in its argument. It runs under `torch.no_grad`; a function that needs
            derivatives with respect to its inputs (a physics-informed network) opens `torch.enable_grad` itself.
        observables: the names that `observe` returns. They are needed only if `observe` runs on GPUs alone and the
            driver's machine has none: a job with `device: cuda` then leaves the first evaluation to the workers.
        length: `length(batch)`, the number of samples of a batch, if its structure does not tell.
        term_weights: name → λ, if the loss is Σ λ·mean of several terms; `observe` then returns the losses of each
            term by its name, [n] each, and no `loss`. `Problem.terms` builds such a problem.
        derived: name → formula, for surfaces that follow from the mean of an observable: {"perplexity": "exp(loss)"}.
        expected: {"loss": the known mean loss of the network}, from a paper or an evaluation of your own; `landscape
            check` compares the loss at the centre with it. It changes no value.
        weights: a file of weights, or a folder of safetensors shards with their index, that holds the weights of the
            network. They are read where they are needed and never all at once, and the model may be on torch's `meta`
            device, where it takes no memory.
        shared_over: a device mesh over which the samples are shared out, of a model that every process holds as a whole
            in a forward pass (FSDP2); default: every process evaluates all of them (tensor parallel).

    Raises:
        JobError: a name cannot be stored or is given twice, a term's weight is not positive, a formula is unknown,
            `observables` lacks `loss`, or `expected` is no loss.
    """

    model: nn.Module
    data: Any
    observe: Observe
    observables: Sequence[str] | None = None
    length: Callable[[Batch], int] | None = None
    term_weights: Mapping[str, float] | None = None
    derived: Mapping[str, str] = field(default_factory=dict)
    expected: Mapping[str, float] = field(default_factory=dict)
    weights: str | Path | None = None
    shared_over: Any = None

    def __post_init__(self) -> None:
        if self.weights is not None:
            object.__setattr__(self, "weights", Path(self.weights).absolute())
        if self.observables is not None:
            check_names("observables", self.observables, with_loss=True)
        if self.length is not None and not callable(self.length):
            raise JobError(f"length: must be a function (batch) -> number of samples, not {quoted(self.length)}")
        if self.term_weights is not None:
            check_term_weights(self.term_weights)
            if not isinstance(self.observe, Combination):
                object.__setattr__(self, "observe", Combination(self.observe, dict(self.term_weights)))
        check_derived(self.derived, self.observables)
        check_expected(self.expected)

    @classmethod
    def supervised(
        cls,
        model: nn.Module,
        data: Any,
        criterion: Callable[..., Tensor] = nn.functional.cross_entropy,
        metrics: Mapping[str, Metric] | Sequence[str] | None = None,
        expected: Mapping[str, float] | None = None,
    ) -> Problem:
        """The common case: batches (inputs, targets), outputs = model(inputs), a criterion and metrics.

        Args:
            model: see `Problem`.
            data: see `Problem`.
            criterion: a loss module or function with a `reduction` option, or any function
                (outputs, targets) → Tensor[N, …]; dimensions after the first are averaged.
            metrics: name → function (outputs, targets) → Tensor[N, …], or the names of built-in ones
                (`accuracy`, `top5`, `error`). Default: `accuracy` for a cross-entropy or NLL criterion, else none.
            expected: see `Problem`.

        Raises:
            JobError: the criterion or a metric is not callable, or a metric's name is unknown or cannot be stored.
        """
        observe = Supervised(criterion, metrics)
        return cls(model, data, observe, ("loss", *observe.metrics), expected=expected or {})

    @classmethod
    def causal_lm(
        cls, model: nn.Module | str | Path, tokens: Any, *, length: int | None = None, packed: bool = True,
        weights: str | Path | None = None,
    ) -> Problem:  # fmt: skip
        """A language model that predicts each next token; perplexity is derived from the mean loss.

        The model is fed all T tokens of a sequence, and its logits at each but the last are scored on the token after
        it: T tokens make T - 1 predictions. The loss of a sequence is the mean cross entropy of its predicted tokens,
        in nats, and their number is its weight: the loss of a landscape is the mean over tokens, and `perplexity` its
        exponential. `token_accuracy` is the share of tokens that are the likeliest.

        Args:
            model: a model of transformers, with or without adapters of peft, or any module that returns logits
                [N, T, vocabulary]. Its logits are made a chunk of tokens at a time where its output head allows it. Or
                a folder of Hugging Face: config.json, safetensors with their index, tokenizer.json; its weights stay
                in their files.
            tokens: token ids [N, T]; a dict of `input_ids`, `attention_mask` and `labels` (-100 counts nothing), [N, T]
                each; a list or a data set of sequences of different lengths, or of such dicts; or a `DataLoader` of
                batches like these. Or a file: `.txt`, `.jsonl` with a `text` a line, or `.npy` of ids.
            length: tokens of a sequence of a file; default: as many as the model reads, at most 1024.
            packed: whether the documents of a file are joined and cut into sequences of equal length; otherwise every
                document is a sequence, cut to the length.
            weights: see `Problem`; of a folder of Hugging Face they are its own.

        Raises:
            JobError: the tokens are no ids of the model's vocabulary, a sequence predicts none, or nothing of the model
                is trained.
        """
        folder = Path(model) if isinstance(model, (str, Path)) else None
        if not isinstance(model, nn.Module):
            model, of_folder = read_language_model(Path(model))
            weights = weights or of_folder
        refuse_other_models(model)
        if isinstance(tokens, (str, Path)) and Path(tokens).suffix:
            positions = getattr(getattr(model, "config", None), "max_position_embeddings", None)
            tokens = read_tokens(Path(tokens), folder, length, positions, packed=packed)
        observe = CausalLM(model)
        data, observe.checked = language_data(tokens, observe.reader(model))
        return cls(model, data, observe, CausalLM.names, derived={"perplexity": "exp(loss)"}, weights=weights)

    def sharded(self, mesh: Any, plan: Mapping[str, Any] | None = None) -> Problem:
        """This problem with its model cut over the processes of a device mesh, each of which reads its own part.

        The model is best on torch's `meta` device, with its weights in a file: `Problem.causal_lm(folder, text)` makes
        such a problem.

        Args:
            mesh: what a callback `def problem(mesh)` gets.
            plan: for tensor parallel, `colwise` or `rowwise` by the names of layers, such as {"blocks.*.expand":
                "colwise", "blocks.*.contract": "rowwise"}; every process then evaluates all samples. Default: FSDP2,
                which gathers one block at a time, and shares the samples out.

        Raises:
            JobError: the plan names no layer or an unknown style.
        """
        cut_over(self.model, mesh, plan)
        return replace(self, shared_over=None if plan is not None else mesh)

    @classmethod
    def terms(cls, model: nn.Module, terms: Mapping[str, tuple[Any, ...]]) -> Problem:
        """A loss of several terms, each at points of its own: a physics-informed network, a penalty, a second data set.

        The loss is Σ λ·mean over the terms; each term is a surface of its own, with its error. `num_samples` points at
        most are drawn of every set, of each by a seed of its own.

        Args:
            model: see `Problem`.
            terms: name → (points, function, λ), λ being 1 where it is left out. Points are a tensor [n, …], or tuples,
                lists and dicts of tensors with one first dimension. `function(model, points)` → Tensor[n, …] gives the
                losses, such as squared residuals; dimensions after the first are averaged. Derivatives may be taken
                with respect to floating-point points, by `torch.autograd.grad` with `create_graph=True`.

        Raises:
            JobError: a term has no points, no function, or a weight that is not positive.

        Example:
            >>> import torch
            >>> def slope(model, x):
            ...     return (torch.autograd.grad(model(x).sum(), x)[0] - 1).square()
            >>> line = torch.nn.Linear(1, 1)
            >>> inside = torch.rand(100, 1), slope, 1.0
            >>> edge = torch.zeros(1, 1), lambda model, x: model(x).square(), 10.0
            >>> Problem.terms(line, {"inside": inside, "edge": edge}).term_weights
            {'inside': 1.0, 'edge': 10.0}
        """
        points, observe, weights = parse_terms(terms)
        return cls(model, points, observe, ("loss", *weights), term_weights=weights)
