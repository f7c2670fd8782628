"""Rewrites of single layers: batch norms folded, channels last, max-pooling by maxima."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, fx, nn
from torch.nn.functional import max_pool2d
from torch.nn.modules.batchnorm import _BatchNorm
from torch.overrides import TorchFunctionMode

from landscape.evaluation.engines.base import Rewrite, RewriteTarget
from landscape.problem.batches import exchange_tensors

CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)


@dataclass(frozen=True)
class Fold:
    """One convolution with the batch normalisation after it, and the convolution that stands for both.

    w′ = w·s, b′ = β + (b − μ)·s with s = γ/√(σ² + ε) per output channel, anew for every point, as any may move.
    """

    convolution: nn.Module
    norm: _BatchNorm
    folded: nn.Module

    def refresh(self) -> None:
        """Fold the weights that the model has now."""
        norm, mean, variance = self.norm, self.norm.running_mean, self.norm.running_var
        assert mean is not None
        assert variance is not None
        # In float32 at least: the model may hold all of these in bfloat16, in which a layer does not compute either.
        mean, variance = at_least_float32(mean), at_least_float32(variance)
        scale = (variance + norm.eps).rsqrt()
        if norm.weight is not None:
            scale = scale * norm.weight
        weight, bias = _weight(self.convolution), self.convolution.bias
        torch.mul(weight, scale.view(-1, *[1] * (weight.dim() - 1)), out=_weight(self.folded))
        shift = -mean * scale if bias is None else (bias - mean) * scale  # type: ignore[operator]
        self.folded.bias.copy_(shift if norm.bias is None else shift + norm.bias)  # type: ignore[operator]


class Folded(Rewrite):
    """Every batch norm that is the sole consumer of a convolution, folded into it."""

    traces = True

    def __init__(self, folds: Sequence[Fold]) -> None:
        self.folds = tuple(folds)

    @classmethod
    def applies(cls, target: RewriteTarget) -> bool:
        """Whether statistics are fixed and some batch norm follows a convolution of its own."""
        return target.plan.statistics.fixed and bool(fold_norms(fx.symbolic_trace(target.model)))

    @classmethod
    def check(cls, target: RewriteTarget) -> None:
        """Raises ValueError where statistics are taken from the layers' inputs, which folded layers no longer see."""
        # With statistics of each batch there are no running ones, so that `install` finds nothing to fold.
        if target.plan.statistics.recalibrated:
            raise ValueError(
                f"batch_norm: must not be {target.plan.batch_norm} for folded layers, which compute no statistics"
            )

    @classmethod
    def install(cls, target: RewriteTarget, graph: fx.GraphModule | None, taken: frozenset[nn.Module]) -> Self:
        """Fold in the graph all batch norms that can be, except after layers that are taken."""
        folds = [] if graph is None else fold_norms(graph, taken)
        if not folds and not taken:
            raise ValueError("no convolution is followed by a batch normalisation of its own")
        return cls(folds)

    def refresh(self, point: Sequence[float] | None) -> None:
        """Fold the weights of this point."""
        for fold in self.folds:
            fold.refresh()


def fold_norms(model: fx.GraphModule, leave: frozenset[nn.Module] = frozenset()) -> list[Fold]:
    """Fold each batch norm that is the sole consumer of a convolution; `leave` these convolutions as they are."""
    return [_fold(model, *pair) for pair in _find_foldable(model, leave)]


def at_least_float32(tensor: Tensor) -> Tensor:
    """The tensor itself, or in float32 where its type is a smaller one."""
    return tensor if tensor.itemsize >= 4 else tensor.float()


def _weight(module: nn.Module) -> Tensor:
    weight = module.weight
    assert isinstance(weight, Tensor)
    return weight


def _find_foldable(model: fx.GraphModule, leave: frozenset[nn.Module]) -> list[tuple[fx.Node, fx.Node]]:
    """Pairs of calls: a convolution whose only reader is a batch normalisation with running statistics."""
    calls: dict[Any, int] = {}
    for node in model.graph.nodes:
        if node.op == "call_module":
            calls[node.target] = calls.get(node.target, 0) + 1
    pairs = []
    for node in model.graph.nodes:
        before = node.args[0] if node.op == "call_module" and node.args else None
        if (
            isinstance(before, fx.Node)
            and before.op == "call_module"
            and isinstance(convolution := model.get_submodule(str(before.target)), CONVOLUTIONS)
            and convolution not in leave
            and isinstance(norm := model.get_submodule(node.target), _BatchNorm)
            and norm.running_mean is not None
            and len(before.users) == calls[before.target] == calls[node.target] == 1
        ):
            pairs.append((before, node))
    return pairs


def _fold(model: fx.GraphModule, convolution: fx.Node, norm: fx.Node) -> Fold:
    before, after = model.get_submodule(str(convolution.target)), model.get_submodule(str(norm.target))
    assert isinstance(after, _BatchNorm)
    folded = copy.deepcopy(before)
    weight = _weight(before)
    empty = torch.empty_like(weight, dtype=at_least_float32(weight[:0]).dtype, memory_format=torch.preserve_format)
    folded.weight = nn.Parameter(empty, requires_grad=False)
    folded.bias = nn.Parameter(empty.new_zeros(weight.shape[0]), requires_grad=False)
    model.set_submodule(str(convolution.target), folded)
    norm.replace_all_uses_with(convolution)
    model.graph.erase_node(norm)
    return Fold(before, after, folded)


# ----------------------------------------------------------------------------------------------------
# Convolution weights, and so activations, with the channel as their innermost dimension.


