"""The value that the user's callback returns: a model, its data, and what to observe of each sample."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from landscape.core.errors import JobError, shown
from landscape.problem.batches import Batch
from landscape.problem.language import CausalLM, refuse_other_models
from landscape.problem.observables import Combination, Observe, check_expected, check_names, check_term_weights
from landscape.problem.supervised import Metric, Supervised
from landscape.problem.terms import parse_terms
from landscape.problem.tokens import language_data
from landscape.surface.derived import check_derived


@dataclass(frozen=True)
class Problem:
    """What a landscape is computed of.

    Each classmethod builds one common kind of problem and only chooses `observe`.

    Args:
        model: the network. Its weights as returned are the origin, unless the job names a snapshot. It is never
            changed: all work is done on a copy.
        data: tensors with one first dimension (a tensor, or tuples, lists and dicts of them), a map-style `Dataset`,
            a `DataLoader`, or an iterable of batches. A batch of a loader is what its `collate_fn` returns, of any
            structure.
        observe: `observe(model, batch)` → {"loss": Tensor[N], …}, one value per sample of the batch; `loss` is
            required. It must use the model that it is given. It runs under `torch.no_grad`; a function that needs
            derivatives with respect to its inputs (a physics-informed network) opens `torch.enable_grad` itself.
        observables: the names that `observe` returns. They are needed only where `observe` runs on GPUs alone and the
            driver's machine has none: a job with `device: cuda` then leaves the first evaluation to the workers.
        length: `length(batch)`, the number of samples of a batch, where its structure does not tell.
        term_weights: name → λ, where the loss is Σ λ·mean of several terms; `observe` then returns the losses of each
            term by its name, [n] each, and no `loss`. `Problem.terms` builds such a problem.
        derived: name → formula, for surfaces that follow from the mean of an observable: {"perplexity": "exp(loss)"}.
        expected: {"loss": what the network's mean loss is known to be}, from a paper or an evaluation of one's own;
            `landscape check` compares the loss at the centre with it. It changes no value.

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

    def __post_init__(self) -> None:
        if self.observables is not None:
            check_names("observables", self.observables, with_loss=True)
        if self.length is not None and not callable(self.length):
            raise JobError(f"length: must be a function (batch) -> number of samples, not {shown(self.length)}")
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
    def causal_lm(cls, model: nn.Module, tokens: Any) -> Problem:
        """A language model that predicts each next token; perplexity is derived from the mean loss.

        The loss of a sequence is the mean cross entropy of its predicted tokens, in nats, and their number is its
        weight: the loss of a landscape is the mean over tokens, and `perplexity` its exponential. `token_accuracy` is
        the share of tokens that are the likeliest.

        Args:
            model: a model of transformers, with or without adapters of peft, or any module that returns logits
                [N, T, vocabulary]. Its logits are made a chunk of tokens at a time where its output head allows it.
            tokens: token ids [N, T]; a dict of `input_ids`, `attention_mask` and `labels` (-100 counts nothing), [N, T]
                each; a list or a data set of sequences of different lengths, or of such dicts; or a `DataLoader` of
                batches like these.

        Raises:
            JobError: the tokens are no ids of the model's vocabulary, a sequence predicts none, or nothing of the model
                is trained.
        """
        refuse_other_models(model)
        observe = CausalLM(model)
        data, observe.checked = language_data(tokens, observe.reader(model))
        return cls(model, data, observe, CausalLM.names, derived={"perplexity": "exp(loss)"})

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
