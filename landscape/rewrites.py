"""Rewrites of a model that compute the same by faster kernels: max-pooling by maxima, batch norms folded away."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn.functional import max_pool2d
from torch.nn.modules.batchnorm import _BatchNorm
from torch.overrides import TorchFunctionMode

CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)


POOLING = (max_pool2d, torch.max_pool2d)


class PoolingByMaxima(TorchFunctionMode):
    """While active, 2-D max-pooling is `pool_by_maxima`. Left alone where gradients are on: at ties theirs differ."""

    def __init__(self) -> None:
        super().__init__()
        self.met = False  # whether there was anything to rewrite

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
    found = _Window.of(input, *window, **options)
    with torch._C.DisableTorchFunction():
        return max_pool2d(input, *window, **options) if found is None else found.pool(input)


def use_maxima(graph: fx.GraphModule) -> None:
    """The same in a traced graph."""
    for node in graph.graph.nodes:
        if node.op == "call_function" and node.target in POOLING:
            node.target = pool_by_maxima
    graph.recompile()


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
        found = views[0]
        for view in views[1:]:
            found = torch.maximum(found, view)
        return found


def _pair(value: Any) -> tuple[int, int]:
    if isinstance(value, int):
        return value, value
    first, *rest = value
    return int(first), int(rest[0] if rest else first)


def _every(images: Tensor, dim: int, start: int, step: int, count: int) -> Tensor:
    index = [slice(None)] * images.dim()
    index[dim] = slice(start, start + (count - 1) * step + 1, step)
    return images[tuple(index)]


@dataclass(frozen=True)
class _Fold:
    """One convolution with the batch normalisation after it, and the convolution that stands for both."""

    convolution: nn.Module
    norm: _BatchNorm
    folded: nn.Module


class Folded:
    """A model whose batch normalisations in eval mode are folded into the convolutions before them.

    w′ = w·s, b′ = β + (b − μ)·s with s = γ/√(σ² + ε) per output channel, anew for every point, as any of them may
    move. `model` shares all other modules, and so their weights, with the one it was made of.

    Raises:
        ValueError: there is nothing to fold.
        Exception: whatever tracing the model raises, such as for control flow that depends on the data.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = fx.symbolic_trace(model)
        self._folds = [_fold(self.model, *pair) for pair in _foldable(self.model)]
        if not self._folds:
            raise ValueError("no convolution is followed by a batch normalisation of its own")
        self.model.delete_all_unused_submodules()
        self.model.graph.lint()
        self.model.recompile()
        self.model.eval().requires_grad_(False)

    def refresh(self) -> None:
        """Fold the weights that the model has now."""
        for each in self._folds:
            norm, folded = each.norm, each.folded
            mean, variance = norm.running_mean, norm.running_var
            assert mean is not None
            assert variance is not None
            scale = (variance + norm.eps).rsqrt()
            if norm.weight is not None:
                scale = scale * norm.weight
            weight, bias = _weight(each.convolution), each.convolution.bias
            torch.mul(weight, scale.view(-1, *[1] * (weight.dim() - 1)), out=_weight(folded))
            shift = -mean * scale if bias is None else (bias - mean) * scale  # type: ignore[operator]
            folded.bias.copy_(shift if norm.bias is None else shift + norm.bias)  # type: ignore[operator]


def _weight(module: nn.Module) -> Tensor:
    weight = module.weight
    assert isinstance(weight, Tensor)
    return weight


def _foldable(model: fx.GraphModule) -> list[tuple[fx.Node, fx.Node]]:
    """Pairs of calls: a convolution whose only reader is a batch normalisation with running statistics."""
    calls: dict[Any, int] = {}
    for node in model.graph.nodes:
        if node.op == "call_module":
            calls[node.target] = calls.get(node.target, 0) + 1
    found = []
    for node in model.graph.nodes:
        before = node.args[0] if node.op == "call_module" and node.args else None
        if (
            isinstance(before, fx.Node)
            and before.op == "call_module"
            and isinstance(model.get_submodule(str(before.target)), CONVOLUTIONS)
            and isinstance(norm := model.get_submodule(node.target), _BatchNorm)
            and norm.running_mean is not None
            and len(before.users) == calls[before.target] == calls[node.target] == 1
        ):
            found.append((before, node))
    return found


def _fold(model: fx.GraphModule, convolution: fx.Node, norm: fx.Node) -> _Fold:
    before, after = model.get_submodule(str(convolution.target)), model.get_submodule(str(norm.target))
    assert isinstance(after, _BatchNorm)
    folded = copy.deepcopy(before)
    weight = _weight(before)
    folded.weight = nn.Parameter(torch.empty_like(weight, memory_format=torch.preserve_format), requires_grad=False)
    folded.bias = nn.Parameter(weight.new_zeros(weight.shape[0]), requires_grad=False)
    model.set_submodule(str(convolution.target), folded)
    norm.replace_all_uses_with(convolution)
    model.graph.erase_node(norm)
    return _Fold(before, after, folded)
