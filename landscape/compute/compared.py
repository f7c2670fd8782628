"""The packed problem beside its source: the values of both on samples of the job, in batches of several sizes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from landscape.compute.prepared import PreparedJob
from landscape.core.errors import JobError, shown
from landscape.core.plan import Plan
from landscape.evaluation.derivatives import differentiable_operations
from landscape.evaluation.engines.base import arithmetic, autocast
from landscape.problem.batches import moved
from landscape.problem.samples import Samples
from landscape.problem.supervised import Observe
from landscape.problem.user_code import in_words

SIZES = (1, 2, 7, 64)  # samples of a batch
STEP = 0.01  # of weights, relative to their size, to the second point of comparison
TOLERANCES = {"float64": 1e-12, "bfloat16": 2e-2}
TOLERANCE = 1e-6
GRADIENT_OF = 5  # samples whose losses are derived
GRADIENT_TOLERANCES = {"float64": 1e-8, "bfloat16": 0.1}  # of the largest derivative of a parameter
GRADIENT_TOLERANCE = 1e-3
OTHERWISE = "model: computes otherwise when it is exported"
REMEDY = (
    "; something in it depends on more than its weights and its batch, such as int() of a shape, which becomes a "
    "constant; run the job from its source"
)
CPU = torch.device("cpu")


@dataclass(frozen=True)
class Compared:
    """How far the packed problem's values are from those of its source.

    Attributes:
        difference: the largest, relative to the size of the value, or absolute below 1.
        batches: how many were compared.
    """

    difference: float
    batches: int

    @property
    def equal(self) -> bool:
        """Whether they are equal to the bit."""
        return self.difference == 0.0


def compare(
    source: tuple[nn.Module, Observe], packed: tuple[nn.Module, Observe], samples: Samples, plan: Plan
) -> Compared:
    """Compare both at the model's weights, and at weights a small step away.

    Raises:
        JobError: they differ by more than rounding; or the packed one does not run.
    """
    dtype = torch.float64 if plan.precision == "float64" else torch.float32
    worst, count = 0.0, 0
    with arithmetic(plan, CPU), torch.no_grad(), autocast(plan, CPU):
        for step in (0.0, STEP):
            for model in (source[0], packed[0]):
                _move(model, step)
            for size in SIZES:
                batch = moved(samples.batch(0, min(size, samples.length)), CPU, dtype)
                mine = _observed(source[1], source[0], batch)
                try:
                    other = _observed(packed[1], packed[0], batch)
                except JobError:
                    raise
                except Exception as error:
                    raise JobError(f"{OTHERWISE}: of {size} samples it {in_words(error)[:200]}{REMEDY}") from error
                worst, count = max(worst, _difference(mine, other)), count + 1
        batch = moved(samples.batch(0, min(GRADIENT_OF, samples.length)), CPU, dtype)
    with arithmetic(plan, CPU), autocast(plan, CPU):
        _compare_gradients(source, packed, batch, plan)
    if worst > TOLERANCES.get(plan.precision, TOLERANCE):
        raise JobError(f"{OTHERWISE}, by {worst:.2g}{REMEDY}")
    return Compared(worst, count)


def refuse_other_layers(source: PreparedJob, packed: PreparedJob) -> None:
    """Refuse landscapes that say which layer breaks, where the packed network has other layers than its source.

    Raises:
        JobError: names the first layer of the source that the packed one has not.
    """
    for mine, theirs in zip(source.landscapes, packed.landscapes, strict=True):
        if mine.record.layers is None or theirs.record.layers is None:
            continue
        left = [name for name in mine.record.layers.layers if name not in theirs.record.layers.layers]
        if left or mine.record.layers.layers != theirs.record.layers.layers:
            what = f" such as {shown(left[0])}" if left else ""
            raise JobError(
                f"layers: must be left out of landscape {shown(mine.name)} to be packed, as the packed network has "
                f"operations in place of layers{what}; or run the job from its source"
            )


def _compare_gradients(
    source: tuple[nn.Module, Observe], packed: tuple[nn.Module, Observe], batch: object, plan: Plan
) -> None:
    """Refuse other derivatives, as where a part of the loss was computed without gradients."""
    try:
        mine = _gradients(*source, batch)
    except (RuntimeError, NotImplementedError):  # the source has none itself
        return
    try:
        other = _gradients(*packed, batch)
    except Exception as error:
        raise JobError(f"{OTHERWISE}: its derivative {in_words(error)[:200]}{REMEDY}") from error
    tolerance = GRADIENT_TOLERANCES.get(plan.precision, GRADIENT_TOLERANCE)
    for name, gradient in mine.items():
        scale = float(gradient.nan_to_num(nan=0.0).abs().max()) if gradient.numel() else 0.0
        same = torch.equal(gradient.isnan(), other[name].isnan())  # where the source has none, the packed one has none
        apart = float((gradient - other[name]).nan_to_num(nan=0.0).abs().max()) if gradient.numel() else 0.0
        if not same or not apart <= tolerance * scale + 1e-12:
            raise JobError(f"{OTHERWISE}: its derivative by {name} differs by {apart:.2g} of {scale:.2g}{REMEDY}")


def _gradients(model: nn.Module, observe: Observe, batch: object) -> dict[str, Tensor]:
    trained = {name: each for name, each in model.named_parameters() if each.is_floating_point()}
    for each in trained.values():
        each.requires_grad_(True)
    try:
        with differentiable_operations():
            losses = [value for name, value in _observed(observe, model, batch).items() if value.requires_grad]
            total = torch.stack([value.double().sum() for value in losses]).sum()
            found = torch.autograd.grad(total, [*trained.values()], allow_unused=True, materialize_grads=True)
        return dict(zip(trained, found, strict=True))
    finally:
        for each in trained.values():
            each.requires_grad_(False)


def _move(model: nn.Module, step: float) -> None:
    """Move every parameter by a step that is the same for both models."""
    for parameter in model.parameters():
        if step and parameter.is_floating_point() and parameter.numel():
            places = torch.arange(parameter.numel()).reshape(parameter.shape) % 7 - 3
            parameter.add_(places.to(parameter.dtype) * (step * parameter.float().abs().mean().to(parameter.dtype)))


def _observed(observe: Observe, model: nn.Module, batch: object) -> Mapping[str, Tensor]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return observe(model, batch)


def _difference(mine: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> float:
    if set(mine) != set(other) or any(mine[name].shape != other[name].shape for name in mine):
        return float("inf")
    worst = 0.0
    for name, values in mine.items():
        one, two = values.double(), other[name].double()
        if not torch.equal(torch.isnan(one), torch.isnan(two)):
            return float("inf")
        apart = ((one - two).abs() / one.abs().clamp(min=1.0)).nan_to_num(nan=0.0)
        worst = max(worst, float(apart.max()) if apart.numel() else 0.0)
    return worst
