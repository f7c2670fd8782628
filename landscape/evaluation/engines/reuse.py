"""Activations below the first moved layer, computed once per batch and reused at every point.

A module that holds no moved tensor and gets the same input at every point gives the same output at every point. Such
modules are found by watching calls, not by tracing, so any control flow is allowed. Reused outputs have the same bits.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Self, cast

import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F

from landscape.core.devices import free_bytes
from landscape.core.random_state import noticed_draws
from landscape.evaluation.engines.base import HOOKS, Rewrite, RewriteTarget, arithmetic, autocast
from landscape.evaluation.feed import checksums
from landscape.evaluation.model_state import ModuleState
from landscape.evaluation.weights import MovingWeights
from landscape.problem.batches import first_of
from landscape.problem.user_code import kept_alive

SHARE_OF_MEMORY = 0.25  # of the free memory, for kept activations
TRIAL = 0  # the batch on which stable modules are found


@dataclass(frozen=True)
class _Record:
    """One call of a module: its inputs and output, and their versions, which show later writes."""

    inputs: Any
    output: Any
    versions: tuple[int, ...]

    @property
    def intact(self) -> bool:
        return self.versions == _versions((self.inputs, self.output))


class Reuse(Rewrite):
    """Wraps the topmost modules of `model` that hold none of the `moved` tensors, and keeps their outputs.

    Args:
        limit: bytes of activations kept at most; default: a share of the memory that is free on the device.
    """

    remembers = True
    trusts_counters = True

    def __init__(self, model: nn.Module, moved: Iterable[Tensor], device: torch.device, limit: int | None = None):
        self._left = int(SHARE_OF_MEMORY * free_bytes(device)) if limit is None else limit
        self._batch: int | None = None
        self._calls: Counter[nn.Module] = Counter()
        self._records: dict[tuple[nn.Module, int, int], _Record] = {}
        self._originals: dict[nn.Module, Callable[..., Any]] = {}
        self._seen: dict[tuple[nn.Module, int, int], tuple[Any, ...]] = {}
        self._stable: set[nn.Module] = set()
        self._with_own_forward: set[nn.Module] = set()
        if any(
            isinstance(module, torch.jit.ScriptModule) or hasattr(module, "_orig_mod") for module in model.modules()
        ):
            return  # the calls of scripted and compiled modules cannot be replaced
        for module in _topmost_unmoved(model, {id(tensor) for tensor in moved}):
            self._wrap(module)

    @classmethod
    def applies(cls, target: RewriteTarget) -> bool:
        """Whether some tensor moves, statistics and batches are fixed, and writes to the model can be seen."""
        # Kept inputs would hold streamed batches in the memory of the device.
        fixed = target.plan.statistics.fixed and target.resident
        return fixed and bool(target.weights.moved) and not target.hides_writes

    @classmethod
    def install(cls, target: RewriteTarget, graph: fx.GraphModule | None, taken: frozenset[nn.Module]) -> Self:
        """Wrap the topmost modules that hold nothing that moves."""
        return cls(target.model, target.weights.moved_tensors, target.device)

    def begin(self, batch: int | None) -> None:
        """The calls that follow are for this batch; None: for weights that are no point, computed normally."""
        self._batch = batch
        self._calls.clear()

    @property
    def modules(self) -> int:
        """How many modules are reused."""
        return len(self._stable)

    def close(self) -> None:
        """Leave the model as it was."""
        for module in list(self._originals):
            self._forget(module)

    def _wrap(self, module: nn.Module) -> None:
        if "forward" in vars(module):
            self._with_own_forward.add(module)
        forward = self._originals[module] = module.forward

        def recalled(*args: Any, **kwargs: Any) -> Any:
            return self._call(module, forward, args, kwargs)

        module.forward = recalled

    def _call(self, module: nn.Module, forward: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        # With gradients on, an earlier output's graph would lead to the earlier input.
        if self._batch is None or torch.is_grad_enabled() or module not in self._originals:
            return forward(*args, **kwargs)
        key = (module, self._batch, self._calls[module])
        self._calls[module] += 1
        known, given = self._records.get(key), (args, kwargs)
        if known is not None:
            if known.intact and same_bits(known.inputs, given) and self._is_stable(module, forward, known):
                return known.output
            self._forget(module)
            return forward(*args, **kwargs)
        if module not in self._stable and not self._is_promising(key, given):
            return forward(*args, **kwargs)
        return self._remember(key, forward, given)

    def _is_promising(self, key: tuple[nn.Module, int, int], given: Any) -> bool:
        """Whether the input has the same sums as at the previous point; only then are outputs kept."""
        if key[1] != TRIAL:
            return False
        now = _sums(given)
        before = self._seen.setdefault(key, now)
        if before is now:
            return False
        if before != now:
            self._forget(key[0])
        return before == now

    def _is_stable(self, module: nn.Module, forward: Callable[..., Any], known: _Record) -> bool:
        """Whether the module gives the same output at another point; it may use weights that it does not hold."""
        if module not in self._stable:
            args, kwargs = known.inputs
            if not same_bits(forward(*args, **kwargs), known.output):
                return False
            self._stable.add(module)
        return True

    def _remember(self, key: tuple[nn.Module, int, int], forward: Callable[..., Any], given: Any) -> Any:
        module, held = key[0], (*key[0].parameters(), *key[0].buffers())
        before, state = _versions((given, held)), ModuleState(module, ())
        with noticed_draws() as draws:
            output = forward(*given[0], **given[1])
        pure = before == _versions((given, held)) and not draws.happened and not state.changed()
        size = sum(tensor.nbytes for tensor in _tensors(output))
        if not pure or size > self._left or not _is_comparable(output):
            self._forget(module)
            return output
        self._left -= size
        self._records[key] = _Record(given, output, _versions((given, output)))
        return output

    def _forget(self, module: nn.Module) -> None:
        """Stop reusing a module: its input varies, it writes in place or draws, or memory runs out."""
        original = self._originals.pop(module)
        if module in self._with_own_forward:  # set by the user, such as to share another module's
            module.forward = original
        else:
            del module.forward  # superposition leaves layers alone that have this attribute
        self._stable.discard(module)
        for key in [key for key in self._records if key[0] is module]:
            self._left += sum(tensor.nbytes for tensor in _tensors(self._records.pop(key).output))


def _topmost_unmoved(model: nn.Module, moved: set[int]) -> Iterator[nn.Module]:
    for child in model.children():
        if any(id(tensor) in moved for tensor in (*child.parameters(), *child.buffers())):
            yield from _topmost_unmoved(child, moved)
        else:
            yield child


def _tensors(value: Any) -> list[Tensor]:
    """Every tensor in nested tuples, lists and dicts."""
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, dict):
        return [tensor for member in value.values() for tensor in _tensors(member)]
    return [tensor for member in value for tensor in _tensors(member)] if isinstance(value, (tuple, list)) else []


def _versions(value: Any) -> tuple[int, ...]:
    return tuple(tensor._version for tensor in _tensors(value))


def _sums(value: Any) -> tuple[Any, ...]:
    """Shape, type and sum of every tensor; NaN equals nothing, itself included."""
    return tuple((tensor.shape, tensor.dtype, tensor.sum(dtype=_exact(tensor)).item()) for tensor in _tensors(value))


def _exact(tensor: Tensor) -> torch.dtype:
    return torch.complex128 if tensor.is_complex() else torch.float64


def _is_comparable(value: Any) -> bool:
    """Whether the value consists of tensors and plain containers only."""
    if isinstance(value, (tuple, list)):
        return all(map(_is_comparable, value))
    if isinstance(value, dict):
        return all(map(_is_comparable, value.values()))
    return value is None or isinstance(value, (Tensor, int, float, str, bool))


def same_bits(one: Any, other: Any) -> bool:
    """Whether two values hold the same bits in the same layout; for tensors, plain containers and numbers."""
    if one is other:
        return True
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return one.dtype == other.dtype and one.stride() == other.stride() and torch.equal(one, other)
    if type(one) is not type(other):
        return False
    if isinstance(one, (tuple, list)):
        return len(one) == len(other) and all(map(same_bits, one, other))
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same_bits(one[key], other[key]) for key in one)
    return isinstance(one, (int, float, str, bool)) and one == other


# ----------------------------------------------------------------------------------------------------
# Moved layers with the same input at every point: their outputs are sums of outputs computed once per batch.
#
# A linear layer or a convolution is affine in its weights. With θ₀ = (W₀, b₀) and directions dₖ = (Dₖ, eₖ) its output
# is
# y(c) = (W₀x + b₀) + Σₖ cₖ·(Dₖx + eₖ),
#
# so along a row of points, where only the last coordinate changes, two outputs give all others: the part that the row
# shares, and the part of its direction. A point then costs one pass over the output instead of the layer. All points
# of a row are evaluated on one batch before the next batch, so only two outputs of one batch are kept.

Layer = nn.Linear | nn.Conv1d | nn.Conv2d | nn.Conv3d
Parts = Sequence[tuple[Tensor | None, Tensor | None]]  # weight and bias of θ₀, then of every direction
LAYERS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)


class InputVaries(RuntimeError):
    """A layer's input differs between two points."""


