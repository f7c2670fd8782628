"""Moved layers that see the same input at every point: their outputs are sums of outputs computed once per batch.

A linear layer or a convolution is affine in its weights. With θ₀ = (W₀, b₀) and directions dₖ = (Dₖ, eₖ) its output is

    y(c) = (W₀x + b₀) + Σₖ cₖ·(Dₖx + eₖ),

so that along a row of points, where only the last coordinate changes, two outputs give all of them: what the row
shares, and what its direction adds. A point then costs one pass over the output instead of the layer. The points of a
row are evaluated within a batch, not the batches within a point, so that only two outputs of one batch are kept.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Self, cast

import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F

from landscape.core.random_state import noticed_draws
from landscape.evaluation.checksum import checksums
from landscape.evaluation.engines.arithmetic import arithmetic, autocast
from landscape.evaluation.engines.reuse import same
from landscape.evaluation.engines.rewrite import Rewrite, Target
from landscape.evaluation.weights import MovingWeights
from landscape.problem.batches import first_of
from landscape.problem.user_code import kept_alive

Layer = nn.Linear | nn.Conv1d | nn.Conv2d | nn.Conv3d
Parts = Sequence[tuple[Tensor | None, Tensor | None]]  # weight and bias of θ₀, then of every direction
LAYERS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


class InputVaries(RuntimeError):
    """A layer got another input at one point than at another."""


def layers_of_same_input(
    model: nn.Module, moved: Sequence[Tensor], observe_points: Sequence[Callable[[], Any]]
) -> list[Layer]:
    """The moved layers whose outputs are such sums: those whose inputs are the same at every point.

    Args:
        observe_points: observe the same few samples, each at another point.

    Raises:
        ValueError: there are none, as where all are held in bfloat16, or random numbers are drawn, whose order would
            change.
    """
    moved_ids = {id(tensor) for tensor in moved}
    layers = [each for each in model.modules() if _is_affine(each, moved_ids)]
    rounded = [each for each in layers if any(tensor.dtype is torch.bfloat16 for tensor in each.parameters())]
    if layers and rounded == layers:
        raise ValueError("the weights are rounded to bfloat16 at every point, so that no output is a sum of others")
    inputs = _Inputs([each for each in layers if each not in rounded])
    with inputs:
        for observe in observe_points:
            with noticed_draws() as draws:
                observe()
            inputs.end_point()
            if draws.happened:
                raise ValueError("observe draws random numbers, in the order of whole points")
    if not inputs.same:
        raise ValueError("no moved layer that is linear gets the same input at every point")
    return inputs.same


def superposable(target: Target) -> list[Layer]:
    """The layers of a model that can be computed as sums, found with two samples at two points; the state is restored.

    Raises:
        ValueError: there are none, or `observe` changes what the model holds.
    """
    if target.plan.statistics.recalibrated:
        raise ValueError(f"batch_norm: {target.plan.batch_norm} goes over all samples twice at every point")
    few, weights = first_of(target.first_batch(), 2), target.weights

    def observe_at(coordinate: float) -> None:
        target.state.restore()
        weights.set_point([coordinate] * weights.axes)
        before = checksums(weights.moved_tensors)
        with autocast(target.plan, target.device):
            target.observe(target.model, few)
        written = before != checksums(weights.moved_tensors)
        if written or weights.changed or target.state.changed():
            raise ValueError("observe changes what the model holds, batch after batch of a point")

    try:
        with kept_alive(), arithmetic(target.plan, target.device), torch.no_grad():
            points = [partial(observe_at, coordinate) for coordinate in (0.0, 1.0)]
            return layers_of_same_input(target.model, weights.moved_tensors, points)
    finally:
        target.restore()


class Superposition(Rewrite):
    """Takes over the calls of `layers`: sums of what they return for a row of points and for its direction.

    Args:
        weights: of the model that the layers are in.
        layers: from `layers_of_same_input`.
    """

    remembers = True

    def __init__(self, weights: MovingWeights, layers: Sequence[Layer]) -> None:
        self.layers = frozenset[nn.Module](layers)
        self._calls: Counter[Layer] = Counter()
        self._sums: dict[tuple[Layer, int], _Sum] = {}
        self._point: Sequence[float] | None = None
        for layer in layers:
            parts = list(zip(weights.parts(layer.weight), weights.parts(layer.bias), strict=True))
            layer.forward = partial(self._call, layer, parts)  # type: ignore[method-assign]

    @classmethod
    def applies(cls, target: Target) -> bool:
        """Whether a moved layer gets the same input at two points; raises where it cannot be found out."""
        return bool(superposable(target))

    @classmethod
    def install(cls, target: Target, graph: fx.GraphModule | None, taken: frozenset[nn.Module]) -> Self:
        """Take over the calls of these layers."""
        return cls(target.weights, superposable(target))

    @property
    def remembered(self) -> int:
        """How many outputs are kept now."""
        return len(self._sums)

    def refresh(self, point: Sequence[float] | None) -> None:
        """The calls that follow are for this point; None: for weights that are no point, computed as they are."""
        self._point = point
        self._calls.clear()

    def forget(self) -> None:
        """Nothing is kept, and calls are computed as they are until a point of another row, or of other samples."""
        self._sums.clear()
        self.refresh(None)

    def close(self) -> None:
        """Leave the layers as they were."""
        self.forget()
        for layer in self.layers:
            del layer.forward

    def _call(self, layer: Layer, parts: Parts, inputs: Tensor) -> Tensor:
        if self._point is None or torch.is_grad_enabled():
            return type(layer).forward(layer, inputs)  # type: ignore[arg-type]
        *first, last = self._point
        key = (layer, self._calls[layer])
        self._calls[layer] += 1
        if key not in self._sums:
            self._sums[key] = _Sum.of(layer, parts, first, inputs)
        return self._sums[key].at(last, inputs)


@dataclass(frozen=True)
class _Sum:
    """The outputs of one call for the weights that a row shares and for the row's direction, in float32 at least."""

    inputs: Tensor
    version: int
    shared: Tensor
    along: Tensor
    dtype: torch.dtype

    @classmethod
    def of(cls, layer: Layer, parts: Parts, first: Sequence[float], inputs: Tensor) -> _Sum:
        kind = inputs.device.type
        dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else layer.weight.dtype
        weights, biases = ([pair[k] for pair in parts] for k in (0, 1))
        shared = (_moved(weights, first), _moved(biases, first))
        with torch.autocast(kind, enabled=False):
            constant, along = _outputs(layer, inputs.to(layer.weight.dtype), [shared, parts[-1]])
        return cls(inputs, inputs._version, constant, along, dtype)

    def at(self, last: float, inputs: Tensor) -> Tensor:
        unchanged = inputs is self.inputs and inputs._version == self.version
        if not unchanged and (inputs is self.inputs or not same(inputs, self.inputs)):
            raise InputVaries("superposed: a layer gets another input at another point; take an engine without it")
        output = torch.add(self.shared, self.along, alpha=last)
        return output if output.dtype == self.dtype else output.to(self.dtype)


