"""Max-pooling by elementwise maxima: the same bits by a faster kernel."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor, fx, nn
from torch.nn.functional import max_pool2d
from torch.overrides import TorchFunctionMode

from landscape.evaluation.engines.rewrite import Rewrite, Target
from landscape.problem.batches import exchanged

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
    def applies(cls, target: Target) -> bool:
        """Whether the device is a CPU and `observe` pools in two dimensions, seen with the first batch."""
        if target.device.type != "cpu":
            return False
        mode = PoolingByMaxima()
        with torch.no_grad(), mode:
            target.observe(target.model, exchanged(lambda tensor: tensor, target.first_batch()))
        return mode.met

    @classmethod
    def install(cls, target: Target, graph: fx.GraphModule | None, taken: frozenset[nn.Module]) -> Self:
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
