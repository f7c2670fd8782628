"""Gradients and Hessian products of the loss at one set of weights, block by block of the samples."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from landscape.core.devices import free_bytes
from landscape.core.errors import JobError
from landscape.core.plan import Plan, Precision, for_derivatives
from landscape.core.random_state import seed_draws
from landscape.core.validation import WEIGHT
from landscape.evaluation.engines.base import arithmetic
from landscape.evaluation.evaluator import Evaluator
from landscape.evaluation.feed import batching_of, make_feed
from landscape.evaluation.running_model import LoadedModel, check_observables, type_of
from landscape.evaluation.twice_differentiable import (
    NoSecondDerivative,
    differentiable_operations,
    refuse_wrong_derivatives,
    second_derivatives,
)
from landscape.model.parameters import State, describe_parameters
from landscape.model.shards import (
    cut_like,
    gathering_modules,
    is_sharded,
    local_part,
    refuse_other_type,
    reshard,
    whole_tensor,
)
from landscape.problem.batches import Batch, Samples
from landscape.problem.sources import seed_of
from landscape.problem.supervised import Combination, Observe, Supervised
from landscape.problem.user_code import kept_alive

# ----------------------------------------------------------------------------------------------------
# Products with the Gauss-Newton matrix, for problems that keep a model's outputs and their criterion apart.


def gauss_newton_products(
    observe: Supervised,
    model: nn.Module,
    batch: Batch,
    factor: float,
    parameters: Sequence[Tensor],
    vectors: Sequence[Sequence[Tensor]],
) -> list[list[Tensor]]:
    """JᵀH_ℓJ·v of factor·Σᵢ ℓᵢ(z), z the outputs, J = ∂z/∂θ and H_ℓ = ∂²/∂z² of the criterion (Schraudolph 2002).

    J·v is the derivative of Jᵀu by u, so three gradients suffice, and no forward-mode derivative is needed.

    Args:
        parameters: θ, tensors that require gradients.
        vectors: each v as a tensor per parameter.

    Raises:
        NoSecondDerivative: an operation has no second derivative.
    """
    outputs = observe.outputs(model, batch)
    if is_sharded(model):
        refuse_wrong_derivatives(outputs, over_processes=True)
    at = outputs.detach().requires_grad_()
    loss = factor * observe.losses(at, batch).double().sum()
    (slope,) = torch.autograd.grad(loss, at, create_graph=True)
    weights = torch.zeros_like(outputs, requires_grad=True)
    with second_derivatives():
        pulled = torch.autograd.grad(
            outputs, parameters, weights, create_graph=True, allow_unused=True, materialize_grads=True
        )
    rows = [k for k, slope in enumerate(pulled) if slope.requires_grad]
    products = []
    for vector in vectors:
        with second_derivatives():
            (pushed,) = torch.autograd.grad(
                [pulled[k] for k in rows], weights, [vector[k] for k in rows], retain_graph=True
            )
        curved = torch.zeros_like(at)
        if slope.requires_grad:  # else the criterion is linear
            (curved,) = torch.autograd.grad(slope, at, pushed, retain_graph=True)
        product = torch.autograd.grad(
            outputs, parameters, curved, retain_graph=True, allow_unused=True, materialize_grads=True
        )
        products.append([part.detach() for part in product])
    return products


# ----------------------------------------------------------------------------------------------------
# Gradient graphs that are kept from one Hessian product to the next, if memory has room for them.
#
# Lanczos asks for one product after another at the same weights. The forward pass and the gradient, a third of a
# product, are the same each time.

ROOM = 4  # a block's graphs are kept if this many copies would fit: other processes and values need memory too


class KeptGraphs:
    """The gradients of blocks, with their graphs.

    Args:
        device: holds the graphs.
    """

    def __init__(self, device: torch.device) -> None:
        self._device, self._kept = device, dict[Hashable, list[Sequence[Tensor]]]()
        self._bytes_per_sample: float | None = None
        self._allowed = True

    def of(self, block: Hashable) -> list[Sequence[Tensor]] | None:
        """The kept gradients of each batch of a block; None if none are kept."""
        return self._kept.get(block)

    def keep(self, block: Hashable, gradients: list[Sequence[Tensor]]) -> None:
        """Keep the gradients of all batches of a block."""
        if self._allowed:
            self._kept[block] = gradients

    def forget(self) -> None:
        """Drop all graphs: other weights or other batches follow."""
        self._kept.clear()

    def never(self) -> None:
        """Keep no graphs from now on: tensors that a graph refers to are overwritten."""
        self._allowed = False
        self.forget()

    def has_room(self, samples: int) -> bool:
        """Whether memory has room for the graphs of so many samples; False until a batch was counted."""
        if not self._allowed or self._bytes_per_sample is None:
            return False
        return ROOM * samples * self._bytes_per_sample <= free_bytes(self._device)

    @contextlib.contextmanager
    def counting(self, samples: int) -> Iterator[None]:
        """Once, count the bytes of the graph that the block builds for a batch of so many samples.

        That graph must not be kept: torch does not check tensors that passed a hook for later writes.
        """
        if self._bytes_per_sample is not None or not self._allowed:
            yield
            return
        seen: dict[int, int] = {}

        def count(tensor: Tensor) -> Tensor:
            storage = tensor.untyped_storage()
            seen[storage.data_ptr()] = storage.nbytes()
            return tensor

        with saved_tensors_hooks(count, lambda tensor: tensor):
            yield
        self._bytes_per_sample = sum(seen.values()) / max(1, samples)


# ----------------------------------------------------------------------------------------------------

Products = Literal["autograd", "differences", "gauss-newton"]
"""Products with the Hessian, by differentiating twice or by central differences of gradients, or with JᵀH_ℓJ."""

NO_GRAPH = "fully_shard (FSDP2) keeps no graph of its parts"
RECALIBRATED = "batch_norm: recalibrate computes the statistics anew at every point, and has no derivatives; use eval"


def refuse_underivable(model: nn.Module, plan: Plan) -> None:
    """Raises JobError for a model over several processes whose weights are not held in the type of its derivatives."""
    if not is_sharded(model):
        return
    try:
        refuse_other_type(model, type_of(for_derivatives(plan).precision), rounds=False)
    except JobError:
        raise JobError("no gradients of a model over several processes in bfloat16; build it in float32") from None


def refuse_without_products(model: nn.Module, plan: Plan) -> None:
    """Raises JobError for a model over several processes of which no product with the Hessian can be computed."""
    refuse_underivable(model, plan)
    if gathering_modules(model) and plan.precision != "float64":
        raise JobError(
            "precision: must be float64 for the curvature of a model under FSDP2, which has no second derivatives, but "
            "differences of gradients; build the model in it too"
        )


class Differentiation:
    """The loss L(θ) = Σᵢ wᵢ·ℓᵢ(θ) / Σᵢ wᵢ of the samples at one θ; for a loss of several terms, Σₜ λₜ·Lₜ(θ).

    Every sum over samples is split into the blocks of the plan. A block's part has the same bits in any process, and
    the parts are added in the order of the blocks, in float64. Vectors are float64 [P]: the trainable parameters one
    after another in the model's order. The model computes in float32, or in float64 if the plan does.

    Args:
        model: is copied, unless it is cut over several processes; the copy is in eval mode, with normalisation layers
            as the plan's `batch_norm` says.
        plan: batches, threads, statistics and seed. Its engine and a lower precision are not used.
        weights: θ.
        among: names of the trainable parameters that derivatives are taken along; default: all.

    Raises:
        JobError: no parameter is trainable, or the plan takes running statistics anew at every point.
    """

    def __init__(
        self, model: nn.Module, samples: Samples, observe: Observe, plan: Plan, device: torch.device, weights: State,
        among: Collection[str] | None = None,
    ) -> None:  # fmt: skip
        if plan.statistics.recalibrated:
            raise JobError(RECALIBRATED)
        self._plan = for_derivatives(plan)
        self._observe, self._device = observe, device
        self._loaded, self._weights = LoadedModel(model, self._plan, device), weights
        self._set_origin()
        self._gathering = gathering_modules(self._loaded.model)
        names = (info.name for info in describe_parameters(model) if info.trainable and info.name in weights)
        own = dict(self._loaded.model.named_parameters())
        self._names = [name for name in names if among is None or name in among]
        self.parameters = [own[name].requires_grad_() for name in self._names]
        if not self.parameters:
            raise JobError("model: no parameter requires gradients, so the loss has no derivatives; train some")
        self._last_set: object = None
        self._feed = make_feed(samples, device, self._loaded.dtype)
        self._batch_size, self._graphs = 0, KeptGraphs(device)
        if self._loaded.is_sharded:
            self._graphs.never()  # each process would decide by its own memory, and wait for the others
        self.use_batches(plan.batch_size)

    @classmethod
    def beside(
        cls, evaluator: Evaluator, weights: State, precision: Precision | None = None,
        among: Collection[str] | None = None,
    ) -> Differentiation:  # fmt: skip
        """Derivatives for an evaluator's model and samples, in its batches; `precision` replaces that of its plan."""
        plan = evaluator.plan if precision is None else replace(evaluator.plan, precision=precision)
        samples, observe = evaluator.held_samples, evaluator.observe
        found = cls(evaluator.model, samples, observe, plan, evaluator.device, weights, among)
        found.use_batches(evaluator.batch_size)
        return found

    @property
    def size(self) -> int:
        """P, the number of trainable parameters."""
        return sum(parameter.numel() for parameter in self.parameters)

    @property
    def blocks(self) -> int:
        """How many blocks the samples are split into."""
        return len(self._batching.blocks)

    def use_batches(self, batch_size: int) -> None:
        """Go on in batches of at most so many samples; the blocks stay the same."""
        if batch_size == self._batch_size:
            return
        self._batch_size = batch_size
        self._graphs.forget()
        self._batching = batching_of(self._feed.samples.length, self._plan, batch_size, self._feed.samples.cuts)
        self._feed.split(self._batching.edges)

    def begin(self, evaluator: Evaluator) -> None:
        """Call this before other derivatives beside an evaluator, which may have set points of the same model since.

        A model over several processes is not copied.
        """
        if self._loaded.is_sharded and evaluator.weights.last_set is not self._last_set:
            self._set_origin()
            self._last_set = evaluator.weights.last_set

    def _set_origin(self) -> None:
        self._loaded.place(self._weights, [], self._plan.engine)

    def forget_graphs(self) -> None:
        """Free the graphs that are kept for the next product; they are rebuilt when needed."""
        self._graphs.forget()

    def totals(self, block: int) -> dict[str, float]:
        """Σ wᵢ over a block, of the loss or of each of its terms."""
        totals: dict[str, float] = {}
        with self._computing(), torch.no_grad():
            for batch in self._batches(block):
                for name, _, weights in self._losses(batch):
                    totals[name] = totals.get(name, 0.0) + float(weights.sum())
        return totals

    def gradient(self, block: int, factors: Mapping[str, float]) -> Tensor:
        """A block's part of ∇L: Σₜ fₜ·Σᵢ wᵢ·∇ℓᵢ, float64 [P] on the CPU.

        Args:
            factors: fₜ = λₜ / Σ wᵢ of the loss or of each term, the sum over all blocks, see `loss_factors`.
        """
        return self.value_and_gradient(block, factors)[1]

    def value_and_gradient(self, block: int, factors: Mapping[str, float]) -> tuple[float, Tensor]:
        """A block's part of L and of ∇L, see `gradient`."""
        value, total = 0.0, self._zeros()
        with self._computing():
            for batch in self._batches(block):
                loss = self._weighted_loss(batch, factors)
                value += float(loss.detach())
                slopes = self._first_derivatives(loss)
                total += _flat(
                    torch.zeros_like(parameter) if slope is None else slope
                    for slope, parameter in zip(slopes, self.parameters, strict=True)
                )
        return value, total.cpu()

    def unused(self, block: int, factors: Mapping[str, float]) -> set[str]:
        """The names of the parameters that no loss of a block depends on: they have no gradient, not even zeros."""
        used = set[str]()
        with self._computing():
            for batch in self._batches(block):
                found = self._first_derivatives(self._weighted_loss(batch, factors))
                used |= {name for name, gradient in zip(self._names, found, strict=True) if gradient is not None}
        return set(self._names) - used

    def _first_derivatives(self, loss: Tensor) -> Sequence[Tensor | None]:
        """∇ of a batch's loss by each parameter; None: the loss does not depend on it."""
        if not self._gathering:
            return torch.autograd.grad(loss, self.parameters, allow_unused=True)
        # The parts of FSDP2 are in no graph; a backward pass leaves their gradients, the mean over the processes, which
        # all compute the same samples.
        self._loaded.model.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        reshard(self._gathering)
        found = [parameter.grad for parameter in self.parameters]
        self._loaded.model.zero_grad()
        return found

    @contextlib.contextmanager
    def moved(self, offset: Tensor) -> Iterator[None]:
        """Within the block, derivatives are those at θ + ε, rounded to the type of the model; ε is float64 [P]."""
        home = [local_part(parameter).detach().clone() for parameter in self.parameters]
        parts = self._split(offset.to(self._device), torch.float64)
        self._graphs.forget()  # graphs are valid at one θ only
        try:
            self._set([values.double() + local_part(part) for values, part in zip(home, parts, strict=True)])
            yield
        finally:
            self._set(home)
            self._graphs.forget()

    def products(
        self, block: int, factors: Mapping[str, float], vectors: Sequence[Tensor], how: Products = "autograd"
    ) -> list[Tensor]:
        """A block's part of H·v for each vector v, float64 [P] on the CPU; H = ∇²L.

        `autograd` differentiates g·v, g = ∇L, once more (Pearlmutter 1994, "Fast exact multiplication by the
        Hessian"). `differences` takes (∇L(θ + εv) − ∇L(θ − εv)) / 2ε with ε = √u·max(1, rms θ)/‖v‖, u the unit roundoff
        of float64: two gradients, and an error of about √u. The best step of a smooth loss, u^⅓, is 400 times as long:
        it crosses so many kinks of a deep ReLU network that the difference is meaningless. In float32 no step works.

        Raises:
            NoSecondDerivative: `how` is `autograd`, and an operation of the model has no second derivative.
        """
        if self._gathering and how != "differences":
            raise NoSecondDerivative(NO_GRAPH)
        ways = {"autograd": self._by_autograd, "differences": self._by_differences, "gauss-newton": self._gauss_newton}
        with self._computing():
            return [
                product.cpu() for product in ways[how](block, factors, [vector.to(self._device) for vector in vectors])
            ]

    def curvatures(self, block: int, direction: Mapping[str, Tensor]) -> dict[str, tuple[Tensor, Tensor]]:
        """vᵀ∇²ℓᵢv and wᵢ of every sample of a block, of the loss or of each of its terms, float64 on the CPU.

        With ℓ = Σᵢ uᵢℓᵢ the number vᵀ∇²ℓv is linear in u, and its derivative by uᵢ is vᵀ∇²ℓᵢv: three derivatives give
        all samples of a batch at once. Differences would need a step, and no step suits all samples.

        Args:
            direction: v, a tensor per parameter; zero for parameters that it lacks.

        Raises:
            NoSecondDerivative: an operation of the model cannot be differentiated three times.
        """
        found = dict[str, list[tuple[Tensor, Tensor]]]()
        if self._gathering:
            raise NoSecondDerivative(NO_GRAPH)
        along = [
            cut_like(parameter, direction[name].to(parameter)) if name in direction else torch.zeros_like(parameter)
            for name, parameter in zip(self._names, self.parameters, strict=True)
        ]
        with self._computing():
            for batch in self._batches(block):
                for name, losses, weights in self._losses(batch):
                    bends = _curvatures(losses, self.parameters, along, over_processes=self._loaded.is_sharded)
                    found.setdefault(name, []).append((bends.double().cpu(), weights.double().cpu()))
        return {
            name: (torch.cat([bends for bends, _ in batches]), torch.cat([w for _, w in batches]))
            for name, batches in found.items()
        }

    def _by_autograd(self, block: int, factors: Mapping[str, float], vectors: Sequence[Tensor]) -> list[Tensor]:
        totals = [self._zeros() for _ in vectors]
        split = [self._split(vector) for vector in vectors]
        for gradients, stay in self._slopes(block, factors):
            # A gradient that depends on no parameter, as of a linear loss, has no graph; its derivative is zero.
            rows = [k for k, gradient in enumerate(gradients) if gradient.requires_grad]
            for total, parts in zip(totals, split, strict=True):
                if not rows:
                    continue
                with second_derivatives():
                    products = torch.autograd.grad(
                        [gradients[k] for k in rows], self.parameters, [parts[k] for k in rows],
                        retain_graph=stay or parts is not split[-1], allow_unused=True, materialize_grads=True,
                    )  # fmt: skip
                total += _flat(products)
        return totals

    def _slopes(self, block: int, factors: Mapping[str, float]) -> Iterator[tuple[Sequence[Tensor], bool]]:
        """The gradient of each batch of a block with its graph, and whether the graph is kept for the next product."""
        key = (block, tuple(sorted(factors.items())))
        if (kept := self._graphs.of(key)) is not None:
            yield from ((gradients, True) for gradients in kept)
            return
        first = self._batching.of_block(block)
        edges = self._batching.edges[first : first + self._batching.blocks[block]]
        stay, made = self._graphs.has_room(edges[-1][1] - edges[0][0]), list[Sequence[Tensor]]()
        for batch, (start, end) in zip(self._batches(block), edges, strict=True):
            with self._graphs.counting(end - start):
                loss = self._weighted_loss(batch, factors)
                refuse_wrong_derivatives(loss, over_processes=self._loaded.is_sharded)
                with second_derivatives():
                    gradients = torch.autograd.grad(
                        loss, self.parameters, create_graph=True, allow_unused=True, materialize_grads=True
                    )
            if self._loaded.state.changed():
                # Tensors that the model writes to are restored before the next batch; a kept graph may refer to them.
                stay = False
                self._graphs.never()
            made.append(gradients)
            yield gradients, stay
        if stay:
            self._graphs.keep(key, made)

    def _by_differences(self, block: int, factors: Mapping[str, float], vectors: Sequence[Tensor]) -> list[Tensor]:
        assert self._loaded.dtype == torch.float64, "differences of gradients in float32 are rounding"
        rms = math.sqrt(
            sum(float(whole_tensor(parameter.detach().double().square().sum())) for parameter in self.parameters)
            / self.size
        )
        products = []
        for vector in vectors:
            size = float(vector.norm())
            if size == 0:
                products.append(self._zeros())
                continue
            step = math.sqrt(torch.finfo(torch.float64).eps) * max(1.0, rms) / size
            ends = []
            for sign in (1, -1):
                with self.moved(sign * step * vector):
                    ends.append(self.gradient(block, factors).to(self._device))
            products.append((ends[0] - ends[1]) / (2 * step))
        return products

    def _gauss_newton(self, block: int, factors: Mapping[str, float], vectors: Sequence[Tensor]) -> list[Tensor]:
        assert isinstance(self._observe, Supervised)
        totals, split = [self._zeros() for _ in vectors], [self._split(vector) for vector in vectors]
        for batch in self._batches(block):
            self._loaded.state.restore()
            found = gauss_newton_products(
                self._observe, self._loaded.model, batch, factors["loss"], self.parameters, split
            )
            for total, product in zip(totals, found, strict=True):
                total += _flat(product)
        return totals

    # -- samples ----------------------------------------------------------------------------------------------

    def _batches(self, block: int) -> Iterator[Batch]:
        """The batches of a block, with the generators seeded as for values."""
        seed_draws(seed_of(self._plan.seed, "block", block) if block else self._plan.seed)
        first = self._batching.of_block(block)
        for _, batch in self._feed.batches(self._batching.blocks[block], first):
            yield batch

    def _losses(self, batch: Batch) -> Iterator[tuple[str, Tensor, Tensor]]:
        """Name, ℓᵢ and wᵢ of the loss, or of each of its terms."""
        self._loaded.state.restore()
        with kept_alive():
            values = self._observe(self._loaded.model, batch)
        values = {name: whole_tensor(value) for name, value in values.items()} if self._loaded.is_sharded else values
        observed = check_observables(values, batch, self._observe, self._feed.counts, self._loaded)
        names = list(observed) if isinstance(self._observe, Combination) else ["loss"]
        for name in names:
            losses = observed[name]
            weights = observed.get(WEIGHT)
            yield name, losses, torch.ones_like(losses) if weights is None else weights.detach()

    def _weighted_loss(self, batch: Batch, factors: Mapping[str, float]) -> Tensor:
        """Σₜ fₜ·Σᵢ wᵢ·ℓᵢ of a batch, which is differentiated."""
        parts = [
            factors[name] * (weights.double() * losses.double()).sum() for name, losses, weights in self._losses(batch)
        ]
        total = torch.stack(parts).sum()
        if not total.requires_grad:
            raise JobError(
                "observe: the loss has no graph of gradients, so it has no derivatives; compute it without no_grad, "
                "detach, item or numpy"
            )
        return total

    @contextlib.contextmanager
    def _computing(self) -> Iterator[None]:
        with arithmetic(self._plan, self._device), torch.enable_grad(), differentiable_operations():
            yield

    # -- vectors ----------------------------------------------------------------------------------------------

    def _zeros(self) -> Tensor:
        return torch.zeros(self.size, dtype=torch.float64, device=self._device)

    def _split(self, vector: Tensor, dtype: torch.dtype | None = None) -> list[Tensor]:
        """A vector in the shapes of the parameters, cut as they are."""
        parts = torch.split(vector, [parameter.numel() for parameter in self.parameters])
        return [
            cut_like(parameter, part.view(parameter.shape).to(dtype or parameter.dtype))
            for part, parameter in zip(parts, self.parameters, strict=True)
        ]

    @torch.no_grad()
    def _set(self, values: Sequence[Tensor]) -> None:
        self._graphs.forget()
        reshard(self._gathering)
        for parameter, value in zip(self.parameters, values, strict=True):
            local_part(parameter).copy_(value)


def _curvatures(
    losses: Tensor, parameters: Sequence[Tensor], along: Sequence[Tensor], *, over_processes: bool = False
) -> Tensor:
    """vᵀ∇²ℓᵢv of each loss; the graph of the losses is kept, as other terms may share it."""
    if not losses.requires_grad:
        return torch.zeros_like(losses)
    refuse_wrong_derivatives(losses, over_processes=over_processes)
    shares = torch.ones_like(losses).requires_grad_()
    with second_derivatives():
        value: Tensor = losses
        outer: Tensor | None = shares
        for _ in range(2):
            slopes = torch.autograd.grad(
                value, parameters, outer, create_graph=True, allow_unused=True, materialize_grads=True
            )
            parts = [whole_tensor((slope * part).sum()) for slope, part in zip(slopes, along, strict=True)]
            value, outer = torch.stack(parts).sum(), None
            if not value.requires_grad:
                return torch.zeros_like(losses)
        (found,) = torch.autograd.grad(value, shares, retain_graph=True, allow_unused=True, materialize_grads=True)
    return found.detach()


def _flat(tensors: Iterable[Tensor]) -> Tensor:
    return torch.cat([whole_tensor(tensor.detach()).double().flatten() for tensor in tensors])