def _moved(parts: Sequence[Tensor | None], first: Sequence[float]) -> Tensor | None:
    """A weight, or a bias, at the coordinates that a row shares; None where the layer has none."""
    origin, *axes = parts[:-1]
    if origin is not None:
        for axis, coordinate in zip(axes, first, strict=True):
            if axis is not None:
                origin = torch.add(origin, axis, alpha=coordinate)
    return origin


def _outputs(layer: Layer, inputs: Tensor, parts: Parts) -> list[Tensor]:
    """The layer's outputs with each of these weights and biases, None standing for zeros.

    All at once, as one layer of more outputs: a kernel with a handful of them makes poor use of the processor.
    """
    zeros = torch.zeros_like(layer.weight)
    weights = [zeros if weight is None else weight for weight, _ in parts]
    none = torch.zeros_like(zeros.flatten(1)[:, 0])
    biases = [none if bias is None else bias for _, bias in parts]
    if isinstance(layer, nn.Linear):
        outputs, dim = F.linear(inputs, torch.cat(weights), torch.cat(biases)), -1
    elif layer.groups > 1:
        return [layer._conv_forward(inputs, *each) for each in zip(weights, biases, strict=True)]
    else:
        outputs = layer._conv_forward(inputs, torch.cat(weights), torch.cat(biases))
        dim = -1 - len(layer.kernel_size)
    # Where channels come first, a chunk of one sample is one piece of memory already; else copying makes it one.
    return [chunk if outputs.is_contiguous() else chunk.clone() for chunk in outputs.chunk(len(parts), dim)]


def _is_affine(module: nn.Module, moved: set[int]) -> bool:
    """Whether a module is nothing but one of `LAYERS`, of a real type, and moves."""
    plain = type(module) in LAYERS and "forward" not in vars(module) and not any(getattr(module, n) for n in HOOKS)
    tensors = list(module.parameters())
    return plain and any(id(each) in moved for each in tensors) and not any(each.is_complex() for each in tensors)


class _Inputs:
    """While active, what the layers are called with is compared from point to point."""

    def __init__(self, layers: Sequence[nn.Module]) -> None:
        self._layers = [cast(Layer, each) for each in layers]
        self._before: dict[nn.Module, list[Tensor]] | None = None
        self._now: dict[nn.Module, list[Tensor]] = {}

    def __enter__(self) -> None:
        self._handles = [each.register_forward_pre_hook(self._see) for each in self._layers]

    def __exit__(self, *_: object) -> None:
        for each in self._handles:
            each.remove()

    @property
    def same(self) -> list[Layer]:
        return [each for each in self._layers if (self._before or {}).get(each)]

    def _see(self, layer: nn.Module, inputs: tuple[Any, ...]) -> None:
        self._now.setdefault(layer, []).append(inputs[0].clone())

    def end_point(self) -> None:
        """Go on with the layers whose inputs at this point were those of the points before."""
        if self._before is not None:
            self._now = {
                each: inputs for each, inputs in self._now.items() if same(inputs, self._before.get(each))
            }  # fmt: skip
        self._before, self._now = self._now, {}
