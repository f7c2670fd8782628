"""The mean loss by a plain loop over the user's own model, without an engine and without the code that moves weights.

At θ₀ the model itself is evaluated, which shows what a copy loses. Elsewhere a fresh copy is evaluated, while the model
itself has the same weights: a hook or an `observe` that reads the original model then finds the right weights, and
values cached by the identity of a model are computed anew. There is no memory for that if the model is large: then the
evaluator's own copy is evaluated, with weights that are set by another sum.
"""

from __future__ import annotations

import contextlib
import copy
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from landscape.core.devices import is_out_of_memory
from landscape.core.errors import Interrupted, JobError, one_line
from landscape.core.plan import BatchNorm, Plan
from landscape.core.random_state import noticed_draws, seed_draws
from landscape.core.validation import WEIGHT
from landscape.evaluation.engines.base import arithmetic, autocast
from landscape.evaluation.evaluator import Evaluator
from landscape.evaluation.feed import batching_of, make_feed
from landscape.evaluation.model_state import ModuleState, private_copy
from landscape.evaluation.running_model import give_memory, take_to_type
from landscape.model.parameters import State, is_large
from landscape.model.shards import box_of, gathering_modules, is_sharded, local_part, reshard, whole_tensor
from landscape.problem.sources import seed_of
from landscape.problem.supervised import Combination, Observe
from landscape.problem.user_code import kept_alive

Batches = Callable[[], Iterator[Any]]
Weights: TypeAlias = Callable[[], Iterable[tuple[str, Tensor]]]  # yields the named tensors of a state one at a time

ROUNDING = 1e-5  # relative, of the mean loss: the promise of engines against plain evaluation
LEAST_ROUNDING = 1e-7  # absolute, for losses near zero
MANY = 8.0  # times the rounding: a larger difference has another cause
ULPS = 4.0  # how far weights are changed to measure the effect of rounding on the loss


class DrawnError(Exception):
    """`observe` draws random numbers, which differ in another floating-point type."""


@dataclass(frozen=True)
class Pair:
    """The loss at one place, in the landscape and by the user's own model.

    Attributes:
        rounding: the change of the loss when weights change by a few units in the last place; 0 if both losses are so
            close that it was not measured.
    """

    evaluated: float
    own: float
    rounding: float = 0.0

    def agrees(self, rounding: float = 0.0) -> bool:
        """Whether rounding explains the difference of both losses, or neither is finite.

        Args:
            rounding: a further known rounding error.
        """
        if not (math.isfinite(self.evaluated) and math.isfinite(self.own)):
            # If only one is finite, infinite rounding shows that the other one overflowed.
            neither = not (math.isfinite(self.evaluated) or math.isfinite(self.own))
            return neither or math.isinf(self.rounding)
        known = max(ROUNDING * max(abs(self.evaluated), abs(self.own)) + LEAST_ROUNDING, self.rounding, rounding)
        return abs(self.evaluated - self.own) <= MANY * known


@dataclass(frozen=True)
class OwnLosses:
    """The losses of the user's own model and of the landscape, at the origin and at one point beside it.

    Attributes:
        beside: None if the losses at the origin differ already by more than the precision may explain.
        why_not: why nothing was compared; then `origin` and `beside` are None.
    """

    point: tuple[float, ...]
    origin: Pair | None = None
    beside: Pair | None = None
    why_not: str = ""


def own_losses(evaluator: Evaluator, point: Sequence[float], at_origin: float, at_point: float) -> OwnLosses:
    """Compare with the user's own model over the same samples in the same batches, by two forward passes.

    If losses differ, a further pass at each place measures the rounding: up to four passes. An exception is no error:
    it becomes the reason why nothing was compared.

    Args:
        at_origin, at_point: the evaluator's losses.
    """
    place = tuple(point)
    try:
        origin = _compare(evaluator, (), at_origin)
        # The record says how much a lower precision changes the loss, so the reader of these losses judges that.
        beside = _compare(evaluator, place, at_point) if origin.agrees() or _is_coarse(evaluator.plan) else None
    except Interrupted:
        raise
    except Exception as error:
        if is_out_of_memory(error):
            remedy = "free memory, or take a smaller batch_size; landscape check compares too"
            return OwnLosses(place, why_not=f"memory did not suffice for its own forward pass: {remedy}")
        return OwnLosses(place, why_not=f"comparing raised {one_line(error)}")
    return OwnLosses(place, origin, beside)


def _is_coarse(plan: Plan) -> bool:
    return plan.precision not in ("float32", "float64")