class ChannelsLast(Rewrite):
    """Lays out convolution weights of two and three dimensions with their input channel innermost.

    Whoever sets the weights lays them out as `layouts` says.
    """

    layouts: ClassVar = {4: torch.channels_last, 5: torch.channels_last_3d}

    @classmethod
    def applies(cls, target: RewriteTarget) -> bool:
        """Whether a parameter has four or five dimensions."""
        return any(each.dim() in cls.layouts for each in target.model.parameters())

    @classmethod
    def install(cls, target: RewriteTarget, graph: fx.GraphModule | None, taken: frozenset[nn.Module]) -> Self:
        """Install nothing in the model."""
        return cls()


# ----------------------------------------------------------------------------------------------------
# Max-pooling by elementwise maxima: the same bits by a faster kernel.

POOLING = (max_pool2d, torch.max_pool2d)


class PoolingByMaxima(TorchFunctionMode):
    """While active, 2-D max-pooling is `pool_by_maxima`. Where gradients are on it is not, as at ties they differ."""

    def __init__(self) -> None:
        super().__init__()
        self.met = False  # whether a call to max-pooling was seen

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func in POOLING and not torch.is_grad_enabled():
            self.met, func = True, pool_by_maxima
        return func(*args, **(kwargs or {}))


def pool_by_maxima(input: Tensor, *window: Any, **options: Any) -> Any:
    """`max_pool2d` by elementwise maxima of strided views: the same values to the bit, NaN included.

    torch's own kernel on the CPU walks window by window and is not vectorised over contiguous images, where this is
    several times faster. What has no such form (indices, ceil_mode, integers) is left to torch.
    """
    pooling = _Window.of(input, *window, **options)
    with torch._C.DisableTorchFunction():
        return max_pool2d(input, *window, **options) if pooling is None else pooling.pool(input)


def use_maxima(graph: fx.GraphModule) -> None:
    """Replace every max-pooling in a traced graph by `pool_by_maxima`."""
    for node in list(graph.graph.nodes):
        if node.op == "call_function" and node.target in POOLING:
            node.target = pool_by_maxima
        elif node.op == "call_module" and type(module := graph.get_submodule(str(node.target))) is nn.MaxPool2d:
            options = (module.kernel_size, module.stride, module.padding, module.dilation)
            more = {"ceil_mode": module.ceil_mode, "return_indices": module.return_indices}
            with graph.graph.inserting_before(node):
                pooled = graph.graph.call_function(pool_by_maxima, (*node.args, *options), {**node.kwargs, **more})
            node.replace_all_uses_with(pooled)
            graph.graph.erase_node(node)
    graph.recompile()


class Maxima(Rewrite):
    """Max-pooling by elementwise maxima: changed once in a graph, else by a mode that is asked at every function."""

    compiler_passes = (use_maxima,)

    def __init__(self, mode: PoolingByMaxima | None) -> None:
        self.mode = mode

    @classmethod
    def applies(cls, target: RewriteTarget) -> bool:
        """Whether the device is a CPU and `observe` pools in two dimensions, seen with the first batch."""
        if target.device.type != "cpu":
            return False
        mode = PoolingByMaxima()
        with torch.no_grad(), mode:
            target.observe(target.model, exchange_tensors(lambda tensor: tensor, target.first_batch()))
        return mode.met

    @classmethod
    def install(cls, target: RewriteTarget, graph: fx.GraphModule | None, taken: frozenset[nn.Module]) -> Self:
        """Change the pooling in the graph; without one by a mode that is active during every call."""
        if graph is None:
            return cls(PoolingByMaxima())
        use_maxima(graph)
        return cls(None)


@dataclass(frozen=True)
class _Window:
    """What to pool: size, step, padding and dilation, each as (rows, columns)."""

    size: tuple[int, int]
    step: tuple[int, int]
    padding: tuple[int, int]
    dilation: tuple[int, int]

    @classmethod
    def of(
        cls, input: Tensor, kernel_size: Any, stride: Any = None, padding: Any = 0, dilation: Any = 1,
        ceil_mode: bool = False, return_indices: bool = False,
    ) -> _Window | None:  # fmt: skip
        """The window of a call to `max_pool2d`; None where it is one to leave alone."""
        if ceil_mode or return_indices or not input.is_floating_point() or input.dim() < 3:
            return None
        size = _pair(kernel_size)
        return cls(size, size if stride in (None, [], ()) else _pair(stride), _pair(padding), _pair(dilation))

    def pool(self, images: Tensor) -> Tensor:
        """Rows first, whose views are contiguous, then columns."""
        if any(self.padding):
            rows, columns = self.padding
            images = nn.functional.pad(images, (columns, columns, rows, rows), value=float("-inf"))
        return self._along(self._along(images, 0), 1)

    def _along(self, images: Tensor, axis: int) -> Tensor:
        size, step, dilation = self.size[axis], self.step[axis], self.dilation[axis]
        place = images.dim() - 2 + axis
        count = (images.shape[place] - dilation * (size - 1) - 1) // step + 1
        views = [_every(images, place, tap * dilation, step, count) for tap in range(size)]
        maxima = views[0]
        for view in views[1:]:
            maxima = torch.maximum(maxima, view)
        return maxima


def _pair(value: Any) -> tuple[int, int]:
    if isinstance(value, int):
        return value, value
    first, *rest = value
    return int(first), int(rest[0] if rest else first)


def _every(images: Tensor, dim: int, start: int, step: int, count: int) -> Tensor:
    index = [slice(None)] * images.dim()
    index[dim] = slice(start, start + (count - 1) * step + 1, step)
    return images[tuple(index)]