def layers_of_same_input(
    model: nn.Module, moved: Sequence[Tensor], observe_points: Sequence[Callable[[], Any]]
) -> list[Layer]:
    """The moved layers whose inputs are the same at every point, so that their outputs are such sums.

    Args:
        observe_points: observe the same few samples, each at another point.

    Raises:
        ValueError: there are none, such as when all are held in bfloat16; or `observe` draws random numbers, whose
            order would change.
    """
    moved_ids = {id(tensor) for tensor in moved}
    layers = [module for module in model.modules() if _is_affine(module, moved_ids)]
    rounded = [layer for layer in layers if any(tensor.dtype is torch.bfloat16 for tensor in layer.parameters())]
    if layers and rounded == layers:
        raise ValueError("the weights are rounded to bfloat16 at every point, so that no output is a sum of others")
    inputs = _Inputs([layer for layer in layers if layer not in rounded])
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


def find_superposable(target: RewriteTarget) -> list[Layer]:
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
    """Replaces the calls of `layers` by sums of two outputs: one for a row of points, one for its direction.

    Args:
        weights: the weights of the model that holds the layers.
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
    def applies(cls, target: RewriteTarget) -> bool:
        """Whether a moved layer gets the same input at two points; raises if that cannot be determined."""
        return bool(find_superposable(target))

    @classmethod
    def install(cls, target: RewriteTarget, graph: fx.GraphModule | None, taken: frozenset[nn.Module]) -> Self:
        """Replace the calls of these layers."""
        return cls(target.weights, find_superposable(target))

    @property
    def remembered(self) -> int:
        """How many outputs are kept now."""
        return len(self._sums)

    def refresh(self, point: Sequence[float] | None) -> None:
        """The calls that follow are for this point; None: for weights that are no point, computed normally."""
        self._point = point
        self._calls.clear()

    def forget(self) -> None:
        """Drop kept outputs; calls are computed normally until the next `refresh` to a point."""
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
    """A call's outputs for the weights that a row shares and for the row's direction, in float32 at least."""

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
        shared = (_move(weights, first), _move(biases, first))
        with torch.autocast(kind, enabled=False):
            constant, along = _compute_outputs(layer, inputs.to(layer.weight.dtype), [shared, parts[-1]])
        return cls(inputs, inputs._version, constant, along, dtype)

    def at(self, last: float, inputs: Tensor) -> Tensor:
        unchanged = inputs is self.inputs and inputs._version == self.version
        if not unchanged and (inputs is self.inputs or not same_bits(inputs, self.inputs)):
            raise InputVaries(
                "superposed: a layer gets another input at another point; take another engine, such as eager"
            )
        output = torch.add(self.shared, self.along, alpha=last)
        return output if output.dtype == self.dtype else output.to(self.dtype)


def _move(parts: Sequence[Tensor | None], first: Sequence[float]) -> Tensor | None:
    """A weight or bias at the coordinates that a row shares; None if the layer has none."""
    origin, *axes = parts[:-1]
    if origin is not None:
        for axis, coordinate in zip(axes, first, strict=True):
            if axis is not None:
                origin = torch.add(origin, axis, alpha=coordinate)
    return origin


def _compute_outputs(layer: Layer, inputs: Tensor, parts: Parts) -> list[Tensor]:
    """The layer's outputs with each of these weights and biases, where None means zeros.

    They are computed as one layer with more outputs: a kernel with few outputs uses the processor poorly.
    """
    zeros = torch.zeros_like(layer.weight)
    weights = [zeros if weight is None else weight for weight, _ in parts]
    none = torch.zeros_like(zeros.flatten(1)[:, 0])
    biases = [none if bias is None else bias for _, bias in parts]
    if isinstance(layer, nn.Linear):
        outputs, dim = F.linear(inputs, torch.cat(weights), torch.cat(biases)), -1
    elif layer.groups > 1:
        return [layer._conv_forward(inputs, *pair) for pair in zip(weights, biases, strict=True)]
    else:
        outputs = layer._conv_forward(inputs, torch.cat(weights), torch.cat(biases))
        dim = -1 - len(layer.kernel_size)
    # With channels first, a chunk of one sample is contiguous already; otherwise it is copied.
    return [chunk if outputs.is_contiguous() else chunk.clone() for chunk in outputs.chunk(len(parts), dim)]


def _is_affine(module: nn.Module, moved: set[int]) -> bool:
    """Whether a module is exactly one of `LAYERS`, real-valued, and moves."""
    plain = type(module) in LAYERS and "forward" not in vars(module) and not any(getattr(module, n) for n in HOOKS)
    tensors = list(module.parameters())
    return (
        plain and any(id(tensor) in moved for tensor in tensors) and not any(tensor.is_complex() for tensor in tensors)
    )


class _Inputs:
    """While active, compares the inputs of the layers from point to point."""

    def __init__(self, layers: Sequence[nn.Module]) -> None:
        self._layers = [cast(Layer, layer) for layer in layers]
        self._before: dict[nn.Module, list[Tensor]] | None = None
        self._now: dict[nn.Module, list[Tensor]] = {}

    def __enter__(self) -> None:
        self._handles = [layer.register_forward_pre_hook(self._see) for layer in self._layers]

    def __exit__(self, *_: object) -> None:
        for handle in self._handles:
            handle.remove()

    @property
    def same(self) -> list[Layer]:
        return [layer for layer in self._layers if (self._before or {}).get(layer)]

    def _see(self, layer: nn.Module, inputs: tuple[Any, ...]) -> None:
        self._now.setdefault(layer, []).append(inputs[0].clone())

    def end_point(self) -> None:
        """Drop the layers whose inputs at this point differ from those of earlier points."""
        if self._before is not None:
            self._now = {
                layer: inputs for layer, inputs in self._now.items() if same_bits(inputs, self._before.get(layer))
            }  # fmt: skip
        self._before, self._now = self._now, {}