def _compare(evaluator: Evaluator, point: Sequence[float], evaluated: float) -> Pair:
    def weights() -> Iterator[tuple[str, Tensor]]:
        return weights_at(evaluator.weights_at_origin, evaluator.directions if point else (), point)

    few = partial(loss_of, evaluator, plan=evaluator.plan, fresh=bool(point), batches=evaluator.reference_batches)
    pair = Pair(evaluated, few(weights))
    if pair.agrees():
        return pair
    moved = few(lambda: _shake(weights(), evaluator))
    if not math.isfinite(moved) and not math.isfinite(pair.own):
        return pair  # the own model's loss is not finite whatever the rounding
    change = abs(moved - pair.own)
    return replace(pair, rounding=change if math.isfinite(change) else math.inf)


def _shake(weights: Iterable[tuple[str, Tensor]], evaluator: Evaluator) -> Iterator[tuple[str, Tensor]]:
    """The weights, each a few units in the last place larger or smaller, by a seed."""
    plan, origin, generator = evaluator.plan, evaluator.weights_at_origin, torch.Generator().manual_seed(0)
    for name, tensor in weights:
        if not tensor.is_floating_point():
            yield name, tensor
            continue
        coarse = plan.rounds_weights and origin[name].dtype is torch.bfloat16
        held_in = torch.bfloat16 if coarse else torch.float64 if plan.precision == "float64" else torch.float32
        signs = torch.randint(0, 2, tensor.shape, generator=generator, dtype=torch.int8) * 2 - 1
        yield name, tensor * (1 + ULPS * torch.finfo(held_in).eps * signs.to(tensor.device))


def weights_at(origin: State, directions: Sequence[State], point: Sequence[float]) -> Iterator[tuple[str, Tensor]]:
    """θ₀ + Σ cₖ·dₖ in float64, one tensor after the other; tensors in no direction stay as they are."""
    for name, tensor in origin.items():
        moving = [(c, direction[name]) for c, direction in zip(point, directions, strict=True) if name in direction]
        yield name, sum((c * _double(part) for c, part in moving), start=_double(tensor))


def _double(tensor: Tensor) -> Tensor:
    if tensor.is_complex():
        return tensor.to(torch.complex128)
    return tensor.double() if tensor.is_floating_point() else tensor


def loss_of(
    evaluator: Evaluator, weights: Weights, plan: Plan, batch_norm: BatchNorm = "eval", *, fresh: bool,
    batches: int | None = None, draws: bool = True,
) -> float:  # fmt: skip
    """The mean loss of the user's own model with these weights, over the evaluator's samples in its batches.

    Args:
        plan: the arithmetic: precision, threads and seed.
        fresh: evaluate a fresh copy of the model, see the module's docstring; otherwise the model itself.
        batches: how many, from the first; None for all.
        draws: whether `observe` may draw random numbers.

    Raises:
        DrawnError: `observe` draws random numbers, and may not.
    """
    device = evaluator.device
    dtype = torch.float64 if plan.precision == "float64" else torch.float32
    batching = batching_of(evaluator.samples, plan, evaluator.batch_size, evaluator.held_samples.cuts)
    feed = make_feed(evaluator.held_samples, device, dtype)
    feed.split(batching.edges)

    def of_samples() -> Iterator[Any]:
        for index, batch in feed.batches(batches):
            evaluator.on_point()  # so a stop takes effect between batches
            if index in batching.begins:  # common random numbers, as everywhere
                block = batching.begins[index]
                seed_draws(seed_of(plan.seed, "block", block) if block else plan.seed)
            yield batch

    with (
        arithmetic(plan, device), torch.no_grad(), kept_alive(), autocast(plan, device),
        _own_model(evaluator, plan, weights, fresh=fresh) as model,
    ):  # fmt: skip
        return plain_loss(model, evaluator.observe, of_samples, batch_norm, draws=draws)


@contextlib.contextmanager
def _own_model(evaluator: Evaluator, plan: Plan, weights: Weights, *, fresh: bool) -> Iterator[nn.Module]:
    """The user's own model, or a copy of it, with these weights; see the module's docstring."""
    if is_large(evaluator.model):
        with _large_copy(evaluator, plan) as model:
            set_weights(model, weights())
            yield model
        return
    model = private_copy(evaluator.model)[0] if fresh else evaluator.model
    with _borrow(evaluator.model, plan, evaluator.device):
        if model is not evaluator.model:
            _place_on(model, plan, evaluator.device)
            set_weights(evaluator.model, weights())
            evaluator.model.eval()
        set_weights(model, weights())
        yield model


@contextlib.contextmanager
def _large_copy(evaluator: Evaluator, plan: Plan) -> Iterator[nn.Module]:
    """The evaluator's own copy of its model; a further one only for another type of weights."""
    types = [(each.precision == "float64", each.rounds_weights) for each in (plan, evaluator.plan)]
    if types[0] == types[1] or is_sharded(evaluator.model):
        with evaluator.lent_model() as model:
            yield model
        return
    model = private_copy(evaluator.model)[0]
    take_to_type(model, plan)
    give_memory(model, evaluator.device)
    model.to(evaluator.device)
    yield model


def set_weights(model: nn.Module, weights: Iterable[tuple[str, Tensor]]) -> None:
    """Copy tensors into the model's own parameters and buffers, as `load_state_dict` does."""
    reshard(gathering_modules(model))
    own = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    for name, tensor in weights:
        if name in own:
            box = box_of(own[name])
            local_part(own[name]).copy_(tensor if box is None else box.cut(tensor))


def _place_on(model: nn.Module, plan: Plan, device: torch.device) -> None:
    model.to(device)
    take_to_type(model, plan)


@contextlib.contextmanager
def _borrow(model: nn.Module, plan: Plan, device: torch.device) -> Iterator[None]:
    """The user's own model on the device in the plan's type, for the block; afterwards it is restored to the bit."""
    tensors = [*model.parameters(), *model.buffers()]
    state = ModuleState(model, _own_objects(model, tensors))
    modes = [(module, module.training) for module in model.modules()]
    homes, kept = [tensor.data for tensor in tensors], list[Tensor | None]()
    try:
        _place_on(model, plan, device)
        on_device = {tensor.data_ptr() for tensor in (*model.parameters(), *model.buffers())}
        # Keep copies of tensors that the evaluation writes to; tensors that were moved elsewhere are themselves copies.
        kept += [home.clone() if home.data_ptr() in on_device else None for home in homes]
        yield
    finally:
        state.unnoticed()  # also restore what was written without torch's counters
        state.restore()
        for module, mode in modes:
            module.training = mode
        for tensor, home, values in zip(tensors, homes, kept or [None] * len(homes), strict=True):
            tensor.data = home
            if values is not None:
                home.copy_(values)


def _own_objects(model: nn.Module, tensors: Sequence[Tensor]) -> list[Any]:
    """The objects that a deep copy of the model would copy, found without copying the weights."""
    memo: dict[int, Any] = {id(tensor): tensor for tensor in tensors}
    try:
        copy.deepcopy(model, memo)
    except Exception as cause:  # although the evaluation could copy the model
        raise JobError(f"model: {type(model).__name__} cannot be copied ({one_line(cause)})") from cause
    return [item for item in memo.get(id(memo), ()) if memo.get(id(item)) is not item]


def plain_loss(
    model: nn.Module, observe: Observe, batches: Batches, batch_norm: BatchNorm, *, draws: bool = True
) -> float:
    """The mean loss of a model over the batches, in eval mode; changes the model.

    Raises:
        DrawnError: `observe` draws random numbers, and may not.
    """
    model.eval()
    norms = [module for module in model.modules() if isinstance(module, _NormBase)]
    if batch_norm == "recalibrate":
        for index, batch in enumerate(batches()):
            for norm in norms:
                norm.train()
                norm.momentum = 1 / (index + 1)  # a mean over the batches; the first batch replaces earlier statistics
            observe(model, batch)
    if batch_norm != "eval":
        for norm in norms:
            norm.train(batch_norm == "batch")
    sums: dict[str, list[float]] = {}
    for batch in batches():
        with noticed_draws() as noticed:
            values = {name: whole_tensor(value) for name, value in observe(model, batch).items()}
        if noticed.happened and not draws:
            raise DrawnError
        for name, total, count in _sum_up(values, observe):
            sums.setdefault(name, [0.0, 0.0])
            sums[name][0] += total
            sums[name][1] += count
    factors = observe.factors if isinstance(observe, Combination) else {"loss": 1.0}
    return sum(factors[name] * total / count for name, (total, count) in sums.items())


def _sum_up(values: Mapping[str, Tensor], observe: Observe) -> Iterator[tuple[str, float, float]]:
    """Σ wᵢℓᵢ and Σ wᵢ of a batch, of the loss or of each of its terms."""
    for name in values if isinstance(observe, Combination) else ("loss",):
        losses = values[name].double()
        weights = values[WEIGHT].double() if WEIGHT in values else torch.ones_like(losses)
        yield name, float((weights * losses).sum()), float(weights.sum())
